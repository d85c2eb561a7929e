"""Rotary positions in config.json: `rope_theta` and `rope_scaling`, or, of late, `rope_parameters`.

We write the older form, which all versions read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    try:
        return _scaling(kind, {key: value for key, value in fields.items() if value is not None}, config)
    except KeyError as error:
        raise config.fault(f"{name}.{error.args[0]}", "nothing", f"a value: {kind} needs it") from error
    except TypeError as error:
        raise config.fault(name, f"{error}", f"the fields of {kind}") from error


def _scaling(kind: str, fields: dict[str, Any], config: Config) -> Scaling | None:
    if kind == "default" or fields.get("factor") == 1:
        return None
    options: dict[str, Any] = {"factor": fields.pop("factor")}
    if kind == "linear":
        fields.pop("original_max_position_embeddings", None)
        return LinearScaling(**options, **fields)
    n_before = fields.pop("original_max_position_embeddings", None)
    options["original_max_seq_len"] = n_before or config.need("max_position_embeddings")
    if kind == "llama3":
        return Llama3Scaling(**options, **fields)
    if "truncate" in fields:
        options["whole_pairs"] = fields.pop("truncate")
    return YaRN(**options, **fields)


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
