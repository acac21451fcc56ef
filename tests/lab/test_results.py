"""Tables from rows: the numbers, the bounds, and the line behind each."""

from __future__ import annotations

import csv
import io

from valve_plugin.lab import results
from valve_plugin.lab.results import CurvePoint, RunResult


def row(condition: str, seed: int, final: float, high: float | None = None, **changes: object) -> RunResult:
    end = (final, final if high is None else high)
    curve = (CurvePoint(0, 0, (50.0, 50.0), 0, 3), CurvePoint(10, 1, end, 4, 9))
    made = RunResult(
        each=((final - 60, end[1] - 60), (final - 40, end[1] - 40)),
        repository="calc", model="m", condition=condition, seed=seed, base=(50.0, 50.0), final=end,
        gain=(end[0] - 50, end[1] - 50), peak=(60.0, 60.0), peak_gain=(10.0, 10.0), drawdown=(60 - end[1], 60 - end[0]),
        skills=3, principles=1, steps=10, accepts=1, hours=2.0, curve=curve,
        ledger=f"calc/m/{condition}/seed-{seed}/bank/ledger.jsonl",
    )  # fmt: skip
    return made._replace(**changes)


ROWS = [
    row("base", 0, 50.0, steps=0, hours=0.0, each=((0.0, 0.0), (0.0, 0.0))),
    row("valve", 0, 58.0),
    row("valve", 1, 54.0),
    row("a|b", 0, 55.0, 57.0),
]
PAGE = """\
| Condition | Final avg (gain) | Gain ± 1.96 SE | Peak gain | Drawdown | Skills/principles | Steps | Hours \
| Hours/step |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| base | 50.0 (+0.0) | - | +10.0 | 10.0 | 3/1 | 0 | 0.00 | 0.000 |
| valve | 56.0 (+6.0) | [-13.6, +25.6] | +10.0 | 4.0 | 3/1 | 10 | 2.00 | 0.200 |
| a\\|b | 55.0 to 57.0 (+5.0 to +7.0) | [-14.6, +26.6] | +10.0 | 3.0 to 5.0 | 3/1 | 10 | 2.00 | 0.200 |
"""


def test_the_page():
    page = results.markdown(ROWS, "Title", simulated=True)
    assert page.startswith("# Title\n\n**SIMULATION of the solver.**")
    assert PAGE in page
    assert "| valve | 1 | 0, 0, 50.0, line 3; 10, 1, 54.0, line 9 | [calc/m/valve/seed-1/bank/ledger.jsonl](" in page
    assert "not over the same ones: base 1, valve 2, a|b 1." in page
    equal = [row(name, seed, 50.0) for name in ("base", "valve") for seed in (0, 1)]
    assert "Means over 2 seeds." in results.markdown(equal, "Title", simulated=True)
    assert "SIMULATION" not in results.markdown(ROWS, "Title", simulated=False)


def test_every_run_is_a_line_of_the_csv():
    read = list(csv.DictReader(io.StringIO(results.comma_separated(ROWS))))
    assert [r["condition"] for r in read] == ["base", "valve", "valve", "a|b"]
    assert (read[3]["final_low"], read[3]["final_high"], read[3]["line_final"]) == ("55.0000", "57.0000", "9")
