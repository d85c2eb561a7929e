"""The first weights of a run that starts from a checkpoint or an imported model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelfactory.errors import SpecError
from modelfactory.models.lora import Adapted
from modelfactory.spec import from_json
from modelfactory.train import checkpoint
from modelfactory.train.loading import FACTS, FOLDER, chat_template_of, model_facts, without_adapters
from modelfactory.train.start import START, check_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from modelfactory.tokens import TokenShard
    from modelfactory.tokens.tokenizer import Tokenizer
    from modelfactory.train.learner import Learner

_KEPT = ("tokenizer_vocab_size", "prefix_id", "adds_prefix", "chat_template", "chat_names", "origin")
"""Facts of a start that hold for what is made of it."""


def start_of(inputs: Mapping[str, Path], model: Any, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the facts of the start, none where there is none.

    Raises:
        SpecError: it is another model, or one of another tokenizer.
    """
    if START not in inputs:
        return {}
    place = inputs[START] / FACTS
    facts = model_facts(inputs[START])
    check_start(str(place), from_json(facts["architecture"]), model)
    n_tokens = facts.get("tokenizer_vocab_size", facts["vocab_size"])
    if n_tokens != tokenizer.vocab_size:
        raise SpecError(
            place=str(place),
            found=f"a model of {n_tokens:,} tokens beside a tokenizer of {tokenizer.vocab_size:,}",
            wanted="the tokenizer that the start was trained with",
            remedy="Use the tokenizer of the start.",
        )
    return facts


def kept_facts(start: Mapping[str, Any], shards: Sequence[TokenShard]) -> dict[str, Any]:
    """Return what of a start's facts holds for the models that are made of it.

    The chat template, and the names of special tokens that it is given, are those of the first source of
    conversations, and the start's where there is none.
    """
    own = next((shard for shard in shards if shard.chat_template is not None), None)
    if own is not None:
        told = {"chat_template": own.chat_template, "chat_names": own.chat_names}
    else:
        told = {"chat_template": chat_template_of(start), "chat_names": start.get("chat_names")}
    known = {**start, **told}
    learnt = {"labels": "what assistants say"} if own is not None and own.loss_mask is not None else {}
    begun = {"started_from": _described(start)} if start else {}
    return {name: known[name] for name in _KEPT if known.get(name) is not None} | learnt | begun


def _described(start: Mapping[str, Any]) -> str:
    """Say in words what a start is; its place would differ from one machine to the next."""
    imported = start.get("imported")
    size = f"{start['n_parameters']:,} parameters"
    if imported is not None:
        return f"{imported['architecture']} of {size}, imported from {imported['format']}"
    return f"a model of {size} after {start['step']:,} steps and {start['n_tokens_seen']:,} tokens"


def begin_from(learner: Learner, start: Path, model: Any) -> None:
    """Take over the weights of a start, and nothing else of it.

    Adapters of the start go on if the model has the same, and are merged into its matrices otherwise. New
    ones stay as the run's own seed made them.
    """
    architecture = from_json(model_facts(start)["architecture"])
    state = checkpoint.load(start / FOLDER, "model/")
    weights = {key.removeprefix("model/"): value for key, value in state.items()}
    if architecture != model:
        weights = without_adapters(architecture, weights)
    learner.begin(weights, strict=not (isinstance(model, Adapted) and architecture != model))
