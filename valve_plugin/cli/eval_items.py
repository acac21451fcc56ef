"""What single items are worth, in tables: alone on the holdout, and left out on the panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from valve_plugin.cli import output

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.report.items import Effect, Key, Worth

SPENT = (
    "report only. This holdout is spent: whoever keeps or retires items by these numbers cannot be certified on it any "
    "more; `valve bank retire` asks the gate instead"
)
READ = (
    "report only. Whoever retires an item by these numbers knows more of the panel than its verdicts tell, so `valve "
    "certify` will call its later certificates unmet; a new panel starts afresh"
)


def report_items(
    store: BankStore, categories: Mapping[Key, str], *, json: bool, simulate: bool, panel: bool = False
) -> None:
    """Print each item's worth with an interval, and each category's; exit with 3 where rollouts errored.

    Args:
        categories: how a person sorted the items; empty: not at all.
        panel: what the panel loses without it, not what the holdout gains by it alone.
    """
    from valve_plugin.cli.eval import tell_apart, told_scripted
    from valve_plugin.report import items

    rows = items.left_out(store) if panel else items.alone(store)
    groups = items.grouped(rows, categories)
    note = READ if panel else SPENT
    simulate = simulate or told_scripted(store)
    if json:
        what = "loss" if panel else "gain"
        shown = [_fact(row, categories, what) for row in rows]
        means = {name: {"items": n, **_numbers(e, what)} for name, (n, e) in groups.items()}
        output.emit_json(
            {"bank": str(store.dir), "simulation": simulate, "items": shown, "categories": means, "note": note}
        )
    else:
        _print(rows, categories, groups, "LOSS" if panel else "GAIN")
        output.say(note)
    if not panel:
        tell_apart(list(store.entries()))
    if not all(row.final for row in rows):
        raise typer.Exit(output.INFRASTRUCTURE)


def _print(
    rows: Sequence[Worth], categories: Mapping[Key, str], groups: Mapping[str, tuple[int, Effect]], what: str
) -> None:
    head = ["KIND", "NAME", what, "INTERVAL", "MOVED", "LINE"]
    body = [[r.item.kind, r.item.name, *_shown(r.effect, r.moved), r.moved, r.line] for r in rows]
    if categories:
        head.append("CATEGORY")
        body = [[*line, categories.get(r.item.key, "-")] for line, r in zip(body, rows, strict=True)]
    output.table(head, body, can_wait=("LINE", "MOVED"))
    if groups:
        output.table(
            ["CATEGORY", "ITEMS", what, "INTERVAL"], [[name, n, *_shown(e)] for name, (n, e) in groups.items()]
        )


def _fact(row: Worth, categories: Mapping[Key, str], what: str) -> dict[str, Any]:
    return {
        "kind": row.item.kind,
        "name": row.item.name,
        "version": row.item.created_step,
        "category": categories.get(row.item.key),
        **_numbers(row.effect, what),
        "moved": row.moved,
        "line": row.line,
        "final": row.final,
    }


def _numbers(effect: Effect, what: str) -> dict[str, float]:
    return {what: effect.mean, "low": effect.low, "high": effect.high}


def _shown(effect: Effect, moved: int = 1) -> tuple[str, str]:
    """Where no task moved there is no spread to make an interval of, which does not mean that there is no error."""
    interval = f"{effect.low:+.1f} to {effect.high:+.1f}" if moved else "no task moved"
    return f"{effect.mean:+.1f}", interval
