"""The second look by the run's model, against a real HTTP server: only a clear yes lets an item through."""

from __future__ import annotations

import json

import pytest

from tests.extract.provider import provider as running
from tests.extract.test_reflect import ANSWER, ATTEMPTS, DIGESTS, settings
from valve_plugin.extract.reflect import prompt_hash, reflect
from valve_plugin.extract.second_look import NO_ANSWER, OBJECTION, instructions
from valve_plugin.records import Bank, Item, Proposal


def look(verdict: object, status: int = 200) -> tuple[Proposal, list[dict]]:  # type: ignore[type-arg]
    """Extract two items and let the model judge them."""
    from msgspec.structs import replace

    answer = verdict if isinstance(verdict, str) else json.dumps(verdict)
    with running(json.dumps(ANSWER), answer) as provider:
        chosen = replace(settings(provider), review="model", model_tries=1)
        return reflect(chosen, Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS), provider.asked


def test_cleared_items_are_proposed() -> None:
    proposal, asked = look({"safe": [True, True]})
    assert [i.name for i in proposal.items] == ["check_the_sign", "grep_it"]
    assert len(asked) == 2
    system, user = (m["content"] for m in asked[1]["messages"])
    assert system == instructions()
    assert [i["name"] for i in json.loads(user)] == ["check_the_sign", "grep_it"]
    assert proposal.prompt_hash != prompt_hash()  # what was asked is part of where items come from


def test_what_the_model_objects_to_waits_for_a_person() -> None:
    proposal, _ = look({"safe": [True, False]})
    assert [i.name for i in proposal.items] == ["check_the_sign"]
    assert [(w.name, w.why, isinstance(w.item, Item)) for w in proposal.withheld] == [("grep_it", OBJECTION, True)]


@pytest.mark.parametrize(
    "verdict",
    [
        "Both are fine!",
        {"safe": [True]},
        {"safe": [True, True, True]},
        {"safe": ["yes", "yes"]},
        {"safe": [True, True], "note": "approved"},
        [True, True],
        "{" * 50_000,
        "",
    ],
)
def test_an_unusable_verdict_clears_nothing(verdict: object) -> None:
    proposal, _ = look(verdict)
    assert proposal.items == ()
    assert {w.why for w in proposal.withheld} == {NO_ANSWER}
    assert len(proposal.withheld) == 2


def test_a_provider_that_fails_clears_nothing() -> None:
    from msgspec.structs import replace

    with running(json.dumps(ANSWER)) as provider:
        chosen = replace(settings(provider), review="model", model_tries=1)
        done = provider.contents

        class Failing(list):  # type: ignore[type-arg]
            def __getitem__(self, n):  # type: ignore[no-untyped-def]
                if n >= 1:
                    provider.status = 400
                return done[0]

            def __len__(self) -> int:
                return 2

        provider.contents = Failing()
        proposal = reflect(chosen, Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS)
    assert {w.why for w in proposal.withheld} == {NO_ANSWER}


def test_off_asks_nothing_more() -> None:
    with running(json.dumps(ANSWER)) as provider:
        proposal = reflect(settings(provider), Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS)
        assert len(provider.asked) == 1
    assert proposal.prompt_hash == prompt_hash()
    assert len(proposal.items) == 2
