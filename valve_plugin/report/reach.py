"""How far the panel's score still is from full, and which rejects that alone explains. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile

from valve_plugin.report.measured_tasks import passed
from valve_plugin.report.overview import signed
from valve_plugin.report.provenance import listed
from valve_plugin.report.run import Column, Gate, Run
from valve_plugin.report.words import counted
from valve_plugin.theory.gate import needed_passes

FULL = 0.95
"""Share of the panel's rollouts from which on an accept can hardly be reached: one in twenty may still fail."""

SELECTED = "measured on the tasks that selected it, so it flatters"


def required(gate: Gate) -> tuple[int, int]:
    """Return how many passes an accept needed at a gate, and of how many."""
    of = gate.total // (2 if gate.again else 1)
    return gate.reference + round(gate.margin * of), of


def capped(gate: Gate) -> str:
    """Return what a reject with little room needed: `little room: 24 of 24 needed`; empty: it was no such reject."""
    needed, of = required(gate)
    return f"little room: {needed} of {of} needed" if gate.decision == "reject" and needed >= FULL * of else ""


def ceiling(run: Run) -> str:
    """Return which gates rejected where hardly any candidate could be accepted, the panel's ceiling; empty: none."""
    gates = [g for g in run.gates if capped(g)]
    if not gates:
        return ""
    who = f"Gate{'s' * (len(gates) > 1)} {listed(g.number for g in gates)}"
    asked = {required(g) for g in gates}
    what = f"{_of(asked.pop())} passes" if len(asked) == 1 else f"{FULL:.0%} or more of the panel's passes"
    what += ", twice" * all(g.epoch in _confirming(run) for g in gates)
    return (
        f"{who} rejected where an accept needed {what}: the panel left hardly any room to improve, and a reject there "
        "does not show that the items are bad."
    )


def left(run: Run) -> list[str]:
    """Return what the current reference leaves to gain, and whether it is higher than the same bank measured again."""
    if not run.panel or not run.scores or not _stands(run):
        return []
    stands, of = run.scores[-1].passes, run.scores[-1].rollouts
    needed = needed_passes(run.panel.rho, run.panel.tasks, run.panel.rollouts)
    fit = (of - stands) // needed
    said = f"Now {stands} of {of} passes stand, and the margin is {counted(needed, 'pass', 'passes')}"
    if not fit:
        return [f"{said}: no further accept fits on this panel.", *_lucky(stands, repeats(run.columns))]
    twice = ", twice, as accepts have to repeat" * (_epoch(run) in _confirming(run))
    more = f"a next accept needs {stands + needed} of {of}{twice}, and at most {counted(fit, 'more accept')} can fit"
    return [f"{said}: {more}.", *filter(None, [unreached(run)]), *_lucky(stands, repeats(run.columns))]


def unreached(run: Run) -> str:
    """Return that no repeat of the bank reached what a next accept needs, and what to do; else nothing."""
    again = repeats(run.columns)
    if not run.panel or not run.scores or not _stands(run) or not again:
        return ""
    asked = run.scores[-1].passes + needed_passes(run.panel.rho, run.panel.tasks, run.panel.rollouts)
    if max(again) >= asked or asked > run.scores[-1].rollouts:
        return ""
    told = ", ".join(map(str, again))
    twice = " twice" * (_epoch(run) in _confirming(run))
    return (
        f"A next accept needs {asked} of {run.scores[-1].rollouts} passes{twice}; measured again unchanged the bank "
        f"never got there ({told}). `valve plan` says how large a panel would tell; a larger one takes a bank of its "
        "own. `valve evolve --new-epoch` keeps the tasks and measures the reference afresh."
    )


def repeats(columns: Sequence[Column]) -> list[int]:
    """Return the passes of the measurements of the current reference's bank that were made for their own sake."""
    found: list[int] = []
    for column in columns:
        if column.kind == "measurement":
            found.append(passed(column))
        elif column.kind == "baseline" or column.decision == "accept":
            found = []
    return found


def chance(run: Run) -> str:
    """Return which accepts gained no more than an unchanged bank's readings differ by, and which did."""
    version, wide, read = _widest(run)
    accepts = [g for g in run.gates if g.decision == "accept"]
    if not read or not accepts:
        return ""
    told = []
    for word, above in (("within", False), ("above", True)):
        gates = [g for g in accepts if (g.low > wide + 1e-9) is above]
        if gates:
            told.append(f"{', '.join(map(_named, gates))} {'is' if len(gates) == 1 else 'are'} {word} that")
    apart = f"version {version} ({read}), differ by up to {100 * wide:.1f} points"
    return f"Readings of one unchanged bank, {apart}: {'; '.join(told)}."


def _widest(run: Run) -> tuple[int, float, str]:
    """Return the version whose complete readings lie furthest apart, by how much, and these; empty: none has two.

    What an accept measured is a reading of the bank that it led to, and one that was selected for being high.
    """
    moves = _moves(run)
    groups: dict[tuple[int, frozenset[str], int], list[Column]] = defaultdict(list)
    for c in run.columns:
        ran = [r.outcome for cell in c.cells for r in cell.rollouts]
        if (c.kind != "gate" or c.decision == "accept") and "errored" not in ran:
            groups[sum(m <= c.line for m in moves), frozenset(cell.task_id for cell in c.cells), len(ran)].append(c)
    widest = (0, -1.0, "")
    for (version, _, of), group in groups.items():
        passes = list(map(passed, group))
        wide = (max(passes) - min(passes)) / (of or 1)
        if len(group) > 1 and wide > widest[1]:
            own = ", its accept's own among them" * any(c.kind == "gate" for c in group)
            widest = version, wide, f"{', '.join(map(str, passes))} of {of}{own}"
    return widest


def caveat(run: Run, gate: Gate) -> str:
    """Return what takes off an accept's gain: the bank measured again, else how it was selected; empty: no accept."""
    return repeated(run, gate) or (SELECTED if gate.decision == "accept" else "")


def repeated(run: Run, gate: Gate) -> str:
    """Return what measuring an accept's bank again leaves of its gain; empty: nothing did, or it is no accept.

    An accept is selected by its measurement, so the mean of the repeats, on which nothing was selected, says more.
    """
    again = _repeats_of(run.columns, gate) if gate.decision == "accept" else []
    if not again:
        return ""
    mean, of = sum(again) / len(again), required(gate)[1]
    said = f"measured once more, version {gate.version} passes {again[0]} of {of}"
    if len(again) > 1:
        said = f"measured {len(again)} more times, version {gate.version} passes {mean:.1f} of {of} in the mean"
    gain = signed((mean - gate.reference) / of)
    return f"{said}, {gain} points over its reference ({gate.reference}): probably nearer the truth{_base(run, gate)}"


def _base(run: Run, gate: Gate) -> str:
    """Return that an accept's reference is one of its bank's readings; empty: there is but one.

    The accept was selected by its distance to that very reading, so a low one favours it.
    """
    read = _readings(run, gate)
    if len(read) < 2:
        return ""
    told = ", ".join(map(str, read))
    return f"; the reference is one of {len(read)} readings of its bank ({told}), so chance is in it too"


def _readings(run: Run, gate: Gate) -> list[int]:
    """Passes of every measurement of the bank that a gate's candidate was judged against, on the same tasks."""
    moves = _moves(run)
    before = sum(move < gate.line for move in moves)
    tasks = next(({cell.task_id for cell in c.cells} for c in run.columns if c.line == gate.line), set())
    return [
        passed(c)
        for c in run.columns
        if (c.kind != "gate" or c.decision == "accept")
        and sum(move <= c.line for move in moves) == before
        and {cell.task_id for cell in c.cells} == tasks
    ]


def _moves(run: Run) -> list[int]:
    """Ledger lines that made a new version."""
    return [
        line.number
        for line in run.ledger
        if line.type == "taken" or (line.type == "judged" and line.data["verdict"]["decision"] == "accept")
    ]


def _repeats_of(columns: Sequence[Column], gate: Gate) -> list[int]:
    """Passes of the measurements of the bank that an accept led to, as long as it was the reference."""
    places = [n for n, c in enumerate(columns) if c.line == gate.line]
    later = columns[places[-1] + 1 :] if places else ()
    mine = takewhile(lambda c: c.kind != "baseline" and c.decision != "accept", later)
    return [passed(c) for c in mine if c.kind == "measurement"]


def _named(gate: Gate) -> str:
    return f"gate {gate.number}'s {signed(gate.low)}{' when repeated' * (gate.first is not None)}"


def _confirming(run: Run) -> set[int]:
    """Epochs whose accepts have to repeat."""
    opened = (line.data for line in run.ledger if line.type == "epoch_opened")
    return {data["epoch"] for data in opened if data.get("conditions", {}).get("confirm")}


def _epoch(run: Run) -> int:
    return sum(line.type == "epoch_opened" for line in run.ledger)


def _lucky(stands: int, again: Sequence[int]) -> list[str]:
    if not again or stands <= sum(again) / len(again):  # an accept was selected for being high
        return []
    mean = sum(again) / len(again)
    what = f"a repeated measurement of the same bank ({again[0]})"
    if len(again) > 1:
        told = ", ".join(map(str, again))
        what = f"the mean of {len(again)} repeated measurements of the same bank ({told}; mean {mean:.1f})"
    return [
        f"The reference ({stands}) is above {what}: chance may have raised it, and a candidate has to beat that too."
    ]


def _stands(run: Run) -> bool:
    """Whether the last epoch has its baseline, so that the last score is its reference."""
    last = {line.type: line.number for line in run.ledger}
    return last.get("baseline", 0) > last.get("epoch_opened", 0)


def _of(asked: tuple[int, int]) -> str:
    return f"{asked[0]} of {asked[1]}"
