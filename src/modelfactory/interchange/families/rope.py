"""Rotary positions in config.json: `rope_theta` and `rope_scaling`, or, of late, `rope_parameters`.

We write the older form, which all versions read.
"""

from __future__ import annotations

import dataclasses
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from modelfactory.interchange.config import is_number
from modelfactory.models.rope import LinearScaling, Llama3Scaling, YaRN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelfactory.interchange.config import Config
    from modelfactory.models import Rope

KNOWN = ("default", "linear", "llama3", "yarn")
_PAPER = "0.1 * ln(factor) + 1"
Scaling = LinearScaling | YaRN | Llama3Scaling
_MADE = MappingProxyType({"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YaRN})


def rope_theta(config: Config, default: float = 10_000.0) -> float:
    """Return the base of the wavelengths; what stands beside a scaling wins, as in transformers."""
    name, fields = _parameters(config)
    own = config.number("rope_theta", default)
    if fields.get("rope_theta") is None:
        return own
    return _number(fields["rope_theta"], f"{name}.rope_theta", config)


def check_rope_share(config: Config, only: float = 1.0) -> None:
    """Refuse that another part of a head turns than the one this family has here.

    Raises:
        SourceError: naming the field.
    """
    name, fields = _parameters(config)
    inner = fields.get("partial_rotary_factor")
    given = {"partial_rotary_factor": config.get("partial_rotary_factor")} | {
        f"{name}.partial_rotary_factor": inner
    }
    for place, share in given.items():
        if share is not None and (not is_number(share) or share != only):
            raise config.fault(place, repr(share), f"{only:g}: no other part of a head can turn here")


def rope_scaling(config: Config) -> Scaling | None:
    """Return how positions are stretched.

    Raises:
        SourceError: in a way that is not known here, or with a field that is not.
    """
    name, fields = _parameters(config)
    for known in ("rope_theta", "partial_rotary_factor"):
        fields.pop(known, None)
    kind = _kind(name, fields, config)
    if "truncate" in fields and type(fields["truncate"]) is not bool:  # null means false to transformers
        raise config.damaged(f"{name}.truncate", repr(fields["truncate"]), "true or false")
    return _scaling(kind, {key: value for key, value in fields.items() if value is not None}, name, config)


def _parameters(config: Config) -> tuple[str, dict[str, Any]]:
    """Return the field that counts, and what it holds.

    transformers takes `rope_scaling` where there are both, and says nothing.
    """
    found = {name: config.mapping(name) for name in ("rope_parameters", "rope_scaling")}
    new, old = found["rope_parameters"], found["rope_scaling"]
    for key in sorted(new.keys() & old.keys() if new and old else ()):
        if new[key] != old[key]:
            here, there = f"{new[key]!r}, while rope_scaling says {old[key]!r}", "the same in both fields"
            raise config.fault(f"rope_parameters.{key}", here, there)
    if new and old and new.keys() != old.keys():
        told = f"{sorted(new)} beside rope_scaling with {sorted(old)}"
        raise config.fault("rope_parameters", told, "one of the two fields")
    return ("rope_scaling", old) if old else ("rope_parameters", new)


def _kind(name: str, fields: dict[str, Any], config: Config) -> str:
    given = {key: fields.pop(key) for key in ("rope_type", "type") if key in fields}
    for key, kind in given.items():
        if kind not in KNOWN or kind != given.get("rope_type", kind):
            raise config.fault(f"{name}.{key}", repr(kind), f"one of {', '.join(KNOWN)}, once")
    return str(next(iter(given.values()), "default"))


def _scaling(kind: str, fields: dict[str, Any], name: str, config: Config) -> Scaling | None:
    if kind == "default":
        for field in sorted(fields):
            raise config.fault(f"{name}.{field}", repr(fields[field]), 'no such field beside "default"')
        return None
    numbers = {key: value for key, value in fields.items() if key != "truncate"}
    for key, value in numbers.items():
        _number(value, f"{name}.{key}", config)
    n_before = fields.pop("original_max_position_embeddings", None)
    is_none = fields.get("factor") == 1
    if is_none:
        _check_unstretched(kind, fields, name, config)
        fields["factor"] = 2.0  # any, for the other fields to be checked
    if kind != "linear":
        whole = config.count("max_position_embeddings")
        fields["original_max_seq_len"] = whole if n_before is None else n_before
    if kind == "yarn":
        fields |= _yarn_options(fields)
    made = cast("Scaling", _made(_MADE[kind], kind, fields, name, config))
    return None if is_none else made


def _check_unstretched(kind: str, fields: dict[str, Any], name: str, config: Config) -> None:
    """A factor of 1 leaves frequencies alone; what scales attention would still count."""
    if kind == "yarn" and fields.get("attention_factor", 1) != 1:
        found = repr(fields["attention_factor"])
        raise config.fault(f"{name}.attention_factor", found, "1 where the factor is 1")


def _number(value: Any, place: str, config: Config) -> float:
    if not is_number(value) or value < 0:
        raise config.damaged(place, repr(value), "a number of at least 0")
    return float(value)


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
