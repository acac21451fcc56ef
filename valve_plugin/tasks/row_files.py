"""Reading rows of files and data sets one at a time. The content of a file decides how it is read, not its name.

A row that cannot be read is given with the reason, and reading goes on after it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

from valve_plugin.errors import ConfigError, InfrastructureError, TaskError
from valve_plugin.extras import pip_install
from valve_plugin.files import read_text

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
_BOM = b"\xef\xbb\xbf"
_HEAD = 1 << 16  # bytes that say what a file holds
_BATCH = 100  # rows of a columnar file that are in memory at once
_GZIP, _PARQUET, _ARROW = b"\x1f\x8b", b"PAR1", b"\xff\xff\xff\xff"
_DAMAGE = (OSError, EOFError, zlib.error, csv.Error)
_WHOLE = re.compile(rb'\s*(?:\[|\{(?:(?!"instance_id"\s*:).)*?"rows"\s*:\s*\[)', re.DOTALL)
"""How a JSON document begins that is a list of rows, or has one."""


class Rows(NamedTuple):
    """Rows that can be read several times."""

    unit: str
    """What the numbers count: "line" or "row"."""
    read: Callable[[], Numbered]


def open_rows(given: str, split: str) -> Rows:
    """Return the rows of a file, of a data set on disk, or of a data set on the Hugging Face hub.

    Args:
        split: the split to read if the data set has several.

    Raises:
        TaskError: there is no such file or split, or it does not hold rows.
        ConfigError: the library that reads it is not installed.
        InfrastructureError: the hub cannot be reached.
    """
    path = Path(given)
    if path.is_file():
        return _open_file(path)
    if path.is_dir():
        return _open_folder(path, split)
    if _HUB_ID.fullmatch(given) and not _FILE_SUFFIX.search(given):
        return _open_hub(given, split)
    raise TaskError(f"{given}: no such file; expected {EXPECTED}, or a hub id owner/name")


def _open_file(path: Path) -> Rows:
    try:
        head = _head(path)
    except OSError as e:
        raise TaskError(f"{path}: cannot be read: {e}") from e
    if head.startswith((_PARQUET, _ARROW)):
        return _columnar([path])
    if _WHOLE.match(head):
        rows = _document(path)
        return Rows("row", lambda: iter(enumerate(rows, 1)))
    first = head.strip().split(b"\n")[0].strip()
    names = {mark: [name.strip(b'" ') for name in first.split(mark.encode())] for mark in ",;\t"}
    if delimiter := next((mark for mark, columns in names.items() if b"instance_id" in columns), ""):
        return Rows("row", lambda: _until_damage(_csv_rows(path, delimiter)))
    if b"{" in head and first != b"{":
        return Rows("line", lambda: _until_damage(_line_rows(path)))
    raise TaskError(f"{path}: not a file of rows; expected {EXPECTED}")


def _head(path: Path) -> bytes:
    """Return the start of a file, or what can be read of it."""
    head = b""
    with _open(path) as file, suppress(EOFError, zlib.error):
        while len(head) < _HEAD and (more := file.read1(_HEAD)):
            head += more
    return head.removeprefix(_BOM)


def _open(path: Path) -> io.BufferedReader:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast(io.BufferedReader, gzip.open(path)) if packed else path.open("rb")


def _document(path: Path) -> list[Raw | str]:
    """Return the rows of a JSON list, or of the list `rows` in an object, as the hub's data-set viewer answers."""
    try:
        with _open(path) as file:
            value = _parse(file.read())
    except (*_DAMAGE, ValueError, RecursionError) as e:
        raise TaskError(f"{path}: {e or type(e).__name__}; expected {EXPECTED}") from e
    found = value.get("rows") if isinstance(value, dict) else value
    if not isinstance(found, list):
        raise TaskError(f"{path}: not a file of rows; expected {EXPECTED}")
    return [_row(one) for one in found]


def _until_damage(rows: Numbered) -> Numbered:
    number = 0
    try:
        for number, row in rows:
            yield number, row
    except _DAMAGE as e:
        yield number + 1, f"the file is damaged or cut off here, what follows is lost: {e or type(e).__name__}"


def _line_rows(path: Path) -> Numbered:
    number = 0
    with _open(path) as file:
        while line := file.readline(MAX_ROW + 1):
            number += 1
            if len(line) > MAX_ROW:
                yield number, f"more than {MAX_ROW:,} bytes, expected at most that many for one row"
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_ROW)
            elif line.replace(_BOM, b"", 1).strip():
                yield number, parse_row(line)


def parse_row(line: bytes) -> Raw | str:
    """Return the row of a JSON text, or the reason why it is none. Integers come as text, NaN is accepted. Pure."""
    try:
        return _row(_parse(line))
    except (ValueError, RecursionError) as e:
        return "nested too deeply" if isinstance(e, RecursionError) else str(e)


def _row(value: Any) -> Raw | str:
    if isinstance(value, list):
        return "a list, expected a JSON object"
    if not isinstance(value, dict):
        return f"the value {str(value)[:40]}, expected a JSON object"
    inner = value.get("row") if "row_idx" in value else None
    return inner if isinstance(inner, dict) else value  # the data-set viewer of the hub puts rows into rows


def _parse(line: bytes) -> Any:
    try:
        text = line.replace(_BOM, b"", 1).decode("utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"not UTF-8 (byte {e.start + 1} is {line[e.start]:#04x}); save the file as UTF-8") from e
    if "\0" in text:
        raise ValueError("has NUL bytes, so the file was damaged or cut off here")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=str)
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at character {e.pos + 1}") from e


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice[:80]!r} is given twice in one object; keep one of the two")
    return found


def _csv_rows(path: Path, delimiter: str) -> Numbered:
    csv.field_size_limit(MAX_ROW)
    with io.TextIOWrapper(_open(path), "utf-8-sig", "surrogateescape", newline="") as text:
        for number, row in enumerate(csv.DictReader(text, delimiter=delimiter), 1):
            yield number, {name: value for name, value in row.items() if name in COLUMNS and value}


def _columnar(paths: Sequence[Path]) -> Rows:
    """Return the rows of parquet files, or of files in Arrow's streaming format, as `datasets` saves them.

    Raises:
        TaskError: one of them cannot be read.
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as e:
        raise ConfigError(
            f"{paths[0]}: pyarrow is needed to read it ({e}); run: {pip_install('datasets')} (the extra `smith` has it)"
        ) from e
    try:
        next(_columnar_rows(paths), None)
    except OSError as e:
        raise TaskError(f"{paths[0]}: not a readable parquet or Arrow file: {e}") from e
    return Rows("row", lambda: _until_damage(_columnar_rows(paths)))


def _columnar_rows(paths: Sequence[Path]) -> Numbered:
    from pyarrow import ArrowException

    batches = chain.from_iterable(map(_batches, paths))
    try:
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)
    except ArrowException as e:
        raise OSError(str(e)) from e


def _batches(path: Path) -> Iterator[Any]:
    from pyarrow import ipc
    from pyarrow.parquet import ParquetFile

    with path.open("rb") as file:
        if file.read(len(_PARQUET)) == _PARQUET:
            parquet = ParquetFile(path)
            kept = [name for name in parquet.schema_arrow.names if name in COLUMNS]
            yield from parquet.iter_batches(batch_size=_BATCH, columns=kept)
            return
        file.seek(0)
        for batch in ipc.open_stream(file):
            kept = [name for name in batch.schema.names if name in COLUMNS]
            yield from (batch.select(kept).slice(at, _BATCH) for at in range(0, len(batch), _BATCH))


def _open_folder(folder: Path, split: str) -> Rows:
    """Return the rows of a data set that `datasets` saved, or of a folder with parquet files."""
    try:
        if (about := folder / "dataset_dict.json").exists():
            names = json.loads(read_text(about))["splits"]
            if split not in names:
                raise TaskError(f"{folder}: no split {split!r}; choose one with --split: {', '.join(names)}")
            folder = folder / split
        files = [folder / entry["filename"] for entry in json.loads(read_text(folder / "state.json"))["_data_files"]]
    except (json.JSONDecodeError, KeyError, TypeError):
        found = sorted(folder.rglob("*.parquet"))
        files = [path for path in found if path.name.startswith(f"{split}-")] or found
    if not files or not all(path.is_file() for path in files):
        raise TaskError(f"{folder}: not a data set that `datasets` saved, and no folder with parquet files")
    return _columnar(files)


def _open_hub(name: str, split: str) -> Rows:
    try:
        import datasets
    except ImportError as e:
        raise ConfigError(
            f"{name}: `datasets` is needed to read it ({e}); run: {pip_install('datasets')} (the extra `smith` has it)"
        ) from e
    try:
        found = datasets.load_dataset(name)
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
