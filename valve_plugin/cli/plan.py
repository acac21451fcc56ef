"""`valve plan`: what a gate can tell apart, how large a panel must be, and what it costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from valve_plugin.cli import options, output, runs
from valve_plugin.cli.options import (
    BankDir,
    Commands,
    Count,
    Json,
    Real,
    Variance,
    flag,
    option,
    overrides,
    points,
    theory_errors,
)
from valve_plugin.cli.stage import Stage
from valve_plugin.config import load
from valve_plugin.errors import BankNotFoundError, ConfigError
from valve_plugin.plugins import send
from valve_plugin.words import plural

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.evidence.plan import AcceptShare, GatePlan, RunPlan, SelfComparison, Sizing

TOLERANCES = [0.02, 0.03, 0.05, 0.08, 0.10]
DRAWN = ("screen", "protocol", "rho")
"""Settings of what is planned; other settings are for the rollouts of --measure."""
DECLARED = ("delta", "horizon", "rollouts", "confirm", "guard", "false_accepts")
"""Settings that panel and epoch keep, and that have options here."""

_ASSUMED = """\
Nothing is recorded here to plan from, so typical numbers are taken: {0.mean:.0%} of the rollouts pass, and most tasks
pass nearly always or nearly never (--base-rate {0.mean} --vmass {0.mass}; vmass is the mean of p(1-p) over the tasks).
The first panel that `valve evolve` runs replaces them.
"""

commands = Commands()


@commands.add(
    "plan",
    "valve plan                                           # this bank's gate, from its recorded outcomes",
    "valve plan --rollouts 9 --rho 0.05                   # what if it were another gate",
    "valve plan --panel-size 20                           # before anything ran: typical numbers are assumed",
    "valve plan --base-rate 0.75 --vmass 0.05             # these are the typical ones, for 50 x 3",
    "valve plan -c screen=0                               # without the screen of proposals",
    "valve plan --confirm                                 # and if an accept had to repeat?",
    "valve plan --false-accepts 5                         # the margin that lets in so few useless ones",
    "valve plan --measure 20 --workers 4                  # try it: 20 proposals that change nothing",
    "valve plan --panel-size 20 --usd-per-rollout 0.05    # in dollars, too",
    "valve plan --sizes                                   # how many tasks exclude a loss",
    "valve plan --variance 0.025 --horizon 60 --anchor 0.0583 --json",
)
def plan(
    panel_size: Annotated[Count, options.panel_tasks("--panel-size", "N", "Panel tasks. Default: the panel's.")] = None,
    rollouts: Annotated[Count, options.per_task("--rollouts", "R", "Per panel task. Default: the panel's.")] = None,
    rho: Annotated[
        str, option("--rho", "RHO", "Share of more passes that an accept takes. Default: the panel's.")
    ] = "",
    horizon: Annotated[
        Count, options.queries("--horizon", "T", "Gate queries, one for each proposal. Default: the epoch's.")
    ] = None,
    usd_per_rollout: Annotated[
        Real, option("--usd-per-rollout", "USD", "What a rollout costs. Default: what the recorded ones did.", min=0)
    ] = None,
    base_rate: Annotated[
        Real, options.rate("--base-rate", "P", "Share of rollouts that pass. Default: recorded.")
    ] = None,
    mass: Annotated[
        Real, options.noise("--vmass", "V", "Mean of p(1-p) over tasks: near 0 where each always or never passes.")
    ] = None,
    confirm: Annotated[bool | None, flag("--confirm/--no-confirm", "Repeat accepts. Default: the epoch's.")] = None,
    guard: Annotated[
        Count, options.passes("--guard", "K", "Reject where a task loses K passes; 0: never. Default: the epoch's.")
    ] = None,
    false_accepts: Annotated[Real, options.useless("--false-accepts", "K", "Useless accepts, at most. 0: any.")] = None,
    reach: Annotated[
        Real, options.share("--reach", "S", "Share of panel tasks whose notes a proposal changes.")
    ] = None,
    seed: Annotated[int, option("--seed", "SEED", "Of the runs that are drawn.")] = 0,
    sizes: Annotated[bool, flag("--sizes", "Also print how many tasks exclude a loss.")] = False,
    tolerance: Annotated[
        list[float], options.tolerable("--tolerance", "G", "That loss; may be repeated.")
    ] = TOLERANCES,
    anchor: Annotated[
        Real, options.loss("--anchor", "G", "Panel gain of each accept there. Default: the margin.")
    ] = None,
    variance: Variance = None,
    delta: Annotated[Real, options.chance("--delta", "P", "Chance that it is wrong. Default: the epoch's.")] = None,
    measure: Annotated[Count, option("--measure", "M", "First measure the bank against itself M times.", min=1)] = None,
    tasks: runs.Tasks = "",
    workers: runs.Workers = None,
    set_: runs.Set = [],  # noqa: B006 (Typer copies it)
    simulate: runs.Simulate = False,
    unsafe_local: runs.UnsafeLocal = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Say what this gate can tell apart, and how many tasks a promise takes.

    First what a run takes, and whether the panel is large enough. Then how often one query accepts a proposal that
    changes nothing, does harm, or is worth 3, 5 or 10 points, and what a run of many queries comes to, drawn from the
    outcomes of complete panels. Where nothing is recorded yet it assumes typical numbers, and says so: three quarters
    of the rollouts pass, and most tasks pass nearly always or nearly never.

    --measure tries the gate for real: it measures the current bank M times on fresh rollouts, each time as a proposal
    that changes nothing. The measurements go to the ledger, use no gate query and change nothing. Interrupted and
    started again, they continue.
    """
    from valve_plugin.evidence import plan as plans
    from valve_plugin.tasks.split import TYPICAL
    from valve_plugin.theory.estimates import RateSpread

    names = {spec: spec.partition("=")[0].removeprefix("valve.") for spec in set_}
    drawn = [spec for spec in set_ if names[spec] in DRAWN]
    if not measure and (others := [spec for spec in set_ if spec not in drawn]):
        raise ConfigError(
            f"-c {others[0]}: without --measure only {', '.join(DRAWN)} are settings here; for the rest see the options"
        )
    store = _open(bank, tasks, measuring=bool(measure), simulate=simulate)
    if measure:
        asked = [spec for spec in set_ if names[spec] != "screen"]  # a measurement screens nothing
        given = overrides(asked, "measure", simulate=simulate, workers=workers, unsafe_local=unsafe_local or None)
        store = _measure(store, measure, tasks, given, simulate=simulate)
    known = plans.read_panels(store) if store else None
    settings = overrides(drawn, "learn")
    if known is None:  # else what the open epoch declared holds
        merged = store.settings(settings) if store else load(None, settings)
        settings = {name: getattr(merged, name) for name in (*DRAWN, *DECLARED)} | {"delta": float(merged.delta)}
        panel_size = panel_size or merged.panel_size
    values = (delta, horizon, rollouts, confirm, guard, false_accepts, rho or None)
    settings |= {name: value for name, value in zip((*DECLARED, "rho"), values, strict=True) if value is not None}
    terms = plans.gate_terms(known, reach=reach, size=panel_size, **settings)
    if (base_rate is None) != (mass is None):
        raise ConfigError("--base-rate and --vmass go together: the mean solve rate, and the mean of p(1-p)")
    assumed = base_rate is None and variance is None and not (known and known.panels)
    typed = TYPICAL if assumed else None if base_rate is None or mass is None else RateSpread(base_rate, mass)
    with theory_errors(), Stage() as stage:
        stage.on("drawing runs of this gate")
        rates = plans.panel_rates(known, typed, panel_size)
        variance, why = plans.plan_variance(known, typed, variance, terms.rollouts)
        sizing = plans.plan_sizes(
            tolerance,
            variance=variance,
            delta=terms.delta,
            horizon=terms.horizon,
            anchor=float(terms.rho) if anchor is None else anchor,
        )
        gate = plans.plan_gate(rates, terms, known, seed=seed) if rates else None
        seen = store.local.attempts() if store else []
        run = plans.plan_run(rates, terms, known, seen, seed, usd_per_rollout) if rates else None
    again = known.again if known else None
    simulation = runs.note_simulation(store.dir, json=json) if store else False
    if json:
        facts = {"sizing": sizing, "variance_from": why, "gate": gate, "cost": run, "measured": again}
        output.emit_json({"simulation": simulation, "assumed": assumed, **facts})
        return
    if gate and run:
        _show_answer(gate, run, given=usd_per_rollout is not None)
        _show_gate(gate, _ASSUMED.format(TYPICAL) if assumed else "")
        _show_run(run)
    if again:
        _show_comparison(again)
    if sizes or not gate:
        _show_sizes(sizing, why)
    else:
        output.note("how many tasks exclude a loss: `valve plan --sizes`")


def _open(bank: str, tasks: str, *, measuring: bool, simulate: bool) -> BankStore | None:
    """Return the bank, or None where there is none and none was named."""
    try:
        return runs.open_store(bank, simulate and measuring, tasks)
    except BankNotFoundError:
        if bank or (simulate and measuring):
            raise
    return None


def _measure(store: BankStore | None, gates: int, tasks: str, given: dict[str, object], *, simulate: bool) -> BankStore:
    """Measure the current bank until `gates` A/A gates are recorded; with `confirm`, a gate takes two measurements."""
    from valve_plugin.gate.judge import measure

    if store is None:
        raise BankNotFoundError(
            "there is no bank here to measure; `valve evolve TASKS` makes one, or name it: --bank DIR"
        )
    settings = store.settings(given)
    if store.panel() is None and not (tasks or settings.tasks):
        raise ConfigError(
            f"{store.dir}: no panel is fixed yet, so there is no gate to measure; `valve evolve TASKS` fixes one, or "
            "give the task set it is to be chosen from: --tasks TASKS"
        )
    with runs.reopen(store, tasks, given, simulate=simulate, purpose="measure") as run:
        epoch = run.store.epoch()
        each = 2 if epoch and epoch.conditions and epoch.conditions.confirm else 1
        measure(run.settings, run.store.dir, gates * each, partial(send, run.manager.hook))
    store.refresh()
    return store


def _show_answer(gate: GatePlan, run: RunPlan, *, given: bool) -> None:
    """Print what most people look for: rollouts, dollars, and whether the panel is large enough."""
    each = run.usd / run.rollouts if run.usd and run.rollouts else 0.0
    basis = f"${each:.3g} a rollout" + ("" if given else f", the mean of {run.measured} here")
    dollars = f"${run.usd:,.2f} ({basis})" if run.usd else "unknown: no cost is recorded; give --usd-per-rollout USD"
    output.say(
        f"rollouts  about {run.rollouts:,} for {plural(run.proposals, 'proposal')}; the stream's own come on top"
    )
    output.say(f"dollars   {dollars}")
    output.say(f"panel     {gate.advice}\n")


def _show_gate(gate: GatePlan, assumed: str) -> None:
    """Print what one query accepts, and what would make the gate better; `assumed` comes first."""
    from valve_plugin.evidence.plan import conditions_in_words, percent

    if assumed:
        output.say(assumed, style="yellow")
    total = gate.tasks * gate.rollouts
    panel = f"{plural(gate.tasks, 'task')} x {plural(gate.rollouts, 'rollout')}"
    reach = f"; a proposal reaches {100 * gate.reach:.0f} % of the tasks" if gate.reach < 1 else ""
    output.say(
        f"The gate: {panel}, margin {gate.rho}{conditions_in_words(gate)}: "
        f"an accept takes {plural(gate.needed, 'more pass', 'more passes')} of {total}",
        style="bold",
    )
    output.say(f"rates of {gate.source}: mean {100 * gate.mean_rate:.1f} %, noise p(1-p) {gate.noise:.3f}{reach}\n")
    carried = any(o.carried is not None for o in gate.odds)
    rows = []
    for o in gate.odds:
        chances = [o.fresh, o.whole, *[o.carried] * carried]
        rows.append(
            [
                "changes nothing"
                if o.effect == 0
                else f"{'gains' if o.effect > 0 else 'loses'} {100 * abs(o.effect):g} points",
                *["not possible" if c is None else percent(c) for c in chances],
                "" if o.rollouts is None else f"{o.rollouts:.0f}",
            ]
        )
    most = f"ROLLOUTS OF {total * (1 + gate.confirm)}"
    output.table(["A PROPOSAL THAT", "IS ACCEPTED", "WHOLE TASKS", *["NOW"] * carried, most], rows)
    now = " NOW: against what the next gate compares with." if carried else ""
    output.say(
        "IS ACCEPTED: by one query, a fresh baseline, an even effect. WHOLE TASKS: it mends or breaks whole ones."
        f"{now} ROLLOUTS: mean.\n"
    )


def _show_run(run: RunPlan) -> None:
    """Print what a run comes to."""
    screen = f", each screened by {plural(run.screen, 'more attempt')} at its own task" if run.screen else ""
    output.say(f"A run of {plural(run.proposals, 'proposal')}{screen}, drawn many times (SIMULATION)", style="bold")
    for kind in run.kinds:
        what = "change nothing" if kind.effect == 0 else f"are worth {points(kind.effect)} points"
        output.say(f"accepts  {kind.accepted:.1f} of {kind.proposals:.0f} that {what}")
    between = f"{points(run.low)} to {points(run.high)}"
    output.say(f"gain     {points(run.gain)} points on tasks that no gate saw; 9 of 10 runs gain {between}")
    if run.hours is not None:
        output.say(
            f"takes    {run.hours:.1f} hours in sequence, by the mean of {plural(run.measured, 'panel rollout')} here"
        )
    output.say()


def _show_comparison(again: SelfComparison) -> None:
    """Print what the A/A measurements showed."""
    output.say("Measured: this bank against itself, on fresh rollouts", style="bold")
    output.say(f"against what is carried now       {_accepted(again.carried)}")
    output.say(f"as after a fresh baseline         {_accepted(again.fresh)}")
    flattery = 100 * (again.recorded - again.measured)
    spread = f" (standard error {100 * again.error:.1f})" if again.panels > 1 else ""
    output.say(
        f"recorded score {100 * again.recorded:.1f} %, measured afresh {100 * again.measured:.1f} %{spread}: the "
        f"carried one {'flatters' if flattery > 0 else 'understates'} by {abs(flattery):.1f} points; no gate reads "
        "this\n"
    )


def _accepted(share: AcceptShare) -> str:
    if not share.gates:
        return "no gate yet: takes more measurements"
    interval = f"{100 * share.low:.0f} to {100 * share.high:.0f} %"
    return f"{share.accepted} of {plural(share.gates, 'gate')} accepted a do-nothing proposal ({interval}, at 95 %)"


def _show_sizes(sizes: Sizing, why: str) -> None:
    """Print how many tasks each tolerance needs; `why` is the source of the variance."""
    output.say("How many tasks exclude a larger loss than that", style="bold")
    first = sizes.rows[0]
    header = ["LOSS", *[f"{a} VERSIONS" for a in first.holdout], *[f"{k} ACCEPTS" for k in first.panel]]
    rows = [[f"{100 * r.tolerance:g} points", *r.holdout.values(), *r.panel.values()] for r in sizes.rows]
    output.table(header, rows)
    queries = plural(sizes.horizon, "query", "queries")
    output.say("VERSIONS: holdout tasks, for a fall from the best of so many to the last beyond the measured one.")
    output.say(f"ACCEPTS: panel tasks, for so many that measured {points(sizes.anchor)} points each, in {queries}.")
    output.say(
        f"With probability {1 - sizes.delta:g} for tasks like yours; variance of a paired difference "
        f"{sizes.variance:.4g} ({why})."
    )
