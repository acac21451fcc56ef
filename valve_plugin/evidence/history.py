"""A ledger entry as a sentence, and as the data that `valve bank log --json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from valve_plugin.bank import entries
from valve_plugin.records import Conditions, Verdict
from valve_plugin.words import outcome_word, plural

if TYPE_CHECKING:
    from valve_plugin.evidence.summary import Savings


def words(entry: entries.Entry, gates: Mapping[str, Savings] = {}, fallen: Mapping[str, Sequence[str]] = {}) -> str:
    """Return one sentence on what happened.

    Args:
        gates: what each proposal's gate saved.
        fallen: the tasks that each accepted proposal makes worse; see `summary.fallen_by_accept`.
    """
    match entry:
        case entries.Opened(repo=repo):
            return f"opened the bank of {repo}"
        case entries.PanelFixed(panel=panel):
            size = f"{plural(len(panel.tasks), 'task')} x {plural(panel.rollouts, 'rollout')}"
            return f"fixed a panel of {size}, margin {panel.rho}"
        case entries.EpochOpened():
            return _opened(entry)
        case entries.Baseline(result=result):
            agent = f" by {entry.agent}" if entry.agent else ""
            measured = f"{result.passes} of {len(result.outcomes)} panel rollouts passed"
            return f"measured the current bank{agent}: {measured}"
        case entries.Remeasured(result=result):
            return f"measured the current bank again (A/A): {result.passes} of {len(result.outcomes)} rollouts passed"
        case entries.LeftOut():
            return _left_out(entry)
        case entries.Proposed():
            return _proposed(entry)
        case entries.Judged(verdict=verdict):
            gate = gates.get(verdict.proposal_id) if verdict.decision == "reject" else None
            worse = ", ".join(fallen.get(verdict.proposal_id, ())) if verdict.decision == "accept" else ""
            late = gate.ran - verdict.ran if gate else 0
            beside = f"; {late} more ended before the verdict stopped them" if late > 0 else ""
            return f"{brief(verdict)}{beside}{f'; {gate}' if gate else ''}{f'; worse: {worse}' if worse else ''}"
        case entries.Taken() | entries.OwnerAct():
            return _unjudged(entry)
        case entries.Evaluated():
            results = Counter(o.outcome for o in entry.outcomes)
            what = f"version {entry.version}" + (f", {entry.only[0]} {entry.only[1]} alone" if entry.only else "")
            passed = f"{results['resolved']} of {plural(len(entry.outcomes), 'rollout')} passed"
            lost = f", {results['errored']} lost to errors, so not final" if results["errored"] else ""
            return f"read the holdout for {what}: {passed} on {plural(len(entry.holdout), 'task')}{lost}"
    return type(entry).__name__


def _unjudged(entry: entries.Taken | entries.OwnerAct) -> str:
    if isinstance(entry, entries.Taken):
        return f"took {entry.proposal_id} without a gate"
    old = [f"{kind} {name}" for kind, name in entry.removes]
    new = [f"{item.kind} {item.name}" for item in entry.items]
    if entry.act == "undo":
        what = f"went back to version {entry.undo_to}"
    elif entry.act == "rename":
        what = f"renamed {old[0]} to {entry.items[0].name}"
    else:
        again = [name for name in new if name in old]
        gone = [name for name in old if name not in new]
        parts = {"added": [n for n in new if n not in old], "changed": again, "removed": gone}
        what = "; ".join(f"{verb} {', '.join(names)}" for verb, names in parts.items() if names)
        what = f"merged: {what}" if entry.act == "merge" else what
    return f"owner {what} (not judged): {entry.reason}"


def _opened(entry: entries.EpochOpened) -> str:
    asked = entry.conditions or Conditions()
    beyond = ", accepts repeated on fresh rollouts" if asked.confirm else ""
    beyond += f", no task {plural(asked.guard, 'pass', 'passes')} fewer" if asked.guard else ""
    if asked.fresh:
        beyond += f", the bank measured anew after each accept and every {plural(asked.fresh, 'query', 'queries')}"
    why = f": {entry.reason}" if entry.reason else ""
    queries = plural(entry.horizon, "gate query", "gate queries")
    return f"opened epoch {entry.epoch} for {queries} at delta {entry.delta}{beyond}{why}"


def facts(
    number: int, entry: entries.Entry, gates: Mapping[str, Savings] = {}, fallen: Mapping[str, Sequence[str]] = {}
) -> dict[str, Any]:
    """Return the entry as plain data, with its number and its sentence, and what a gate saved; see `words`."""
    from valve_plugin.codec import plain

    gate = gates.get(entry.verdict.proposal_id) if isinstance(entry, entries.Judged) else None
    saved = {"rollouts_saved": gate.rollouts, "usd_saved": gate.usd} if gate else {}
    return {"number": number, "words": words(entry, gates, fallen), **saved, **plain(entry)}


def brief(verdict: Verdict) -> str:
    """Return a verdict in a few words."""
    total, wanted = verdict.n_tasks * verdict.rollouts, f"{_signed(verdict.needed)} needed"
    fresh = total - len(verdict.reused)
    details = [f"net passes {net_passes(verdict)}, {wanted}", f"{verdict.ran} of {plural(fresh, 'rollout')}"]
    if verdict.confirming:
        details[0] = f"net passes {_signed(verdict.first_net)} at first, {net_passes(verdict)} when repeated, {wanted}"
        details[1] = f"{verdict.ran} of {plural(2 * fresh, 'rollout')}"
    if verdict.decision == "reject" and verdict.net[1] >= verdict.needed and verdict.conditions:
        details.append(f"a task passed {verdict.conditions.guard} or more rollouts fewer")
    if len(verdict.reused) == total:
        details.append("no panel task would get another context")
    elif verdict.reused:
        details.append(f"{plural(len(verdict.reused), 'outcome')} kept where the notes stay the same")
    if lost := sum(o.outcome == "errored" for o in (*verdict.outcomes, *(verdict.confirming or ()))):
        details.append(f"{lost} lost to errors")
    where = f"query {verdict.query} of epoch {verdict.epoch}"
    return f"{verdict.decision} {verdict.proposal_id}: {', '.join(details)} ({where})"


def net_passes(verdict: Verdict) -> str:
    """Return the net gain in passes: an interval where rollouts were not run or got lost."""
    low, high = verdict.net
    return _signed(low) if low == high else f"{_signed(low)} to {_signed(high)}"


def _left_out(entry: entries.LeftOut) -> str:
    what = f"measured the panel without {entry.without[0]} {entry.without[1]}"
    if not entry.outcomes:
        return f"{what}: it changes no context there"
    tasks = plural(len({o.task_id for o in entry.outcomes}), "task")
    ran, passed = plural(len(entry.outcomes), "rollout"), sum(o.outcome == "resolved" for o in entry.outcomes)
    return f"{what}: {passed} of {ran} passed on the {tasks} it changes"


def _signed(number: int) -> str:
    return f"{number:+}" if number else "0"


def _proposed(entry: entries.Proposed) -> str:
    proposal = entry.proposal
    results = Counter(note.outcome for note in entry.attempts)
    seen = ", ".join(f"{n} {outcome_word(outcome)}" for outcome, n in sorted(results.items()))
    source = f"from {proposal.task_id} ({seen})" if seen else f"from {proposal.task_id}"
    parts = [f"{item.kind} {item.name}" for item in proposal.items]
    parts += [f"without {kind} {name}" for kind, name in proposal.removed]
    parts += [f"support for {merge.kind} {merge.name}" for merge in proposal.merges]
    dropped = f"; {plural(len(proposal.suppressed), 'near-duplicate')} left out" if proposal.suppressed else ""
    dropped += "".join(f"; {w.kind} {w.name} withheld: {w.why}" for w in proposal.withheld)
    if proposal.empty:
        reason = f" ({proposal.reason})" if proposal.reason else ""
        return f"proposal {proposal.id} {source}: nothing to judge{reason}{dropped}"
    return f"proposal {proposal.id} {source}: {', '.join(parts)}{dropped}"
