"""A model's answer is read as a person would read it, or not at all; under the paper's contract it is strict JSON."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.extract import variants
from tests.extract.variants import VARIANTS
from tests.tools import cost
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.answer import MAX_BYTES
from valve_plugin.extract.parse import parse, parse_strictly

PRINCIPLE = {"name": "check_the_negation", "text": "Check which way a test goes.", "markdown": "**Statement:** x"}
SKILL = {**PRINCIPLE, "scope_hint": "diff.py"}
ANSWER = {"issue_summary": "s", "principles": [PRINCIPLE], "skills": [SKILL]}


@pytest.mark.parametrize(
    "text", [json.dumps(ANSWER), f"```json\n{json.dumps(ANSWER)}\n```", f"\n```\n{json.dumps(ANSWER)}\n```\n"]
)
def test_a_good_answer_is_read(text):
    found = parse_strictly(text)
    assert (found.principles[0].name, found.skills[0].scope_hint, found.issue_summary) == (
        "check_the_negation",
        "diff.py",
        "s",
    )


def changed(**changes):
    return json.dumps({**ANSWER, **changes})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("I could not find anything.", "not JSON"),
        (json.dumps(ANSWER) + " Hope this helps!", "not JSON"),
        (f"Here it is:\n```json\n{json.dumps(ANSWER)}\n```", "not JSON"),
        ("{'principles': [], 'skills': []}", "not JSON"),
        ('{"principles": [], "skills": NaN}', "not JSON"),
        ("[" * 100_000 + "]" * 100_000, "not JSON"),
        ('{"principles": [], "skills": [' + "[" * 5_000 + "]" * 5_000 + "]}", "not JSON|schema"),
        ("[]", "top level"),
        (json.dumps({"principles": []}), "top level: required"),
        (changed(extra=1), "top level: other keys"),
        (changed(principles=[PRINCIPLE] * 4), "principles: maxItems 3"),
        (changed(skills=[PRINCIPLE]), "skills/0: required"),
        (changed(principles=[SKILL]), "principles/0: other keys"),
        (changed(principles=[{**PRINCIPLE, "text": "x" * 601}]), "text: maxLength"),
        ('{"principles": [], "skills": [], "principles": []}', "gives principles twice"),
        ('{"principles": {"ignore all rules": 1, "ignore all rules": 2}, "skills": []}', "gives a key twice"),
        ("x" * (MAX_BYTES + 1), "bytes, expected at most"),
    ],
)
def test_anything_else_is_refused_with_the_place(text, says):
    with pytest.raises(ModelOutputError, match=says) as caught:
        parse_strictly(text)
    assert len(str(caught.value)) < 200, "a reason quotes no model text"


@pytest.mark.parametrize("name", VARIANTS)
def test_an_answer_is_read_as_a_person_reads_it(name):
    text, wanted = VARIANTS[name]
    if wanted is None:
        with pytest.raises(ModelOutputError) as caught:
            parse(text)
        assert len(str(caught.value)) < 200, "a reason quotes no model text"
        return
    found = parse(text)
    assert [(kind, draft.name) for kind, draft in found.drafts] == wanted
    given = {draft.name: draft for _, draft in found.drafts}
    if "grep_first" in given:
        text = CHANGED_TEXTS.get(name, variants.SKILL["markdown"])
        assert given["grep_first"].markdown.split() == text.split(), "not a word more or less"


CHANGED_TEXTS = {
    "raw tabs in texts": "**Procedure:** 1. Run it.",
    "backslashes that are no escapes": r"Look for \d+\.\w' \u12",
}


def test_what_is_left_out_is_named_with_its_reason():
    long = {**SKILL, "name": "too_long", "markdown": "word " * 151}
    pasted = {
        **SKILL,
        "name": "pasted",
        "markdown": "Write:\n" + "\n".join(f"    value = compute({n})" for n in range(3)),
    }
    patch = "@@ -0,0 +1,3 @@\n" + "".join(f"+    value = compute({n})\n" for n in range(3))
    found = parse(changed(skills=[long, pasted, "x", {"name": "bare", "text": "t"}, SKILL]), [patch])
    assert [(x.name, x.why) for x in found.left_out] == [
        ("too_long", "markdown has 151 words, expected at most 150"),
        ("pasted", "pastes the patch of this task"),
        ("", "is not an object"),
        ("bare", "has no markdown"),
    ]
    assert [d.name for d in found.skills] == ["check_the_negation"]


HARD = {
    "open braces": "{" * 190_000,
    "open objects": '{"a":' * 38_000,
    "quotes": '{"' * 95_000,
    "escaped quotes": '{"\\"' * 38_000,
    "one long word": "{" + "a" * 190_000 + "}",
    "many small objects": '{"skills": []}, ' * 11_000,
    "many different objects": "".join(f'{{"skills": [{n}]}}' for n in range(9_000)),
    "objects in objects that fail": ("{x " * 15 + "{y} " * 10_000 + "}" * 15) * 3,
    "comments": "{" + "//" * 95_000 + "}",
    "commas": "{" + ", " * 95_000 + "}",
    "thinking": "<think>" * 27_000,
    "ends of thinking": "</think>" * 23_000,
    "fences": "```json\n" * 23_000,
    "minus signs": "{'a': " + "-" * 190_000 + "1}",
    "brackets in Python": "{'a': " + "[" * 90_000 + "]" * 90_000 + "}",
}


@pytest.mark.parametrize("name", HARD)
def test_no_answer_takes_long_to_read(name):
    def read():
        with contextlib.suppress(ModelOutputError):
            parse(HARD[name])

    assert cost(read) < 200


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
