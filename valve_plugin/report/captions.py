"""What a figure's caption says: what was measured on what, and only of what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from valve_plugin.report.gains import bounded
from valve_plugin.report.paired import furthest
from valve_plugin.report.run import Checkpoint, Gate, Run, StreamPoint
from valve_plugin.report.run_spent import APART
from valve_plugin.report.words import counted

_APART = " Evaluation and measurement have a bar of their own: they look at the run and are no part of it."

BLAME = "A fall can come from harder tasks, from an old task leaving the window, or from the bank version in use."
"""What a fall of the stream's curve may be due to."""


class Fall(NamedTuple):
    """The furthest that a curve lies below its highest point so far, points of few tasks counted."""

    depth: float
    """In rate units; 0: it never falls."""
    top: int
    low: int
    """Places in the stream, 0-based."""


def window(points: Sequence[StreamPoint]) -> int:
    """Return over how many stream tasks the rate is taken: ten, or a twentieth of a long stream."""
    return max(10, len(points) // 20)


def rolling(points: Sequence[StreamPoint]) -> list[float]:
    """Return, at each stream task, the resolved rate of the graded attempts at it and the tasks before it."""
    before = window(points) - 1
    return [_rate(points[max(0, i - before) : i + 1]) for i in range(len(points))]


def _rate(points: Sequence[StreamPoint]) -> float:
    graded = sum(p.graded for p in points)
    return sum(p.passed for p in points) / graded if graded else 0.0


def peaks(points: Sequence[StreamPoint]) -> list[float]:
    """Return, at each stream task, the highest rate so far, of full windows: fewer tasks make no peak."""
    rates, before = rolling(points), window(points) - 1
    return [max(rates[min(i, before) : i + 1], default=0.0) for i in range(len(rates))]


def deepest(points: Sequence[StreamPoint]) -> tuple[float, int]:
    """Return the greatest distance to the highest value so far, in rate units, and at which task it is."""
    drops = [peak - rate for peak, rate in zip(peaks(points), rolling(points), strict=True)]
    depth = max(drops, default=0.0)
    return depth, points[drops.index(depth)].position if drops else 0


def visible(points: Sequence[StreamPoint]) -> Fall:
    """Return the furthest fall that can be seen: of all points, also those of fewer tasks than a window."""
    rates, top, found = rolling(points), 0, Fall(0.0, 0, 0)
    for place, rate in enumerate(rates):
        if rate > rates[top]:
            top = place
        if rates[top] - rate > found.depth:
            found = Fall(rates[top] - rate, top, place)
    return found


def descent(points: Sequence[StreamPoint]) -> str:
    """Return from where to where that fall goes: `from 58% at task 4 to 23% at task 12`; empty: there is none."""
    depth, top, low = visible(points)
    if not depth:
        return ""
    rates = rolling(points)
    high, least = (f"{rates[place]:.0%} at task {points[place].position}" for place in (top, low))
    return f"from {high} to {least}"


def dropped(values: Sequence[float]) -> bool:
    """Return whether a curve is anywhere below its peak so far."""
    return list(accumulate(values, max)) != list(values)


def banded(run: Run) -> bool:
    """Return whether a gain on the holdout is certified, so that a band is drawn."""
    return bool(run.certificate.gain and not run.certificate.gain.vacuous)


def floors(gates: Sequence[Gate]) -> bool:
    """Return whether an accept has a certified floor that says something."""
    return any(g.decision == "accept" and g.floor is not None and not g.vacuous for g in gates)


def repeated(gates: Sequence[Gate]) -> bool:
    """Return whether a gate measured twice."""
    return any(g.first is not None for g in gates)


def of_cost(runs: Sequence[Run]) -> str:
    """Return the caption of the time."""
    apart = any(s.role in APART for run in runs for s in run.spent)
    return (
        "Time of rollouts by role as recorded on this machine, one after the other, and no time in which none ran; "
        f"several workers take less wall-clock time.{_APART if apart else ''}"
    )


def of_stream(runs: Sequence[Run]) -> str:
    """Return the caption of the stream."""
    whole = all(run.stream_whole for run in runs)
    last = max(min(window(run.stream), len(run.stream)) for run in runs)
    what = "Share of graded attempts that resolved their task, as attempted"
    over = f", over the last {last} stream tasks" if last > 1 else ""
    which = "." if whole else "; only mixed tasks are known here, so the rate says little."
    came = any(p.accepted for run in runs for p in run.stream)
    down = any(p.accepted for run in runs if not run.gated for p in run.stream)
    triangles = (
        f" A triangle{' (pointing down: without a gate)' * down} stands where a proposal came into the bank: behind "
        "the task it was learned from."
    )
    return (
        f"{what}{over}{which}{triangles * came}{_few(runs)}{_drops(runs)} "
        "Tasks differ in difficulty, so a slope is no proof of learning: the holdout is."
    )


def _few(runs: Sequence[Run]) -> str:
    """Which points are drawn apart."""
    size = max(window(run.stream) for run in runs)
    return f" Dotted: points of fewer than {counted(size, 'task')}." * (size > 1)


def _drops(runs: Sequence[Run]) -> str:
    """What is hatched, how deep it goes, what can be seen besides, and what a fall may be due to."""
    letters = ["A ", "B "] if len(runs) > 1 else [""]
    lettered = list(zip(letters, runs, strict=True))
    if not any(visible(run.stream).depth for run in runs):
        return ""
    found = [(letter, run, *deepest(run.stream)) for letter, run in lettered]
    each = [
        f"{letter}{100 * depth:.1f} points"
        + (f" at task {place} (bank version {_used(run, place)} in use)" if depth else "")
        for letter, run, depth, place in found
    ]
    seen = [
        f"{letter}{descent(run.stream)}"
        for letter, run, depth, _ in found
        if run.stream_whole and visible(run.stream).depth > depth
    ]
    size = max(window(run.stream) for run in runs)
    behind = furthest(*runs) if len(runs) == 2 else ""
    parts = [
        f" {_uncounted(runs, size)}",
        " The hatched area is the distance to the highest solid point so far, at its deepest "
        f"{', '.join(each)}." * any(depth > 0 for *_, depth, _ in found),
        f" Dotted points counted, the furthest fall to be seen is {', '.join(seen)}: a description, no measure."
        * bool(seen),
        f" {behind[:1].upper()}{behind[1:]}." * bool(behind),
        f" {BLAME}",
    ]
    return "".join(parts)


def _uncounted(runs: Sequence[Run], size: int) -> str:
    """Which tasks are too few for a fall to be counted."""
    if all(len(run.stream) < size for run in runs):
        return f"Fewer than {counted(size, 'task')}: no fall is counted."
    return f"The first {counted(size, 'task')} count in no fall."


def _used(run: Run, place: int) -> int:
    return next(p.version for p in run.stream if p.position == place)


def of_holdout(runs: Sequence[Run]) -> str:
    """Return the caption of the holdout."""
    read = [run for run in runs if run.checkpoints]
    each = {_read(run.checkpoints) for run in read}
    told = each if len(each) == 1 else {f"{'AB'[runs.index(run) % 2]}: {_read(run.checkpoints)}" for run in read}
    drop = any(len(run.checkpoints) > 2 and dropped([c.low for c in run.checkpoints]) for run in read)
    lost = any(c.high > c.low for run in read for c in run.checkpoints)
    parts = [
        "Frozen bank versions on holdout tasks that nothing was learned from or judged on",
        f" ({'; '.join(sorted(told))}).",
        " The hatched area lies below the highest reading so far, which is selected on this holdout, so it flatters."
        * drop,
        " A dotted bar is what errored rollouts leave unknown." * lost,
        " Dashed: the first reading." * any(len(run.checkpoints) > 1 for run in read),
        " The band at the last reading goes down to the first reading plus the guaranteed gain, which may be a loss."
        * any(map(banded, read)),
        " They are not the same tasks, so A's and B's readings cannot be compared." * (len(each) > 1),
    ]
    return "".join(parts)


def _read(checkpoints: Sequence[Checkpoint]) -> str:
    """`avg@3 on 10 tasks`; of checkpoints that were read differently, the least and the most."""
    tasks, rollouts = sorted({c.tasks for c in checkpoints}), sorted({c.rollouts for c in checkpoints})
    on = counted(tasks[0], "task") if len(tasks) == 1 else f"{tasks[0]:,} to {tasks[-1]:,} tasks"
    of = str(rollouts[0]) if len(rollouts) == 1 else f"{rollouts[0]} to {rollouts[-1]}"
    return f"avg@{of} on {on}"


def of_gates(run: Run) -> str:
    """Return the caption of a run's gates."""
    panel = f"{counted(run.panel.tasks, 'task')} x {counted(run.panel.rollouts, 'rollout')}" if run.panel else "a panel"
    seen = {g.decision for g in run.gates}
    parts = [
        f"Panel gain of each proposal over the bank it was judged against, on {panel}.",
        " A gate stops when its verdict is certain: a reject's mark is the most it could still have gained, the pale "
        "line below it what did not run." * any(map(bounded, run.gates)),
        " Lost rollouts leave an indecisive gate's gain an interval." * ("indecisive" in seen),
        " Accepts were selected by this very number, so it flatters." * ("accept" in seen),
        " The band below an accept goes down to its certified floor, which is what can be relied on."
        * floors(run.gates),
        f" Below: share of the panel's rollouts that the verdict rests on, {_hundred(run.gates)}"
        + (", hatched: that ran on when it was certain." if any(g.beyond for g in run.gates) else "."),
        " Accepts had to repeat on fresh rollouts: a hollow circle is the first gain." * repeated(run.gates),
    ]
    return "".join(parts)


def _hundred(gates: Sequence[Gate]) -> str:
    """What 100 % is: the panel, or twice that where a gate repeated."""
    once, twice = ({g.total for g in gates if bool(g.again) == again} for again in (False, True))
    parts = [f"{_ends(once)} rollouts"] if once else []
    parts += [f"{_ends(twice)} where an accept was repeated"] if twice else []
    return f"100 % being {', '.join(parts)}"


def _ends(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def simulated(runs: Sequence[Run]) -> str:
    """Return how the caption of a figure of these runs begins, where a scripted model took part; else nothing."""
    scripted = [run for run in runs if run.simulated]
    where = "" if len(scripted) == len(runs) else f" in {scripted[0].label if scripted else ''}"
    return f"SIMULATION{where}: a scripted model. " if scripted else ""
