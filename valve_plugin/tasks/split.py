"""Holdout, panel and stream: drawn once, by seed, over the prepared order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from valve_plugin import codec
from valve_plugin.bank.files import read_limited
from valve_plugin.errors import BankError, RecordError, TaskError
from valve_plugin.records import SCHEMA_VERSION, Count, PanelTask, Positive, Record, Task
from valve_plugin.tasks import sizes

FILE_NAME = "split.json"
_MAX_BYTES = 100_000_000


class Drawn(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks sampled without replacement, in sampled order."""

    seed: int
    tasks: Annotated[tuple[PanelTask, ...], Meta(min_length=1)]


class Split(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """split.json: which task is for what. Evaluation tasks are never learned from, nor judged on."""

    schema_version: Literal[1] = SCHEMA_VERSION
    repo: str
    holdout: Drawn
    panel: Drawn
    stream: Annotated[tuple[PanelTask, ...], Meta(min_length=1)]
    """In prepared order."""
    left_out: Count = 0
    """Tasks that are the same bug as one drawn before them, under another id."""


def draw(
    repo: str,
    tasks: Sequence[Task],
    *,
    holdout: Positive = 100,
    holdout_seed: int = 42,
    panel: Positive = 50,
    panel_seed: int = 123,
    given: str = "--holdout {holdout} --panel {panel}",
) -> Split:
    """Return the split: first the holdout, then the panel out of what is left, then the rest in order. Pure.

    What is drawn takes every other task with the same bug out of what is left, so that the three are disjoint by
    id and by content.

    Args:
        repo: the tasks' repository.
        tasks: in prepared order.
        holdout: tasks kept for evaluation.
        holdout_seed: of their draw.
        panel: tasks to judge by.
        panel_seed: of their draw.
        given: how a person gives both sizes, for the advice.

    Raises:
        TaskError: too few tasks, or no task would be left for the stream.

    Source: tab:impl-config (holdout 100 with seed 42, panel 50 with seed 123, from the remaining stream).
    """
    if len(tasks) < holdout + panel + 1:
        raise TaskError(
            f"{repo}: {len(tasks)} tasks, expected at least {holdout + panel + 1} (holdout {holdout}, panel {panel}, "
            f"and 1 to learn from); make {holdout + panel + 1 - len(tasks)} more tasks{_fitting(len(tasks), given)}"
        )
    first, rest = _sample(tasks, holdout, holdout_seed, "holdout")
    second, stream = _sample(rest, panel, panel_seed, "panel")
    if not stream:
        raise TaskError(f"{repo}: no task is left to learn from: the others are the same bugs as drawn ones")
    return Split(
        repo=repo,
        holdout=Drawn(seed=holdout_seed, tasks=_pin(first)),
        panel=Drawn(seed=panel_seed, tasks=_pin(second)),
        stream=_pin(stream),
        left_out=len(tasks) - len(first) - len(second) - len(stream),
    )


def _fitting(tasks: int, given: str) -> str:
    """Sizes that fit so many tasks, and what a gate of that size is worth, as words to go on with."""
    if (fit := sizes.fitting(tasks)) is None:
        return ""
    said = given.format(holdout=fit.holdout, panel=fit.panel)
    worth = f": {sizes.worth(fit.panel)}" if "--" in given else ""  # an experiment's file has rollouts of its own
    return f", or give sizes that fit, such as {said}{worth}"


def parts(split: Split) -> dict[str, tuple[PanelTask, ...]]:
    """Return the tasks of each part by its name. Pure."""
    return {"holdout": split.holdout.tasks, "panel": split.panel.tasks, "stream": split.stream}


def unused(split: Split | None, tasks: int) -> str:
    """Return in words how many tasks of a set are in no part of its split; empty where none is. Pure."""
    outside = tasks - sum(map(len, parts(split).values())) - split.left_out if split else 0
    if outside <= 0:
        return ""
    they = "1 task is" if outside == 1 else f"{outside} tasks are"
    return (
        f"{they} in no part of the split, which was drawn before: nothing uses what is in none. Drawn again, it could "
        "judge by what was learned from and void certificates; `valve tasks generate --n N --out DIR` and "
        "`valve split DIR` make a larger set with a split of its own, for a bank of its own"
    )


def read(path: Path) -> Split | None:
    """Return a split file's content; None where there is none.

    Raises:
        TaskError: it is damaged, or its parts overlap.
    """
    if not path.exists():
        return None
    try:
        split = codec.decode_once(read_limited(path, _MAX_BYTES, "split"), Split, where=str(path))
    except (BankError, RecordError) as e:
        raise TaskError(f"{e}; make it again with `valve split`") from e
    pinned = [*split.holdout.tasks, *split.panel.tasks, *split.stream]
    for part in ("instance_id", "content_hash"):
        if len({getattr(task, part) for task in pinned}) != len(pinned):
            raise TaskError(f"{path}: two of its tasks have the same {part}; make it again with `valve split`")
    return split


def check(split: Split, repo: str, tasks: Sequence[Task], where: Path) -> None:
    """Refuse a split that is not about these tasks.

    Raises:
        TaskError: another repository, or a task that is missing or changed.
    """
    contents = {task.instance_id: task.content_hash for task in tasks}
    pinned = [*split.holdout.tasks, *split.panel.tasks, *split.stream]
    if split.repo != repo:
        raise TaskError(f"{where}: splits the tasks of {split.repo}, these are about {repo}; remove it")
    if bad := [task.instance_id for task in pinned if contents.get(task.instance_id) != task.content_hash]:
        raise TaskError(
            f"{where}: {len(bad)} of its {len(pinned)} tasks are missing or changed here, the first {bad[0]}; "
            "restore the tasks it was drawn from, or remove it and run `valve split` again"
        )


def _sample(tasks: Sequence[Task], size: int, seed: int, what: str) -> tuple[list[Task], list[Task]]:
    """Return (drawn, what is left without the same bugs)."""
    if size > len(tasks):
        raise TaskError(f"{what}: {size} tasks wanted, {len(tasks)} are left; give a smaller {what}")
    drawn = random.Random(seed).sample(list(tasks), size)  # noqa: S311 (a sample, no secret)
    ids = {task.instance_id for task in drawn}
    bugs = {_bug(task) for task in drawn}
    return drawn, [task for task in tasks if task.instance_id not in ids and _bug(task) not in bugs]


def _bug(task: Task) -> str:
    """What makes two tasks the same bug, whichever tests they name."""
    lines = (line for line in task.patch.splitlines() if not line.startswith(("diff ", "index ")))
    return codec.digest([task.repo, *lines])


def _pin(tasks: Sequence[Task]) -> tuple[PanelTask, ...]:
    return tuple(PanelTask(instance_id=t.instance_id, content_hash=t.content_hash) for t in tasks)
