"""Plans of toy stages, and a driver process that carries one out."""

import hashlib
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from engine_toys import Toy  # noqa: E402

from modelfactory.engine import LocalEngine  # noqa: E402
from modelfactory.run import RunOptions, StageBegan, carry_out  # noqa: E402
from modelfactory.spec import identity_json, to_json  # noqa: E402
from modelfactory.store import Store  # noqa: E402

ENGINE_TESTS = str(Path(__file__).parents[1] / "engine")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The fields of a planned stage that a run reads."""

    id: str
    kind: str
    label: str
    run: str = "engine_toys:run"
    spec: Toy
    inputs: dict = field(default_factory=dict)
    pins: dict = field(default_factory=dict)
    resumes: str = ""
    code: dict = field(default_factory=lambda: {"engine_toys:run": "1"})
    libraries: dict = field(default_factory=dict)
    state: str = "to run"
    reason: str = ""
    waits_on: tuple = ()
    tokens: int = 0
    flops: int = 0
    seconds: float = 1.0

    @cached_property
    def spec_json(self):
        return to_json(self.spec)

    def parents(self):
        return (*self.inputs.values(), *((self.resumes,) if self.resumes else ()))


def stage(label, *parents, kind="documents", resumes=None, code="1", state="to run", waits_on=(), pins=None, **toy):
    spec = Toy(**toy)
    inputs = {f"input{n}": parent.id for n, parent in enumerate(parents)}
    named = f"{label}{identity_json(spec)}{sorted(inputs.items())}{sorted((pins or {}).items())}"
    return Planned(
        id=hashlib.sha256(named.encode()).hexdigest(), kind=kind, label=label, spec=spec, inputs=inputs,
        pins=pins or {}, resumes=resumes.id if resumes else "", code={"engine_toys:run": code}, state=state,
        waits_on=waits_on,
    )  # fmt: skip


def plan(*stages, pins=None):
    return SimpleNamespace(stages=tuple(stages), pins=pins or {})


def go(root, planned, jobs=1, on_event=None, **options):
    """Carry a plan out with a new engine and return its outcome."""
    chosen = RunOptions(sys_path=(ENGINE_TESTS,), **options)
    with Store.open(root) as store, LocalEngine(jobs=jobs, threads_total=jobs) as engine:
        return carry_out(planned, store, engine, chosen, on_event or (lambda event: None))


def outputs(root, planned):
    """Return label -> bytes of the published output."""
    with Store.open(root) as store:
        return {
            each.label: (store.stage_dir(each.id) / "out.txt").read_bytes() for each in planned.stages
            if (store.stage_dir(each.id) / "out.txt").exists()
        }  # fmt: skip


def chain(ran, seconds=0.05, n=8):
    """Return chains, forks and joins of `n` x 3 stages that note in the file `ran` when they run."""
    first = [stage(f"a{k}", seconds=seconds, path=ran, value=k) for k in range(n)]
    second = [stage(f"b{k}", one, seconds=seconds, path=ran, value=k) for k, one in enumerate(first)]
    third = [
        stage(f"c{k}", second[k], second[(k + 1) % n], seconds=seconds, path=ran, value=k) for k in range(n)
    ]
    return plan(*first, *second, *third)


def main():
    """Carry out the chain in this process: ROOT RAN SECONDS JOBS."""
    root, ran, seconds, jobs = sys.argv[1:5]
    planned = chain(ran, float(seconds)) if len(sys.argv) == 5 else plan(stage("x", action=sys.argv[5], path=ran))

    def show(event):
        if isinstance(event, StageBegan):
            print(event.pid, flush=True)

    outcome = go(Path(root), planned, jobs=int(jobs), on_event=show)
    print(f"ran {len(outcome.ran)} stored {len(outcome.stored)} stopped {outcome.stopped} at {time.time()}", flush=True)


if __name__ == "__main__":
    main()
