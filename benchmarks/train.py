"""Training tokens/s and memory against transformers' Llama, litgpt's GPT, and plain eager float32.

The first three: torch.compile, bf16 autocast over float32 weights, torch's fused AdamW, the gradient clipped,
the same tokens. The fourth is our model without compilation in float32. Each has a process of its own; they
step in turn, so that whatever else the machine does hits all alike. A ratio above 1 means ours is faster, or
smaller; that of speed is the median over rounds. Our trainer keeps freed memory by itself; `--kept-memory`
tells glibc to do so for all. `--doubling` gives instead what our step costs as depth, width, length double.

Run `python benchmarks/train.py --json` after `make bench-setup`; `--help` for shapes. On a machine that does
other work, `--processor-time --threads 1` counts processor seconds instead of those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch.nn import functional

from modelfactory.models import Decoder, Llama
from modelfactory.tokens import Batch
from modelfactory.train import AdamW, Cosine, TrainSegment
from modelfactory.train.freed_memory import freed_memory_kept
from modelfactory.train.learner import Learner
from modelfactory.train.settings import torch_settings
from modelfactory.train.steps import gradient, update

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[int], float]

LR = 1e-3
WEIGHT_DECAY = 0.1


SHAPES = {"6x384": (6, 384, 6, 8_192, 8, 512), "12x768": (12, 768, 12, 32_768, 1, 1_024)}
"""Layers, width, heads, vocabulary, rows, length."""
CONTESTANTS = ("ours", "transformers", "litgpt", "eager fp32")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=8, help="steps of each that are timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--processor-time", action="store_true", help="count processor seconds")
    parser.add_argument(
        "--without", nargs="*", choices=CONTESTANTS[1:], default=[], help="peers to leave out"
    )
    parser.add_argument("--doubling", action="store_true", help="cost as depth, width and length double")
    parser.add_argument("--kept-memory", action="store_true", help="the peers keep freed memory too")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


@dataclass(frozen=True)
class Shape:
    """What is trained."""

    n_layers: int
    d_model: int
    n_heads: int
    vocab_size: int
    batch: int
    seq_len: int

    @property
    def n_tokens(self) -> int:
        return self.batch * self.seq_len

    def model(self) -> Decoder:
        return Llama(
            n_layers=self.n_layers, d_model=self.d_model, n_heads=self.n_heads, max_seq_len=self.seq_len
        )

    def flops(self) -> int:
        return self.model().flops_per_token(self.vocab_size, self.seq_len) * self.n_tokens


def batch_of(shape: Shape, step: int) -> Batch:
    random = np.random.default_rng(step)
    rows = (shape.batch, shape.seq_len + 1)
    return Batch(
        step=step,
        tokens=random.integers(shape.vocab_size, size=rows, dtype=np.int32),
        valid=np.ones((shape.batch, shape.seq_len), dtype=bool),
        sequence_ids=np.zeros((shape.batch, 3), dtype=np.int64),
    )


def our_step(shape: Shape, threads: int, *, precision: str, is_compiled: bool) -> Step:
    spec = TrainSegment(
        model=shape.model(),
        optimizer=AdamW(lr=LR, weight_decay=WEIGHT_DECAY),
        seed=0,
        batch_tokens=shape.n_tokens,
        seq_len=shape.seq_len,
        precision=precision,
        grad_clip=1.0,
        weights=(1.0,),
        max_epochs=(4.0,),
        lrs_sha256="",
        to_step=1,
        n_tokens_to_step=1,
        schedule=Cosine(warmup_steps=0),
        n_tokens=1_000_000_000,
        from_step=0,
    )
    counted: Any = SimpleNamespace(n_tokens_to=lambda number: number * shape.n_tokens)
    learner = Learner(spec, shape.vocab_size, is_compiled=is_compiled)

    def step(number: int) -> float:
        batch = batch_of(shape, number)
        with torch_settings(threads):  # as the training stage does
            found = gradient(learner, batch, seed=0, micro_batch_tokens=shape.n_tokens)
            return update(learner, counted, batch, found, lr=LR, grad_clip=1.0).loss

    return step


def transformers_step(shape: Shape) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=shape.n_layers,
        hidden_size=shape.d_model,
        intermediate_size=d_ff_of(shape),
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_heads,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.seq_len,
        tie_word_embeddings=False,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).train()  # its attention is SDPA too, by default
    forward = torch.compile(model, dynamic=False)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        labels = tokens[:, 1:].contiguous()
        return forward(input_ids=tokens[:, :-1], shift_labels=labels, labels=labels).loss

    return peer_step(shape, model, loss_of)


def litgpt_step(shape: Shape) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from litgpt.config import Config
        from litgpt.model import GPT
    config = Config(
        name="peer",
        block_size=shape.seq_len,
        vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=d_ff_of(shape),
    )
    torch.manual_seed(0)
    model = GPT(config).train()
    forward = torch.compile(model, dynamic=False)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        logits = forward(tokens[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    return peer_step(shape, model, loss_of)


def d_ff_of(shape: Shape) -> int:
    layer: Any = shape.model().blocks[0].feed_forward
    return int(layer.d_ff)


def peer_step(shape: Shape, model: torch.nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    ours = shape.model().n_parameters(shape.vocab_size)
    assert sum(parameter.numel() for parameter in model.parameters()) == ours, "another shape"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.95), fused=True
    )

    def step(number: int) -> float:
        tokens = torch.from_numpy(batch_of(shape, number).tokens).long()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def step_of(name: str, shape: Shape, threads: int) -> Step:
    if name == "transformers":
        return transformers_step(shape)
    if name == "litgpt":
        return litgpt_step(shape)
    fast = name == "ours"
    return our_step(shape, threads, precision="bf16" if fast else "fp32", is_compiled=fast)


class Contestant:
    """A process that trains one model, a step for each line that it is told."""

    def __init__(self, name: str, shape: str, asked: argparse.Namespace) -> None:
        words = [sys.executable, __file__, "--contestant", name, "--shapes", shape]
        words += ["--threads", str(asked.threads)]
        words += [
            f"--{each.replace('_', '-')}" for each in ("kept_memory", "processor_time") if vars(asked)[each]
        ]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds_of(self, step: int) -> float:
        return float(self._told(str(step)))

    def peak_bytes(self) -> int:
        """Return the most memory so far, above that of a process that only imports; ends the process."""
        peak = int(self._told("end"))
        self._process.wait()
        return peak

    def _told(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a contestant has ended with {self._process.wait()}: see above")
        return answer


def contend(asked: argparse.Namespace) -> None:
    """Be the process of one contestant."""
    import transformers  # noqa: F401 - every contestant pays for the same imports

    before = psutil.Process().memory_info().rss
    clock = time.process_time if asked.processor_time else time.perf_counter
    step = step_of(asked.contestant, Shape(*SHAPES[asked.shapes[0]]), asked.threads)
    keeps = asked.kept_memory or asked.contestant == "ours"
    with freed_memory_kept() if keeps else nullcontext():
        for line in sys.stdin:
            if line.strip() == "end":
                break
            start = clock()
            step(int(line))
            print(clock() - start, flush=True)
    print(largest_bytes() - before, flush=True)


def measured(asked: argparse.Namespace, shape: str) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return of each contestant the seconds of each timed step, in the order of the rounds, and its peak."""
    names = [name for name in CONTESTANTS if name not in asked.without]
    contestants = {name: Contestant(name, shape, asked) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, asked.rounds + 3):
        for name in sorted(names, reverse=bool(number % 2)):
            seconds = contestants[name].seconds_of(number)
            if number > 2:
                taken[name].append(seconds)
    return taken, {name: contestant.peak_bytes() for name, contestant in contestants.items()}


def largest_bytes() -> int:
    """Return the most memory this process held; getrusage would tell the parent's, if that is larger."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (each for each in status.read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1_024


def compared(asked: argparse.Namespace) -> dict[str, Any]:
    peak = peak_flops_per_s(torch.bfloat16, asked)
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {"bf16_product_peak_gflops_per_s": round(peak / 1e9, 1)}
    for key in asked.shapes:
        shape = Shape(*SHAPES[key])
        taken, memory = measured(asked, key)
        for name, seconds in taken.items():
            figures[f"{key} {name}"] = {
                "tokens_per_s": round(shape.n_tokens / statistics.median(seconds), 1),
                "mfu": round(shape.flops() / statistics.median(seconds) / peak, 3),
                "peak_mb": round(memory[name] / 1e6),
            }
        for name in (name for name in taken if name != "ours"):
            pairs = zip(taken["ours"], taken[name], strict=True)
            ratios[f"{key} speed against {name}"] = round(statistics.median(b / a for a, b in pairs), 3)
            ratios[f"{key} memory against {name}"] = round(memory[name] / memory["ours"], 3)
    return {"ratios": ratios, "figures": figures, "machine": machine(asked)}


def peak_flops_per_s(dtype: torch.dtype, asked: argparse.Namespace, size: int = 1_536) -> float:
    clock = time.process_time if asked.processor_time else time.perf_counter
    a, taken = torch.ones(size, size, dtype=dtype), []
    for _ in range(9):
        start = clock()
        torch.mm(a, a)
        taken.append(clock() - start)
    return 2 * size**3 / min(taken)


def doubling(asked: argparse.Namespace) -> dict[str, Any]:
    """Return how many times as long a step takes, and how many times the FLOPs it has, per doubling."""
    base = Shape(4, 256, 4, 8_192, 4, 512)
    grown = {
        "depth": replace(base, n_layers=8),
        "width": replace(base, d_model=512, n_heads=8),
        "length": replace(base, seq_len=1_024, batch=2),
    }
    steps = {name: step_of("ours", shape, asked.threads) for name, shape in {"base": base, **grown}.items()}
    clock, taken = time.process_time if asked.processor_time else time.perf_counter, {n: [] for n in steps}
    with freed_memory_kept():
        for number in range(1, asked.rounds + 3):
            for name, step in steps.items():
                start = clock()
                step(number)
                if number > 2:
                    taken[name].append(clock() - start)
    figures = {}
    for name, shape in grown.items():
        pairs = zip(taken["base"], taken[name], strict=True)
        time_ratio = statistics.median(after / before for before, after in pairs)
        figures[name] = {
            "seconds_ratio": round(time_ratio, 2),
            "flops_ratio": round(shape.flops() / base.flops(), 2),
        }
    ratios = {
        f"{name} flops over seconds": v["flops_ratio"] / v["seconds_ratio"] for name, v in figures.items()
    }
    return {
        "ratios": {k: round(v, 3) for k, v in ratios.items()},
        "figures": figures,
        "machine": machine(asked),
    }


def machine(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": asked.threads,
        "freed_memory": "kept by all" if asked.kept_memory else "kept by ours",
        "seconds": "of the processor" if asked.processor_time else "of the clock",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    if asked.contestant:
        contend(asked)
        return
    result = doubling(asked) if asked.doubling else compared(asked)
    for group, values in result.items():
        print(group, *(f"  {name}: {value}" for name, value in values.items()), sep="\n")
    if asked.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
