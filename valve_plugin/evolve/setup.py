"""Before the first task: the panel is fixed, the horizon declared, and what remains is the stream."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.bank import embedding
from valve_plugin.bank.belonging import differs
from valve_plugin.bank.entries import EpochOpened, PanelFixed, Taken
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.gate.plan import panel_tasks
from valve_plugin.gate.solver import require_solver
from valve_plugin.records import Conditions, Panel, PanelTask, Task
from valve_plugin.tasks import sizes
from valve_plugin.tasks.load import TaskSet
from valve_plugin.words import plural


def prepare(
    store: BankStore, settings: Settings, taskset: TaskSet, *, new_epoch: bool = False, gated: bool = True
) -> list[Task]:
    """Fix the panel and open an epoch where that has not been done; return the stream, in prepared order.

    Args:
        store: the bank.
        settings: panel and horizon, where they are not fixed yet.
        taskset: panel and stream.
        new_epoch: open another epoch, unless the open one was never asked.
        gated: False: no gate will be asked, so no epoch is opened. The panel is set aside all the same, so that gated
            and ungated runs see one stream.

    Raises:
        ConfigError: the bank is about another repository, or would change between gated and ungated unasked.
        TaskError: too few tasks for the panel, or the fixed panel is not in this task set.
    """
    panel = can_prepare(store, settings, taskset)
    if store.panel() is None:
        store.append(PanelFixed(panel=panel))
    if gated:
        _declare(store, settings, panel, new_epoch)
    else:
        _require_never_gated(store)
    if taskset.split is None:
        return _unread(store, stream_of(panel, taskset.tasks))
    return stream_of(panel, [taskset.by_id[t.instance_id] for t in taskset.split.stream])  # never a holdout task


def can_prepare(store: BankStore | None, settings: Settings, taskset: TaskSet) -> Panel:
    """Return the panel that is fixed, or would be; nothing is written.

    Args:
        store: None where there is no bank yet.

    Raises:
        ConfigError: the bank is about another repository.
        TaskError: too few tasks for the panel, or the fixed panel is not in this task set.
    """
    if store and store.bank.repo != taskset.repository.name:
        raise ConfigError(
            f"{differs(store.bank.repo, store.dir, taskset.repository.name, 'the tasks are about')}; "
            "name another bank with --bank DIR"
        )
    unread = _unread(store, taskset.tasks) if store else taskset.tasks
    panel = (store and store.panel()) or choose_panel(settings, replace(taskset, tasks=tuple(unread)))
    panel_tasks(panel, taskset.tasks)  # all there, and what they were
    return panel


def opens(store: BankStore, *, new_epoch: bool, gated: bool) -> bool:
    """Whether `prepare` would open an epoch, or fix a panel."""
    fresh = store.epoch() is None or (new_epoch and store.queries_used() > 0)
    return store.panel() is None or (gated and fresh)


def _declare(store: BankStore, settings: Settings, panel: Panel, new_epoch: bool) -> None:
    """Open an epoch where none is open, or another one was asked for."""
    taken = sum(isinstance(entry, Taken) for entry in store.entries())
    if store.epoch() is not None:
        if new_epoch and store.queries_used():
            _open_epoch(store, settings, panel, "a new one was asked for")
        require_solver(store, settings)
        return
    if taken and not new_epoch:
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


def _unread(store: BankStore, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that no evaluation of this bank read, by id and by content."""
    sealed = store.sealed()
    return [t for t in tasks if t.instance_id not in sealed and t.content_hash not in sealed.values()]


def _open_epoch(store: BankStore, settings: Settings, panel: Panel, reason: str) -> None:
    number = 1 + sum(isinstance(entry, EpochOpened) for entry in store.entries())
    if settings.guard > panel.rollouts:
        raise ConfigError(
            f"guard is {settings.guard}, expected at most the {plural(panel.rollouts, 'rollout')} a panel task has "
            "(0: no guard)"
        )
    beyond = Conditions(confirm=settings.confirm, guard=settings.guard)
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
        chosen, seed = sample_panel(settings, taskset.tasks), settings.panel_seed
    return Panel(
        tasks=chosen,
        rollouts=settings.rollouts,
        rho=settings.rho,
        pairing=settings.pairing,
        embedding=embedding.choose(settings.embedding).name,
        seed=seed,
    )


def sample_panel(settings: Settings, tasks: Sequence[Task]) -> tuple[PanelTask, ...]:
    """Return `panel_size` tasks, pinned by id and content."""
    if settings.panel_size >= len(tasks):
        fit = sizes.fitting(len(tasks))
        size = fit and f", such as --panel-size {fit.panel}: {sizes.worth(fit.panel, settings.rollouts, settings.rho)}"
        raise TaskError(
            f"{plural(len(tasks), 'task')}, and the panel takes {settings.panel_size}: nothing would be left to learn "
            f"from; give more tasks or a smaller --panel-size{size or ''}"
        )
    chosen = random.Random(settings.panel_seed).sample(list(tasks), settings.panel_size)  # noqa: S311 (a sample, no secret)
    return tuple(PanelTask(instance_id=t.instance_id, content_hash=t.content_hash) for t in chosen)


def stream_of(panel: Panel, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that are no panel task, neither by id nor by content, in prepared order."""
    ids = {t.instance_id for t in panel.tasks}
    contents = {t.content_hash for t in panel.tasks}
    return [t for t in tasks if t.instance_id not in ids and t.content_hash not in contents]
