"""How often a positive-margin gate can accept, and the variance its rollouts can have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def accept_cap(rho: str, start: Fraction = Fraction(0)) -> int:
    """Return the most moves that can be accepted: floor((1 - F0)/rho); floor(1/rho) for F0 = 0.

    Args:
        rho: the margin as decimal text, so that 0.02 is one fiftieth exactly.
        start: the recorded panel score of the first bank, exact, in [0, 1].
    Raises:
        ValueError: rho is not in (0, 1] or start not in [0, 1].
    Source: eq:count.
    """
    margin = _margin(rho)
    if not 0 <= start <= 1:
        raise ValueError(f"start is {start}, expected a rate between 0 and 1")
    return math.floor((1 - start) / margin)


def localized_cap(rho: str, unstable: Fraction, residual: Fraction = Fraction(0)) -> int:
    """Return floor((h_hat + eps_loc)/rho): the cap when gains stay on baseline-unstable tasks.

    Args:
        unstable: observed share of panel tasks with mixed baseline rollouts; it underestimates the true
            share, since a rarely solved task can fail in all r rollouts.
        residual: eps_loc, allowance for gains elsewhere; zero is an assumption, not a finding.
    Source: eq:Kbound, ass:local.
    """
    if not (0 <= unstable <= 1 and residual >= 0):
        raise ValueError(f"unstable is {unstable} and residual {residual}, expected a share and a value >= 0")
    return math.floor((unstable + residual) / _margin(rho))


def rescored_cap(rho: str, drift: Fraction) -> int:
    """Return floor(1/(rho - 2 eta)): the cap when the current bank is re-scored at every comparison.

    Raises:
        ValueError: the drift bound eta is not below rho/2, where nothing can be said.
    Source: remark after the proof of thm:conv-main.
    """
    margin = _margin(rho)
    if not 0 <= drift < margin / 2:
        raise ValueError(f"drift is {drift}, expected at least 0 and below rho/2 = {margin / 2}")
    return math.floor(1 / (margin - 2 * drift))


def unstable_share(passes: Sequence[int], rollouts: int) -> Fraction:
    """Return h_hat: the share of tasks whose r baseline rollouts were neither all passed nor all failed.

    Args:
        passes: resolved rollouts per task, each in 0..r.
        rollouts: r.
    Source: app:preflight-proof.
    """
    _check(passes, rollouts, least=1)
    return Fraction(sum(0 < p < rollouts for p in passes), len(passes))


def vmass(passes: Sequence[int], rollouts: int) -> float:
    """Return the unbiased plug-in of E[p(1-p)] from r baseline rollouts per task.

    Raises:
        ValueError: no tasks, fewer than two rollouts (the correction r/(r-1) needs two), counts out of range.
    Source: eq:vmass.
    """
    _check(passes, rollouts, least=2)
    total = sum(Fraction(p * (rollouts - p), rollouts * (rollouts - 1)) for p in passes)
    return float(total / len(passes))


def variance_bound(mass: float, rollouts: int, residual: float = 0.0) -> float:
    """Return (1 + 2/r) vmass + 2 eps_var, the variance of a fresh paired difference under ass:local.

    Source: app:preflight-proof, law of total variance.
    """
    if mass < 0 or residual < 0 or rollouts < 1:
        raise ValueError(f"mass {mass}, residual {residual} and rollouts {rollouts} must not be negative")
    return (1 + 2 / rollouts) * mass + 2 * residual


def _margin(rho: str) -> Fraction:
    margin = Fraction(rho)
    if not 0 < margin <= 1:
        raise ValueError(f"rho is {rho}, expected a margin between 0 and 1")
    return margin


def _check(passes: Sequence[int], rollouts: int, *, least: int) -> None:
    if rollouts < least or not passes or not all(0 <= p <= rollouts for p in passes):
        raise ValueError(
            f"expected at least one task, r >= {least} and pass counts in 0..r; got {len(passes)} tasks, r = {rollouts}"
        )
