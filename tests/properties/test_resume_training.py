"""However a run is cut into segments, resumed or kept alive, its last state has the same bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.material import GPT, LLAMA, chain, deterministic_files, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def uninterrupted(
    inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[Any, dict[str, bytes]]:
    """Return the last state of a run without a break, for each model and precision."""
    return {
        case: state(
            chain(
                [10], inputs, tmp_path_factory.mktemp("whole"), warm=False, model=case[0], precision=case[1]
            )
        )
        for case in CASES
    }


CASES = [(LLAMA, "fp32"), (LLAMA, "bf16"), (GPT, "bf16")]


def state(stage: Path) -> dict[str, bytes]:
    """Return all files but the metrics, which hold the steps of the last segment only."""
    return {name: content for name, content in deterministic_files(stage).items() if name != "metrics.jsonl"}


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    case=st.sampled_from(range(len(CASES))),
    breaks=st.sets(st.integers(1, 9), min_size=1, max_size=3),
    warm=st.booleans(),
)
def test_any_cut_gives_the_same_bytes(
    inputs: dict[str, Path], uninterrupted: Any, case: int, breaks: set[int], warm: bool
) -> None:
    model, precision = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        steps = [*sorted(breaks), 10]
        last = chain(steps, inputs, Path(folder), warm=warm, model=model, precision=precision)
        assert state(last) == uninterrupted[CASES[case]]


def test_a_live_trainer_that_went_on_is_not_used(inputs: dict[str, Path], tmp_path: Path) -> None:
    """Only the trainer of exactly that checkpoint is continued; here it is one of a later step."""
    from tests.train.material import spec, train

    kept: dict[str, Any] = {}
    first = train(spec(to_step=3), inputs, tmp_path / "first", warm=kept, fingerprint="first")
    here = {**inputs, "checkpoint": first}
    second = train(spec(from_step=3, to_step=6), here, tmp_path / "second", warm=kept, fingerprint="second")
    again = train(spec(from_step=3, to_step=6), here, tmp_path / "again", warm=kept, fingerprint="again")
    assert deterministic_files(second) == deterministic_files(again)
