"""Task sets on disk: a repository.toml with a file of SWE-smith rows beside it. Finding, checking and writing them.

Writing never removes tasks that are in use: splits, panels and ledgers refer to them.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec import field

from valve_plugin import codec
from valve_plugin.config import toml_value
from valve_plugin.errors import BankError, RecordError, TaskError
from valve_plugin.files import (
    bank_errors,
    make_private_dir,
    read_limited,
    read_regular,
    read_text,
    sync_dir,
    write_atomic,
)
from valve_plugin.paths import data_dir
from valve_plugin.records import Record, Task
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.repository import FILE_NAME, Repository, read_definition
from valve_plugin.words import meant, plural, quote

ROWS_NAME = "tasks.jsonl"
SUITE_NAME = "suite.txt"
_MADE_BY = "# Made by: "
_FIRST_LINE = 10_000  # bytes that are read to find it
_MAX_BYTES = 1_000_000_000
_MAX_LINE = 16_000_000
_MAX_SHOWN = 10
_SMITH_NAME = re.compile(r"(?:[\w.-]+/)?([A-Za-z0-9][\w.-]*?)__([\w.-]+?)\.[0-9a-f]{8,40}")
_MAX_ID = 300  # characters
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*")
_DIFF_PATH = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)", re.MULTILINE)


class SmithRow(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of tasks.jsonl: a row of SWE-smith, with a short form for rows that share a suite file."""

    instance_id: str
    repo: str
    patch: str
    fail_to_pass: tuple[str, ...] = field(name="FAIL_TO_PASS")
    pass_to_pass: tuple[str, ...] | None = field(name="PASS_TO_PASS", default=None)
    """If left out, all tests of the repository's suite file except FAIL_TO_PASS."""
    problem_statement: str
    image_name: str = ""
    base_commit: str = ""
    created_at: str = ""


class TaskSet(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A repository and its tasks, in file order."""

    repository: Repository
    tasks: tuple[Task, ...]
    split: splits.Split | None = None
    """The content of split.json beside the tasks, or None if there is no such file."""

    @cached_property
    def by_id(self) -> dict[str, Task]:
        """The tasks by instance id."""
        return {task.instance_id: task for task in self.tasks}


def plain_name(name: str) -> str:
    """Return owner/name for SWE-smith's name of a repository at a commit; return other names unchanged."""
    match = _SMITH_NAME.fullmatch(name)
    return f"{match[1]}/{match[2]}" if match else name


def default_folder(name: str) -> Path:
    """Return the default directory for the tasks of a repository: in user data, never in the repository itself."""
    return data_dir() / "tasks" / name.replace("/", "__")


def known_folders() -> list[Path]:
    """Return the task directories in user data, sorted by name."""
    return sorted(path.parent for path in (data_dir() / "tasks").glob(f"*/{ROWS_NAME}"))


def known_names() -> list[str]:
    """Return the names of the task directories in user data, as `find` accepts them."""
    return [path.name.replace("__", "/") for path in known_folders()]


def is_task_set(path: Path) -> bool:
    """Whether a path may be a task set: a directory with a definition, or any file (it may hold rows)."""
    return path.is_file() or (path / FILE_NAME).exists()


def find(given: str) -> Path:
    """Return the path of a task set, given by path or by its name in user data.

    A folder without a definition does not hide a task set of the same name, since packages and repositories often
    share a name.

    Raises:
        TaskError: there is no such task set; the message lists those that exist.
    """
    path = Path(given)
    if found := next(filter(is_task_set, (path, default_folder(given))), None):
        return found
    names = known_names()
    near = meant(given, names, most=3, near=0.5)
    raise TaskError(
        f"{given}: no such task directory (with {FILE_NAME} and {ROWS_NAME}), nor a task set in user data; "
        f"{near}{' ' * bool(near)}there: {', '.join(names) or 'none yet'}; "
        "`valve tasks generate`, `valve tasks import` and `valve tasks mine` make one"
    )


def load(path: Path | str) -> TaskSet:
    """Read a directory with repository.toml and tasks.jsonl, or a rows file beside a repository.toml.

    Raises:
        TaskError: a file is missing or damaged, or a row cannot be used; the message lists lines and reasons.
    """
    path = Path(path)
    if not path.exists():
        raise TaskError(f"{path}: no such file or directory; expected one with {FILE_NAME} and {ROWS_NAME}")
    rows_path = path / ROWS_NAME if path.is_dir() else path
    if not (definition := rows_path.parent / FILE_NAME).exists():
        binary = "a binary file and no task set: " if path.is_file() and "\0" in read_text(path, _FIRST_LINE) else ""
        raise TaskError(f"{path}: {binary}a task directory holds {FILE_NAME} and {ROWS_NAME}; there is no {definition}")
    repository = read_definition(definition)
    suite = None
    if repository.suite:
        suite_path = rows_path.parent / repository.suite
        try:
            suite = [line for line in codec.text_of(_read(suite_path, "suite")).split("\n") if line]
        except RecordError as e:
            raise TaskError(f"{suite_path}: {e}") from e
        _check_test_ids(suite, str(suite_path))
    tasks, refusals = check_rows(enumerate(_read(rows_path, "task file").split(b"\n"), 1), repository, suite)
    if refusals:
        more = f"\n  and {len(refusals) - _MAX_SHOWN} more" if len(refusals) > _MAX_SHOWN else ""
        shown = "\n  ".join(f"line {number}: {why}" for number, why in [*refusals.items()][:_MAX_SHOWN])
        raise TaskError(f"{rows_path}: {len(refusals)} of its rows cannot be used:\n  {shown}{more}")
    if not tasks:
        raise TaskError(f"{rows_path}: the file has no tasks; expected one JSON object per line")
    split_path = rows_path.with_name(splits.FILE_NAME)
    split = splits.read(split_path) if rows_path.name == ROWS_NAME else None
    if split is not None:
        splits.check(split, repository.name, list(tasks.values()), split_path)
    return TaskSet(repository=repository, tasks=tuple(tasks.values()), split=split)


def check_rows(
    lines: Iterable[tuple[int, bytes]], repository: Repository, suite: Sequence[str] | None = None
) -> tuple[dict[int, Task], dict[int, str]]:
    """Check numbered JSON lines; return (usable tasks by number, reasons of refusals by number). Pure."""
    tasks: dict[int, Task] = {}
    refusals: dict[int, str] = {}
    ids: dict[str, int] = {}
    contents: dict[str, int] = {}
    for number, line in lines:
        if not line.strip():
            continue
        try:
            task = check_row(line, repository, suite)
            if earlier := ids.get(task.instance_id):
                raise TaskError(f"instance_id {task.instance_id!r} is already in line {earlier}")
            if earlier := contents.get(task.content_hash):
                raise TaskError(f"{task.instance_id}: the same bug as line {earlier}")
        except (RecordError, TaskError) as e:
            refusals[number] = str(e)
            continue
        ids[task.instance_id] = contents[task.content_hash] = number
        tasks[number] = task
    return tasks, refusals


def check_id(name: str) -> None:
    """Check an instance id.

    Raises:
        TaskError: it is empty, too long or has other characters; the message says which.
    """
    if len(name) > _MAX_ID:
        raise TaskError(f"instance_id {name[:40]!r}… has {len(name)} characters, expected at most {_MAX_ID}")
    if not _ID.fullmatch(name):
        odd = sorted(set(re.sub(r"[A-Za-z0-9_.@+-]", "", name)))
        why = f"has {', '.join(map(repr, odd[:5]))}" if odd else "starts with none of them" if name else "is empty"
        raise TaskError(f"instance_id {name[:80]!r} {why}; expected letters and digits, and later also _ . - @ +")


def check_row(
    line: bytes, repository: Repository, suite: Sequence[str] | None = None, *, without_issue: bool = False
) -> Task:
    """Return the task of a JSON line. Pure.

    Args:
        suite: all tests of its suite file, or None if there is no such file.
        without_issue: also accept a row without a problem statement.

    Raises:
        RecordError, TaskError: the row cannot be used.
    """
    if len(line) > _MAX_LINE:
        raise TaskError(f"{len(line):,} bytes, expected at most {_MAX_LINE:,}")
    row = codec.decode_once(line, SmithRow, where="row")
    name = row.instance_id
    check_id(name)
    if row.repo != repository.name:
        raise TaskError(f"{name}: repo is {row.repo!r}, but repository.toml is about {repository.name!r}")
    if not row.fail_to_pass:
        raise TaskError(f"{name}: FAIL_TO_PASS is empty, so no test can show that the task is solved")
    paths = [p for p in _DIFF_PATH.findall(row.patch) if p != "/dev/null"]
    if not paths:
        raise TaskError(f"{name}: patch is not a unified diff")
    if bad := [p for p in paths if p.startswith("/") or ".." in p.split("/") or ".git" in p.split("/")]:
        raise TaskError(f"{name}: patch touches {bad[0]!r}, outside the repository")
    if not without_issue and not row.problem_statement.strip():
        raise TaskError(f"{name}: problem_statement is empty; expected an issue text for the agent")
    if "\0" in row.problem_statement:
        raise TaskError(f"{name}: problem_statement has a NUL character, which no agent can be given")
    passing = _pass_to_pass(row, suite)
    for kind, tests in (("FAIL_TO_PASS", row.fail_to_pass), ("PASS_TO_PASS", passing)):
        _check_test_ids(tests, f"{name}: {kind}")
    if both := set(row.fail_to_pass) & set(passing):
        raise TaskError(f"{name}: {min(both)} is in both FAIL_TO_PASS and PASS_TO_PASS")
    return Task(**msgspec.structs.asdict(row) | {"pass_to_pass": tuple(passing)})


def _pass_to_pass(row: SmithRow, suite: Sequence[str] | None) -> Sequence[str]:
    if row.pass_to_pass is not None:
        return row.pass_to_pass
    if suite is None:
        raise TaskError(f"{row.instance_id}: PASS_TO_PASS is missing, and repository.toml has no suite file")
    failing = set(row.fail_to_pass)
    if unknown := failing.difference(suite):
        raise TaskError(f"{row.instance_id}: {min(unknown)!r} is not in the suite file")
    return [test for test in suite if test not in failing]


def _check_test_ids(tests: Sequence[str], where: str) -> None:
    if len(set(tests)) != len(tests):
        raise TaskError(f"{where}: {next(t for t in tests if tests.count(t) > 1)} is listed twice")
    if bad := next((test for test in tests if not is_test_id(test)), None):
        raise TaskError(f"{where}: {bad[:80]!r} is not a test id like tests/test_x.py::test_y")


def is_test_id(test: str) -> bool:
    """Return whether a test can be named in a task: one line without control characters, and a path in the tree."""
    file = test.split("::", 1)[0]
    shown = all(c.isprintable() or unicodedata.category(c) == "Zs" for c in test)  # also with wide spaces
    return bool(file) and not file.startswith(("/", "-")) and ".." not in file.split("/") and shown


def _read(path: Path, what: str) -> bytes:
    try:
        return read_limited(path, _MAX_BYTES, what)
    except BankError as e:
        raise TaskError(str(e)) from e


def write(
    folder: Path, repository: Repository, rows: Iterable[SmithRow], *, made_by: str, suite: Sequence[str] = ()
) -> int:
    """Write suite, definition and then rows, and return the number of rows; without rows nothing is written.

    The rows come last, so a directory with rows is complete. They are taken one at a time.

    Args:
        made_by: the command that made the tasks; it is kept in repository.toml, see `check_free`.

    Raises:
        TaskError: tasks would be lost (see `require_kept`); nothing was written.
    """
    if folder.parent == data_dir() / "tasks":  # not a folder that the person chose
        make_private_dir(folder.parent)
        make_private_dir(folder)  # the rows hold the fixes
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, str] = {}
    new = folder / f".{ROWS_NAME}.new"
    new.unlink(missing_ok=True)  # left by a run that was killed
    try:
        with bank_errors(new, "write"), new.open("xb") as file:
            for row in rows:
                made |= _content_hashes([row])
                file.write(codec.canonical(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if made:
            require_kept(folder, made, len(made))
            if suite:
                write_atomic(folder / SUITE_NAME, "".join(f"{test}\n" for test in suite).encode())
                repository = msgspec.structs.replace(repository, suite=SUITE_NAME)
            write_definition(folder, repository, made_by)
            os.replace(new, folder / ROWS_NAME)
            sync_dir(folder)
    finally:
        new.unlink(missing_ok=True)
    return len(made)


def write_definition(folder: Path, repository: Repository, made_by: str) -> None:
    """Write repository.toml; a source path inside the directory is written as a relative path."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, _, where = repository.source.partition(":")
    if kind == "path" and Path(where).is_relative_to(folder.resolve()):
        repository = msgspec.structs.replace(repository, source=f"path:{os.path.relpath(where, folder.resolve())}")
    write_atomic(folder / FILE_NAME, f"{_MADE_BY}{made_by}\n{to_toml(repository)}".encode())


def to_toml(repository: Repository) -> str:
    """Return a definition as TOML, without default values. Pure; `read_definition` reads it back."""
    lines = []
    for entry in msgspec.structs.fields(repository):
        value = getattr(repository, entry.name)
        if value == entry.default:
            continue
        if isinstance(value, tuple) and len(value) > 1:
            lines.append(f"{entry.name} = [\n" + "".join(f"  {toml_value(word)},\n" for word in value) + "]")
        else:
            lines.append(f"{entry.name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def made_by(folder: Path) -> str:
    """Return the command that made a task directory, or an empty string if it names none."""
    try:
        head = read_regular(folder / FILE_NAME, _FIRST_LINE, start_only=True)
    except OSError:
        return ""
    first = head.decode("utf-8", "replace").partition("\n")[0]
    return first.removeprefix(_MADE_BY) if first.startswith(_MADE_BY) else ""


def check_free(folder: Path, command: str) -> None:
    """Check that a directory has no tasks that another command, or a person, put there.

    Raises:
        TaskError: it has such tasks.
    """
    if (folder / ROWS_NAME).exists() and made_by(folder).partition(" --")[0] != command:
        raise TaskError(
            f"{folder} has tasks made by {made_by(folder) or 'somebody else'}; {command} does not replace them: "
            "give another directory with --out, or move this one away"
        )


def held_tasks(folder: Path) -> dict[str, str]:
    """Return the content hashes, by id, of a set's tasks and of all tasks in its split (also of missing ones).

    Rows that cannot be read are left out: they are made again.
    """
    rows = list[SmithRow]()
    with suppress(BankError):  # there is no file
        for line in read_limited(folder / ROWS_NAME, _MAX_BYTES, "task file").split(b"\n"):
            with suppress(RecordError):
                rows += [codec.decode_once(line, SmithRow, where="row")] if line.strip() else []
    return _content_hashes(rows) | _split_tasks(folder)


def require_kept(folder: Path, made: Mapping[str, str], most: int) -> None:
    """Check that a new task set loses no task of the old one in `folder`, if that one has a split or more tasks.

    Args:
        made: content hashes, by id, of the new set; empty if no task is known yet.
        most: the largest number of tasks that the new set can have.

    Raises:
        TaskError: tasks would be lost; the message says how many and what to do.
    """
    there, pinned = held_tasks(folder), _split_tasks(folder)
    lost = [name for name, content in there.items() if made.get(name) != content]
    if not lost or not (pinned or len(there) > most):
        return
    split = f" ({len(pinned)} of them in its split)" if pinned else ""
    other = quote(f"{folder}-2")
    raise TaskError(
        f"{folder} has {plural(len(there), 'task')}{split}; the new set would lack {len(lost)} of them, because the "
        "source, the tests, the seed or another option changed. Nothing was written. "
        f"Add --out {other} for the new set, or remove {folder} if nothing depends on it"
    )


def _content_hashes(rows: Iterable[SmithRow]) -> dict[str, str]:
    """Return the `Task.content_hash` of each row, by id."""
    return {row.instance_id: codec.digest([row.repo, row.patch, sorted(row.fail_to_pass)]) for row in rows}


def _split_tasks(folder: Path) -> dict[str, str]:
    split = splits.read(folder / splits.FILE_NAME)
    return {task.instance_id: task.content_hash for task in splits.pinned_tasks(split)} if split else {}
