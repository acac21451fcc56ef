"""The terminal's curve: every point is in its column, at its height."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.report.curve import SAME, curve, running_share

shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_a_chart_as_it_is_printed() -> None:
    assert curve({"G": [0.5, 0.6, 0.7, 0.8], "u": [0.5, 0.55, 0.45]}, height=5) == [
        " 80 % |          G",
        "      |       G",
        "      |    =",
        "      | =",
        " 40 % |       u",
        "      +------------",
    ]
    assert curve({"G": []}) == []


@given(shares, shares, st.integers(2, 12))
def test_every_column_shows_its_points_and_the_higher_is_not_below(a: list[float], b: list[float], height: int) -> None:
    *rows, axis = curve({"a": a, "b": b}, height=height, width=1)
    assert len(rows) == height
    assert len(axis) == len("      +") + max(len(a), len(b))
    for x, (left, right) in enumerate(zip(a, b, strict=False)):
        column = [row.ljust(len(axis))[7 + x] for row in rows]
        if SAME in column:
            assert "a" not in column
            assert "b" not in column
        else:
            assert (column.index("a") < column.index("b")) == (left > right)


@given(st.lists(st.tuples(st.integers(0, 3), st.just(3)), min_size=1, max_size=20))
def test_the_last_share_is_the_mean(tasks: list[tuple[int, int]]) -> None:
    passed, of = zip(*tasks, strict=True)
    found = running_share(passed, of)
    assert len(found) == len(tasks)
    assert found[-1] == sum(passed) / sum(of)
    assert all(0 <= share <= 1 for share in found)
