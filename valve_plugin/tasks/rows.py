"""SWE-smith rows from wherever they are: the hub, a data set on disk, parquet, JSONL, JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from valve_plugin import codec
from valve_plugin.bank.files import read_limited
from valve_plugin.errors import BankError, ConfigError, InfrastructureError, RecordError, TaskError
from valve_plugin.extras import pip_install

Raw = dict[str, Any]
Rows = dict[int, Raw]
"""Rows by their number in what holds them, counted from 1: lines of JSON lines, else rows."""

_MAX_BYTES = 4_000_000_000
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_COLUMNS = ("instance_id", "patch", "problem_statement", "image_name", "base_commit", "created_at")
_WHOLE = (".json", ".parquet")
_EXPECTED = ".jsonl, .json or .parquet"
_MOST_LISTED = 8
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def unit(given: str) -> str:
    """Return what the rows of a file or data set are counted by."""
    return "line" if Path(given).is_file() and Path(given).suffix not in _WHOLE else "row"


def read_rows(given: str, split: str) -> Rows:
    """Return the rows of a file, of a data set saved on disk, or of one on the Hugging Face hub.

    Args:
        split: of a data set that has several.

    Raises:
        TaskError: no such file, not a list of rows, no such split.
        ConfigError: `datasets` is not installed.
        InfrastructureError: the hub cannot be reached.
    """
    path = Path(given)
    if path.is_file():
        return _file(path)
    if path.is_dir():
        return _counted(_data_set(given, split, on_disk=True))
    if _HUB_ID.fullmatch(given) and path.suffix not in (".jsonl", *_WHOLE):
        return _counted(_data_set(given, split, on_disk=False))
    raise TaskError(f"{given}: no such file; expected {_EXPECTED}, a saved data set, or a hub id owner/name")


def normalize(raw: Raw, repo: str) -> dict[str, Any]:
    """Return what a task file keeps of a row, its lists decoded where they are JSON in a string.

    Raises:
        RecordError: a list of tests is none, or something is missing.
    """
    if why := lacking(raw):
        raise RecordError(why)
    row: dict[str, Any] = {name: str(raw[name]) for name in _COLUMNS if raw.get(name) is not None}
    row["repo"] = repo
    row.setdefault("problem_statement", "")
    for name in _TESTS:
        row[name] = _tests(raw.get(name), name)
    return row


def lacking(row: Raw) -> str:
    """Return why a row cannot be a task of any repository: what it lacks, in words; empty: it can be.

    The bug itself may be in a branch that is named after the row, so a patch alone is not missed here.
    """
    given = {name for name, value in row.items() if value is not None and not (isinstance(value, str) and not value)}
    names = [name for name in ("repo", "instance_id", "patch", "FAIL_TO_PASS") if name not in given]
    return f"lacks {', '.join(names)}" if set(names) - {"patch"} else ""


def repositories(rows: Iterable[Raw]) -> Counter[str]:
    """Return how many rows each repository has, by the name the rows give it."""
    return Counter(str(row["repo"]) for row in rows if row.get("repo"))


def choose(rows: Rows, wanted: str) -> tuple[str, Rows, Counter[str]]:
    """Return (name, rows) of one repository, the wanted one or the only one, and how many rows others have, by name.

    Rows that name none come along, to be refused with the others that cannot be used.

    SWE-smith calls seperman/deepdiff at one commit `swesmith/seperman__deepdiff.ed252022`; both names find it.

    Raises:
        TaskError: there are several and none is named, or none of that name; lists what there is.
    """
    counts = repositories(rows.values())
    found = [name for name in counts if not wanted or wanted in (name, plain_name(name))]
    if len(found) != 1:
        what = (
            f"{len(found)} repositories, name one with --repo" if found else f"no row is about {wanted or 'anything'}"
        )
        raise TaskError(f"{what}; there are: {listed(counts) or 'no row at all'}")
    kept = {number: row for number, row in rows.items() if str(row.get("repo") or found[0]) == found[0]}
    del counts[found[0]]
    return wanted or plain_name(found[0]), kept, counts


def listed(counts: Counter[str]) -> str:
    """Return the repositories with most rows, and how many each has, as in a sentence. Pure."""
    there = ", ".join(f"{plain_name(name)} ({n})" for name, n in counts.most_common(_MOST_LISTED))
    return f"{there}{' …' if len(counts) > _MOST_LISTED else ''}"


def plain_name(name: str) -> str:
    """Return owner/name for SWE-smith's name of a repository at a commit; other names as they are."""
    match = re.fullmatch(r"(?:[\w.-]+/)?([A-Za-z0-9][\w.-]*?)__([\w.-]+?)\.[0-9a-f]{8}", name)
    return f"{match[1]}/{match[2]}" if match else name


def _tests(value: Any, name: str) -> list[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as e:
            raise RecordError(f"{name} is neither a list nor a list in JSON: {value[:60]!r}") from e
    if hasattr(value, "tolist"):  # an array of pyarrow's or numpy's
        value = value.tolist()
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or not all(isinstance(test, str) for test in value):
        raise RecordError(f"{name} is no list of test ids: {str(value)[:60]!r}")
    return list(dict.fromkeys(value))


def _counted(rows: Iterable[Raw]) -> Rows:
    return dict(enumerate(rows, 1))


def _file(path: Path) -> Rows:
    if path.suffix == ".parquet":
        try:
            from pyarrow import ArrowException
            from pyarrow.parquet import read_table
        except ImportError as e:
            raise ConfigError(f"{path}: reading parquet needs pyarrow ({e}); run: {pip_install('datasets')}") from e
        try:
            return _counted(read_table(path).to_pylist())
        except (ArrowException, OSError) as e:
            raise TaskError(f"{path}: not a readable parquet file: {e}") from e
    try:
        data = read_limited(path, _MAX_BYTES, "rows")
    except BankError as e:
        raise TaskError(str(e)) from e
    if path.suffix == ".json":
        return _counted(codec.decode_once(data, list[dict[str, Any]], where=str(path)))
    lines = [(n, line) for n, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    try:
        found = {n: codec.decode_once(line, dict[str, Any], where=f"{path}, line {n}") for n, line in lines}
    except RecordError as e:
        if path.suffix == ".jsonl":
            raise
        raise TaskError(f"{path}: not a file of rows; expected {_EXPECTED}, one JSON object a line") from e
    if not found:
        raise TaskError(f"{path}: holds no row; expected one JSON object a line")
    return found


def _data_set(given: str, split: str, *, on_disk: bool) -> list[Raw]:
    try:
        import datasets
    except ImportError as e:
        raise ConfigError(f"{given}: reading a data set needs datasets ({e}); run: {pip_install('datasets')}") from e
    try:
        found = datasets.load_from_disk(given) if on_disk else datasets.load_dataset(given)
    except Exception as e:
        if on_disk:
            raise TaskError(f"{given}: not a data set saved by datasets: {e}") from e
        raise InfrastructureError(
            f"the data set {given} cannot be had: {type(e).__name__}: {str(e)[:300]}; check its name and the network, "
            "or give a downloaded parquet or JSONL file"
        ) from e
    if isinstance(found, dict):
        if split not in found:
            raise TaskError(f"{given}: no split {split!r}; there are: {', '.join(found)}; choose with --split")
        found = found[split]
    return list(found)
