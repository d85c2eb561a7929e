"""Rotary positions in config.json: `rope_theta` and `rope_scaling`, or, of late, `rope_parameters`.

We write the older form, which all versions read.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, cast

from modelfactory.models.rope import LinearScaling, Llama3Scaling, YaRN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.interchange.config import Config
    from modelfactory.models import Rope

KNOWN = ("default", "linear", "llama3", "yarn")
_PAPER = "0.1 * ln(factor) + 1"
Scaling = LinearScaling | YaRN | Llama3Scaling


def rope_theta(config: Config, default: float = 10_000.0) -> float:
    """Return the base of the wavelengths."""
    own = config.get("rope_theta", default)
    return float(config.get("rope_parameters", {}).get("rope_theta", own))


def rope_share(config: Config, default: float = 1.0) -> float:
    """Return the part of a head that turns."""
    own = config.get("partial_rotary_factor", default)
    return float(config.get("rope_parameters", {}).get("partial_rotary_factor", own))


def rope_scaling(config: Config) -> Scaling | None:
    """Return how positions are stretched.

    Raises:
        SourceError: in a way that is not known here, or with a field that is not.
    """
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    fields = dict(config.get(name, {}))
    config.get("rope_scaling")
    for known in ("rope_theta", "partial_rotary_factor"):
        fields.pop(known, None)
    kind = fields.pop("rope_type", None) or fields.pop("type", "default")
    fields.pop("type", None)
    if kind not in KNOWN:
        raise config.fault(f"{name}.rope_type", repr(kind), f"one of {', '.join(KNOWN)}")
    return _scaling(kind, {key: value for key, value in fields.items() if value is not None}, name, config)


def _scaling(kind: str, fields: dict[str, Any], name: str, config: Config) -> Scaling | None:
    if kind == "default" or fields.get("factor") == 1:
        return None
    n_before = fields.pop("original_max_position_embeddings", None)
    if kind == "linear":
        return cast("Scaling", _made(LinearScaling, kind, fields, name, config))
    fields["original_max_seq_len"] = n_before or config.need("max_position_embeddings")
    if kind == "yarn":
        fields |= _yarn_options(fields)
    made = Llama3Scaling if kind == "llama3" else YaRN
    return cast("Scaling", _made(made, kind, fields, name, config))


def _yarn_options(fields: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of YaRN that have other names here out of `fields`."""
    options = {"whole_pairs": fields.pop("truncate")} if "truncate" in fields else {}
    scales = [fields.pop(name, 0) for name in ("mscale", "mscale_all_dim")]
    if "attention_factor" not in fields and all(scales):  # else transformers does not look at them
        stretch = math.log(fields.get("factor", 1.0))  # one that is missing is named by `_made`
        turned, whole = (0.1 * scale * stretch + 1 for scale in scales)
        options["attention_factor"] = turned / whole
    return options


def _made(made: type[Any], kind: str, options: dict[str, Any], place: str, config: Config) -> Any:
    """Return the scaling, having named a field that it does not know or lacks."""
    fields = {field.name: field for field in dataclasses.fields(made)}
    for name in sorted(options.keys() - fields.keys()):
        raise config.fault(f"{place}.{name}", repr(options[name]), f"no such field: {kind} has none here")
    for name, field in fields.items():
        if name not in options and field.default is dataclasses.MISSING:
            raise config.fault(f"{place}.{name}", "nothing", f"a value: {kind} needs it")
    return made(**options)


def rope_fields(rope: Rope) -> dict[str, Any]:
    """Return `rope_theta` and, where positions are stretched, `rope_scaling`."""
    fields: dict[str, Any] = {"rope_theta": rope.theta}
    if rope.scaling is not None:
        fields["rope_scaling"] = _scaling_fields(rope.scaling)
    return fields


def _scaling_fields(scaling: Scaling) -> Mapping[str, Any]:
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    common = {"factor": scaling.factor, "original_max_position_embeddings": scaling.original_max_seq_len}
    if isinstance(scaling, Llama3Scaling):
        bounds = {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
        }
        return {"rope_type": "llama3", **common, **bounds}
    fields = {"rope_type": "yarn", **common, "beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    if scaling.attention_factor != _PAPER:
        fields["attention_factor"] = scaling.attention_factor
    return fields if scaling.whole_pairs else fields | {"truncate": False}
