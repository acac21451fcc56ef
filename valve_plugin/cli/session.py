"""What evolve, gate, panel and demo set up before their first rollout, and the options they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from valve_plugin.cli import again, completion, output, panel_told, simulations
from valve_plugin.errors import BankNotFoundError, ConfigError

if TYPE_CHECKING:
    import pluggy

    from valve_plugin.bank.store import BankStore
    from valve_plugin.config import Settings
    from valve_plugin.records import Task
    from valve_plugin.tasks.load import TaskSet

Set = Annotated[
    list[str], typer.Option("-c", "--set", metavar="KEY=VALUE", help="A setting for this run; may be repeated.")
]
Tasks = Annotated[
    str,
    typer.Option(
        "--tasks",
        metavar="TASKS",
        help="Task set the panel was chosen from. Default: the last one used.",
        autocompletion=completion.sets,
    ),
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="A SIMULATION by the scripted model, without a key; in a bank of its own.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, metavar="N", help="Rollouts run at the same time. Default: 1.")
]
UnsafeLocal = Annotated[
    bool, typer.Option("--unsafe-local", help="Run rollouts without a sandbox, with all your rights.")
]
KeepHistory = Annotated[
    bool,
    typer.Option("--keep-history", help="Leave the image's git history in sight, as SWE-smith does: it shows the fix."),
]
NewEpoch = Annotated[
    bool, typer.Option("--new-epoch", help="Open a new epoch: a fresh baseline and a fresh horizon of gate queries.")
]
NoEarlyStop = Annotated[
    bool, typer.Option("--no-early-stop", help="Run whole panels, to compare. Verdicts are the same.")
]

_LAST_TASKS = "tasks"
MAKE_TASKS = "`valve tasks generate`, `valve tasks import` and `valve tasks mine` make one"


class Run(NamedTuple):
    """Everything a run needs."""

    store: BankStore
    settings: Settings
    taskset: TaskSet
    stream: list[Task]
    """Tasks outside the panel, in prepared order."""
    manager: pluggy.PluginManager


@contextmanager
def running(
    tasks: str,
    bank: str,
    given: Mapping[str, Any],
    *,
    simulate: bool = False,
    new_epoch: bool = False,
    gated: bool = True,
    learns: Literal["stream", "queue", ""] = "stream",
    observer: object = None,
) -> Iterator[Run]:
    """Set up a run that may change the bank: one at a time per bank.

    Loads the task set, opens or creates its bank, prepares the repository, fixes the panel if none is fixed. A budget
    has to reach a verdict where the run `learns`, and from what it does.
    """
    from msgspec.structs import replace

    from valve_plugin import plugins
    from valve_plugin.cli import budget
    from valve_plugin.evolve.setup import can_prepare, opens
    from valve_plugin.evolve.setup import prepare as fix_panel
    from valve_plugin.gate.plan import require_pairing
    from valve_plugin.rollouts.worker import SCRIPTED_MODEL

    def fits(found: BankStore | None, settings: Settings, taskset: TaskSet) -> None:
        panel = can_prepare(found, settings, taskset)
        panel_told.require_size(panel, given, found)
        if found is None and gated:
            require_pairing(plugins.load(settings.plugins), panel)
        if learns and (found is None or opens(found, new_epoch=new_epoch, gated=gated)):
            asked = replace(settings, model=SCRIPTED_MODEL if simulate else settings.model)
            budget.before_opening(asked, panel if gated else None, found, queued=learns == "queue")

    with holding(tasks, bank, given, simulate=simulate, observer=observer, fits=fits) as run:
        stream = fix_panel(run.store, run.settings, run.taskset, new_epoch=new_epoch, gated=gated)
        _note_conditions(run.store, run.settings)
        if learns:
            again.remember(run.store.local, run.settings)
        yield run._replace(stream=stream)


@contextmanager
def holding(
    tasks: str,
    bank: str,
    given: Mapping[str, Any],
    *,
    simulate: bool = False,
    observer: object = None,
    fits: Callable[[BankStore | None, Settings, TaskSet], object] = lambda store, settings, taskset: None,
) -> Iterator[Run]:
    """Set up a run that writes to the ledger but needs no panel; its stream is empty.

    Args:
        fits: refuses, by raising, what cannot be run; asked before a bank is made or anything is downloaded.
    """
    from valve_plugin import config, plugins
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.evolve.graded import require_same
    from valve_plugin.rollouts import sandbox
    from valve_plugin.tasks import folder
    from valve_plugin.tasks.image import placed
    from valve_plugin.tasks.load import load
    from valve_plugin.tasks.repository import prepare

    path = folder.find(tasks)
    taskset = load(path)
    bank = simulations.bank_for(bank, simulate, tasks)
    given = {**given, "tasks": str(path.resolve())}
    directory = _directory(bank, taskset)
    settings, found = hooked(config.load(directory, given)), _opened(directory)
    simulations.require_apart(found, directory, settings, simulate=simulate)
    require_able(taskset, settings, simulate=simulate)
    fits(found, settings, taskset)
    store = found or _created(directory, taskset)
    with again.told(settings), ExitStack() as stack:
        settings = hooked(store.settings(given))
        if simulate:
            settings = stack.enter_context(simulation(taskset, settings))
        stack.enter_context(store.lease())
        with GoingOn() as going:
            where = placed(prepare(taskset.repository, going), taskset.tasks[0], settings, going)
        sandbox.choose(settings, where.image)
        require_same(store, where, taskset.tasks)
        store.local.remember(_LAST_TASKS, settings.tasks)
        manager = plugins.load(settings.plugins)
        if observer is not None:
            manager.register(observer)
        yield Run(store, settings, taskset, [], manager)


@contextmanager
def simulation(taskset: TaskSet, settings: Settings) -> Iterator[Settings]:
    """Serve the scripted model while the block runs; yields the settings that use it."""
    from msgspec.structs import replace

    from valve_plugin.config import SAMPLING
    from valve_plugin.rollouts.worker import SCRIPTED_MODEL
    from valve_plugin.simulate.server import BANNER, start

    output.note(BANNER, style="bold yellow")
    with start(taskset, settings.seed) as server:
        before = {name: os.environ.get(name) for name in server.environment()}
        os.environ.update(server.environment())
        try:
            # The seed is part of what determines a rollout, so the journal must see it. No address, no key is kept.
            kept = {name: value for name, value in settings.model_kwargs.items() if name in SAMPLING}
            served = {**kept, "seed": settings.seed}
            yield replace(settings, model=SCRIPTED_MODEL, model_class="", model_kwargs=served)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def hooked(settings: Settings) -> Settings:
    """Return the settings with the hooks of the condition they name among the plugins.

    Raises:
        ConfigError: there is no such condition.
    """
    if not settings.condition:
        return settings
    from msgspec.structs import replace

    from valve_plugin.experiment.conditions import find

    new = {find(settings.condition).hooks} - {"", *settings.plugins}
    return replace(settings, plugins=(*settings.plugins, *new))


def tasks_of(store: BankStore, given: str, settings: Settings) -> str:
    """Return the task set to use: the option, the setting, or the one the bank was last used with.

    Raises:
        ConfigError: none is known.
    """
    found = given or settings.tasks or store.local.recall(_LAST_TASKS)
    if not found:
        raise ConfigError(
            f"{store.dir}: no task set is known here; give the one its panel is chosen from: --tasks. {MAKE_TASKS}"
        )
    return found


def _directory(bank: str, taskset: TaskSet) -> Path:
    from valve_plugin.bank.checkout import find
    from valve_plugin.bank.paths import locate

    return locate(bank, find(Path.cwd()).folder, taskset.repository.name)


def _opened(directory: Path) -> BankStore | None:
    from valve_plugin.bank.store import BankStore

    try:
        return _told(BankStore.open(directory))
    except BankNotFoundError:
        return None


def _created(directory: Path, taskset: TaskSet) -> BankStore:
    from valve_plugin.bank.store import BankStore

    store = BankStore.create(directory, taskset.repository.name, {"repo": taskset.repository.name})
    output.note(f"made a bank for {taskset.repository.name}: {directory}")
    return _told(store)


def _told(store: BankStore) -> BankStore:
    for warning in store.warnings:
        output.note(f"valve: {warning}", style="yellow")
    return store


def _note_conditions(store: BankStore, settings: Settings) -> None:
    """What an accept takes is declared with the epoch; say so to who asks for something else in its middle."""
    from valve_plugin.records import Conditions

    epoch = store.epoch()
    asked, declared = Conditions(confirm=settings.confirm, guard=settings.guard), epoch and epoch.conditions
    if epoch and asked not in (Conditions(), declared or Conditions()):
        output.note(
            f"valve: epoch {epoch.epoch} keeps the confirm and guard it was opened with; --new-epoch opens another",
            style="yellow",
        )


def require_able(taskset: TaskSet, settings: Settings, *, simulate: bool) -> None:
    """Refuse, before anything is made, what lacks a model, its price, mini's files (ConfigError) or a sandbox."""
    from valve_plugin.rollouts import mini_config, mini_settings, prices, sandbox
    from valve_plugin.tasks.image import wanted

    mini_settings.load()  # the default model and keys that mini keeps for its user; the extractor needs them too
    if not simulate and not settings.model and not os.environ.get("MSWEA_MODEL_NAME"):
        raise ConfigError(
            "no model is named: give -c model=NAME (any litellm name), or set mini's default with "
            "`mini-extra config set MSWEA_MODEL_NAME PROVIDER/NAME`; --simulate shows the loop without one"
        )
    mini_config.require(settings.mini_config)
    source = taskset.repository.source
    if all(wanted(task, source, settings) is None for task in taskset.tasks):
        sandbox.choose(settings)
    if not simulate and _attempts_ourselves(settings):
        prices.require(settings)  # last, since it loads litellm: seconds


def _attempts_ourselves(settings: Settings) -> bool:
    """Whether the run's attempts are valve's own rollouts of mini, and no other plugin's."""
    from valve_plugin import plugins

    asked = plugins.load(settings.plugins).hook.valve_attempt.get_hookimpls()  # from the last one on
    return [one.plugin_name for one in asked[-1:]] == ["valve"]
