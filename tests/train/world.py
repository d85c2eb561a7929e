"""Ranks for tests: some processes, started once, that train one case after the other."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 150


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training stage on all ranks."""

    name: str
    spec: Any
    parallel: str
    checkpoint: Path | None = None
    site: dict[str, Any] = field(default_factory=dict)


def run_world(n_ranks: int, cases: list[Case], inputs: dict[str, Path], folder: Path) -> Path:
    """Run the cases on `n_ranks` new processes; each leaves its stage in `folder / name`."""
    folder.mkdir(parents=True)
    (folder / "cases.pickle").write_bytes(pickle.dumps((cases, inputs)))
    return run_ranks(n_ranks, folder, "tests.train.world", "serve")


def run_ranks(n_ranks: int, folder: Path, module: str, function: str) -> Path:
    """Call `function(rank, n_ranks, str(folder))` on `n_ranks` new processes and wait for them."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {module} import {function}; {function}"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(_started(f"{code}({n}, {n_ranks}, {str(folder)!r})", folder / f"{n}.log"))
            for n in range(n_ranks)
        ]
        stack.callback(lambda: [rank.kill() for rank in ranks])
        deadline = time.monotonic() + TIMEOUT_S
        while any(rank.poll() is None for rank in ranks):
            assert time.monotonic() < deadline, _printed(folder, n_ranks)
            assert not any(rank.poll() for rank in ranks), _printed(folder, n_ranks)
            time.sleep(0.05)
    assert not any(rank.returncode for rank in ranks), _printed(folder, n_ranks)
    return folder


def _started(code: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=file, stderr=subprocess.STDOUT
        )


def _printed(folder: Path, n_ranks: int) -> str:
    return "\n".join(f"rank {n}: {(folder / f'{n}.log').read_text()[-3_000:]}" for n in range(n_ranks))


def serve(rank: int, n_ranks: int, folder: str) -> None:
    """Train every case as one of the ranks."""
    import torch.distributed as dist

    from modelfactory.stage import Parallel, Site
    from modelfactory.train import stage

    home = Path(folder)
    cases, inputs = pickle.loads((home / "cases.pickle").read_bytes())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{home / 'store'}", rank=rank, world_size=n_ranks)
    seen: list[tuple[int, Any, Any]] = []
    stage.gradient = _recorded(stage.gradient, seen)
    sums: list[str] = []
    for name in ("all_reduce", "reduce_scatter_single"):
        setattr(dist, name, _counted(getattr(dist, name), name, sums))
    try:
        for case in cases:
            print(case.name, flush=True)
            output = home / case.name
            output.mkdir(exist_ok=True)
            here = inputs if case.checkpoint is None else {**inputs, "checkpoint": case.checkpoint}
            site = Site(lake=home, threads=1, parallel=Parallel.parse(case.parallel), **case.site)
            seen.clear()
            sums.clear()
            stage.run(case.spec, here, output, site)
            (home / f"{case.name}-{rank}.sums").write_text(str(len(sums)))
            for step, tokens, ids in seen:
                np.savez(home / f"{case.name}-{step}-{rank}.npz", tokens=tokens, ids=ids)
            dist.barrier()
    except BaseException:  # noqa: BLE001 - told by the log and the exit code
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # the others may wait for this one
    dist.destroy_process_group()


def _counted(function: Any, name: str, calls: list[str]) -> Any:
    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return function(*arguments, **options)

    return counted


def _recorded(gradient: Any, seen: list[tuple[int, Any, Any]]) -> Any:
    def recorded(learner: Any, batch: Any, **options: Any) -> Any:
        seen.append((batch.step, batch.tokens, batch.sequence_ids))
        return gradient(learner, batch, **options)

    return recorded


def column(stage: Path, name: str) -> list[float]:
    """Return one metric of each step."""
    return [json.loads(line)[name] for line in (stage / "metrics.jsonl").read_text().splitlines()]


def rows_of(folder: Path, case: str, step: int, ranks: list[int]) -> tuple[Any, Any]:
    """Return tokens and sequence ids that the ranks were given, one below the other."""
    found = [np.load(folder / f"{case}-{step}-{rank}.npz") for rank in ranks]
    return np.concatenate([each["tokens"] for each in found]), np.concatenate([each["ids"] for each in found])
