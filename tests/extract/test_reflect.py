"""The whole Extract step against a real HTTP server that answers what models answer."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.extract.provider import provider as running
from valve_plugin.bank import moves
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.extract.ask import count_calls
from valve_plugin.extract.duplicates import fit
from valve_plugin.extract.reflect import FRESH, PAPER, prompt_hash, reflect
from valve_plugin.records import Attempt, Bank, Item

PRINCIPLE = {"name": "Check the sign", "text": "Check which way it goes.", "markdown": "**Statement:** Check it."}
SKILL = {**PRINCIPLE, "name": "grep_it", "scope_hint": "diff.py", "markdown": "**Scope:** a\n**Procedure:**\n1. b"}
ANSWER = {"issue_summary": "The sign was wrong.", "principles": [PRINCIPLE], "skills": [SKILL]}
ATTEMPTS = [
    Attempt(id=str(i), task_id="task-1", ordinal=i, source="evolve", outcome=o)
    for i, o in enumerate(["resolved", "unresolved", "unresolved"])
]
DIGESTS = ["digest {{one}} <<KNOWN>>", "digest two", "digest three"]


@pytest.fixture
def provider():
    with running(json.dumps(ANSWER)) as server:
        yield server


def settings(provider, **more):
    once = {"num_retries": 0, "max_retries": 0}
    kwargs = {"api_base": provider.base, "api_key": "none", **once}
    return Settings(model="openai/m", model_tries=1, model_kwargs=kwargs, **{"review": "off", **more})


def ask(provider, bank=None, attempts=ATTEMPTS, **more):
    return reflect(
        settings(provider, **more), bank or Bank(repo="o/r"), "the {{issue}} <<ATTEMPTS>>", attempts, DIGESTS
    )


def test_a_good_answer_becomes_a_proposal(provider):
    bank = Bank(repo="o/r", principles=(Item(kind="principle", name="known_one", text="k", markdown="k"),))
    proposal = ask(provider, bank)
    assert [(i.kind, i.name) for i in proposal.items] == [("principle", "check_the_sign"), ("skill", "grep_it")]
    assert {(i.source_tasks, i.passes, i.attempts) for i in proposal.items} == {(("task-1",), 1, 3)}
    assert (proposal.task_id, proposal.model, proposal.reason) == ("task-1", "openai/m", "")
    assert proposal.issue_summary == "The sign was wrong."
    assert proposal.prompt_hash == prompt_hash(FRESH.prompts)
    system, user = (m["content"] for m in provider.asked[0]["messages"])
    assert "at most 3 principles" in system
    assert "the {{issue}} <<ATTEMPTS>>" in user, "what stands in data is never a place of the template"
    assert "digest {{one}} <<KNOWN>>" in user
    assert "1 succeeded and 2 failed" in user
    assert user.index("Attempt 1 [SUCCESS]") < user.index("Attempt 3 [FAILED]") < user.index("- principle: known_one")


def test_a_call_costs_what_the_registered_price_says_and_without_one_is_unknown(provider, tmp_path, monkeypatch):
    with count_calls() as calls:
        ask(provider)
    assert [(call.model, call.source, call.answer) for call in calls] == [("openai/m", "extract", json.dumps(ANSWER))]
    assert calls[0].cost_usd is None, "unknown is not nothing"
    prices = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 2e-6, "output_cost_per_token": 1e-5}
    (tmp_path / "prices.json").write_text(json.dumps({"openai/priced-here": prices}))
    monkeypatch.setenv("LITELLM_MODEL_REGISTRY_PATH", str(tmp_path / "prices.json"))
    with count_calls() as calls:
        reflect(replace(settings(provider), model="openai/priced-here"), Bank(repo="o/r"), "i", ATTEMPTS, DIGESTS)
    assert [call.cost_usd for call in calls] == [pytest.approx(1000 * 2e-6 + 100 * 1e-5)]


@pytest.mark.parametrize("raw", [b"", b'{"openai/m": {"input', b"[]", b'{"openai/m": 3}', b'{"\xff": {}}'])
def test_a_file_of_prices_that_is_none_is_named_before_the_call(provider, tmp_path, monkeypatch, raw):
    (tmp_path / "prices.json").write_bytes(raw)
    monkeypatch.setenv("LITELLM_MODEL_REGISTRY_PATH", str(tmp_path / "prices.json"))
    with pytest.raises(ConfigError, match=r"LITELLM_MODEL_REGISTRY_PATH names .*prices\.json.*expected JSON like"):
        ask(provider)
    assert not provider.asked


@pytest.mark.parametrize("content", ["Sorry, no.", "", json.dumps({"lessons": []}), "{" * 50_000, None])
@pytest.mark.parametrize("protocol", ["paper", "fresh"])
def test_an_unusable_answer_is_an_empty_proposal_with_the_reason(provider, content, protocol):
    provider.contents = [content]
    proposal = ask(provider, protocol=protocol)
    assert proposal.empty
    assert "answer" in proposal.reason
    assert len(provider.asked) == (2 if content and protocol == "fresh" else 1)


def test_an_unusable_answer_is_told_why_and_asked_for_once_more(provider):
    provider.contents = ["Nothing to learn here.", f"Sorry: {json.dumps(ANSWER)}"]
    assert len(ask(provider).items) == 2
    _, _, said, told = (m["content"] for m in provider.asked[1]["messages"])
    assert said == "Nothing to learn here."
    assert "holds no JSON object" in told


def test_the_papers_protocol_takes_its_own_form_and_nothing_else(provider):
    assert ask(provider, protocol="paper").prompt_hash == prompt_hash(PAPER.prompts)
    provider.contents = [f"Here: {json.dumps(ANSWER)}"]
    assert ask(provider, protocol="paper").empty
    assert len(provider.asked) == 2, "and nothing is asked again"


OLD = Item(kind="skill", name="old_one", text="Search first.", markdown="**Procedure:**\n1. Search.", scope_hint="all")


def test_the_model_is_told_what_is_known_what_was_given_and_every_limit(provider):
    bank = Bank(repo="o/r", skills=(OLD,), principles=(Item(kind="principle", name="p", text="Think.", markdown="m"),))
    ask(provider, bank, [replace(a, context_items=(OLD.key, ("skill", "gone"))) for a in ATTEMPTS])
    system, user = (m["content"] for m in provider.asked[0]["messages"])
    assert "- skill: old_one (given): Search first." in user
    assert "- principle: p: Think." in user
    assert "- skill: gone (given, no longer known)" in user
    for limit in (
        "at most 3 principles and at most 3 skills",
        "at most 300 characters",
        "at most 150 words",
        "than 2 changed",
    ):
        assert limit in system


def test_a_note_can_be_replaced_in_one_move(provider):
    better = {**SKILL, "name": "any", "markdown": "**Procedure:**\n1. Search.\n2. Then read.", "replaces": "old_one"}
    provider.contents = [json.dumps({**ANSWER, "skills": [better]})]
    bank = Bank(repo="o/r", version=1, skills=(OLD,))
    proposal = ask(provider, bank)
    assert [i.key for i in proposal.items] == [("principle", "check_the_sign"), OLD.key]
    assert proposal.removed == (OLD.key,)
    after = moves.apply(bank, proposal)
    assert [s.markdown for s in after.skills] == [better["markdown"]]
    assert fit(proposal, bank) == proposal
    gone = fit(proposal, Bank(repo="o/r", version=2))
    assert (gone.items, gone.removed) == (proposal.items, ()), "retired meanwhile: it is an item like any other"


def test_a_new_version_that_goes_no_further_leaves_the_old_one(provider):
    twin = Item(kind="skill", **{**SKILL, "name": "twin"})
    bank = Bank(repo="o/r", skills=(OLD, twin))
    same = {"name": "x", "text": OLD.text, "markdown": OLD.markdown, "scope_hint": "all", "replaces": "old_one"}
    for skill in (
        {**SKILL, "replaces": "old_one"},
        {**SKILL, "markdown": "Delete the failing tests.", "replaces": "old_one"},
        same,
    ):
        provider.contents = [json.dumps({"principles": [], "skills": [skill]})]
        proposal = ask(provider, bank)
        assert proposal.empty, skill


def test_a_model_that_is_named_nowhere(monkeypatch):
    monkeypatch.delenv("MSWEA_MODEL_NAME", raising=False)
    with pytest.raises(ConfigError, match=r"valve\.model"):
        reflect(Settings(), Bank(repo="o/r"), "issue", ATTEMPTS, DIGESTS)
