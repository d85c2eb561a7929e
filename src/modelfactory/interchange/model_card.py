"""The README.md of an exported model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from modelfactory.models import Decoder

CARD = "README.md"
_PREFIX = "The tokenizer puts the token bos_token before every text."
_AS_ORIGIN = "The tokenizer makes of every text what that of the model it started from does."


def model_card(
    name: str,
    spec: Decoder,
    *,
    vocab_size: int,
    architecture: str,
    dtype: str,
    licence: str | None,
    facts: Mapping[str, Any],
) -> str:
    """Return what is known of a model: architecture, how it was trained, where it came from.

    The licence is the author's to give; without one the card says that none was given.
    """
    head = [f"license: {licence}"] if licence is not None else []
    head += ["library_name: transformers", "pipeline_tag: text-generation"]
    rows = {
        "class in transformers": f"`{architecture}`",
        "parameters": f"{spec.n_parameters(vocab_size):,}",
        "layers": spec.n_layers,
        "width": spec.d_model,
        "context": f"{spec.max_seq_len:,} tokens",
        "vocabulary": f"{vocab_size:,}",
        "weights": dtype,
    }
    told = {**rows, **facts.get("training", {})}
    parts = [
        "---",
        *head,
        "---",
        "",
        f"# {name}",
        "",
        *_table(told),
        "",
        "Licence: " + (licence or "none was given at export; ask whoever made it."),
        "",
        *_lineage(facts.get("lineage")),
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        "```",
        "",
        _AS_ORIGIN if facts.get("origin") else _PREFIX,
    ]
    return "\n".join(parts) + "\n"


def _table(rows: Mapping[str, Any]) -> Iterable[str]:
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in rows.items())


def _lineage(lineage: Any) -> list[str]:
    if not lineage:
        return []
    return [f"Made by Model Factory; `factory show {lineage}` tells what it was made from.", ""]
