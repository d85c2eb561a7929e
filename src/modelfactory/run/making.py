"""From a planned stage to a job, from a result to a record, and whether a record still fits its stage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelfactory.engine.protocol import Failed, Finished, Job
from modelfactory.errors import DiskFull
from modelfactory.store import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from modelfactory.engine.protocol import Engine, FailureKind
    from modelfactory.errors import FactoryError
    from modelfactory.plan import PlannedStage
    from modelfactory.run.events import RunOptions
    from modelfactory.store import Store

CHECKPOINT = "checkpoint"
"""Name under which a training stage finds the state it continues from."""
STEP_BACK = 19
"""Niceness of evaluations where others may train beside them. By the weights of Linux's scheduler such a
process gets 15 parts of a core to the 1,024 of a trainer that wants it too, 1.4 %; a core that no trainer
wants it has alone."""


def is_current(stage: PlannedStage, record: Record, contents: Mapping[str, str]) -> bool:
    """Say whether a stored stage is what a run today would make.

    Args:
        stage: as planned.
        record: of the stored stage.
        contents: fingerprint -> content_sha256 of the parents, as they are now.
    """
    if record.state != "stored" or not _same_inputs(stage, record, contents):
        return False
    if stage.state == "stored":
        return True
    if dict(record.code) != dict(stage.code) or dict(record.libraries) != dict(stage.libraries):
        return False
    # A stage that is stale for a reason of its own may be so for a default that changed.
    own_reason = stage.state == "stale" and not stage.waits_on
    return not own_reason or json.loads(record.spec_json) == stage.spec_json


def _same_inputs(stage: PlannedStage, record: Record, contents: Mapping[str, str]) -> bool:
    """Compare bytes, not names: an input that was rebuilt to equal bytes changes nothing."""
    known = record.input_contents
    return all(known.get(name) in {None, contents[parent]} for name, parent in stage.inputs.items())


def job_of(stage: PlannedStage, aside: Path, store: Store, engine: Engine, options: RunOptions) -> Job:
    """Return the job that makes the stage in the folder `aside`."""
    paths = {name: store.stage_dir(parent) for name, parent in stage.inputs.items()}
    paths |= {name: store.pin_path(digest) for name, digest in stage.pins.items()}
    if stage.resumes:
        paths[CHECKPOINT] = store.stage_dir(stage.resumes)
    return Job(
        fingerprint=stage.id,
        run=stage.run,
        spec_json=stage.spec_json,
        inputs={name: str(path) for name, path in paths.items()},
        output_dir=str(aside),
        log=str(store.log_path(stage.id)),
        lake=str(store.lake),
        threads=engine.threads,
        micro_batch_tokens=options.micro_batch_tokens,
        compile=options.compile,
        device=options.device,
        parallel=options.parallel,
        checkpointing=options.checkpointing,
        peak_flops_per_s=options.peak_flops_per_s,
        affinity=stage.resumes,
        niceness=STEP_BACK if stage.kind == "evaluate" and engine.jobs > 1 else 0,
        sys_path=options.sys_path,
    )


def record_of(
    stage: PlannedStage,
    result: Finished | Failed,
    contents: Mapping[str, str],
    *,
    host: str,
    log: Path,
    attempt: int,
) -> Record:
    """Return the record of a stage that was made, or that failed."""
    read = {name: contents[parent] for name, parent in stage.inputs.items()} | dict(stage.pins)
    if stage.resumes:
        read[CHECKPOINT] = contents.get(stage.resumes, "")
    return Record(
        fingerprint=stage.id,
        kind=stage.kind,
        label=stage.label,
        spec_json=json.dumps(stage.spec_json),
        inputs={**stage.inputs, **stage.pins},
        input_contents=read,
        resumed_from=stage.resumes,
        code=stage.code,
        libraries=stage.libraries,
        content_sha256=result.content_sha256 if isinstance(result, Finished) else "",
        n_bytes=result.n_bytes if isinstance(result, Finished) else 0,
        state="stored" if isinstance(result, Finished) else "failed",
        error="" if isinstance(result, Finished) else result.error,
        log=str(log),
        started=result.started,
        seconds=result.seconds,
        attempt=attempt,
        host=host,
        tokens=stage.tokens,
        flops=stage.flops,
    )


def failed_here(stage: PlannedStage, error: FactoryError) -> Failed:
    """Return the failure of a stage in the driver's own hands: claimed or published in vain."""
    kind: FailureKind = "disk" if isinstance(error, DiskFull) else "raised"
    return Failed(fingerprint=stage.id, error=str(error), kind=kind, log_tail="")
