"""What `valve plan` says about a gate and about sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valve_plugin.cli import output
from valve_plugin.cli.ranges import points

if TYPE_CHECKING:
    from valve_plugin.report.plan import Cost, GatePlan, Sizing


def show_gate(gate: GatePlan, price: Cost | None) -> None:
    """Print what a gate accepts, what that costs, and what would make it better."""
    from valve_plugin.report.plan import beyond, percent

    total = gate.tasks * gate.rollouts
    panel = f"{output.plural(gate.tasks, 'task')} x {output.plural(gate.rollouts, 'rollout')}"
    output.say(
        f"The gate: {panel}, margin {gate.rho}{beyond(gate)}: "
        f"an accept takes {output.plural(gate.needed, 'more pass', 'more passes')} of {total}",
        style="bold",
    )
    output.say(f"rates of {gate.source}: mean {100 * gate.mean_rate:.1f} %, noise p(1-p) {gate.noise:.3f}")
    output.say()
    carried = any(o.carried is not None for o in gate.odds)
    header = [
        "TRUE EFFECT",
        "ACCEPTED, FRESH BASELINE",
        *["ACCEPTED NOW"] * carried,
        f"ROLLOUTS OF {total * (1 + gate.confirm)}",
    ]
    rows = []
    for o in gate.odds:
        name = "nothing" if o.effect == 0 else f"{points(o.effect)} points"
        chances = [o.fresh, *[o.carried] * carried]
        shown = ["not that much to gain" if c is None else percent(c) for c in chances]
        rows.append([name, *shown, "" if o.rollouts is None else f"{o.rollouts:.0f}"])
    output.table(header, rows)
    output.say()
    if price:
        output.say(_price(price))
    output.say(gate.advice, style="bold")
    output.say("An effect is spread evenly over failing rollouts, and rates are estimates.")
    if carried:
        output.say(
            "Carried outcomes are taken at face value; accepted ones flatter, so the true chances now are lower."
        )
    output.say()


def _price(price: Cost) -> str:
    idle = output.plural(price.queries, "proposal that changes nothing", "proposals that change nothing")
    text = f"An epoch of {idle} takes about {output.plural(price.rollouts, 'rollout')}"
    money = "dollars unknown: no cost is recorded" if price.usd is None else f"${price.usd:.2f}"
    time = "hours unknown: no time is recorded" if price.hours is None else f"{price.hours:.1f} hours one after another"
    return f"{text}; {money}; {time}" + (
        f" (means of {output.plural(price.measured, 'panel rollout')} here)" if price.measured else ""
    )


def show_sizes(sizes: Sizing, why: str) -> None:
    """Print how many tasks each tolerance takes.

    Args:
        why: where the variance is from.
    """
    output.say(f"Tasks for a tolerance: variance {sizes.variance:.4g} ({why}), delta {sizes.delta:g}", style="bold")
    output.say(
        f"holdout: the certified drawdown exceeds the measured one by at most the tolerance, for A different banks; "
        f"panel: none of up to K accepts, each measured {points(sizes.anchor)} points or more, loses more, in "
        f"{output.plural(sizes.horizon, 'query', 'queries')}. The variance must be a bound, and the tasks a random "
        "sample of yours."
    )
    output.say()
    first = sizes.rows[0]
    header = ["TOLERANCE", *[f"HOLDOUT A={a}" for a in first.holdout], *[f"PANEL K<={k}" for k in first.panel]]
    rows = [[f"{100 * r.tolerance:g} points", *r.holdout.values(), *r.panel.values()] for r in sizes.rows]
    output.table(header, rows)
