"""What became of every item and of every stream task's proposal, and at which gate. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.extract.reflect import NOTHING
from valve_plugin.report.gains import at_best, bounded, gain
from valve_plugin.report.provenance import listed
from valve_plugin.report.reach import capped, caveat
from valve_plugin.report.run import Gate, Proposed, Run, StreamPoint
from valve_plugin.report.words import counted

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_REASON = 300


class Judgement(NamedTuple):
    """One gate that an item was before."""

    gate: int
    decision: str
    line: int
    why: str


class Fate(NamedTuple):
    """One item's way: its gates, with those of the tries it stands for, and the other proposals with the same text."""

    gates: list[Judgement]
    times: str
    """`rejected twice: gates 1 and 2`, where it stands for others; else empty."""
    tries: str
    """`third try; rejected at gates 4 and 7`; empty: proposed once."""
    others: list[int]
    """Places of the other tries in the list of items."""


def fates(run: Run) -> list[Fate]:
    """Return what is said about each item, in the order of `run.items`."""
    judged: dict[str, list[Gate]] = defaultdict(list)
    for gate in run.gates:
        judged[gate.proposal_id].append(gate)
    same: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, item in enumerate(run.items):
        if item.text or item.markdown:
            same[item.kind, item.text, item.markdown].append(place)
    found = []
    for place, item in enumerate(run.items):
        mine = same.get((item.kind, item.text, item.markdown), [place])
        before = [run.items[other] for other in mine if other < place]
        others = [other for other in mine if other != place]
        gates = _before(item, judged)
        found.append(
            Fate(
                gates=[_judgement(g, caveat(run, g)) for g in gates],
                times=_times(gates) if item.earlier else "",
                tries=_tries(before, judged) if others else "",
                others=others,
            )
        )
    return found


class Step(NamedTuple):
    """What came of one stream task."""

    said: str
    line: int | None = None
    """The ledger line that says so."""


def steps(run: Run) -> list[Step]:
    """Return what came of each stream task's attempts, in stream order."""
    proposed = {line.data["proposal"]["task_id"]: line.number for line in run.ledger if line.type == "proposed"}
    judged = {g.task_id: g for g in run.gates}
    return [_step(p, run, proposed.get(p.task_id), judged.get(p.task_id)) for p in run.stream]


def _step(point: StreamPoint, run: Run, line: int | None, gate: Gate | None) -> Step:
    if line is None:
        if not point.graded:
            return Step("every attempt errored")
        mixed = 0 < point.passed < point.graded
        return Step(
            "no proposal recorded" if mixed else f"nothing to contrast: {'all' if point.passed else 'none'} resolved"
        )
    if gate:
        word = {"accept": "accepted", "reject": "rejected", "indecisive": "left open"}[gate.decision]
        return Step(f"{word} at gate {gate.number}", gate.line)
    if point.accepted:
        return Step("taken, unjudged", line)
    return Step(_empty(run.ledger[line - 1].data["proposal"]), line)


def _empty(proposal: dict[str, object]) -> str:
    """Why a proposal was not judged: its own reason, else what was left of it."""
    if proposal.get("items") or proposal.get("removes"):
        return "waiting for a gate"
    drafts = [part for part in ("withheld", "suppressed", "merges") if proposal.get(part)]
    if (reason := proposal.get("reason")) and (drafts or reason == NOTHING):
        return f"nothing to judge: {str(reason)[:_REASON]}"
    if reason:  # its line in the ledger says why
        return "no proposal: the extractor's answer was unusable"
    if drafts:
        return "everything withheld" if "withheld" in drafts else "only duplicates"
    return "nothing to learn"


def _judgement(gate: Gate, less: str) -> Judgement:
    needed = f"margin {100 * gate.margin:.1f}"
    margin = f"{gain(gate, ' points')}, {needed}"
    passes = gate.total // (2 if gate.again else 1)
    why = {
        "accept": f"{margin}: {counted(round(gate.low * passes), 'rollout')} of {passes} more",
        "reject": f"{at_best(gate)}, {needed}"
        if bounded(gate)
        else f"{margin}: less than the margin, or a condition beyond it was not met",
        "indecisive": f"{margin}: {counted(gate.unknown, 'rollout')} errored, so it is open",
    }[gate.decision]
    whole = f"; one verdict for {len(gate.items)} items together" if len(gate.items) > 1 else ""
    room = f"; {low}" if (low := capped(gate)) else ""
    return Judgement(gate.number, gate.decision, gate.line, f"{why}{f'; {less}' * bool(less)}{room}{whole}")


def _tries(before: Sequence[Proposed], judged: dict[str, list[Gate]]) -> str:
    number = sum(item.tries for item in before)
    nth = _ORDINALS[number] if number < len(_ORDINALS) else f"{number + 1}th"
    gates = [g for item in before for g in _before(item, judged)]
    parts = [f"{nth} try"]
    for decision, word in (("reject", "rejected"), ("accept", "accepted"), ("indecisive", "left open")):
        if numbers := [g.number for g in gates if g.decision == decision]:
            parts.append(f"{word} at {_gates(numbers)}")
    return "; ".join(parts)


def _before(item: Proposed, judged: dict[str, list[Gate]]) -> list[Gate]:
    """The gates that an item was before, in all its tries."""
    return [] if item.why else [g for id_ in (*item.earlier, item.proposal_id) for g in judged[id_]]


def _times(gates: Sequence[Gate]) -> str:
    numbers = [g.number for g in gates if g.decision == "reject"]
    return f"rejected {'twice' if len(numbers) == 2 else f'{len(numbers)} times'}: {_gates(numbers)}"


def _gates(numbers: Sequence[int]) -> str:
    return f"gate{'s' * (len(numbers) > 1)} {listed(numbers)}"
