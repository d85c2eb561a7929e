"""Checks that several specs of this package make."""

from __future__ import annotations

from modelfactory.spec import checked_value, collecting, require

SMALLEST, LARGEST = 1e-6, 1e6
"""Of factors and bounds: far beyond what models have, far within what float32 and bfloat16 hold."""


def require_positive(place: str, **counts: float) -> None:
    """Raise SpecError for each count that is below 1."""
    for name, value in counts.items():
        require(value >= 1, place=f"{place}.{name}", found=value, wanted="at least 1")


def require_whole(family: str, **sizes: object) -> None:
    """Raise SpecError for sizes that are no whole numbers; at once, since sums with them could only fail.

    A function, unlike a spec, has nobody else to look at what it is given.
    """
    with collecting() as faults:
        for name, size in sizes.items():
            checked_value(size, int, f"{family}.{name}")
    if faults:
        raise faults[0]


def require_scale(place: str, value: float) -> None:
    """Raise SpecError for a factor or bound that float32 could not compute with."""
    require(SMALLEST <= value <= LARGEST, place=place, found=value, wanted=f"{SMALLEST:g} to {LARGEST:g}")


def head_dim(family: str, d_model: int, n_heads: int) -> int:
    """Return the width of a head, or raise SpecError unless the heads divide the model evenly.

    Where faults are collected it returns a width that lets the caller go on.
    """
    require_positive(family, d_model=d_model, n_heads=n_heads)
    if n_heads < 1 or d_model < 1:
        return 2  # the fault is collected
    near = [n for n in range(1, d_model + 1) if d_model % n == 0]
    require(
        d_model % n_heads == 0,
        place=f"{family}.n_heads",
        found=n_heads,
        wanted=f"a divisor of d_model {d_model}",
        remedy=f"The nearest is {min(near, key=lambda n: abs(n - n_heads))}.",
    )
    return max(d_model // n_heads, 1)
