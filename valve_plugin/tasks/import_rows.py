"""Import of SWE-smith rows that others made: reading their files, and what makes a task of one repository of each.

Rows are read one at a time. A row that cannot be read is given with the reason, and reading goes on after it, except in
a JSON list.

The source that their patches change comes from a source tree, the branches of a clone, or a container image. Rows are
read twice and never held together: a data set may be larger than the memory.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec import field
from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.errors import ConfigError, InfrastructureError, RecordError, TaskError
from valve_plugin.extras import pip_install
from valve_plugin.records import Record, Task
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import (
    File,
    diff_trees,
    find_git_dir,
    git,
    git_line,
    read_files,
    read_tree,
    resolve_commit,
)
from valve_plugin.tasks import task_set
from valve_plugin.tasks.image import image_files
from valve_plugin.tasks.issue_text import write_issue
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import changed_files, is_protected, task_states, test_files
from valve_plugin.tasks.task_set import plain_name

Raw = dict[str, Any]
Numbered = Iterator[tuple[int, "Raw | str"]]
"""The number of each row, from 1, with its columns or the reason why it cannot be read."""

COLUMNS = (
    *("instance_id", "repo", "patch", "FAIL_TO_PASS", "PASS_TO_PASS"),
    *("problem_statement", "image_name", "base_commit", "created_at"),
)
"""The columns that are read."""
MAX_ROW = 16_000_000
"""Most bytes of one row."""
EXPECTED = "JSON lines, a JSON list of rows, CSV, parquet or a data set that `datasets` saved"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILE_SUFFIX = re.compile(r"\.(jsonl?|parquet|csv|tsv|arrow)(\.gz)?$")
_CHUNK = 1 << 16
_BATCH = 100  # rows of a parquet file that are in memory at once
_GZIP = b"\x1f\x8b"
_DAMAGE = (OSError, EOFError, zlib.error)
_LIST_START = re.compile(r'\s*(\{.*?"(rows|data|instances|tasks|examples)"\s*:\s*)?\[', re.DOTALL)
"""The start of a list of rows, or of an object that holds one."""
_BETWEEN = re.compile(r"[\s,]*")
Refused = dict[int, str]
"""Reasons why rows cannot be used, by row number."""
_NEEDED = ("repo", "instance_id", "patch", "FAIL_TO_PASS")
_TEXTS = ("instance_id", "patch", "problem_statement", "image_name", "base_commit", "created_at")
_MOST_LISTED = 8


class Rows(NamedTuple):
    """Rows that can be read several times."""

    unit: str
    """What the numbers count: "line" or "row"."""
    read: Callable[[], Numbered]


def open_rows(given: str, split: str) -> Rows:
    """Return the rows of a file, of a data set on disk, or of a data set on the Hugging Face hub.

    Raises:
        TaskError: there is no such file or split, or it does not hold rows.
        ConfigError: the library that reads it is not installed.
        InfrastructureError: the hub cannot be reached.
    """
    path = Path(given)
    if path.is_file():
        return _open_file(path)
    if path.is_dir():
        if any((path / name).exists() for name in ("dataset_dict.json", "state.json")):
            return _open_saved(given, split, "load_from_disk")
        if found := sorted(path.rglob("*.parquet")):
            return _parquet([file for file in found if file.name.startswith(f"{split}-")] or found)
        raise TaskError(f"{path}: not a data set that `datasets` saved, and no folder with parquet files")
    if _HUB_ID.fullmatch(given) and not _FILE_SUFFIX.search(given):
        return _open_saved(given, split, "load_dataset")
    raise TaskError(f"{given}: no such file; expected {EXPECTED}, or a hub id owner/name")


def _open_file(path: Path) -> Rows:
    try:
        with _open(path) as file:
            if file.peek(4)[:4] == b"PAR1":
                return _parquet([path])
            first = next((line for line in _lines(file) if line.strip()), b"")
            mark = first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except _DAMAGE as e:
        raise TaskError(f"{path}: cannot be read: {e}") from e
    if mark in (b"{", b"["):
        if _is_list(path, first):
            return Rows("row", lambda: _until_damage(_list_rows(path)))
        return Rows("line", lambda: _until_damage(_line_rows(path)))
    header = first[:_CHUNK].decode("utf-8-sig", "replace")
    names = {mark: [name.strip('" \r\n') for name in header.split(mark)] for mark in "\t,"}
    if delimiter := next((mark for mark, columns in names.items() if "instance_id" in columns), ""):
        return Rows("row", lambda: _until_damage(_csv_rows(path, delimiter)))
    raise TaskError(f"{path}: not a file of rows; expected {EXPECTED}, in UTF-8")


def _open(path: Path) -> io.BufferedReader:
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    return cast(io.BufferedReader, gzip.open(path)) if packed else path.open("rb")


def _is_list(path: Path, first: bytes) -> bool:
    """Whether a file is one list of rows, or an object that holds one.

    A row with an id, or a list in a line of its own with more lines after it, is a line of JSON lines.
    """
    with suppress(ValueError, RecursionError):
        value = _parse(first)
        if isinstance(value, dict) and "instance_id" in value:
            return False
        if isinstance(value, list):
            with _open(path) as file:
                return sum(1 for _, line in zip(range(3), filter(bytes.strip, _lines(file)), strict=False)) == 1
    with _text(path) as text:
        return _LIST_START.match(text.read(_CHUNK)) is not None


def _text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(_open(path), "utf-8-sig", "surrogateescape", newline="")


def _list_rows(path: Path) -> Numbered:
    decoder, number = json.JSONDecoder(parse_int=str), 0
    with _text(path) as text:
        held = text.read(_CHUNK)
        start = _LIST_START.match(held)
        at = start.end() if start else 0
        while True:
            at += len(_BETWEEN.match(held, at)[0])  # type: ignore[index]  # matches anything
            if held[at : at + 1] == "]":
                return
            try:
                value, end = decoder.raw_decode(held, at)
            except (json.JSONDecodeError, RecursionError) as e:  # perhaps because the rest is not read yet
                more = text.read(_CHUNK)
                if not more or len(held) - at > MAX_ROW:
                    yield number + 1, f"not JSON: {e}; what follows is lost"
                    return
                held, at = held[at:] + more, 0
                continue
            number, at = number + 1, end
            yield number, _row_of(value)


def _until_damage(rows: Numbered) -> Numbered:
    number = 0
    try:
        for number, row in rows:
            yield number, row
    except _DAMAGE as e:
        yield number + 1, f"the file is damaged or cut off here, what follows is lost: {e or type(e).__name__}"


def _line_rows(path: Path) -> Numbered:
    with _open(path) as file:
        for number, line in enumerate(_lines(file), 1):
            if len(line) > MAX_ROW:
                yield number, f"more than {MAX_ROW:,} bytes, expected at most that many for one row"
            elif line.strip():
                yield number, parse_row(line)


def _lines(file: io.BufferedReader) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is cut to a length that still is."""
    while line := file.readline(MAX_ROW + 1):
        rest = line
        while len(rest) > MAX_ROW and not rest.endswith(b"\n"):
            rest = file.readline(MAX_ROW + 1)
        yield line


def parse_row(line: bytes) -> Raw | str:
    """Return the row of a JSON text, or the reason why it is none. Integers come as text, NaN is accepted. Pure."""
    try:
        return _row_of(_parse(line))
    except json.JSONDecodeError as e:
        return f"not JSON: {e.msg} at character {e.pos + 1}"
    except UnicodeDecodeError as e:
        return f"not UTF-8: {e}"
    except RecursionError:
        return "nested too deeply"


def _parse(text: bytes) -> Any:
    return json.loads(text.decode("utf-8-sig"), parse_int=str)


def _row_of(value: Any) -> Raw | str:
    if not isinstance(value, dict):
        return f"the value {str(value)[:40]}, expected a JSON object"
    inner = value.get("row") if "row_idx" in value else None
    return inner if isinstance(inner, dict) else value  # the data-set viewer of the hub puts rows into rows


def _csv_rows(path: Path, delimiter: str) -> Numbered:
    csv.field_size_limit(MAX_ROW)
    number = 0
    with _text(path) as text:
        reader = csv.DictReader(text, delimiter=delimiter)
        while True:
            number += 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as e:
                yield number, f"not CSV: {e}"
            else:
                yield number, {name: value for name, value in row.items() if name in COLUMNS and value}


def _parquet(paths: Sequence[Path]) -> Rows:
    """Return the rows of parquet files."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as e:
        raise _missing(str(paths[0]), "pyarrow", e) from e
    try:
        next(_parquet_rows(paths), None)
    except OSError as e:
        raise TaskError(f"{paths[0]}: not a readable parquet file: {e}") from e
    return Rows("row", lambda: _until_damage(_parquet_rows(paths)))


def _parquet_rows(paths: Sequence[Path]) -> Numbered:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    def batches(path: Path) -> Iterator[Any]:
        file = ParquetFile(path)
        kept = [name for name in file.schema_arrow.names if name in COLUMNS]
        return cast(Iterator[Any], file.iter_batches(batch_size=_BATCH, columns=kept))

    try:
        yield from enumerate((row for path in paths for batch in batches(path) for row in batch.to_pylist()), 1)
    except ArrowException as e:
        raise OSError(str(e)) from e


def _open_saved(name: str, split: str, loader: str) -> Rows:
    """Return the rows of a data set that `datasets` loads, by this function of it."""
    try:
        import datasets
    except ImportError as e:
        raise _missing(name, "`datasets`", e) from e
    try:
        found = getattr(datasets, loader)(name)
    except Exception as e:
        raise InfrastructureError(
            f"the data set {name} cannot be loaded: {type(e).__name__}: {str(e)[:300]}; check the name and the "
            "network, or download it as parquet or JSONL and give that file"
        ) from e
    if isinstance(found, dict):
        if split not in found:
            raise TaskError(f"{name}: no split {split!r}; choose one with --split: {', '.join(found)}")
        found = found[split]
    kept = found.select_columns([column for column in found.column_names if column in COLUMNS])
    return Rows("row", lambda: iter(enumerate(kept, 1)))


def _missing(name: str, package: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"{name}: {package} is needed to read it ({error}); run: {pip_install('datasets')} (the extra `smith` has it)"
    )


class Survey(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a first reading of all rows tells."""

    name: str
    """Repository of the task set; empty if no row can be used."""
    about: str = ""
    """What the rows call it."""
    rows: int = 0
    """Number of rows about it."""
    others: dict[str, int] = field(default_factory=dict)
    """Number of rows about other repositories."""
    image: str = ""
    """The container image that all its rows name, or an empty string if they name none or several."""
    refusals: Refused = field(default_factory=dict)


class Branches(NamedTuple):
    """Bugs in the branches of a clone."""

    git_dir: Path
    tree: str
    """The source that most of them change."""
    commits: dict[int, tuple[str, str]]
    """(source, bug) by row number."""
    refusals: Refused


def survey_rows(rows: Rows, wanted: str) -> Survey:
    """Read all rows and choose the repository that is wanted, or the only one that they are about.

    A repository is found by its plain name and by SWE-smith's (seperman/deepdiff is
    `swesmith/seperman__deepdiff.ed252022`).

    Raises:
        TaskError: no row is about it, or there are several repositories and none is named; the message lists them.
    """
    counts, images, lacking = Counter[str](), dict[str, set[str]](), list[tuple[int, str, str]]()
    for number, row in rows.read():
        repo = "" if isinstance(row, str) or not isinstance(row.get("repo"), str) else row["repo"]
        counts.update([repo] if repo else [])
        if repo and wanted and not _is_called(repo, wanted):
            continue
        if why := row if isinstance(row, str) else missing_fields(row):
            lacking.append((number, repo, why))
        elif isinstance(row, dict) and len(seen := images.setdefault(repo, set())) < 2:
            seen.add(str(row.get("image_name") or ""))
    found = [name for name in counts if not wanted or _is_called(name, wanted)]
    if lacking and not images and (found or not counts):
        return Survey(name="", refusals={number: why for number, _, why in lacking})
    if len(found) != 1:
        several = f"the rows are about {len(found)} repositories; choose one with --repo"
        none = f"no row is about {wanted or 'any repository'}"
        raise TaskError(f"{several if found else none}; found: {list_repositories(counts) or 'no rows'}")
    about, named = found[0], images.get(found[0], set())
    return Survey(
        name=plain_name(about) if not wanted or plain_name(about).lower() == wanted.lower() else wanted,
        about=about,
        rows=counts.pop(about),
        others=dict(counts.most_common()),
        image=named.pop() if len(named) == 1 else "",
        refusals={number: why for number, repo, why in lacking if repo in ("", about)},
    )


def rows_about(rows: Rows, survey: Survey) -> Iterator[tuple[int, Raw]]:
    """Yield the rows of the surveyed repository that `survey_rows` did not refuse."""
    for number, row in rows.read():
        if isinstance(row, dict) and str(row.get("repo")) == survey.about and number not in survey.refusals:
            yield number, row


def list_repositories(counts: Mapping[str, int]) -> str:
    """Return the repositories with the most rows, as in `a/b (20), c/d (3)`. Pure."""
    plain = Counter(map(plain_name, counts))
    ranked = Counter(counts).most_common(_MOST_LISTED)
    there = ", ".join(f"{plain_name(name) if plain[plain_name(name)] == 1 else name} ({n})" for name, n in ranked)
    return f"{there}{' …' if len(counts) > _MOST_LISTED else ''}"


def _is_called(repo: str, wanted: str) -> bool:
    return wanted.lower() in (repo.lower(), plain_name(repo).lower())


def missing_fields(row: Raw) -> str:
    """Return the missing fields of a row, like `lacks repo`, or an empty string if it has a repository and all others.

    A missing patch alone is accepted: the bug may be in the git branch that is named after the row.
    """
    names = [name for name in _NEEDED if not _is_given(row.get(name))]
    if "repo" not in names and not isinstance(row["repo"], str):
        return f"repo is {str(row['repo'])[:60]}, expected text"
    return f"lacks {', '.join(names)}" if set(names) - {"patch"} else ""


def _is_given(value: Any) -> bool:
    return not (value is None or value == "" or (isinstance(value, float) and value != value))  # NaN: none, in a table


def normalize_row(raw: Raw, repo: str) -> Raw:
    """Return a row with the columns of a task file. Lists that are texts are decoded, integers become text.

    Raises:
        RecordError: a field is missing or of another kind.
    """
    if why := missing_fields(raw):
        raise RecordError(why)
    row: Raw = {"problem_statement": "", "patch": "", "repo": repo}
    for name in _TEXTS:
        if not _is_given(value := raw.get(name)):
            continue
        if isinstance(value, (bool, float, list, dict)):
            raise RecordError(f"{name} is {str(value)[:60]}, expected text")
        row[name] = str(value)
    row |= {name: _test_list(raw.get(name), name) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    for name, value in row.items():
        try:
            "".join(value).encode()
        except UnicodeEncodeError as e:
            raise RecordError(f"{name} has half of a surrogate pair, or bytes that are not UTF-8: {e.reason}") from e
    return row


def _test_list(value: Any, name: str) -> list[str]:
    given = value
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = _literal(given)
    if hasattr(value, "tolist"):  # an array of numpy
        value = value.tolist()
    if not _is_given(value):
        return []
    if not isinstance(value, (list, tuple)) or not all(isinstance(test, str) for test in value):
        raise RecordError(f"{name} is neither a list of test ids nor a JSON list of them: {str(given)[:60]!r}")
    return list(dict.fromkeys(value))


def _literal(text: str) -> Any:
    """Return the list of a text like Python prints it, as tables have it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if repr(value) == text else text  # numpy prints no commas, and Python would join the ids


def read_branches(clone: Path, rows: Iterator[tuple[int, Raw]], *, missing: bool = False) -> Branches:
    """Find the bug of each row in the git branch that is named after the row.

    The last commit of SWE-smith's branch removes the hidden tests. Its parent has the bug and all tests; the parent
    of that is the original source.

    Args:
        missing: accept rows without a branch.

    Raises:
        TaskError: `clone` is not a git repository, or has no branch of any row.
    """
    git_dir = find_git_dir(clone)
    commits: dict[int, tuple[str, str]] = {}
    trees: dict[int, str] = {}
    refusals: Refused = {}
    for number, raw in rows:
        try:
            row = normalize_row(raw, "x")
            task_set.check_id(name := row["instance_id"])
            if tip := resolve_commit(git_dir, name):
                commits[number] = _read_branch(git_dir, tip, row["FAIL_TO_PASS"])
                trees[number] = git_line("rev-parse", f"{commits[number][0]}^{{tree}}", git_dir=git_dir)
            elif not missing:
                raise TaskError("the clone has no branch of that name; fetch it with git, or give --source")
        except (TaskError, RecordError) as e:
            refusals[number] = f"{_start(raw)}{e}"
    if not commits and not missing:
        first = next(iter(refusals.values()), "there are no rows")
        raise TaskError(f"{clone}: there is no usable branch for any of the {len(refusals)} rows: {first}")
    common = Counter(trees.values()).most_common(1)[0][0] if trees else ""
    for number, tree in trees.items():
        if tree != common:
            del commits[number]
            refusals[number] = "its source differs from that of most rows; import it into another task set"
    return Branches(git_dir, common, commits, refusals)


def _read_branch(git_dir: Path, tip: str, failing: Sequence[str]) -> tuple[str, str]:
    """Return the commits (original source, bug) of a row's branch."""
    chain = git("rev-list", "--first-parent", "-3", tip, git_dir=git_dir).decode().split()
    at_tip = read_tree(git_dir, tip)
    bug = int(any(path not in at_tip for path in test_files(failing)))
    if len(chain) < bug + 2:
        raise TaskError(f"its branch has {len(chain)} commits, expected three: source, bug, removal of the tests")
    return chain[bug + 1], chain[bug]


def read_image(image: str, rows: Iterator[tuple[int, Raw]], say: Callable[[str], None]) -> tuple[list[File], Branches]:
    """Return the source in an image's /testbed, and the bugs in its branches that are named after rows.

    SWE-smith's images have no such branches until they are fetched. Without a branch, the row's own patch is used.

    Raises:
        SandboxError: the engine or the image is missing; the message says what to do.
        TaskError: /testbed is not a git repository.
    """
    git_dir, files = image_files(image, say)
    branches = read_branches(git_dir, rows, missing=True)
    return read_files(git_dir, branches.tree) if branches.tree else files, branches


class Importer:
    """Makes tasks of rows, one at a time; `refusals` has the reasons of those that cannot be used.

    Args:
        unit: what the numbers of rows count, "line" or "row".
        sandbox: returns what runs the tests of rows without a problem statement.
        branches: where the bugs are; None if each row has its patch.
    """

    def __init__(
        self, prepared: PreparedRepository, unit: str, sandbox: Callable[[], Sandbox], branches: Branches | None = None
    ) -> None:
        self.refusals: Refused = dict(branches.refusals) if branches else {}
        self._prepared, self._unit, self._sandbox, self._branches = prepared, unit, sandbox, branches
        self._there = read_tree(prepared.store, prepared.base)
        self._ids: dict[str, int] = {}
        self._bugs: dict[str, int] = {}

    def tasks(self, rows: Iterator[tuple[int, Raw]]) -> Iterator[Task]:
        """Yield the tasks of the rows that can be used."""
        for number, raw in rows:
            if number in self.refusals:
                continue
            try:
                yield self._task(number, raw)
            except (RecordError, TaskError) as e:
                start = _start(raw)
                self.refusals[number] = str(e) if str(e).startswith(start) else f"{start}{e}"

    def _task(self, number: int, raw: Raw) -> Task:
        row = normalize_row(raw, self._prepared.name)
        if self._branches and number in self._branches.commits:
            row["patch"] = diff_trees(self._branches.git_dir, *self._branches.commits[number])
        task = task_set.check_row(codec.canonical(row), self._prepared.repository, without_issue=True)
        if earlier := self._ids.get(task.instance_id):
            raise TaskError(f"the same instance_id as {self._unit} {earlier}")
        tests = [(test, *test.partition("::")[::2]) for test in (*task.fail_to_pass, *task.pass_to_pass)]
        if bad := [test for test, path, name in tests if path not in self._there or not name or name[0] == "["]:
            raise TaskError(f"its tests include {bad[0]!r}, which this source cannot have; expected path::name")
        states = task_states(self._prepared, task)
        if earlier := self._bugs.get(states.bug_tree):
            raise TaskError(f"the same bug as {self._unit} {earlier}")
        changed = changed_files(self._prepared, self._prepared.base, states.bug)
        if edited := [path for path in changed if is_protected(path, self._prepared.repository.test_roots)]:
            raise TaskError(
                f"its patch changes {edited[0]}, a test file or a file that configures tests, and no submission may "
                "change those: nobody could solve it"
            )
        if not task.problem_statement.strip():
            text, why = write_issue(self._prepared, states.bug, task.patch, task.fail_to_pass, self._sandbox())
            if not text:
                raise TaskError(f"no problem statement, and its tests do not give one: {why}")
            task = replace(task, problem_statement=text)
        self._ids[task.instance_id] = self._bugs[states.bug_tree] = number
        return task


def _start(raw: Raw) -> str:
    """Return how the reason about a row starts: with its id, if it has one."""
    name = raw.get("instance_id")
    return f"{str(name)[:80]}: " if _is_given(name) else ""
