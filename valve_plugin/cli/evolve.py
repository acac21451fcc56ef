"""`valve evolve`: learn from a stream of tasks, or from many repositories at once, keeping what the gate accepts."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from valve_plugin.bank.identity import find_bank
from valve_plugin.bank.scripted_bank import HEEDS_ITS_OWN, LABEL, is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import find
from valve_plugin.checkout import find as find_checkout
from valve_plugin.cli import output, runs, task_sets
from valve_plugin.cli.options import BankDir, Commands, Count, Json, argument, flag, open_bank, option
from valve_plugin.cli.output import plural
from valve_plugin.config import resolve
from valve_plugin.errors import BankNotFoundError, ConfigError
from valve_plugin.evidence.history import net_passes
from valve_plugin.extras import runnable
from valve_plugin.paths import scripted_bank_dir
from valve_plugin.records import is_owners, short_task_id

if TYPE_CHECKING:
    from valve_plugin.evidence.summary import ProposalResult

_LOOK = {
    "valve report --open": "what it gained, how sure that is, what it cost",
    "valve bank log": "what was proposed, judged and accepted",
    "valve certify": "what these numbers prove",
}
"""What a person may run after a run, and why."""

commands = Commands()
_MOST_SAID = 120
"""Characters of a failure that the table at the end repeats."""


@commands.add(
    "evolve",
    "valve evolve tasks/ -c model=openai/gpt-5.5          # the reference protocol: panel 50 x 3",
    "valve evolve tasks/ --simulate --panel-size 6        # without a key: a SIMULATION",
    "valve evolve tasks/ --budget-usd 20 --max-hours 8    # stops there; the same command continues",
    "valve evolve tasks/ --agent claude                   # Claude Code solves; also codex, or a command",
    "valve evolve tasks/ --new-epoch -c guard=2           # reject where a panel task loses 2 passes",
    "valve evolve tasks/ --attach                         # watch it from another terminal",
    "valve evolve --all sets/ --workers 8                 # every task set in a folder, at once",
)
def evolve(
    tasks: Annotated[str, argument("TASKS", f"{task_sets.ABOUT} A file of rows works, too.")] = "",
    solving: runs.Solving = runs.SOLVING,
    limits: runs.Limits = runs.LIMITS,
    panel_size: runs.PanelSize = None,
    bank: BankDir = "",
    attach: Annotated[bool, flag("--attach", "Watch the run that another terminal started on this bank.")] = False,
    all_: Annotated[
        str, option("--all", "DIR", "Learn from each task set in DIR, with workers and budget shared.")
    ] = "",
    json: Json = False,
    rollouts: Annotated[
        Count, option("--rollouts", "R", "Panel rollouts per task. Default: 3.", min=1, rare=True)
    ] = None,
    limit: Annotated[Count, option("--limit", "N", "Only the first N tasks of the stream.", min=1, rare=True)] = None,
    seed: Annotated[Count, option("--seed", "SEED", "Seed of what is drawn. Default: 0.", rare=True)] = None,
    new_epoch: runs.NewEpoch = False,
    no_early_stop: runs.NoEarlyStop = False,
    speculate: runs.Speculate = None,
    ungated: runs.Ungated = False,
) -> None:
    """Learn from a stream of tasks.

    Each task is attempted three times. Where some attempts pass and some fail, the model compares them and proposes
    notes. They enter the bank only if enough more attempts at the panel, a fixed set of other tasks, pass with them.
    Interrupted and started again, the run continues.

    The margin is how many more have to pass. The ledger is the file in the bank that records all of it. An epoch begins
    with a new measurement of the panel. Idle workers already run what is likely to be asked for next, which changes no
    result; --speculate says how much of that may be in vain.

    With --all each task set has a bank of its own; --workers and the limits are for all of them together, and --bank
    names the folder of the banks. With --ungated nothing is judged or certified; a gated bank cannot be run with it,
    and an ungated bank needs --new-epoch to be gated.
    """
    if all_ and tasks:
        raise ConfigError("--all names a folder of task sets and TASKS a single one: give one of them")
    if attach and all_:
        raise ConfigError("--attach watches one run: give its TASKS or --bank instead of --all")
    if attach:
        _watch(tasks, runs.bank_for_run(bank, solving.simulate, tasks), json=json)
        return
    if ungated and new_epoch:
        raise ConfigError("--new-epoch and --ungated are mutually exclusive")
    given = solving.settings(
        "ungated" if ungated else "learn", panel_size=panel_size, rollouts=rollouts,
        seed=seed, early_stop=False if no_early_stop else None, speculate=speculate, **limits.settings,
    )  # fmt: skip
    how: dict[str, Any] = {"limit": limit, "new_epoch": new_epoch, "gated": not ungated, "simulate": solving.simulate}
    if all_:
        run_queue(find_queue(all_, bank, simulate=solving.simulate), given, how, yes=limits.yes, json=json)
    else:
        learn(tasks or str(task_sets.find_folder()), bank, given, yes=limits.yes, json=json, **how)


def learn(
    tasks: str,
    bank: str,
    given: Mapping[str, Any],
    *,
    limit: int | None,
    new_epoch: bool,
    gated: bool,
    simulate: bool,
    yes: bool,
    json: bool,
) -> None:
    """Run one bank on one task set, with the settings of the command line."""
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evidence.summary import bank_facts
    from valve_plugin.evolve.loop import evolve as loop
    from valve_plugin.evolve.steps import Steps, Ungated

    with (
        Progress() as progress,
        runs.open_run(
            tasks, bank, given, simulate=simulate, new_epoch=new_epoch, gated=gated, observer=progress
        ) as run,
    ):
        if run.settings.condition:
            raise ConfigError(
                f"{run.store.dir}: this bank is of an experiment's run, whose condition {run.settings.condition} has "
                "steps of its own; `valve experiment run` goes on with it"
            )
        run = run._replace(stream=run.stream[:limit])
        steps = (Steps if gated else Ungated)(run.manager, run.store, run.settings)
        runs.preflight(run, steps, yes=yes)
        runs.note_sizes(run.store, run.taskset)
        progress.begin(run)
        with runs.stopping(progress):
            loop(steps, run.stream)
    if json:
        spent = runs.spent_facts(progress, run.store)
        facts = {**bank_facts(run.store), "simulation": simulate, "speculation": steps.ahead.waste._asdict()}
        output.emit_json({**facts, **spent})
    else:
        show(run.store, simulate=simulate)
        if not (progress.view.spent or progress.stopped):
            output.say(
                f"finished: nothing is left to attempt among the {output.plural(len(run.stream), 'task')} of the stream"
            )
        if early := steps.ahead.waste.described:
            output.say(early)
        runs.say_spent(progress)
        _say_next(run.store, simulate=simulate)


def _say_next(store: BankStore, *, simulate: bool) -> None:
    """Print how to look at what was learned; a simulation's bank is found by its name alone."""
    if simulate:
        output.bank = output.bank or str(store.dir)
    output.note("next: look at it", style="")
    for command, why in _LOOK.items():
        output.note(f"  {output.for_bank(runnable(command))}  # {why}", style="")


def _watch(tasks: str, bank: str, *, json: bool) -> None:
    """Follow the run of another terminal; exit with 1 when there is none."""
    from valve_plugin.cli.progress import attach

    try:
        if tasks and not bank:  # the bank that `valve evolve TASKS` would use
            from valve_plugin.tasks import task_set
            from valve_plugin.tasks.task_set import load

            name = load(task_set.find(tasks)).repository.name
            store = BankStore.open(find_bank("", find(Path.cwd()), name))
        else:
            store = open_bank(bank)
    except BankNotFoundError as e:  # the first run of a bank makes it
        begun = "no run has begun at this bank; start it, or wait until it has"
        raise BankNotFoundError(re.sub("there is no bank here; make one with `[^`]*`", begun, str(e))) from e
    if not attach(store, json=json):
        raise typer.Exit(output.FINDING)


def show(store: BankStore, *, simulate: bool = False) -> None:
    """Print what a bank's proposals came to."""
    from valve_plugin.evidence.summary import (
        advise,
        fallen_by_accept,
        gate_savings,
        proposal_results,
        total_savings,
        unmixed_tasks,
    )
    from valve_plugin.evolve.open import LAST_TASKS
    from valve_plugin.tasks.names import task_names

    if simulate or is_scripted(store.dir):
        output.say(LABEL)
    fallen = fallen_by_accept(store.entries())
    results = proposal_results(store.entries())
    names = task_names(store.local.recall(LAST_TASKS), store.local.attempts(), ids=True)
    table = [_cells(row, fallen.get(row.proposal.id, ()), names) for row in results]
    if table:
        heads = ["TASK", "PASSED", "PROPOSED", "VERDICT", "NET PASSES", "ROLLOUTS", "VERSION", "WHY"]
        output.table(heads, table, prose=("WHY",))
    if (simulate or is_scripted(store.dir)) and any(is_owners(r.proposal.task_id) and r.verdict for r in results):
        output.say(f"{HEEDS_ITS_OWN} What the gate decided about a person's note is chance.")
    if advice := advise(store.panel(), results):
        output.say(advice)
    always, never = unmixed_tasks(store.entries(), store.local.attempts())
    if always or never:
        same = output.plural(always + never, "task")
        output.say(f"nothing to learn at {same}: every attempt passed at {always}, none at {never}")
    if gates := gate_savings(store.entries(), store.local.read_telemetry("gates")):
        total = total_savings(list(gates.values()))
        money = f", about ${total.usd:.2f}" if total.usd >= 0.005 else ""
        rest = f"; rejections were certain without the other {total.rollouts}{money}" if total.rollouts else ""
        output.say(f"gates ran {total.ran} of {output.plural(total.of, 'rollout')}{rest}")
    bank = store.bank
    used = f"{output.plural(store.queries_used(), 'gate query', 'gate queries')} used" if store.epoch() else "ungated"
    output.say(
        f"{bank.repo}: version {bank.version}, {output.plural(len(bank.principles), 'principle')}, "
        f"{output.plural(len(bank.skills), 'skill')}; {used}; {store.dir}"
    )


def _cells(row: ProposalResult, worse: Sequence[str], names: Mapping[str, str]) -> list[object]:
    from valve_plugin.evidence.summary import why_nothing
    from valve_plugin.tasks.names import put_names

    added, removed, verdict = len(row.proposal.items), len(row.proposal.removed), row.verdict
    parts = ([output.plural(added, "note")] if added else []) + ([f"-{removed}"] if removed else [])
    ran = f"{verdict.ran}/{verdict.n_tasks * verdict.rollouts - len(verdict.reused)}" if verdict else ""
    net = net_passes(verdict) if verdict else ""
    why = "; ".join(
        filter(
            None,
            [row.aside, why_nothing(row.proposal), put_names(f"worse: {', '.join(worse)}", names) if worse else ""],
        )
    )
    passed, what = f"{row.passed}/{row.attempts}", " ".join(parts) or "nothing"
    task = names.get(row.task_id) or short_task_id(row.task_id)
    return [task, passed, what, row.outcome, net, ran, row.version, output.one_line(why)]


class QueuedBank(NamedTuple):
    """A task set and its bank."""

    name: str
    tasks: Path
    bank: Path


def find_queue(folder: str, bank: str, *, simulate: bool) -> list[QueuedBank]:
    """Return the task sets in a folder, by name, each with the bank that `valve evolve` would use for it alone.

    Args:
        folder: holds task sets as folders.
        bank: folder of the banks, by name of the set; empty: each where it would be.
        simulate: whether the banks are those of simulations.

    Raises:
        ConfigError: there is no task set, or two would share a bank.
        TaskError: a definition is damaged.
    """
    from valve_plugin.tasks.task_set import is_task_set

    place = Path(folder)
    if is_task_set(place):
        raise ConfigError(f"{folder} is one task set; --all takes a folder of several: leave --all out")
    sets = sorted(path for path in place.glob("*/") if is_task_set(path))
    if not sets:
        raise ConfigError(f"{folder}: no folder in it is a task set, with repository.toml and tasks.jsonl")
    found = [QueuedBank(path.name, path, Path(bank) / path.name if bank else _bank_of(path, simulate)) for path in sets]
    owners: dict[Path, str] = {}
    for one in found:
        if (other := owners.setdefault(one.bank.resolve(), one.name)) != one.name:
            raise ConfigError(
                f"{other} and {one.name} would use one bank, {one.bank}; --bank DIR gives each one of its own there"
            )
    return found


def _bank_of(tasks: Path, simulate: bool) -> Path:
    from valve_plugin.tasks.repository import FILE_NAME, read_definition

    name = read_definition(tasks / FILE_NAME).name  # the tasks are read by the run, which may fail alone
    return scripted_bank_dir(name) if simulate else find_bank("", find_checkout(Path.cwd()), name)


def run_queue(
    queue: Sequence[QueuedBank], given: dict[str, Any], how: dict[str, Any], *, yes: bool, json: bool
) -> None:
    """Run all banks, and print what each came to.

    Raises:
        typer.Exit: some did not end; with their lowest exit code.
    """
    from valve_plugin.cli import together
    from valve_plugin.rollouts.retry import limits_of

    settings = resolve(given)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if asks and not (yes or how["simulate"] or any(limits_of(settings))):
        what = f"{plural(len(queue), 'bank')} would learn without a limit (--budget-usd, --max-rollouts, --max-hours)"
        typer.confirm(f"{what}. Start?", abort=True, err=True)
    jobs = [
        together.Job(
            one.name,
            "valve_plugin.cli.evolve:learn",
            {"tasks": str(one.tasks), "bank": str(one.bank), "given": given, **how, "yes": True, "json": True},
        )
        for one in queue
    ]
    with output.advise_on_stop():
        ended = together.run(jobs, settings, limits_of(settings))
    rows = {}
    for one in queue:
        code, said, answer = ended[one.name]
        found = answer if isinstance(answer, dict) else {}
        state = said if code else found.get("stopped") or "done"
        state = state if len(state) <= _MOST_SAID else f"{state[:_MOST_SAID]}… (whole above)"
        rows[one.name] = {"bank": str(one.bank), "code": code, "ended": state, **found}
    if json:
        output.emit_json({"simulation": how["simulate"], "banks": rows})
    else:
        table, usd, rollouts = [], 0.0, 0
        for name, row in rows.items():
            spent = row.get("spent", {}).get("run", {})
            ran = sum(of["number"] for role, of in spent.items() if role != "extractor")
            cost = sum(of["usd"] for of in spent.values())
            rollouts, usd = rollouts + ran, usd + cost
            sizes = [row.get(fact, "") for fact in ("version", "principles", "skills")]
            table.append([name, *sizes, ran, f"{cost:.2f}" if cost else "", output.one_line(row["ended"])])
        output.table(["TASKS", "VERSION", "PRINCIPLES", "SKILLS", "ROLLOUTS", "USD", "ENDED"], table, prose=("ENDED",))
        money = f", ${usd:.2f}" if usd else ""
        output.say(f"{plural(len(rows), 'bank')}: {plural(rollouts, 'rollout')} in this run{money}")
    if failed := [row["code"] for row in rows.values() if row["code"]]:
        again = output.resume_command()
        advice = f": {again}" if again else ""
        first = "" if set(failed) == {output.INFRASTRUCTURE} else "repair what is named above; then "
        output.note(
            f"{len(failed)} of {plural(len(rows), 'bank')} did not end; {first}the same command goes on{advice}"
        )
        raise typer.Exit(min(failed))
