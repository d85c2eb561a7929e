"""How much each step holds: the arithmetic of a run whose first batches are smaller."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class BatchSizes:
    """Sizes of the steps of a run, in tokens or in sequences.

    Args:
        size: of a step once the warm-up is over.
        warmup: (steps, size) of each stage of it, the first one first.
    """

    def __init__(self, size: int, warmup: Sequence[tuple[int, int]] = ()) -> None:
        self._size = max(size, 1)  # where faults are collected, a spec goes on with a size of 0
        self._warmup = tuple(warmup)

    def of(self, step: int) -> int:
        """Return the size of one step, counted from 1."""
        return self.up_to(step) - self.up_to(step - 1)

    def up_to(self, step: int) -> int:
        """Return the size of all steps up to and with `step`."""
        total, left = 0, step
        for n_steps, size in self._warmup:
            taken = min(left, n_steps)
            total, left = total + taken * size, left - taken
        return total + left * self._size

    def step_of(self, number: int) -> int:
        """Return the step that holds one token or sequence, numbered from 0 through the run."""
        before, left = 0, number
        for n_steps, size in self._warmup:
            if left < n_steps * size:
                return before + left // size + 1
            before, left = before + n_steps, left - n_steps * size
        return before + left // self._size + 1

    def n_steps(self, total: int) -> int:
        """Return how many steps `total` takes; the last may hold less than its size."""
        return self.step_of(total - 1) if total > 0 else 0
