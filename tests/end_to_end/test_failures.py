"""Work that fails: the rest goes on, and what was good is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.store import Store

if TYPE_CHECKING:
    from tests.end_to_end.factory import Line

SPIKE = '''

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A schedule with one step that no model survives."""

    at: int

    def min_steps(self) -> int:
        return self.at

    def lr_share(self, step: int, n_steps: int) -> float:
        return 1e30 if step == self.at else 1.0
'''


def test_a_loss_that_becomes_nan_at_step_10(fresh: Line) -> None:
    """An update at step 9 throws the weights far away; step 10 is refused before its update."""
    fresh.keepers.write_text(fresh.keepers.read_text() + SPIKE)
    fresh.edit(fresh.study, "import is_wanted", "import Spike, is_wanted")
    usual = "WSD(warmup_steps=2, decay_steps=2)"
    unusual = f'Spike(at=9) if name == "high" and seed == 1 else {usual}'
    fresh.edit(fresh.study, usual, unusual)
    spiked = "{'-spiked' if name == 'high' and seed == 1 else ''}"  # one that differs is no replicate
    fresh.edit(fresh.study, 'f"{name}/seed={seed}"', f'f"{{name}}{spiked}/seed={{seed}}"')
    fresh.edit(fresh.study, "n_tokens=8 * 128", "n_tokens=12 * 128")
    fresh.edit(fresh.study, "n_checkpoints=2", "n_checkpoints=3")
    answer = fresh.run()
    assert answer.code == 2
    assert (answer.json["failed"], answer.json["blocked"]) == (1, 1)
    assert answer.json["ran"] == 4 + 4 * 6 - 2
    with Store.open(fresh.workspace) as store:
        (failure,) = store.failures()
        kept = {record.label for record in store.records("train")}
        evaluated = {record.label for record in store.records("evaluate")}
    assert failure.label == "high-spiked/seed=1 to step 12"
    assert "step 10: loss " in failure.error
    assert "Nothing was updated" in failure.error
    assert ".py (" in failure.error, "it names the documents of the batch"
    assert {"high-spiked/seed=1 to step 4", "high-spiked/seed=1 to step 8"} <= kept
    assert "bits_per_byte of high-spiked/seed=1 at step 8" in evaluated
    assert "high/seed=2 to step 12" in kept
    status = fresh.call("status", "--json").json
    assert [each["label"] for each in status["failed"]] == ["high-spiked/seed=1 to step 12"]
    assert status["failed"][0]["log_tail"]
    again = fresh.run()
    assert (again.code, again.json["ran"], again.json["failed"], again.json["blocked"]) == (2, 0, 1, 1)


def test_a_function_of_the_user_that_raises(fresh: Line) -> None:
    fresh.edit(fresh.keepers, "return len(text) > SHORTEST", "return 1 / (len(text) * 0) > SHORTEST")
    answer = fresh.run()
    assert answer.code == 1
    assert (answer.json["ran"], answer.json["failed"], answer.json["blocked"]) == (1, 1, 18)
    status = fresh.call("status", "--json").json
    assert "ZeroDivisionError" in status["failed"][0]["error"]
    fresh.edit(fresh.keepers, "return 1 / (len(text) * 0) > SHORTEST", "return len(text) > SHORTEST")
    assert {stage["state"] for stage in fresh.left()} == {"to run"}
