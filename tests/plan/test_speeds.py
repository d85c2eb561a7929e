"""How long stages take, told from those that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelfactory.plan.speeds import Took, recall, remember, speed
from modelfactory.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "workspace", create=True) as opened:
        yield opened


def test_two_sizes_tell_the_fixed_part() -> None:
    found = speed([Took(10.0, 13.0), Took(10.0, 13.0), Took(40.0, 22.0)])
    assert (found.fixed_s, found.per_unit_s) == (pytest.approx(10.0), pytest.approx(0.3))
    assert found.seconds(100.0) == pytest.approx(40.0)


def test_one_size_is_scaled_and_says_so() -> None:
    found = speed([Took(10.0, 4.0), Took(10.5, 6.0), Took(11.0, 5.5)])
    assert found.fixed_s == 0.0
    assert found.seconds(10.0) == pytest.approx(5.0, rel=0.1)
    assert found.covers(39.0)
    assert found.covers(3.0)
    assert not found.covers(50.0)
    assert not found.covers(2.0)


def test_a_size_between_two_known_ones_is_known() -> None:
    assert speed([Took(1.0, 1.0), Took(1000.0, 2.0)]).covers(30.0)


def test_a_larger_stage_that_was_faster_is_noise() -> None:
    found = speed([Took(10.0, 5.0), Took(40.0, 4.0)])
    assert found.fixed_s == 0.0
    assert found.per_unit_s == pytest.approx((0.5 + 0.1) / 2)


def test_one_outlier_changes_little() -> None:
    took = [Took(10.0, 13.0), Took(20.0, 16.0), Took(40.0, 22.0), Took(80.0, 34.0), Took(40.0, 300.0)]
    assert speed(took).seconds(80.0) == pytest.approx(34.0, rel=0.15)


def test_the_last_few_of_each_size_are_kept(store: Store) -> None:
    remember(store, "train", ["a", "any"], Took(1000.0, 9.0))
    for n in range(8):
        remember(store, "train", ["a"], Took(16.0 + n, float(n)))
    assert recall(store, "train", "a") == [
        Took(1000.0, 9.0),
        *(Took(16.0 + n, float(n)) for n in range(3, 8)),
    ]
    assert recall(store, "train", "any") == [Took(1000.0, 9.0)]
    assert recall(store, "evaluate", "a") == []
