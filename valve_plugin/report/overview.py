"""The four answers at the top of a report: better, by how much, how sure, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from valve_plugin.records import is_live
from valve_plugin.report.bounds import doubt
from valve_plugin.report.held import how_sure, of_drawdown
from valve_plugin.report.measured_tasks import moved, signs
from valve_plugin.report.run import Checkpoint, Run
from valve_plugin.report.run_spent import everything, total
from valve_plugin.report.words import counted, points

Tone = Literal["yes", "no", "open", ""]
_MEASURED = {"the bank once more (A/A)": "A/A", "the bank without one item": "without one item"}
_WITHOUT = " Without the gate: not measured here; see Gates for how."
_SCOPE = "The model was a script, and so was what lessons do to it; commands, edits, tests and grading were real."


class Answer(NamedTuple):
    """One card."""

    question: str
    answer: str
    why: str
    tone: Tone = ""
    """Whether it is good news, bad, or open; empty: neither."""


def overview(run: Run) -> list[Answer]:
    """Return the answers a reader gets first. They claim no more than was measured."""
    better = _better(run)
    if run.gates and not run.certificate.taken:
        better = better._replace(why=better.why + _WITHOUT)
    return [better, _how_much(run), _how_sure(run), _cost(run)]


def own_start(card: Answer) -> Answer:
    """Return a card of one of two runs: that it compares a bank with its own start, not with the other run's."""
    question = card.question.replace("Is this bank better", "Is it better than its own start")
    card = card._replace(why=card.why.removesuffix(_WITHOUT))  # that is what the other run may tell
    return card._replace(question=question.replace("By how much", "By how much over its own start"))


def simulation(runs: Sequence[Run]) -> str:
    """Return what has to be said where a scripted model took part, and in which run; empty: in none."""
    scripted = [run.label for run in runs if run.simulated]
    if not scripted:
        return ""
    if len(scripted) == len(runs):
        where, whose = f"in {'this run' if len(runs) == 1 else 'both runs'}", "The numbers show"
    else:
        where, whose = f"in {scripted[0]}, and not in the other run", f"The numbers of {scripted[0]} show"
    if not all(map(scope, (run for run in runs if run.simulated))):
        begins = f"SIMULATION: a scripted model took part {where}."
    else:
        begins = f"SIMULATION {where}: {_SCOPE[:1].lower()}{_SCOPE[1:]}"
    return f"{begins} {whose} what the machinery did; they say nothing about any model."


def scope(run: Run) -> str:
    """Return what was scripted and what was real, where no other model took part; else nothing.

    A ledger alone does not name the model of its rollouts: they have to be on this machine.
    """
    return _SCOPE if run.simulated and len(run.models) == 1 and total(run.spent).rollouts else ""


def signed(rate: float) -> str:
    """Return a rate difference in points, without the word: `+4.2`, `0.0`."""
    said = f"{100 * rate:+.1f}"
    return said if said.strip("+-0.") else "0.0"


def duration(hours: float) -> str:
    """Return a time to read: `3.2 s`, `1:53 min`, `2:05 h`; seconds below one minute."""
    seconds = 3600 * hours
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    number, unit = (round(seconds), "min") if round(seconds) < 3600 else (round(60 * hours), "h")
    return f"{number // 60}:{number % 60:02} {unit}"


def _better(run: Run) -> Answer:
    question = "Is this bank better?"
    accepted = [g for g in run.gates if g.decision == "accept"]
    if run.version and run.checkpoints:
        return _better_held_out(question, run)
    if not run.version:
        judged = f"{counted(len(run.gates), 'proposal')} judged" if run.gates else "no proposal was judged yet"
        return Answer(question, "It is empty", f"{judged}; nothing came in, so agents run as without it.")
    if not accepted:
        why = "Its items were taken without a gate: nothing was measured of them."
        return Answer(question, "Unknown", why, "open")
    safe = [m for m in run.certificate.moves if not m.vacuous and m.floor >= 0]
    why = f"{len(accepted)} of {counted(len(run.gates), 'proposal')} gained enough on the panel to be accepted."
    if len(safe) < len(accepted):
        return Answer(question, "Higher on its own panel, not tested elsewhere", why, "open")
    return Answer(question, "Yes, certified", why, "yes")


def _how_much(run: Run) -> Answer:
    question = "By how much?"
    if run.checkpoints and (run.version or len(run.checkpoints) > 1):
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
    if last.gain is None or (run.version and not last.version):
        return Answer(question, "Unknown", f"{_unread(run)} {_seen(last)}")
    low, high = last.gain
    said = points(low) if low == high else f"{points(low)} to {points(high)}, not final"
    why = (
        f"avg@{last.rollouts} on {counted(last.tasks, 'holdout task')}: {first.low:.1%} at version {first.version}, "
        f"{last.low:.1%} at version {last.version}. Nothing was learned from or judged on these tasks."
    )
    return Answer(question, said, why)


def _better_held_out(question: str, run: Run) -> Answer:
    """What the holdout says decides, whatever the panel said: the gate selected by the panel."""
    last = run.checkpoints[-1]
    if last.gain is None or not last.version:
        why = f"{_unread(run)} The panel selected the accepts, so it cannot tell."
        return Answer(question, "Unknown", why, "open")
    low, high = last.gain
    if low <= 0 <= high:
        same = low == high
        why = "Both versions passed the same share." if same else "Errored rollouts leave the sign open: valve eval."
        return Answer(question, "The same on the holdout" if same else "Unclear on the holdout", why, "open")
    if high < 0:  # said as it was read: only a gain has a certificate
        return Answer(question, "No, lower on the holdout", _about(last), "no")
    gain = run.certificate.gain
    if gain and not gain.vacuous and gain.value > 0:
        return Answer(question, "Yes, on the holdout", _about(last), "yes")
    seen = signs(run)
    chance = "The certificate cannot exclude chance"
    doubted = f"{chance}: {doubt(gain, *seen[:2])}" if gain and seen else f"{chance}."
    why = " ".join(filter(None, [_about(last), moved(run), doubted]))
    return Answer(question, "Higher on the holdout, not certain", why, "open")


def _about(last: Checkpoint) -> str:
    return f"Version {last.version} against version 0 on {counted(last.tasks, 'task')} that decided nothing."


def _unread(run: Run) -> str:
    """Which version's reading is missing."""
    missing = 0 if run.checkpoints[0].version else run.version
    return f"Version {missing} was not evaluated: valve eval."


def _seen(last: Checkpoint) -> str:
    rate = f"{last.low:.1%}" if last.low == last.high else f"{last.low:.1%} to {last.high:.1%}"
    return f"Version {last.version}: {rate} of {counted(last.tasks, 'holdout task')}, avg@{last.rollouts}."


def _how_sure(run: Run) -> Answer:
    held = bool(run.version and run.checkpoints)
    answer, why = how_sure(run.certificate, held=held)
    drawdown, more = run.certificate.drawdown, ""
    if held and run.certificate.gain and drawdown:
        more = of_drawdown(run, drawdown)
    elif not held and run.certificate.moves:
        more = _unread_holdout(run)
    return Answer("How sure?", answer, " ".join(filter(None, [why, more])))


def _unread_holdout(run: Run) -> str:
    begun = any(s.role == "evaluation" and s.rollouts for s in run.spent)
    return "A reading of the holdout was begun, none is complete." if begun else "No holdout was read."


def ran(run: Run) -> bool:
    """Tell whether the ledger, or this machine, knows of any rollout but a person's own."""
    return bool(run.spent or run.columns or run.checkpoints or any(not is_live(p.task_id) for p in run.stream))


def _cost(run: Run) -> Answer:
    question = "At what cost?"
    if not run.spent:
        apart = f" {counted(run.live.attempts, 'live attempt')}: not counted here." if run.live.attempts else ""
        if not ran(run):
            return Answer(question, "Nothing yet", f"No rollout of a stream or a panel ran.{apart}")
        return Answer(question, "Unknown here", f"The rollouts that the ledger names are not on this machine.{apart}")
    own = total(run.spent)
    judging = _judging(run)
    calls = f"; {counted(own.calls, 'extractor call')}" if own.calls else ""
    money = f"${own.usd:,.2f}" if own.usd else "no recorded price"
    clock = f"{duration(run.clock.hours)} by the clock, " if run.clock else ""
    time = f"The run took {clock}{duration(own.hours)} of rollouts one after the other"
    if not own.rollouts:
        time = "Of the run itself nothing is recorded here"
    why = f"{time}; {money}. {judging}{calls}. {evaluated(run) or _unevaluated(run)}"
    answer, why = (text.replace(" min", "\u00a0min") for text in (_rollouts(run), why))  # not torn from its number
    return Answer(question, answer, why)


def _judging(run: Run) -> str:
    """What part of the run's rollouts, and of the time they took one by one, is the gate's."""
    gate = next((s for s in run.spent if s.role == "gate" and s.rollouts), None)
    if gate is None:
        return "Rollouts of its gates are not recorded here" if run.gated else "No gate ran"
    own = total([s for s in run.spent if s.role != "extractor"])
    time = f" and {gate.hours / own.hours:.0%} of the time they took" if own.hours else ""
    return f"{gate.rollouts / own.rollouts:.0%} of the run's rollouts{time} are the gate's"


def _unevaluated(run: Run) -> str:
    """Whether no evaluation ran, or only none is kept here."""
    read = run.checkpoints or any(line.type == "evaluated" for line in run.ledger)
    return "Evaluation: not recorded here." if read else "Evaluation: none."


def _rollouts(run: Run) -> str:
    """How many in all, and how many of them only looked at the run."""
    own, both = total(run.spent).rollouts, everything(run.spent).rollouts
    if own == both:
        hours = run.clock.hours if run.clock else total(run.spent).hours
        return f"{counted(own, 'rollout')}, {duration(hours)}"
    only = f"{both - own:,} only to measure it ({1 - own / both:.0%}: {' + '.join(_apart(run))})"
    return f"{counted(both, 'rollout')}: {own:,} for the run, {only}"


def _apart(run: Run) -> list[str]:
    """What the rollouts that only looked at the run were for: `96 A/A`, `48 holdout`."""
    found = []
    for s in run.spent:
        if s.role == "measurement":
            found += [f"{p.rollouts:,} {_MEASURED.get(p.name, p.name)}" for p in s.phases if p.rollouts]
        elif s.role == "evaluation" and s.rollouts:
            found.append(f"{s.rollouts:,} holdout")
    return found


def evaluated(run: Run) -> str:
    """Return what part of everything the evaluation on the holdout took; empty: none ran."""
    held = next((s for s in run.spent if s.role == "evaluation" and s.rollouts), None)
    if held is None:
        return ""
    both = everything(run.spent)
    time = f", {held.hours / both.hours:.0%} of the time of rollouts" if both.hours else ""
    share = f"{held.rollouts / both.rollouts:.0%} of all{time}"
    return f"Evaluation alone: {counted(held.rollouts, 'rollout')} ({share})."
