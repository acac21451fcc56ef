"""Task directories: where they are by default, how they are found by name, and writing one whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from valve_plugin import codec
from valve_plugin.bank.files import read_limited, write_atomic
from valve_plugin.bank.paths import data_dir
from valve_plugin.errors import BankNotFoundError, TaskError
from valve_plugin.reading import regular
from valve_plugin.tasks import keeping
from valve_plugin.tasks.load import ROWS_NAME, Row
from valve_plugin.tasks.repository import FILE_NAME, Repository

SUITE_NAME = "suite.txt"
_MADE_BY = "# Made by: "
_FIRST_LINE = 10_000
"""Bytes read to find it."""
_MAX_JOURNAL = 1 << 30


def default(name: str) -> Path:
    """Return where the tasks of a repository go unless told otherwise: user data, never the repository itself."""
    return data_dir() / "tasks" / name.replace("/", "__")


def known() -> list[Path]:
    """Return the task directories in user data, sorted by name."""
    return sorted(path.parent for path in (data_dir() / "tasks").glob(f"*/{ROWS_NAME}"))


def names() -> list[str]:
    """Return what the task directories in user data are called, as `find` takes it."""
    return [path.name.replace("__", "/") for path in known()]


def is_one(path: Path) -> bool:
    """Whether a path is to be read as a task set: a folder with a definition, or a file, which may be one of rows."""
    return path.is_file() or (path / FILE_NAME).exists()


def find(given: str) -> Path:
    """Return the task set somebody means: a path, or the name of one in user data.

    A folder that holds no definition hides no set of its name: a repository's package is often called as it is.

    Raises:
        TaskError: neither; names what there is.
    """
    path, named = Path(given), default(given)
    if found := next(filter(is_one, (path, named)), None):
        return found
    raise TaskError(
        f"{given}: {_why_not(path)}, and no task set of that name in user data; {_instead(given)}"
        "`valve tasks generate`, `valve tasks import` and `valve tasks mine` make one"
    )


def _why_not(path: Path) -> str:
    if not path.exists():
        return "no such task directory"
    holds = f"a task directory holds {FILE_NAME} and {ROWS_NAME}"
    return f"the {'folder' if path.is_dir() else 'file'} of that name is no task directory ({holds})"


def _instead(given: str) -> str:
    """Return the nearest names there are, else all, as a part of a sentence."""
    from difflib import get_close_matches

    there = names()
    begun = [name for name in there if given and name.lower().startswith(given.lower())]
    if near := begun or get_close_matches(given, there, n=3, cutoff=0.5):
        return f"did you mean {' or '.join(near[:3])}? (there: {', '.join(there)}); "
    return f"there: {', '.join(there) or 'none yet'}; "


def write(
    folder: Path, repository: Repository, rows: Iterable[Row], *, made_by: str, suite: Sequence[str] = ()
) -> None:
    """Write suite, definition and rows, the rows last: a directory that has them is whole.

    Args:
        made_by: the command, kept in repository.toml so that another one does not replace its tasks.
        suite: tests every row without PASS_TO_PASS must keep passing.

    Raises:
        TaskError: tasks would go that a split names, or more than come; nothing was written.
    """
    rows = list(rows)
    keeping.require_kept(folder, keeping.content(rows), len(rows))
    folder.mkdir(parents=True, exist_ok=True)
    if suite:
        write_atomic(folder / SUITE_NAME, "".join(f"{test}\n" for test in suite).encode())
        repository = msgspec.structs.replace(repository, suite=SUITE_NAME)
    write_definition(folder, repository, made_by)
    write_atomic(folder / ROWS_NAME, b"".join(codec.canonical(row) + b"\n" for row in rows))


def write_definition(folder: Path, repository: Repository, made_by: str) -> None:
    """Write repository.toml; what lies in the directory is named relative to it."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, _, where = repository.source.partition(":")
    if kind == "path" and Path(where).is_relative_to(folder.resolve()):
        repository = msgspec.structs.replace(repository, source=f"path:{os.path.relpath(where, folder.resolve())}")
    write_atomic(folder / FILE_NAME, f"{_MADE_BY}{made_by}\n{to_toml(repository)}".encode())


def journal(path: Path) -> list[bytes]:
    """Return the lines of what an earlier run noted; none where there was none.

    Raises:
        BankError: it cannot be read, or is no regular file of a journal's size.
    """
    try:
        return read_limited(path, _MAX_JOURNAL, "journal").split(b"\n")
    except BankNotFoundError:
        return []


def made_by(folder: Path) -> str:
    """Return the command that made a task directory; empty: none of ours, or there is no directory."""
    try:
        first = regular(folder / FILE_NAME, _FIRST_LINE, start_only=True).decode("utf-8", "replace").partition("\n")[0]
    except OSError:
        return ""
    return first.removeprefix(_MADE_BY) if first.startswith(_MADE_BY) else ""


def check_free(folder: Path, command: str) -> None:
    """Refuse to replace tasks that another command, or a person, put there.

    Raises:
        TaskError: the directory holds such tasks.
    """
    if (folder / ROWS_NAME).exists() and made_by(folder).partition(" --")[0] != command:
        raise TaskError(
            f"{folder} holds tasks that {made_by(folder) or 'somebody'} put there; {command} does not replace them: "
            "give another directory with --out, or move that one away"
        )


def to_toml(repository: Repository) -> str:
    """Return a definition as TOML, without what is left at its default. Pure; `read` gives it back."""
    lines = []
    for field in msgspec.structs.fields(repository):
        value = getattr(repository, field.name)
        if value == field.default:
            continue
        if isinstance(value, tuple) and len(value) > 1:
            lines.append(f"{field.name} = [\n" + "".join(f"  {_toml(word)},\n" for word in value) + "]")
        else:
            lines.append(f"{field.name} = {_toml(list(value) if isinstance(value, tuple) else value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # JSON's strings, integers and lists of strings are TOML's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
