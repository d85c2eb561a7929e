"""What differs between two specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.spec.canonical import dumps
from modelfactory.spec.writing import TYPE, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator


LONGEST = 160
"""Characters of two specs of different classes up to which both are shown whole."""


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
    if isinstance(before, dict) and isinstance(after, dict) and before.get(TYPE) == after.get(TYPE):
        yield from _fields(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        for n in range(max(len(before), len(after))):
            old = before[n] if n < len(before) else _Nothing
            new = after[n] if n < len(after) else _Nothing
            yield from _walk(old, new, f"{path}[{n}]")
    elif before is _Nothing or after is _Nothing or dumps(before) != dumps(after):
        yield from _other(before, after, path)


def _fields(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Change]:
    for key in [*before, *(key for key in after if key not in before)]:
        yield from _walk(before.get(key, _Nothing), after.get(key, _Nothing), f"{path}.{key}".lstrip("."))


def _other(before: Any, after: Any, path: str) -> Iterator[Change]:
    """Yield one change where it is short or one side has no fields, else the classes and what differs."""
    old, new = _shown(before), _shown(after)
    is_short = len(old) + len(new) <= LONGEST
    if is_short or not (_is_spec(before) and _is_spec(after)):
        brief = _shown if is_short else _brief
        yield Change(path=path or TYPE, before=brief(before), after=brief(after))
        return
    yield Change(path=path or TYPE, before=_name(before), after=_name(after))
    old_fields, new_fields = _own_fields(before), _own_fields(after)
    if key := _holding(after, before):
        old_fields = {key: before}
    elif key := _holding(before, after):
        new_fields = {key: after}
    yield from _fields(old_fields, new_fields, path)


def _holding(outer: Any, inner: Any) -> str:
    """Return the field of a spec with one of the class of another in it, as Adapted holds its base."""
    if not _is_spec(inner):
        return ""
    found = (key for key, item in _own_fields(outer).items() if _is_spec(item) and item[TYPE] == inner[TYPE])
    return next(found, "")


def _is_spec(value: Any) -> bool:
    return isinstance(value, dict) and TYPE in value


def _own_fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec without its class."""
    return {key: item for key, item in value.items() if key != TYPE}


def _name(spec: dict[str, Any]) -> str:
    return str(spec[TYPE]).partition(":")[2]


def _brief(value: Any) -> str:
    """Return a spec in which specs stand as class and name only; `factory show --json` has all of it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_in_brief, value))}]"
    if not _is_spec(value):
        return _shown(value)
    return f"{_name(value)}({', '.join(f'{k}={_in_brief(v)}' for k, v in _own_fields(value).items())})"


def _in_brief(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_in_brief, value))}]"
    if not _is_spec(value):
        return _shown(value)
    named = f"name={_shown(value['name'])}, " if "name" in value else ""
    return f"{_name(value)}({named}...)"


class _Nothing:
    """A field that one of two specs lacks."""


def _shown(value: Any) -> str:
    if value is _Nothing:
        return "nothing"
    if isinstance(value, dict) and TYPE in value:
        fields = ", ".join(f"{key}={_shown(item)}" for key, item in value.items() if key != TYPE)
        return f"{value[TYPE].partition(':')[2]}({fields})"
    return dumps(value)
