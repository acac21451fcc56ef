"""`valve plan`: is this gate any good, how big must a panel be, and what does it cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from valve_plugin.cli import output, plan_told, ranges, simulations, targets
from valve_plugin.cli.measure import measure as run_gates
from valve_plugin.cli.measure import show
from valve_plugin.cli.meter import Slow
from valve_plugin.cli.options import BankDir, Json, examples
from valve_plugin.cli.ranges import Variance, theory_errors
from valve_plugin.cli.session import Set, Simulate, Tasks, UnsafeLocal, Workers
from valve_plugin.errors import BankNotFoundError, ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.report.inputs import Rates, Recorded
    from valve_plugin.report.plan import GatePlan

EFFECTS = (0.0, 0.03, 0.05, 0.10)


def register(app: typer.Typer) -> None:
    """Add `valve plan`."""
    app.command(
        "plan",
        epilog=examples(
            "valve plan                                           # this bank's gate, from its recorded outcomes",
            "valve plan --rollouts 9 --rho 0.05                   # what if it were another gate",
            "valve plan --base-rate 0.75 --vmass 0.05             # before anything ran: 50 x 3 at margin 0.02",
            "valve plan --base-rate 0.75 --vmass 0.05 --confirm   # and if an accept had to repeat?",
            "valve plan --measure 20 --workers 4                  # try it: 20 proposals that change nothing",
            "valve plan --base-rate 0.75 --vmass 0.05 --figure gate.svg",
            "valve plan --variance 0.025 --horizon 60 --anchor 0.0583 --json",
        ),
    )(plan)


def plan(
    variance: Variance = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta", metavar="P", callback=ranges.chance, help="Chance of being wrong. Default: the epoch's, or 0.05."
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            "--horizon", metavar="T", callback=ranges.queries, help="Gate queries. Default: the epoch's, or 100."
        ),
    ] = None,
    anchor: Annotated[
        float | None,
        typer.Option(
            "--anchor", metavar="G", callback=ranges.loss, help="Panel gain of an accept. Default: the margin."
        ),
    ] = None,
    tolerance: Annotated[
        list[float],
        typer.Option(
            "--tolerance", metavar="G", callback=ranges.tolerable, help="Loss to tolerate, 5 points are 0.05; repeat."
        ),
    ] = [0.02, 0.03, 0.05, 0.08, 0.10],  # noqa: B006 (Typer copies it)
    banks: Annotated[
        list[int],
        typer.Option("--banks", metavar="A", callback=ranges.banks, help="Different banks on the holdout; repeat."),
    ] = [4, 8, 16],  # noqa: B006
    accepts: Annotated[
        list[int],
        typer.Option("--accepts", metavar="K", callback=ranges.accepts, help="Accepts in a run at most; repeat."),
    ] = [3, 5, 7],  # noqa: B006
    panel_size: Annotated[
        int | None,
        typer.Option(
            "--panel-size", metavar="N", callback=ranges.panel_tasks, help="Panel tasks. Default: the panel's, or 50."
        ),
    ] = None,
    rollouts: Annotated[
        int | None,
        typer.Option(
            "--rollouts", metavar="R", callback=ranges.panel_rollouts, help="Per task. Default: the panel's, or 3."
        ),
    ] = None,
    rho: Annotated[str, typer.Option("--rho", metavar="RHO", help="Margin. Default: the panel's, or 0.02.")] = "",
    base_rate: Annotated[
        float | None,
        typer.Option(
            "--base-rate", metavar="P", callback=ranges.rate, help="Mean solve rate, instead of recorded ones."
        ),
    ] = None,
    mass: Annotated[
        float | None,
        typer.Option(
            "--vmass",
            metavar="V",
            callback=ranges.noise,
            help="Mean of p(1-p) over tasks, with --base-rate P: at most P(1-P).",
        ),
    ] = None,
    confirm: Annotated[
        bool | None,
        typer.Option("--confirm/--no-confirm", help="Accepts repeat on fresh rollouts. Default: the epoch's."),
    ] = None,
    guard: Annotated[
        int | None,
        typer.Option(
            "--guard",
            metavar="K",
            callback=ranges.passes,
            help="No task may lose K passes; 0: any may. Default: the epoch's.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", help="Of the baselines averaged over.")] = 0,
    figure: Annotated[
        str, typer.Option("--figure", metavar="FILE", help="Draw it too (.svg, .pdf, .png); takes the extra `report`.")
    ] = "",
    measure: Annotated[
        int | None,
        typer.Option("--measure", metavar="M", min=1, help="First judge the bank against itself, M times in all."),
    ] = None,
    tasks: Tasks = "",
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Say what this gate can tell apart, and how many tasks a promise takes.

    From the outcomes of complete panels: how often the gate accepts a proposal that changes nothing, or is worth 3,
    5 or 10 points; the rollouts until its verdict; what an epoch costs. And the sizes of holdout and panel for each
    tolerance. Without a bank, or to try another gate, give the numbers.

    With --measure the gate is tried for real: the current bank is measured completely M times on fresh rollouts, each a
    proposal that changes nothing. The measurements go to the ledger, spend no gate query, change nothing, and go on
    where they were interrupted.
    """
    from valve_plugin.report import inputs
    from valve_plugin.report import plan as plans
    from valve_plugin.theory.convergence import variance_bound
    from valve_plugin.theory.estimates import Spread

    if figure:
        targets.within("--figure", Path(figure))
    store = _store(bank, simulate and bool(measure), tasks)
    if measure:
        run_gates(store, measure, tasks=tasks, workers=workers, set_=set_, simulate=simulate, unsafe_local=unsafe_local)
    known = inputs.recorded(store) if store else None
    terms = _terms(known, delta, horizon, rollouts, rho, confirm, guard)
    if (base_rate is None) != (mass is None):
        raise ConfigError("--base-rate and --vmass go together: the mean solve rate, and the mean of p(1-p)")
    given = None if base_rate is None or mass is None else Spread(base_rate, mass)
    with theory_errors():
        rates = inputs.rates(known, given, panel_size)
        if variance is not None:
            why = "given"
        elif given is not None:
            variance, why = variance_bound(given.mass, terms.rollouts), "(1 + 2/r) times --vmass"
        else:
            variance, why = _estimate(known, terms.rollouts)
        sizes = plans.sizing(
            tolerance, banks, accepts, variance=variance, delta=terms.delta, horizon=terms.horizon,
            anchor=float(terms.rho) if anchor is None else anchor,
        )  # fmt: skip
        gate = _gate(known, rates, terms, seed)
    price = plans.cost(gate, terms.horizon, store.local.attempts() if store else []) if gate else None
    again = known.again if known else None
    simulation = simulations.told(store.dir, json=json) if store else False
    if figure:
        _draw(figure, rates, gate)
    if json:
        facts = {"sizing": sizes, "variance_from": why, "gate": gate, "cost": price, "measured": again}
        output.emit_json({"simulation": simulation, **facts})
        return
    if gate:
        plan_told.show_gate(gate, price)
    if again:
        show(again)
    plan_told.show_sizes(sizes, why)


class _Terms(NamedTuple):
    """The gate planned for: the recorded one, but for what was typed."""

    delta: float
    horizon: int
    rollouts: int
    rho: str
    confirm: bool
    guard: int


def _store(bank: str, simulate: bool, tasks: str) -> BankStore | None:
    """Return the bank that applies here, if there is one; one that was named must be there."""
    try:
        return simulations.opened(bank, simulate, tasks)
    except BankNotFoundError:
        if bank or simulate:
            raise
        return None


def _terms(
    known: Recorded | None,
    delta: float | None,
    horizon: int | None,
    rollouts: int | None,
    rho: str,
    confirm: bool | None,
    guard: int | None,
) -> _Terms:
    from valve_plugin.theory.gate import needed_passes

    base = _Terms(0.05, 100, 3, "0.02", False, 0)
    if known:
        base = _Terms(known.delta, known.horizon, known.panel.rollouts, known.panel.rho, *_conditions(known))
    needed_passes(rho or base.rho, 1, 1)  # refuses what is no margin
    terms = _Terms(
        base.delta if delta is None else delta,
        horizon or base.horizon,
        rollouts or base.rollouts,
        rho or base.rho,
        base.confirm if confirm is None else confirm,
        base.guard if guard is None else guard,
    )
    if terms.guard > terms.rollouts:
        raise ConfigError(
            f"guard is {terms.guard}, expected at most the {output.plural(terms.rollouts, 'rollout')} a panel task has "
            "(0: no guard)"
        )
    return terms


def _conditions(known: Recorded) -> tuple[bool, int]:
    return known.conditions.confirm, known.conditions.guard


def _estimate(known: Recorded | None, rollouts: int) -> tuple[float, str]:
    from valve_plugin.theory import estimates

    if known is None or not known.panels:
        raise ConfigError(
            "no complete panel is recorded here to plan from. Give the numbers instead: `valve plan --base-rate 0.5 "
            "--vmass 0.05` is for tasks of which half are solved, each nearly always or nearly never (--vmass is the "
            "mean of p(1-p), 0.25 where each is a coin's throw); `valve evolve` records a panel, --bank DIR names one"
        )
    shown = ", ".join(known.names[:3]) + (f" and {len(known.names) - 3} more" if len(known.names) > 3 else "")
    return estimates.variance(known.panels, known.panel.rollouts, rollouts), f"estimated from {shown}"


def _gate(known: Recorded | None, rates: Rates | None, terms: _Terms, seed: int) -> GatePlan | None:
    import random

    from valve_plugin.records import Conditions
    from valve_plugin.report.plan import gate_plan

    if rates is None:
        return None
    same = known is not None and rates.source == "these tasks" and terms.rollouts == known.panel.rollouts
    return gate_plan(
        rates.beliefs,
        terms.rollouts,
        terms.rho,
        EFFECTS,
        random.Random(seed).random,  # noqa: S311 (a simulation)
        source=rates.source,
        recorded=rates.counts,
        carried=known.carried if same and known is not None else None,
        conditions=Conditions(confirm=terms.confirm, guard=terms.guard),
        told=Slow("plan    "),
    )


def _draw(file: str, rates: Rates | None, gate: GatePlan | None) -> None:
    from valve_plugin.report.plan_figure import gate_figure
    from valve_plugin.report.style import write

    if rates is None or gate is None:
        raise ConfigError("--figure draws a gate; without a bank give --base-rate and --vmass")
    write(gate_figure(rates.beliefs, gate, Slow("figure  ")), file)
