from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelfactory.store import Holder, Record, Store, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclasses.dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Short words for what the tests do over and over."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, **options) -> Store:
        return Store.open(self.root, **options)

    @staticmethod
    def fingerprint(n: int) -> str:
        return f"{n * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4

    @staticmethod
    def write(directory: Path, contents: Mapping[str, str]) -> None:
        for name, text in contents.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @staticmethod
    def record(fingerprint: str, **fields) -> Record:
        return Record(fingerprint=fingerprint, **({"kind": "tokens", "label": "of a test"} | fields))

    def publish(
        self, store: Store, fingerprint: str, contents: Mapping[str, str] | None = None, **fields
    ) -> Record:
        claim = store.claim(fingerprint, this_process())
        assert claim is not None
        aside = store.new_aside(fingerprint)
        self.write(aside, contents or {"tokens.bin": f"bytes of {fingerprint}", "observed/t.json": "{}"})
        store.seal(aside)
        return store.publish(claim, aside, self.record(fingerprint, **fields))

    @staticmethod
    def in_child(work: Callable[[], None]) -> int:
        """Fork, work, exit 0; 1 with a traceback on an error; negative: the signal that ended it."""
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        return pid

    @staticmethod
    def wait(pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @staticmethod
    def dead(**changes) -> Holder:
        """Return a holder of this machine whose process is gone."""
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return dataclasses.replace(this_process(), **({"pid": pid} | changes))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "workspace")


@pytest.fixture
def bench_in_memory(bench: Bench) -> Iterator[Bench]:
    """For tests with hundreds of fsyncs: a killed process leaves the same in memory as on a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield bench
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="modelfactory-test-") as folder:
        yield Bench(Path(folder) / "workspace")


@pytest.fixture
def store(bench: Bench) -> Iterator[Store]:
    with bench.open() as opened:
        yield opened
