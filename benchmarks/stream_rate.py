"""How fast the stream gives batches, alone, on one core.

There is no peer here: the ratio is against what it must feed. Training of a 6 x 384 decoder took about 2,500
tokens/s on 2 CPU cores (bf16, torch.compile); `--training-rate` sets another figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from modelfactory.tokens import Stream, TokenShard
from modelfactory.tokens.indexed import IndexedWriter

VOCAB_SIZE = 8_192
SHARD_TOKENS = 8_000_000
N_SHARDS = 4
WEIGHTS = (0.5, 0.25, 0.15, 0.1)
TRIALS = 5


def made_shards(folder: Path) -> list[TokenShard]:
    rng = np.random.default_rng(0)
    shards = []
    for number in range(N_SHARDS):
        place = folder / str(number)
        place.mkdir()
        with IndexedWriter(place / "tokens", VOCAB_SIZE) as writer:
            for _ in range(SHARD_TOKENS // 100_000):
                tokens = rng.integers(0, VOCAB_SIZE, size=100_000, dtype=np.int32)
                writer.add(np.split(tokens, np.sort(rng.choice(100_000, size=99, replace=False))))
        shards.append(TokenShard.open(place))
    return shards


def made_stream(shards: list[TokenShard], batch_sequences: int, seq_len: int) -> Stream:
    n_tokens = SHARD_TOKENS * N_SHARDS
    return Stream(
        shards,
        weights=WEIGHTS,
        seq_len=seq_len,
        batch_sequences=batch_sequences,
        seed=0,
        n_tokens=n_tokens,
    )


def rate(stream: Stream, n_steps: int) -> float:
    """Return tokens/s, the median of several passes over different steps; the first warms the page cache."""
    rates = []
    for trial in range(TRIALS + 1):
        first = trial * n_steps
        started = time.perf_counter()
        for step in range(first + 1, first + n_steps + 1):
            stream.batch(step % stream.n_steps + 1)
        seconds = time.perf_counter() - started
        rates.append(n_steps * stream.batch_sequences * stream.seq_len / seconds)
    return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--training-rate", type=float, default=2_500.0, help="tokens/s that training takes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shards = made_shards(Path(name))
        stream = made_stream(shards, 8, 512)
        small = rate(stream, 500)
        large = rate(made_stream(shards, 64, 1024), 100)
        started = time.perf_counter()
        stream.batch(stream.n_steps)
        last_step_s = time.perf_counter() - started
    figures = {
        "tokens_per_s_8x512": small,
        "tokens_per_s_64x1024": large,
        "last_step_seconds": last_step_s,
        "training_tokens_per_s": arguments.training_rate,
    }
    ratios = {"stream_over_training_8x512": small / arguments.training_rate}
    machine = {"cpu": platform.processor() or platform.machine(), "n_cpus": os.cpu_count()}
    for figure, value in figures.items():
        print(f"{figure:28} {value:>16,.6g}")
    if arguments.json:
        print(json.dumps({"ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
