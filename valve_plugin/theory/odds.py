"""The odds of a gate that still runs: informational, and for guesses about what comes next. No verdict uses them."""

from __future__ import annotations

from math import exp, lgamma


def accept_odds(wanted: int, open_rollouts: int, passed: int, failed: int) -> float:
    """Return the probability that at least `wanted` of `open_rollouts` pass, given rollouts that did and did not.

    All rollouts count as draws with one unknown rate (Jeffreys' prior), so their number is beta-binomial.

    Args:
        wanted: passes that the candidate still needs; at most 0: it has them.
        open_rollouts: rollouts of the candidate that have not ended.
        passed: rollouts that passed, of the candidate so far and of the current bank on the same panel tasks.
        failed: those that did not.

    Raises:
        ValueError: a count is negative.
    """
    if min(open_rollouts, passed, failed) < 0:
        raise ValueError(f"counts are {open_rollouts}, {passed} and {failed}, expected none below 0")
    if wanted <= 0:
        return 1.0
    a, b, n = passed + 0.5, failed + 0.5, open_rollouts
    scale = lgamma(n + 1) + lgamma(a + b) - lgamma(a) - lgamma(b) - lgamma(n + a + b)
    terms = (
        exp(scale + lgamma(k + a) + lgamma(n - k + b) - lgamma(k + 1) - lgamma(n - k + 1)) for k in range(wanted, n + 1)
    )
    return min(1.0, sum(terms))
