"""Laws of a stream whose first batches are smaller: steps end elsewhere, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelfactory.tokens import Stream, TokenShard
from modelfactory.tokens.indexed import IndexedWriter

SIZES, SEQ_LEN = (47, 90), 4


@pytest.fixture(scope="module")
def shards() -> list[TokenShard]:
    found = []
    for size in SIZES:
        with TemporaryDirectory() as name:
            with IndexedWriter(Path(name) / "tokens", 70_000) as writer:
                writer.add([list(range(first, min(first + 9, size))) for first in range(0, size, 9)])
            found.append(TokenShard.open(Path(name)))  # the mapping outlives the name of the file
    return found


def stream(shards: list[TokenShard], warmup: list[tuple[int, int]], *, n_tokens: int, rows: int) -> Stream:
    options: Any = {"weights": [1, 2], "seq_len": SEQ_LEN, "seed": 5, "max_epochs": [1e9, 1e9]}
    return Stream(shards, batch_sequences=rows, n_tokens=n_tokens, batch_warmup=warmup, **options)


STAGES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), max_size=3)


@settings(max_examples=60, deadline=None)
@given(warmup=STAGES, n_tokens=st.integers(1, 500), rows=st.integers(1, 9))
def test_every_sequence_comes_once_and_in_the_same_order(
    shards: list[TokenShard], warmup: list[tuple[int, int]], n_tokens: int, rows: int
) -> None:
    run = stream(shards, warmup, n_tokens=n_tokens, rows=rows)
    batches = [run.batch(step) for step in range(1, run.n_steps + 1)]
    wanted = [n for steps, n in warmup for _ in range(steps)]
    found = [len(batch.tokens) for batch in batches]
    assert found == (wanted + [rows] * run.n_steps)[: run.n_steps]
    constant = stream(shards, [], n_tokens=n_tokens, rows=1)
    ids = np.concatenate([batch.sequence_ids for batch in batches])
    ids = ids[ids[:, 0] >= 0]
    assert np.array_equal(ids, constant.sequence_ids(np.arange(constant.n_sequences)))
    counts = [batch.n_valid for batch in batches]
    assert sum(counts) == n_tokens
    assert counts[-1] > 0
    assert np.cumsum(counts).tolist() == [run.n_tokens_to(step) for step in range(1, run.n_steps + 1)]
    assert run.epochs() == constant.epochs()
    assert run.epochs(1) == constant.epochs(min(found[0], constant.n_steps))


@settings(max_examples=30, deadline=None)
@given(warmup=STAGES, world_size=st.integers(1, 4), data=st.data())
def test_a_step_follows_from_nothing_else_on_any_number_of_ranks(
    shards: list[TokenShard], warmup: list[tuple[int, int]], world_size: int, data: st.DataObject
) -> None:
    run = stream(shards, warmup, n_tokens=300, rows=8)
    longer = stream(shards, warmup, n_tokens=3000, rows=8)
    step = data.draw(st.integers(1, run.n_steps - 1))
    whole = run.batch(step)
    parts = [longer.batch(step, rank, world_size) for rank in range(world_size)]
    for name in ("tokens", "valid", "sequence_ids"):
        assert np.array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


@settings(max_examples=30, deadline=None)
@given(warmup=STAGES, n_tokens=st.integers(1, 400))
def test_from_a_document_to_its_steps(
    shards: list[TokenShard], warmup: list[tuple[int, int]], n_tokens: int
) -> None:
    run = stream(shards, warmup, n_tokens=n_tokens, rows=7)
    seen: dict[tuple[int, int], set[int]] = {}
    for step in range(1, run.n_steps + 1):
        batch = run.batch(step)
        for tokens, valid, (source, _, _) in zip(batch.tokens, batch.valid, batch.sequence_ids, strict=True):
            for token in tokens[: valid.sum() + 1] if valid.any() else ():
                seen.setdefault((int(source), int(token) // 9), set()).add(step)
    for source, size in enumerate(SIZES):
        for document in range(-(-size // 9)):
            assert run.steps_of(source, document) == sorted(seen.get((source, document), set()))
