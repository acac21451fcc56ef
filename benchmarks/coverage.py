"""SIMULATION: how often certificates fail, and may, when proposals react to every verdict before them.

    python benchmarks/coverage.py              # some minutes; the last line is the worst ratio

A simulated population of task types with known solve rates. A run draws a panel and a holdout from it and asks the gate
40 times. A proposal shifts the rates of all types; the next one keeps what was accepted, turns away from what was
rejected, and pulls the population down by a little on average: a proposer that fits the panel and harms everything
else, as well as it can see. So every bank's true rate is known, and a certificate fails where it claims too much.

Each certificate is computed by `valve_plugin.theory` three times: by Bennett's bound with the true variance of the
simulated paired difference, for which the theorems hold; with the plug-in estimate, for which they do not; and by the
bet that `valve certify` uses for a ledger, which needs no variance.

Then it counts the accepts of proposals that do not help, per run, where at most `USELESS` were declared: with outcomes
that serve once and a bet, and by the margin alone with outcomes that serve in 15 queries. Proposals do nothing, harm a
little everywhere, or break one task in five and mend fewer; a proposer tries again what was rejected and turns to
what was nearly accepted.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from valve_plugin.theory import certificates, gate_rule, power
from valve_plugin.theory.confidence_sequence import log_capital

Array = NDArray[np.float64]
USELESS = (1, 5)
TYPES, PANEL, HOLDOUT, ROLLOUTS, HORIZON, NEEDED = 100, 50, 100, 3, 40, 1
CHECKPOINTS = (0, 10, 20, 30, 40)
DELTAS = (0.05, 0.2)
KEEP, TURN, REACH, HARM = 0.9, 0.3, 0.4, 0.01
"""Chance that a type keeps the direction of an accepted move, that it turns after a rejected one; how far rates are
shifted; and how much lower the mean shift is."""


class Accept(NamedTuple):
    """An accepted move of every run that had one at this query."""

    run: NDArray[np.int64]
    number: NDArray[np.int64]
    """k."""
    measured: Array
    true: Array
    variance: Array
    """Of the paired difference of this very pair of banks."""


class Runs(NamedTuple):
    """What many runs, side by side, ended with."""

    accepts: list[Accept]
    differences: list[NDArray[np.int64]]
    """By query: of each accepted run's panel tasks, in rollouts."""
    plug_in: Array
    """Per run, as `estimates.variance` over its complete panels."""
    banks: Array
    """(checkpoint, run, type): true rates."""
    versions: NDArray[np.int64]
    """(checkpoint, run): accepts so far."""


class Tally:
    """Claims made and claims that were false."""

    def __init__(self) -> None:
        self.failed = self.runs = 0

    def add(self, failures: NDArray[np.bool_]) -> None:
        """Count one claim for each run."""
        self.failed, self.runs = self.failed + int(failures.sum()), self.runs + len(failures)

    def ratio(self, delta: float) -> float:
        """Observed over nominal."""
        return self.failed / self.runs / delta


def evolve(draw: np.random.Generator, runs: int, *, confirm: bool) -> Runs:
    """Run the gate over adaptive proposals in every run at once."""
    rates = np.tile(_population(draw), (runs, 1))
    panel = draw.integers(0, TYPES, (runs, PANEL))
    now = _rollouts(draw, rates, panel)
    mass, panels, widest = _mass(now), np.ones(runs), np.zeros(runs)
    direction = draw.choice((-1.0, 1.0), (runs, TYPES))
    number = np.zeros(runs, dtype=np.int64)
    accepts, differences, banks, versions = [], [], [rates.copy()], [number.copy()]
    for query in range(1, HORIZON + 1):
        candidate = np.clip(rates + REACH * direction * draw.random((runs, 1)) - HARM, 0, 1)
        then = _rollouts(draw, candidate, panel)
        yes = then.sum(1) - now.sum(1) >= NEEDED
        if confirm:
            then = _rollouts(draw, candidate, panel)
            yes &= then.sum(1) - now.sum(1) >= NEEDED
        number += yes
        gained, variance = _moments(candidate, rates)
        measured = (then.sum(1) - now.sum(1)) / (PANEL * ROLLOUTS)
        accepts.append(Accept(np.flatnonzero(yes), number[yes], measured[yes], gained[yes], variance[yes]))
        differences.append((then - now)[yes])
        widest[yes] = np.maximum(widest[yes], ((then - now)[yes] / ROLLOUTS).var(axis=1, ddof=1))
        mass[yes], panels[yes] = mass[yes] + _mass(then[yes]), panels[yes] + 1
        rates, now = np.where(yes[:, None], candidate, rates), np.where(yes[:, None], then, now)
        turned = draw.random((runs, TYPES)) < np.where(yes, (1 - KEEP) / 2, TURN)[:, None]
        direction = np.where(turned, -direction, direction)
        if query in CHECKPOINTS:
            banks.append(rates.copy())
            versions.append(number.copy())
    spread = (PANEL * mass / panels + 1 / 6) / (PANEL + 1)  # one task of unknown rate, as `estimates.rate_spread`
    plug_in = np.minimum(1.0, np.maximum((1 + 2 / ROLLOUTS) * spread, widest))
    return Runs(accepts, differences, plug_in, np.array(banks), np.array(versions))


def check_moves(found: Runs, delta: float, tallies: tuple[Tally, Tally, Tally]) -> None:
    """Count the runs in which some accept lost more, or gained less, than certified: all accepts at once."""
    wrong = np.zeros(len(found.plug_in), dtype=bool)
    for a, differences in zip(found.accepts, found.differences, strict=True):
        for i in np.flatnonzero(a.measured > a.true):  # a floor is never above what was measured
            log_term = certificates.move_log_term(HORIZON, int(a.number[i]), delta)
            wrong[a.run[i]] |= _bet(differences[i], float(a.true[i])) >= log_term
    tallies[2].add(wrong)
    for tally, plug in zip(tallies[:2], (False, True), strict=True):
        failed = np.zeros(len(found.plug_in), dtype=bool)
        for a in found.accepts:
            variance = found.plug_in[a.run] if plug else a.variance
            for i in np.flatnonzero(_beyond(a, variance, delta)):
                claim = certificates.accepted_move(
                    float(a.measured[i]), PANEL, HORIZON, int(a.number[i]), delta, float(variance[i])
                )
                failed[a.run[i]] |= a.true[i] < claim.value
        tally.add(failed)


def check_holdout(
    draw: np.random.Generator, found: Runs, delta: float, tallies: dict[str, tuple[Tally, Tally, Tally]]
) -> None:
    """Count false gains, drawdowns and separations on a fresh holdout per run."""
    runs = len(found.plug_in)
    holdout = draw.integers(0, TYPES, (runs, HOLDOUT))
    passed = np.array([_rollouts(draw, bank, holdout) for bank in found.banks])
    first, last = found.banks[0], found.banks[-1]
    other = np.roll(last, 1, axis=0)  # another run's bank stands for the one that is compared with
    passed_other = _rollouts(draw, other, holdout)
    gain, separation = _moments(last, first), _moments(last, other)
    drops = [_moments(bank, last) for bank in found.banks[:-1]]
    drop, spread = np.max([d for d, _ in drops], axis=0), np.max([v for _, v in drops], axis=0)
    distinct = 1 + (np.diff(found.versions, axis=0) > 0).sum(0)
    for name, change, truth in (("gain", passed[-1] - passed[0], gain[0]),
                                ("separation", passed[-1] - passed_other, separation[0])):  # fmt: skip
        tallies[name][2].add(np.array([_bet(d, t) >= math.log(1 / delta) for d, t in zip(change, truth, strict=True)]))
    low = np.zeros(runs, dtype=bool)
    for before, (fall, _) in zip(passed[:-1], drops, strict=True):  # the drop from some bank is more than its ceiling
        terms = np.log(np.maximum(distinct - 1, 1) / delta)
        low |= np.array([_bet(d, -t) >= g for d, t, g in zip(passed[-1] - before, fall, terms, strict=True)])
    tallies["drawdown"][2].add(low & (drop > 0))
    for plug in (False, True):
        v_gain = _plug_in(passed[0], passed[-1]) if plug else gain[1]
        v_drop = np.max([_plug_in(p, passed[-1]) for p in passed[:-1]], axis=0) if plug else spread
        v_other = _plug_in(passed_other, passed[-1]) if plug else separation[1]
        measured = _mean(passed[-1]) - _mean(passed[0])
        seen = np.maximum(0, np.max([_mean(p) - _mean(passed[-1]) for p in passed[:-1]], axis=0))
        apart = _mean(passed[-1]) - _mean(passed_other)
        tallies["gain"][plug].add(gain[0] < _claims(certificates.gain, measured, v_gain, delta))
        ceiling = [
            certificates.drawdown(float(m), HOLDOUT, delta, float(v), int(a)).value
            for m, v, a in zip(seen, v_drop, distinct, strict=True)
        ]
        tallies["drawdown"][plug].add(np.maximum(drop, 0) > np.array(ceiling))
        tallies["separation"][plug].add(separation[0] < _claims(certificates.gain, apart, v_other, delta))
        four = runs // 4 * 4
        mean, truth = (x[:four].reshape(-1, 4).mean(1) for x in (apart, separation[0]))
        most = v_other[:four].reshape(-1, 4).max(1)
        floors = [
            certificates.gain(float(m), 4 * HOLDOUT, delta, float(v)).value for m, v in zip(mean, most, strict=True)
        ]
        tallies["separation of 4"][plug].add(truth < np.array(floors))


def main() -> None:
    """Print one row per certificate, and the worst ratio last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help="per gate (plain, confirmed); default 20000")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = ("accepts", "gain", "drawdown", "separation", "separation of 4")
    worst, started = 0.0, time.monotonic()
    print("SIMULATION")
    print(f"{'gate':10} {'certificate':16} {'delta':>5} {'runs':>7} {'failed, true variance':>22} {'plug-in':>16}"
          f" {'bet':>16}")  # fmt: skip
    for confirm in (False, True):
        tallies = {(name, delta): (Tally(), Tally(), Tally()) for name in names for delta in DELTAS}
        draw, done, accepted = np.random.default_rng([given.seed, confirm]), 0, 0
        while done < given.runs:
            block = min(2000, given.runs - done)
            found = evolve(draw, block, confirm=confirm)
            accepted += int(found.versions[-1].sum())
            for delta in DELTAS:
                check_moves(found, delta, tallies["accepts", delta])
                check_holdout(draw, found, delta, {name: tallies[name, delta] for name in names[1:]})
            done += block
            _tell(started, (confirm + done / given.runs) / 2)
        gate = "confirmed" if confirm else "plain"
        for (name, delta), (true, plug, bet) in tallies.items():
            cells = f"{_cell(true, delta):>22} {_cell(plug, delta):>16} {_cell(bet, delta) if bet.runs else '-':>16}"
            print(f"{gate:10} {name:16} {delta:5} {true.runs:7} {cells}")
            worst = max(worst, true.ratio(delta), bet.ratio(delta) if bet.runs else 0.0)
        print(f"{gate:10} {accepted / given.runs:.1f} accepts a run")
    for declared in USELESS:
        for bet in (True, False):
            mean, error = useless_accepts(np.random.default_rng(given.seed), given.runs // 20, declared if bet else 0)
            print(
                f"useless accepts a run, {f'declared {declared}' if bet else 'margin alone'}: {mean:.3f} ± {error:.3f}"
            )
            worst = max(worst, mean / declared if bet else 0.0)
    print(f"worst observed/nominal with the true variance, or by a bet: {worst:.3f} (at most 1)")
    sys.exit(worst > 1)


def useless_accepts(draw: np.random.Generator, runs: int, declared: int) -> tuple[float, float]:
    """Return accepts a run of proposals that do not raise the panel's mean rate, and the half width of their interval.

    Args:
        declared: at most so many, kept by a bet on outcomes that serve once; 0: by the margin, in 15 queries.
    """
    gate_bet = math.log(gate_rule.bet_needed(HORIZON, declared)) if declared else -math.inf
    serve = 1 if declared else gate_rule.FRESH_QUERIES
    rates = _population(draw)[draw.integers(0, TYPES, (runs, PANEL))]
    now, served = np.full((runs, PANEL), -1), np.zeros(runs, dtype=np.int64)
    kind, accepted = draw.integers(0, 3, runs), np.zeros(runs)
    table = power.capitals(PANEL * ROLLOUTS)
    for _ in range(HORIZON):
        lacking = now[:, 0] < 0
        now[lacking] = draw.binomial(ROLLOUTS, rates[lacking])
        struck = draw.random((runs, PANEL))
        broken = np.where(struck < 0.2, 0.0, np.where(struck > 1 - 0.2 * rates.mean(1, keepdims=True) / 2, 1.0, rates))
        after = np.choose(kind[:, None], [rates, np.clip(rates - HARM, 0, 1), broken])
        useless = after.mean(1) <= rates.mean(1) + 1e-12
        cells = np.arange(ROLLOUTS) < now[:, :, None]
        then = draw.random((runs, PANEL, ROLLOUTS)) < after[:, :, None]
        gained = then.sum((1, 2)) - now.sum(1)
        better, worse = (then & ~cells).sum((1, 2)), (cells & ~then).sum((1, 2))
        yes = (gained >= NEEDED) & (table[better, worse] >= gate_bet)
        accepted += yes & useless
        rates = np.where(yes[:, None], after, rates)
        served += 1
        old = yes | (served >= serve)
        now[old], served[old] = -1, 0
        kind = np.where(~yes & (gained >= 0), kind, draw.integers(0, 3, runs))  # once more what came near
    return float(accepted.mean()), float(1.96 * accepted.std(ddof=1) / math.sqrt(runs))


def _bet(differences: NDArray[np.int64], mean: float) -> float:
    """Return the logarithm of the capital of a bet that the mean of these, in rollouts, is above a mean rate."""
    values, counts = np.unique(differences, return_counts=True)
    return log_capital(list(zip((values / ROLLOUTS).tolist(), counts.tolist(), strict=True)), mean)


def _population(draw: np.random.Generator) -> Array:
    """Rates of the types: of every kind, most of them unsteady, so that there is much to gain by luck."""
    return draw.beta(1.5, 1.0, TYPES)


def _rollouts(draw: np.random.Generator, rates: Array, tasks: NDArray[np.int64]) -> NDArray[np.int64]:
    return draw.binomial(ROLLOUTS, np.take_along_axis(rates, tasks, axis=1))


def _moments(after: Array, before: Array) -> tuple[Array, Array]:
    """Mean and variance of a task's measured difference, over tasks and rollouts."""
    change = after - before
    noise = (after * (1 - after) + before * (1 - before)).mean(1) / ROLLOUTS
    return change.mean(1), change.var(1) + noise


def _mass(passed: NDArray[np.int64]) -> Array:
    mass: Array = (passed * (ROLLOUTS - passed)).mean(1) / (ROLLOUTS * (ROLLOUTS - 1))
    return mass


def _plug_in(before: NDArray[np.int64], after: NDArray[np.int64]) -> Array:
    """As `estimates.variance` of two complete panels."""
    n = before.shape[1]
    mass = (n * (_mass(before) + _mass(after)) / 2 + 1 / 6) / (n + 1)
    paired = ((after - before) / ROLLOUTS).var(axis=1, ddof=1)
    return np.minimum(1.0, np.maximum((1 + 2 / ROLLOUTS) * mass, paired))


def _beyond(a: Accept, variance: Array, delta: float) -> NDArray[np.bool_]:
    """Which accepts can have failed at all: those further from the truth than the smallest radius, M = 1."""
    if not len(a.run):
        return np.zeros(0, dtype=bool)
    logs = np.array([certificates.move_log_term(HORIZON, int(k), delta) for k in a.number])
    radius = np.array([certificates.radius(PANEL, float(t), float(v)) for t, v in zip(logs, variance, strict=True)])
    return a.measured - a.true > radius * (1 - 1e-9)


def _claims(
    claim: Callable[[float, int, float, float], certificates.Certificate],
    measured: Array,
    variance: Array,
    delta: float,
) -> Array:
    pairs = zip(measured, variance, strict=True)
    return np.array([claim(float(m), HOLDOUT, delta, float(v)).value for m, v in pairs])


def _mean(passed: NDArray[np.int64]) -> Array:
    mean: Array = passed.mean(1) / ROLLOUTS
    return mean


def _cell(tally: Tally, delta: float) -> str:
    return f"{tally.failed} = {tally.ratio(delta):.2f} of {math.ceil(delta * tally.runs)}"


def _tell(started: float, share: float) -> None:
    left = (time.monotonic() - started) * (1 / share - 1)
    print(f"\r{100 * share:3.0f} %, {left:.0f} s left ", end="" if share < 1 else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
