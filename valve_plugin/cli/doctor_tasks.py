"""The row of `valve doctor` about the task set, and the command that makes one here."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.cli.doctor_rows import Found, Place
from valve_plugin.cli.installs import aside, ours
from valve_plugin.cli.output import plural
from valve_plugin.cli.requirements import lacking
from valve_plugin.errors import BankError, ConfigError, TaskError
from valve_plugin.extras import install

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore


def look_at_tasks(place: Place) -> Found:
    """Find the task set a run here would use: the last used one, or this repository's own in user data."""
    from valve_plugin.tasks import folder
    from valve_plugin.tasks.load import ROWS_NAME, load

    store = None
    with suppress(BankError):  # another row says so
        store = _open(place)
    used = store.local.recall("tasks") if store else ""
    name = _name(place, store)
    made, mined = folder.default(name), folder.default(f"{name}__mined")
    own = next((str(path) for path in (made, mined) if (path / ROWS_NAME).exists()), "")
    given = next((path for path in (used, own) if path and Path(path).exists()), "")
    gone = f"{used}, which this bank used last, is gone" if used not in ("", given) else ""
    make = _making(place, name, in_vain=mined.exists() and str(mined) != given)
    if not given:
        text = gone or "none for this repository; `valve evolve` needs one"
        return Found("missing", text if make else f"{text}. Making one takes git, see there", make)
    try:
        found = load(folder.find(given))
    except TaskError as e:
        return Found("failed", str(e), " && ".join(filter(None, [aside(os.path.abspath(given)), make])))
    return Found("ok", "; ".join(filter(None, [f"{plural(len(found.tasks), 'task')} in {given}", gone])))


def _making(place: Place, name: str, *, in_vain: bool) -> str:
    """Return the command that makes tasks here: of the history where there is one, else of bugs put in.

    Empty without git, which either takes.

    Args:
        in_vain: the history was looked at before, and nothing in it became a task.
    """
    from valve_plugin.cli.tasks_generate import repository_name
    from valve_plugin.tasks import history

    called: list[str] = ["--repo", name]
    with suppress(TaskError, ConfigError):  # a folder's name that is none for a repository
        called = [] if repository_name(".", "") == name else called
    if shutil.which("git") is None:
        return ""
    if place.here.git and not in_vain and history.goes_back(Path.cwd()):
        return ours("valve", "tasks", "mine", *called)
    first = f"{install('smith')} && " if lacking("smith") else ""
    return first + ours("valve", "tasks", "generate", *called)


def _name(place: Place, store: BankStore | None) -> str:
    """Return what the tasks' repository is called: owner/name, or a name, of letters that either may have."""
    name = store.bank.repo if store else place.here.name
    parts = [re.sub(r"[^A-Za-z0-9_.-]+", "-", part).lstrip("-._") for part in name.split("/")]
    return "/".join([part for part in parts if part][-2:]) or "repository"


def _open(place: Place) -> BankStore | None:
    from valve_plugin.bank.store import BankStore

    return BankStore.open(place.bank) if Path(place.bank / "ledger.jsonl").exists() else None
