"""Reading rows of files and data sets. The content of a file decides how it is read, not its name.

Rows are read one at a time. A row that cannot be read is given with the reason, and reading goes on after it, except in
a JSON list.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from valve_plugin.errors import ConfigError, InfrastructureError, TaskError
from valve_plugin.extras import pip_install

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
