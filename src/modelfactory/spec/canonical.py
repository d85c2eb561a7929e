"""One text and one name for each spec."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import lru_cache
from typing import Any

from modelfactory.spec.writing import TYPE, class_name, to_json


def dumps(data: Any) -> str:
    """Return JSON data as its one canonical text: sorted keys, no spaces, shortest round-trip numbers."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return the full canonical JSON of a spec: every field, also those outside its identity."""
    return dumps(to_json(value))


def identity_json(value: Any) -> str:
    """Return the canonical JSON of what determines a result; see the package docstring."""
    return dumps(_identity(value))


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of `identity_json(value)`, as 64 hexadecimal digits."""
    return hashlib.sha256(identity_json(value).encode("utf-8")).hexdigest()


def _identity(value: Any) -> Any:
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        if isinstance(value, tuple):
            return [_identity(item) for item in value]
        return to_json(value)
    return _spec_identity(value)  # type: ignore[arg-type]


@lru_cache(maxsize=16_384)
def _spec_identity(value: Any) -> dict[str, Any]:
    """Memoised by value: a plan of a thousand experiments repeats the same few sub-specs."""
    body = {
        field.name: _identity(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.metadata.get("identity", True) and not _holds_default(field, getattr(value, field.name))
    }
    return {TYPE: class_name(type(value)), **body}  # type: ignore[arg-type]


def _holds_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return False
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)
