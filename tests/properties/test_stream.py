"""Laws of the stream, for random mixtures."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from modelfactory.tokens import Stream, TokenShard, integer_shares
from modelfactory.tokens.assignment import Assignment
from modelfactory.tokens.indexed import IndexedWriter
from modelfactory.tokens.permutation import epoch_keys, permute, seed_key, unpermute

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 50), st.floats(0.01, 100), st.sampled_from([0.1, 0.25, 1 / 3, 0.7, 1e-3])),
    min_size=1,
    max_size=8,
)


@lru_cache(maxsize=64)
def shard(n_tokens: int) -> TokenShard:
    with tempfile.TemporaryDirectory() as name:
        with IndexedWriter(Path(name) / "tokens", 70_000) as writer:
            writer.add([list(range(n_tokens))])
        return TokenShard.open(Path(name))  # the mapping outlives the name of the file


def stream(sizes: list[int], weights: list[float], *, n_tokens: int = 500, seed: int = 0) -> Stream:
    return Stream(
        [shard(size) for size in sizes],
        weights=weights,
        seq_len=4,
        batch_sequences=3,
        seed=seed,
        n_tokens=n_tokens,
        max_epochs=[1e9] * len(sizes),
    )


@given(weights=WEIGHTS, n=st.integers(1, 3000))
def test_every_prefix_is_exact_to_one_sequence(weights: list[float], n: int) -> None:
    shares = integer_shares(weights)
    assignment = Assignment(shares.shares, n)
    source, rank = assignment.at(np.arange(n))
    counts = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
    assert np.array_equal(counts[np.arange(n), source] - 1, rank)
    # |count - share / period * length| < 1, in integers
    wanted = np.arange(1, n + 1)[:, None] * np.array(shares.shares, dtype=np.int64)
    assert (np.abs(counts * shares.period - wanted) < shares.period).all()


@given(shares=st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_a_schedule_exists_for_all_shares_over_whole_periods(shares: list[int]) -> None:
    period = sum(shares)
    assignment = Assignment(shares, period)
    for turns in (0, 1, 7):
        assert assignment.counts(turns * period) == tuple(turns * share for share in shares)
    source, _ = assignment.at(np.arange(period))
    counts = np.cumsum(source[:, None] == np.arange(len(shares)), axis=0)
    wanted = np.arange(1, period + 1)[:, None] * np.array(shares)
    assert (np.abs(counts * period - wanted) < period).all()


@given(weights=WEIGHTS, n=st.integers(0, 5000))
def test_counts_and_numbers_agree_with_the_assignment(weights: list[float], n: int) -> None:
    assignment = Assignment(integer_shares(weights).shares, max(n, 1))
    source, rank = assignment.at(np.arange(n))
    assert assignment.counts(n) == tuple(np.bincount(source, minlength=len(weights)).tolist())
    for number in range(0, n, max(n // 20, 1)):
        assert assignment.number(int(source[number]), int(rank[number])) == number


@given(weights=WEIGHTS, n=st.integers(1, 2000), more=st.integers(1, 2000))
def test_the_end_of_a_run_does_not_show_before_it(weights: list[float], n: int, more: int) -> None:
    shares = integer_shares(weights).shares
    short, long = (Assignment(shares, length).at(np.arange(n)) for length in (n, n + more))
    assert np.array_equal(short, long)


def test_two_millionths_of_a_million_are_two() -> None:
    shares = integer_shares([1 - 2e-6, 2e-6])
    assert Assignment(shares.shares, 1_000_000).counts(1_000_000) == (999_998, 2)
    assert shares.exact


def test_a_period_of_a_million_takes_seconds_not_minutes() -> None:
    shares = integer_shares([2**0.5, 3**0.5, 5**0.5, 7**0.5])
    assignment = Assignment(shares.shares, 10**9)
    assert assignment.counts(shares.period * 1000 + 1)[0] in range(
        shares.shares[0] * 1000, shares.shares[0] * 1000 + 2
    )


@given(weights=WEIGHTS)
def test_effective_weights_are_a_fixed_point(weights: list[float]) -> None:
    shares = integer_shares(weights)
    assert integer_shares(shares.effective_weights).shares == shares.shares
    total = sum(map(Fraction, map(str, weights)))
    for weight, effective in zip(weights, shares.effective_weights, strict=True):
        assert abs(effective - float(Fraction(str(weight)) / total)) <= 1e-6


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64))
def test_a_permutation_is_one(n: int, seed: int) -> None:
    index = np.arange(n)
    sizes, zeros = np.full(n, n), np.zeros(n, dtype=np.int64)
    keys = epoch_keys(seed_key(seed), zeros, zeros)
    found = permute(index, sizes, keys)
    assert np.array_equal(np.sort(found), index)
    assert np.array_equal(unpermute(found, sizes, keys), index)


@given(
    index_of=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 2**45), st.integers(0, 9)),
        min_size=1,
        max_size=20,
    )
)
def test_sizes_and_keys_may_differ_by_element(index_of: list[tuple[float, int, int]]) -> None:
    sizes = np.array([n for _, n, _ in index_of])
    index = np.array([int(share * n) for share, n, _ in index_of])
    keys = epoch_keys(seed_key(1), np.array([s for *_, s in index_of]), np.zeros(len(sizes), dtype=np.int64))
    found = permute(index, sizes, keys)
    assert ((found >= 0) & (found < sizes)).all()
    assert np.array_equal(unpermute(found, sizes, keys), index)
    alone = [permute(index[i : i + 1], sizes[i : i + 1], keys[i : i + 1])[0] for i in range(len(sizes))]
    assert found.tolist() == alone


def test_every_place_is_reached_from_every_place_equally_often() -> None:
    for n in (2, 3, 5, 10, 37):
        n_epochs = 4000
        index = np.tile(np.arange(n), n_epochs)
        epoch = np.repeat(np.arange(n_epochs), n)
        keys = epoch_keys(seed_key(3), np.zeros_like(epoch), epoch)
        found = permute(index, np.full_like(index, n), keys)
        table = np.zeros((n, n))
        np.add.at(table, (index, found), 1)
        expected = n_epochs / n
        statistic = ((table - expected) ** 2 / expected).sum()
        freedom = (n - 1) ** 2  # both margins are fixed
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 5


@given(
    sizes=st.lists(st.integers(5, 60), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
)
def test_each_sequence_comes_once_in_each_epoch(sizes: list[int], weights: list[int], seed: int) -> None:
    run = stream(sizes, [float(w) for w in weights[: len(sizes)]], seed=seed)
    ids = run.sequence_ids(np.arange(run.n_sequences))
    assert len(np.unique(ids, axis=0)) == len(ids)
    for source, size in enumerate(sizes):
        n = (size - 1) // 4
        epochs = ids[ids[:, 0] == source, 1]
        assert (np.diff(epochs) >= 0).all()
        counts = np.bincount(epochs)
        assert (counts[:-1] == n).all()
        assert ids[ids[:, 0] == source, 2].max(initial=0) < n


@given(data=st.data(), n_tokens=st.integers(1, 400), seed=st.integers(0, 9))
def test_a_batch_depends_on_nothing_but_its_step(data: st.DataObject, n_tokens: int, seed: int) -> None:
    run = stream([30, 50], [0.3, 0.7], n_tokens=n_tokens, seed=seed)
    in_order = [run.batch(step) for step in range(1, run.n_steps + 1)]
    for step in data.draw(st.permutations(range(1, run.n_steps + 1))):
        fresh = stream([30, 50], [0.3, 0.7], n_tokens=n_tokens, seed=seed)
        for batch in (run.batch(step), fresh.batch(step)):
            assert np.array_equal(batch.tokens, in_order[step - 1].tokens)
            assert np.array_equal(batch.sequence_ids, in_order[step - 1].sequence_ids)


@given(n_tokens=st.integers(1, 2000))
def test_exactly_the_tokens_of_the_run_count(n_tokens: int) -> None:
    run = stream([40, 33], [0.5, 0.5], n_tokens=n_tokens)
    n_valid = [run.batch(step).n_valid for step in range(1, run.n_steps + 1)]
    assert sum(n_valid) == n_tokens
    assert np.cumsum(n_valid).tolist() == [run.n_tokens_to(step) for step in range(1, run.n_steps + 1)]


@given(world_size=st.integers(1, 7), step=st.integers(1, 40))
def test_ranks_share_a_batch_out(world_size: int, step: int) -> None:
    run = stream([40, 33], [0.5, 0.5], n_tokens=470)
    whole = run.batch(step)
    parts = [run.batch(step, rank, world_size) for rank in range(world_size)]
    for name in ("tokens", "valid", "sequence_ids"):
        assert np.array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))
    rows = [len(part.tokens) for part in parts]
    assert max(rows) - min(rows) <= 1


@settings(max_examples=20)
@given(size=st.integers(5, 200))
def test_every_token_but_the_first_is_a_label_once_in_an_epoch(size: int) -> None:
    n = (size - 1) // 4
    run = stream([size], [1.0], n_tokens=n * 4)
    labels = [t for s in range(1, run.n_steps + 1) for t in run.batch(s).tokens[:, 1:][run.batch(s).valid]]
    assert sorted(labels) == list(range(1, n * 4 + 1))
