"""The effect of single items: one item alone on the holdout, or the bank without it on the panel.

These numbers are for people. No gate reads them.

Source: tab:artifact-utility (one item alone). Differs: every number has an interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import fsum, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from valve_plugin.bank.entries import LeftOut
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import convert, parse_toml
from valve_plugin.errors import BankError, ConfigError, RecordError
from valve_plugin.evidence.evaluations import (
    Interval,
    comparable,
    differences,
    latest_readings,
    mean_interval,
    readings,
)
from valve_plugin.files import read_limited
from valve_plugin.records import Item, Kind, PanelOutcome

CATEGORIES = ("environment", "repair_strategy", "code_semantics")
"""Categories of items. Source: sec:bank-growth."""
_MAX_BYTES = 1_000_000
Key = tuple[Kind, str]


class Effect(NamedTuple):
    """A mean over tasks and its interval, in points."""

    mean: float
    low: float
    high: float


class ItemEffect(NamedTuple):
    """The measured effect of one item."""

    item: Item
    effect: Effect
    line: int
    """Ledger line of the measurement, from 1."""
    final: bool
    """True if no rollout errored."""
    per_task: tuple[Interval, ...]
    """Change of each task's rate through the item, in rate units, in task order."""

    @property
    def changed_tasks(self) -> int:
        """Number of tasks whose rate changed, or may have changed."""
        return sum(d != Interval(Fraction(0), Fraction(0)) for d in self.per_task)

    def facts(self, categories: Mapping[Key, str], what: str) -> dict[str, Any]:
        """Return this as plain data; `what` is the name of the effect's mean."""
        item, effect = self.item, self.effect
        about: dict[str, Any] = {"kind": item.kind, "name": item.name, "version": item.created_step}
        about["category"] = categories.get(item.key)
        measured = {what: effect.mean, "low": effect.low, "high": effect.high, "moved": self.changed_tasks}
        return {**about, **measured, "line": self.line, "final": self.final}


class CategoryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that assigns items to categories; each entry is `name` or `kind/name`."""

    environment: tuple[str, ...] = ()
    repair_strategy: tuple[str, ...] = ()
    code_semantics: tuple[str, ...] = ()


def interval_effect(per_task: Sequence[Interval]) -> Effect:
    """Return the mean effect of differences in rate units; see `mean_effect`. Pure."""
    return mean_effect([100 * float(d.low) for d in per_task], [100 * float(d.high) for d in per_task])


def mean_effect(low: Sequence[float], high: Sequence[float]) -> Effect:
    """Return the mean plus or minus 1.96 standard errors over tasks, wider if rollouts errored. Pure.

    The interval is for one comparison: among many comparisons some look good by chance. With few tasks it is too
    narrow.

    Args:
        low: the smallest possible change of each task, in points.
        high: the largest possible change; equal to `low` if nothing errored.
    """
    error = 1.96 * max(_standard_error(low), _standard_error(high))
    return Effect(fsum(low) / len(low), fsum(low) / len(low) - error, fsum(high) / len(high) + error)


def single_item_gains(store: BankStore) -> list[ItemEffect]:
    """Return the holdout gain over version 0 of each current item that was measured alone."""
    found = readings(store.entries())
    base = latest_readings(found).get(0)
    rows = []
    for item in store.bank.items if base else ():
        one = latest_readings(found, item.key).get(store.bank.version)
        if base is not None and one is not None and comparable(base.entry, one.entry):
            each = tuple(differences(base.entry, one.entry).values())
            final = base.entry.complete and one.entry.complete
            rows.append(ItemEffect(item, interval_effect(each), one.line, final, each))
    return rows


def removal_losses(store: BankStore) -> list[ItemEffect]:
    """Return the panel's loss without each item of the current bank, for the items that were measured.

    The loss is against the bank's current outcomes. A gate accepted these because they were high, so every item looks
    slightly better than it is. Only measurements with the newest solver settings count.
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
            rows.append(ItemEffect(item, interval_effect(each), line, final=True, per_task=each))
    return rows


def category_effects(rows: Iterable[ItemEffect], categories: Mapping[Key, str]) -> dict[str, tuple[int, Effect]]:
    """Return, by category, the number of items and their mean effect; the interval is over tasks, not over items."""
    groups: dict[str, list[ItemEffect]] = {}
    for row in rows:
        groups.setdefault(categories.get(row.item.key, ""), []).append(row)
    means = {
        name: interval_effect([mean_interval(task) for task in zip(*(row.per_task for row in group), strict=True)])
        for name, group in groups.items()
    }
    return {name: (len(groups[name]), means[name]) for name in CATEGORIES if name in groups}


def read_categories(path: Path, items: Sequence[Item]) -> dict[Key, str]:
    """Read the file that assigns items to categories; return the category of each item in it.

    Raises:
        ConfigError: the file cannot be read, names an unknown item, or names an item twice.
    """
    try:
        raw = parse_toml(read_limited(path, _MAX_BYTES, "categories"))
        given = convert(raw, CategoryFile, where=str(path))
    except (BankError, RecordError) as e:
        raise ConfigError(
            f"{path}: no usable categories: {e}; expected lists of item names under {', '.join(CATEGORIES)}"
        ) from e
    found: dict[Key, str] = {}
    for category in CATEGORIES:
        for name in getattr(given, category):
            keys = [i.key for i in items if name in (i.name, f"{i.kind}/{i.name}")]
            if len(keys) != 1:
                if keys:
                    raise ConfigError(f"{path}: several items have the name {name!r}; write kind/name")
                raise ConfigError(f"{path}: the bank has no item {name!r}; `valve bank list` shows the items")
            if keys[0] in found:
                raise ConfigError(f"{path}: {name!r} is listed twice; an item has one category")
            found[keys[0]] = category
    return found


def _passed(outcomes: Iterable[PanelOutcome]) -> Counter[str]:
    return Counter(o.task_id for o in outcomes if o.outcome == "resolved")


def _standard_error(values: Sequence[float]) -> float:
    n, mean = len(values), fsum(values) / len(values)
    return sqrt(fsum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)
