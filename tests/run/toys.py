"""Plans of toy stages, and a driver process that carries one out."""

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

from modelfactory.engine import LocalEngine
from modelfactory.plan import PlannedStage
from modelfactory.run import RunOptions, StageBegan, carry_out
from modelfactory.spec import identity_json
from modelfactory.store import Store
from tests.engine.toys import Toy

CHECKOUT = str(Path(__file__).parents[2])


def stage(
    label, *parents, kind="documents", resumes=None, code="1", pins=None, state="to run", waits=(), **toy
):
    """Return a planned stage that makes the toy `toy` from its parents."""
    spec = Toy(**toy)
    inputs = {f"input{n}": parent.id for n, parent in enumerate(parents)}
    named = f"{label}{identity_json(spec)}{sorted(inputs.items())}{sorted((pins or {}).items())}"
    return PlannedStage(
        id=hashlib.sha256(named.encode()).hexdigest(),
        kind=kind,
        label=label,
        run="tests.engine.toys:run",
        version=1,
        spec=spec,
        inputs=inputs,
        pins=pins or {},
        resumes=resumes.id if resumes else "",
        code={"tests.engine.toys:run": code},
        state=state,
        waits_on=waits,
        seconds=1.0,
    )


def plan(*stages, pins=None):
    return SimpleNamespace(stages=tuple(stages), pins=pins or {})


def go(root, planned, jobs=1, on_event=None, **options):
    """Carry a plan out with a new engine and return its outcome."""
    chosen = RunOptions(sys_path=(CHECKOUT,), **options)
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
    """Carry out the chain, or one stage with an action: ROOT RAN SECONDS JOBS [ACTION GRACE]."""
    root, ran, seconds, jobs, *action = sys.argv[1:]
    planned = plan(stage("x", action=action[0], path=ran)) if action else chain(ran, float(seconds))
    grace_s = float(action[1]) if len(action) > 1 else 20.0

    def show(event):
        if isinstance(event, StageBegan):
            print(event.pid, flush=True)

    done = go(Path(root), planned, jobs=int(jobs), on_event=show, grace_s=grace_s)
    print(f"ran {len(done.ran)} stored {len(done.stored)} stopped {done.stopped}", flush=True)


if __name__ == "__main__":
    main()
