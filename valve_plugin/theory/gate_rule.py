"""The gate's rule in integers: margin, verdict, exact early stopping, and the check of a stored verdict.

A gate compares N * r rollouts of the candidate bank with the N * r outcomes carried for the current one.
Everything here is a function of outcomes in *canonical order*: tasks in the order fixed when the gate
started, the r rollouts of a task in a row.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from valve_plugin.errors import ConfigError
from valve_plugin.records import Conditions, Decision, Outcome, PanelOutcome, Verdict
from valve_plugin.theory.panel_order import canonical_cells

FRESH_QUERIES = 15
"""Gate queries in which a panel task's outcomes serve, in the fresh protocol; 10 or 30 learn as much in simulations."""
_MAX_DECIMALS = 50  # "1e-999999999" is a number too, and exact arithmetic on it never ends


def needed_passes(rho: str, n_tasks: int, rollouts: int) -> int:
    """Return ceil(rho * N * r): the net additional passes an accept takes.

    Args:
        rho: margin as decimal text. Parsed exactly: through a float, 0.02 * 150 would need 4 instead of 3.
        n_tasks: N, panel tasks.
        rollouts: r, rollouts per task and condition.

    Raises:
        ConfigError: rho is not a finite decimal between 0 and 1.

    Source: eq:gate, eq:impl-acceptance, both sides multiplied by N * r.
    """
    try:
        margin = Decimal(rho)
    except InvalidOperation:
        margin = Decimal("NaN")
    sane = len(rho) <= _MAX_DECIMALS and margin.is_finite() and margin.adjusted() > -_MAX_DECIMALS
    if not (sane and 0 <= margin < 1):
        raise ConfigError(f"rho is {rho!r}, expected a decimal between 0 and 1, like 0.02")
    return math.ceil(Fraction(margin) * n_tasks * rollouts)


def margin_of(needed: int, total: int) -> str:
    """Return the shortest decimal margin that takes exactly `needed` net passes of `total` rollouts."""
    for digits in range(2, 12):
        scale = 10**digits
        margin = f"0.{min(needed * scale // total, scale - 1):0{digits}d}"  # rounded down: needed_passes rounds up
        if needed_passes(margin, total, 1) == needed:
            return margin
    raise ValueError(f"no decimal margin requires {needed} of {total}")


def margin(rho: str, n_tasks: int, rollouts: int, protocol: str = "fresh") -> str:
    """Return a margin as decimal text: "auto" is one pass more on this panel, 0.02 in the paper's protocol."""
    if rho != "auto":
        return rho
    return "0.02" if protocol == "paper" else margin_of(1, n_tasks * rollouts)


def count_passes(outcomes: Sequence[Outcome]) -> int:
    """Return how many outcomes are resolved."""
    return outcomes.count("resolved")


def count_errored(outcomes: Sequence[Outcome]) -> int:
    """Return how many outcomes are errored: neither a pass nor a failure."""
    return outcomes.count("errored")


def gain_bounds(current: Sequence[Outcome], candidate: Sequence[Outcome]) -> tuple[int, int]:
    """Return the least and greatest net additional passes still possible, in rollouts.

    Errored outcomes of either side, and candidate outcomes not there yet, count as both values.

    Raises:
        ValueError: more candidate outcomes than current ones.
    """
    missing = len(current) - len(candidate)
    if missing < 0:
        raise ValueError(
            f"{len(candidate)} candidate outcomes, expected at most the {len(current)} of the current bank"
        )
    gain = count_passes(candidate) - count_passes(current)
    return gain - count_errored(current), gain + count_errored(candidate) + missing


def decide(current: Sequence[Outcome], candidate: Sequence[Outcome], needed: int) -> Decision:
    """Return what the outcomes known so far say about the proposal.

    `reject` as soon as no completion can reach the margin; `accept` when every outcome is known and it is
    reached; else `indecisive`. An accept waits for all outcomes even when it is certain, because they
    become the current ones of the next gate.

    Args:
        current: N * r outcomes of the current bank.
        candidate: the candidate's, at most as many; what is missing is not run yet.
        needed: from `needed_passes`.

    Source: eq:gate with score carry-forward (app:impl-validate).
    """
    _, high = gain_bounds(current, candidate)
    if high < needed:
        return "reject"
    complete = len(candidate) == len(current) and not count_errored(current) and not count_errored(candidate)
    return "accept" if complete else "indecisive"


def decisive_prefix(current: Sequence[Outcome], candidate: Sequence[Outcome], needed: int) -> int | None:
    """Return the length of the shortest prefix of `candidate` that decides, or None while none does.

    Which rollouts ran beyond it (because several workers were ahead) changes nothing in a verdict.
    """
    _, high = gain_bounds(current, ())
    for length, outcome in enumerate(candidate):
        if high < needed:
            return length
        high -= outcome == "unresolved"  # the only outcome that takes a possible pass away
    return len(candidate) if decide(current, candidate, needed) != "indecisive" else None


def guard_prefix(current: Sequence[PanelOutcome], candidate: Sequence[PanelOutcome], guard: int) -> int | None:
    """Return after how many candidate outcomes some task is certain to pass `guard` rollouts fewer than it did.

    None while none is, and always for guard 0. Errored outcomes of either side count as both values.

    Args:
        current: all outcomes of the current bank, r per task.
        candidate: the candidate's in canonical order, as far as they are known.
        guard: rollouts a task may not lose, 0 to r.
    """
    if not guard:
        return None
    runs = Counter(o.task_id for o in current)
    passed = Counter(o.task_id for o in current if o.outcome == "resolved")
    spare = {task: r + guard - passed[task] for task, r in runs.items()}  # the failure that makes the fall certain
    for length, o in enumerate(candidate, start=1):
        spare[o.task_id] -= o.outcome == "unresolved"
        if not spare[o.task_id]:
            return length
    return None


def fallen_tasks(current: Sequence[PanelOutcome], candidate: Sequence[PanelOutcome]) -> dict[str, tuple[int, int]]:
    """Return the tasks that lose at least two passes, or their only one: id -> (passes before, passes after).

    One pass more or less is common between two measurements of the same bank. Errored outcomes count as failures.

    Args:
        current: all outcomes of the current bank, r per task.
        candidate: all outcomes of the candidate.
    """
    runs = Counter(o.task_id for o in current)
    before, after = (Counter(o.task_id for o in side if o.outcome == "resolved") for side in (current, candidate))
    return {t: (before[t], after[t]) for t, r in runs.items() if before[t] - after[t] >= min(2, r)}


def bet_needed(horizon: int, false_accepts: float) -> int:
    """Return what an accept's bet has to multiply its stake by: T / k, rounded up; 0 where k is 0, for no bet.

    Then an epoch of T queries accepts at most k proposals that do not help, in expectation; so with probability 1 - k
    none at all, for k < 1. A proposal that does not help multiplies the stake by T / k with probability k / T at most
    (Markov), whatever was seen before it, because both sides of its comparison are measured anew.

    Args:
        horizon: T, gate queries declared in advance.
        false_accepts: k.
    """
    return math.ceil(horizon / Fraction(str(false_accepts))) if false_accepts else 0


def bet_reaches(better: int, worse: int, needed: int) -> bool:
    """Return whether bets on the pairs of rollouts that differ, an average over ten, multiply the stake by `needed`.

    A pair's difference d multiplies the stake by 1 + bet * d. Rollouts are independent, so the expected product is
    the product of 1 + bet * E[d], at most (1 + bet * the mean of E[d]) to the number of pairs: at most 1 where the
    panel's mean does not rise, however unequal its tasks and however few of them change.

    Source: the capital of `confidence_sequence.log_capital` at mean 0, in integers: its bets are 1/11, ..., 10/11.
    """
    capital: int = sum((11 + bet) ** better * (11 - bet) ** worse for bet in range(1, 11))
    return capital >= 10 * needed * int(11 ** (better + worse))


def bet_prefix(current: Sequence[PanelOutcome], candidate: Sequence[PanelOutcome], needed: int) -> int | None:
    """Return after how many candidate outcomes the bet can no longer reach `needed`; None while it can.

    A task's outcomes are paired in order. Errored outcomes of either side count as the best for the candidate.
    """
    before: defaultdict[str, deque[bool]] = defaultdict(deque)
    for o in current:
        before[o.task_id].append(o.outcome == "resolved")
    better, worse = sum(not passed for passes in before.values() for passed in passes), 0
    if not bet_reaches(better, worse, needed):
        return 0
    for length, o in enumerate(candidate, start=1):
        passed = before[o.task_id].popleft()
        if o.outcome == "unresolved":
            better, worse = better - (not passed), worse + passed
            if not bet_reaches(better, worse, needed):
                return length
    return None


def decide_measurement(
    current: Sequence[PanelOutcome], candidate: Sequence[PanelOutcome], needed: int, guard: int = 0, bet: int = 0
) -> tuple[Decision, int | None]:
    """Return what one measurement of the candidate says, and the length of its shortest prefix that says so.

    As `decide` and `decisive_prefix`, but that a task which falls by `guard` passes is a rejection too, and so is a bet
    that falls short. The length is None while nothing is decided.
    """
    now, then = [o.outcome for o in current], [o.outcome for o in candidate]
    ends = [guard_prefix(current, candidate, guard), bet_prefix(current, candidate, bet) if bet else None]
    if ends == [None, None]:
        return decide(now, then, needed), decisive_prefix(now, then, needed)
    return "reject", min(end for end in (*ends, decisive_prefix(now, then, needed)) if end is not None)


def recompute(verdict: Verdict, current: Sequence[PanelOutcome]) -> list[str]:
    """Return what is wrong with a stored verdict, given the outcomes the current bank had then; empty when sound.

    Recomputes the margin, the canonical order of the outcomes, the counts, that they are the shortest decisive
    prefix for the decision that was written, and the same for the rollouts that had to confirm an accept.
    """
    problems = _order_problems(verdict, current)
    if problems:  # the sums below would be about something else
        return problems
    judged = [o.outcome for o in verdict.outcomes]
    needed = needed_passes(verdict.rho, verdict.n_tasks, verdict.rollouts)
    asked = verdict.conditions or Conditions()
    decision, problems = _check_measurement(verdict, verdict.outcomes, current, needed, asked)
    confirming = verdict.confirming
    if decision == "accept" and asked.confirm:
        if confirming:
            decision, more = _check_measurement(verdict, confirming, current, needed, asked)
            problems += [f"confirming: {problem}" for problem in more]
        else:
            problems.append("an apparent accept that was not repeated, though its epoch asks for it")
    elif confirming:
        problems.append(f"{len(confirming)} confirming outcomes, where nothing was to be repeated")
    expected = {
        "needed": needed,
        "current_passes": count_passes([o.outcome for o in current]),
        "candidate_passes": count_passes(judged),
        "unknown": count_errored(judged),
        "decision": decision,
    }
    stated = {name: getattr(verdict, name) for name in expected}
    problems += [
        f"{name} is {stated[name]!r}, its outcomes give {value!r}"
        for name, value in expected.items()
        if stated[name] != value
    ]
    return problems


def _check_measurement(
    verdict: Verdict, outcomes: Sequence[PanelOutcome], current: Sequence[PanelOutcome], needed: int, asked: Conditions
) -> tuple[Decision, list[str]]:
    """What one measurement of the candidate decides, and what is wrong with its length."""
    candidate = [*verdict.reused, *outcomes]
    decision, length = decide_measurement(current, candidate, needed, asked.guard, asked.bet)
    if decision == "reject" and outcomes and length != len(candidate):
        return decision, [f"{len(outcomes)} outcomes, but fewer decide already: not the shortest decisive prefix"]
    if decision == "indecisive" and len(candidate) < len(current):
        missing = len(current) - len(candidate)
        return decision, [f"indecisive, but {missing} of {len(current)} rollouts were not run"]
    return decision, []


def _order_problems(verdict: Verdict, current: Sequence[PanelOutcome]) -> list[str]:
    """Whether the outcomes are cells of the panel, in canonical order, at all."""
    reused = {o.task_id for o in verdict.reused}
    confirming = verdict.confirming or ()
    fresh = [task for task in verdict.order if task not in reused]
    first = {o.task_id: o.ordinal for o in reversed(verdict.outcomes)}
    cells = canonical_cells(fresh, verdict.rollouts, {task: first.get(task, 0) for task in fresh})
    again = [(task, ordinal + verdict.rollouts) for task, ordinal in cells]
    ran = (*verdict.outcomes, *confirming)
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
        "outcomes are not a prefix of the panel in canonical order": _is_prefix(verdict.outcomes, cells),
        "confirming outcomes do not continue the first ones in canonical order": _is_prefix(confirming, again),
        "one task was judged under two contexts": (
            len({(o.task_id, o.context_hash) for o in ran}) == len({o.task_id for o in ran})
        ),
    }
    return [problem for problem, holds in checks.items() if not holds]


def _is_prefix(outcomes: Sequence[PanelOutcome], cells: Sequence[tuple[str, int]]) -> bool:
    return [(o.task_id, o.ordinal) for o in outcomes] == list(cells[: len(outcomes)])
