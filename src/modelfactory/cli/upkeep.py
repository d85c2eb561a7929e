"""`factory gc` and `factory doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from modelfactory.cli.answer import Answer
from modelfactory.cli.compiling import measured_peaks, measured_speed
from modelfactory.cli.setting import existing_store, maybe_store
from modelfactory.data import lake
from modelfactory.errors import CommandError, SandboxMissing, closest
from modelfactory.report.numbers import size
from modelfactory.sandbox import sandbox_version

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from modelfactory.store import Store

LIBRARIES = (
    "modelfactory", "torch", "numpy", "tokenizers", "daft", "pyiceberg", "pyarrow", "scipy", "plotly",
)  # fmt: skip
LOW_DISK = 2 * 1024**3
"""Free bytes below which a run is likely to meet a full disk."""


def gc(arguments: argparse.Namespace) -> Answer:
    """Remove what no named experiment needs."""
    with existing_store(arguments.workspace) as store:
        _forget(store, arguments.forget, dry_run=arguments.dry_run)
        known = [*store.records(), *store.failures()]
        labels = {record.fingerprint: f"{record.kind} {record.label}" for record in known}
        found = store.gc(set(), arguments.dry_run, _dropper(store), arguments.forget)
    listed = [
        {
            "what": g.kind,
            "id": g.name,
            "label": labels.get(g.name, ""),
            "bytes": g.n_bytes,
            "why": g.reason,
        }
        for g in found
    ]
    total = sum(g.n_bytes for g in found)
    data = {"dry_run": arguments.dry_run, "garbage": listed, "bytes": total}
    return Answer(data=data, text=lambda console: _print_gc(console, data))


def _forget(store: Store, names: list[str], *, dry_run: bool) -> None:
    known = [named.name for named in store.experiments()]
    for name in names:
        if name not in known:
            raise CommandError(
                place=f"--forget {name}",
                found="no experiment of this name",
                wanted="one",
                remedy=closest(name, known),
            )
        if not dry_run:
            store.forget_experiment(name)


def _dropper(store: Store) -> Any:
    """Return what takes the lake table of a documents stage away with it."""

    def drop(kind: str, directory: Path) -> None:
        if kind == "documents":
            lake.drop(directory, store.lake)

    return drop


def _print_gc(console: Console, data: dict[str, Any]) -> None:
    for each in data["garbage"]:
        label = f"  {each['label']}" if each["label"] else ""
        name = each["id"][:10] if label else each["id"][:40]
        console.print(
            f"{each['what']:<10} {name:<10} {size(each['bytes']):>10}  {each['why']}{label}", markup=False
        )
    verb = "would free" if data["dry_run"] else "freed"
    console.print(f"{len(data['garbage'])} things, {verb} {size(data['bytes'])}")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing the doctor looked at."""

    name: str
    good: bool
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return {"name": self.name, "good": self.good, "found": self.found, "remedy": self.remedy}


def doctor(arguments: argparse.Namespace) -> Answer:
    """Look at everything a run hangs on; exit 1 when something is wrong."""
    checks = [_python(), *_versions(), _threads(), _sandbox(), _disk(arguments.workspace)]
    with maybe_store(arguments.workspace, create=False) as store:
        if store is None:
            checks.append(Check(name="workspace", good=True, found="none yet"))
            checks.append(_peaks())
        else:
            checks.extend([*_database(store), *_stages(store, arguments), _speed(store)])
    data = {"checks": [check.to_json() for check in checks], "good": all(check.good for check in checks)}
    return Answer(data=data, text=lambda console: _print_checks(console, checks), code=int(not data["good"]))


def _python() -> Check:
    version = platform.python_version()
    return Check(
        name="python", good=sys.version_info >= (3, 11), found=version, remedy="Use Python 3.11 or later."
    )


def _versions() -> list[Check]:
    checks = []
    for name in LIBRARIES:
        try:
            checks.append(Check(name=name, good=True, found=importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            checks.append(Check(name=name, good=False, found="not installed", remedy="Run `make setup`."))
    return checks


def _threads() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS")
    found = f"{cores} cores" + (f", OMP_NUM_THREADS={asked}" if asked else "")
    return Check(name="threads", good=True, found=found)


def _sandbox() -> Check:
    """Look for bubblewrap; a machine without it is sound, for only tasks that execute code need it."""
    try:
        return Check(name="sandbox", good=True, found=sandbox_version())
    except SandboxMissing as missing:
        found = f"none: tasks that execute code are refused; found {missing.found}. {missing.remedy}"
        return Check(name="sandbox", good=True, found=found)


def _disk(workspace: Path) -> Check:
    place = workspace.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return Check(
        name="disk", good=free > LOW_DISK, found=f"{size(free)} free at {place}", remedy="Run `factory gc`."
    )


def _database(store: Store) -> list[Check]:
    problems = store.check_database()
    if problems:
        remedy = "Copy the workspace away, remove factory.db; stages are found again by the next run."
        return [Check(name="database", good=False, found="; ".join(problems[:5]), remedy=remedy)]
    return [Check(name="database", good=True, found="sound")]


def _stages(store: Store, arguments: argparse.Namespace) -> list[Check]:
    """Hold stored bytes against manifests, and lake files against the hashes of their snapshots."""
    damaged = {damage.fingerprint: str(damage) for damage in store.inspect(arguments.deep)}
    for record in store.records("documents"):
        problems = lake.damaged(store.stage_dir(record.fingerprint), store.lake)
        if problems and record.fingerprint not in damaged:
            damaged[record.fingerprint] = "; ".join(problems[:3])
    if not damaged:
        how = "hashed" if arguments.deep else "sizes only; --deep hashes them"
        return [Check(name="stages", good=True, found=f"{len(store.records())} stored ({how})")]
    if arguments.rebuild:
        for fingerprint in damaged:
            store.discard(fingerprint)
    remedy = (
        "Taken out: the next run remakes it."
        if arguments.rebuild
        else "`factory doctor --rebuild` takes it out."
    )
    return [
        Check(name=f"stage {fingerprint[:10]}", good=False, found=what, remedy=remedy)
        for fingerprint, what in sorted(damaged.items())
    ]


def _peaks() -> Check:
    return Check(name="speed", good=True, found=_product(measured_peaks()))


def _product(speed: Mapping[str, Any]) -> str:
    """Say what MFU is measured against."""
    bf16, fp32 = (speed[f"{name}_peak_flops_per_s"] / 1e9 for name in ("bf16", "fp32"))
    return f"matrix product {bf16:,.0f} GFLOP/s in bf16, {fp32:,.0f} in fp32"


def _speed(store: Store) -> Check:
    speed = measured_speed(store)
    faster, gain = speed["faster_precision"], speed["compile_speedup"]
    found = f"{_product(speed)}; training is faster in {faster}; torch.compile {gain:.2f} x"
    return Check(name="speed", good=True, found=found)


def _print_checks(console: Console, checks: list[Check]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("check", "state", "found", "remedy"):
        table.add_column(name, overflow="fold")
    for check in checks:
        state = Text("ok", "green") if check.good else Text("BAD", "bold red")
        remedy = "" if check.good else check.remedy
        table.add_row(Text(check.name), state, Text(check.found), Text(remedy))
    console.print(table)
