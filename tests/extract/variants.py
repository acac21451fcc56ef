"""Right answers as models write them, and what a person reads in each: names of the items, or None for nothing.

Each row: the answer, the (kind, name) pairs to be read, in order. `PLAIN` is the answer they all vary.
"""

from __future__ import annotations

import json

PRINCIPLE = {"name": "check_the_sign", "text": "Check which way a test goes.", "markdown": "**Statement:** Check it."}
SKILL = {
    "name": "grep_first",
    "text": "Search for the name before editing.",
    "scope_hint": "diff.py",
    "markdown": "**Scope:** a\n**Trigger:** b\n**Procedure:**\n1. Run `grep -rn name .`\n2. Edit.",
}
SECOND = {**SKILL, "name": "read_the_caller", "text": "Read who calls it."}
ANSWER = {"issue_summary": "The sign was wrong.", "principles": [PRINCIPLE], "skills": [SKILL]}
PLAIN = json.dumps(ANSWER)
PRETTY = json.dumps(ANSWER, indent=2)
BOTH = [("principle", "check_the_sign"), ("skill", "grep_first")]
JUST_SKILL, JUST_PRINCIPLE = BOTH[1:], BOTH[:1]
NOTHING: list[tuple[str, str]] = []


def changed(**changes: object) -> str:
    return json.dumps({**ANSWER, **changes})


def skill(**changes: object) -> str:
    return changed(skills=[{**SKILL, **changes}])


def without(key: str) -> str:
    return changed(skills=[{k: v for k, v in SKILL.items() if k != key}])


EXAMPLE = '{"issue_summary": "...", "principles": [{"name": "...", "text": "...", "markdown": "..."}], "skills": []}'

VARIANTS: dict[str, tuple[str, list[tuple[str, str]] | None]] = {
    "plain": (PLAIN, BOTH),
    "pretty": (PRETTY, BOTH),
    "a sentence before": (f"Here is what I learned:\n\n{PRETTY}", BOTH),
    "a sentence after": (f"{PRETTY}\n\nLet me know if you need more!", BOTH),
    "sentences around it": (f"Sure.\n{PLAIN}\nHope this helps.", BOTH),
    "a fence": (f"```json\n{PRETTY}\n```", BOTH),
    "a fence without a language": (f"```\n{PRETTY}\n```", BOTH),
    "a fence of tildes": (f"~~~json\n{PRETTY}\n~~~", BOTH),
    "a fence in prose": (f"The answer:\n```json\n{PRETTY}\n```\nDone.", BOTH),
    "a fence that never closes": (f"```json\n{PRETTY}", BOTH),
    "a fence in a fence": (f"```\n```json\n{PRETTY}\n```\n```", BOTH),
    "one line, fence on it": (f"```json {PLAIN} ```", BOTH),
    "doubled braces": (f"{{{PLAIN}}}", BOTH),
    "a heading": (f"# Lessons\n\n{PRETTY}", BOTH),
    "thinking": (f"<think>\nThe passing attempt read the caller.\n</think>\n{PLAIN}", BOTH),
    "thinking with a draft": (f"<thinking>Maybe {changed(skills=[])}?</thinking>\n\n{PLAIN}", BOTH),
    "thinking with braces": (f"<think>it used {{x and d = {{'a': 1}}</think>{PLAIN}", BOTH),
    "thinking in brackets": (f"[THINK]Maybe {changed(skills=[])}?[/THINK]{PLAIN}", BOTH),
    "thinking without its beginning": (f"The caller was never read.\n</think>\n\n{PLAIN}", BOTH),
    "thinking that never ends": (f"<think>So the answer is {PLAIN}", None),
    "braces in prose before": (f"The attempts differ in {{x: 1}} and f-strings like {{name}}.\n{PLAIN}", BOTH),
    "an open brace in prose": (f"It printed '{{' at step 3.\n{PLAIN}", BOTH),
    "a quotation with a brace": (f'One printed "{{" and stopped.\n{PLAIN}', BOTH),
    "code in prose": (f"It ran `d = {{'k': [1, 2]}}` first.\n{PLAIN}", BOTH),
    "the form repeated first": (f"As asked, {EXAMPLE}:\n{PLAIN}", BOTH),
    "the same answer twice": (f"{PLAIN}\n\nFormatted:\n\n```json\n{PRETTY}\n```", BOTH),
    "byte-order mark": (f"\ufeff{PLAIN}", BOTH),
    "white space around it": (f"\n\n   {PLAIN}  \n\t", BOTH),
    "carriage returns": (PRETTY.replace("\n", "\r\n"), BOTH),
    "trailing NULs": (f"{PLAIN}\0\0", BOTH),
    "trailing comma in a list": (PRETTY.replace("    }\n  ]", "    },\n  ]"), BOTH),
    "trailing comma in an object": (PLAIN[:-1] + ",}", BOTH),
    "trailing comma and a comment": (PLAIN[:-1] + ", // end\n}", BOTH),
    "comments": (PRETTY.replace('  "skills"', '  // narrow procedures\n  "skills"'), BOTH),
    "raw newlines in texts": (PLAIN.replace("\\n", "\n"), BOTH),
    "raw tabs in texts": (skill(markdown="**Procedure:**\n1.\tRun it.").replace("\\t", "\t"), BOTH),
    "no-break spaces": (PRETTY.replace("  ", "\u00a0 "), BOTH),
    "backslashes that are no escapes": (skill(markdown="Look for D.").replace("D.", r"\d+\.\w\' \u12"), BOTH),
    "keys without quotes": (PLAIN.replace('"principles":', "principles:").replace('"skills":', "skills:"), BOTH),
    "keys in capitals": (PLAIN.replace('"principles"', '"Principles"').replace('"skills"', '"SKILLS"'), BOTH),
    "camel case": (PLAIN.replace("scope_hint", "scopeHint").replace("issue_summary", "issueSummary"), BOTH),
    "a Python dictionary": (repr(ANSWER), BOTH),
    "a Python dictionary in a fence": (f"```python\n{ANSWER!r}\n```", BOTH),
    "a Python dictionary that quotes JSON": (repr({**ANSWER, "issue_summary": 'It was {"a": 1}.'}), BOTH),
    "a Python dictionary that quotes an answer": (repr({**ANSWER, "issue_summary": changed(skills=[SECOND])}), None),
    "a string of JSON": (json.dumps(PLAIN), BOTH),
    "in a list": (f"[{PLAIN}]", BOTH),
    "in a wrapper": (json.dumps({"answer": ANSWER}), BOTH),
    "in a tool call": (json.dumps({"name": "reflect", "arguments": ANSWER}), BOTH),
    "in two wrappers": (json.dumps({"result": {"output": ANSWER}}), BOTH),
    "an extra key": (changed(confidence=0.9), BOTH),
    "extra keys in items": (skill(confidence="high", tags=["a"]), BOTH),
    "no summary": (json.dumps({k: v for k, v in ANSWER.items() if k != "issue_summary"}), BOTH),
    "a summary that is null": (changed(issue_summary=None), BOTH),
    "a summary in a list": (changed(issue_summary=["One.", "Two."]), BOTH),
    "skills left out": (json.dumps({"principles": [PRINCIPLE]}), JUST_PRINCIPLE),
    "principles left out": (json.dumps({"skills": [SKILL]}), JUST_SKILL),
    "principles null": (changed(principles=None), JUST_SKILL),
    "principles in words": (changed(principles="none this time"), JUST_SKILL),
    "a summary alone": (json.dumps({"issue_summary": "Nothing new."}), NOTHING),
    "both empty": (changed(principles=[], skills=[]), NOTHING),
    "one skill, no list": (changed(skills=SKILL), BOTH),
    "skills by name": (changed(skills={"grep_first": {k: v for k, v in SKILL.items() if k != "name"}}), BOTH),
    "no scope hint": (without("scope_hint"), BOTH),
    "scope hint null": (skill(scope_hint=None), BOTH),
    "scope hint in a list": (skill(scope_hint=["diff.py", "delta.py"]), BOTH),
    "body in a list of lines": (skill(markdown=SKILL["markdown"].splitlines()), BOTH),
    "a scope hint for a principle": (changed(principles=[{**PRINCIPLE, "scope_hint": "diff.py"}]), BOTH),
    "a fourth skill": (
        changed(skills=[SKILL, *({**SECOND, "name": f"s{n}"} for n in range(3))]),
        [*BOTH, ("skill", "s0"), ("skill", "s1")],
    ),
    "a body that is too long": (changed(skills=[{**SECOND, "markdown": "word " * 151}, SKILL]), BOTH),
    "a sentence that is too long": (changed(skills=[{**SECOND, "text": "x" * 301}, SKILL]), BOTH),
    "an item without a body": (changed(skills=[SKILL, {"name": "n", "text": "t"}]), BOTH),
    "an item without a name": (changed(skills=[{**SECOND, "name": ""}, SKILL]), BOTH),
    "an item that is a sentence": (changed(skills=["Always look twice.", SKILL]), BOTH),
    "an item that is null": (changed(skills=[None, SKILL]), BOTH),
    "numbers for texts": (changed(skills=[{**SECOND, "text": 3}, SKILL]), BOTH),
    "a key given twice in an item": (
        changed(skills=[SECOND, SKILL]).replace('"text": "Read who', '"text": "No.", "text": "Read who'),
        BOTH,
    ),
    "a key given twice alike": (
        PLAIN.replace('"text": "Search', '"text": "Search for the name before editing.", "text": "Search'),
        BOTH,
    ),
    "a list given twice": (PLAIN[:-1] + ', "skills": []}', None),
    "two answers": (f"{PLAIN}\nOr rather:\n{changed(skills=[SECOND])}", None),
    "a draft and the answer": (f"Draft: {changed(skills=[])}\nFinal: {PLAIN}", None),
    "cut off": (PLAIN[:-20], None),
    "cut off in a fence": (f"```json\n{PRETTY[:-40]}\n```", None),
    "cut off after an item": (PLAIN[: PLAIN.index('"skills"')], None),
    "its last bracket missing": (PLAIN[:-1], None),
    "other keys": (json.dumps({"lessons": [SKILL]}), None),
    "prose": ("Both attempts were fine. There is nothing to learn.", None),
    "a list of items": (json.dumps([PRINCIPLE, SKILL]), None),
    "quotes inside a text": (PLAIN.replace("Check it.", 'Say "check" first.'), None),
    "not a number": ('{"principles": [], "skills": NaN}', None),
    "xml": ("<principles><principle>Look</principle></principles>", None),
    "nothing": ("", None),
    "an apology": ("I'm sorry, but I can't help with that.", None),
}
