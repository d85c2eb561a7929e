"""The store against a dictionary: any order of publishing, failing, discarding, reopening and collecting."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from modelfactory.store import Record, Store, this_process

NUMBERS = st.integers(0, 5)


def _fingerprint(n: int) -> str:
    return f"{n}f" * 32


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.open(self.folder / "w")
        self.me = this_process()
        self.stored: dict[str, str] = {}
        self.inputs: dict[str, str] = {}
        self.failed: set[str] = set()
        self.names: dict[str, str] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(n=NUMBERS, parent=NUMBERS, text=st.text("ab", max_size=3))
    def publish(self, n: int, parent: int, text: str) -> None:
        fingerprint = _fingerprint(n)
        inputs = {"documents": _fingerprint(parent)} if parent < n else {}
        claim = self.store.claim(fingerprint, self.me)
        assert claim is not None
        assert (claim.stored is not None) == (fingerprint in self.stored)
        aside = self.store.new_aside(fingerprint)
        (aside / "x").write_text(text)
        self.store.seal(aside)
        self.store.publish(claim, aside, Record(fingerprint=fingerprint, kind="tokens", inputs=inputs))
        self.stored[fingerprint] = text
        self.inputs[fingerprint] = inputs.get("documents", "")
        self.failed.discard(fingerprint)

    @rule(n=NUMBERS)
    def fail(self, n: int) -> None:
        claim = self.store.claim(_fingerprint(n), self.me)
        assert claim is not None
        self.store.fail(claim, Record(fingerprint=_fingerprint(n), kind="tokens", error="no"))
        self.inputs[_fingerprint(n)] = ""
        self.failed.add(_fingerprint(n))

    @rule(n=NUMBERS)
    def discard(self, n: int) -> None:
        self.store.discard(_fingerprint(n))
        self.stored.pop(_fingerprint(n), None)

    @rule(n=NUMBERS, name=st.sampled_from("xy"))
    def name(self, n: int, name: str) -> None:
        self.store.name_experiment(name, "x.py", "{}", {"tokens": _fingerprint(n)})
        self.names[name] = _fingerprint(n)

    @rule()
    def reopen(self) -> None:
        self.store.leave(self.me)
        self.store.close()
        self.store = Store.open(self.folder / "w")

    @rule()
    def collect(self) -> None:
        self.store.leave(self.me)
        needed: set[str] = set()
        waiting = list(self.names.values())
        while waiting:
            fingerprint = waiting.pop()
            if fingerprint and fingerprint not in needed:
                needed.add(fingerprint)
                known = fingerprint in self.stored or fingerprint in self.failed
                waiting.append(self.inputs.get(fingerprint, "") if known else "")
        listed = self.store.gc(set(), dry_run=True)
        assert len(self.store.gc(set(), dry_run=False)) == len(listed)
        self.stored = {each: text for each, text in self.stored.items() if each in needed}
        self.failed &= needed

    @invariant()
    def agree(self) -> None:
        everything = [_fingerprint(n) for n in range(6)]
        assert self.store.states(everything).keys() == self.stored.keys()
        for fingerprint, text in self.stored.items():
            assert (self.store.stage_dir(fingerprint) / "x").read_text() == text
            assert self.store.check_served(fingerprint) == []
        assert {record.fingerprint for record in self.store.failures()} == self.failed
        assert list((self.store.root / "aside").iterdir()) == []
        assert self.store.running() == []


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
