"""Rows from files and data sets: the same whatever they come in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.tasks import rows as reading
from valve_plugin.tasks.rows import choose, listed, normalize, plain_name, read_rows, unit

ROWS: list[dict[str, Any]] = [
    calc.row(instance_id=f"r{n}", repo="swesmith/acme__calc.0123abcd", FAIL_TO_PASS=json.dumps(calc.F2P), more=n)
    for n in range(3)
]
ROWS = [{**row, "PASS_TO_PASS": json.dumps(row["PASS_TO_PASS"])} for row in ROWS]


def write(folder: Path, kind: str) -> str:
    """Write the rows; return what to read."""
    path = folder / f"rows.{kind}"
    if kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "jsonl":
        path.write_text("\n{}\n{}\n\n{}\n\n".format(*map(json.dumps, ROWS)))
    else:
        datasets = pytest.importorskip("datasets")
        made = datasets.Dataset.from_list(ROWS)
        if kind == "parquet":
            made.to_parquet(str(path))
        else:
            (made if kind == "saved" else datasets.DatasetDict({"train": made})).save_to_disk(str(path))
    return str(path)


@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet", "saved", "dict"])
def test_every_container(tmp_path: Path, kind: str) -> None:
    given = write(tmp_path, kind)
    lines = kind == "jsonl"
    assert list(read_rows(given, "train").items()) == list(zip((2, 3, 5) if lines else (1, 2, 3), ROWS, strict=True))
    assert unit(given) == ("line" if lines else "row")


def test_a_data_set_of_the_hub_is_loaded_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[str] = []

    def load(name: str) -> object:
        asked.append(name)
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(read_rows("SWE-bench/SWE-smith", "train").values()) == ROWS
    assert unit("SWE-bench/SWE-smith") == "row"
    assert asked == ["SWE-bench/SWE-smith"]
    with pytest.raises(TaskError, match="no split 'test'; there are: train"):
        read_rows("SWE-bench/SWE-smith", "test")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a"', "a.jsonl, line 2"),
        ("a.json", b"{}", "a.json"),
        ("a.jsonl", b'{"a": 1}\n{"a": 1, "a": 1}', "a.jsonl, line 2: the key 'a' is given twice"),
        ("a.json", b'[{"b": {"c": 1, "c": 2}}]', "the key 'c' is given twice"),
        ("a.parquet", b"PAR1 no", "not a readable parquet file"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((TaskError, RecordError), match=said):
        read_rows(str(tmp_path / name), "train")


def test_what_is_nothing_is_refused(tmp_path: Path) -> None:
    for name, text, told in (
        ("x.py", "import x\n", "not a file of rows; expected .jsonl, .json or .parquet, one JSON object a line"),
        ("empty.jsonl", "\n", "holds no row; expected one JSON object a line"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TaskError, match=f"^{re.escape(f'{tmp_path / name}: {told}')}$"):
            read_rows(str(tmp_path / name), "train")
    with pytest.raises(TaskError, match="no such file; expected"):
        read_rows(str(tmp_path / "rows.jsonl"), "train")
    pytest.importorskip("datasets")
    with pytest.raises(TaskError, match="not a data set saved by datasets"):
        read_rows(str(tmp_path), "train")


def test_a_repository_is_chosen_by_either_name() -> None:
    other = {**ROWS[0], "repo": "swesmith/seperman__deepdiff.ed252022"}
    rows, every = dict(enumerate(ROWS, 2)), {1: other, **dict(enumerate(ROWS, 2))}
    for wanted in ("acme/calc", "swesmith/acme__calc.0123abcd"):
        assert choose(every, wanted) == (wanted, rows, {other["repo"]: 1})
    assert choose(rows, "") == ("acme/calc", rows, {})
    many = {**rows, **{n: {**other, "repo": f"o/{n}"} for n in range(10, 30)}}
    assert listed(choose(many, "acme/calc")[2]) == ", ".join(f"o/{n} (1)" for n in range(10, 18)) + " …"
    with pytest.raises(TaskError, match=r"2 repositories, name one .*: acme/calc \(3\), seperman/deepdiff \(1\)"):
        choose(every, "")
    with pytest.raises(TaskError, match="no row is about x/y; there are: acme/calc"):
        choose(every, "x/y")
    assert plain_name("plain/name") == "plain/name"


def test_lists_in_strings_are_decoded() -> None:
    row = normalize(ROWS[0], "acme/calc")
    assert row == {**calc.row(instance_id="r0"), "repo": "acme/calc"}
    with pytest.raises(RecordError, match="FAIL_TO_PASS is neither a list nor"):
        normalize({**ROWS[0], "FAIL_TO_PASS": "[x"}, "acme/calc")
    with pytest.raises(RecordError, match="PASS_TO_PASS is no list of test ids"):
        normalize({**ROWS[0], "PASS_TO_PASS": {"a": 1}}, "acme/calc")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@given(st.dictionaries(st.sampled_from([*reading._COLUMNS, *reading._TESTS, "repo"]), json_values))
def test_a_row_of_anything_is_normalized_or_refused(raw: dict[str, Any]) -> None:
    try:
        row = normalize(raw, "acme/calc")
    except RecordError:
        return
    assert isinstance(row["FAIL_TO_PASS"], list)
