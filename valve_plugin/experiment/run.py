"""Running an experiment: each cell in a bank of its own, rollouts shared where they are provably the same."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pluggy
from msgspec.structs import replace

from valve_plugin.bank.evaluated import checkpoints, path
from valve_plugin.bank.files import make_dir, read_limited, write_atomic
from valve_plugin.bank.paths import local_dir
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import decode, pretty
from valve_plugin.config import Settings
from valve_plugin.errors import BankNotFoundError
from valve_plugin.evolve.evaluate import Evaluation, Frozen
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.steps import Steps
from valve_plugin.experiment.feedback import with_feedback
from valve_plugin.experiment.spec import Cell, Experiment
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Task
from valve_plugin.tasks import folder
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.load import TaskSet, load

SHARED = ("journal", "attempts", "trajectories")
"""Parts of `local/` that all runs of an experiment have in common.

A rollout's key is all that determines it (task, block, ordinal, solver), so whoever asks for that key is asking for the
same rollout: step 0 is evaluated once, and conditions see the same attempts for as long as their contexts are the same
bytes. Within a run no ordinal is used twice, so a run's own rollouts stay independent; between runs they are paired.
"""
TIMES = "times.json"
ENDED = "ended.json"
"""Which ledger line a run ended with: one that is under way has evaluations too, and is in no table."""


class Run(Protocol):
    """What a started run offers; see `cli.session.Run`."""

    store: BankStore
    settings: Settings
    taskset: TaskSet
    stream: list[Task]
    manager: pluggy.PluginManager


Start = Callable[..., AbstractContextManager[Any]]
"""Sets up a run: (tasks, bank, settings, simulate=, gated=, panel=) -> Run."""


def run_cell(experiment: Experiment, cell: Cell, out: Path, root: Path, start: Start, workers: int) -> Path:
    """Take one run to its end: step 0 is evaluated, the stream learned from, then every checkpoint evaluated.

    Interrupted and called again it goes on where it was; finished it does nothing but read.

    Args:
        experiment: the file.
        cell: which run of it.
        out: the experiment's folder.
        root: folder that relative task paths start from.
        start: see `Start`.
        workers: rollouts at the same time.
    Returns:
        Its bank.
    """
    tasks = task_folder(experiment, cell, out, root)
    bank = out / cell.path / "bank"
    given = {**cell.settings(experiment), "workers": workers}
    learns = cell.condition.steps is not None or cell.condition.run is not None
    with start(
        str(tasks), str(bank), given, simulate=experiment.simulate, gated=cell.condition.gated, panel=learns
    ) as run:
        share(bank, out / "shared")  # only now: what lies there before a bank is made is moved away
        evaluate = partial(_evaluate, run, experiment)
        evaluate([Frozen(0)])
        with _timed(run.manager, out / cell.path / TIMES, run.store):
            _learn(run, cell, run.stream[: experiment.limit], out)
        evaluate(
            [Frozen(v) for v in dict.fromkeys(c.version for c in checkpoints(run.store.entries(), experiment.every))]
        )
        write_atomic(out / cell.path / ENDED, pretty({"head": run.store.head}))
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
        given = root / cell.repository.tasks
        source = given if given.is_dir() else folder.find(cell.repository.tasks)
        _place(source, target)
        found = load(target)
        drawn = splits.draw(
            found.repository.name,
            found.tasks,
            holdout=experiment.holdout,
            holdout_seed=experiment.holdout_seed,
            panel=experiment.reserve,
        )
        fewer = replace(drawn.panel, tasks=drawn.panel.tasks[: cell.panel])
        write_atomic(target / splits.FILE_NAME, pretty(replace(drawn, panel=fewer)))
    return target


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


class Times(AbstractContextManager["Times"]):
    """Adds up what learning takes, evaluation excluded: seconds of every rollout seen, those shared included."""

    def __init__(self, manager: pluggy.PluginManager, file: Path, store: BankStore) -> None:
        self._manager, self._file, self._store = manager, file, store
        self.seen: dict[str, float] = read_times(file).get("rollouts", {})
        self.wall = read_times(file).get("wall_seconds", 0.0)

    def __enter__(self) -> Times:
        self._started = time.monotonic()
        self._watcher = _Watcher(self.seen)
        self._manager.register(self._watcher)
        return self

    def __exit__(self, *about: object) -> None:
        self._manager.unregister(self._watcher)
        wall = self.wall + time.monotonic() - self._started
        steps = path(self._store.entries())[-1].step
        make_dir(self._file.parent)
        write_atomic(self._file, pretty({"wall_seconds": wall, "steps": steps, "rollouts": self.seen}))


_timed = Times


class _Watcher:
    """Sees every rollout of evolution and gate; one that was seen before counts once."""

    def __init__(self, seen: dict[str, float]) -> None:
        self._seen = seen

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Note one rollout."""
        if name in ("attempt_finished", "rollout_finished") and data["source"] != "eval":
            self._seen[f"{data['source']} {data['task_id']} {data['ordinal']} {data['seconds']}"] = data["seconds"]


def ended(cell: Path, store: BankStore) -> bool:
    """Whether the run in this folder came to the end that its ledger is at."""
    return _noted(cell / ENDED).get("head") == store.head


def read_times(file: Path) -> dict[str, Any]:
    """Return what a run's learning took so far; empty before it was noted."""
    return _noted(file)


def _noted(file: Path) -> dict[str, Any]:
    try:
        return decode(read_limited(file, 100_000_000, file.stem), dict[str, Any], where=str(file))
    except BankNotFoundError:
        return {}
