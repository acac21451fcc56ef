"""Figures of a plan: what the gate accepts and what it takes, by the true effect of a proposal. Black and white."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from valve_plugin.errors import ConfigError
from valve_plugin.report.plan import GatePlan
from valve_plugin.theory import power, repeated
from valve_plugin.theory.repeated import Gate

_LOWEST, _HIGHEST, _STEP = -4, 12, 1
"""Effects drawn, in points."""
_LINES = ({"linestyle": "-"}, {"linestyle": "--"}, {"linestyle": ":"})


def gate_figure(beliefs: Sequence[power.Belief], gate: GatePlan, file: str) -> None:
    """Draw the chance of an accept after a fresh baseline, with and without confirmation, by the true effect.

    The file is the same for the same numbers: it holds no date and no random names.

    Raises:
        ConfigError: the extra `report` is missing, or the file cannot be written.
        ValueError: the panel is too large for the exact chances of a confirmed gate.
    """
    plt = _pyplot()
    rules = {
        "as planned, without confirm": Gate(gate.rollouts, gate.needed, guard=gate.guard),
        "with confirm": Gate(gate.rollouts, gate.needed, confirm=True, guard=gate.guard),
        "twice the rollouts instead": Gate(2 * gate.rollouts, 2 * gate.needed, guard=gate.guard),
    }
    effects = [e for e in range(_LOWEST, _HIGHEST + 1, _STEP) if _possible(beliefs, e / 100)]
    axes: Any
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (name, rule), style in zip(rules.items(), _LINES, strict=True):
        chances = [100 * repeated.accept_fresh(beliefs, rule, power.change(beliefs, e / 100)) for e in effects]
        axes.plot(effects, chances, color="black", label=name, **style)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set(xlabel="true effect of the proposal, points", ylabel="chance of an accept, %", ylim=(0, 100))
    axes.set_title(
        f"{gate.tasks} tasks x {gate.rollouts} rollouts, margin {gate.rho}; mean rate {100 * gate.mean_rate:.0f} %, "
        f"noise {gate.noise:.3f}",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    axes.grid(color="0.9")
    try:
        figure.savefig(file, metadata={"Date": None} if Path(file).suffix == ".svg" else None)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{file}: {e}; name a file ending in .svg, .pdf or .png in a folder that exists") from e
    finally:
        plt.close(figure)


def _possible(beliefs: Sequence[power.Belief], effect: float) -> bool:
    try:
        power.change(beliefs, effect)
    except ValueError:
        return False
    return True


def _pyplot() -> Any:
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        import matplotlib.pyplot as plt
    except ImportError as e:
        raise ConfigError("figures take matplotlib, which is not installed: pip install 'valve-plugin[report]'") from e
    plt.rcParams.update({"svg.hashsalt": "valve", "svg.fonttype": "path", "font.size": 9})
    return plt
