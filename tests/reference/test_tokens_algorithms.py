"""Our fast code against slow code written from the papers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from modelfactory.tokens.assignment import Assignment
from modelfactory.tokens.permutation import epoch_keys, permute, seed_key
from modelfactory.tokens.tokenizer_stage import train_bpe

WRAP = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(value: int) -> int:
    """Steele, Lea, Flood 2014, figure 17, without the addition."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WRAP
    return value ^ (value >> 31)


def cipher(value: int, n: int, key: int) -> int:
    """Black and Rogaway 2002: generalised Feistel of 8 rounds, walking the cycle until below n."""
    a = 1
    while a * a < n:
        a += 1
    b = -(-n // a)
    while True:
        left, right = value % a, value // a
        for number in range(8):
            half = left if number % 2 else right
            mixed = splitmix64((half + key + (number + 1) * GOLDEN) % WRAP)
            if number % 2:
                right = (right + mixed % b) % b
            else:
                left = (left + mixed % a) % a
        value = a * right + left
        if value < n:
            return value


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 17, 99, 1000])
def test_permutation_is_the_cipher_of_the_paper(n: int) -> None:
    zeros = np.zeros(n, dtype=np.int64)
    keys = epoch_keys(seed_key("x"), zeros, zeros)
    found = permute(np.arange(n), np.full(n, n), keys)
    assert found.tolist() == [cipher(value, n, int(keys[0])) for value in range(n)]


def chairman(shares: list[int], n_slots: int) -> list[int]:
    """Tijdeman 1980: of the states whose claim is high enough, the one that must be served first.

    The paper's rule, for k states and weights w: among the states with w_i n - x_i >= 1 / (2 k - 2), take one
    for which (1 - 1 / (2 k - 2) - (w_i n - x_i)) / w_i is least. It keeps every |x_i - w_i n| at or below
    1 - 1 / (2 k - 2).
    """
    period, k = sum(shares), len(shares)
    served = [0] * k
    chosen = []
    for n in range(1, n_slots + 1):
        claims = [shares[i] * n / period - served[i] for i in range(k)]
        able = [i for i in range(k) if claims[i] >= 1 / (2 * k - 2) - 1e-12]
        best = min(able, key=lambda i: (1 - 1 / (2 * k - 2) - claims[i]) * period / shares[i])
        served[best] += 1
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("shares", [[1, 1], [3, 7], [1, 2, 3], [5, 1, 1, 1], [13, 8, 5, 3, 2, 1]])
def test_assignment_stays_as_near_as_the_chairman(shares: list[int]) -> None:
    """Ties may fall differently; both keep the bound, and both serve the whole period exactly."""
    period = sum(shares)
    ours = Assignment(shares, period).at(np.arange(period))[0]
    for chosen in (np.array(chairman(shares, period)), ours):
        counts = np.cumsum(chosen[:, None] == np.arange(len(shares)), axis=0)
        wanted = np.arange(1, period + 1)[:, None] * np.array(shares) / period
        assert np.abs(counts - wanted).max() < 1
        assert counts[-1].tolist() == shares


def naive_merges(words: list[str], n_merges: int) -> list[tuple[str, str]]:
    """Sennrich et al. 2016, algorithm 1, over pre-split words spelled in single characters."""
    split = {word: list(word) for word in words}
    counts = Counter(words)
    merges: list[tuple[str, str]] = []
    ids = {symbol: n for n, symbol in enumerate(sorted({c for word in words for c in word}))}
    for _ in range(n_merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, symbols in split.items():
            for pair in itertools.pairwise(symbols):
                pairs[pair] += counts[word]
        best = max(pairs, key=lambda pair: (pairs[pair], -ids[pair[0]], -ids[pair[1]]), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        ids.setdefault("".join(best), len(ids))
        for symbols in split.values():
            place = 0
            while place < len(symbols) - 1:
                if (symbols[place], symbols[place + 1]) == best:
                    symbols[place : place + 2] = ["".join(best)]
                place += 1
    return merges


def test_merges_are_those_of_the_algorithm() -> None:
    text = Path(__file__).read_text("utf-8")
    words = [word for word in text.split() if word.isalpha() and word.isascii()]
    inner = train_bpe([words], 257 + 150, ("<end>",))  # each word alone: no spaces, no further splitting
    merges = [tuple(merge) for merge in json.loads(inner.to_str())["model"]["merges"]]
    assert merges == naive_merges(words, 150)
    assert 100 < len(merges) < 150  # both end where no pair occurs twice any more
