"""What a training stage made, read back; needs no torch until a model is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from modelfactory.errors import CheckpointDamaged, SpecError
from modelfactory.models.lora import Adapted, unadapted
from modelfactory.spec import from_json
from modelfactory.train.own_parts import own_parts_named

if TYPE_CHECKING:
    from collections.abc import Mapping
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
        SpecError: a part of the user's own raises, or is another one than it was trained with.
    """
    from modelfactory.train import checkpoint

    facts = model_facts(train_stage)
    trained = architecture_of(facts)
    state = checkpoint.load(train_stage / FOLDER, "model/")
    weights = {key.removeprefix("model/"): value for key, value in state.items()}
    with own_parts_named(model=unadapted(trained)):
        module = cast("torch.nn.Module", unadapted(trained).build(facts["vocab_size"], seed=0))
    weights = without_adapters(trained, weights)
    _refuse_another_layout(module, weights, train_stage)
    module.load_state_dict(weights, assign=True)
    return module.eval()


def _refuse_another_layout(
    module: torch.nn.Module, weights: Mapping[str, torch.Tensor], train_stage: Path
) -> None:
    """Refuse weights that the module has no place for: a layer of the user's own was changed since."""
    trained = {name: tuple(value.shape) for name, value in weights.items()}
    today = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    odd = sorted(name for name in trained.keys() | today.keys() if trained.get(name) != today.get(name))
    if odd:
        then, now = (known.get(odd[0], "none") for known in (trained, today))
        raise SpecError(
            place=f"{train_stage}: {odd[0]}",
            found=f"shape {then} in the checkpoint and {now} in the module"
            + (f", and {len(odd) - 1} more that differ" if odd[1:] else ""),
            wanted="a model whose layers are those that it was trained with",
            remedy="Take back what was changed in a layer of your own, or train anew.",
        )


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
    return unadapted(architecture_of(model_facts(train_stage)))


def architecture_of(facts: Mapping[str, Any]) -> Any:
    """Return the architecture that was trained, from what `model.json` says.

    Raises:
        SpecError: a class of the user's own is not there any more, or refuses its values now.
    """
    with own_parts_named():
        return from_json(facts["architecture"])


def chat_template_of(facts: Mapping[str, Any]) -> str | None:
    """Return the template of chats of a model that was trained or imported; None where it has none."""
    found: str | None = facts.get("chat_template") or facts.get("imported", {}).get("chat_template")
    return found


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
