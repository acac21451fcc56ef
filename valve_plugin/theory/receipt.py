"""Deciding a stored verdict anew, from the outcomes it holds and those the current bank had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from valve_plugin.records import Conditions, Decision, PanelOutcome, Verdict
from valve_plugin.theory.gate import canonical_cells, needed_passes, passes, stage, unknown


def recompute(verdict: Verdict, current: Sequence[PanelOutcome]) -> list[str]:
    """Return what is wrong with a stored verdict, given the outcomes the current bank had then; empty when sound.

    Recomputes the margin, the canonical order of the outcomes, the counts, that they are the shortest decisive
    prefix for the decision that was written, and the same for the rollouts that had to confirm an accept.
    """
    problems = _misplaced(verdict, current)
    if problems:  # the sums below would be about something else
        return problems
    judged = [o.outcome for o in verdict.outcomes]
    needed = needed_passes(verdict.rho, verdict.n_tasks, verdict.rollouts)
    asked = verdict.conditions or Conditions()
    decision, problems = _measurement(verdict, verdict.outcomes, current, needed, asked.guard)
    confirming = verdict.confirming
    if decision == "accept" and asked.confirm:
        if confirming:
            decision, more = _measurement(verdict, confirming, current, needed, asked.guard)
            problems += [f"confirming: {problem}" for problem in more]
        else:
            problems.append("an apparent accept that was not repeated, though its epoch asks for it")
    elif confirming:
        problems.append(f"{len(confirming)} confirming outcomes, where nothing was to be repeated")
    expected = {
        "needed": needed,
        "current_passes": passes([o.outcome for o in current]),
        "candidate_passes": passes(judged),
        "unknown": unknown(judged),
        "decision": decision,
    }
    stated = {name: getattr(verdict, name) for name in expected}
    problems += [
        f"{name} is {stated[name]!r}, its outcomes give {value!r}"
        for name, value in expected.items()
        if stated[name] != value
    ]
    return problems


def _measurement(
    verdict: Verdict, outcomes: Sequence[PanelOutcome], current: Sequence[PanelOutcome], needed: int, guard: int
) -> tuple[Decision, list[str]]:
    """What one measurement of the candidate decides, and what is wrong with its length."""
    candidate = [*verdict.reused, *outcomes]
    decision, length = stage(current, candidate, needed, guard)
    if decision == "reject" and outcomes and length != len(candidate):
        return decision, [f"{len(outcomes)} outcomes, but fewer decide already: not the shortest decisive prefix"]
    if decision == "indecisive" and len(candidate) < len(current):
        missing = len(current) - len(candidate)
        return decision, [f"indecisive, but {missing} of {len(current)} rollouts were not run"]
    return decision, []


def _misplaced(verdict: Verdict, current: Sequence[PanelOutcome]) -> list[str]:
    """Whether the outcomes are cells of the panel, in canonical order, at all."""
    reused = {o.task_id for o in verdict.reused}
    confirming = verdict.confirming or ()
    fresh = [task for task in verdict.order if task not in reused]
    first = {o.task_id: o.ordinal for o in reversed(verdict.outcomes)}
    cells = canonical_cells(fresh, verdict.rollouts, {task: first.get(task, 0) for task in fresh})
    again = [(task, ordinal + verdict.rollouts) for task, ordinal in cells]
    checks = {
        f"order does not name {verdict.n_tasks} different tasks": (
            len(verdict.order) == len(set(verdict.order)) == verdict.n_tasks
        ),
        f"the current bank does not have {verdict.rollouts} outcomes for each task of the order": (
            Counter(o.task_id for o in current) == dict.fromkeys(verdict.order, verdict.rollouts)
        ),
        "reused outcomes are not those the current bank has": (
            verdict.reused == tuple(o for o in current if o.task_id in reused)
        ),
        "reuses current outcomes, which pairing 'paper' never does": not reused or verdict.pairing == "deployed",
        "outcomes are not a prefix of the panel in canonical order": _begins(verdict.outcomes, cells),
        "confirming outcomes do not continue the first ones in canonical order": _begins(confirming, again),
        "one task was judged under two contexts": _one_context((*verdict.outcomes, *confirming)),
    }
    return [problem for problem, holds in checks.items() if not holds]


def _begins(outcomes: Sequence[PanelOutcome], cells: Sequence[tuple[str, int]]) -> bool:
    return [(o.task_id, o.ordinal) for o in outcomes] == list(cells[: len(outcomes)])


def _one_context(outcomes: Sequence[PanelOutcome]) -> bool:
    return len({(o.task_id, o.context_hash) for o in outcomes}) == len({o.task_id for o in outcomes})
