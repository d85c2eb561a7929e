"""A seeded permutation of 0..n-1 with random access.

A generalised Feistel network with cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains"
(CT-RSA 2002), methods 2 and 3. The domain is a x b with a = ceil(sqrt(n)), b = ceil(n / a), so fewer than a
of its values lie outside 0..n-1 and a walk is rarely longer than one step. The round function is the
finaliser of splitmix64 (Steele, Lea, Flood 2014), not a cryptographic one: order must look random, nothing
is kept secret.

Everything is elementwise over arrays: each element has its own n and its own key, so that one call serves a
batch that mixes sources and epochs.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_key(*parts: object) -> np.uint64:
    """Return 64 bits that stand for `parts`: the same on every machine and in every process."""
    text = "\x1f".join(map(str, parts))
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def epoch_keys(key: np.uint64, source: NDArray[np.int64], epoch: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the key of each (source, epoch) under `key`."""
    source_key = _mix(source.astype(np.uint64) * _GOLDEN + key)
    return _mix(source_key + epoch.astype(np.uint64) * _GOLDEN)


def permute(index: NDArray[np.int64], n: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return where each `index` goes in the permutation of 0..n-1 that its key names."""
    return _walk(index, n, keys, inverse=False)


def unpermute(index: NDArray[np.int64], n: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Undo `permute`."""
    return _walk(index, n, keys, inverse=True)


def _walk(
    index: NDArray[np.int64], n: NDArray[np.int64], keys: NDArray[np.uint64], *, inverse: bool
) -> NDArray[np.int64]:
    """Encrypt until the value lies in 0..n-1 again: it must, for the cycle it walks on began there."""
    cipher = _decrypt if inverse else _encrypt
    size = n.astype(np.uint64)
    a = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.uint64)  # any a will do: b makes a * b >= n
    b = (size + a - np.uint64(1)) // a
    value = cipher(index.astype(np.uint64), a, b, keys)
    outside = np.flatnonzero(value >= size)
    while len(outside):
        value[outside] = cipher(value[outside], a[outside], b[outside], keys[outside])
        outside = outside[value[outside] >= size[outside]]
    return value.astype(np.int64)


def _encrypt(
    value: NDArray[np.uint64], a: NDArray[np.uint64], b: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    right, left = np.divmod(value, a)
    for round_number in range(N_ROUNDS):
        if round_number % 2 == 0:
            left = (left + _round(round_number, right, keys) % a) % a
        else:
            right = (right + _round(round_number, left, keys) % b) % b
    return right * a + left


def _decrypt(
    value: NDArray[np.uint64], a: NDArray[np.uint64], b: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    right, left = np.divmod(value, a)
    for round_number in reversed(range(N_ROUNDS)):
        if round_number % 2 == 0:
            left = (left + a - _round(round_number, right, keys) % a) % a
        else:
            right = (right + b - _round(round_number, left, keys) % b) % b
    return right * a + left


def _round(number: int, half: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    offset = np.uint64((number + 1) * int(_GOLDEN) % 2**64)
    return _mix(half + (keys + offset))


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64; arrays of unsigned integers wrap around without a warning."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
