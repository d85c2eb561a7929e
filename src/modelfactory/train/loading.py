"""What a training stage made, read back; needs no torch until a model is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from modelfactory.errors import CheckpointDamaged
from modelfactory.spec import from_json

if TYPE_CHECKING:
    from pathlib import Path

    import torch

FOLDER = "checkpoint"
FACTS = "model.json"
REMEDY = "`factory doctor` finds damaged stages, and the next run builds them again."


def load_model(train_stage: Path) -> torch.nn.Module:
    """Return the model of a training stage's directory, in evaluation mode: float32, on the CPU.

    Raises:
        CheckpointDamaged: its bytes are not those that were written.
    """
    from modelfactory.train import checkpoint

    facts = model_facts(train_stage)
    state = checkpoint.load(train_stage / FOLDER, "model/")
    module = cast("torch.nn.Module", from_json(facts["architecture"]).build(facts["vocab_size"], seed=0))
    module.load_state_dict({key.removeprefix("model/"): value for key, value in state.items()}, assign=True)
    return module.eval()


def model_facts(train_stage: Path) -> dict[str, Any]:
    """Return what `model.json` of a training stage says.

    Raises:
        CheckpointDamaged: it is missing or is no JSON.
    """
    path = train_stage / FACTS
    try:
        return cast("dict[str, Any]", json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({error}). {REMEDY}") from error
