"""How commands open a run and its bank: their shared options, the budget, and notes on simulations."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from valve_plugin.bank import scripted_bank
from valve_plugin.bank.scripted_bank import LABEL, is_scripted
from valve_plugin.cli import output, task_sets
from valve_plugin.cli.options import Count, Real, flag, open_bank, option, overrides
from valve_plugin.cli.stage import Stage
from valve_plugin.config import SCRIPTED_MODEL, model_of
from valve_plugin.errors import BankNotFoundError, BudgetError
from valve_plugin.words import quote

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from typing_extensions import Unpack

    from valve_plugin.bank.store import BankStore
    from valve_plugin.cli.progress import Progress
    from valve_plugin.config import Settings, Use
    from valve_plugin.evolve.open import OpenRun, Options, Purpose
    from valve_plugin.evolve.steps import Steps
    from valve_plugin.lab.simulation.parameters import ProposalKind
    from valve_plugin.tasks.task_set import TaskSet

_MUCH_ROLLOUTS, _MUCH_USD = 100, 10.0
"""From here on a terminal is asked first."""

Set = Annotated[list[str], option("-c", "KEY=VALUE", "A setting for this run; may be repeated.", also="--set")]
Tasks = Annotated[str, option("--tasks", "TASKS", "The panel's task set. Default: the last one used.")]
Simulate = Annotated[bool, flag("--simulate", "Run a SIMULATION with a scripted model: no key, its own bank.")]
Workers = Annotated[Count, option("--workers", "N", "Rollouts run at the same time. Default: 1.", min=1)]
UnsafeLocal = Annotated[
    bool, flag("--unsafe-local", "Run rollouts without a sandbox, with all your permissions.", rare=True)
]
PanelSize = Annotated[Count, option("--panel-size", "N", "Tasks of the panel. Default: 50.", also="--panel", min=1)]
NewEpoch = Annotated[bool, flag("--new-epoch", "Measure the panel anew and begin new gate queries.", rare=True)]
NoEarlyStop = Annotated[
    bool, flag("--no-early-stop", "Run whole panels, to compare. Verdicts are the same.", rare=True)
]


Speculate = Annotated[
    Real,
    option("--speculate", "SHARE", "Rollouts that may be run in vain, per useful one. Default: 0.1.", min=0, rare=True),
]
Ungated = Annotated[bool, flag("--ungated", "Take every proposal without a gate, only to compare.", rare=True)]


class Solving(NamedTuple):
    """The options of every command that runs rollouts."""

    workers: Workers = None
    agent: Annotated[
        str | None,
        option("--agent", "AGENT", "Who solves: mini, claude, codex, or a command with {task}. Default: mini."),
    ] = None
    set_: Set = []  # noqa: RUF012 (Typer copies it)
    simulate: Simulate = False
    unsafe_local: UnsafeLocal = False
    keep_history: Annotated[
        bool, flag("--keep-history", "Leave the image's git history, though it shows the fix.", rare=True)
    ] = False

    def settings(self, use: Use, **more: Any) -> dict[str, Any]:
        """Return the settings that the command line gives; see `overrides`."""
        return overrides(
            self.set_, use, simulate=self.simulate, workers=self.workers, agent=self.agent,
            unsafe_local=self.unsafe_local or None, keep_history=self.keep_history or None, **more,
        )  # fmt: skip


class Limits(NamedTuple):
    """The options that end a run early, and that let it begin."""

    budget_usd: Annotated[Real, option("--budget-usd", "USD", "Stop when this much is spent. Default: no limit.")] = (
        None
    )
    max_rollouts: Annotated[Count, option("--max-rollouts", "N", "Stop after N rollouts. Default: no limit.")] = None
    max_hours: Annotated[Real, option("--max-hours", "H", "Start nothing new after H hours. Default: no limit.")] = None
    yes: Annotated[bool, flag("--yes", "Do not ask before many rollouts.")] = False

    @property
    def settings(self) -> dict[str, Any]:
        """Return the limits as settings."""
        return {name: value for name, value in self._asdict().items() if name != "yes"}


SOLVING, LIMITS = Solving(), Limits()


@contextmanager
def open_run(
    tasks: str,
    bank: str,
    given: Mapping[str, Any],
    *,
    simulate: bool = False,
    proposals: Mapping[ProposalKind, float] = {},
    **options: Unpack[Options],
) -> Iterator[OpenRun]:
    """Open a run for a command: show its progress on stderr, and print how to resume it if it is stopped.

    See `evolve.open.open_run` for the options and what is refused, and `lab.simulation.server.start` for `proposals`.
    """
    from valve_plugin.evolve import open as opening
    from valve_plugin.lab.conditions import with_hooks

    chosen = bank_for_run(bank, simulate, tasks)
    scripted = partial(serve_scripted, proposals=proposals) if simulate else None
    with (
        output.advise_on_stop(),
        opening.open_run(
            tasks, chosen, given, scripted=scripted, extend=with_hooks, say=say, stages=Stage(), **options
        ) as run,
    ):
        if options.get("purpose", "learn") in ("learn", "drain"):
            output.remember(run.store.local)
        yield run


@contextmanager
def reopen(
    store: BankStore, tasks: str, given: Mapping[str, Any], *, simulate: bool, purpose: Purpose, new_epoch: bool = False
) -> Iterator[OpenRun]:
    """Open a run on a bank that exists, with the task set that is named or that the bank was last used with."""
    from valve_plugin.cli.progress import Progress

    found = tasks_of(store, tasks, store.settings(given))
    with (
        Progress() as progress,
        open_run(
            found, str(store.dir), given, simulate=simulate, purpose=purpose, new_epoch=new_epoch, observer=progress
        ) as run,
    ):
        yield run


def say(text: str) -> None:
    """Print what a person should know while a run opens."""
    output.note(text, style="yellow" if text.startswith("valve: ") else "")


def serve_scripted(
    taskset: TaskSet, settings: Settings, proposals: Mapping[ProposalKind, float] = {}
) -> AbstractContextManager[Settings]:
    """Serve the scripted model, and print that it is not a real one; see `lab.simulation.server.serve_model`."""
    from valve_plugin.lab.simulation.parameters import PROPOSALS
    from valve_plugin.lab.simulation.server import BANNER, serve_model

    output.note(BANNER, style="bold yellow")
    return serve_model(taskset, settings, proposals or PROPOSALS)


def tasks_of(store: BankStore, given: str, settings: Settings) -> str:
    """Return the task set to use: the option, the setting, the bank's last one, or the only one of this repository.

    Raises:
        ConfigError: none is known.
    """
    from valve_plugin.evolve.open import LAST_TASKS

    return given or settings.tasks or store.local.recall(LAST_TASKS) or str(task_sets.find_folder())


def note_sizes(store: BankStore, taskset: TaskSet) -> None:
    """Print what a small panel can tell before its first gate, and which tasks are never used."""
    from valve_plugin.tasks import split

    panel = store.panel()
    if panel and store.epoch() and not store.queries_used() and len(panel.tasks) < split.REFERENCE:
        output.note(split.describe_gate(len(panel.tasks), panel.rollouts, panel.rho))
    if unused := split.unused(taskset.split, len(taskset.tasks)):
        output.warn(unused)


def bank_for_run(bank: str, simulate: bool, tasks: str = "") -> str:
    """Return the `--bank` to use: with `--simulate` and no bank given, the simulation's own bank in user data.

    A simulation uses neither `$VALVE_BANK` nor the repository's `.valve`, which are for real runs.

    Args:
        bank: the option as given.
        simulate: whether the scripted model runs.
        tasks: the task set whose repository names the bank; empty: the current repository.
    """
    if bank or not simulate:
        return bank
    from valve_plugin.lab.simulation.server import own_bank

    chosen = str(own_bank(tasks))
    output.note(
        f"SIMULATION, in a bank of its own: {chosen}; to look at it: valve bank log --bank {quote(chosen)}",
        style="bold yellow",
    )
    return chosen


def open_store(bank: str, simulate: bool, tasks: str = "") -> BankStore:
    """Open the bank that applies; see `bank_for_run`.

    Raises:
        BankError: there is none, or it is damaged.
    """
    chosen = bank_for_run(bank, simulate, tasks)
    try:
        return open_bank(chosen)
    except BankNotFoundError as e:
        if chosen == bank:
            raise
        start = "`valve evolve TASKS --simulate` starts one"
        name, sets = ("", []) if tasks else task_sets.of_this_repository()
        if name and not sets:
            start = f"{start}, with a task set, and there is none of {name}; {task_sets.MAKE_TASKS}"
        raise BankNotFoundError(f"{chosen}: there is no simulation here yet; {start}") from e


def require_apart(store: BankStore, settings: Settings, *, simulate: bool) -> None:
    """Refuse a real run on a simulation's bank, and a simulation on a real one (ConfigError)."""
    model = SCRIPTED_MODEL if simulate else model_of(settings)
    scripted_bank.require_own_bank(store, store.dir, model, settings.tasks or "TASKS")


def note_simulation(directory: Path, *, json: bool, data: bool = False) -> bool:
    """Return whether this is a simulation's bank, and print it as the first line.

    Args:
        json: print nothing; the caller puts it into its JSON.
        data: print to stderr, because stdout carries data.
    """
    found = is_scripted(directory)
    if found and not json:
        (output.note if data else output.say)(LABEL, style="bold yellow")
    return found


def preflight(run: OpenRun, steps: Steps, *, queued: bool = False, yes: bool = False) -> None:
    """Print what the next verdict costs at most; refuse a budget that is too small for it.

    A terminal is asked before much is spent, unless a budget or `yes` says that it may be.
    """
    from valve_plugin.evolve.budget import require_verdict
    from valve_plugin.rollouts.retry import limits_of

    cost = require_verdict(steps, run.taskset.tasks, run.stream, queued=queued)
    if cost is None:
        return
    output.note(f"plan      the next verdict takes at most {cost.phrase}")
    free = run.settings.model == SCRIPTED_MODEL
    if not (yes or free or any(limits_of(run.settings))):
        ask_before_much(cost.rollouts, cost.usd)


def ask_before_much(rollouts: int, usd: float | None) -> None:
    """Ask at a terminal whether to start, where that is much; without one, nobody is asked."""
    much = rollouts > _MUCH_ROLLOUTS or (usd or 0.0) > _MUCH_USD
    if much and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Start? (--budget-usd, --max-rollouts and --max-hours limit a run)", abort=True, err=True)


@contextmanager
def stopping(progress: Progress) -> Iterator[None]:
    """Treat a used-up budget as a normal end of the run."""
    try:
        yield
    except BudgetError as e:
        progress.stopped = str(e)


def say_spent(progress: Progress) -> None:
    """Print what the run spent by role, and how to continue if a budget stopped it."""
    from valve_plugin.cli.run_view import describe_spent

    spent = progress.view.spent
    if spent:
        output.say("spent in this run: " + ", ".join(f"{role} {describe_spent(role, s)}" for role, s in spent.items()))
    if progress.stopped:
        again = f": {progress.view.run.command}" if progress.view.run.command else ""
        output.say(f"stopped: {progress.stopped}. Nothing is lost: the same command continues from here{again}")


def spent_facts(progress: Progress, store: BankStore) -> dict[str, Any]:
    """Return what the run spent, and all that this machine recorded for the bank, as plain data."""
    from valve_plugin.evidence.cost import cost_by_role
    from valve_plugin.gate.panel_run import CUT

    local = store.local
    calls, cut = local.read_telemetry("calls"), local.read_telemetry(CUT)
    of_bank = cost_by_role(local.attempts(), calls, list(store.entries()), cut, local.unused())
    run = {role: {"usd": s.usd, "number": s.rollouts, "hours": s.hours} for role, s in progress.view.spent.items()}
    bank = {s.role: {"usd": s.usd, "number": s.rollouts, "hours": s.hours} for s in of_bank}
    return {"stopped": progress.stopped, "spent": {"run": run, "bank": bank}}
