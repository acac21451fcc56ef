"""Which of two runs did better, how sure that is, and what each took: the first card of a comparison. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from valve_plugin.report.overview import Answer, duration
from valve_plugin.report.paired import alike_holdouts, conclusion, stream_rates
from valve_plugin.report.run import Run
from valve_plugin.report.run_spent import APART, total


def versus_card(a: Run, b: Run) -> Answer:
    """Return the comparison as the first card: what the numbers say and whether they decide, then what they are."""
    said = conclusion(a, b)
    better = next((letter for letter in "AB" if f"{letter}'s bank is better" in said), "")
    missing = [letter for letter, run in (("A", a), ("B", b)) if run.panel and not run.scores]
    panel = f"Nothing was measured on {' or '.join(missing)}'s panel." if missing else ""
    answer = f"{better} is better on the holdout" if better else _open(a, b)
    why = " ".join(filter(None, [said, panel, took(a, b)]))
    return Answer("Is A better than B?", answer, why, "yes" if better else "open")


def took(a: Run, b: Run) -> str:
    """Return what both runs took beside each other; empty: not recorded of both."""
    if not (a.spent and b.spent):
        return ""
    each = []
    for letter, run in (("A", a), ("B", b)):
        gate = sum(s.rollouts for s in run.spent if s.role == "gate")
        judged = f" ({gate:,} of them its gate's)" if gate else ""
        each.append(f"{letter} took {total(run.spent).rollouts:,} rollouts{judged}")
    parts = [" and ".join(each)]
    if a.clock and b.clock:
        parts.append(f"by the clock {_against([duration(run.clock.hours) for run in (a, b) if run.clock])}")
    if all(total(run.spent).usd for run in (a, b)):
        parts.append(_against([f"${total(run.spent).usd:,.2f}" for run in (a, b)]))
    apart = any(s.role in APART for run in (a, b) for s in run.spent)
    return f"{'; '.join(parts)}{', without evaluation and measurement' * apart}."


def _open(a: Run, b: Run) -> str:
    """The headline where nothing is certified: what was measured, and that it decides nothing."""
    for rates, where in ((alike_holdouts(a, b), " on the holdout"), (stream_rates(a, b), "")):
        if rates is None:
            continue
        one, two = rates
        if one == two:
            return f"Both resolved the same share{where} ({one:.0%}), and one run each proves nothing"
        digits = 0 if f"{one:.0%}" != f"{two:.0%}" else 1
        more = _against([f"{rate:.{digits}%}" for rate in sorted(rates, reverse=True)])
        return f"{'A' if one > two else 'B'} resolved more{where} ({more}), but one run each proves nothing"
    return "Nothing is to be concluded"


def _against(pair: Sequence[str]) -> str:
    return f"{pair[0]} against {pair[1]}"
