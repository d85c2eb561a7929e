"""Steps whose rows hold nothing that is learnt."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelfactory.errors import SourceError
from modelfactory.stage import Progress, Site
from modelfactory.tokens import TokenShard
from modelfactory.tokens.shard import LOSS_MASK
from modelfactory.train import stage as train_stage
from modelfactory.train.stage import open_stream
from tests.train.material import spec
from tests.train.test_train_document_masks import metrics, written

if TYPE_CHECKING:
    from pathlib import Path

SHORT: dict[str, Any] = {"n_tokens": 4 * 32, "batch_tokens": 32, "n_checkpoints": 1}
"""Four steps of one row."""
TEXTS = ("def f(x):\n    return x\n",) * 60


def masked(inputs: dict[str, Path], folder: Path, learnt_of_step: dict[int, int]) -> dict[str, Path]:
    """Return inputs of which a step learns as many labels as said, and no other step any."""
    (folder / "tokens").mkdir()
    here = {**inputs, "tokens0": written(TEXTS, inputs, folder / "tokens")}
    shard = TokenShard.open(here["tokens0"])
    stream = open_stream(spec(to_step=4, **SHORT), here)
    learnt = np.zeros(shard.n_tokens, dtype=np.bool_)
    for step, n_learnt in learnt_of_step.items():
        first = int(stream.batch(step).sequence_ids[0, 2]) * 32 + 1
        learnt[first : first + n_learnt] = True
    (here["tokens0"] / LOSS_MASK).write_bytes(learnt.tobytes())
    facts = json.loads((here["tokens0"] / "tokens.json").read_text("utf-8"))
    facts["n_learnt"] = int(learnt.sum())
    (here["tokens0"] / "tokens.json").write_text(json.dumps(facts), "utf-8")
    return here


def run(here: dict[str, Path], folder: Path) -> list[Progress]:
    heard: list[Progress] = []
    folder.mkdir()
    site = Site(lake=folder, threads=1, report=heard.append)
    train_stage.run(spec(to_step=4, **SHORT), here, folder, site)
    return heard


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_step_without_labels_has_no_loss_and_is_warned_of_once(
    inputs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = masked(inputs, tmp_path, {1: 5, 4: 32})
    with caplog.at_level(logging.WARNING):
        heard = run(here, tmp_path / "stage")
    lines = metrics(tmp_path / "stage")
    assert [line["n_labels"] for line in lines] == [5, 0, 0, 32]
    assert [line["loss"] is None for line in lines] == [False, True, True, False]
    assert lines[3]["loss"] > 4
    warnings = [each.warning for each in heard if each.warning]
    assert len(warnings) == 1
    assert warnings[0].startswith("step 2 has no label that counts")
    assert "max_seq_len" in warnings[0]
    assert told(caplog) == [warnings[0], "2 steps had no label that counts"]
    assert heard[-1].metrics["loss"] == pytest.approx(lines[3]["loss"])
    assert all(each.metrics.get("loss") != 0 for each in heard)


def test_a_run_without_any_label_is_refused_before_it_trains(inputs: dict[str, Path], tmp_path: Path) -> None:
    here = masked(inputs, tmp_path, {})
    with pytest.raises(SourceError, match=r"no label that counts in any of the 4 steps.*max_seq_len"):
        run(here, tmp_path / "stage")
    assert not [*(tmp_path / "stage").iterdir()]


def test_all_labels_are_not_warned_of(
    inputs: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = run(masked(inputs, tmp_path, dict.fromkeys(range(1, 5), 1)), tmp_path / "stage")
    assert not [each for each in heard if each.warning]
    assert not told(caplog)
