"""Running an experiment: each run in a bank of its own, rollouts shared where they are provably the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from valve_plugin.bank.entries import Entry
from valve_plugin.codec import pretty
from valve_plugin.config import SCRIPTED_MODEL, resolve
from valve_plugin.evidence.evaluations import checkpoints
from valve_plugin.evidence.summary import proposal_results
from valve_plugin.evolve.evaluate import Evaluation, Frozen
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.open import OpenRun, require_able
from valve_plugin.evolve.steps import Steps
from valve_plugin.files import make_dir, make_private_dir, write_atomic
from valve_plugin.lab import folder
from valve_plugin.lab.folder import Experiment, ExperimentRun
from valve_plugin.lab.results import TimeRecorder
from valve_plugin.paths import local_dir
from valve_plugin.plugins import send
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.task_set import TaskSet, load

SHARED = ("journal", "attempts", "trajectories")
"""Parts of `local/` that all runs of an experiment have in common.

A rollout's key is all that determines it (task, block, ordinal, solver), so runs that ask for the same key ask for the
same rollout: step 0 is evaluated once, and conditions see the same attempts for as long as their contexts are the same
bytes. Within a run no ordinal is used twice, so a run's own rollouts stay independent; between runs they are paired.
"""
FEEDBACK_VERDICTS = 10
"""The number of verdicts that feedback holds, the newest ones."""


def require_usable(experiment: Experiment, runs: Iterable[ExperimentRun], root: Path, given: Mapping[str, Any]) -> None:
    """Refuse, before the first run starts, what a later one lacks: a model, a sandbox, a package, or enough tasks.

    Args:
        runs: those that have not ended.
        root: folder that relative task paths start from.
        given: settings that win over the file's.

    Raises:
        ConfigError: a setting or a package is missing or does not fit.
        SandboxError: there is no sandbox, and running without one was not asked for.
        TaskError: too few tasks.
    """
    tasksets: dict[str, TaskSet] = {}
    for run in runs:
        tasks = run.repository.tasks
        if tasks not in tasksets:
            tasksets[tasks] = load(folder.task_source(tasks, root))
        settings = resolve(run.settings(experiment), given)
        asked = replace(settings, model=SCRIPTED_MODEL) if experiment.simulate else settings
        require_able(tasksets[tasks], asked)
        if run.condition.require is not None:
            run.condition.require(settings, experiment.simulate)
    for taskset in tasksets.values():
        draw_split(experiment, taskset)


def complete_run(
    experiment: Experiment,
    run: ExperimentRun,
    out: Path,
    root: Path,
    given: Mapping[str, Any],
    open_run: Callable[..., AbstractContextManager[OpenRun]],
) -> Path:
    """Complete one run and return its bank: evaluate step 0, learn from the stream, then evaluate every checkpoint.

    Interrupted and called again it resumes; a finished run is only read.

    Args:
        root: folder that relative task paths start from.
        given: settings that win over the file's.
        open_run: opens a run by task set, bank, settings and options, as `cli.runs.open_run` does.

    Raises:
        ConfigError: the run was made with something else than the file says now.
    """
    bank, condition = out / run.path / "bank", run.condition
    folder.require_unchanged(experiment, [run], out, root)
    if folder.is_done(experiment, run, out):
        return bank
    folder.record_run(experiment, run, out, root)
    learns = condition.steps is not None or condition.train is not None
    with open_run(
        str(task_folder(experiment, run, out, root)),
        str(bank),
        {**run.settings(experiment), **given},
        simulate=experiment.simulate,
        gated=condition.gated,
        purpose="learn" if learns else "evaluate",
    ) as opened:
        folder.remove_ending(out / run.path)  # inside the lease: another process may just have ended the run
        folder.write_bank_settings(experiment, run, bank, opened.store.bank.repo)
        share_rollouts(bank, out / "shared")  # only now: what lies there before a bank is made is moved away
        _evaluate(opened, experiment, [0])
        recorder = TimeRecorder(out / run.path)
        opened.manager.register(recorder)
        _learn(opened, experiment, run, out)
        opened.manager.unregister(recorder)
        _evaluate(opened, experiment, [c.version for c in checkpoints(opened.store.entries(), experiment.every)])
        folder.write_ending(out / run.path, opened.store.head)
    return bank


def _learn(opened: OpenRun, experiment: Experiment, run: ExperimentRun, out: Path) -> None:
    condition, stream = run.condition, opened.stream[: experiment.limit]
    if condition.train is not None:
        condition.train(opened, stream, out / run.path)
    elif condition.steps is not None:
        steps: type[Steps] = with_feedback(condition.steps) if run.variant.feedback else condition.steps
        evolve(steps(opened.manager, opened.store, opened.settings), stream)


def _evaluate(opened: OpenRun, experiment: Experiment, versions: Iterable[int]) -> None:
    evaluation = Evaluation(opened.manager, opened.store, opened.settings, opened.taskset, experiment.eval_rollouts)
    evaluation.run([Frozen(version) for version in dict.fromkeys(versions)], partial(send, opened.manager.hook))


def task_folder(experiment: Experiment, run: ExperimentRun, out: Path, root: Path) -> Path:
    """Return the task set with this experiment's split: one holdout and one stream for every panel size.

    A panel is the beginning of the largest one, so that sizes differ by what is judged on, and by nothing else.
    """
    target = out / "tasks" / f"{run.repository.name}-panel-{run.panel}"
    if not (target / splits.FILE_NAME).exists():
        copy_tasks(folder.task_source(run.repository.tasks, root), target)
        split = draw_split(experiment, load(target))
        panel = replace(split.panel, tasks=split.panel.tasks[: run.panel])
        write_atomic(target / splits.FILE_NAME, pretty(replace(split, panel=panel)))
    return target


def draw_split(experiment: Experiment, taskset: TaskSet) -> splits.Split:
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


def copy_tasks(source: Path, target: Path) -> None:
    """Copy a task set's files; its folders, a source among them, are linked, so that it is prepared once for all."""
    make_dir(target)
    for found in source.iterdir():
        place = target / found.name
        if found.is_dir() and not place.exists():
            place.symlink_to(found.resolve(), target_is_directory=True)
        elif found.is_file() and found.name != splits.FILE_NAME:
            shutil.copy(found, place)


def share_rollouts(bank: Path, shared: Path, names: Sequence[str] = SHARED) -> None:
    """Let the bank use the rollouts of other banks; see SHARED."""
    local = local_dir(bank)
    make_private_dir(local)
    for name in names:
        make_private_dir(shared / name)
        if not (local / name).exists():
            (local / name).symlink_to((shared / name).resolve(), target_is_directory=True)


def with_feedback(steps: type[Steps]) -> type[Steps]:
    """Return the same steps, whose reflection also reads the latest verdicts."""

    class FeedbackSteps(steps):  # type: ignore[valid-type,misc]  # the base is an argument
        def feedback(self) -> str:
            """Return the verdicts on earlier proposals."""
            return latest_verdicts(self.store.entries())

    return FeedbackSteps


def latest_verdicts(entries: Iterable[Entry]) -> str:
    """Return the latest verdicts in words, one a line; empty when there is none. Pure."""
    judged = [
        row for row in proposal_results(entries) if row.verdict is not None and row.verdict.decision != "indecisive"
    ]
    lines = [
        f"- {row.outcome}: {', '.join(f'{i.kind} {i.name}' for i in row.proposal.items) or 'a removal'}"
        for row in judged[-FEEDBACK_VERDICTS:]
    ]
    return "\n".join(lines)
