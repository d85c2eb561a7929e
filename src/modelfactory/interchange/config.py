"""A config.json, read field by field, so that no field is passed over in silence."""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONFIG = "config.json"
_MOST_SHOWN = 200
"""Characters of a value in an error."""

HARMLESS = frozenset(
    {
        *("architectures", "model_type", "transformers_version", "_name_or_path", "torch_dtype", "dtype"),
        *(
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "unk_token_id",
            "sep_token_id",
            "decoder_start_token_id",
        ),
        *("use_cache", "cache_implementation", "return_dict", "output_hidden_states", "output_attentions"),
        *("chunk_size_feed_forward", "id2label", "label2id", "problem_type", "task_specific_params"),
        *("initializer_range", "pretraining_tp", "attn_implementation", "_attn_implementation"),
        *("attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout"),
        *("is_llama_config", "transformers.js_config", "num_logits_to_keep", "z_loss_coefficient"),
        *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "mamba_chunk_size"),
    }
)
"""Fields that change no logits: bookkeeping, how training went, and how fast things are computed."""


_LARGEST_WHOLE = 2**31
LIMITS = MappingProxyType(
    {
        **dict.fromkeys(("num_hidden_layers", "n_layer"), 10_000),
        **dict.fromkeys(("hidden_size", "n_embd", "intermediate_size", "n_inner"), 2**20),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "head_dim"), 2**16),
        **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), 2**12),
        **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state"), 2**16),
        **dict.fromkeys(("mamba_d_conv", "mamba_expand"), 2**10),
        "moe_intermediate_size": 2**20,
    }
)
"""Sizes beyond which a file is damaged rather than large: the shapes that follow stay within 64 bits."""
FOLLOWING = frozenset({"head_dim", "num_key_value_heads", "n_inner"})
"""Fields that follow from others where they are null."""


class Config:
    """Fields of a config.json; `done` refuses those that nobody asked for.

    Every method raises SourceError, naming file and field, for a value of another type or out of range.
    """

    def __init__(
        self, fields: Mapping[str, Any], place: str, defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Keep the fields.

        Args:
            fields: of the file.
            place: the file, for errors.
            defaults: what the class of transformers takes where a field is missing; null is not missing.
        """
        self._fields = {**defaults, **fields}
        self._left = set(fields) - HARMLESS
        self.place = place

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field as it is, or `default` where it is missing or null."""
        self._left.discard(name)
        found = self._fields.get(name)
        return default if found is None else found

    def _value(self, name: str, default: Any) -> Any:
        """Return a field, or `default` where it is missing; null is missing only where others tell more."""
        found = self.get(name, default)
        is_null = name in self._fields and self._fields[name] is None
        if is_null and default is not None and name not in FOLLOWING:
            raise self.damaged(name, "null", "a value, or no such field")
        return found

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number above 0; without a default it must be there."""
        found, largest = self._value(name, default), LIMITS.get(name, _LARGEST_WHOLE)
        if found is None:
            raise self.damaged(name, "nothing", "a value: the architecture does not follow without it")
        if type(found) is not int or not 1 <= found <= largest:
            raise self.damaged(name, shown(found), f"a whole number from 1 to {largest:,}")
        return found

    def number(self, name: str, default: float | None = None, *, above: float = 0.0) -> float:
        """Return a finite number above `above`; without a default it must be there."""
        found = self._value(name, default)
        if found is None:
            raise self.damaged(name, "nothing", "a value: the architecture does not follow without it")
        if not is_number(found) or found <= above:
            raise self.damaged(name, shown(found), f"a number above {above:g}")
        return float(found)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        found = self._value(name, default)
        if type(found) is not bool:
            raise self.damaged(name, shown(found), "true or false")
        return found

    def optional_count(self, name: str) -> int | None:
        """Return a whole number above 0, or None where the field is null."""
        return None if self.get(name) is None else self.count(name)

    def optional_number(self, name: str) -> float | None:
        """Return a finite number above 0, or None where the field is null."""
        return None if self.get(name) is None else self.number(name)

    def listing(self, name: str, kind: type, default: Sequence[Any]) -> list[Any]:
        """Return a list of values that are all of one type."""
        found = self.get(name, list(default))
        if not isinstance(found, list) or any(type(each) is not kind for each in found):
            raise self.damaged(name, shown(found), f"a list of {kind.__name__}")
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object, empty where the field is missing or null."""
        found = self.get(name, {})
        if not isinstance(found, dict):
            raise self.damaged(name, shown(found), "an object of fields, or null")
        return dict(found)

    def only(self, name: str, *allowed: Any, absent: Any = None) -> Any:
        """Return a field that may have few values, `absent` standing for a missing one."""
        found = self.get(name, absent) if None in allowed else self._value(name, absent)
        if not any(_equal(found, value) for value in allowed):
            wanted = " or ".join(json.dumps(value) for value in allowed)
            if type(found) not in {type(value) for value in allowed}:
                raise self.damaged(name, shown(found), wanted)
            raise self.fault(name, shown(found), f"{wanted}: nothing else can be represented")
        return found

    def done(self) -> None:
        """Refuse fields that were not asked for, unless they are empty: they may change the logits.

        Raises:
            SourceError: naming the first of them.
        """
        for name in sorted(self._left):
            value = self._fields[name]
            if value not in (None, False, "", [], {}):
                raise SourceError(
                    place=f"{self.place}: {name}",
                    found=f"{shown(value)}, a field that this architecture does not know",
                    wanted="fields whose effect is known",
                    remedy="Take it out of config.json if it changes no logits.",
                )

    def damaged(self, name: str, found: str, wanted: str) -> SourceError:
        """Return the error of a field whose value means nothing in any architecture."""
        remedy = "Correct the field, or copy the file again: it is damaged."
        return SourceError(place=f"{self.place}: {name}", found=found, wanted=wanted, remedy=remedy)

    def fault(self, name: str, found: str, wanted: str) -> SourceError:
        """Return the error of a field whose value no decoder of this package can follow."""
        return SourceError(
            place=f"{self.place}: {name}",
            found=found,
            wanted=wanted,
            remedy="A decoder for it can be written in a module of your own; see docs/how-to/interchange.md.",
        )


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and no truth value, that a float can hold."""
    if type(value) is int:
        return abs(value) <= 2**63
    return type(value) is float and math.isfinite(value)


def _equal(one: Any, other: Any) -> bool:
    """Compare without taking true for 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def shown(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        SourceError: there is none.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            place=str(path),
            found=f"no file that can be read ({error})",
            wanted="a JSON object, as transformers' save_pretrained writes it",
            remedy="Copy the file again.",
        ) from error
    if not isinstance(found, dict):
        raise SourceError(
            place=str(path),
            found=f"{shown(found)}, which is no object",
            wanted="a JSON object, as transformers' save_pretrained writes it",
            remedy="Copy the file again.",
        )
    return found
