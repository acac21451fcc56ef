"""Reading signed records: what does not continue the chain does not count."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.tasks.grading.testrun import Message, combine_phases, read_report

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
