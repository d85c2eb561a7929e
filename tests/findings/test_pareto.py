"""The front of quality against cost, against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modelfactory.findings.pareto import Point, front

POINTS = st.lists(st.builds(Point, st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(points=POINTS, higher=st.booleans())
def test_the_front_is_what_nothing_dominates(points: list[Point], higher: bool) -> None:
    def dominates(a: Point, b: Point) -> bool:
        no_worse = a.quality >= b.quality if higher else a.quality <= b.quality
        return a != b and no_worse and a.cost <= b.cost

    wanted = {p for p in points if not any(dominates(other, p) for other in points)}
    found = front(points, higher_is_better=higher)
    assert set(found) == wanted
    assert found == sorted(found)
