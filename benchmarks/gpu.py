"""Tokens/s, MFU and peak memory of training on the GPUs of one machine; benchmarks/gpu.sh runs it.

Each case trains a Llama on random tokens, `--steps` steps after `--warm` that are not timed. Rank 0 prints
`{"ratios": ..., "figures": ..., "machine": ...}`: ratios above 1 mean that compiling, bf16 or more GPUs win.
`--device cpu` runs the same cases on gloo, to see that they run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from modelfactory.models import Llama
from modelfactory.stage import Parallel
from modelfactory.tokens import Batch
from modelfactory.train import AdamW, Cosine, TrainSegment
from modelfactory.train.learner import Learner
from modelfactory.train.parallel import check_parallel
from modelfactory.train.processes import Alone
from modelfactory.train.ranks import Ranks
from modelfactory.train.settings import torch_settings
from modelfactory.train.steps import gradient, update

PEAK_FLOPS_PER_S = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12}
"""Dense bf16, from the makers' data sheets."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    parallel: Parallel = Parallel()  # noqa: RUF009 - it is frozen
    precision: str = "bf16"
    is_compiled: bool = True
    checkpointing: Any = "none"


def cases(n: int) -> list[Case]:
    alone = [
        Case(name="fp32", precision="fp32", is_compiled=False),
        Case(name="bf16", is_compiled=False),
        Case(name="bf16 compiled"),
        Case(name="bf16 compiled selective", checkpointing="selective"),
        Case(name="bf16 compiled full", checkpointing="full"),
    ]
    if n == 1:
        return alone
    spread = [Parallel(data=n), Parallel(shard=n), Parallel(tensor=n), Parallel(context=n)]
    spread += [Parallel(shard=n // 2, tensor=2)] if n > 2 else []
    return [
        Case(
            name=f"{parallel}{' compiled' if is_compiled else ''}", parallel=parallel, is_compiled=is_compiled
        )
        for parallel in spread
        for is_compiled in (False, True)
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--n-layers", type=int, default=24)
    parser.add_argument("--d-model", type=int, default=2_048)
    parser.add_argument("--n-heads", type=int, default=16)
    parser.add_argument("--vocab-size", type=int, default=50_304)
    parser.add_argument("--seq-len", type=int, default=2_048)
    parser.add_argument("--rows", type=int, default=8, help="of each process that has rows of its own")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm", type=int, default=3)
    return parser.parse_args()


def segment_of(asked: argparse.Namespace, case: Case) -> TrainSegment:
    n_rows = asked.rows * case.parallel.n_row_ranks
    return TrainSegment(
        model=Llama(
            n_layers=asked.n_layers, d_model=asked.d_model, n_heads=asked.n_heads, max_seq_len=asked.seq_len
        ),
        optimizer=AdamW(lr=1e-4, weight_decay=0.1),
        seed=0,
        batch_tokens=n_rows * asked.seq_len,
        seq_len=asked.seq_len,
        precision=case.precision,  # type: ignore[arg-type]
        grad_clip=1.0,
        weights=(1.0,),
        max_epochs=(4.0,),
        lrs_sha256="",
        to_step=1,
        n_tokens_to_step=1,
        schedule=Cosine(warmup_steps=0),
        n_tokens=1_000_000_000 // asked.seq_len * asked.seq_len,
        from_step=0,
    )


def batch_of(asked: argparse.Namespace, step: int, rank: int) -> Batch:
    random = np.random.default_rng((step, rank))
    return Batch(
        step=step,
        tokens=random.integers(asked.vocab_size, size=(asked.rows, asked.seq_len + 1), dtype=np.int32),
        valid=np.ones((asked.rows, asked.seq_len), dtype=bool),
        sequence_ids=np.zeros((asked.rows, 3), dtype=np.int64),
    )


@dataclass(frozen=True)
class Count:
    """What `update` asks of a stream whose losses are finite."""

    batch_tokens: int

    def n_tokens_to(self, step: int) -> int:
        return step * self.batch_tokens


def measured(asked: argparse.Namespace, case: Case) -> dict[str, float]:
    """Return figures of all processes of one case; all ranks call it."""
    spec = segment_of(asked, case)
    check_parallel(spec, case.parallel)
    is_alone = case.parallel.world_size == 1
    learner = Learner(
        spec,
        asked.vocab_size,
        is_compiled=case.is_compiled,
        device=asked.device,
        checkpointing=case.checkpointing,
        processes=Alone() if is_alone else Ranks(case.parallel, asked.device),
    )
    losses, started = [], 0.0
    for step in range(1, asked.warm + asked.steps + 1):
        if step == asked.warm + 1:
            started = clock(asked.device)
        batch = batch_of(asked, step, learner.processes.row_rank)
        n_tokens = asked.rows * asked.seq_len
        found = gradient(
            learner, batch, seed=0, micro_batch_tokens=n_tokens, n_valid=n_tokens * case.parallel.n_row_ranks
        )
        count: Any = Count(spec.batch_tokens)
        losses.append(update(learner, count, batch, found, lr=1e-4, grad_clip=1.0).loss)
    seconds = (clock(asked.device) - started) / asked.steps
    tokens_per_s = spec.batch_tokens / seconds
    flops = tokens_per_s * spec.model.flops_per_token(asked.vocab_size, asked.seq_len)
    peak = torch.cuda.max_memory_allocated() if asked.device == "cuda" else 0
    return {
        "tokens_per_s": tokens_per_s,
        "mfu": flops / case.parallel.world_size / peak_flops_per_s(asked.device),
        "peak_bytes": peak,
        "last_loss": losses[-1],
    }


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_flops_per_s(device: str) -> float:
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return next((peak for kind, peak in PEAK_FLOPS_PER_S.items() if kind in name), float("inf"))


def main() -> None:
    asked = arguments()
    if asked.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if asked.device == "cuda" else "gloo")
    figures: dict[str, Any] = {}
    for case in cases(dist.get_world_size()):
        gc.collect()
        if asked.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch.compiler.reset()
        with torch_settings(1, asked.device):
            figures[case.name] = measured(asked, case)
        if dist.get_rank() == 0:
            print(case.name, figures[case.name], flush=True)
    if dist.get_rank() == 0:
        report(asked, figures)
    dist.barrier()
    dist.destroy_process_group()


def report(asked: argparse.Namespace, figures: dict[str, Any]) -> None:
    speed = {name: each["tokens_per_s"] for name, each in figures.items()}
    first = next(iter(speed))
    ratios = {f"{name} / {first}": rate / speed[first] for name, rate in speed.items() if name != first}
    device = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()
    machine = {"device": device, "n": dist.get_world_size(), "torch": torch.__version__}
    if asked.json:
        print(json.dumps({"ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
