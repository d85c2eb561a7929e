"""From the directories of finished stages to files for other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from modelfactory.interchange.aside import check_place
from modelfactory.interchange.exporting import Dtype, export_hugging_face
from modelfactory.interchange.gguf_writing import export_gguf
from modelfactory.interchange.safetensors_files import MAX_SHARD_BYTES
from modelfactory.tokens import load_tokenizer
from modelfactory.train.loading import chat_template_of, load_architecture, load_model, model_facts

if TYPE_CHECKING:
    from pathlib import Path


def export_stage(
    checkpoint: Path,
    tokenizer: Path,
    to: Path,
    *,
    format: Literal["hf", "gguf"] = "hf",  # noqa: A002 - what it is called everywhere
    dtype: Dtype = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    licence: str | None = None,
    lineage: str | None = None,
) -> str:
    """Write the model of a training or import stage; see `export_hugging_face` and `export_gguf`.

    Args:
        checkpoint: directory of the stage.
        tokenizer: directory of the tokenizer stage it was made with.
        to: a folder (hf) or a file (gguf) that does not exist yet.
        format: hf, for transformers and what builds on it, or gguf, for llama.cpp and what builds on it.
        dtype: of the matrices.
        max_shard_bytes: of one file of weights; hf only.
        licence: of the weights.
        lineage: fingerprint of the stage, for the model card.

    Returns:
        The name of the architecture there.
    """
    check_place(to)  # before weights are read
    facts = model_facts(checkpoint)
    spec, module = load_architecture(checkpoint), load_model(checkpoint)
    read = load_tokenizer(tokenizer)
    kept = {name: facts[name] for name in ("origin", "chat_names") if name in facts}
    told = _told(facts, lineage) | kept | {"prefix_id": facts.get("prefix_id", read.eos_id)}
    options: dict[str, Any] = {"dtype": dtype, "licence": licence, "facts": told}
    if format == "gguf":
        return export_gguf(module, spec, read, to, **options)
    return export_hugging_face(module, spec, read, to, max_shard_bytes=max_shard_bytes, **options)


def _told(facts: dict[str, Any], lineage: str | None) -> dict[str, Any]:
    imported = facts.get("imported")
    if imported is None:
        training = _trained(facts)
    else:
        training = {"imported from": f"{imported['format']}, {imported['dtype']}; not trained further"}
    return {"training": training, "lineage": lineage, "chat_template": chat_template_of(facts)}


def _trained(facts: dict[str, Any]) -> dict[str, str]:
    """Return how a model was trained, in words."""
    known = {
        "started from": facts.get("started_from"),
        "trained for": f"{facts['step']:,} steps, {facts['n_tokens_seen']:,} tokens",
        "learnt to write": facts.get("labels"),
        "adapters": _adapters(facts),
        "precision in training": facts["precision"],
        "FLOPs for each token trained on": f"{facts['flops_per_token']:,}",
    }
    return {name: text for name, text in known.items() if text is not None}


def _adapters(facts: dict[str, Any]) -> str | None:
    """Return what LoRA was, which is merged into the weights that are written."""
    lora = facts["architecture"].get("lora")
    if lora is None:
        return None
    size = f"rank {lora['rank']}, alpha {lora['alpha']:g}, {facts['n_trainable']:,} numbers"
    return f"LoRA of {size}, merged into the weights"
