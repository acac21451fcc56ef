"""What single items are worth: alone on the holdout, and on the panel by their absence. Reports; nothing goes by them.

Source: tab:artifact-utility (alone). Differs: every number has an interval.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import fsum, sqrt
from pathlib import Path
from typing import NamedTuple

import msgspec

from valve_plugin.bank.entries import LeftOut
from valve_plugin.bank.evaluated import Interval, comparable, differences, latest, readings
from valve_plugin.bank.files import read_limited
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import convert
from valve_plugin.errors import BankError, ConfigError, RecordError
from valve_plugin.records import Item, Kind, PanelOutcome

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

CATEGORIES = ("environment", "repair_strategy", "code_semantics")
"""Execution, the repair process, program behavior.

Source: sec:bank-growth.
"""
_MAX_BYTES = 1_000_000
Key = tuple[Kind, str]


class Effect(NamedTuple):
    """A mean over tasks, in points, with its interval."""

    mean: float
    low: float
    high: float


class Worth(NamedTuple):
    """One item."""

    item: Item
    effect: Effect
    line: int
    """Of the ledger, from 1."""
    final: bool
    """Nothing errored."""
    per_task: tuple[Interval, ...]
    """By how much each task's rate moves for the item, in rate units, in the order of the tasks."""

    @property
    def moved(self) -> int:
        """How many tasks' rates it moves, or may."""
        return sum(d != Interval(Fraction(0), Fraction(0)) for d in self.per_task)


class Sorted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of categories: names of items, or kind/name, under each."""

    environment: tuple[str, ...] = ()
    repair_strategy: tuple[str, ...] = ()
    code_semantics: tuple[str, ...] = ()


def effect(per_task: Sequence[Interval]) -> Effect:
    """Return what `spread` does, of differences in rate units. Pure."""
    return spread([100 * float(d.low) for d in per_task], [100 * float(d.high) for d in per_task])


def spread(low: Sequence[float], high: Sequence[float]) -> Effect:
    """Return the mean plus or minus 1.96 standard errors over tasks, widened by what errored. Pure.

    It describes one comparison: of many, some will look good by chance, and few tasks make it too narrow.

    Args:
        low: by how much each task moves at least, in points.
        high: at most; equal where nothing errored.
    """
    error = 1.96 * max(_standard_error(low), _standard_error(high))
    return Effect(fsum(low) / len(low), fsum(low) / len(low) - error, fsum(high) / len(high) + error)


def alone(store: BankStore) -> list[Worth]:
    """Return what each item of the last version that was measured alone gains over version 0 on the holdout."""
    found = readings(store.entries())
    base = latest(found).get(0)
    rows = []
    for item in store.bank.items if base else ():
        one = latest(found, item.key).get(store.bank.version)
        if base is not None and one is not None and comparable(base.entry, one.entry):
            each = tuple(differences(base.entry, one.entry).values())
            rows.append(Worth(item, effect(each), one.line, base.entry.complete and one.entry.complete, each))
    return rows


def left_out(store: BankStore) -> list[Worth]:
    """Return what the panel loses without each item of the current bank, where that was measured.

    Against the outcomes the bank carries. Those were accepted for being high, so they flatter every item a little. Of
    several solvers' measurements, the newest's alone.
    """
    current, panel, epoch = store.current_outcomes(), store.panel(), store.epoch()
    if current is None or panel is None or epoch is None:
        return []
    with_all = _passed(current)
    found = [
        (n, e)
        for n, e in enumerate(store.entries(), 1)
        if isinstance(e, LeftOut) and (e.epoch, e.bank_hash) == (epoch.epoch, store.bank.hash)
    ]
    lines = {e.without: (n, e) for n, e in found if e.solver == found[-1][1].solver}
    rows = []
    for item in store.bank.items:
        if item.key in lines:
            line, entry = lines[item.key]
            run, rest = {o.task_id for o in entry.outcomes}, _passed(entry.outcomes)
            lost = [with_all[t] - rest[t] if t in run else 0 for t in (task.instance_id for task in panel.tasks)]
            each = tuple(Interval(Fraction(d, panel.rollouts), Fraction(d, panel.rollouts)) for d in lost)
            rows.append(Worth(item, effect(each), line, final=True, per_task=each))
    return rows


def grouped(rows: Iterable[Worth], categories: Mapping[Key, str]) -> dict[str, tuple[int, Effect]]:
    """Return each category's items and their mean effect; the interval is over tasks, the items being what they are."""
    groups: dict[str, list[Worth]] = {}
    for row in rows:
        groups.setdefault(categories.get(row.item.key, ""), []).append(row)
    means = {
        name: effect([_mean(task) for task in zip(*(row.per_task for row in group), strict=True)])
        for name, group in groups.items()
    }
    return {name: (len(groups[name]), means[name]) for name in CATEGORIES if name in groups}


def read_categories(path: Path, items: Sequence[Item]) -> dict[Key, str]:
    """Read a person's sorting of the items.

    Raises:
        ConfigError: it cannot be read, names what is not in the bank, or names an item twice.
    """
    try:
        raw = tomllib.loads(read_limited(path, _MAX_BYTES, "categories").decode("utf-8"))
        given = convert(raw, Sorted, where=str(path))
    except (BankError, RecordError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as e:
        raise ConfigError(
            f"{path}: no usable categories: {e}; expected lists of item names under {', '.join(CATEGORIES)}"
        ) from e
    found: dict[Key, str] = {}
    for category in CATEGORIES:
        for name in getattr(given, category):
            keys = [i.key for i in items if name in (i.name, f"{i.kind}/{i.name}")]
            if len(keys) != 1:
                what = "several items are called" if keys else "the bank has no item"
                raise ConfigError(f"{path}: {what} {name!r}; `valve bank list` shows them (say kind/name if need be)")
            if keys[0] in found:
                raise ConfigError(f"{path}: {name!r} stands twice; an item has one category")
            found[keys[0]] = category
    return found


def _passed(outcomes: Iterable[PanelOutcome]) -> Counter[str]:
    return Counter(o.task_id for o in outcomes if o.outcome == "resolved")


def _mean(intervals: Sequence[Interval]) -> Interval:
    n = len(intervals)
    return Interval(sum((i.low for i in intervals), Fraction()) / n, sum((i.high for i in intervals), Fraction()) / n)


def _standard_error(values: Sequence[float]) -> float:
    n, mean = len(values), fsum(values) / len(values)
    return sqrt(fsum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)
