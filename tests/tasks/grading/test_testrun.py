"""Reading signed records: what does not continue the chain does not count."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools import put
from valve_plugin.tasks.grading.differences import compared, differences
from valve_plugin.tasks.grading.testrun import Message, TestRun, _stamps, combine_phases, read_report

KEY = b"k" * 32


def signed(records: list[dict[str, Any]], key: bytes = KEY) -> list[bytes]:
    """Write records the way the judge does."""
    chain, lines = hashlib.blake2b(key=key), []
    for record in records:
        body = json.dumps(record, separators=(",", ":")).encode()
        chain.update(body + b"\n")
        lines.append(b"@valve " + chain.copy().hexdigest().encode() + b" " + body)
    return lines


def phases(test: str, call: str = "passed", raised: bool = False) -> list[dict[str, Any]]:
    """Return the three records of one test."""
    outcomes = {"setup": "passed", "call": call, "teardown": "passed"}
    return [{"test": test, "when": w, "outcome": o, "raised": raised and w == "call"} for w, o in outcomes.items()]


RUN = [{"event": "start"}, *phases("a"), *phases("b c", "failed", True), {"event": "end"}]


def test_a_run() -> None:
    report = read_report(b"noise\n" + b"\nmore noise\n".join(signed(RUN)) + b"\n", KEY)
    assert (report.started, report.ended, report.tampered) == (True, True, "")
    assert report.tests == {"a": "passed", "b c": "failed"}


@given(st.data())
def test_dropping_adding_or_moving_a_record_is_noticed(data: st.DataObject) -> None:
    lines = signed(RUN)
    place = data.draw(st.integers(0, len(lines) - 2))
    kind = data.draw(st.sampled_from(["drop", "swap", "repeat", "edit"]))
    if kind == "drop":
        del lines[place]
    elif kind == "swap":
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    elif kind == "repeat":
        lines.insert(place, lines[place])
    else:
        lines[place] = lines[place].replace(b'"', b'"x', 1)
    report = read_report(b"\n".join(lines), KEY)
    assert report.tampered or (not report.ended and kind == "drop")


def test_another_key_signs_nothing() -> None:
    report = read_report(b"\n".join(signed(RUN, b"x" * 32)), KEY)
    assert not report.started
    assert report.tampered


def test_a_cut_run_has_not_ended() -> None:
    report = read_report(b"\n".join(signed(RUN)[:-1]), KEY)
    assert report.started
    assert not report.ended


def test_the_same_test_twice_is_tampering_even_when_signed() -> None:
    report = read_report(b"\n".join(signed([{"event": "start"}, *phases("a"), *phases("a"), {"event": "end"}])), KEY)
    assert "a was reported twice" in report.tampered


def test_a_failed_part_fails_its_test_whatever_the_test_says() -> None:
    part = {"test": "a", "when": "part", "outcome": "failed", "raised": True}
    setup, call, teardown = phases("a")
    report = read_report(
        b"\n".join(signed([{"event": "start"}, setup, part, part, call, teardown, {"event": "end"}])), KEY
    )
    assert (report.tampered, report.tests) == ("", {"a": "failed"})


def test_a_module_that_hides_another_is_named() -> None:
    assert "colorsys" in read_report(b"\n".join(signed([{"event": "start", "shadows": ["colorsys"]}])), KEY).tampered


def test_the_last_try_counts_where_a_plugin_repeats_tests() -> None:
    tries = [*phases("a", "failed", True), *phases("a")]
    records = [{"event": "start", "reruns": True}, *tries, {"event": "end"}]
    assert read_report(b"\n".join(signed(records)), KEY).tests == {"a": "passed"}


def run(**changes: Any) -> TestRun:
    fields = {"tests": {"a": "passed"}, "codes": {"a": "1", "t.py": "2"}, "seen": {"x"}} | changes
    return TestRun(**{name: frozenset(v) if isinstance(v, set) else v for name, v in fields.items()})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"seen": set()}, ""),
        ({"codes": {"a": "1", "t.py": "2", "b": "new"}}, ""),
        ({"codes": {"a": "9", "t.py": "2"}}, "a is not the code that its file holds"),
        ({"codes": {"a": "1", "t.py": "9"}}, "t.py is not the code that its file holds"),
        ({"codes": {"a": "1"}}, "t.py is not the code that its file holds"),
        ({"tests": {"a": "xfailed"}}, "a was expected to fail, and not with the known fix"),
        ({"tests": {"a": "failed"}}, ""),
        (
            {"seen": {"x", "the trace function changed to f"}},
            "the trace function changed to f, and not with the known fix",
        ),
    ],
)
def test_what_differs_in_kind_from_the_fix(changes: dict[str, Any], why: str) -> None:
    assert differences(run(**changes), run(), ["a"]) == (why and f"suspicious patch: {why}")


BOX = "class Box,object* of type*"


@pytest.mark.parametrize(
    ("told", "known", "bad", "odd"),
    [
        (BOX, BOX, "", ""),
        ("class Box,_Base,object* of type*", BOX, "", ""),
        ("class Box,object* of ABCMeta*,type*", BOX, "", ""),
        ("class Box,dict*,object* of type*", BOX, "", "another class than with the known fix"),
        ("class Other,object* of type*", BOX, "", "another class than with the known fix"),
        ("class tuple*,object* of type*", BOX, "tuple, and for a class of the tested code with the known fix", ""),
        ("class Box,object* of Kind,type*", BOX, "a class that is asked what belongs to it, and not with the ", ""),
        ("class Box,object* of Kind,type*", "class Box,object* of Kind,type*", "", ""),
        ("abcd", BOX, "no class, and for one with the known fix", ""),
        ("abcd", "1234", "", "another value than with the known fix"),
    ],
)
def test_what_names_stand_for(told: str, known: str, bad: str, odd: str) -> None:
    gold = run(names={"t.py: x": known})
    found = compared(run(names={"t.py: x": told}), gold, [], gold)
    assert [
        [one.removeprefix("t.py: x stands for ").startswith(why) for one in some]
        for some, why in zip(found, (bad, odd), strict=True)
    ] == [[True] * bool(bad), [True] * bool(odd)]
    assert compared(run(names={}), gold, []) == ([], []), "nobody can use it"
    assert compared(run(names={"t.py: x": told}), gold, [], run(names={"t.py: x": "varies"})) == ([], [])


def test_a_test_file_that_is_changed_or_moved_and_put_back_is_seen(tmp_path: Path) -> None:
    put(tmp_path, {"a/tests/data.txt": "1", "a/b.py": "", "conftest.py": ""})
    files = ["a/tests/data.txt", "conftest.py", "gone.py"]
    before = _stamps(tmp_path, files)
    assert before.keys() == {"a/tests/data.txt", "a/tests", "a", "conftest.py"}

    def changed() -> set[str]:
        nonlocal before
        time.sleep(0.02)  # the system notes times in steps
        old, before = before, _stamps(tmp_path, files)
        return {path for path, stamp in old.items() if before.get(path) != stamp}

    (tmp_path / "a/b.py").write_text("x")
    assert changed() == set()
    file = tmp_path / "a/tests/data.txt"
    held = file.stat()
    file.write_text("2")
    file.write_text("1")
    os.utime(file, ns=(held.st_atime_ns, held.st_mtime_ns))
    assert changed() == {"a/tests/data.txt"}
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / "a")
    assert "a" in changed()


def test_a_signed_record_of_an_unknown_form_is_refused() -> None:
    assert "unknown field" in read_report(b"\n".join(signed([{"event": "start"}, {"strange": 1}])), KEY).tampered


def parts(*outcomes: str, raised: bool = False) -> list[Message]:
    whens = {1: ["setup"], 2: ["setup", "teardown"], 3: ["setup", "call", "teardown"]}[len(outcomes)]
    return [
        Message(test="t", when=w, outcome=o, raised=raised)  # type: ignore[arg-type]
        for w, o in zip(whens, outcomes, strict=True)
    ]


def test_what_three_phases_amount_to() -> None:
    assert combine_phases(parts("passed", "passed", "passed")) == "passed"
    assert combine_phases(parts("passed", "passed", "passed", raised=True)) == "failed"
    assert combine_phases(parts("passed", "passed")) == "failed"
    assert combine_phases(parts("passed")) == "failed"
    assert combine_phases(parts("passed", "passed", "failed")) == "failed"
    assert combine_phases(parts("skipped", "passed")) == "skipped"
    assert combine_phases(parts("passed", "xfailed", "passed", raised=True)) == "xfailed"
    assert combine_phases(parts("passed", "xfailed", "failed")) == "failed"
