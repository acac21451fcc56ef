"""Reading rows of files and data sets one at a time. The content of a file decides how it is read, not its name.

A row that cannot be read is given with the reason, and reading goes on after it.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
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
_TOO_LONG = f"more than {MAX_ROW:,} bytes, expected at most that many for one row"
_A_LIST = "a list, expected a JSON object"
EXPECTED = "JSON lines, a JSON list of rows, CSV, parquet or a data set that `datasets` saved"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILE_SUFFIX = re.compile(r"\.(jsonl?|parquet|csv|tsv|arrow)(\.(gz|bz2|xz))?$")
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16
_BATCH = 100  # rows of a columnar file that are in memory at once
_PACKED: dict[bytes, Callable[[Path], Any]] = {
    **{b"\x1f\x8b": gzip.open, b"BZh": bz2.open},
    **{b"\xfd7zXZ": lzma.open, b"\x5d\0\0": lzma.open},
}
_OTHER = {
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it with `zstd -d`",
    b"\xff\xfe\0\0": "UTF-32 text; convert it with `iconv -f UTF-32 -t UTF-8`",
    b"\xff\xfe": "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8`",
}
_TAR = b"ustar", 257
_PARQUET, _ARROW_STREAM, _ARROW_FILE = b"PAR1", b"\xff\xff\xff\xff", b"ARROW1"
_COLUMNAR = (_PARQUET, _ARROW_STREAM, _ARROW_FILE)
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)
_ROWS_KEY = re.compile(rb'"(?:rows|data|instances|tasks|examples)"\s*:\s*\[')
_STARTS_ROW = re.compile(rb"""\{\s*["'}]|\[\s*["{\[\]]""")
_ID_KEY = re.compile(rb'"instance_id"\s*:')
_MARK, _MARK_IN_TEXT = re.compile(rb'["\[\]{},]'), re.compile(rb'["\\]')


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
    except _DAMAGE as e:
        raise TaskError(f"{path}: cannot be read: {e}") from e
    lines = [line for line in map(_stripped, head.split(b"\n")) if line]
    if why := _why_no_rows(head, packed=_opener(path) is not None) or ("" if lines else "the file has no rows"):
        raise TaskError(f"{path}: {why}; expected {EXPECTED}")
    if head.startswith(_COLUMNAR):
        return _columnar([path])
    if (start := _list_start(head, lines)) is not None:
        return Rows("row", lambda: _until_damage(_list_rows(path, start)))
    if lines[0] == b"{":
        raise TaskError(f"{path}: a JSON object over several lines; write one in each line, as `jq -c .` does")
    if any(map(_STARTS_ROW.match, lines)):
        return Rows("line", lambda: _until_damage(_line_rows(path)))
    names = {mark: [name.strip(b'" ') for name in lines[0].split(mark.encode())] for mark in "\t,;|"}
    if delimiter := next((mark for mark, columns in names.items() if b"instance_id" in columns), ""):
        return Rows("row", lambda: _until_damage(_csv_rows(path, delimiter)))
    raise TaskError(f"{path}: not a file of rows; expected {EXPECTED}")


def _why_no_rows(head: bytes, *, packed: bool) -> str:
    """Return why a file that begins so cannot be read, or an empty string. Pure."""
    if packed and head.startswith((*_COLUMNAR, *_PACKED)):
        return "what is compressed is no text; unpack it once, and give what comes out"
    if head.startswith(_TAR[0], _TAR[1]):
        return "a tar archive; unpack it"
    return next((why for magic, why in _OTHER.items() if head.startswith(magic)), "")


def _open(path: Path) -> io.BufferedReader:
    opener = _opener(path)
    return cast(io.BufferedReader, opener(path)) if opener else path.open("rb")


def _opener(path: Path) -> Callable[[Path], Any] | None:
    """Return what reads a compressed file; None if it is not compressed."""
    with path.open("rb") as file:
        start = file.read(8)
    return next((opener for magic, opener in _PACKED.items() if start.startswith(magic)), None)


def _head(path: Path) -> bytes:
    """Return the start of a file, or what can be read of it."""
    head = b""
    with _open(path) as file, suppress(*_DAMAGE):
        while len(head) < _CHUNK and (more := file.read1(_CHUNK)):
            head += more
    return head


def _stripped(line: bytes) -> bytes:
    return line.replace(_BOM, b"", 1).strip()


def _list_start(head: bytes, lines: Sequence[bytes]) -> int | None:
    """Return where the first row starts if the file is one list, or an object with a list `rows`; else None.

    A list in a line of its own, with more lines after it, is a bad line of a file of JSON lines.
    """
    if lines[0].startswith(b"["):
        alone = len(lines) > 1 and parse_row(lines[0]) == _A_LIST
        return None if alone else head.index(b"[") + 1
    if lines[0].startswith(b"{") and (found := _ROWS_KEY.search(head)) and not _ID_KEY.search(head, 0, found.start()):
        before = re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"', b"", head[: found.start()])
        opened = sum(before.count(mark) for mark in (b"{", b"[")) - sum(before.count(mark) for mark in (b"}", b"]"))
        return found.end() if opened == 1 else None
    return None


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
                yield number, _TOO_LONG
            elif _stripped(line):
                yield number, parse_row(line)


def _lines(file: io.BufferedReader) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is cut to a length that still is."""
    held = bytearray()
    while chunk := file.read1(_CHUNK):  # `readline` would lose the lines before a damage
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            held += end
            yield bytes(held[: MAX_ROW + 1])
            held.clear()
        if len(held) <= MAX_ROW:
            held += rest
    yield bytes(held)


def _list_rows(path: Path, start: int) -> Numbered:
    number = 0
    with _open(path) as file:
        file.read(start)
        for element, last in _elements(file):
            number += 1
            if element is None or element.strip() or not last:  # a list may be empty, or end with a comma
                yield number, _TOO_LONG if element is None else parse_row(element)


def _elements(file: io.BufferedReader) -> Iterator[tuple[bytes | None, bool]]:
    """Yield (text of an element, whether it is the last) of a JSON list whose bracket was read; None if too long."""
    held, at, depth, in_text = bytearray(), 0, 1, False
    while chunk := file.read1(_CHUNK):
        begin = 0
        while found := (_MARK_IN_TEXT if in_text else _MARK).search(chunk, at):
            at, mark = found.end(), found.group()
            if mark == b"\\":
                at += 1  # what follows is no mark
            elif mark == b'"':
                in_text = not in_text
            elif mark in b"[{":
                depth += 1
            elif mark in b"]}":
                depth -= 1
            if depth == 0 or (depth == 1 and mark == b","):
                held += chunk[begin : at - 1]
                yield bytes(held) if len(held) <= MAX_ROW else None, depth == 0
                if depth == 0:
                    return
                held.clear()
                begin = at
        if len(held) <= MAX_ROW:
            held += chunk[begin:]
        at = max(0, at - len(chunk))
    yield bytes(held) if len(held) <= MAX_ROW else None, True


def parse_row(line: bytes) -> Raw | str:
    """Return the row of a JSON text, or the reason why it is none. Integers come as text, NaN is accepted. Pure."""
    try:
        value = _parse(line)
    except (ValueError, RecursionError) as e:
        return "nested too deeply" if isinstance(e, RecursionError) else str(e)
    if not isinstance(value, dict):
        shown = line.strip()[:40].decode(errors="replace")
        return _A_LIST if isinstance(value, list) else f"the value {shown}, expected a JSON object"
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
    number = 0
    with io.TextIOWrapper(_open(path), "utf-8-sig", "surrogateescape", newline="") as text:
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


def _columnar(paths: Sequence[Path]) -> Rows:
    """Return the rows of parquet files, or of files in one of Arrow's formats.

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
        start = file.read(len(_ARROW_FILE))
        if start.startswith(_PARQUET):
            parquet = ParquetFile(path)
            kept = [name for name in parquet.schema_arrow.names if name in COLUMNS]
            yield from parquet.iter_batches(batch_size=_BATCH, columns=kept)
            return
        file.seek(0)
        in_file = ipc.open_file(file) if start == _ARROW_FILE else None
        for batch in map(in_file.get_batch, range(in_file.num_record_batches)) if in_file else ipc.open_stream(file):
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
