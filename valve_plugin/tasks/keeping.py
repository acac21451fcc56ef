"""A task set that exists loses no task: splits, panels and ledgers rest on what it held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from valve_plugin import codec
from valve_plugin.bank.files import read_limited
from valve_plugin.errors import BankError, RecordError, TaskError
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.load import MAX_BYTES, ROWS_NAME, Row
from valve_plugin.words import plural


def held(folder: Path) -> dict[str, str]:
    """Return content hash by id of what a set holds, and of what its split names even where that is missing.

    Rows that cannot be read are nobody's: they are made again.
    """
    return content(_rows(folder)) | _pinned(folder)


def content(rows: Iterable[Row]) -> dict[str, str]:
    """Return the content hash (`Task.content_hash`) of rows by id. Pure."""
    return {row.instance_id: codec.digest([row.repo, row.patch, sorted(row.fail_to_pass)]) for row in rows}


def require_kept(folder: Path, made: Mapping[str, str], most: int) -> None:
    """Refuse what would take tasks from a set that is split, or holds more than the new one; nothing is changed.

    Args:
        made: content hashes by id of the new set; empty: another one, none of whose tasks is known yet.
        most: how many tasks it will have at most.

    Raises:
        TaskError: says how many would go, and what to do.
    """
    there, pinned = held(folder), _pinned(folder)
    lost = [name for name, hashed in there.items() if made.get(name) != hashed]
    if not lost or not (pinned or len(there) > most):
        return
    split = f" ({len(pinned)} of them in its split)" if pinned else ""
    raise TaskError(
        f"{folder} holds {plural(len(there), 'task')}{split}, and this makes another set, without {len(lost)} of them: "
        "the source, the tests, the seed or another option changed since. Nothing was written; --out DIR makes the new "
        f"set beside it, or remove {folder} if nothing rests on it"
    )


def _rows(folder: Path) -> list[Row]:
    found = list[Row]()
    with suppress(BankError):  # there is none
        for line in read_limited(folder / ROWS_NAME, MAX_BYTES, "task file").split(b"\n"):
            with suppress(RecordError):
                found += [codec.decode_once(line, Row, where="row")] if line.strip() else []
    return found


def _pinned(folder: Path) -> dict[str, str]:
    split = splits.read(folder / splits.FILE_NAME)
    drawn = splits.parts(split).values() if split else []
    return {task.instance_id: task.content_hash for part in drawn for task in part}
