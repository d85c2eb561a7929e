"""What `factory show` and `factory status` say to a person."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from modelfactory.report.numbers import duration, flops, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from modelfactory.store import NamedExperiment, Store

MOST = 5
"""Lines of one sort in the summary of a stage."""
MOST_ROLES = 14
"""Stages listed of an experiment."""


def label_of(store: Store, fingerprint: str, experiments: Iterable[NamedExperiment] | None = None) -> str:
    """Return the label of a stage's record, else its role in an experiment, else its short name."""
    record = store.record(fingerprint)
    if record is not None and record.label:
        return titled(record.kind, record.label)
    for named in store.experiments() if experiments is None else experiments:
        for role, known in named.stages.items():
            if known == fingerprint:
                return f"{role} of {named.name}"
    return fingerprint[:10]


def titled(kind: str, label: str) -> str:
    """Return `train low/seed=1 to step 20`; a label that begins with its kind says it once."""
    return label if label.split(" ", 1)[0] == kind else f"{kind} {label}"


def how_far(progress: Mapping[str, Any]) -> str:
    """Return `step 12/20, loss 1.604, 11.7 steps/s`."""
    unit = str(progress.get("unit", ""))
    if not unit:
        return ""
    total = progress.get("total") or 0
    parts = [f"{unit.removesuffix('s')} {progress.get('done', 0):,}" + (f"/{total:,}" if total else "")]
    metrics = dict(progress.get("metrics") or {})
    tokens_per_s, mfu = metrics.pop("tokens_per_s", None), metrics.pop("mfu", None)
    parts += [f"{name} {value:.4g}" for name, value in list(metrics.items())[:3]]
    if progress.get("rate"):
        parts.append(f"{progress['rate']:.4g} {unit}/s")
    elif tokens_per_s is not None:
        parts.append(f"{tokens_per_s:.4g} tokens/s")
    if mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    return ", ".join(parts)


def stage_lines(store: Store, fingerprint: str) -> list[str]:
    """Return the summary of a stage that has a record."""
    record = store.record(fingerprint)
    if record is None:
        return [f"{fingerprint}: no record"]
    lines = [titled(record.kind, record.label), f"id         {fingerprint}", f"state      {record.state}"]
    if record.error:
        lines.append(f"error      {record.error.splitlines()[0]}")
    made = time.strftime("%d %B %Y, %H:%M", time.localtime(record.started + record.seconds))
    lines.append(f"made       {made}, took {duration(record.seconds)}, {size(record.n_bytes)}")
    lines += _listed("result", list(results(store.stage_dir(fingerprint))))
    lines += _listed("model", list(model_facts(store.stage_dir(fingerprint))))
    made_from = [_made_from(store, edge.name, edge.parent) for edge in store.parents(fingerprint)]
    lines += _listed("made from", made_from)
    lines += _listed("used by", [label_of(store, edge.child) for edge in store.children(fingerprint)])
    return lines


def _made_from(store: Store, name: str, parent: str) -> str:
    """Return `tokens0: tokens python (train)`; what is named as its kind says it once."""
    label = label_of(store, parent)
    record = store.record(parent)
    if record is None or record.kind != name:
        return f"{name}: {label}"
    return label if label == record.label else f"{name}: {record.label}"


def _listed(name: str, found: list[str]) -> list[str]:
    lines = [f"{name if n == 0 else '':<10} {text}" for n, text in enumerate(found[: MOST - 1])]
    if len(found) == MOST:
        lines.append(f"{'':<10} {found[-1]}")
    elif len(found) > MOST:
        lines.append(f"{'':<10} ... and {len(found) - MOST + 1} more")
    return lines


def results(directory: Path) -> Iterator[str]:
    """Yield `metric: value ± standard error` of an evaluation's directory."""
    try:
        metrics = json.loads((directory / "result.json").read_text(encoding="utf-8"))["metrics"]
    except (OSError, ValueError, KeyError):
        return
    for name, facts in metrics.items():
        stderr = facts.get("stderr")
        more = f" \N{PLUS-MINUS SIGN} {stderr:.2g}" if stderr is not None else ""
        yield f"{name}: {facts['value']:.4g}{more}"


def model_facts(directory: Path) -> Iterator[str]:
    """Yield how large the model of a training or import stage is, and what a token costs."""
    try:
        facts = json.loads((directory / "model.json").read_text(encoding="utf-8"))
        n_parameters, cost = facts["n_parameters"], facts["flops_per_token"]
    except (OSError, ValueError, KeyError):
        return
    trained = f", {facts['n_trainable']:,} of them trained" if "n_trainable" in facts else ""
    yield f"{n_parameters:,} parameters{trained}; {flops(cost)} for each token trained on"


def experiment_lines(store: Store, named: NamedExperiment) -> list[str]:
    """Return the summary of an experiment: its stages, and the results of its last stored checkpoint."""
    stored = store.states(named.stages.values())
    lines = [f"experiment {named.name}", f"file       {named.file}"]
    roles = list(named.stages.items())
    shown = roles if len(roles) <= MOST_ROLES else roles[-MOST_ROLES:]
    if len(shown) < len(roles):
        before = roles[:-MOST_ROLES]
        n_stored = sum(fingerprint in stored for _, fingerprint in before)
        lines.append(f"... {len(before)} stages before, {n_stored} stored")
    lines += [f"{fp[:10]} {'stored' if fp in stored else 'to run'}  {role}" for role, fp in shown]
    steps = sorted(
        int(role.split("@")[1]) for role, fp in roles if role.startswith("train@") and fp in stored
    )
    if steps:
        trained = store.stage_dir(named.stages[f"train@{steps[-1]}"])
        lines += [f"model      {text}" for text in model_facts(trained)]
    for role, fp in roles:
        if steps and role.endswith(f"@{steps[-1]}") and not role.startswith("train@"):
            lines += [f"{role}  {text}" for text in list(results(store.stage_dir(fp)))[:2]]
    return lines
