"""What two runs that took the same tasks say about each other, task by task, and what that decides. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

from valve_plugin.report.bounds import doubt, of_gain
from valve_plugin.report.measured_tasks import resolved
from valve_plugin.report.run import Checkpoint, Run
from valve_plugin.report.versions import counts, stretches, unused
from valve_plugin.report.words import counted
from valve_plugin.theory import certificates, estimates
from valve_plugin.theory.intervals import sign_test

_DELTA = 0.05


def conclusion(a: Run, b: Run) -> str:
    """Return what can be concluded from two runs, and from what: never more than their paired numbers show."""
    said = [_streams(a, b)]
    if a.panel and b.panel and (_panel(a) != _panel(b) or a.panel.rollouts != b.panel.rollouts):
        said.append("Their panels differ, so panel passes cannot be compared.")
    return " ".join([*said, _holdouts(a, b)])


def stream_rates(a: Run, b: Run) -> tuple[float, float] | None:
    """Return both streams' resolved rates; None: they are of other tasks, or not known whole."""
    if not (a.stream_whole and b.stream_whole) or set(_stream(a)) != set(_stream(b)):
        return None
    (one, of_one), (two, of_two) = counts(a.stream), counts(b.stream)
    return (one / of_one, two / of_two) if of_one and of_two else None


def alike_holdouts(a: Run, b: Run) -> tuple[float, float] | None:
    """Return the last readings' rates; None: not of the same tasks and rollouts, not read, or not final."""
    if not (a.checkpoints and b.checkpoints) or _unlike(a, b):
        return None
    return a.checkpoints[-1].low, b.checkpoints[-1].low


def by_version(a: Run, b: Run) -> list[str]:
    """Return what both passed of the same tasks, for each stretch under one bank version of B; empty: other streams."""
    said = [said for said, _ in _stretches(a, b)]
    if said and (version := unused(b)):
        said.append(f"B's version {version} came in after the last task, so none ran under it")
    return said


def furthest(a: Run, b: Run) -> str:
    """Return the stretch under one version of B on which B is furthest behind A; empty: on none."""
    found = min(_stretches(a, b), key=lambda s: s[1], default=("", 0))
    return found[0] if found[1] < 0 else ""


def _stretches(a: Run, b: Run) -> list[tuple[str, int]]:
    """Each with B's passes minus A's."""
    if not (a.stream_whole and b.stream_whole) or set(_stream(a)) != set(_stream(b)):
        return []
    same = {p.task_id: p for p in a.stream}
    found = []
    for version, where, mine in stretches(b.stream):
        (x, of_x), (y, of_y) = counts([same[p.task_id] for p in mine]), counts(mine)
        found.append(
            (f"on {where}, under B's version {version}, B passed {y} of {of_y} and A {x} of {of_x} attempts", y - x)
        )
    return found


def order(run: Run, first: Run) -> str:
    """Return how a run's stream relates to the first run's."""
    mine, other = _stream(run), _stream(first)
    if run is first or not mine or not other:
        return counted(len(mine), "task")
    if not run.stream_whole or not first.stream_whole:
        return "not known whole"
    return (
        "the same order" if mine == other else "the same tasks, another order" if set(mine) == set(other) else "others"
    )


def panel_tasks(run: Run, first: Run) -> str:
    """Return how a run's panel relates to the first run's."""
    mine, other = _panel(run), _panel(first)
    if run is first or not mine or not other:
        return counted(len(mine), "task") if mine else "-"
    if mine == other:
        return "the same tasks" if run.scores else "the same tasks, on which nothing was measured"
    return f"{len(mine & other)} of {len(mine)} the same"


def seed(run: Run) -> str:
    """Return the seed that the panel was drawn with; it is in the ledger."""
    fixed = [line.data["panel"].get("seed") for line in run.ledger if line.type == "panel_fixed"]
    return str(fixed[-1]) if fixed and fixed[-1] is not None else "-"


def versus(pairs: Iterable[tuple[float, float]], better: str, worse: str) -> str:
    """Return on how many tasks the first rate is above, below and equal to the second."""
    above, below, same = _signs(pairs)
    return f"{better} on {above}, {worse} on {below}, equal on {same}"


def _signs(pairs: Iterable[tuple[float, float]]) -> tuple[int, int, int]:
    found = [(x > y) - (x < y) for x, y in pairs]
    return found.count(1), found.count(-1), found.count(0)


def _streams(a: Run, b: Run) -> str:
    if not (a.stream_whole and b.stream_whole):
        return "At least one stream is not known whole here, so the streams cannot be paired."
    mine, other = _stream(a), _stream(b)
    if set(mine) != set(other):
        both = len(set(mine) & set(other))
        return (
            f"The streams differ ({both} tasks in both, {len(mine) - both} only in A, {len(other) - both} only in B), "
            "so their rates cannot be compared."
        )
    rates = [{p.task_id: p.passed / p.graded for p in run.stream if p.graded} for run in (a, b)]
    shared = [(rates[0][t], rates[1][t]) for t in mine if t in rates[0] and t in rates[1]]
    how = "in the same order" if mine == other else "in another order, so with other banks behind them"
    up, down, _ = _signs(shared)
    test = f" (sign test p = {sign_test(up, down):.2g}, no certificate)"
    resolved_ = stream_rates(a, b)
    apart = f", {100 * (resolved_[0] - resolved_[1]):+.0f} points" if resolved_ else ""
    told = f"{counted(len(mine), 'task')} {how}{apart}"
    return f"Same {told}: {versus(shared, 'A higher', 'lower')}{test}. {_learning(a, b)}"


def _learning(a: Run, b: Run) -> str:
    """What paired streams compare, and which final bank took no part in that."""
    idle = [
        f"; {letter}'s final version, {run.version}, ran on no stream task"
        for letter, run in (("A", a), ("B", b))
        if run.version and all(p.version != run.version for p in run.stream)
    ]
    return f"That compares the streams, learning included, not the two final banks{''.join(idle)}."


def _holdouts(a: Run, b: Run) -> str:
    if not (a.checkpoints and b.checkpoints):
        read = [letter for letter, run in (("A", a), ("B", b)) if run.checkpoints]
        what = f"Only {read[0]}'s holdout was read" if read else "No untouched tasks were measured: no holdout was read"
        return f"{what}."
    if reason := _unlike(a, b):
        return reason
    ends = a.checkpoints[-1], b.checkpoints[-1]
    mine, other = (resolved(run, end.line) for run, end in zip((a, b), ends, strict=True))
    return _separated([mine[t] for t in mine], [other[t] for t in mine], ends[0])


def _unlike(a: Run, b: Run) -> str:
    """Why the last readings cannot be paired; empty: they can."""
    ends = a.checkpoints[-1], b.checkpoints[-1]
    mine, other = (resolved(run, end.line) for run, end in zip((a, b), ends, strict=True))
    if set(mine) != set(other) or ends[0].rollouts != ends[1].rollouts:
        return "Their holdouts are not the same tasks and rollouts, so nothing is to be concluded."
    if any(end.low != end.high for end in ends):
        return "Rollouts errored on a holdout, so nothing is to be concluded yet: valve eval."
    return ""


def _separated(mine: Sequence[int], other: Sequence[int], end: Checkpoint) -> str:
    """Both signs are looked at, so each spends half of delta; the variance is the plug-in of these readings.

    Source: eq:sepcert.
    """
    r, n = end.rollouts, len(mine)
    difference = fsum(x - y for x, y in zip(mine, other, strict=True)) / (n * r)
    variance = max(estimates.variance([mine, other], r), estimates.paired_variance(mine, other, r))
    bound = certificates.separation(abs(difference), n, _DELTA / 2, variance)
    up, down, _ = _signs(zip(mine, other, strict=True))
    pairs = versus(zip(mine, other, strict=True), "A higher", "lower")
    said = f"On the same {counted(n, 'holdout task')}: {pairs}; A minus B {100 * difference:+.1f} points."
    if bound.vacuous or bound.value <= 0 or not difference:
        said += " The certificate cannot exclude chance, so nothing is to be concluded"
        if not difference:
            return f"{said}."
        better, worse = (up, down) if difference > 0 else (down, up)
        less = doubt(of_gain(abs(difference), n, _DELTA / 2, variance), better, worse)
        return f"{said}: {less}"
    which = "A" if difference > 0 else "B"
    return (
        f"{said} {which}'s bank is better by at least {100 * bound.value:.1f} points on tasks like these, with "
        f"probability {1 - _DELTA:g}, its variance estimated; each is one run."
    )


def _stream(run: Run) -> list[str]:
    return [p.task_id for p in run.stream]


def _panel(run: Run) -> set[str]:
    """Tasks of the panel in force."""
    fixed = [line.data["panel"]["tasks"] for line in run.ledger if line.type == "panel_fixed"]
    return {task["instance_id"] for task in fixed[-1]} if fixed else set()
