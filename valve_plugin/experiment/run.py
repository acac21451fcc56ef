"""Running an experiment: each cell in a bank of its own, rollouts shared where they are provably the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pluggy
from msgspec.structs import replace

from valve_plugin.bank.evaluated import checkpoints
from valve_plugin.bank.files import make_dir, write_atomic
from valve_plugin.bank.paths import local_dir
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import pretty
from valve_plugin.config import Settings
from valve_plugin.evolve.evaluate import Evaluation, Frozen
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.steps import Steps
from valve_plugin.experiment import bound, ending
from valve_plugin.experiment.feedback import with_feedback
from valve_plugin.experiment.spec import Cell, Experiment
from valve_plugin.experiment.times import Times
from valve_plugin.records import Task
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.load import TaskSet, load

SHARED = ("journal", "attempts", "trajectories")
"""Parts of `local/` that all runs of an experiment have in common.

A rollout's key is all that determines it (task, block, ordinal, solver), so whoever asks for that key is asking for the
same rollout: step 0 is evaluated once, and conditions see the same attempts for as long as their contexts are the same
bytes. Within a run no ordinal is used twice, so a run's own rollouts stay independent; between runs they are paired.
"""


class Run(Protocol):
    """What a started run offers; see `cli.session.Run`."""

    store: BankStore
    settings: Settings
    taskset: TaskSet
    stream: list[Task]
    manager: pluggy.PluginManager


Start = Callable[..., AbstractContextManager[Any]]
"""Sets up a run: (tasks, bank, settings, simulate=, gated=, panel=) -> Run."""


def run_cell(experiment: Experiment, cell: Cell, out: Path, root: Path, start: Start, workers: int | None) -> Path:
    """Take one run to its end: step 0 is evaluated, the stream learned from, then every checkpoint evaluated.

    Interrupted and called again it goes on where it was; finished it does nothing but read.

    Args:
        experiment: the file.
        cell: which run of it.
        out: the experiment's folder.
        root: folder that relative task paths start from.
        start: see `Start`.
        workers: rollouts at the same time, where not as many as the file says.
    Returns:
        Its bank.

    Raises:
        ConfigError: the run was made with something else than the file says now.
    """
    bank = out / cell.path / "bank"
    given = cell.settings(experiment) | ({"workers": workers} if workers else {})
    learns = cell.condition.steps is not None or cell.condition.run is not None
    bound.require(experiment, [cell], out, root, tables=False)
    if ending.done(experiment, cell, out):
        return bank
    bound.bind(experiment, cell, out, root)
    tasks = task_folder(experiment, cell, out, root)
    with start(
        str(tasks), str(bank), given, simulate=experiment.simulate, gated=cell.condition.gated, panel=learns
    ) as run:
        ending.reopen(out / cell.path)  # in the lease: another process may just have ended it
        bound.tell_bank(experiment, cell, bank, run.store.bank.repo)
        share(bank, out / "shared")  # only now: what lies there before a bank is made is moved away
        evaluate = partial(_evaluate, run, experiment)
        evaluate([Frozen(0)])
        with Times(run.manager, out / cell.path):
            _learn(run, cell, run.stream[: experiment.limit], out)
        evaluate(
            [Frozen(v) for v in dict.fromkeys(c.version for c in checkpoints(run.store.entries(), experiment.every))]
        )
        ending.write(out / cell.path, run.store.head)
    return bank


def _learn(run: Run, cell: Cell, stream: list[Task], out: Path) -> None:
    condition = cell.condition
    if condition.run is not None:
        condition.run(run, stream, out / cell.path)
    elif condition.steps is not None:
        steps: type[Steps] = with_feedback(condition.steps) if cell.variant.feedback else condition.steps
        evolve(steps(run.manager, run.store, run.settings), stream)


def _evaluate(run: Run, experiment: Experiment, wanted: list[Frozen]) -> None:
    evaluation = Evaluation(run.manager, run.store, run.settings, run.taskset, experiment.eval_rollouts)
    evaluation.run(wanted, lambda name, data: run.manager.hook.valve_event(name=name, data=data))


def task_folder(experiment: Experiment, cell: Cell, out: Path, root: Path) -> Path:
    """Return the task set with this experiment's split: one holdout and one stream for every panel size.

    A panel is the beginning of the largest one, so that sizes differ by what is judged on, and by nothing else.
    """
    target = out / "tasks" / f"{cell.repository.name}-panel-{cell.panel}"
    if not (target / splits.FILE_NAME).exists():
        _place(bound.source(cell.repository.tasks, root), target)
        drawn = draw(experiment, load(target))
        fewer = replace(drawn.panel, tasks=drawn.panel.tasks[: cell.panel])
        write_atomic(target / splits.FILE_NAME, pretty(replace(drawn, panel=fewer)))
    return target


def draw(experiment: Experiment, taskset: TaskSet) -> splits.Split:
    """Return the split for the largest panel. Pure.

    Raises:
        TaskError: too few tasks.
    """
    return splits.draw(
        taskset.repository.name,
        taskset.tasks,
        holdout=experiment.holdout,
        holdout_seed=experiment.holdout_seed,
        panel=experiment.reserve,
        given="holdout = {holdout}, and no panel above {panel}, in the experiment's file",
    )


def _place(source: Path, target: Path) -> None:
    """Copy a task set's files; its folders, a source among them, are linked, so that it is prepared once for all."""
    make_dir(target)
    for found in source.iterdir():
        place = target / found.name
        if found.is_dir() and not place.exists():
            place.symlink_to(found.resolve(), target_is_directory=True)
        elif found.is_file() and found.name != splits.FILE_NAME:
            shutil.copy(found, place)


def share(bank: Path, shared: Path) -> None:
    """Let the bank's rollouts be the experiment's; see SHARED."""
    local = local_dir(bank)
    make_dir(local, mode=0o700)
    for name in SHARED:
        make_dir(shared / name)
        if not (local / name).exists():
            (local / name).symlink_to((shared / name).resolve(), target_is_directory=True)
