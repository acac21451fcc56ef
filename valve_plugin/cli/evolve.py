"""`valve evolve`: learn from a stream of tasks, keeping only what the gate accepts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import budget, completion, output, panel_told, simulations
from valve_plugin.cli.budget import BudgetUsd, MaxHours, MaxRollouts
from valve_plugin.cli.given import overrides
from valve_plugin.cli.options import BankDir, Json, examples, open_bank
from valve_plugin.cli.session import (
    MAKE_TASKS,
    KeepHistory,
    NewEpoch,
    NoEarlyStop,
    Set,
    Simulate,
    UnsafeLocal,
    Workers,
    running,
)
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.evolve.summary import Row
    from valve_plugin.records import Proposal

_CAN_WAIT = ("VERSION", "PASSED", "PROPOSED", "ROLLOUTS")
"""Columns that a narrow table does without, in this order."""


def register(app: typer.Typer) -> None:
    """Add `valve evolve`."""
    app.command(
        "evolve",
        epilog=examples(
            "valve evolve tasks/ -c model=openai/gpt-5.5          # the reference protocol: panel 50 x 3",
            "valve evolve tasks/ --panel-size 6 --limit 12        # a small one",
            "valve evolve tasks/ --simulate --panel-size 6        # without a key: a SIMULATION",
            "valve evolve tasks/ -c pairing=deployed -c rho=0.05  # settings for this run",
            "valve evolve tasks/ --budget-usd 20 --max-hours 8    # stops there; the same command goes on",
            "valve evolve tasks/ --attach                         # watch it from another terminal",
            "valve evolve tasks/ --ungated --bank ungated         # what the gate is worth: the same without one",
        ),
    )(evolve)


def evolve(
    tasks: Annotated[
        str,
        typer.Argument(
            metavar="TASKS",
            help="Directory with repository.toml and tasks.jsonl, a rows file, or a set's name.",
            autocompletion=completion.sets,
        ),
    ] = "",
    bank: BankDir = "",
    panel_size: Annotated[
        int | None, typer.Option("--panel-size", "--panel", min=1, metavar="N", help="Tasks of the panel. Default: 50.")
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option("--rollouts", min=1, metavar="R", help="Panel rollouts per task. Default: 3.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Use only the first N tasks of the stream.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="SEED", help="Seed of what is drawn. Default: 0.")
    ] = None,
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    keep_history: KeepHistory = False,
    new_epoch: NewEpoch = False,
    no_early_stop: NoEarlyStop = False,
    ungated: Annotated[
        bool, typer.Option("--ungated", help="Take every proposal without a gate: the ablation, not for use.")
    ] = False,
    attach: Annotated[
        bool, typer.Option("--attach", help="Watch the run that another terminal started on this bank.")
    ] = False,
    budget_usd: BudgetUsd = None,
    max_rollouts: MaxRollouts = None,
    max_hours: MaxHours = None,
    json: Json = False,
) -> None:
    """Learn from a stream of tasks.

    Each task is attempted three times. Where some attempts pass and some fail, the model contrasts them and
    proposes principles and skills; they enter the bank only if the panel, tasks held out of the stream, gains
    by the margin. Interrupted and started again, it goes on where it stopped.

    With --ungated nothing is judged and nothing certified: the bank takes whatever is proposed, on the same stream.
    A bank that was ever gated takes none, and an ungated one is gated only from a --new-epoch on.
    """
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.loop import evolve as loop
    from valve_plugin.evolve.steps import Steps, Ungated

    if attach:
        try:
            _watch(tasks, simulations.bank_for(bank, simulate, tasks), json=json)
        except KeyboardInterrupt:  # before it began to watch
            output.say("stopped watching")
        return
    if not tasks:
        raise ConfigError(
            "TASKS is missing: the task set to learn from, a directory with repository.toml and tasks.jsonl or a name "
            f"`valve tasks list --all` shows. {MAKE_TASKS}; `valve demo` needs none"
        )
    if ungated and new_epoch:
        raise ConfigError("--new-epoch opens a count of gate queries, and --ungated asks none; give one of them")
    given = overrides(
        set_, panel_size=panel_size, rollouts=rollouts, seed=seed, workers=workers, unsafe_local=unsafe_local or None,
        keep_history=keep_history or None, early_stop=False if no_early_stop else None,
        budget_usd=budget_usd, max_rollouts=max_rollouts, max_hours=max_hours,
    )  # fmt: skip
    with (
        Progress() as progress,
        running(
            tasks, bank, given, simulate=simulate, new_epoch=new_epoch, gated=not ungated, observer=progress
        ) as run,
    ):
        if run.settings.condition:
            raise ConfigError(
                f"{run.store.dir}: this bank is of an experiment's run, whose condition {run.settings.condition} has "
                "steps of its own; `valve experiment run` goes on with it"
            )
        run = run._replace(stream=run.stream[:limit])
        steps = (Ungated if ungated else Steps)(run.manager, run.store, run.settings)
        budget.preflight(run, steps)
        panel_told.note_sizes(run.store, run.taskset)
        progress.begin(run, "SIMULATION" if simulate else "")
        with budget.stopping(progress):
            loop(steps, run.stream)
    if json:
        output.emit_json({**facts(run.store), "simulation": simulate, **budget.facts(progress, run.store)})
    else:
        show(run.store, simulate=simulate)
        if not (progress.view.spent or progress.stopped):
            output.say(
                f"finished: nothing is left to attempt among the {output.plural(len(run.stream), 'task')} of the stream"
            )
        budget.tell(progress)


def _watch(tasks: str, bank: str, *, json: bool) -> None:
    """Follow another terminal's run; exit with 1 when none is going on."""
    from valve_plugin.bank.paths import locate
    from valve_plugin.bank.store import BankStore
    from valve_plugin.cli.attach import attach

    if tasks and not bank:  # the bank that `valve evolve TASKS` would use
        from valve_plugin.bank.checkout import find
        from valve_plugin.tasks import folder
        from valve_plugin.tasks.load import load

        name = load(folder.find(tasks)).repository.name
        store = BankStore.open(locate("", find(Path.cwd()).folder, name))
    else:
        store = open_bank(bank)
    if not attach(store, json=json):
        raise typer.Exit(output.FINDING)


def show(store: BankStore, *, simulate: bool = False) -> None:
    """Print what a bank's proposals came to."""
    from valve_plugin.bank.simulation import LABEL, simulated
    from valve_plugin.evolve.savings import saved, total
    from valve_plugin.evolve.summary import rows

    if simulate or simulated(store.dir):
        output.say(LABEL)
    table = [_cells(row) for row in rows(store.entries())]
    if table:
        output.table(["TASK", "PASSED", "PROPOSED", "VERDICT", "NET PASSES", "ROLLOUTS", "VERSION"], table, _CAN_WAIT)
    if gates := saved(store.entries(), store.local.told("gates")):
        output.say(f"gates: {total(list(gates.values()))} by stopping when a rejection is certain")
    bank = store.bank
    used = f"{output.plural(store.queries_used(), 'gate query', 'gate queries')} used" if store.epoch() else "ungated"
    output.say(
        f"{bank.repo}: version {bank.version}, {output.plural(len(bank.principles), 'principle')}, "
        f"{output.plural(len(bank.skills), 'skill')}; {used}; {store.dir}"
    )


def facts(store: BankStore) -> dict[str, Any]:
    """Return the same as plain data."""
    from valve_plugin.evolve.savings import saved, total
    from valve_plugin.evolve.summary import rows, scores

    gates = saved(store.entries(), store.local.told("gates"))
    return {
        "bank": str(store.dir),
        "repo": store.bank.repo,
        "version": store.bank.version,
        "principles": len(store.bank.principles),
        "skills": len(store.bank.skills),
        "queries": store.queries_used(),
        "gated": store.epoch() is not None,
        "gate_rollouts": total(list(gates.values())).facts(),
        "panel_scores": [score._asdict() for score in scores(store.entries())],
        "proposals": [
            {
                "task_id": row.task_id,
                "passed": row.passed,
                "attempts": row.attempts,
                "proposal_id": row.proposal.id,
                "items": [f"{i.kind}: {i.name}" for i in row.proposal.items],
                "removes": [f"{kind}: {name}" for kind, name in row.proposal.removed],
                "outcome": row.outcome,
                "reason": row.proposal.reason,
                "version": row.version,
                "gate_rollouts": gates[row.proposal.id].facts() if row.proposal.id in gates else None,
            }
            for row in rows(store.entries())
        ],
    }


def _cells(row: Row) -> list[object]:
    from valve_plugin.cli.history import net_passes

    proposed = _proposed(row.proposal)
    verdict = row.verdict
    ran = f"{verdict.ran}/{verdict.n_tasks * verdict.rollouts}" if verdict else ""
    net = net_passes(verdict) if verdict else ""
    task = row.task_id.rpartition(".")[2]  # SWE-smith ids begin with the repository and its commit
    return [task, f"{row.passed}/{row.attempts}", proposed, row.outcome, net, ran, row.version]


def _proposed(proposal: Proposal) -> str:
    added, removed = len(proposal.items), len(proposal.removed)
    parts = [output.plural(added, "item")] if added else []
    return " ".join(parts + ([f"-{removed}"] if removed else [])) or "nothing"
