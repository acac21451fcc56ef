"""Certificates with all they rest on: from a ledger, or from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from valve_plugin.bank.measured import Accepted, Epoch, Measured
from valve_plugin.records import Record
from valve_plugin.report import assumptions, holdout
from valve_plugin.report.assumptions import Assumption
from valve_plugin.report.bounds import Bound
from valve_plugin.theory import certificates, convergence, estimates
from valve_plugin.theory.bennett import radius


class Move(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is certified about one accept; rates, not points."""

    accept: int
    """k, counted on its panel."""
    version: int | None = None
    """Of the bank it led to; None when given in numbers."""
    epoch: int | None = None
    query: int | None = None
    panel_gain: float
    tasks: int
    horizon: int
    delta: float
    """What its epoch spends."""
    variance: float
    log_term: float
    loss: float
    """The population loses no more than this."""
    floor: float
    """The population gains at least this; below 0 it is the loss again."""
    vacuous: bool
    deployed: int | None = None
    """Panel tasks that get, in use, exactly the context they were judged under; the certificate needs all."""


class Cap(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many accepts an epoch can have."""

    epoch: int
    accepted: int
    most: int
    """floor((1 - F0)/rho): certain, whatever is proposed."""
    localized: int
    """floor(h/rho): if gains stay on tasks whose baseline rollouts were mixed, which nothing shows."""
    rho: str
    start: float
    """F0."""
    unstable: float
    """h, observed; it underestimates."""


class Certificate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that can be said. Gain and drawdown are None where nothing measured them: unknown, not zero."""

    moves: tuple[Move, ...] = ()
    caps: tuple[Cap, ...] = ()
    taken: int = 0
    """Versions reached without a gate, about which nothing is certified."""
    gain: Bound | None = None
    drawdown: Bound | None = None
    unevaluated: str = ""
    """Why gain and drawdown are None, where a ledger was read."""
    assumptions: tuple[Assumption, ...]


def from_ledger(found: Measured, variance: float | None = None) -> Certificate:
    """Return what a ledger's complete panels certify.

    Args:
        variance: an upper bound on the variance of paired differences, when the person knows one; otherwise the
            plug-in of each panel's complete measurements stands in, and the assumption says so.
    """
    plug_in = {
        epoch.opened.panel_hash: estimates.variance(
            [c.passes for c in found.complete(epoch.opened.panel_hash)], epoch.panel.rollouts
        )
        for epoch in found.epochs
        if found.complete(epoch.opened.panel_hash)
    }
    used = {panel: variance if variance is not None else value for panel, value in plug_in.items()}
    held = holdout.of_ledger(found, variance)
    moves = tuple(_move(e, a, used[e.opened.panel_hash]) for e in found.epochs for a in e.accepts)
    checked = range_of(moves, held.gain, held.drawdown)
    return Certificate(
        gain=held.gain,
        drawdown=held.drawdown,
        unevaluated=held.unknown,
        moves=moves,
        caps=tuple(_cap(epoch) for epoch in found.epochs if epoch.complete),
        taken=found.taken,
        assumptions=(*assumptions.of_ledger(found, variance, plug_in), *held.assumptions, *checked),
    )


def range_of(moves: Sequence[Move], gain: Bound | None, drawdown: Bound | None) -> list[Assumption]:
    """Return the effective-range condition, checked for every number that is certified; nothing where none is.

    Source: rem:range, with c the certified value: minus the loss, or the floor, of an accept; the floor of a gain; 0
    for a drawdown, whose checkpoints only matter where they dropped.
    """
    sums = [
        radius(m.tasks, m.log_term, m.variance, 1 + m.loss) + (m.floor if not m.loss else -m.loss)
        for m in moves
        if not m.vacuous
    ]
    needed = ["panel"] * bool(sums)
    for name, bound, certified in (("gain", gain, gain.value if gain else 0.0), ("drawdown", drawdown, 0.0)):
        if bound and (not bound.vacuous or bound.by_gain is not None):
            needed.append(name)
            sums += [bound.radius + certified] * (bound.range < 2)
    return [assumptions.of_range(sums, tuple(needed))] if needed else []


def accepted_move(panel_gain: float, tasks: int, horizon: int, accept: int, delta: float, variance: float) -> Move:
    """Return the certificate of an accept given in numbers."""
    result = certificates.accepted_move(panel_gain, tasks, horizon, accept, delta, variance)
    return Move(
        accept=accept,
        panel_gain=panel_gain,
        tasks=tasks,
        horizon=horizon,
        delta=delta,
        variance=variance,
        log_term=result.log_term,
        loss=result.loss,
        floor=result.floor,
        vacuous=result.vacuous,
    )


def _move(epoch: Epoch, accepted: Accepted, variance: float) -> Move:
    verdict = accepted.verdict
    delta = certificates.epoch_delta(float(epoch.opened.delta), epoch.opened.epoch)
    gained = float(accepted.gain)
    move = accepted_move(gained, verdict.n_tasks, epoch.horizon, accepted.number, delta, variance)
    return replace(move, version=accepted.version, epoch=verdict.epoch, query=verdict.query, deployed=verdict.deployed)


def _cap(epoch: Epoch) -> Cap:
    panel, first = epoch.panel, epoch.complete[0].passes
    start = Fraction(sum(first), len(panel.tasks) * panel.rollouts)
    unstable = convergence.unstable_share(first, panel.rollouts)
    return Cap(
        epoch=epoch.opened.epoch,
        accepted=len(epoch.accepts),
        most=convergence.accept_cap(panel.rho, start),
        localized=convergence.localized_cap(panel.rho, unstable),
        rho=panel.rho,
        start=float(start),
        unstable=float(unstable),
    )
