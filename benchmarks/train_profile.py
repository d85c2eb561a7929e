"""Where the time of a compiled training step goes, and how near the machine's limit its matrix products run.

Profiles our step of `benchmarks/train.py` by torch's profiler. Before and after it a square product in
bfloat16 is repeated for about as long as a step takes: the rate that the machine holds. For each shape of
product: calls and milliseconds a step, GFLOP, GFLOP/s, share of that rate. Then all else by name. The last
fused kernel of a profile carries the profiler's own time: do not believe it.

Run `python benchmarks/train_profile.py --json`; `--shape` picks one. Wants a machine without other work.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.config as inductor
from torch.profiler import ProfilerActivity, profile

from modelfactory.train.freed_memory import freed_memory_kept
from train import SHAPES, Shape, machine, our_step

N_STEPS = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--shape", choices=SHAPES, default="12x768")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", type=int, default=25, help="kernels to print")
    return parser.parse_args()


def sustained_flops_per_s(size: int = 1_536, seconds: float = 1.5) -> float:
    """Return what square products reach, one after another for so long."""
    a, n_done, start = torch.ones(size, size, dtype=torch.bfloat16), 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        torch.mm(a, a)
        n_done += 1
    return n_done * 2 * size**3 / taken


def profiled(shape: Shape, threads: int) -> tuple[list[Any], float]:
    """Return the profiler's rows by name and shapes, and the seconds of a step that is not profiled."""
    inductor.cpp.enable_kernel_profile = True
    with freed_memory_kept():
        step = our_step(shape, threads, precision="bf16", is_compiled=True)
        taken = []
        for number in range(1, 9):
            start = time.perf_counter()
            step(number)
            taken.append(time.perf_counter() - start)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
            for number in range(9, 9 + N_STEPS):
                step(number)
    return list(found.key_averages(group_by_input_shape=True)), min(taken)


def products(rows: list[Any], peak: float) -> list[dict[str, Any]]:
    """Return each shape of product (rows, inner, columns): torch tells the second factor and the result."""
    told = []
    for row in rows:
        if row.key not in {"aten::mm", "aten::bmm"}:
            continue
        (*batch, inner, columns), (*_, n_rows, _) = [each for each in row.input_shapes if len(each) > 1][-2:]
        flops = 2 * n_rows * inner * columns * (batch[0] if batch else 1) * row.count
        rate = flops / row.self_cpu_time_total * 1e6
        told.append(
            {
                "product": [*batch, n_rows, inner, columns],
                "calls": row.count // N_STEPS,
                "ms": round(row.self_cpu_time_total / N_STEPS / 1e3, 2),
                "gflop": round(flops / N_STEPS / 1e9, 2),
                "gflops_per_s": round(rate / 1e9),
                "of_peak": round(rate / peak, 2),
            }
        )
    return sorted(told, key=lambda each: -each["ms"])


def all_products(told: list[dict[str, Any]], peak: float, *, is_batched: bool) -> dict[str, Any]:
    kind = [each for each in told if (len(each["product"]) == 4) == is_batched]
    ms, gflop = (sum(each[name] for each in kind) for name in ("ms", "gflop"))
    rate = gflop / ms * 1e3
    return {
        "ms": round(ms, 1),
        "gflop": round(gflop, 1),
        "gflops_per_s": round(rate),
        "of_peak": round(rate * 1e9 / peak, 3),
    }


def kernels(rows: list[Any]) -> list[tuple[str, float]]:
    """Return milliseconds a step by name."""
    taken: dict[str, float] = defaultdict(float)
    for row in rows:
        taken[row.key] += row.self_cpu_time_total / N_STEPS / 1e3
    return sorted(taken.items(), key=lambda item: -item[1])


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    how = SimpleNamespace(processor_time=False, threads=asked.threads, kept_memory=True)
    before = sustained_flops_per_s()
    rows, seconds = profiled(Shape(*SHAPES[asked.shape]), asked.threads)
    peak = max(before, sustained_flops_per_s())
    told = products(rows, peak)
    result = {
        "step_ms": round(seconds * 1e3),
        "sustained_gflops_per_s": round(peak / 1e9),
        "products": all_products(told, peak, is_batched=False),
        "products of attention": all_products(told, peak, is_batched=True),
        "kernels": {name: round(ms, 1) for name, ms in kernels(rows)[: asked.rows]},
        "machine": machine(how),
    }
    for each in told:
        print(*each.values(), sep="\t")
    for name, value in result.items():
        print(name, value)
    if asked.json:
        print(json.dumps({**result, "shapes": told}))


if __name__ == "__main__":
    main()
