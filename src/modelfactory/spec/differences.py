"""What differs between two specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.spec.canonical import dumps
from modelfactory.spec.writing import TYPE, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class Change:
    """One place in which two specs differ; `nothing` stands for a field that one of them lacks."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        """Return `path: before -> after`."""
        return f"{self.path}: {self.before} -> {self.after}"


def difference(before: Any, after: Any) -> list[Change]:
    """Return every place in which two specs differ, in the order of their fields."""
    return json_difference(to_json(before), to_json(after))


def json_difference(before: Any, after: Any) -> list[Change]:
    """Return every place in which two specs, given as JSON data, differ."""
    return list(_walk(before, after, ""))


def _walk(before: Any, after: Any, path: str) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        if before.get(TYPE) != after.get(TYPE):  # other classes: their fields are not comparable
            yield Change(path=path or TYPE, before=_shown(before), after=_shown(after))
            return
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _walk(before.get(key, _Nothing), after.get(key, _Nothing), f"{path}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(after, list):
        for n in range(max(len(before), len(after))):
            old = before[n] if n < len(before) else _Nothing
            new = after[n] if n < len(after) else _Nothing
            yield from _walk(old, new, f"{path}[{n}]")
    elif before is _Nothing or after is _Nothing or dumps(before) != dumps(after):
        yield Change(path=path, before=_shown(before), after=_shown(after))


class _Nothing:
    """A field that one of two specs lacks."""


def _shown(value: Any) -> str:
    if value is _Nothing:
        return "nothing"
    if isinstance(value, dict) and TYPE in value:
        fields = ", ".join(f"{key}={_shown(item)}" for key, item in value.items() if key != TYPE)
        return f"{value[TYPE].partition(':')[2]}({fields})"
    return dumps(value)
