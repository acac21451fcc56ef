"""Rows out of files: the same whatever they come in, and one that cannot be read costs only itself."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.tasks.row_files import MAX_ROW, open_rows, parse_row

ROWS: list[dict[str, Any]] = [
    calc.row(instance_id=f"r{n}", repo="swesmith/acme__calc.0123abcd", FAIL_TO_PASS=json.dumps(calc.F2P))
    for n in range(3)
]
ROWS = [{**row, "PASS_TO_PASS": json.dumps(row["PASS_TO_PASS"])} for row in ROWS]
A, B = b'{"instance_id": "a"}', b'{"instance_id": "b"}'


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def table(rows: list[dict[str, Any]], mark: str = ",") -> bytes:
    def cell(text: object) -> str:
        return '"' + str(text).replace('"', '""') + '"'

    return "\n".join(mark.join(map(cell, row)) for row in [list(rows[0]), *(r.values() for r in rows)]).encode()


def viewer(rows: list[dict[str, Any]]) -> bytes:
    """As the data-set viewer of the hub answers."""
    found = [{"row_idx": n, "row": row, "truncated_cells": []} for n, row in enumerate(rows)]
    features = [{"feature_idx": n, "name": name} for n, name in enumerate(("rows", "instance_id"))]
    return json.dumps({"features": features, "rows": found, "num_rows_total": 3}).encode()


TEXTS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "lines": lines,
    "list": lambda rows: json.dumps(rows).encode(),
    "pretty list": lambda rows: json.dumps(rows, indent=1).encode(),
    "object with rows": lambda rows: json.dumps({"schema": {"fields": ["x"]}, "data": rows}, indent=1).encode(),
    "viewer": viewer,
    "csv": table,
    "tsv": lambda rows: table(rows, "\t"),
    "a spreadsheet's csv": lambda rows: table(rows, ";"),
}


def older_xz(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_ALONE)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, older_xz])
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_the_content_decides_not_the_name(
    tmp_path: Path, kind: str, pack: Callable[[bytes], bytes], bom: bytes
) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(pack(bom + TEXTS[kind](ROWS)))
    rows = open_rows(str(path), "train")
    assert list(rows.read()) == list(enumerate(ROWS, 1)) == list(rows.read())
    assert rows.unit == ("line" if kind == "lines" else "row")


@pytest.mark.parametrize("kind", ["parquet", "feather", "saved", "dict", "folder"])
def test_columnar_files_without_other_columns(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{**row, "more": {"a": 1.5}} for row in ROWS])
    path = tmp_path / "rows.json"
    if kind in ("parquet", "folder"):
        path = path / "train-00000-of-00001.x" if kind == "folder" else path
        path.parent.mkdir(exist_ok=True)
        made.to_parquet(str(path.with_suffix(".parquet") if kind == "folder" else path))
        path = tmp_path / "rows.json"
    elif kind == "feather":
        pytest.importorskip("pyarrow.feather").write_feather(made.data.table, str(path))
    else:
        (made if kind == "saved" else datasets.DatasetDict({"train": made})).save_to_disk(str(path))
    rows = open_rows(str(path), "train")
    assert (list(rows.read()), rows.unit) == (list(enumerate(ROWS, 1)), "row")
    if kind == "dict":
        with pytest.raises(TaskError, match="no split 'test'; choose one with --split: train"):
            open_rows(str(path), "test")


def test_a_data_set_of_the_hub_is_loaded_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[str] = []

    def load(name: str) -> object:
        asked.append(name)
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(open_rows("SWE-bench/SWE-smith", "train").read()) == list(enumerate(ROWS, 1))
    assert asked == ["SWE-bench/SWE-smith"]
    with pytest.raises(TaskError, match="no split 'test'; choose one with --split: train"):
        open_rows("SWE-bench/SWE-smith", "test")


def test_the_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "x").write_bytes(b"PAR1")
    for given_, package in ((str(tmp_path / "x"), "pyarrow"), ("o/n", "`datasets`")):
        with pytest.raises(ConfigError, match=f"{package} is needed.*install datasets.*extra `smith`"):
            open_rows(given_, "train")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b'{"instance_id": "x"', "not JSON"),
        (b"[1, 2]", "a list, expected a JSON object"),
        (b"7", "the value 7,"),
        (b"null", "the value null,"),
        (b'{"a": 1}\0\0\0', "NUL bytes"),
        (b"\0" * 600, "NUL bytes"),
        (b'{"a": "caf\xe9"}', r"not UTF-8 \(byte 11 is 0xe9\)"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": "' + b"x" * MAX_ROW + b'"}', "more than 16,000,000 bytes"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_bad_row_costs_only_itself(tmp_path: Path, bad: bytes, why: str) -> None:
    path = tmp_path / "x"
    for content in (A + b"\n" + bad + b"\n\n" + B + b"\n", b"\n" + bad + b"\n" + A + b"\n" + B):
        path.write_bytes(content)
        found = dict(open_rows(str(path), "train").read())
        (number,) = [n for n, row in found.items() if isinstance(row, str)]
        assert content.split(b"\n")[number - 1] == bad
        assert re.search(why, str(found[number]))
        assert [row for row in found.values() if isinstance(row, dict)] == [{"instance_id": "a"}, {"instance_id": "b"}]


def test_what_nobody_reads_does_not_matter() -> None:
    odd = b'{"instance_id": 5, "a": NaN, "b": -Infinity, "c": "\\ud800", "d": ' + b"9" * 10_000 + b"}"
    row = parse_row(odd)
    assert isinstance(row, dict)
    assert row["instance_id"] == "5"


def test_a_bad_row_of_a_list_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'[{"a": "]\\"}["}, {"b": nope}, [1], {"c": "x"} , ]')
    assert list(open_rows(str(tmp_path / "x"), "train").read()) == [
        (1, {"a": ']"}['}),
        (2, "not JSON: Expecting value at character 8"),
        (3, "a list, expected a JSON object"),
        (4, {"c": "x"}),
    ]


def test_a_truncated_file_gives_what_stands_before(tmp_path: Path) -> None:
    many = [{"instance_id": os.urandom(30).hex()} for _ in range(1000)]
    for kind in ("lines", "list", "csv"):
        packed = gzip.compress(TEXTS[kind](many))
        (tmp_path / "x").write_bytes(packed[: len(packed) // 2])
        *rows, last = open_rows(str(tmp_path / "x"), "train").read()
        assert len(rows) > 300
        assert [row for _, row in rows] == many[: len(rows)]
        assert last[0] == len(rows) + 1
        assert "damaged or cut off here" in str(last[1])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.py", b"import x\n", "not a file of rows; expected JSON lines"),
        ("x.jsonl", b"\n", "the file has no rows; expected JSON lines"),
        ("x", b"\0" * 100, "not a file of rows"),
        ("x.yaml", b"- instance_id: a\n", "not a file of rows"),
        ("x.zip", b"PK\x03\x04abc", "a zip archive; unpack it"),
        ("x.gz", gzip.compress(b"a".ljust(257, b"\0") + b"ustar\0" + A, mtime=0), "a tar archive; unpack it"),
        ("x.gz", gzip.compress(gzip.compress(A, mtime=0), mtime=0), "unpack it once"),
        ("x.gz", gzip.compress(b"PAR1", mtime=0), "unpack it once"),
        ("x.json", json.dumps(ROWS[0], indent=1).encode(), "a JSON object over several lines; .* `jq -c"),
        ("x.json", "{}".encode("utf-16"), "UTF-16 text; convert it with `iconv"),
        ("x", b"PAR1 no", "not a readable parquet"),
    ],
)
def test_what_holds_no_rows_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    if content.startswith(b"PAR1"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=said):
        open_rows(str(tmp_path / name), "train")
    with pytest.raises(TaskError, match="no such file; expected"):
        open_rows(str(tmp_path / "rows.jsonl"), "train")
    with pytest.raises(TaskError, match="not a data set that `datasets` saved"):
        open_rows(str(tmp_path), "train")


values = st.recursive(
    st.none() | st.booleans() | st.text(max_size=9) | st.floats(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(st.dictionaries(st.text(), values, max_size=3), min_size=1, max_size=4),
    st.sampled_from([None, 2]),
    st.sampled_from([7, 9999]),
)
def test_a_list_is_split_as_json_does(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], indent: int | None, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows"
    path.write_text(json.dumps(rows, indent=indent))
    with pytest.MonkeyPatch.context() as patched:
        start = open_rows(str(path), "train")
        patched.setattr("valve_plugin.tasks.row_files._CHUNK", chunk)
        found = [row for _, row in start.read()]
    assert json.dumps(found) == json.dumps(rows)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "rows"
    path.write_bytes(data)
    try:
        found = list(open_rows(str(path), "train").read())
    except TaskError:
        return
    assert all(row for _, row in found if isinstance(row, str))
