"""Task sets: a repository.toml and SWE-smith rows beside it, every row checked before any is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec import field

from valve_plugin import codec
from valve_plugin.bank.files import read_limited
from valve_plugin.errors import BankError, RecordError, TaskError
from valve_plugin.records import Record, Task
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.repository import FILE_NAME, Repository, read

ROWS_NAME = "tasks.jsonl"
MAX_BYTES = 1_000_000_000
_MAX_LINE = 16_000_000
_MAX_SHOWN = 10
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*")
_DIFF_PATH = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)", re.MULTILINE)


class Row(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of tasks.jsonl: SWE-smith's row, with a short form for rows that share one suite."""

    instance_id: str
    repo: str
    patch: str
    fail_to_pass: tuple[str, ...] = field(name="FAIL_TO_PASS")
    pass_to_pass: tuple[str, ...] | None = field(name="PASS_TO_PASS", default=None)
    """Left out: every test of the repository's suite file but FAIL_TO_PASS."""
    problem_statement: str
    image_name: str = ""
    base_commit: str = ""
    created_at: str = ""


class TaskSet(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A repository and the tasks about it, in file order."""

    repository: Repository
    tasks: tuple[Task, ...]
    split: splits.Split | None = None
    """What split.json beside the tasks says; None: there is none."""

    @cached_property
    def by_id(self) -> dict[str, Task]:
        """The tasks by instance id."""
        return {task.instance_id: task for task in self.tasks}


def load(path: Path | str) -> TaskSet:
    """Read a directory with repository.toml and tasks.jsonl, or a rows file that lies beside a repository.toml.

    Raises:
        TaskError: anything is wrong with any row; lists what, and in which line.
    """
    path = Path(path)
    if not path.exists():
        raise TaskError(f"{path}: no such file or directory; expected one with {FILE_NAME} and {ROWS_NAME}")
    rows_path = path / ROWS_NAME if path.is_dir() else path
    repository = read(rows_path.parent / FILE_NAME)
    suite = _suite(rows_path.parent / repository.suite) if repository.suite else None
    lines = _bytes(rows_path, "task file").split(b"\n")
    tasks, refusals = check(lines, repository, suite)
    if refusals:
        more = f"\n  and {len(refusals) - _MAX_SHOWN} more" if len(refusals) > _MAX_SHOWN else ""
        shown = "\n  ".join(refusals[:_MAX_SHOWN])
        raise TaskError(f"{rows_path}: {len(refusals)} of its rows cannot be used:\n  {shown}{more}")
    if not tasks:
        raise TaskError(f"{rows_path}: holds no task; expected one JSON object a line")
    split_path = rows_path.with_name(splits.FILE_NAME)
    split = splits.read(split_path) if rows_path.name == ROWS_NAME else None
    if split is not None:
        splits.check(split, repository.name, tasks, split_path)
    return TaskSet(repository=repository, tasks=tuple(tasks), split=split)


def check(
    lines: Iterable[bytes], repository: Repository, suite: Sequence[str] | None = None
) -> tuple[list[Task], list[str]]:
    """Return (usable tasks in order, refusals with line number and reason) of JSON lines. Pure."""
    tasks, refusals = check_numbered(enumerate(lines, 1), repository, suite)
    return list(tasks.values()), [f"line {number}: {why}" for number, why in refusals.items()]


def check_numbered(
    lines: Iterable[tuple[int, bytes]],
    repository: Repository,
    suite: Sequence[str] | None = None,
    *,
    wordless: bool = False,
    what: str = "line",
) -> tuple[dict[int, Task], dict[int, str]]:
    """Return (usable tasks, reasons of refusals), by number and in order, of numbered JSON lines. Pure.

    Args:
        wordless: take rows without a problem statement too; whoever asks for them finds one.
        what: the numbers count.
    """
    tasks: dict[int, Task] = {}
    refusals: dict[int, str] = {}
    ids: dict[str, int] = {}
    contents: dict[str, int] = {}
    for number, line in lines:
        if not line.strip():
            continue
        try:
            task = _task(line, repository, suite, wordless)
            if earlier := ids.get(task.instance_id):
                raise TaskError(f"instance_id {task.instance_id!r} is already in {what} {earlier}")
            if earlier := contents.get(task.content_hash):
                raise TaskError(f"{task.instance_id}: the same bug as {what} {earlier}")
        except (RecordError, TaskError) as e:
            refusals[number] = str(e)
            continue
        ids[task.instance_id] = contents[task.content_hash] = number
        tasks[number] = task
    return tasks, refusals


def _task(line: bytes, repository: Repository, suite: Sequence[str] | None, wordless: bool) -> Task:
    if len(line) > _MAX_LINE:
        raise TaskError(f"{len(line):,} bytes, expected at most {_MAX_LINE:,}")
    row = codec.decode_once(line, Row, where="row")
    _check_row(row, repository)
    if not wordless and not row.problem_statement.strip():
        raise TaskError(f"{row.instance_id}: problem_statement is empty; the agent would not know what to do")
    passing = _pass_to_pass(row, suite)
    for name, ids in (("FAIL_TO_PASS", row.fail_to_pass), ("PASS_TO_PASS", passing)):
        _check_ids(ids, f"{row.instance_id}: {name}")
    if both := set(row.fail_to_pass) & set(passing):
        raise TaskError(f"{row.instance_id}: {min(both)} is both in FAIL_TO_PASS and PASS_TO_PASS")
    return Task(**msgspec.structs.asdict(row) | {"pass_to_pass": tuple(passing)})


def _check_row(row: Row, repository: Repository) -> None:
    if not _ID.fullmatch(row.instance_id) or len(row.instance_id) > 300:
        raise TaskError(f"instance_id {row.instance_id[:80]!r} is not made of letters, digits and _ . - @ +")
    if row.repo != repository.name:
        raise TaskError(
            f"{row.instance_id}: repo {row.repo!r} is unknown; repository.toml is about {repository.name!r}"
        )
    if not row.fail_to_pass:
        raise TaskError(f"{row.instance_id}: FAIL_TO_PASS is empty, so nothing could ever show that it is solved")
    paths = [p for p in _DIFF_PATH.findall(row.patch) if p != "/dev/null"]
    if not paths:
        raise TaskError(f"{row.instance_id}: patch is not a unified diff")
    if bad := [p for p in paths if p.startswith("/") or ".." in p.split("/") or ".git" in p.split("/")]:
        raise TaskError(f"{row.instance_id}: patch touches {bad[0]!r}, outside the repository")


def _pass_to_pass(row: Row, suite: Sequence[str] | None) -> Sequence[str]:
    if row.pass_to_pass is not None:
        return row.pass_to_pass
    if suite is None:
        raise TaskError(f"{row.instance_id}: PASS_TO_PASS is missing, and repository.toml names no suite file")
    failing = set(row.fail_to_pass)
    if strange := failing.difference(suite):
        raise TaskError(f"{row.instance_id}: {min(strange)!r} is not in the suite file")
    return [test for test in suite if test not in failing]


def _check_ids(ids: Sequence[str], where: str) -> None:
    if len(set(ids)) != len(ids):
        raise TaskError(f"{where}: {next(t for t in ids if ids.count(t) > 1)} is listed twice")
    for test in ids:
        file = test.split("::", 1)[0]
        if not file or file.startswith(("/", "-")) or ".." in file.split("/") or not test.isprintable():
            raise TaskError(f"{where}: {test[:80]!r} is not a test id like tests/test_x.py::test_y")


def _suite(path: Path) -> list[str]:
    try:
        tests = [line for line in _bytes(path, "suite").decode("utf-8").split("\n") if line]
    except UnicodeDecodeError as e:
        raise TaskError(f"{path}: not UTF-8: {e}") from e
    _check_ids(tests, str(path))
    return tests


def _bytes(path: Path, what: str) -> bytes:
    try:
        return read_limited(path, MAX_BYTES, what)
    except BankError as e:
        raise TaskError(str(e)) from e
