"""What a certificate rests on, and whether the ledger shows it: met, unmet, or unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from valve_plugin.bank.measured import Accepted, Epoch, Measured
from valve_plugin.records import Record
from valve_plugin.report.words import counted
from valve_plugin.theory import convergence
from valve_plugin.theory.certificates import epoch_delta


class Assumption(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that has to hold."""

    name: str
    status: Literal["met", "unmet", "unknown"]
    why: str
    needed_for: tuple[str, ...]
    """Which certified numbers rest on it: panel (each accept), gain, drawdown (of the holdout), or what it names."""


PANEL, HOLDOUT = ("panel",), ("gain", "drawdown")


def assumption(name: str, holds: bool | None, why: str, needed_for: tuple[str, ...] = PANEL) -> Assumption:
    """Return the assumption; None says that nothing here can tell."""
    status: Literal["met", "unmet", "unknown"] = "unknown" if holds is None else "met" if holds else "unmet"
    return Assumption(name=name, status=status, why=why, needed_for=needed_for)


_ALL = ("all versions",)
LIKE_YOURS = "tasks like yours"
_AGE = "nothing dates a panel: how far your tasks have moved on since it was drawn, only you can tell"


def of_range(sums: Sequence[float], needed_for: tuple[str, ...]) -> Assumption:
    """Return whether the smaller range M may stand, checked for each reported number; M = 2 needs no check.

    Args:
        sums: radius + certified value of each number that was computed with M below 2; the condition of rem:range is
            proven where it is at most 1, whatever the variance.
        needed_for: which numbers are certified; there is at least one.
    """
    if not sums:
        return assumption("range", True, "the formula has no precondition as it is used here", needed_for)
    fine = max(sums) <= 1.0 + 1e-9
    held = "holds" if fine else "is not shown to hold"
    why = f"the formula's precondition was checked and {held}: {max(sums):.3f}, and at most 1 is proven"
    return assumption("range", fine, why, needed_for)


def of_ledger(found: Measured, variance_given: float | None, estimates: dict[str, float]) -> list[Assumption]:
    """Return all assumptions behind a ledger's certificates.

    Args:
        variance_given: what the person said the variance is at most, if so.
        estimates: panel hash -> plug-in variance of its complete panels.
    """
    moves = [move for epoch in found.epochs for move in epoch.accepts]
    return [
        *_gated(found),
        _disjoint(found),
        _like_yours(found),
        *_age(found),
        *_horizons(found.epochs),
        *_reuse(found),
        *_read(found),
        _variance(found, variance_given, estimates),
        *_deployed(moves),
        *_local(found),
    ]


def of_panel_numbers(n: int, horizon: int, accept: int, variance: float) -> list[Assumption]:
    """Return what an accepted move given in numbers rests on; nothing checks what was typed."""
    return [
        assumption("disjoint", None, "that no proposal was learned from a panel task"),
        assumption(LIKE_YOURS, None, f"that the panel is a random sample, of size {n}, of the tasks you care about"),
        assumption("panel age", None, "that your tasks are still like those the panel was drawn from"),
        assumption("horizon", None, f"that a horizon of {horizon} was declared before the first gate query and kept"),
        assumption("count", None, f"that this is accept {accept} on this panel, in the panel's first epoch"),
        _typed_variance(variance),
        assumption("judged = deployed", None, "that agents get exactly the contexts the panel was judged under"),
    ]


def of_holdout_numbers(
    n: int, variance: float, banks: int | None, needed_for: tuple[str, ...] = HOLDOUT
) -> list[Assumption]:
    """Return what a gain or a drawdown given in numbers rests on.

    Args:
        needed_for: gain, drawdown or both, whichever was given.
        banks: distinct checkpointed banks, for a drawdown.
    """
    held = "" if banks is None else f"that the checkpoints hold {counted(banks, 'different bank')}"
    return [
        *(
            assumption(name, None, why, needed_for)
            for name, why in (
                ("disjoint", "that no holdout task was learned from or judged on"),
                (LIKE_YOURS, f"that the holdout is a random sample, of size {n}, of the tasks you care about"),
                ("holdout sealed", "that the banks compared were fixed before anyone saw a holdout result"),
            )
        ),
        *([assumption("banks", None, held, ("drawdown",))] if held else []),
        _typed_variance(variance, needed_for),
    ]


def _like_yours(found: Measured) -> Assumption:
    panel = bool(found.epochs or found.fixed)
    which = ["the panel"] * panel + ["the holdout"] * bool(found.points)
    what = f"{' and '.join(which) or 'a panel'} {'are' if len(which) > 1 else 'is'}"
    needed = PANEL * panel + HOLDOUT * bool(found.points) or PANEL
    sample = "random samples" if len(which) > 1 else "a random sample"
    return assumption(LIKE_YOURS, None, f"only you can tell whether {what} {sample} of your tasks", needed)


def _gated(found: Measured) -> Iterator[Assumption]:
    if found.taken:
        yield assumption("gated", False, f"the bank reached version {found.taken} without a gate", _ALL)


def _disjoint(found: Measured) -> Assumption:
    panel = found.fixed | {task.instance_id for epoch in found.epochs for task in epoch.panel.tasks}
    if not panel:
        return assumption("disjoint", None, "no panel is recorded that a task learned from could be in")
    shared = sorted(panel & found.sources)
    if shared:
        return assumption("disjoint", False, f"{shared[0]} was learned from and is a panel task; {len(shared)} in all")
    learned = f"none of the {counted(len(found.sources), 'task')} learned from is a panel task"
    why = f"{learned if found.sources else 'nothing was learned from yet'}, by id; `valve evolve` compares content"
    return assumption("disjoint", True, why)


def _age(found: Measured) -> Iterator[Assumption]:
    if found.epochs:
        yield assumption("panel age", None, f"the panel has answered {_asked(found)}; {_AGE}")


def _asked(found: Measured) -> str:
    number = sum(epoch.queries for epoch in found.epochs)
    return f"{counted(number, 'gate query', 'gate queries')} in {counted(len(found.epochs), 'epoch')}"


def _horizons(epochs: Sequence[Epoch]) -> Iterator[Assumption]:
    """Met by construction: replay refuses a query before its epoch, and one too many."""
    for epoch in epochs:
        opened = epoch.opened
        spent = epoch_delta(float(opened.delta), opened.epoch)
        why = (
            f"epoch {opened.epoch} declared {counted(opened.horizon, 'query', 'queries')} first and used "
            f"{epoch.queries}; "
            f"it spends {spent:.3g} of delta {opened.delta}"
        )
        yield assumption("horizon", epoch.queries <= opened.horizon, why)


def _reuse(found: Measured) -> Iterator[Assumption]:
    for number, epoch in enumerate(found.epochs):
        if any(e.opened.panel_hash == epoch.opened.panel_hash for e in found.epochs[:number]):
            why = (
                f"epoch {epoch.opened.epoch} goes on with an earlier panel: counted as one run of "
                f"{counted(epoch.horizon, 'query', 'queries')}; valid if opening it was no answer to holdout results"
            )
            yield assumption("panel reuse", None, why)


def _read(found: Measured) -> Iterator[Assumption]:
    """Met by construction where nobody looked: replay records every measurement of the panel."""
    if found.read:
        looked = f"line {found.read} measured the panel without single items"
        if found.chosen:
            why = f"{looked}, and line {found.chosen} was a choice: by more than verdicts, which the bound is not about"
            yield assumption("panel read", False, why)
        else:
            yield assumption("panel read", True, f"{looked}; no person chose what was judged after it")


def _variance(found: Measured, given: float | None, estimates: dict[str, float]) -> Assumption:
    if not estimates:
        return assumption("variance", None, "no complete panel is recorded")
    seen = max(estimates.values())
    names = [c.what for panel in estimates for c in found.complete(panel)]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if given is None:
        why = f"{seen:.4f} is estimated, not a bound: from {shown}; rejected panels are cut short and do not count"
        return assumption("variance", None, why)
    if given < seen:
        return assumption("variance", False, f"{given:g} was given, but the panels show about {seen:.4f}: {shown}")
    why = f"{given:g} was given and nothing proves it; the panels show about {seen:.4f}: {shown}"
    return assumption("variance", None, why)


def _typed_variance(variance: float, needed_for: tuple[str, ...] = PANEL) -> Assumption:
    why = f"that paired differences vary by at most {variance:g}, which nothing checks"
    return assumption("variance", None, why, needed_for)


def _deployed(moves: Sequence[Accepted]) -> Iterator[Assumption]:
    """One line for all accepts: each says for itself how many of its contexts are in use."""
    if not moves:
        return
    least = min(moves, key=lambda m: m.verdict.deployed / m.verdict.n_tasks)
    other = sum(m.verdict.deployed < m.verdict.n_tasks for m in moves)
    which = f"all {len(moves)} accepts" if len(moves) > 1 else "the accept"
    why = f"in {which} every panel task gets in use exactly the context it was judged under"
    if other:
        why = (
            f"in {other} of {counted(len(moves), 'accept')} some panel tasks get another context in use than "
            f"the judged one; worst, version {least.version}: {least.verdict.deployed} of {least.verdict.n_tasks} get "
            "the judged one"
        )
    yield assumption("judged = deployed", not other, why)


def _local(found: Measured) -> Iterator[Assumption]:
    """Behind the localized cap only; more accepts than it allows refute it."""
    for epoch in found.epochs:
        if epoch.complete:
            unstable = convergence.unstable_share(epoch.complete[0].passes, epoch.panel.rollouts)
            most = convergence.localized_cap(epoch.panel.rho, unstable)
            fine = None if len(epoch.accepts) <= most else False
            why = (
                f"epoch {epoch.opened.epoch}, second cap on accepts only: gains stay on tasks with mixed first rollouts"
            )
            yield assumption("gains local", fine, why, ("second cap",))
