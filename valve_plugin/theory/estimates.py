"""What complete panels say about a panel's solve rates, and the variance the certificates need.

Every estimate counts one more task of unknown (uniformly distributed) rate, so that a small panel on which
nothing varied does not claim that nothing can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from valve_plugin.theory.convergence import variance_bound, vmass
from valve_plugin.theory.power import Belief, Beta, Known

_MOST_ALIKE = 100.0  # pseudo-rollouts of a population whose tasks look all the same


class Spread(NamedTuple):
    """How the solve rates p of a panel's tasks are spread."""

    mean: float
    """E[p]."""
    mass: float
    """E[p(1-p)], the rollout noise of one task."""


def spread(panels: Sequence[Sequence[int]], rollouts: int) -> Spread:
    """Return mean and noise of the solve rates, from one or more complete measurements of the same panel.

    Args:
        panels: for each measurement, the resolved rollouts of every task, each in 0..r.
        rollouts: r. With r = 1 nothing shows a task's own noise: the most that the mean allows is taken.
    Raises:
        ValueError: no measurement, no task, or a count out of range.
    Source: eq:vmass, averaged over the measurements. Differs: one task of unknown rate is added.
    """
    if not panels or not panels[0]:
        raise ValueError(f"{len(panels)} measurements, expected at least one of at least one task")
    n = len(panels[0])
    mean = (sum(map(sum, panels)) / (len(panels) * rollouts) + 1 / 2) / (n + 1)
    if rollouts == 1:
        return Spread(mean, mean * (1 - mean))
    mass = sum(vmass(passes, rollouts) for passes in panels) / len(panels)
    return Spread(mean, (n * mass + 1 / 6) / (n + 1))


def population(rates: Spread) -> Beta:
    """Return the Beta distribution with this mean and this noise; Beta(1, 1) for those of a uniform rate.

    Raises:
        ValueError: no distribution on [0, 1] has them, or one so narrow or wide that it is no Beta.
    """
    if not 0 < rates.mean < 1 or rates.mass <= 0:
        raise ValueError(f"mean rate {rates.mean} and noise {rates.mass}, expected a mean in (0, 1) and noise above 0")
    between = rates.mean * (1 - rates.mean) - rates.mass  # Var[p]; an unbiased estimate may be negative
    weight = rates.mass / between if between > rates.mass / _MOST_ALIKE else _MOST_ALIKE
    return Beta(rates.mean * weight, (1 - rates.mean) * weight)


def stated(rates: Spread) -> Belief:
    """Return the distribution of solve rates with exactly this mean and noise, which somebody stated.

    Unlike `population`, whose estimates may be a little impossible by chance, this changes nothing: the Beta, or one
    rate for all tasks where the noise is all that the mean allows.

    Raises:
        ValueError: no solve rates have this mean and noise, or only rates of 0 and 1.
    """
    mean, mass = rates
    if not 0 < mean < 1:
        raise ValueError(f"the mean solve rate is {mean:g}, expected one between 0 and 1: 75 % are 0.75")
    most = mean * (1 - mean)
    if not 0 < mass <= most * (1 + 1e-9):
        raise ValueError(
            f"tasks that pass {100 * mean:g} % of their rollouts have a mean p(1-p) above 0 and of at most {most:.4g}, "
            f"not {mass:g}; {most:.4g} is when all have the same rate, less the more they differ"
        )
    between = most - mass
    if between <= most * 1e-9:
        return Known(mean)
    return Beta(mean * mass / between, (1 - mean) * mass / between)


def posterior(
    panels: Sequence[Sequence[int]], rollouts: int, current: Sequence[Sequence[int]] | None = None
) -> list[Beta]:
    """Return what is believed about each task's rate under the current bank.

    The noise of a rate is learned from all measurements, its level from those of the current bank: earlier ones had
    other rates. An accepted measurement was chosen for being high, so it is likely to flatter its bank a little.

    Args:
        current: the measurements of the current bank; None: the last one.
    """
    now = current or panels[-1:]
    prior = population(Spread(spread(now, rollouts).mean, spread(panels, rollouts).mass))
    passed = [sum(task) for task in zip(*now, strict=True)]
    return [prior.updated(p, rollouts * len(now) - p) for p in passed]


def paired_variance(before: Sequence[int], after: Sequence[int], rollouts: int) -> float:
    """Return the sample variance of the per-task differences of two measurements, in squared rate units."""
    differences = [(b - a) / rollouts for a, b in zip(before, after, strict=True)]
    if len(differences) < 2:
        return 0.0
    mean = math.fsum(differences) / len(differences)
    return math.fsum((d - mean) ** 2 for d in differences) / (len(differences) - 1)


def variance(panels: Sequence[Sequence[int]], rollouts: int, planned: int | None = None) -> float:
    """Return a plug-in for the variance of a paired difference; an estimate, not a bound.

    The larger of (1 + 2/r) E[p(1-p)] and of what consecutive measurements differed by; at most 1.

    Args:
        rollouts: r of the measurements.
        planned: r of the differences to come, where it is another one; then only the first term is known.
    Source: app:preflight-proof (law of total variance) with eps_var = 0.
    """
    r = planned or rollouts
    seen = [paired_variance(a, b, rollouts) for a, b in pairwise(panels)] if r == rollouts else []
    return min(1.0, max(variance_bound(spread(panels, rollouts).mass, r), *seen, 0.0))
