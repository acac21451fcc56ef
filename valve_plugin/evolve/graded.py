"""What a bank's rollouts were graded with, as far as the key of a rollout does not say.

A rollout is found again by task, bug, issue, context and solver. A task set that is made again from later source may
have the same bug under the same id, and other files or tests around it: outcomes of the two are no pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from valve_plugin.bank import files
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, decode, digest
from valve_plugin.errors import BankNotFoundError, RecordError, TaskError
from valve_plugin.records import Task
from valve_plugin.tasks.repository import Prepared
from valve_plugin.words import plural

FILE_NAME = "graded.json"
_MAX_BYTES = 100_000_000


class Graded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of what decides one task's outcomes besides its bug. No paths: a folder may move."""

    source: str
    """Commit of the untouched files, hidden tests among them."""
    passing: str
    """PASS_TO_PASS, in any order."""
    tested: str
    """How the tests are run, as repository.toml says."""


_CALLED = {
    "source": "source tree, hidden tests included,",
    "passing": "PASS_TO_PASS",
    "tested": "repository.toml (where source and tests are, pytest_args, requirements, python)",
}


def require_same(store: BankStore, prepared: Prepared, tasks: Sequence[Task]) -> None:
    """Refuse tasks that are graded otherwise than when their rollouts on this machine were; else note what they are.

    Rollouts of an older version, which noted nothing, are taken for rollouts of these tasks.

    Args:
        store: the bank, with its lease held.
        prepared: where the tasks' repository is.
        tasks: all of the set.

    Raises:
        TaskError: names the first such task, what changed, and the ways on.
    """
    place = store.local.dir / FILE_NAME
    noted, now = _read(place), _graded(prepared, tasks)
    ran = {record.get("task_id") for record in store.local.told("rollouts")} if noted else set()
    changed = [name for name, graded in now.items() if name in ran and noted.get(name, graded) != graded]
    if changed:
        before, after = noted[changed[0]], now[changed[0]]
        parts = " and ".join(said for part, said in _CALLED.items() if getattr(before, part) != getattr(after, part))
        others = f", as for {plural(len(changed) - 1, 'other task')}" if len(changed) > 1 else ""
        raise TaskError(
            f"{changed[0]}: its {parts} changed since rollouts of it were recorded for {store.dir}{others}; outcomes "
            "from before and after are not comparable. Give the task set it ran on, or another bank with --bank DIR; "
            "in this one, tasks made anew need ids of their own"
        )
    if noted | now != noted:
        files.make_dir(store.local.dir, mode=0o700)
        files.write_atomic(place, canonical(noted | now))


def _graded(prepared: Prepared, tasks: Sequence[Task]) -> dict[str, Graded]:
    made = prepared.repository
    ways = [made.source_roots, made.test_roots, made.pytest_args, made.requirements, made.python]
    tested = digest([*ways, made.image_environment])[:16]
    return {
        task.instance_id: Graded(source=prepared.base, passing=digest(sorted(task.pass_to_pass))[:16], tested=tested)
        for task in tasks
    }


def _read(place: Path) -> dict[str, Graded]:
    try:
        return decode(files.read_limited(place, _MAX_BYTES, "note"), dict[str, Graded], where=str(place))
    except BankNotFoundError:
        return {}
    except RecordError as e:
        raise TaskError(f"{e}; it notes what rollouts here were graded with: restore it, or remove it") from e
