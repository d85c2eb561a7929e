"""The training stage: from one checkpoint of a run to the next."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from modelfactory.errors import CheckpointDamaged, SpecError
from modelfactory.models.lora import Adapted
from modelfactory.spec import to_json
from modelfactory.tokens import Stream, TokenShard, load_tokenizer
from modelfactory.train import checkpoint
from modelfactory.train.disk import full_disk_named
from modelfactory.train.freed_memory import freed_memory_kept
from modelfactory.train.labels import refuse_nothing_to_learn
from modelfactory.train.learner import Learner
from modelfactory.train.loading import FACTS, FOLDER, model_facts
from modelfactory.train.logs import StepLog
from modelfactory.train.parallel import check_parallel
from modelfactory.train.processes import are_joined, processes_of, require_device
from modelfactory.train.settings import torch_settings
from modelfactory.train.spawning import on_ranks
from modelfactory.train.start import START
from modelfactory.train.starting import begin_from, kept_facts, start_of
from modelfactory.train.steps import gradient, update

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from modelfactory.stage import Site
    from modelfactory.train.segment import TrainSegment

_WARM = "train.learner"


def run(spec: TrainSegment, inputs: Mapping[str, Path], output_dir: Path, site: Site) -> None:
    """Train from `spec.from_step` to `spec.to_step`.

    Args:
        spec: the segment.
        inputs: tokens0, tokens1, ... in the order of `spec.weights`; tokenizer; checkpoint, the earlier
            segment's directory, unless it starts at step 0; and start, that of a training or import stage,
            for a run that does not begin with random weights.
        output_dir: gets `checkpoint/`, `model.json`, `metrics.jsonl` and `observed/timing.jsonl`.
        site: where it runs. A live trainer in `site.warm` that holds exactly the state of `checkpoint` is
            continued without reading it; the bytes that come out are the same.

    Raises:
        InvalidInput: a source would be repeated too often, nothing of the run's data is to be learnt, or the
            checkpoint is of another step or model.
        CheckpointDamaged: the checkpoint's bytes are not those that were written.
        NonFiniteLoss: loss or gradient became NaN or infinite; nothing of that step was kept.
        DiskFull: no space for the checkpoint.
        StageFailed: one of many processes died or raised; the others were ended.
        Stopped: the user asked to.
    """
    check_parallel(spec, site.parallel)
    require_device(site.device, site.parallel)
    if site.parallel.world_size > 1 and not are_joined():
        on_ranks(spec, inputs, output_dir, site)
        return
    with torch_settings(site.threads, site.device), freed_memory_kept(), full_disk_named(output_dir):
        stream = open_stream(spec, inputs)
        refuse_nothing_to_learn(stream)
        tokenizer = load_tokenizer(inputs["tokenizer"])
        start = start_of(inputs, spec.model, tokenizer)
        vocab_size = start.get("vocab_size", tokenizer.vocab_size)  # an imported matrix may have spare rows
        learner = _learner(spec, inputs, site, vocab_size)
        is_main = learner.processes.is_main
        logs = StepLog(spec, stream, output_dir, site, vocab_size) if is_main else nullcontext()
        with logs as log:
            _train(spec, learner, stream, log, site)
        learner.refuse_non_finite()
        checkpoint.save(learner.state(), output_dir / FOLDER)
        if is_main:
            _write_facts(spec, learner, output_dir, vocab_size, kept_facts(start, stream.shards))
        learner.fingerprint = site.fingerprint
        site.warm[_WARM] = learner


def open_stream(spec: TrainSegment, inputs: Mapping[str, Path]) -> Stream:
    """Return the batches of the whole run, and refuse one that repeats a source too often."""
    return Stream(
        [TokenShard.open(inputs[f"tokens{n}"]) for n in range(len(spec.weights))],
        weights=spec.weights,
        seq_len=spec.seq_len,
        batch_sequences=spec.batch_sequences,
        seed=spec.seed,
        n_tokens=spec.n_tokens,
        max_epochs=spec.max_epochs,
        batch_warmup=spec.batch_warmup_sequences,
        document_masks=spec.document_masks,
    )


def _learner(spec: TrainSegment, inputs: Mapping[str, Path], site: Site, vocab_size: int) -> Learner:
    """Return a learner at `spec.from_step`: the live one, or one that is started or loaded."""
    live: Learner | None = site.warm.pop(_WARM, None)  # gone if this stage fails half way through a step
    how: Any = {"is_compiled": site.compile, "device": site.device, "checkpointing": site.checkpointing}
    if spec.from_step == 0:
        learner = Learner(spec, vocab_size, **how, processes=processes_of(site))
        if START in inputs:
            begin_from(learner, inputs[START], spec.model)
        return learner
    before = inputs["checkpoint"]
    if live is not None and live.fits(spec, vocab_size, **how, fingerprint=before.name):
        learner = live
    else:
        _check_model(spec, before, vocab_size)
        learner = Learner(spec, vocab_size, **how, processes=processes_of(site))
        learner.load_state(checkpoint.load(before / FOLDER, like=learner.like))
    _check_place(spec, learner.step, learner.n_tokens, before)
    return learner


def _train(spec: TrainSegment, learner: Learner, stream: Stream, log: StepLog | None, site: Site) -> None:
    lrs, micro = spec.lrs(), site.micro_batch_tokens
    share = (learner.processes.row_rank, learner.processes.n_row_ranks)
    batch = stream.batch(spec.from_step + 1, *share)
    for step in range(spec.from_step + 1, spec.to_step + 1):
        lr, n_valid = float(lrs[step - 1]), stream.n_valid(step)
        found = gradient(
            learner,
            batch,
            seed=spec.seed,
            micro_batch_tokens=micro,
            n_valid=n_valid,
            stopping=site.stopping,
        )
        # Read while the device computes: nothing has waited for it since the step began.
        following = stream.batch(step + 1, *share) if step < spec.to_step else batch
        result = update(learner, stream, batch, found, lr=lr, grad_clip=spec.grad_clip)
        batch = following
        if log is not None:
            log.add(result, step=step, lr=lr, n_tokens=learner.n_tokens)


def _write_facts(
    spec: TrainSegment, learner: Learner, output_dir: Path, vocab_size: int, kept: Mapping[str, Any]
) -> None:
    facts = {
        **kept,
        "architecture": to_json(spec.model),
        "vocab_size": vocab_size,
        "step": learner.step,
        "n_tokens_seen": learner.n_tokens,
        "n_parameters": spec.model.n_parameters(vocab_size),
        "flops_per_token": spec.model.flops_per_token(vocab_size, spec.seq_len),
        "precision": spec.precision,
    }
    if isinstance(spec.model, Adapted):
        facts["n_trainable"] = spec.model.n_trainable(vocab_size)
    text = json.dumps(facts, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (output_dir / FACTS).write_text(text, encoding="utf-8")


def _check_model(spec: TrainSegment, stage: Path, vocab_size: int) -> None:
    facts = model_facts(stage)
    found = (facts["architecture"], facts["vocab_size"])
    if found != (json.loads(json.dumps(to_json(spec.model))), vocab_size):
        raise SpecError(
            place=str(stage / FACTS),
            found=f"another model, with a vocabulary of {facts['vocab_size']:,}",
            wanted=f"the model of the segment, with a vocabulary of {vocab_size:,}",
            remedy="Continue from a checkpoint of the same run.",
        )


def _check_place(spec: TrainSegment, step: int, n_tokens: int, stage: Path) -> None:
    """A step that was cut short at the end of a run is no step of a longer one."""
    wanted = (spec.from_step, spec.n_tokens_before)
    if (step, n_tokens) != wanted:
        message = (
            f"{stage}: found step {step} after {n_tokens:,} tokens, wanted step {wanted[0]} after "
            f"{wanted[1]:,}. Continue from the checkpoint at that step of the same run."
        )
        raise CheckpointDamaged(message)
