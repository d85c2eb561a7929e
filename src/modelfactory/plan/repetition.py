"""Runs that would repeat a source too often, as soon as the tokens of all their parts are counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelfactory.errors import InvalidInput, InvalidInputs, SpecError
from modelfactory.tokens import check_epochs, required_epochs

if TYPE_CHECKING:
    from modelfactory.plan.planned import Plan, PlannedStage
    from modelfactory.store import Store


def refuse_repetition(plan: Plan, store: Store | None) -> None:
    """Refuse what training would refuse, before any work.

    Raises:
        InvalidInputs: each distinct setting that needs more epochs of a source than it allows.
    """
    if store is None:
        return
    faults: list[InvalidInput] = []
    known: set[object] = set()
    for stage in plan.stages:
        if stage.kind != "train" or stage.state == "stored":
            continue
        counted = _source_tokens(stage, plan, store)
        spec = stage.spec
        setting = (spec.n_tokens, spec.seq_len, spec.weights, spec.max_epochs, counted)
        if counted is None or setting in known:
            continue
        known.add(setting)
        try:
            required = required_epochs(
                n_tokens=spec.n_tokens, seq_len=spec.seq_len, weights=spec.weights, source_tokens=counted
            )
            check_epochs(required, spec.max_epochs, counted)
        except InvalidInputs as error:
            faults.extend(_of(stage, each) for each in error.errors)
        except InvalidInput as error:
            faults.append(_of(stage, error))
    if faults:
        raise InvalidInputs(faults)


def _source_tokens(stage: PlannedStage, plan: Plan, store: Store) -> tuple[int, ...] | None:
    """Return the tokens of each part; None unless all of them are stored."""
    counted = []
    for n in range(len(stage.spec.weights)):
        tokens = plan.stage(stage.inputs[f"tokens{n}"])
        if tokens.state != "stored":
            return None
        try:
            text = (store.stage_dir(tokens.id) / "tokens.json").read_text(encoding="utf-8")
            counted.append(int(json.loads(text)["n_tokens"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # damaged: the run finds that out
    return tuple(counted)


def _of(stage: PlannedStage, error: InvalidInput) -> InvalidInput:
    """Name the first experiment of the setting."""
    name = stage.experiments[0] if stage.experiments else stage.label
    return SpecError(
        place=f"{name}: {error.place}", found=error.found, wanted=error.wanted, remedy=error.remedy
    )
