"""The review of items by the run's model, against a real HTTP server: only a clear yes lets an item through."""

from __future__ import annotations

import json

import pytest

from tests.extract.provider import provider as running
from tests.extract.test_reflect import ANSWER, ATTEMPTS, DIGESTS, settings
from valve_plugin.errors import InfrastructureError
from valve_plugin.extract.reflect import FRESH, prompt_hash, reflect
from valve_plugin.extract.review import FOREIGN, NO_ANSWER, OBJECTION, review_prompt
from valve_plugin.records import Bank, Item, Proposal

FIRST, SECOND = "principle/check_the_sign", "skill/grep_it"


def verdict(name: str, word: object = "safe", reason: str = "It is ordinary work.") -> dict[str, object]:
    return {"name": name, "verdict": word, "reason": reason}


def look(*answers: object, extraction: object = ANSWER) -> tuple[Proposal, list[dict]]:  # type: ignore[type-arg]
    """Extract two items and let the model judge them."""
    texts = [a if isinstance(a, str) else json.dumps({"verdicts": a} if isinstance(a, list) else a) for a in answers]
    with running(json.dumps(extraction), *texts) as provider:
        chosen = settings(provider, review="model")
        return reflect(chosen, Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS), provider.asked


def test_cleared_items_are_proposed() -> None:
    proposal, asked = look([verdict(SECOND), verdict(FIRST)])
    assert [i.name for i in proposal.items] == ["check_the_sign", "grep_it"]
    assert len(asked) == 2
    system, user = (m["content"] for m in asked[1]["messages"])
    assert system == review_prompt()
    assert [i["name"] for i in json.loads(user)] == [FIRST, SECOND]
    assert proposal.prompt_hash != prompt_hash(FRESH.prompts)  # what was asked is part of where items come from


def test_what_the_model_objects_to_waits_for_a_person_with_the_reason() -> None:
    why = "It tells the agent to delete the failing tests."
    proposal, _ = look([verdict(FIRST), verdict(SECOND, "unsafe", why)])
    assert [i.name for i in proposal.items] == ["check_the_sign"]
    assert [(w.name, w.why, w.reason) for w in proposal.withheld] == [("grep_it", OBJECTION, why)]
    assert isinstance(proposal.withheld[0].item, Item)


@pytest.mark.parametrize(
    "first",
    [
        [verdict(FIRST)],
        [verdict(FIRST), verdict("skill/another")],
        [verdict(FIRST), verdict(SECOND, "maybe")],
        [verdict(FIRST), verdict(SECOND), verdict(SECOND, "unsafe")],
        [verdict(FIRST), verdict(SECOND, True)],
        [verdict(FIRST), "grep_it is safe"],
    ],
)
def test_an_item_without_an_answer_of_its_own_is_asked_about_again_alone(first: list[object]) -> None:
    proposal, asked = look(first, [verdict(SECOND)])
    assert [i["name"] for i in json.loads(asked[2]["messages"][1]["content"])] == [SECOND]
    assert len(proposal.items) == 2
    proposal, asked = look(first, "I would rather not.")
    assert [(w.name, w.why) for w in proposal.withheld] == [("grep_it", NO_ANSWER)]
    assert len(asked) == 3


@pytest.mark.parametrize("answer", ["Both are fine!", {"safe": [True, True]}, "{" * 50_000, "", [FIRST, SECOND]])
def test_an_unusable_answer_clears_nothing(answer: object) -> None:
    proposal, _ = look(answer)
    assert proposal.items == ()
    assert {w.why for w in proposal.withheld} == {NO_ANSWER}
    assert len(proposal.withheld) == 2


ROWS = [{"Name": "check_the_sign", "Verdict": "Safe.", "confidence": 1}, verdict("grep_it", "SAFE")]


@pytest.mark.parametrize(
    "answer",
    [
        f"<think>Both {{fine}}</think>\n```json\n{json.dumps({'verdicts': ROWS})}\n```",
        json.dumps(ROWS),
        f"```json\n{json.dumps(ROWS, indent=1)}\n```",
    ],
)
def test_verdicts_are_read_as_a_person_reads_them(answer: str) -> None:
    proposal, asked = look(answer)
    assert (len(proposal.items), len(asked)) == (2, 2)


def test_a_provider_that_fails_pauses_the_run_and_withholds_nothing() -> None:
    with running(json.dumps(ANSWER)) as provider:
        provider.failing_from = 1
        with pytest.raises(InfrastructureError):
            reflect(settings(provider, review="model"), Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS)


CHINESE = {
    "name": "检查符号",
    "text": "在修改之前先检查比较的方向。",
    "markdown": "**范围** 比较。\n**步骤**\n1. 搜索调用方。\n2. 比较两边的值。",
}
GERMAN = {
    "name": "vorzeichen",
    "text": "Vor dem Ändern prüfen, in welche Richtung ein Vergleich geht.",
    "markdown": "**Vorgehen:**\n1. Alle Aufrufer suchen.\n2. Beide Seiten des Vergleichs ausgeben und ansehen.",
}


@pytest.mark.parametrize("skill", [CHINESE, GERMAN])
def test_another_language_is_left_to_the_review(skill: dict[str, str]) -> None:
    extraction = {"principles": [], "skills": [skill]}
    with running(json.dumps(extraction)) as provider:
        (held,) = reflect(settings(provider), Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS).withheld
        assert held.why == FOREIGN, "nobody would have read it"
        proposal, _ = look([verdict(f"skill/{held.name}")], extraction=extraction)
        assert [i.markdown for i in proposal.items] == [skill["markdown"]]
