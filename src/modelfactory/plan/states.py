"""Stored, stale or to run, and why."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelfactory.code import Parsed, changes, trace
from modelfactory.data import Dataset
from modelfactory.errors import FactoryError
from modelfactory.spec import json_difference, names_in, to_json, where_paths
from modelfactory.spec.writing import class_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from modelfactory.code import Code
    from modelfactory.plan.planned import PlannedStage
    from modelfactory.spec import Change
    from modelfactory.store import NamedExperiment, Record, Store


MOST_NAMED = 3
"""Changed definitions named in a reason; `factory plan --explain` names all."""
PARSED = "parsed modules"
"""Key under which the store keeps what was read out of source files."""


def with_states(
    stages: Iterable[PlannedStage], store: Store | None, roles: Mapping[str, Mapping[str, str]]
) -> list[PlannedStage]:
    """Return the stages with code, state and reason; they come in topological order."""
    listed = list(stages)
    wanted = {id_ for stage in listed for id_ in (stage.id, *stage.inputs.values())}
    records = store.states(sorted(wanted)) if store is not None else {}
    parsed = Parsed(store.cache_get(PARSED) if store is not None else None)
    judge = _Judge(records, _History(store, roles), parsed)
    judged = [judge.judged(stage) for stage in listed]
    if store is not None and parsed.has_grown:
        _keep(store, parsed)
    return judged


def _keep(store: Store, parsed: Parsed) -> None:
    """Keep what was parsed for the next plan; a workspace that cannot be written is parsed for each time."""
    with contextlib.suppress(FactoryError):
        store.cache_put(PARSED, parsed.to_json())


class _Judge:
    """Compares planned stages with records, parents before children."""

    def __init__(self, records: Mapping[str, Record], history: _History, parsed: Parsed) -> None:
        self._parsed = parsed
        self._records = records
        self._history = history
        self._pending: set[str] = set()
        self._code: dict[tuple[str, frozenset[str]], Code] = {}

    def judged(self, stage: PlannedStage) -> PlannedStage:
        """Return the stage with its code, state and reason."""
        code = self._traced(stage)
        known = replace(stage, code=code.definitions, libraries=code.libraries)
        record = self._records.get(stage.id)
        if record is None:
            self._pending.add(stage.id)
            return replace(known, state="to run", reason=self._history.reason(known))
        own = _own_reason(known, record) or self._input_reason(known, record)
        waits = tuple(name for name, parent in stage.inputs.items() if parent in self._pending)
        if not own and not waits:
            return replace(known, state="stored")
        self._pending.add(stage.id)
        reason = own or f"input {', '.join(waits)} is rebuilt first; equal bytes keep this"
        return replace(known, state="stale", reason=reason, waits_on=() if own else waits)

    def _input_reason(self, stage: PlannedStage, record: Record) -> str:
        """Name inputs that were rebuilt to other bytes since."""
        for name, parent in stage.inputs.items():
            current = self._records.get(parent)
            read = record.input_contents.get(name)
            if (
                current is not None
                and parent not in self._pending
                and read not in (None, current.content_sha256)
            ):
                return f"input {name}: its bytes changed since"
        return ""

    def _traced(self, stage: PlannedStage) -> Code:
        """Trace by stage function and the classes of the spec; few pairs occur, however many stages.

        A stage that reads the documents of a dataset runs none of the dataset's code: it gets their bytes.
        """
        key = (stage.run, names_in(stage.spec, without=None if stage.kind == "documents" else Dataset))
        if key not in self._code:
            self._code[key] = trace([stage.run, *sorted(key[1])], self._parsed)
        return self._code[key]


def _own_reason(stage: PlannedStage, record: Record) -> str:
    """Say what of the stage itself differs from what was stored under its name."""
    if record.code != stage.code:
        code = changes(dict(record.code), dict(stage.code))
        return f"code: {_few(code)}"
    libraries = _library_changes(record.libraries, stage.libraries)
    if libraries:
        return f"library: {_few(libraries)}"
    return _default_reason(stage, record)


def _few(names: Sequence[str]) -> str:
    more = f" +{len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _library_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [
        f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _as_json(value: Any) -> Any:
    """Return what `to_json` does, for a comparison alone: equal parts of many specs are one object."""
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _spec_as_json(value)  # type: ignore[arg-type]
    return to_json(value)


@lru_cache(maxsize=16_384)
def _spec_as_json(spec: Any) -> dict[str, Any]:
    named = {field.name: _as_json(getattr(spec, field.name)) for field in dataclasses.fields(spec)}
    return {"type": class_name(type(spec)), **named}  # type: ignore[arg-type]


def _default_reason(stage: PlannedStage, record: Record) -> str:
    """Name a field whose default changed since; a field that is new holds the default of old behaviour."""
    stored = json.loads(record.spec_json)
    if stored == _as_json(stage.spec):
        return ""
    found = _counting(json_difference(stored, stage.spec_json), stage.spec)
    changed = [change for change in found if change.before != "nothing"]
    return f"field {changed[0]} (its default changed)" if changed else ""


def _counting(changed: Iterable[Change], spec: Any) -> list[Change]:
    """Leave out changes of fields that say where, not what."""
    where = tuple(where_paths(spec))
    return [change for change in changed if not change.path.startswith(where)]


class _History:
    """What the experiments of the same names were before, to say what makes a stage new."""

    def __init__(self, store: Store | None, roles: Mapping[str, Mapping[str, str]]) -> None:
        self._store = store
        self._before: dict[str, NamedExperiment] = (
            {named.name: named for named in store.experiments()} if store is not None else {}
        )
        self._roles: dict[str, tuple[str, str]] = {}
        for name, known in roles.items():
            for role, fingerprint in known.items():
                self._roles.setdefault(fingerprint, (name, role))

    def reason(self, stage: PlannedStage) -> str:
        """Say what differs from the stage that had this role before."""
        name, role = self._roles.get(stage.id, ("", ""))
        before = self._before.get(name)
        old = before.stages.get(role) if before is not None else None
        if old is None or old == stage.id or self._store is None:
            return "new" if old is None else "not made yet"
        record = self._store.record(old)
        return _against(stage, record) if record is not None else "new"


def _against(stage: PlannedStage, record: Record) -> str:
    changed = _counting(json_difference(json.loads(record.spec_json), stage.spec_json), stage.spec)
    changed = [change for change in changed if not change.path.endswith("_sha256")] or changed  # derived
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"field {changed[0]}{more}"
    names = [
        name for name, parent in {**stage.inputs, **stage.pins}.items() if record.inputs.get(name) != parent
    ]
    return f"input {', '.join(names)} is another" if names else "new"
