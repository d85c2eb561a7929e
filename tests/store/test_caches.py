from __future__ import annotations

import threading
import time

SHA = "5" * 64
OLD_NS = 10**15 - 10**10


def test_hashes_are_kept_while_size_and_time_agree(bench, clock):
    with bench.open(clock=clock) as store:
        store.pins.put("a.py", 10, OLD_NS, SHA)
        assert store.pins.get("a.py", 10, OLD_NS) == SHA
        assert store.pins.get("a.py", 11, OLD_NS) is None
        assert store.pins.get("a.py", 10, OLD_NS + 1) is None
        assert store.pins.get("b.py", 10, OLD_NS) is None
        store.pins.put("a.py", 11, OLD_NS + 1, "6" * 64)
        assert store.pins.get("a.py", 11, OLD_NS + 1) == "6" * 64


def test_hashes_of_young_files_are_not_kept(bench, clock):
    """A file written twice within one tick of the clock looks unchanged; git calls such an entry racy."""
    now_ns = int(clock.now * 1e9)
    with bench.open(clock=clock) as store:
        for mtime_ns in (now_ns, now_ns - 1_900_000_000, now_ns + 10**12):
            store.pins.put("a.py", 10, mtime_ns, SHA)
            assert store.pins.get("a.py", 10, mtime_ns) is None
        store.pins.put("a.py", 10, now_ns - 2_100_000_000, SHA)
        assert store.pins.get("a.py", 10, now_ns - 2_100_000_000) == SHA


def test_many_hashes_in_one_query(store):
    states = [(f"lib/{n}.py", n, OLD_NS + n) for n in range(1800)]
    store.pins.put_many(dict.fromkeys(states, SHA))
    started = time.perf_counter()
    assert len(store.pins.get_many([*states, ("other.py", 1, 1)])) == 1800
    assert time.perf_counter() - started < 0.2
    assert store.pins.get_many([]) == {}


def test_names_that_are_no_unicode(store):
    store.pins.put_many({("caf\udce9.py", 1, OLD_NS): SHA})
    assert store.pins.get("caf\udce9.py", 1, OLD_NS) is None, "hashed each time rather than refused"


def test_values_by_key(store):
    assert store.cache_get("digest of x.py") is None
    store.cache_put("digest of x.py", {"f": "1", "g": [1, 2]})
    store.cache_put("digest of x.py", {"f": "2"})
    store.cache_put_many({"a": 1, "b": None})
    assert store.cache_get("digest of x.py") == {"f": "2"}
    assert store.cache_get_many(["a", "b", "c"]) == {"a": 1, "b": None}


def test_threads_of_one_process_share_a_store(store):
    errors = []

    def work(worker: int) -> None:
        try:
            for n in range(50):
                store.cache_put(f"{worker}/{n}", n)
                assert store.cache_get(f"{worker}/{n}") == n
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
