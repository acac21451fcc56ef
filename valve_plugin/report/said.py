"""The sentences a run's page draws from its numbers, by section: the page shows them, and so does its JSON. Pure."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from valve_plugin.report import held, reach
from valve_plugin.report.bounds import Bound
from valve_plugin.report.captions import descent, visible
from valve_plugin.report.certify import Move
from valve_plugin.report.overview import duration, evaluated
from valve_plugin.report.provenance import listed
from valve_plugin.report.run import Run
from valve_plugin.report.run_spent import ended
from valve_plugin.report.versions import under
from valve_plugin.report.words import counted
from valve_plugin.theory.bennett import radius


def said(run: Run) -> dict[str, list[str]]:
    """Return section -> its sentences; empty lists where there is nothing to say."""
    return {
        "overview": _told(reach.chance(run), reach.unreached(run)),
        "gates": _told(reach.chance(run), reach.ceiling(run)),
        "items": [*_told(_counts(run)), *_told(alone(run))],
        "certificates": [*held.told(run), *reach.left(run)],
        "terms": [*terms(run), *_told(alike(run))],
        "cost": _told(evaluated(run), next_cost(run)),
        "stream": [*under(run), *_told(fall(run))],
    }


def fall(run: Run) -> str:
    """Return where the stream's curve falls furthest, and which versions came in meanwhile; its figure says why."""
    where = descent(run.stream) if run.stream_whole else ""
    if not where:
        return ""
    _, top, low = visible(run.stream)
    first, last = run.stream[top].version, run.stream[low].version
    came = f"version{'s' * (last > first + 1)} {listed(range(first + 1, last + 1))}"
    meanwhile = f"{came} came into use between them" if last > first else f"version {last} was in use at both"
    return f"Over the window the rate falls {where}: {meanwhile}."


def _counts(run: Run) -> str:
    mine = sum(i.version is not None for i in run.items)
    rest = len(run.items) - mine
    then = f"; then {rest} that did not come in, or left" if rest else ""
    return f"In the bank: {counted(mine, 'item')}, shown first, the newest at the top{then}." if mine else ""


def alone(run: Run) -> str:
    """Return how to learn what single items are worth, where nothing measured it; empty: something did, or none is."""
    if (
        not run.scores
        or not any(i.version is not None for i in run.items)
        or any(line.type == "left_out" for line in run.ledger)
    ):
        return ""
    return "What a single item is worth was not measured: `valve panel items` runs the panel without each."


def terms(run: Run) -> list[str]:
    """Return why certificates that look alike differ: how much each spends on what could have been chosen.

    Source: thm:reuse-main (L_k), eq:gaincert.
    """
    moves, gain = run.certificate.moves, run.certificate.gain
    found = []
    later = next(((a, b) for a, b in pairwise(moves) if _costs_more(a, b)), None)
    if later:
        a, b = later
        found.append(
            f"A later accept needs more tasks for the same gain: more series of verdicts could have led to it, and its "
            f"certificate covers them all (log term {a.log_term:.1f} at version {a.version}, {b.log_term:.1f} at "
            f"version {b.version})."
        )
    if moves and gain and not gain.vacuous and log_term(gain) < moves[0].log_term:
        found.append(
            f"The holdout says more than the panel on as many tasks: nothing was selected on it, so its log term is "
            f"{log_term(gain):.1f}, while the panel's, {moves[0].log_term:.1f} and up, pays for all "
            f"{counted(moves[0].horizon, 'query', 'queries')} that its epoch may ask."
        )
    return found


def alike(run: Run) -> str:
    """Return that two variances that look like one shown twice are of different data; empty: they do not look alike.

    Of few tasks with few rollouts the estimate has few values, so equal ones are no rare chance.
    """
    moves, gain = run.certificate.moves, run.certificate.gain
    if not moves or not gain or f"{moves[-1].variance:.4f}" != f"{gain.variance:.4f}":
        return ""
    return (
        f"The variance {gain.variance:.4f} of panel and holdout is estimated twice, from the panel's complete "
        f"measurements and from the holdout's {counted(len(run.checkpoints), 'reading')}: on so few tasks only few "
        "values can come out."
    )


class Terms(NamedTuple):
    """What one certificate was computed from."""

    what: str
    tasks: int
    delta: float
    variance: float
    log_term: float
    range: float
    """M: 1 or 2, and 1 plus the loss for an accept."""
    slack: float
    """What is taken off a measured gain, or put on a measured drawdown; rate units."""


def numbers(run: Run) -> list[Terms]:
    """Return the terms of each certificate: accepts, then the holdout's gain and drawdown."""
    found = []
    for m in run.certificate.moves:
        slack = radius(m.tasks, m.log_term, m.variance, 1 + m.loss)
        found.append(Terms(f"version {m.version}", m.tasks, m.delta, m.variance, m.log_term, 1 + m.loss, slack))
    for what, bound in (("holdout gain", run.certificate.gain), ("holdout drawdown", run.certificate.drawdown)):
        if bound:
            terms_ = (bound.tasks, bound.delta, bound.variance, log_term(bound), bound.range, bound.radius)
            found.append(Terms(what, *terms_))
    return found


def log_term(bound: Bound) -> float:
    """Return ln(A / delta) of a bound on the holdout, in nats; A is 1 for a gain."""
    return math.log((bound.banks or 1) / bound.delta)


def next_cost(run: Run) -> str:
    """Return what one more proposal's gate takes, going by those on record; empty: none is."""
    gate = next((ended(s) for s in run.spent if s.role == "gate" and ended(s).rollouts), None)
    kinds = {d: [g.ran + g.beyond for g in run.gates if g.decision == d] for d in ("reject", "accept")}
    seen = {d: ran for d, ran in kinds.items() if ran}
    if not seen:
        return ""
    parts = [
        f"{'a' if d == 'reject' else 'an'} {d} took {_range(ran)} ({counted(len(ran), 'gate')})"
        for d, ran in seen.items()
    ]
    told = f"The next proposal's gate, going by those so far: {', '.join(parts)}"
    if not gate:
        return f"{told}; what a rollout takes is not known here."
    most = max(map(max, seen.values()))
    money = f", ${gate.usd / gate.rollouts * most:,.2f}" if gate.usd else "; no price is recorded"
    each = 3600 * gate.hours / gate.rollouts
    return f"{told}. At {each:.1f} s a rollout that is at most {duration(each * most / 3600)}, one by one{money}."


def _range(ran: list[int]) -> str:
    return counted(ran[0], "rollout") if min(ran) == max(ran) else f"{min(ran)} to {max(ran)} rollouts"


def _costs_more(a: Move, b: Move) -> bool:
    return a.epoch == b.epoch and b.log_term > a.log_term


def _told(*sentences: str) -> list[str]:
    return [s for s in sentences if s]
