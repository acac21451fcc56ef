"""The split of a task set into holdout, panel and stream: drawn once, with a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta

from valve_plugin import codec
from valve_plugin.errors import BankError, RecordError, TaskError
from valve_plugin.files import read_limited
from valve_plugin.records import SCHEMA_VERSION, Count, PanelTask, Positive, Record, Task
from valve_plugin.sandbox.git import TreeEntry, diff_trees, git, read_tree
from valve_plugin.tasks.states import changed_files, task_states
from valve_plugin.tasks.syntax import outer_statements, patch_changes
from valve_plugin.theory import estimates, gate_rule, power
from valve_plugin.words import plural

if TYPE_CHECKING:
    from valve_plugin.tasks.repository import PreparedRepository

FILE_NAME = "split.json"
_MAX_BYTES = 100_000_000
REFERENCE = 50
"""Panel tasks of the reference protocol (tab:impl-config)."""
TYPICAL = estimates.RateSpread(0.75, 0.05)
"""Assumed mean solve rate and rollout noise before any run: most tasks are solved nearly always."""
_EFFECT = 0.05


By = Literal["bug", "function", "file"]


class Groups(NamedTuple):
    """What may not be in two parts."""

    bugs: Mapping[str, str]
    """The tree that each task's patch gives, by instance id."""
    heads: Mapping[str, str]
    """The first task of each task's group, by instance id."""
    by: By


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
    """Tasks that are the same bug as another, or in the same group as a drawn one."""
    by: By = "bug"
    """What two parts have nothing of in common: a bug, a changed function, or a changed file."""


class Sizes(NamedTuple):
    """Numbers of tasks in holdout and panel; all other tasks are in the stream."""

    holdout: int
    panel: int


def draw(
    repo: str,
    tasks: Sequence[Task],
    *,
    holdout: Positive = 100,
    holdout_seed: int = 42,
    panel: Positive = 50,
    panel_seed: int = 123,
    groups: Groups | None = None,
    given: str = "--holdout {holdout} --panel {panel}",
) -> Split:
    """Draw the holdout, then the panel from the rest; the remaining tasks, in order, are the stream. Pure.

    Of tasks with the same bug the first one is used, so the parts are disjoint by id and by content. A group is in
    one part; one that is cut to reach a size is left out of the others.

    Args:
        groups: see `group_tasks`; if None, every bug is a group, and patches with the same changes are the same bug.
        given: the options that set both sizes, for the error message.

    Raises:
        TaskError: there are too few tasks, or none is left for the stream.

    Source: tab:impl-config (holdout 100 with seed 42, panel 50 with seed 123, from the remaining stream).
    """
    given_bugs, heads, by = groups or Groups({}, {}, "bug")
    bugs = first_of_each_bug(tasks, given_bugs)
    check_number(repo, len(bugs), holdout, panel, given)
    group = {task.instance_id: heads.get(task.instance_id, task.instance_id) for task in bugs}
    first, rest = _sample(bugs, group, holdout, holdout_seed)
    second, stream = _sample(rest, group, panel, panel_seed)
    if len(second) < panel or not stream:
        fit = _fitting_groups(bugs, group, (holdout_seed, panel_seed), Sizes(holdout, panel))
        smaller = f"choose smaller sizes, such as {given.format(**fit._asdict())}" if fit else "no sizes fit"
        raise TaskError(
            f"{repo}: its {len(bugs)} tasks are in {plural(len(set(group.values())), 'group')} by {by}, each for one "
            f"part: holdout {holdout} and panel {panel} leave none to learn from; {smaller}, make more tasks, or use "
            "--by bug"
        )
    return Split(
        repo=repo,
        holdout=Drawn(seed=holdout_seed, tasks=_pin(first)),
        panel=Drawn(seed=panel_seed, tasks=_pin(second)),
        stream=_pin(stream),
        left_out=len(tasks) - len(first) - len(second) - len(stream),
        by=by,
    )


def check_number(
    repo: str, tasks: int, holdout: int, panel: int, given: str = "--holdout {holdout} --panel {panel}"
) -> None:
    """Check that this many tasks with different bugs are enough; see `draw`.

    Raises:
        TaskError: there are too few; the message has sizes that fit.
    """
    if tasks < (least := holdout + panel + 1):
        raise TaskError(
            f"{repo}: {plural(tasks, 'task')}, expected at least {least} (holdout {holdout}, panel {panel}, and 1 to "
            f"learn from); {_advice(tasks, given)}make {plural(least - tasks, 'more task')}"
        )


def group_tasks(prepared: PreparedRepository, tasks: Sequence[Task], by: By) -> Groups:
    """Return the groups of tasks.

    Two tasks are in one group if their patches give the same files or change the same function or file, or if both are
    in a group with a third one.

    Raises:
        TaskError: a task's patch does not apply.
    """
    owner: dict[str, str] = {}
    heads: dict[str, str] = {}
    bugs = {task.instance_id: task_states(prepared, task).bug_tree for task in tasks}
    there = read_tree(prepared.store, prepared.base)
    for name, tree in bugs.items():
        keys = {tree} if by == "bug" else _changed_code(prepared, tree, there, by)
        joined = {owner[key] for key in keys if key in owner}
        heads[name] = next((head for head in heads if head in joined), name)
        heads |= {other: heads[name] for other, old in heads.items() if old in joined}
        owner |= {key: heads[name] for key, old in owner.items() if old in joined} | dict.fromkeys(keys, heads[name])
    return Groups(bugs, heads, by)


def _changed_code(prepared: PreparedRepository, tree: str, there: Mapping[str, TreeEntry], by: By) -> set[str]:
    """Return the files, or the functions (as file and line), that differ from the original source."""
    lines: dict[str, set[int]] = {path: set() for path in changed_files(prepared, prepared.base, tree)}
    if by == "file":
        return set(lines)
    for change in patch_changes(diff_trees(prepared.store, prepared.base, tree)):
        lines.setdefault(change.path, set()).add(change.line)
    found = set[str]()
    for path, changed in lines.items():
        source = git("cat-file", "blob", there[path][1], git_dir=prepared.store) if path in there else b""
        found |= {f"{path}:{line}" for line in outer_statements(source, changed)} or {path}
    return found


def _fitting_groups(
    tasks: Sequence[Task], group: Mapping[str, str], seeds: tuple[int, int], wanted: Sizes
) -> Sizes | None:
    """Return the largest sizes of the usual shares, at most those wanted, that leave a group to learn from."""
    for number in range(len(tasks), 3, -1):
        if (fit := fitting_sizes(number)) and fit.holdout <= wanted.holdout and fit.panel <= wanted.panel:
            rest = _sample(tasks, group, fit.holdout, seeds[0])[1]
            second, stream = _sample(rest, group, fit.panel, seeds[1])
            if len(second) == fit.panel and stream:
                return fit
    return None


def _advice(tasks: int, given: str) -> str:
    """Return the beginning of a sentence with sizes that fit this number of tasks."""
    if (fit := fitting_sizes(tasks)) is None:
        return ""
    return f"choose smaller sizes, such as {given.format(holdout=fit.holdout, panel=fit.panel)}, or "


def fitting_sizes(tasks: int) -> Sizes | None:
    """Return sizes for a small set (half of it is the panel), or None if a panel of two is not possible."""
    return Sizes(max(1, tasks // 5), tasks // 2) if tasks >= 4 else None


def describe_gate(panel: int, rollouts: int = 3, rho: str = "auto", protocol: str = "fresh") -> str:
    """Return a sentence on how often a gate of this size is right and wrong, with the figures of `valve plan`."""
    rho = gate_rule.margin(rho, panel, rollouts, protocol)
    beliefs, needed = [power.exact_population(TYPICAL)] * panel, gate_rule.needed_passes(rho, panel, rollouts)
    wrong, right = (
        power.accept_chance(beliefs, power.Gate(rollouts, needed), power.change_of(beliefs, effect))
        for effect in (0, _EFFECT)
    )
    return (
        f"a panel of {plural(panel, 'task')}, {plural(rollouts, 'rollout')} each, is small: where three quarters of "
        f"the rollouts pass, its gate accepts about {100 * wrong:.0f} of 100 proposals that change nothing, and "
        f"{100 * right:.0f} of 100 that are worth 5 points (`valve plan --panel-size {panel}` says more)"
    )


def pinned_tasks(split: Split) -> list[PanelTask]:
    """Return the tasks of all three parts. Pure."""
    return [*split.holdout.tasks, *split.panel.tasks, *split.stream]


def parts(split: Split) -> dict[str, tuple[PanelTask, ...]]:
    """Return the tasks of each part by its name. Pure."""
    return {"holdout": split.holdout.tasks, "panel": split.panel.tasks, "stream": split.stream}


def unused(split: Split | None, tasks: int) -> str:
    """Return a sentence about tasks that are in no part of the split, or an empty string if there are none. Pure."""
    outside = tasks - len(pinned_tasks(split)) - split.left_out if split else 0
    if outside <= 0:
        return ""
    they = "1 task is" if outside == 1 else f"{outside} tasks are"
    return (
        f"{they} in no part of the split and not used, because the split was drawn earlier. A new draw could move "
        "learned tasks into the panel and void certificates. Instead, make a larger set for another bank with "
        "`valve tasks generate --n N --out DIR` and `valve split DIR`"
    )


def read(path: Path) -> Split | None:
    """Return the content of a split file, or None if it does not exist.

    Raises:
        TaskError: the file is damaged, or its parts overlap.
    """
    if not path.exists():
        return None
    try:
        split = codec.decode_once(read_limited(path, _MAX_BYTES, "split"), Split, where=str(path))
    except (BankError, RecordError) as e:
        raise TaskError(f"{e}; make it again with `valve split`") from e
    pinned = pinned_tasks(split)
    for part in ("instance_id", "content_hash"):
        if len({getattr(task, part) for task in pinned}) != len(pinned):
            raise TaskError(f"{path}: two of its tasks have the same {part}; make it again with `valve split`")
    return split


def check(split: Split, repo: str, tasks: Sequence[Task], where: Path) -> None:
    """Check that a split belongs to these tasks.

    Raises:
        TaskError: it is about another repository, or one of its tasks is missing or changed.
    """
    contents = {task.instance_id: task.content_hash for task in tasks}
    pinned = pinned_tasks(split)
    if split.repo != repo:
        raise TaskError(f"{where}: a split of tasks of {split.repo}, but these tasks are about {repo}; remove it")
    if bad := [task.instance_id for task in pinned if contents.get(task.instance_id) != task.content_hash]:
        raise TaskError(
            f"{where}: {len(bad)} of its {len(pinned)} tasks are missing or changed here, the first {bad[0]}; "
            "restore the tasks it was drawn from, or remove it and run `valve split` again"
        )


def _sample(tasks: Sequence[Task], group: Mapping[str, str], size: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Return (drawn tasks, remaining tasks of groups of which none was drawn)."""
    dice = random.Random(seed)  # noqa: S311 (a sample, no secret)
    drawn = dice.sample(list(tasks), min(size, len(tasks)))
    rest = [task for task in tasks if task not in drawn]
    members: dict[str, list[Task]] = {}
    for task in [*drawn, *dice.sample(rest, len(rest))]:
        members.setdefault(group[task.instance_id], []).append(task)
    taken: list[Task] = []
    for whole in members.values():
        taken += whole if len(taken) + len(whole) <= size else []
    used = {group[task.instance_id] for task in taken}
    if len(taken) < size and (large := [name for name in members if name not in used]):
        cut = min(large, key=lambda name: len(members[name]))
        taken += members[cut][: size - len(taken)]
        used.add(cut)
    return taken, [task for task in tasks if group[task.instance_id] not in used]


def first_of_each_bug(tasks: Iterable[Task], bugs: Mapping[str, str] = MappingProxyType({})) -> list[Task]:
    """Return the tasks without those whose bug an earlier one has. Pure.

    Args:
        bugs: the tree that a task's patch gives, by instance id; of others the changes of the patches are compared.
    """
    firsts: dict[str, Task] = {}
    for task in tasks:
        bug = bugs.get(task.instance_id)
        if not bug:  # whichever tests show it, and however its patch is written
            changes = [[change.path, change.line, change.text] for change in patch_changes(task.patch)]
            bug = codec.digest([task.repo, changes or task.patch])
        firsts.setdefault(bug, task)
    return list(firsts.values())


def _pin(tasks: Sequence[Task]) -> tuple[PanelTask, ...]:
    return tuple(PanelTask(instance_id=t.instance_id, content_hash=t.content_hash) for t in tasks)
