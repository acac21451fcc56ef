"""Rows out of files: the same whatever they come in, and one that cannot be read costs only itself."""

from __future__ import annotations

import gzip
import json
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
from valve_plugin.tasks.import_rows import MAX_ROW, open_rows, parse_row

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
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
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


@pytest.mark.parametrize("kind", ["parquet", "saved", "dict", "folder"])
def test_columnar_files_without_other_columns(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{**row, "more": {"a": 1.5}} for row in ROWS])
    path = tmp_path / "rows.json"
    if kind in ("parquet", "folder"):
        path = path / "train-00000-of-00001.x" if kind == "folder" else path
        path.parent.mkdir(exist_ok=True)
        made.to_parquet(str(path.with_suffix(".parquet") if kind == "folder" else path))
        path = tmp_path / "rows.json"
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
        (b"[1, 2]", "expected a JSON object"),
        (b"7", "the value 7,"),
        (b"null", "the value None,"),
        (b'{"a": 1}\0\0\0', "not JSON"),
        (b'{"a": "caf\xe9"}', "not UTF-8: .* 0xe9"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": "' + b"x" * MAX_ROW + b'"}', "more than 16,000,000 bytes"),
    ],
    ids=lambda value: value[:20].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_bad_row_costs_only_itself(tmp_path: Path, bad: bytes, why: str) -> None:
    path = tmp_path / "x"
    for content in (A + b"\n" + bad + b"\n\n" + B + b"\n", b"\n" + A + b"\n" + bad + b"\n" + B):
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


@pytest.mark.parametrize("bad", [b'{"instance_id": "x"', b"[1, 2]"])
def test_the_first_line_may_be_the_bad_one(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "x").write_bytes(bad + b"\n" + A + b"\n")
    first, second = open_rows(str(tmp_path / "x"), "train").read()
    assert isinstance(first[1], str)
    assert second == (2, {"instance_id": "a"})


def test_a_list_is_read_up_to_what_is_not_json(tmp_path: Path) -> None:
    many = [{"a": "x" * 30_000}] * 9
    (tmp_path / "x").write_bytes(json.dumps([*many, [1], many[0]]).encode()[:-1] + b', {"b": nope}, {}]')
    *rows, bad = open_rows(str(tmp_path / "x"), "train").read()
    assert rows == [*enumerate(many, 1), (10, "the value ['1'], expected a JSON object"), (11, many[0])]
    assert bad[0] == 12
    assert str(bad[1]).endswith("what follows is lost")


def test_a_truncated_file_gives_what_stands_before(tmp_path: Path) -> None:
    many = [{"instance_id": os.urandom(30).hex()} for _ in range(1000)]
    for kind in ("lines", "csv"):
        packed = gzip.compress(TEXTS[kind](many))
        (tmp_path / "x").write_bytes(packed[: len(packed) // 2])
        *rows, last = open_rows(str(tmp_path / "x"), "train").read()
        assert len(rows) > 250
        assert [row for _, row in rows] == many[: len(rows)]
        assert last[0] == len(rows) + 1
        assert "damaged or cut off here" in str(last[1])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.py", b"import x\n", "not a file of rows; expected JSON lines"),
        ("x", b"\0" * 100, "not a file of rows"),
        ("x.zip", b"PK\x03\x04abc", "not a file of rows"),
        ("x.json", "{}".encode("utf-16"), "not a file of rows.* in UTF-8"),
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


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "rows"
    path.write_bytes(data)
    try:
        found = list(open_rows(str(path), "train").read())
    except TaskError:
        return
    assert all(row for _, row in found if isinstance(row, str))
