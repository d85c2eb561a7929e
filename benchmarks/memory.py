"""Peak memory of training by formula (`modelfactory.train.memory`) against that of a process.

Each case is a process of its own: three steps of the trainer, after a step of a tiny model that loads all
libraries, compilers included. What is measured is the growth of the resident memory from there to its
largest, with glibc told to give freed memory back at once; `--kept-memory` keeps it, as training does for
speed. The estimate counts nothing but tensors: compiled cases have the compiler's own growth on top.

Run `python benchmarks/memory.py --json`; `--cases` picks some. Not sensitive to other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from modelfactory.models import GPT2, Decoder, Llama
from modelfactory.stage import Checkpointing
from modelfactory.tokens import Batch
from modelfactory.train import AdamW, Cosine, TrainSegment
from modelfactory.train.freed_memory import freed_memory_kept
from modelfactory.train.memory import memory_bytes
from modelfactory.train.training import Precision

AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""Makes glibc give memory back as soon as it is freed, so that no holes between blocks are counted."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and how."""

    family: str
    n_layers: int
    d_model: int
    seq_len: int
    n_rows: int
    vocab_size: int = 8_192
    precision: Precision = "bf16"
    is_compiled: bool = False
    checkpointing: Checkpointing = "none"
    n_parts: int = 1

    def model(self) -> Decoder:
        family = GPT2 if self.family == "gpt2" else Llama
        return family(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.d_model // 64,
            max_seq_len=self.seq_len,
        )

    def segment(self) -> TrainSegment:
        n_tokens = self.n_rows * self.n_parts * self.seq_len
        return TrainSegment(
            model=self.model(),
            optimizer=AdamW(lr=1e-3, weight_decay=0.1),
            seed=0,
            batch_tokens=n_tokens,
            seq_len=self.seq_len,
            precision=self.precision,
            grad_clip=1.0,
            weights=(1.0,),
            max_epochs=(4.0,),
            lrs_sha256="",
            to_step=1,
            n_tokens_to_step=n_tokens,
            schedule=Cosine(warmup_steps=0),
            n_tokens=1_000_000_000,
            from_step=0,
        )

    def estimated(self) -> int:
        found = memory_bytes(
            self.model(),
            self.vocab_size,
            self.segment(),
            micro_batch_tokens=self.n_rows * self.seq_len,
            is_compiled=self.is_compiled,
            checkpointing=self.checkpointing,
        )
        return found.total


CASES = {
    "llama 4x128": Case(family="llama", n_layers=4, d_model=128, seq_len=256, n_rows=32),
    "gpt2 4x128 fp32": Case(family="gpt2", n_layers=4, d_model=128, seq_len=256, n_rows=16, precision="fp32"),
    "llama 4x256 fp32": Case(
        family="llama", n_layers=4, d_model=256, seq_len=256, n_rows=16, precision="fp32"
    ),
    "gpt2 6x384": Case(family="gpt2", n_layers=6, d_model=384, seq_len=256, n_rows=8),
    "llama 6x384": Case(family="llama", n_layers=6, d_model=384, seq_len=512, n_rows=8),
    "llama 6x384 in 2 parts": Case(family="llama", n_layers=6, d_model=384, seq_len=256, n_rows=8, n_parts=2),
    "llama 6x384 full": Case(
        family="llama", n_layers=6, d_model=384, seq_len=512, n_rows=8, checkpointing="full"
    ),
    "llama 6x384 selective": Case(
        family="llama", n_layers=6, d_model=384, seq_len=512, n_rows=8, checkpointing="selective"
    ),
    "gpt2 6x384 V50k": Case(family="gpt2", n_layers=6, d_model=384, seq_len=256, n_rows=8, vocab_size=50_257),
    "llama 4x256 compiled": Case(
        family="llama", n_layers=4, d_model=256, seq_len=512, n_rows=8, is_compiled=True
    ),
    "gpt2 6x384 compiled": Case(
        family="gpt2", n_layers=6, d_model=384, seq_len=256, n_rows=16, is_compiled=True
    ),
    "llama 6x384 compiled": Case(
        family="llama", n_layers=6, d_model=384, seq_len=512, n_rows=8, is_compiled=True
    ),
    "llama 6x384 compiled fp32": Case(
        family="llama", n_layers=6, d_model=384, seq_len=256, n_rows=8, is_compiled=True, precision="fp32"
    ),
}


def batch_of(case: Case, step: int) -> Batch:
    random = np.random.default_rng(step)
    n_rows = case.n_rows * case.n_parts
    return Batch(
        step=step,
        tokens=random.integers(case.vocab_size, size=(n_rows, case.seq_len + 1), dtype=np.int32),
        valid=np.ones((n_rows, case.seq_len), dtype=bool),
        sequence_ids=np.zeros((n_rows, 3), dtype=np.int64),
    )


@dataclass(frozen=True)
class Count:
    """What `update` asks of a stream whose losses are finite."""

    batch: Batch

    def n_tokens_to(self, step: int) -> int:
        return step * self.batch.n_valid


def train(case: Case, n_steps: int) -> None:
    """Make steps as the training stage does."""
    from modelfactory.train.learner import Learner
    from modelfactory.train.settings import torch_settings
    from modelfactory.train.steps import gradient, update

    learner = Learner(
        case.segment(), case.vocab_size, is_compiled=case.is_compiled, checkpointing=case.checkpointing
    )
    for step in range(1, n_steps + 1):
        batch, micro = batch_of(case, step), case.n_rows * case.seq_len
        with torch_settings(1):
            found = gradient(learner, batch, seed=0, micro_batch_tokens=micro)
            update(learner, cast("Any", Count(batch)), batch, found, lr=1e-4, grad_clip=1.0)


def measured(case: Case) -> dict[str, int]:
    """Return the bytes by which this process grows, and those it had before."""
    tiny = Case(
        family=case.family,
        n_layers=1,
        d_model=64,
        seq_len=64,
        n_rows=1,
        vocab_size=64,
        precision=case.precision,
        is_compiled=case.is_compiled,
        checkpointing=case.checkpointing,
    )
    train(tiny, 1)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    with freed_memory_kept():  # but for AT_ONCE in the environment
        train(case, 3)
    return {"measured": resident("VmHWM") - before, "before": before}


def resident(name: str) -> int:
    """Return a number of bytes that Linux gives for this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def compared(name: str, *, kept_memory: bool = False) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--measure", name]
    environment = dict(os.environ) if kept_memory else {**os.environ, **AT_ONCE}
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    estimated = CASES[name].estimated()
    return {"case": name, "estimated": estimated, **found, "ratio": round(estimated / found["measured"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--kept-memory", action="store_true", help="as the training stage does")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(CASES[arguments.measure])))
        return
    rows = []
    for name in arguments.cases:
        rows.append(compared(name, kept_memory=arguments.kept_memory))
        megabytes = [rows[-1][key] / 1e6 for key in ("estimated", "measured")]
        figures = f"{megabytes[0]:8.0f} MB by formula {megabytes[1]:8.0f} measured"
        print(f"{name:<28} {figures} {rows[-1]['ratio']:6.2f}")
    if arguments.json:
        print(json.dumps({"cases": rows}))


if __name__ == "__main__":
    main()
