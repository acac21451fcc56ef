"""Which rows are about a repository, and what a row must have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.tasks.import_rows import COLUMNS, Raw, Rows, list_repositories, normalize_row, rows_about, survey_rows

SMITH = "swesmith/acme__calc.0123abcd"
ROW: Raw = calc.row(repo=SMITH, FAIL_TO_PASS=json.dumps(calc.F2P))
OTHER: Raw = {**ROW, "repo": "swesmith/seperman__deepdiff.ed252022"}


def rows(*given_: Raw | str) -> Rows:
    return Rows("row", lambda: iter(enumerate(given_, 1)))


@pytest.mark.parametrize("wanted", ["acme/calc", SMITH, "Acme/Calc", ""])
def test_a_repository_is_chosen_by_either_name(wanted: str) -> None:
    every = rows(*([OTHER] if wanted else []), {**ROW, "image_name": "i"}, {**ROW, "image_name": "i"})
    found = survey_rows(every, wanted)
    assert (found.name, found.rows, found.image) == (wanted if wanted == SMITH else "acme/calc", 2, "i")
    assert found.others == ({OTHER["repo"]: 1} if wanted else {})
    assert [row["repo"] for _, row in rows_about(every, found)] == [SMITH, SMITH]


def test_what_is_not_about_one_repository_is_told() -> None:
    with pytest.raises(TaskError, match=r"2 repositories; choose one .*: acme/calc \(2\), seperman/deepdiff \(1\)"):
        survey_rows(rows(ROW, OTHER, ROW), "")
    with pytest.raises(TaskError, match="no row is about x/y; found: acme/calc"):
        survey_rows(rows(ROW), "x/y")
    commits = [{**ROW, "repo": f"swesmith/acme__calc.{n}123abcd"} for n in (1, 2)]
    with pytest.raises(TaskError, match=r"swesmith/acme__calc.1123abcd \(1\), swesmith/acme__calc.2123abcd \(1\)"):
        survey_rows(rows(*commits), "acme/calc")
    assert list_repositories({f"o/{n}": 1 for n in range(10, 30)}).endswith("o/17 (1) …")


def test_rows_that_cannot_be_used_have_a_reason() -> None:
    found = survey_rows(rows("not JSON", {"a": 1}, ROW, {**ROW, "FAIL_TO_PASS": float("nan")}, {"repo": "x/y"}), SMITH)
    assert found.refusals == {1: "not JSON", 2: "lacks repo, instance_id, patch, FAIL_TO_PASS", 4: "lacks FAIL_TO_PASS"}
    assert not survey_rows(rows("not JSON", {"a": 1}), "").name


@pytest.mark.parametrize("form", [list, tuple, json.dumps, lambda tests: str(list(tests))])
def test_lists_of_tests_in_any_form(form: Any) -> None:
    row = normalize_row(
        {**ROW, "FAIL_TO_PASS": form(calc.F2P), "PASS_TO_PASS": None, "created_at": float("nan")}, "a/b"
    )
    assert (tuple(row["FAIL_TO_PASS"]), row["PASS_TO_PASS"]) == (calc.F2P, [])
    assert "created_at" not in row


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("FAIL_TO_PASS", "[x", "FAIL_TO_PASS is neither a list of test ids nor"),
        ("FAIL_TO_PASS", "['a::b' 'c::d']", "FAIL_TO_PASS is neither"),  # as numpy prints it
        ("PASS_TO_PASS", {"a": 1}, "PASS_TO_PASS is neither"),
        ("instance_id", 1.5, "instance_id is 1.5, expected text"),
        ("instance_id", ["x"], "expected text"),
        ("problem_statement", "\ud800", "problem_statement has half of a surrogate pair"),
        ("FAIL_TO_PASS", ["t.py::\udcff"], "FAIL_TO_PASS has half of a surrogate pair"),
    ],
)
def test_a_value_of_another_kind_is_refused(column: str, value: object, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        normalize_row({**ROW, column: value}, "acme/calc")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@given(st.dictionaries(st.sampled_from(COLUMNS), json_values))
def test_a_row_of_anything_is_normalized_or_refused(raw: dict[str, Any]) -> None:
    try:
        row = normalize_row(raw, "acme/calc")
    except RecordError:
        return
    assert isinstance(row["FAIL_TO_PASS"], list)
