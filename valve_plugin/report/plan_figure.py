"""The figure of a plan: what a gate accepts, by the true effect of a proposal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING

from valve_plugin.report.plan import GatePlan
from valve_plugin.report.style import ACCENT, INK, SECOND, SOFT, Figure, new
from valve_plugin.report.words import counted
from valve_plugin.theory import power, repeated
from valve_plugin.theory.repeated import Gate

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_EFFECTS = range(-4, 13)
"""Drawn, in points."""
_LINES = (("-", "o", ACCENT), ("--", "s", SECOND), (":", "^", INK))


def gate_figure(
    beliefs: Sequence[power.Belief], gate: GatePlan, told: Callable[[float], None] = lambda _: None
) -> Figure:
    """Return the chance of an accept after a fresh baseline, with and without confirmation, by the true effect.

    Args:
        told: is given the share that is computed, now and then.
    Raises:
        ValueError: the panel is too large for the exact chances of a confirmed gate.
    """
    rules = {
        "without confirm": Gate(gate.rollouts, gate.needed, guard=gate.guard),
        "with confirm": Gate(gate.rollouts, gate.needed, confirm=True, guard=gate.guard),
        "without confirm, twice the rollouts": Gate(2 * gate.rollouts, 2 * gate.needed, guard=gate.guard),
    }
    effects = [e for e in _EFFECTS if _possible(beliefs, e / 100)]
    chances: dict[str, list[float]] = {name: [] for name in rules}
    for done, (effect, (name, rule)) in enumerate(product(effects, rules.items()), start=1):
        chances[name].append(repeated.accept_fresh(beliefs, rule, power.change(beliefs, effect / 100)))
        told(done / (len(effects) * len(rules)))
    return Figure("gate", "What this gate accepts", _caption(gate), lambda: _draw(effects, chances))


def _draw(effects: Sequence[int], chances: dict[str, list[float]]) -> Canvas:
    canvas, axes = new(4.2, nrows=1)
    for (name, drawn), (line, shape, colour) in zip(chances.items(), _LINES, strict=True):
        axes.plot(effects, drawn, line, marker=shape, markersize=4, color=colour, linewidth=1.8, label=name)
    axes.axvline(0, color=SOFT, linewidth=0.8)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylabel("chance of an accept")
    axes.set_xlabel("true effect of the proposal, points")
    axes.legend(loc="lower right", fontsize=8)
    return canvas


def _caption(gate: GatePlan) -> str:
    panel = f"{counted(gate.tasks, 'task')} x {counted(gate.rollouts, 'rollout')}, margin {gate.rho}"
    guard = f" In all three no task may pass {gate.guard} fewer." if gate.guard else ""
    return (
        f"Computed, not measured: the exact chance that a gate of {panel} accepts a proposal, after a fresh baseline, "
        f"over rates of {gate.source} (mean {100 * gate.mean_rate:.0f} %, noise p(1-p) {gate.noise:.3f}).{guard} Left "
        "of 0 an accept does harm, at 0 it is for nothing. An effect is spread evenly over the rollouts it can change."
    )


def _possible(beliefs: Sequence[power.Belief], effect: float) -> bool:
    try:
        power.change(beliefs, effect)
    except ValueError:
        return False
    return True
