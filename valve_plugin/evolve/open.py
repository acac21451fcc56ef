"""Opening a run: bank, settings, tasks, plugins, lease and budget, in the order in which they are needed.

A run that is not possible is refused before a bank is made, an epoch is opened or anything is downloaded.
"""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pluggy
import psutil
from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin import checkout, config, files, plugins
from valve_plugin.agents import mini, outside, process
from valve_plugin.bank import scripted_bank
from valve_plugin.bank.entries import EpochOpened, OwnerAct, PanelFixed, Proposed, Taken
from valve_plugin.bank.identity import describe_mismatch, find_bank, is_same_name
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, decode, digest
from valve_plugin.config import MINI, SCRIPTED_MODEL, Settings, model_of, pairing_of
from valve_plugin.errors import BankNotFoundError, ConfigError, RecordError, TaskError
from valve_plugin.events import RunStarted
from valve_plugin.evidence.evaluations import read_measurements
from valve_plugin.evolve import budget
from valve_plugin.evolve.steps import stream_position
from valve_plugin.gate.plan import differing_settings, panel_tasks, require_kept, require_pairing, require_solver
from valve_plugin.live.context import require_welcome
from valve_plugin.records import Conditions, Panel, PanelTask, Task
from valve_plugin.retrieval import contexts
from valve_plugin.rollouts.retry import limits_of
from valve_plugin.sandbox import bubblewrap
from valve_plugin.tasks import split
from valve_plugin.tasks.grading.grade import refused_fixes, say_refused
from valve_plugin.tasks.image import choose_image, place_in_image
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.task_set import TaskSet, find, load
from valve_plugin.theory import gate_rule
from valve_plugin.words import plural

LAST_TASKS = "tasks"
"""Name under which a bank's local store remembers its last task set."""
GRADING_FILE = "graded.json"
_MAX_BYTES = 100_000_000

Purpose = Literal["learn", "drain", "measure", "evaluate"]
"""Purpose of a run: learn from its stream or from queued attempts, measure the panel, or evaluate on the holdout."""
Say = Callable[[str], None]
"""Shows a line to a person."""


class OpenRun(NamedTuple):
    """Everything a run needs."""

    store: BankStore
    settings: Settings
    taskset: TaskSet
    stream: list[Task]
    """Tasks outside the panel, in prepared order; empty for an evaluation."""
    manager: pluggy.PluginManager


class Options(TypedDict, total=False):
    """Options of `open_run` that a command sets."""

    purpose: Purpose
    new_epoch: bool
    gated: bool
    observer: object


@contextmanager
def open_run(
    tasks: str,
    bank: str,
    given: Mapping[str, Any],
    *,
    purpose: Purpose = "learn",
    new_epoch: bool = False,
    gated: bool = True,
    observer: object = None,
    scripted: Callable[[TaskSet, Settings], AbstractContextManager[Settings]] | None = None,
    extend: Callable[[Settings], Settings] = lambda settings: settings,
    say: Say = lambda text: None,
    stages: AbstractContextManager[Say] | None = None,
) -> Iterator[OpenRun]:
    """Open a run that may write to a bank's ledger; one at a time per bank.

    Args:
        tasks: directory of a task set, a rows file, or a set's name.
        bank: the bank's directory; empty: the one that applies here. It is made where there is none.
        given: settings of this run, which win over the bank's file.
        purpose: of the run. Learning needs a budget that reaches a verdict; an evaluation needs no panel.
        new_epoch: open another epoch, unless the open one was never asked.
        gated: False: no gate will be asked, so no epoch is opened. The panel is set aside all the same, so that gated
            and ungated runs see one stream.
        observer: one more plugin.
        scripted: serves the scripted model in place of a real one, and returns the settings that use it.
        extend: completes settings, by the plugins of an experiment's condition.
        say: shows what a person should know.
        stages: shows what is being prepared.

    Raises:
        ConfigError: a setting, a budget or a bank that does not fit.
        TaskError: tasks that do not fit the bank, or are too few for a panel.
        BankBusyError: another run holds the bank.
    """
    path = find(tasks)
    taskset = load(path)
    given = {**given, "tasks": str(path.resolve())}
    directory = find_bank(bank, checkout.find(Path.cwd()), taskset.repository.name)
    found = _existing_store(directory)
    if found is not None:
        require_welcome(found, lambda line: say(f"valve: {line}"))
    settings = extend(config.load(directory, given))
    asked = replace(settings, model=SCRIPTED_MODEL) if scripted else settings

    scripted_bank.require_own_bank(found, directory, model_of(asked), asked.tasks)
    require_able(taskset, asked)
    if purpose != "evaluate":
        panel = panel_of(found, settings, taskset)
        opens = opens_epoch(found, settings, new_epoch=new_epoch, gated=gated)
        require_kept(
            given, panel, None if opens or found is None else found.epoch(), found.dir if found else "split.json"
        )
        if found is None and gated:
            require_pairing(plugins.load(settings.plugins), panel)
        if purpose != "measure" and opens:
            judging = panel if gated else None
            budget.require_first_verdict(asked, judging, found, taskset.tasks, queued=purpose == "drain")

    store = found or _new_store(directory, taskset, say)
    if store.bank.repo != (name := taskset.repository.name):
        say(f"the tasks are about {name}, a fork of {store.bank.repo} by its name, whose bank learns")
    for warning in store.warnings:
        say(f"valve: {warning}")
    with ExitStack() as stack:
        settings = extend(store.settings(given))
        if scripted:
            settings = stack.enter_context(scripted(taskset, settings))
        stack.enter_context(store.lease())
        store.refresh()  # another run may have ended since it was opened
        instead = "another bank with --bank DIR; in this one, tasks made anew need ids of their own"
        place = Place(store.local, store.dir, instead)
        refused = make_ready(taskset, settings, place, scripted=scripted is not None, say=say, stages=stages)
        store.local.remember(LAST_TASKS, settings.tasks)
        manager = plugins.load(plugin_names(settings))
        if observer is not None:
            manager.register(observer)
        stream: list[Task] = []
        if purpose != "evaluate":
            able = [task for task in taskset.tasks if task.instance_id not in refused]
            drawn = store.panel() is None and taskset.split is None
            drawn_from = replace(taskset, tasks=tuple(able)) if drawn else taskset
            stream = fix_panel(store, settings, drawn_from, new_epoch=new_epoch, gated=gated)
            stream = [task for task in stream if task.instance_id not in refused]
            _say_kept_settings(store, say)
        yield OpenRun(store, settings, taskset, stream, manager)


class Place(NamedTuple):
    """Where rollouts are kept."""

    local: LocalStore
    shown: Path
    """What a message calls it."""
    instead: str
    """Another place to take, for a message."""


def make_ready(
    taskset: TaskSet,
    settings: Settings,
    place: Place,
    *,
    scripted: bool,
    say: Say,
    stages: AbstractContextManager[Say] | None = None,
) -> set[str]:
    """Prepare the repository and the sandbox, and check that the tasks can be graded, before a model is paid.

    Returns the ids of tasks that not even their own fix resolves.

    Raises:
        TaskError: no task can be resolved, or tasks are graded otherwise than they were.
        SandboxError: there is no sandbox, and running without one was not asked for.
    """
    with stages or nullcontext(lambda text: None) as stage:
        prepared = place_in_image(prepare(taskset.repository, stage), taskset.tasks[0], settings, stage)
    bubblewrap.choose(settings, prepared.image)
    if settings.executor == "ray":
        from valve_plugin.rollouts import ray_executor

        ray_executor.require_nodes(settings)
    require_same_grading(place, prepared, taskset.tasks)
    if _rollouts_are_ours(plugins.load(settings.plugins)) and not scripted:
        return require_fixes(prepared, taskset.tasks, settings, say)
    return set()


def _rollouts_are_ours(manager: pluggy.PluginManager) -> bool:
    """Whether rollouts are VALVE's own, of mini: the last hook is asked first."""
    return [one.plugin_name for one in manager.hook.valve_attempt.get_hookimpls()[-1:]] == ["valve"]


def require_fixes(prepared: PreparedRepository, tasks: Sequence[Task], settings: Settings, say: Say) -> set[str]:
    """Say and return, before a model is paid, which tasks not even their own fix resolves.

    Raises:
        TaskError: it is all of them.
    """
    alike = [task for task in tasks if prepared.image is None or task.image_name == tasks[0].image_name]
    refused = list(refused_fixes(prepared, alike, settings))
    if len(refused) == len(alike):
        raise TaskError(f"{prepared.name}: no task can be resolved, not even by its fix: {refused[0][1]}")
    for line in say_refused(refused):
        say(f"valve: {line}")
    if refused:
        say("valve: no attempt is made at them, but a panel or a holdout that is fixed keeps them")
    return {task.instance_id for task, _ in refused}


def plugin_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of a run's plugins, its tracker among them."""
    return tuple(filter(None, (settings.tracker, *settings.plugins)))


def require_able(taskset: TaskSet, settings: Settings) -> None:
    """Check, before anything is made, that there is a model with a price, that mini's files exist, and a sandbox.

    Raises:
        ConfigError: no model is named or priced, or mini's files cannot be read.
        SandboxError: there is no sandbox, and running without one was not asked for.
    """
    mini.load_user_settings()  # the default model and keys that mini keeps for its user; the extractor needs them too
    if not model_of(settings):
        raise ConfigError(
            "no model is named: give -c model=NAME (any litellm name), or set mini's default with "
            "`mini-extra config set MSWEA_MODEL_NAME PROVIDER/NAME`; --simulate shows the loop without one"
        )
    process.require_agent(settings)
    plugins.load(plugin_names(settings))
    source = taskset.repository.source
    if all(choose_image(task, source, settings) is None for task in taskset.tasks):
        bubblewrap.choose(settings)
    if _rollouts_are_ours(plugins.load(settings.plugins)) and settings.model != SCRIPTED_MODEL:
        if settings.agent != MINI:
            outside.require_provider(settings, model_of(settings))
        mini.require_price(settings)  # these two last, since they load litellm: seconds


def _existing_store(directory: Path) -> BankStore | None:
    try:
        return BankStore.open(directory)
    except BankNotFoundError:
        return None


def _new_store(directory: Path, taskset: TaskSet, say: Say) -> BankStore:
    name = taskset.repository.name
    store, created = BankStore.open_or_create(directory, name, {"repo": name})
    if created:
        say(f"made a bank for {name}: {directory}")
    return store


def _say_kept_settings(store: BankStore, say: Say) -> None:
    """Say which settings of the bank's own file have no effect, since its panel and epoch keep theirs."""
    place, panel = store.dir / config.FILE_NAME, store.panel()
    for name, kept in differing_settings(config.read_file(place), panel, store.epoch()) if panel else ():
        say(f"valve: {name} in {place} has no effect: the bank's panel or epoch was declared with {kept} and keeps it")


# ---- the panel and the epoch


def fix_panel(
    store: BankStore, settings: Settings, taskset: TaskSet, *, new_epoch: bool = False, gated: bool = True
) -> list[Task]:
    """Fix the panel and open an epoch if necessary; return the stream, in prepared order.

    Raises:
        ConfigError: the bank is about another repository, or would change between gated and ungated.
        TaskError: too few tasks for the panel, or the fixed panel is not in this task set.
    """
    panel = panel_of(store, settings, taskset)
    if store.panel() is None:
        store.append(PanelFixed(panel=panel))
    if gated:
        _declare_epoch(store, settings, panel, new_epoch)
    else:
        _require_never_gated(store)
    if taskset.split is None:
        return _unread(store, stream_of(panel, taskset.tasks))
    return stream_of(panel, [taskset.by_id[t.instance_id] for t in taskset.split.stream])  # never a holdout task


def panel_of(store: BankStore | None, settings: Settings, taskset: TaskSet) -> Panel:
    """Return the fixed panel, or the one that would be fixed; nothing is written.

    Raises:
        ConfigError: the bank is about another repository.
        TaskError: too few tasks for the panel, or the fixed panel is not in this task set.
    """
    if store and not is_same_name(store.bank.repo, taskset.repository.name):
        raise ConfigError(
            f"{describe_mismatch(store.bank.repo, store.dir, taskset.repository.name, 'the tasks are about')}; "
            f"name another bank with --bank DIR, or, if both are one repository, make the tasks with --repo "
            f"{store.bank.repo}"
        )
    unread = _unread(store, taskset.tasks) if store else taskset.tasks
    panel = (store and store.panel()) or choose_panel(settings, replace(taskset, tasks=tuple(unread)))
    panel_tasks(panel, taskset.tasks)  # all there, and what they were
    return panel


def opens_epoch(store: BankStore | None, settings: Settings, *, new_epoch: bool, gated: bool) -> bool:
    """Whether `fix_panel` would open an epoch, or fix a panel."""
    if store is None or (panel := store.panel()) is None:
        return True
    epoch = store.epoch()
    if epoch is None or not gated:
        return gated
    terms = {
        name: getattr(settings, name) for name in ("horizon", "delta", "confirm", "guard", "false_accepts", "protocol")
    }
    return new_epoch and (store.queries_used() > 0 or bool(differing_settings(terms, panel, epoch)))


def _declare_epoch(store: BankStore, settings: Settings, panel: Panel, new_epoch: bool) -> None:
    """Open an epoch where none is open, or another one was asked for."""
    taken = sum(isinstance(entry, Taken) for entry in store.entries())
    if store.epoch() is not None:
        if opens_epoch(store, settings, new_epoch=new_epoch, gated=True):
            _open_epoch(store, settings, panel, "a new one was asked for")
        require_solver(store, settings)
        return
    acts = [n for n, entry in enumerate(store.entries()) if isinstance(entry, OwnerAct)]
    opened = [n for n, entry in enumerate(store.entries()) if isinstance(entry, EpochOpened)]
    if opened and acts and acts[-1] > opened[-1]:
        _open_epoch(store, settings, panel, "the bank's owner changed it")
        return
    if taken and not opened and not new_epoch:
        raise ConfigError(
            f"{store.dir} reached version {taken} without a gate. `valve evolve --ungated` goes on so, and --bank DIR "
            "names another bank; `valve evolve --new-epoch` gates this one, beginning with a measurement of it"
        )
    _open_epoch(store, settings, panel, f"gated from version {taken} on" if taken else "the panel was fixed")


def _require_never_gated(store: BankStore) -> None:
    if any(isinstance(entry, EpochOpened) for entry in store.entries()):
        raise ConfigError(
            f"{store.dir} is gated: what it holds was judged on a panel, and --ungated would add what was not; "
            "name another bank with --bank DIR"
        )


def _conditions(settings: Settings) -> Conditions:
    bet = gate_rule.bet_needed(settings.horizon, settings.false_accepts)
    if bet and settings.protocol == "paper":
        raise ConfigError(
            'false_accepts goes with protocol = "fresh": what it promises needs both sides of a query measured anew'
        )
    fresh = (1 if bet else gate_rule.FRESH_QUERIES) * (settings.protocol == "fresh")
    return Conditions(confirm=settings.confirm, guard=settings.guard, fresh=fresh, bet=bet)


def _open_epoch(store: BankStore, settings: Settings, panel: Panel, reason: str) -> None:
    number = 1 + sum(isinstance(entry, EpochOpened) for entry in store.entries())
    if settings.guard > panel.rollouts:
        raise ConfigError(
            f"guard is {settings.guard}, expected at most the {plural(panel.rollouts, 'rollout')} a panel task has "
            "(0: no guard)"
        )
    beyond = _conditions(settings)
    store.append(
        EpochOpened(
            epoch=number,
            horizon=settings.horizon,
            delta=settings.delta,
            panel_hash=panel.hash,
            reason=reason,
            conditions=beyond if beyond != Conditions() else UNSET,
        )
    )


def choose_panel(settings: Settings, taskset: TaskSet) -> Panel:
    """Return the panel: what split.json says, else `panel_size` tasks sampled without replacement, in sampled order.

    Raises:
        TaskError: too few tasks, or the split's panel has another size than was asked for.

    Source: tab:impl-config ("sampled from the remaining stream (seed 123)").
    """
    if taskset.split is not None:
        chosen, seed = taskset.split.panel.tasks, taskset.split.panel.seed
        if settings.panel_size not in (len(chosen), Settings().panel_size):
            raise TaskError(
                f"the panel of split.json has {plural(len(chosen), 'task')}, --panel-size asks for "
                f"{settings.panel_size}; leave the option out, or draw again with "
                f"`valve split --panel {settings.panel_size}`"
            )
    else:
        chosen, seed = _sample_panel(settings, split.first_of_each_bug(taskset.tasks)), settings.panel_seed
    return Panel(
        tasks=chosen,
        rollouts=settings.rollouts,
        rho=gate_rule.margin(settings.rho, len(chosen), settings.rollouts, settings.protocol),
        pairing=pairing_of(settings),
        embedding=contexts.recorded_name(settings),
        seed=seed,
    )


def _sample_panel(settings: Settings, tasks: Sequence[Task]) -> tuple[PanelTask, ...]:
    """Return `panel_size` tasks, pinned by id and content."""
    if settings.panel_size >= len(tasks):
        fit = split.fitting_sizes(len(tasks))
        size = fit and f", such as --panel-size {fit.panel}"
        raise TaskError(
            f"{plural(len(tasks), 'task')}, and the panel takes {settings.panel_size}: nothing would be left to learn "
            f"from; give more tasks or a smaller --panel-size{size or ''}"
        )
    chosen = random.Random(settings.panel_seed).sample(list(tasks), settings.panel_size)  # noqa: S311 (a sample, no secret)
    return tuple(PanelTask(instance_id=t.instance_id, content_hash=t.content_hash) for t in chosen)


def stream_of(panel: Panel, tasks: Sequence[Task]) -> list[Task]:
    """Return the first task of each bug that no panel task has, in prepared order; no panel task either by its id."""
    ids, contents = {t.instance_id for t in panel.tasks}, {t.content_hash for t in panel.tasks}
    judged = [t for t in tasks if t.instance_id in ids or t.content_hash in contents]
    return split.first_of_each_bug([*judged, *tasks])[len(split.first_of_each_bug(judged)) :]


def _unread(store: BankStore, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that no evaluation of this bank read, by id and by content."""
    sealed = store.state.holdout
    return [t for t in tasks if t.instance_id not in sealed and t.content_hash not in sealed.values()]


# ---- what the tasks are graded with


class Grading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of what influences a task's outcomes but is not part of a rollout's key. They contain no paths."""

    source: str
    """Commit of the original source, including hidden tests."""
    passing: str
    """Digest of PASS_TO_PASS, in any order."""
    tested: str
    """Digest of how tests run, from repository.toml."""


_GRADING_PARTS = {
    "source": "source tree, hidden tests included,",
    "passing": "PASS_TO_PASS",
    "tested": "repository.toml (where source and tests are, pytest_args, requirements, python)",
}


def require_same_grading(kept: Place, prepared: PreparedRepository, tasks: Sequence[Task]) -> None:
    """Check that tasks are graded as when their earlier rollouts on this machine were made; note the grading.

    A task set that is made again from later source may have the same bug under the same id, but other files or tests:
    then outcomes are not comparable. Rollouts without a note (of earlier versions) are accepted.

    Raises:
        TaskError: names the first such task, what changed, and what to do.
    """
    place = kept.local.dir / GRADING_FILE
    noted, now = _read_gradings(place), _gradings(prepared, tasks)
    differs = [name for name, grading in now.items() if noted.get(name, grading) != grading]
    made = {name: [*kept.local.attempts(name), *kept.local.unused(name)] for name in differs}
    changed = [name for name in differs if any(a.source != "live" for a in made[name])]
    if changed:
        before, after = noted[changed[0]], now[changed[0]]
        differing = [part for part in _GRADING_PARTS if getattr(before, part) != getattr(after, part)]
        parts = " and ".join(_GRADING_PARTS[part] for part in differing)
        others = f", as for {plural(len(changed) - 1, 'other task')}" if len(changed) > 1 else ""
        raise TaskError(
            f"{changed[0]}: its {parts} changed since rollouts of it were recorded for {kept.shown}{others}; outcomes "
            f"from before and after are not comparable. Give the task set it ran on, or {kept.instead}"
        )
    if noted | now != noted:
        files.make_private_dir(kept.local.dir)
        files.write_atomic(place, canonical(noted | now))


def _gradings(prepared: PreparedRepository, tasks: Sequence[Task]) -> dict[str, Grading]:
    made = prepared.repository
    ways = [made.source_roots, made.test_roots, made.pytest_args, made.requirements, made.python]
    tested = digest([*ways, made.image_environment])[:16]
    return {
        task.instance_id: Grading(source=prepared.base, passing=digest(sorted(task.pass_to_pass))[:16], tested=tested)
        for task in tasks
    }


def _read_gradings(place: Path) -> dict[str, Grading]:
    try:
        return decode(files.read_limited(place, _MAX_BYTES, "note"), dict[str, Grading], where=str(place))
    except BankNotFoundError:
        return {}
    except RecordError as e:
        raise TaskError(f"{e}; it notes what rollouts here were graded with: restore it, or remove it") from e


def start_event(run: OpenRun, note: str, command: str) -> RunStarted:
    """Return the event with all that is known when a run starts, so that a view of it is complete from the start.

    Args:
        note: shown in the title, such as SIMULATION.
        command: what was typed; the same command resumes the run.
    """
    store, panel = run.store, run.store.panel()
    entries, stream = list(store.entries()), [task.instance_id for task in run.stream]
    measured: dict[str, Any] = {}
    if panel is not None:
        found = read_measurements(entries)
        current = store.current_outcomes()
        measured = {
            "rho": panel.rho,
            "accepts": sum(len(epoch.accepts) for epoch in found.on_panel(panel.hash)),
            "panel_passes": None if current is None else sum(o.outcome == "resolved" for o in current),
            "panel_rollouts": len(panel.tasks) * panel.rollouts,
        }
    return RunStarted(
        pid=os.getpid(),
        created=psutil.Process().create_time(),
        host=platform.node(),
        bank=str(store.dir.resolve()),
        repo=store.bank.repo,
        note=note,
        command=command,
        workers=run.settings.workers,
        limits=limits_of(run.settings)._asdict(),
        of=len(stream),
        position=stream_position(store, stream),
        mixed=len({e.proposal.task_id for e in entries if isinstance(e, Proposed) and e.attempts} & set(stream)),
        max_mixed=run.settings.max_mixed,
        version=store.bank.version,
        **measured,
    )
