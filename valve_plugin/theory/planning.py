"""How many tasks a promise takes: holdout and panel sizes for a tolerance."""

from __future__ import annotations

import math

from valve_plugin.theory.bennett import closed_form_n, smallest_n
from valve_plugin.theory.certificates import move_log_term, probability


def holdout_size(tolerance: float, banks: int, delta: float, variance: float, *, closed_form: bool = False) -> int:
    """Return the holdout tasks with which population drawdown exceeds the measured one by at most `tolerance`.

    Args:
        tolerance: gamma, rate units.
        banks: A, distinct banks among the checkpoints.
        closed_form: use eq:sizing instead of inverting the exact radius; never smaller.
    Source: cor:sizing with L = ln(A/delta), M = 1; tab:sizing, left.
    """
    if banks < 1:
        raise ValueError(f"banks is {banks}, expected at least 1")
    size = closed_form_n if closed_form else smallest_n
    return size(tolerance, math.log(banks / probability(delta)), variance, 1.0)


def panel_size(
    tolerance: float,
    accepts: int,
    horizon: int,
    delta: float,
    variance: float,
    anchor: float,
    *,
    closed_form: bool = False,
) -> int:
    """Return the panel tasks with which no accept of a run with at most `accepts` loses more than `tolerance`.

    Args:
        tolerance: gamma, rate units.
        accepts: K. The largest L_k among k <= K counts (L_k falls again beyond half the horizon).
        horizon: T, gate queries declared in advance.
        anchor: the measured panel gain of an accept (at least rho), rate units.
    Source: cor:sizing with L = L_K, M = 1 + gamma and gamma replaced by anchor + gamma; tab:sizing, right.
    """
    if not 0 <= anchor <= 1:
        raise ValueError(f"anchor is {anchor}, expected a measured gain between 0 and 1")
    log_term = max(move_log_term(horizon, k, delta) for k in range(1, accepts + 1))
    size = closed_form_n if closed_form else smallest_n
    return size(anchor + tolerance, log_term, variance, 1 + tolerance)
