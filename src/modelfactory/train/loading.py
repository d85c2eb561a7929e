"""What a training stage made, read back; needs no torch until a model is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from modelfactory.errors import CheckpointDamaged
from modelfactory.models.lora import Adapted, unadapted
from modelfactory.spec import from_json

if TYPE_CHECKING:
    from pathlib import Path

    import torch

FOLDER = "checkpoint"
FACTS = "model.json"
REMEDY = "`factory doctor` finds damaged stages, and the next run builds them again."


def load_model(train_stage: Path) -> torch.nn.Module:
    """Return the model of a training stage's directory, in evaluation mode: float32, on the CPU.

    Adapters are merged into the matrices they were trained for: see `load_architecture`.

    Raises:
        CheckpointDamaged: its bytes are not those that were written.
    """
    from modelfactory.train import checkpoint

    facts = model_facts(train_stage)
    trained = from_json(facts["architecture"])
    state = checkpoint.load(train_stage / FOLDER, "model/")
    weights = {key.removeprefix("model/"): value for key, value in state.items()}
    module = cast("torch.nn.Module", unadapted(trained).build(facts["vocab_size"], seed=0))
    module.load_state_dict(without_adapters(trained, weights), assign=True)
    return module.eval()


def without_adapters(trained: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights for `unadapted(trained)`: adapters, where it has some, merged into their matrices."""
    if not isinstance(trained, Adapted):
        return weights
    from modelfactory.models.lora_module import merged

    return merged(weights, trained.matrices(), trained.lora)


def load_architecture(train_stage: Path) -> Any:
    """Return the architecture of what `load_model` returns: that which was trained, without adapters.

    Raises:
        CheckpointDamaged: `model.json` is missing or is no JSON.
    """
    return unadapted(from_json(model_facts(train_stage)["architecture"]))


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
