"""A config.json, read field by field, so that no field is passed over in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG = "config.json"

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


class Config:
    """Fields of a config.json; `done` refuses those that nobody asked for."""

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        self._fields = dict(fields)
        self._left = set(self._fields) - HARMLESS
        self.place = place

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or `default` where it is missing or null."""
        self._left.discard(name)
        found = self._fields.get(name)
        return default if found is None else found

    def has(self, name: str) -> bool:
        """Return whether a field is there and not null, or is missing and so has its default."""
        return name not in self._fields or self._fields[name] is not None

    def need(self, name: str) -> Any:
        """Return a field that must be there.

        Raises:
            SourceError: it is not.
        """
        found = self.get(name)
        if found is None:
            raise self.fault(name, "nothing", "a value: the architecture does not follow without it")
        return found

    def count(self, name: str) -> int:
        """Return a whole number above 0 that must be there.

        Raises:
            SourceError: it is not.
        """
        found = self.need(name)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise self.fault(name, json.dumps(found, default=str), "a whole number above 0")
        return found

    def only(self, name: str, *allowed: Any, absent: Any = None) -> Any:
        """Return a field that may have few values, `absent` standing for a missing one.

        Raises:
            SourceError: it has another value, which this architecture cannot hold.
        """
        found = self.get(name, absent)
        if found not in allowed:
            wanted = " or ".join(json.dumps(value) for value in allowed)
            raise self.fault(
                name, json.dumps(found, default=str), f"{wanted}: nothing else can be represented"
            )
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
                    found=f"{json.dumps(value, default=str)}, a field that this architecture does not know",
                    wanted="fields whose effect is known",
                    remedy="Take it out of config.json if it changes no logits.",
                )

    def fault(self, name: str, found: str, wanted: str) -> SourceError:
        """Return the error of a field."""
        return SourceError(
            place=f"{self.place}: {name}",
            found=found,
            wanted=wanted,
            remedy="A decoder for it can be written in a module of your own; see docs/how-to/interchange.md.",
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        SourceError: there is none.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(
            place=str(path),
            found=f"no file that can be read ({error})",
            wanted="a JSON object, as transformers' save_pretrained writes it",
            remedy="Copy the file again.",
        ) from error
    if not isinstance(found, dict):
        raise SourceError(place=str(path), found=type(found).__name__, wanted="a JSON object", remedy="")
    return found
