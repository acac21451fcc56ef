"""Names of tasks for people: the function and the file of the bug."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from valve_plugin.errors import ValveError
from valve_plugin.records import Attempt, is_live, short_task_id
from valve_plugin.tasks import task_set

_FUNCTION = re.compile(r"^(?:@@ .*@@|[ +-]) *(?:async )?(?:def|class|function|func|fn) (\w+)")


def task_names(tasks: str, attempts: Iterable[Attempt], *, ids: bool = False) -> dict[str, str]:
    """Return the name of each task whose bug is known: from its task set, else from a patch that resolved it.

    Args:
        tasks: the task set, which may be gone; empty: none.
        attempts: those on this machine.
        ids: see `name_patches`.
    """
    patches = {a.task_id: a.patch for a in attempts if a.outcome == "resolved" and not is_live(a.task_id)}
    with suppress(ValveError, OSError):
        patches |= {t.instance_id: t.patch for t in task_set.load(task_set.find(tasks)).tasks if tasks}
    return name_patches(patches, ids=ids)


def name_patches(patches: Mapping[str, str], *, ids: bool = False) -> dict[str, str]:
    """Return `function in file` of each task id's patch, where that is known. Pure.

    With `ids` the end of the id, by which commands find the task, stands behind every name; else behind equal ones.
    """
    places = {task: place for task, patch in patches.items() if (place := changed_place(patch))}
    count = Counter(places.values())
    return {task: f"{place} ({_end(task)})" if ids or count[place] > 1 else place for task, place in places.items()}


def _end(task_id: str) -> str:
    """Return what tells a task's id from others of its place: of an id of SWE-smith's, its hash."""
    return short_task_id(task_id).rpartition("__")[2]


def put_names(text: str, names: Mapping[str, str]) -> str:
    """Return a sentence with a task's name in the place of each id that has one. Pure."""
    return re.sub(r"[\w.-]+", lambda word: names.get(word[0], word[0]), text)


def changed_place(patch: str) -> str:
    """Return `function in file` of the first change of a patch; of a change outside of functions, the file."""
    file, function = "", ""
    for line in patch.splitlines():
        if line.startswith(("--- ", "+++ ")):
            file = name.removeprefix("b/") if (name := line[4:].split("\t")[0]) != "/dev/null" else file
            continue
        if line.startswith("@@"):
            function = ""
        if found := _FUNCTION.search(line):
            function = found[1]
        if file and line[:1] in ("+", "-"):
            break
    file = file.removeprefix("a/")
    return f"{function} in {file}" if function and file else file
