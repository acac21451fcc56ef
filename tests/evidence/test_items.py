"""Numbers about single items: intervals that hold what they are about, and a sorting that is read strictly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bank import build
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.evaluations import Interval
from valve_plugin.evidence.items import CATEGORIES, ItemEffect, category_effects, interval_effect, read_categories
from valve_plugin.records import Item

ITEMS = (build.item(1), build.item(2), Item(kind="principle", name="skill-1", text="Think.", markdown="**Statement**"))
rates = st.integers(-3, 3).map(lambda n: Fraction(n, 3))
intervals = st.tuples(rates, rates).map(lambda ends: Interval(min(ends), max(ends)))


def final(*rates: Fraction) -> tuple[Interval, ...]:
    return tuple(Interval(r, r) for r in rates)


@given(st.lists(intervals, min_size=1, max_size=12))
def test_an_interval_holds_its_mean_and_what_is_unknown_only_widens_it(per_task):
    found = interval_effect(per_task)
    assert found.low <= found.mean + 1e-9
    assert found.mean <= found.high + 1e-9
    assert found.high - found.low >= 100 * sum(float(d.high - d.low) for d in per_task) / len(per_task) - 1e-9


@given(st.lists(rates, min_size=1, max_size=12), rates)
def test_equal_differences_have_no_error_and_shifts_shift(each, shift):
    same = interval_effect(final(*[each[0]] * len(each)))
    assert (same.low, same.high) == (pytest.approx(same.mean), pytest.approx(same.mean))
    moved, before = interval_effect(final(*[r + shift for r in each])), interval_effect(final(*each))
    assert moved.mean == pytest.approx(before.mean + 100 * float(shift))
    assert moved.high - moved.low == pytest.approx(before.high - before.low)


def worth(item: Item, *each: Fraction) -> ItemEffect:
    return ItemEffect(item, interval_effect(final(*each)), 7, final=True, per_task=final(*each))


def test_a_category_is_the_mean_of_its_items_over_tasks():
    up, same = Fraction(1), Fraction(0)
    rows = [worth(ITEMS[0], up, same), worth(ITEMS[1], same, up), worth(ITEMS[2], up, up)]
    found = category_effects(rows, {ITEMS[0].key: "environment", ITEMS[1].key: "environment"})
    assert list(found) == ["environment"], "what nobody sorted is in none"
    assert found["environment"][0] == 2
    assert found["environment"][1] == pytest.approx((50.0, 50.0, 50.0)), "one item is up where the other is not"
    assert rows[0].changed_tasks == 1


def test_a_sorting_is_read(tmp_path):
    file = tmp_path / "sorted.toml"
    file.write_text('environment = ["skill-2"]\ncode_semantics = ["principle/skill-1"]\n')
    assert read_categories(file, ITEMS) == {
        ("skill", "skill-2"): CATEGORIES[0],
        ("principle", "skill-1"): CATEGORIES[2],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('environment = ["nothing"]', "the bank has no item 'nothing'"),
        ('environment = ["skill-1"]', "several items have the name 'skill-1'"),
        ('environment = ["skill-2"]\nrepair_strategy = ["skill/skill-2"]', "'skill/skill-2' is listed twice"),
        ('speed = ["skill-2"]', "no usable categories.*speed"),
        ('environment = "skill-2"', "no usable categories"),
        ("environment = [", "no usable categories"),
        (b"\xff\xfe", "no usable categories"),
        (b"x = " + b"[" * 5000, "no usable categories"),
        (b"#" * 1_000_001, "no usable categories"),
    ],
)
def test_what_is_wrong_with_a_sorting_is_said(tmp_path, text, message):
    file = tmp_path / "sorted.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_categories(file, ITEMS)


def test_a_missing_sorting(tmp_path):
    with pytest.raises(ConfigError, match="no usable categories"):
        read_categories(tmp_path / "none.toml", ITEMS)
