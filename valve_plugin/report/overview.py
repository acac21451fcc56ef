"""The four answers at the top of a report: better, by how much, how sure, at what cost."""

from __future__ import annotations

from typing import NamedTuple

from valve_plugin.report.run import Run
from valve_plugin.report.words import counted


class Answer(NamedTuple):
    """One card."""

    question: str
    answer: str
    why: str


def overview(run: Run) -> list[Answer]:
    """Return the answers a reader gets first. They claim no more than was measured."""
    return [_better(run), _how_much(run), _how_sure(run), _cost(run)]


def points(rate: float) -> str:
    """Return a rate difference in points: `+3.1 points`."""
    return f"{100 * rate:+.1f} points"


def duration(hours: float) -> str:
    """Return a time to read: `4 min`, `2.5 h`."""
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _better(run: Run) -> Answer:
    question = "Is this bank better?"
    accepted = [g for g in run.gates if g.decision == "accept"]
    if not run.version:
        judged = f"{counted(len(run.gates), 'proposal')} judged" if run.gates else "no proposal was judged yet"
        return Answer(question, "It is empty", f"{judged}; nothing came in, so agents run as without it.")
    if not accepted:
        return Answer(question, "Unknown", "Its items were taken without a gate: nothing was measured against them.")
    safe = [m for m in run.certificate.moves if not m.vacuous and m.floor >= 0]
    why = f"{len(accepted)} of {counted(len(run.gates), 'proposal')} gained enough on the panel to be accepted."
    return Answer(question, "Yes, on its panel" if len(safe) < len(accepted) else "Yes, certified", why)


def _how_much(run: Run) -> Answer:
    question = "By how much?"
    if len(run.checkpoints) > 1:
        return _held_out(question, run)
    if len(run.scores) < 2:
        rate = f"{run.scores[0].passes / run.scores[0].rollouts:.0%} of panel rollouts pass" if run.scores else ""
        return Answer(
            question, "Nothing measured", f"{rate or 'No panel was measured'}; there is no accept to compare."
        )
    first, last = run.scores[0], run.scores[-1]
    gained = last.passes / last.rollouts - first.passes / first.rollouts
    why = (
        f"Panel passes {first.passes}/{first.rollouts} before, {last.passes}/{last.rollouts} at version "
        f"{last.version}. In-sample: the gate selected by these numbers, so they flatter."
    )
    return Answer(question, points(gained), why)


def _held_out(question: str, run: Run) -> Answer:
    """From the holdout, where it was read: nothing was selected on it."""
    first, last = run.checkpoints[0], run.checkpoints[-1]
    low, high = last.low - first.high, last.high - first.low
    said = points(low) if low == high else f"{points(low)} to {points(high)}, not final"
    why = (
        f"avg@{last.rollouts} on {last.tasks} holdout tasks: {first.low:.1%} at version {first.version}, "
        f"{last.low:.1%} at version {last.version}. Nothing was learned from or judged on these tasks."
    )
    return Answer(question, said, why)


def _how_sure(run: Run) -> Answer:
    question = "How sure?"
    moves = run.certificate.moves
    gain = run.certificate.gain
    if gain and not gain.vacuous:
        said = (
            f"The gain is at least {points(gain.value)}"
            if gain.value > 0
            else f"It may be a loss: {points(gain.value)}"
        )
        return Answer(question, said, f"Certified on the holdout with delta {gain.delta:g}; what it rests on is below.")
    if not moves:
        return Answer(question, "Nothing to certify", "No accept is recorded.")
    speaking = [m for m in moves if not m.vacuous]
    unmet = [a.name for a in run.certificate.assumptions if a.status == "unmet"]
    rests = f" Unmet: {', '.join(unmet)}." if unmet else ""
    if not speaking:
        vacuous = "Its certificate is" if len(moves) == 1 else f"Its {len(moves)} certificates are"
        return Answer(
            question,
            "Not at all: too few tasks",
            f"{vacuous} vacuous: a panel this small says nothing about other tasks. "
            f"What would do: valve plan.{'' if run.checkpoints else ' No holdout was read.'}{rests}",
        )
    worst = min(speaking, key=lambda m: m.floor)
    return Answer(
        question,
        "No accept lost anything" if worst.floor >= 0 else f"An accept may have lost {-100 * worst.floor:.1f} points",
        f"{len(speaking)} of {counted(len(moves), 'accept')} certified, with delta {worst.delta:g}.{rests}",
    )


def _cost(run: Run) -> Answer:
    question = "At what cost?"
    if not run.spent:
        return Answer(question, "Unknown here", "This machine keeps no rollouts of this bank.")
    usd, hours = sum(s.usd for s in run.spent), sum(s.hours for s in run.spent)
    rollouts = sum(s.rollouts for s in run.spent)
    gate = sum(s.rollouts for s in run.spent if s.role == "gate")
    judging = f"{gate / rollouts:.0%} of the rollouts are the gate's" if run.gated else "No gate ran"
    money = f"${usd:,.2f}" if usd else "no recorded price"
    return Answer(
        question,
        f"{rollouts:,} rollouts, {duration(hours)}",
        f"{judging}; {money}. The time is of rollouts one after the other.",
    )
