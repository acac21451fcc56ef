"""Certificates and their assumptions, from a ledger or from given numbers.

Two bounds stand beside each other. Bennett's needs a bound on the variance, which only the user can give. The bet
(`confidence_sequence.mean_floor`) needs none, but each task's difference, which only a ledger has. So the bet is used
for a ledger, and Bennett's where a variance was given; the other one is told, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from msgspec.structs import replace

from valve_plugin.bank.entries import Evaluated
from valve_plugin.evidence.evaluations import (
    AcceptedMove,
    Epoch,
    Measurements,
    differences,
    mean_gain,
    passes_by_task,
    peak_checkpoint,
)
from valve_plugin.records import Conditions, Record
from valve_plugin.theory import certificates, estimates
from valve_plugin.theory.confidence_sequence import mean_floor
from valve_plugin.words import plural


class Assumption(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An assumption of a certificate."""

    name: str
    status: Literal["met", "unmet", "unknown"]
    why: str
    needed_for: tuple[str, ...]
    """Certified numbers that need it: panel (each accept), gain or drawdown (on the holdout), or another name."""


By = Literal["bennett", "bet"]


class Bound(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certified gain (a floor) or drawdown (a ceiling)."""

    measured: float
    value: float
    radius: float
    range: float
    """M."""
    tasks: int
    delta: float
    variance: float
    banks: int | None = None
    vacuous: bool
    by: By = "bennett"
    other: float | None = None
    """What the other bound says, Bennett's with the variance named here; None if it cannot be computed."""


class CertifiedAccept(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificate of one accept, in rate units (not points)."""

    accept: int
    """k: number of the accept on its panel, from 1."""
    version: int | None = None
    """Bank version after it; None if it was given in numbers."""
    epoch: int | None = None
    query: int | None = None
    panel_gain: float
    tasks: int
    horizon: int
    delta: float
    """Failure probability of its epoch."""
    variance: float
    log_term: float
    loss: float
    """Largest possible loss on the population."""
    floor: float
    """Smallest possible gain on the population; minus `loss` if it is below 0."""
    vacuous: bool
    deployed: int | None = None
    """Panel tasks that get exactly the judged context in use; the certificate needs all of them."""
    by: By = "bennett"
    other: float | None = None
    """The floor by the other bound; None if it cannot be computed."""


class AcceptCap(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest possible number of accepts in an epoch."""

    epoch: int
    accepted: int
    most: int
    """floor((1 - F0)/rho): holds for any proposals. Where scores are measured anew: the declared queries."""
    carried: bool = True
    """False where an accept's outcomes are measured anew, so that no cap follows from the margin."""
    useless: float | None = None
    """Accepts that do not help, at most, in expectation; None if the epoch declared no bet."""
    rho: str
    start: float
    """F0."""


class Certificate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All certified numbers. Gain and drawdown are None if they were not measured: unknown, not zero."""

    moves: tuple[CertifiedAccept, ...] = ()
    caps: tuple[AcceptCap, ...] = ()
    taken: int = 0
    """Number of versions accepted without a gate; nothing is certified about them."""
    owned: tuple[int, ...] = ()
    """Versions that the bank's owner made; nothing is certified about these changes."""
    gain: Bound | None = None
    drawdown: Bound | None = None
    unevaluated: str = ""
    """Why gain and drawdown are None, if a ledger was read."""
    assumptions: tuple[Assumption, ...]

    def unmet(self, needed_for: str) -> list[Assumption]:
        """Return the unmet assumptions of certified numbers, which therefore certify nothing."""
        return [a for a in self.assumptions if a.status == "unmet" and needed_for in a.needed_for]


_HALF, _ALL = 0.5, 0.9
"""A loss of so many tasks says as good as nothing: of half of them, where a half was not even measured, or of most."""
_LARGE = 0.1
"""The largest effect that `valve plan` looks for, in rate units."""
LIKE_YOURS = "tasks like yours"
_PANEL, _HOLDOUT = ("panel",), ("gain", "drawdown")


def certify_ledger(found: Measurements, variance: float | None = None) -> Certificate:
    """Return the certificates from a ledger's complete panels and evaluations.

    Args:
        variance: an upper bound on the variance of paired differences, if the user knows one. Otherwise it is
            estimated from the complete measurements, and the assumption says so.
    """
    plug_in = {
        panel: estimates.variance([c.passes for c in complete], rollouts)
        for panel, rollouts in {e.opened.panel_hash: e.panel.rollouts for e in found.epochs}.items()
        if (complete := found.complete(panel))
    }
    used = {panel: variance if variance is not None else value for panel, value in plug_in.items()}
    moves = tuple(
        _accepted(e, a, used[e.opened.panel_hash], bet=variance is None) for e in found.epochs for a in e.accepts
    )
    gain, drawdown, unknown, about_holdout = _certify_holdout(found, variance)
    return Certificate(
        gain=gain,
        drawdown=drawdown,
        unevaluated=unknown,
        moves=moves,
        caps=tuple(_cap(epoch) for epoch in found.epochs if epoch.complete),
        taken=found.taken,
        owned=tuple(found.owned),
        assumptions=(*ledger_assumptions(found, variance, plug_in), *about_holdout),
    )


def certify_accept(
    panel_gain: float, tasks: int, horizon: int, accept: int, delta: float, variance: float
) -> CertifiedAccept:
    """Return the certificate of one accept from its numbers."""
    found = certificates.accepted_move(panel_gain, tasks, horizon, accept, delta, variance)
    return CertifiedAccept(
        accept=accept,
        panel_gain=panel_gain,
        tasks=tasks,
        horizon=horizon,
        delta=delta,
        variance=variance,
        log_term=certificates.move_log_term(horizon, accept, delta),
        loss=max(0.0, -found.value),
        floor=found.value,
        vacuous=found.vacuous or _says_nothing(panel_gain, found.value),
    )


def certify_gain(measured: float, tasks: int, delta: float, variance: float) -> Bound:
    """Return the certified floor of a measured holdout gain."""
    found = certificates.gain(measured, tasks, delta, variance)
    bound = Bound(measured=measured, tasks=tasks, delta=delta, variance=variance, **found._asdict())
    return replace(bound, vacuous=bound.vacuous or _says_nothing(measured, bound.value))


def certify_drawdown(measured: float, tasks: int, delta: float, variance: float, banks: int) -> Bound:
    """Return the certified ceiling of a measured holdout drawdown."""
    found = certificates.drawdown(measured, tasks, delta, variance, banks)
    bound = Bound(measured=measured, tasks=tasks, delta=delta, variance=variance, banks=banks, **found._asdict())
    return replace(bound, vacuous=bound.vacuous or _says_nothing(-measured, -bound.value))


def guarantee(bound: Bound, where: str = "") -> str:
    """Return the guarantee as text: `at least +12.4 points`, `not worse than -19.3 points`, `at most 58.2 points`.

    Args:
        where: text after the number: ` on tasks like these, with probability 0.95`.
    """
    if bound.vacuous:
        return "nothing, because there are too few tasks"
    if bound.banks is not None:
        return f"at most {100 * bound.value:.1f} points{where}"
    return f"{'not worse than' if bound.value < 0 else 'at least'} {100 * bound.value:+.1f} points{where}"


def too_few(found: Bound | CertifiedAccept) -> bool:
    """Whether there are too few tasks to say much: what is left open is more than what was measured and than 10 points.

    Of a measured loss more tasks would say the same, so this is false.
    """
    if isinstance(found, Bound) and found.banks is not None:
        return found.vacuous or found.value - found.measured > _LARGE
    measured, floor = (found.measured, found.value) if isinstance(found, Bound) else (found.panel_gain, found.floor)
    return found.vacuous or (measured >= 0 and -floor > max(measured, _LARGE))


def tasks_for_gain(found: Bound | CertifiedAccept) -> str:
    """Return a sentence: how many tasks would certify this gain, with everything else as measured.

    Source: app:sizing-proof, with M = 1 for no loss (rem:range).
    """
    if isinstance(found, Bound):
        whose, measured, log_term, more = "The holdout's gain", found.measured, math.log(1 / found.delta), ""
    else:
        whose = f"Version {found.version}'s accept" if found.version else "This accept"
        measured, log_term, more = found.panel_gain, found.log_term, ", and for later accepts"
    if measured <= -_LARGE:
        return "No gain was measured, so more tasks would not certify one."
    if measured <= 0:
        least = certificates.smallest_n(measured + _LARGE, log_term, found.variance)
        return f"No gain was measured; about {least:,} tasks would exclude a loss of {100 * _LARGE:g} points."
    least = certificates.smallest_n(measured, log_term, found.variance)
    return (
        f"{whose} ({100 * measured:+.1f} points) would need about {least:,} tasks to exclude a loss; more where "
        f"results vary more between tasks{more}."
    )


def _says_nothing(measured: float, floor: float) -> bool:
    """Whether a floor below a measured gain leaves nearly everything open."""
    return floor <= -_ALL or (floor <= -_HALF and measured - floor >= _HALF)


def _accepted(epoch: Epoch, accepted: AcceptedMove, variance: float, *, bet: bool) -> CertifiedAccept:
    verdict = accepted.verdict
    delta = certificates.epoch_delta(float(epoch.opened.delta), epoch.opened.epoch)
    move = certify_accept(float(accepted.gain), verdict.n_tasks, epoch.horizon, accepted.number, delta, variance)
    move = replace(move, version=accepted.version, epoch=verdict.epoch, query=verdict.query, deployed=verdict.deployed)
    floor = mean_floor(accepted.differences, move.log_term)
    if not bet:
        return replace(move, other=floor)
    vacuous = _says_nothing(move.panel_gain, floor)
    return replace(move, floor=floor, loss=max(0.0, -floor), vacuous=vacuous, by="bet", other=move.floor)


def _with_bet(bound: Bound, value: float, *, bet: bool) -> Bound:
    """Return the bound with what the bet says: as its value, or beside it."""
    if not bet:
        return replace(bound, other=value)
    sign = 1 if bound.banks is None else -1
    vacuous = _says_nothing(sign * bound.measured, sign * value)
    return replace(
        bound, value=value, radius=abs(bound.measured - value), vacuous=vacuous, by="bet", other=bound.value,
    )  # fmt: skip


def _cap(epoch: Epoch) -> AcceptCap:
    """Return the cap on accepts: from the margin where they carry their outcomes forward (thm:conv-main)."""
    panel, first = epoch.panel, epoch.complete[0].passes
    horizon, asked = epoch.opened.horizon, epoch.opened.conditions or Conditions()
    start = Fraction(sum(first), len(panel.tasks) * panel.rollouts)
    return AcceptCap(
        epoch=epoch.opened.epoch,
        accepted=len(epoch.accepts),
        most=estimates.accept_cap(panel.rho, start) if not asked.fresh else horizon,
        carried=not asked.fresh,
        useless=horizon / asked.bet if asked.bet else None,
        rho=panel.rho,
        start=float(start),
    )


def _certify_holdout(
    found: Measurements, variance: float | None
) -> tuple[Bound | None, Bound | None, str, list[Assumption]]:
    """Return the last version's gain and drawdown, the reason if there are none, and the assumptions.

    Only the last evaluated version is certified. Any other, such as the peak, would be selected on this holdout.

    Source: eq:gaincert, eq:ddcert.
    """
    points = found.checkpoints
    sealed = _assumption("holdout sealed", *found.sealed, _HOLDOUT)
    if reason := _uncertifiable(found):
        return None, None, reason, [sealed]
    delta = float(found.epochs[-1].opened.delta) if found.epochs else 0.05
    r = points[0].entry.rollouts
    passes = [passes_by_task(p.entry) for p in points]
    seen = max(estimates.variance(passes, r), estimates.paired_variance(passes[0], passes[-1], r))
    used = seen if variance is None else variance
    first, last = points[0].entry, points[-1].entry
    n = len(first.holdout)
    others = {p.entry.bank_hash: p.entry for p in points if p.entry.bank_hash != last.bank_hash}
    banks = 1 + len(others)
    floor = certify_gain(float(mean_gain(first, last).low), n, delta, used)
    ceiling = certify_drawdown(float(mean_gain(last, peak_checkpoint(points).entry).low), n, delta, used, banks)
    gained, bet = _differences(first, last), variance is None
    floor = _with_bet(floor, mean_floor(gained, math.log(1 / delta)), bet=bet)
    drops = [-mean_floor(_differences(entry, last), math.log(len(others) / delta)) for entry in others.values()]
    ceiling = _with_bet(ceiling, max([0.0, *drops]), bet=bet)
    if variance is None:
        return floor, ceiling, "", [sealed]
    return floor, ceiling, "", [sealed, _variance("holdout variance", variance, seen, "the evaluations", _HOLDOUT)]


def _differences(before: Evaluated, after: Evaluated) -> list[float]:
    return [float(change.low) for change in differences(before, after).values()]


def _uncertifiable(found: Measurements) -> str:
    """Return why gain and drawdown cannot be certified, or an empty string if they can."""
    points = found.checkpoints
    if not points:
        return "no evaluation on a holdout is recorded"
    if points[0].entry.version != 0:
        return "step 0 was not evaluated; `valve eval` evaluates it"
    if points[-1].entry.version == 0:
        return "only version 0 was evaluated on the holdout"
    lost = sum(o.outcome == "errored" for p in points for o in p.entry.outcomes)
    if lost:
        return f"{plural(lost, 'holdout rollout')} errored; `valve eval` retries only these"
    return "invalid, because a version was chosen after the holdout was read" if found.sealed[0] is False else ""


# Assumptions of the certificates.


def _assumption(name: str, holds: bool | None, why: str, needed_for: tuple[str, ...] = _PANEL) -> Assumption:
    """Return the assumption; `holds` is None if its status cannot be known here."""
    status: Literal["met", "unmet", "unknown"] = "unknown" if holds is None else "met" if holds else "unmet"
    return Assumption(name=name, status=status, why=why, needed_for=needed_for)


def _variance(name: str, given: float, seen: float | None, where: str, needed_for: tuple[str, ...]) -> Assumption:
    """Return the assumption of a given bound on the variance: unmet if the estimate is above it, else unknown."""
    if seen is None:
        return _assumption(name, None, f"no complete measurement is recorded on {where}", needed_for)
    holds = False if given < seen else None
    return _assumption(name, holds, f"{given:g} was given; {where} show about {seen:.4f}", needed_for)


def number_assumptions(
    n: int, variance: float, needed_for: tuple[str, ...], more: Mapping[str, str]
) -> list[Assumption]:
    """Return the assumptions for numbers that were measured elsewhere, so that nothing about them can be checked.

    Args:
        more: further assumptions, name -> what is assumed.
    """
    reasons = {
        "disjoint": "that nothing was learned from these tasks",
        LIKE_YOURS: f"that they are a random sample, of size {n}, of the tasks you care about",
        "variance": f"that the variance of paired differences is at most {variance:g}",
    }
    return [_assumption(name, None, why, needed_for) for name, why in (*reasons.items(), *more.items())]


def ledger_assumptions(found: Measurements, variance: float | None, plug_in: dict[str, float]) -> list[Assumption]:
    """Return all assumptions of the certificates of a ledger's accepts.

    Args:
        variance: the upper bound that the user gave, if any.
        plug_in: panel hash -> estimated variance from its complete panels.
    """
    seen = max(plug_in.values(), default=None)
    bounds = [] if variance is None else [_variance("variance", variance, seen, "the complete panels", _PANEL)]
    assumptions = [*_about_tasks(found), *_about_epochs(found), *bounds]
    if moves := [move for epoch in found.epochs for move in epoch.accepts]:  # do agents get the contexts judged?
        least = min(moves, key=lambda m: m.verdict.deployed / m.verdict.n_tasks)
        used, of = least.verdict.deployed, least.verdict.n_tasks
        same = "every panel task gets" if used == of else f"only {used} of {plural(of, 'panel task')} get"
        why = f"{same} exactly the notes that were judged (version {least.version})"
        assumptions.append(_assumption("judged = deployed", used == of, why))
    return assumptions


def _about_tasks(found: Measurements) -> Iterator[Assumption]:
    """Yield whether the panel's tasks are new to the bank, and like those of the user."""
    if found.taken:
        why = f"versions up to {found.taken} were accepted without a gate"
        yield _assumption("gated", False, why, ("all versions",))
    if found.owned:
        yield _assumption(
            "owner's acts", False, f"{owned_versions(found.owned)}, not judged by a gate", ("all versions",)
        )
    panel = found.fixed | {task.instance_id for epoch in found.epochs for task in epoch.panel.tasks}
    shared = sorted(panel & found.sources)
    why = f"proposals were learned from {plural(len(shared), 'panel task')}: {', '.join(shared[:3])}" if shared else (
        "no proposal was learned from a panel task" if panel else "no panel is recorded"
    )  # fmt: skip
    yield _assumption("disjoint", not shared if panel else None, why)
    needed = _PANEL * bool(panel) + _HOLDOUT * bool(found.checkpoints) or _PANEL
    yield _assumption(LIKE_YOURS, None, "only you can know whether these are a random sample of your tasks", needed)
    if found.epochs:
        yield _assumption("panel age", None, "only you can know whether your tasks are still like the panel's")


def owned_versions(versions: Sequence[int]) -> str:
    """Return a clause: which versions the bank's owner made."""
    several = len(versions) > 1
    numbers = ", ".join(map(str, versions))
    return f"version{'s' * several} {numbers} {'were' if several else 'was'} made by its owner"


def _about_epochs(found: Measurements) -> Iterator[Assumption]:
    """Yield how often each panel was asked, and whether a person knew more of it than verdicts."""
    for number, epoch in enumerate(found.epochs):
        opened = epoch.opened
        queries = f"{epoch.queries} of {plural(opened.horizon, 'declared query', 'declared queries')} used"
        yield _assumption("horizon", epoch.queries <= opened.horizon, f"epoch {opened.epoch}: {queries}")
        if any(e.opened.panel_hash == opened.panel_hash for e in found.epochs[:number]):
            why = f"epoch {opened.epoch} uses an earlier panel again: valid if no holdout result was the reason"
            yield _assumption("panel reuse", None, why)
    if found.read:
        chosen = f"a person chose line {found.chosen}" if found.chosen else "no person chose a proposal"
        why = f"line {found.read} measured the panel without single items; {chosen} after it"
        yield _assumption("panel read", not found.chosen, why)
