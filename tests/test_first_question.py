"""The demo asks what it says it asks."""

from __future__ import annotations

from pathlib import Path

from modelfactory.loading import load_study

FILE = Path(__file__).parents[1] / "experiments" / "first_question.py"


def test_equal_size_two_treatments_and_replicates() -> None:
    study = load_study(FILE)
    sizes = [each.model.n_parameters(each.tokenizer.vocab_size) for each in study.experiments]
    assert max(sizes) / min(sizes) < 1.02
    assert len({experiment.variant for experiment in study.experiments}) == 4
    assert len(study.experiments) >= 2 * 4
    assert all(len(experiment.training.checkpoint_steps) >= 4 for experiment in study.experiments)
    assert {task.name for task in study.experiments[0].evaluations} == {
        "bits_per_byte",
        "next_line",
        "complete_function",
    }
