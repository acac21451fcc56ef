"""How many tasks go where when there are few, and what a gate over so small a panel is worth. Pure."""

from __future__ import annotations

from typing import NamedTuple

from valve_plugin.theory import estimates, gate, power

REFERENCE = 50
"""Panel tasks of the reference protocol (tab:impl-config); of a smaller panel it is said what it is worth."""
_TYPICAL = estimates.Spread(0.75, 0.05)
"""Mean and noise of solve rates before anything ran: most tasks are solved, and solved nearly always."""
_EFFECT = 0.05


class Sizes(NamedTuple):
    """Tasks of holdout and panel; the others are learned from."""

    holdout: int
    panel: int


def fitting(tasks: int) -> Sizes | None:
    """Return sizes that give the panel most of so many tasks; None: there are too few for a panel of two."""
    return Sizes(max(1, tasks // 5), tasks // 2) if tasks >= 4 else None


def worth(panel: int, rollouts: int = 3, rho: str = "0.02") -> str:
    """Return in words how often a gate over so many tasks is wrong, as `valve plan` says before anything ran."""
    beliefs, needed = [estimates.stated(_TYPICAL)] * panel, gate.needed_passes(rho, panel, rollouts)
    wrong, right = (
        power.accept_fresh(beliefs, rollouts, needed, power.change(beliefs, effect)) for effect in (0, _EFFECT)
    )
    return (
        f"a gate over {panel} x {rollouts} at margin {rho} accepts about {100 * wrong:.0f} % of the proposals that "
        f"change nothing and {100 * right:.0f} % of those worth 5 points, where three quarters of the rollouts pass "
        f"(`valve plan --base-rate {_TYPICAL.mean} --vmass {_TYPICAL.mass} --panel-size {panel}`)"
    )
