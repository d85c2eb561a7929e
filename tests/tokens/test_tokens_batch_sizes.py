from __future__ import annotations

import pytest

from modelfactory.tokens.batch_sizes import BatchSizes


def test_steps_of_three_sizes() -> None:
    sizes = BatchSizes(10, [(2, 1), (3, 4)])
    assert [sizes.of(step) for step in range(1, 8)] == [1, 1, 4, 4, 4, 10, 10]
    assert [sizes.up_to(step) for step in range(8)] == [0, 1, 2, 6, 10, 14, 24, 34]
    assert [sizes.step_of(n) for n in (0, 1, 2, 5, 6, 13, 14, 23, 24)] == [1, 2, 3, 3, 4, 5, 6, 6, 7]
    assert [sizes.n_steps(n) for n in (0, 1, 2, 3, 6, 7, 14, 15, 24, 25)] == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7]


@pytest.mark.parametrize("total", range(1, 40))
def test_without_warm_up_it_is_a_division(total: int) -> None:
    assert BatchSizes(7).n_steps(total) == -(-total // 7)
    assert BatchSizes(7).step_of(total - 1) == (total - 1) // 7 + 1
    assert BatchSizes(7).up_to(total) == 7 * total
