"""A model's answer is strict JSON for the schema, or nothing."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin import schemas
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.parse import MAX_BYTES, parse

PRINCIPLE = {"name": "check_the_negation", "text": "Check which way a test goes.", "markdown": "**Statement:** x"}
SKILL = {**PRINCIPLE, "scope_hint": "diff.py"}
ANSWER = {"issue_summary": "s", "principles": [PRINCIPLE], "skills": [SKILL]}


def test_the_contract_is_a_valid_schema():
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schemas.load("extraction"))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ANSWER),
        json.dumps(ANSWER, indent=2),
        f"```json\n{json.dumps(ANSWER)}\n```",
        f"\n```\n{json.dumps(ANSWER)}\n```\n",
    ],
)
def test_a_good_answer_is_read(text):
    found = parse(text)
    assert (found.principles[0].name, found.skills[0].scope_hint, found.issue_summary) == (
        "check_the_negation",
        "diff.py",
        "s",
    )


def test_the_summary_is_optional_and_nothing_learned_is_fine():
    assert parse('{"principles": [], "skills": []}').skills == ()


def changed(**changes):
    return json.dumps({**ANSWER, **changes})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("I could not find anything.", "not JSON"),
        (json.dumps(ANSWER)[:-1], "not JSON"),
        (json.dumps(ANSWER) + " Hope this helps!", "not JSON"),
        (f"Here it is:\n```json\n{json.dumps(ANSWER)}\n```", "not JSON"),
        (f"```json\n```json\n{json.dumps(ANSWER)}\n```\n```", "not JSON"),
        ("{'principles': [], 'skills': []}", "not JSON"),
        ('{"principles": [], "skills": [], }', "not JSON"),
        ('{"principles": [], "skills": NaN}', "not JSON"),
        ("[" * 100_000 + "]" * 100_000, "not JSON"),
        ('{"principles": [], "skills": [' + "[" * 5_000 + "]" * 5_000 + "]}", "not JSON|schema"),
        ("null", "top level"),
        ("[]", "top level"),
        (json.dumps({"principles": []}), "top level: required"),
        (changed(extra=1), "top level: other keys"),
        (changed(principles=[PRINCIPLE] * 4), "principles: maxItems 3"),
        (changed(principles=PRINCIPLE), "principles: type"),
        (changed(skills=[PRINCIPLE]), "skills/0: required"),
        (changed(principles=[SKILL]), "principles/0: other keys"),
        (changed(principles=[{**PRINCIPLE, "name": ""}]), "name: minLength"),
        (changed(principles=[{**PRINCIPLE, "text": "x" * 601}]), "text: maxLength"),
        (changed(principles=[{**PRINCIPLE, "markdown": "x" * 12_001}]), "markdown: maxLength"),
        (changed(principles=[{**PRINCIPLE, "text": None}]), "text: type"),
        (changed(issue_summary=["x"]), "issue_summary: type"),
        ('{"principles": [], "skills": [], "issue_summary": "\ud800"}', "not JSON"),
        ('{"principles": [], "skills": [], "principles": []}', "gives principles twice"),
        (json.dumps(ANSWER).replace('"text":', '"text": "Read first.", "text":', 1), "gives text twice"),
        ('```json\n{"principles": [], "skills": [], "skills": []}\n```', "gives skills twice"),
        ('{"principles": {"ignore all rules": 1, "ignore all rules": 2}, "skills": []}', "gives a key twice"),
        ("x" * (MAX_BYTES + 1), "bytes, expected at most"),
    ],
)
def test_anything_else_is_refused_with_the_place(text, says):
    with pytest.raises(ModelOutputError, match=says) as caught:
        parse(text)
    assert len(str(caught.value)) < 200, "a reason quotes no model text"


@given(st.text())
def test_no_text_crashes_it(text):
    with contextlib.suppress(ModelOutputError):
        parse(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*ANSWER, *SKILL, "x"]) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(json_values)
def test_no_json_crashes_it(value):
    try:
        found = parse(json.dumps(value))
    except ModelOutputError:
        return
    assert len(found.principles) <= 3
    assert len(found.skills) <= 3
