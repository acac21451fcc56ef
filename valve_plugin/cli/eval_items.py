"""What each item does alone on the holdout: a report, and the end of that holdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from valve_plugin.cli import output

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore

SPENT = (
    "this holdout is spent: whoever keeps or retires items by these numbers cannot be certified on it any more; "
    "`valve bank retire` asks the gate instead"
)


def report_items(store: BankStore, *, json: bool, simulate: bool) -> None:
    """Print each item's gain over no memory, with an interval; exit with 3 where rollouts errored.

    Source: tab:artifact-utility. Differs: its three categories are a person's reading and are not guessed here.
    """
    rows = utilities(store)
    if json:
        output.emit_json({"bank": str(store.dir), "simulation": simulate, "items": rows, "note": SPENT})
    else:
        cells = [
            [r["kind"], r["name"], f"{r['gain']:+.1f}", f"{r['low']:+.1f} to {r['high']:+.1f}", r["line"]] for r in rows
        ]
        output.table(["KIND", "NAME", "GAIN", "INTERVAL", "LINE"], cells)
        output.say(SPENT)
    if not all(r["final"] for r in rows):
        raise typer.Exit(output.INFRASTRUCTURE)


def utilities(store: BankStore) -> list[dict[str, Any]]:
    """Return, in points, what each item of the last version that was measured alone gains over version 0.

    The interval is the mean paired difference plus or minus 1.96 standard errors over tasks, widened by what errored:
    it describes one item; with many items some will look good by chance.
    """
    from valve_plugin.bank.evaluated import comparable, differences, latest, readings

    found = readings(store.entries())
    base = latest(found).get(0)
    rows = []
    for item in store.bank.items if base else ():
        alone = latest(found, item.key).get(store.bank.version)
        if base is None or alone is None or not comparable(base.entry, alone.entry):
            continue
        each = differences(base.entry, alone.entry).values()
        low = [100 * float(d.low) for d in each]
        high = [100 * float(d.high) for d in each]
        error = 1.96 * max(_standard_error(low), _standard_error(high))
        rows.append(
            {
                "kind": item.kind,
                "name": item.name,
                "version": item.created_step,
                "gain": sum(low) / len(low),
                "low": sum(low) / len(low) - error,
                "high": sum(high) / len(high) + error,
                "line": alone.line,
                "final": base.entry.complete and alone.entry.complete,
            }
        )
    return rows


def _standard_error(values: list[float]) -> float:
    from math import fsum, sqrt

    n, mean = len(values), fsum(values) / len(values)
    return sqrt(fsum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)
