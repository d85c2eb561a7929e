"""Training tokens/s against transformers' Llama of the same shape.

Both: torch.compile, bf16 autocast over float32 weights, torch's fused AdamW, the gradient clipped, the same
tokens, one process, steps alternating so that whatever else the machine does hits both alike. A ratio above 1
means ours is faster. Run `python benchmarks/train.py --json`; `--help` for the shape.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from modelfactory.models import Llama
from modelfactory.tokens import Batch
from modelfactory.train import AdamW, Cosine, TrainSegment
from modelfactory.train.learner import Learner
from modelfactory.train.settings import torch_settings
from modelfactory.train.steps import gradient, update

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[int], float]

LR = 1e-3
WEIGHT_DECAY = 0.1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--n-layers", type=int, default=6)
    parser.add_argument("--d-model", type=int, default=384)
    parser.add_argument("--n-heads", type=int, default=6)
    parser.add_argument("--vocab-size", type=int, default=8_192)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=8, help="steps of each that are timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    return parser.parse_args()


def batch_of(asked: argparse.Namespace, step: int) -> Batch:
    random = np.random.default_rng(step)
    shape = (asked.batch, asked.seq_len + 1)
    return Batch(
        step=step,
        tokens=random.integers(asked.vocab_size, size=shape, dtype=np.int32),
        valid=np.ones((asked.batch, asked.seq_len), dtype=bool),
        sequence_ids=np.zeros((asked.batch, 3), dtype=np.int64),
    )


def our_step(asked: argparse.Namespace) -> tuple[Step, int]:
    model = Llama(
        n_layers=asked.n_layers, d_model=asked.d_model, n_heads=asked.n_heads, max_seq_len=asked.seq_len
    )
    spec = TrainSegment(
        model=model,
        optimizer=AdamW(lr=LR, weight_decay=WEIGHT_DECAY),
        seed=0,
        batch_tokens=asked.batch * asked.seq_len,
        seq_len=asked.seq_len,
        precision="bf16",
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
    learner = Learner(spec, asked.vocab_size, is_compiled=not asked.eager)

    def step(number: int) -> float:
        batch = batch_of(asked, number)
        with torch_settings(asked.threads):  # as the training stage does
            found = gradient(learner, batch, seed=0, micro_batch_tokens=asked.batch * asked.seq_len)
            return update(learner, None, batch, found, lr=LR, grad_clip=1.0).loss  # type: ignore[arg-type]

    return step, model.n_parameters(asked.vocab_size)


def their_step(asked: argparse.Namespace) -> tuple[Step, int]:
    from transformers import LlamaConfig, LlamaForCausalLM

    ours: Any = Llama(
        n_layers=asked.n_layers, d_model=asked.d_model, n_heads=asked.n_heads, max_seq_len=asked.seq_len
    ).blocks[0]
    config = LlamaConfig(
        num_hidden_layers=asked.n_layers,
        hidden_size=asked.d_model,
        intermediate_size=ours.feed_forward.d_ff,
        num_attention_heads=asked.n_heads,
        num_key_value_heads=asked.n_heads,
        vocab_size=asked.vocab_size,
        max_position_embeddings=asked.seq_len,
        tie_word_embeddings=False,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).train()  # its attention is SDPA too, by default
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.95), fused=True
    )
    forward = model if asked.eager else torch.compile(model, dynamic=False)

    def step(number: int) -> float:
        tokens = torch.from_numpy(batch_of(asked, number).tokens).long()
        labels = tokens[:, 1:].contiguous()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = forward(input_ids=tokens[:, :-1], shift_labels=labels, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step, sum(parameter.numel() for parameter in model.parameters())


def seconds(step: Step, number: int) -> float:
    start = time.perf_counter()
    step(number)
    return time.perf_counter() - start


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    contestants = {"ours": our_step(asked), "transformers": their_step(asked)}
    first = {name: seconds(step, 1) for name, (step, _) in contestants.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(2, asked.rounds + 3):
        names = sorted(contestants, reverse=bool(number % 2))
        for name in names:
            duration = seconds(contestants[name][0], number)
            if number > 2:
                taken[name].append(duration)
    n_tokens = asked.batch * asked.seq_len
    pairs = zip(taken["ours"], taken["transformers"], strict=True)
    figures: dict[str, Any] = {}
    for name, (_, n_parameters) in contestants.items():
        figures[f"{name}_tokens_per_s"] = round(n_tokens / statistics.median(taken[name]), 1)
        figures[f"{name}_best_tokens_per_s"] = round(n_tokens / min(taken[name]), 1)
        figures[f"{name}_first_step_s"] = round(first[name], 2)
        figures[f"{name}_n_parameters"] = n_parameters
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    return {
        "ratios": {"train_tokens_per_s_against_transformers_llama": round(ratio, 3)},
        "figures": figures,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": asked.threads,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    result = measured(asked)
    if not asked.json:
        for group, values in result.items():
            print(group, *(f"  {name}: {value}" for name, value in values.items()), sep="\n")
    else:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
