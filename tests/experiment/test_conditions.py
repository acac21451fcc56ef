"""Every condition's prompts and storage, against golden files; delete one to have it written anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from tests.bank import build
from tests.extract.provider import provider as running
from valve_plugin import plugins
from valve_plugin.bank import moves
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import plain
from valve_plugin.config import Settings, resolve
from valve_plugin.errors import ConfigError
from valve_plugin.evolve.steps import Steps, Ungated
from valve_plugin.experiment.conditions import NAMES, find
from valve_plugin.experiment.conditions.batch import Batches
from valve_plugin.experiment.conditions.document import Edit, _proposal, edited, settled
from valve_plugin.experiment.feedback import with_feedback
from valve_plugin.experiment.sentences import single
from valve_plugin.extract.ask import ask
from valve_plugin.gate.plan import require_pairing
from valve_plugin.records import Attempt, Bank, Item, Proposal

GOLDEN = Path(__file__).with_name("golden")
KNOWN = Bank(
    repo="o/r",
    version=2,
    principles=(
        Item(
            kind="principle", name="old_view", text="Look twice.", markdown="**Statement:** Look twice.", created_step=1
        ),
        Item(
            kind="principle", name="new_view", text="Look once.", markdown="**Statement:** Look once.", created_step=2
        ),
    ),
    skills=(Item(kind="skill", name="grep_it", text="Grep it.", markdown="**Scope:** all", scope_hint="x.py"),),
)
OUTCOMES = {"t1": ("resolved", "unresolved"), "t2": ("resolved",), "t3": ("unresolved",), "t4": ("resolved",)}
ATTEMPTS = [
    Attempt(id=f"{task}{n}", task_id=task, ordinal=n, source="evolve", outcome=outcome, task_text=f"Issue of {task}.")
    for task, outcomes in OUTCOMES.items()
    for n, outcome in enumerate(outcomes)
]
ITEM = {"name": "Check the sign", "text": "Check which way it goes."}
RICH = {**ITEM, "markdown": "**Statement:** Check it."}
SKILL = {**RICH, "name": "flip_it", "text": "Flip the operator.", "scope_hint": "diff.py"}
ANSWERS = {
    "sentence": {"principles": [ITEM], "skills": [{"name": "flip_it", "text": "Flip it.", "scope_hint": "diff.py"}]},
    "document": {
        "principles": [
            {"operation": "replace", "target": "old_view", **RICH},
            {"operation": "delete", "target": "gone"},
        ],
        "skills": [{"operation": "add", "target": "", **SKILL, "name": "grep_it"}],
    },
}
EXTRACTING = [name for name in NAMES if name not in ("base", "skillopt")]
AS_THE_REFERENCE = ("ungated", "inject-all")
"""They differ in what is validated or injected: what they ask and store is the reference's, to the byte."""


def compare(name: str, found: str) -> None:
    path = GOLDEN / name
    if not path.exists():
        path.write_text(found, encoding="utf-8")
        pytest.fail(f"{name} was missing and is written now; read it, then run again")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXTRACTING)
def test_what_the_model_is_asked_and_what_is_kept_of_its_answer(name):
    condition = find(name)
    answer = ANSWERS.get(name, {"principles": [RICH], "skills": [SKILL]})
    with running(json.dumps(answer)) as server:
        settings = Settings(
            model="openai/m", model_kwargs={"api_base": server.base, "api_key": "none", "num_retries": 0}
        )
        hook = plugins.load(["valve", *([condition.hooks] if condition.hooks else [])]).hook
        attempts = ATTEMPTS if name == "batch" else ATTEMPTS[:2]
        proposal = hook.valve_extract(
            settings=settings,
            bank=KNOWN,
            issue="Issue of t1.",
            attempts=attempts,
            trajectories=[f"digest of {a.id}" for a in attempts],
            feedback="",
        )
        asked = "".join(f"### {m['role']}\n\n{m['content']}\n\n" for m in server.asked[0]["messages"])
    golden = "valve" if name in AS_THE_REFERENCE else name
    compare(f"{golden}.prompt.txt", asked)
    assert proposal.prompt_hash
    kept = {**plain(proposal), "prompt_hash": "", "id": ""}
    compare(f"{golden}.proposal.json", json.dumps(kept, indent=2, sort_keys=True) + "\n")
    stored = moves.apply(KNOWN, proposal)
    compare(f"{golden}.bank.json", json.dumps(plain(stored), indent=2, sort_keys=True) + "\n")
    given = resolve({"embedding": "hashing"}, condition.settings)
    context = hook.valve_retrieve(settings=given, bank=stored, task_id="t1", issue="Issue of t1.")
    compare(f"{name}.block.txt", context.text)


@pytest.mark.parametrize("name", [name for name in EXTRACTING if find(name).gated])
def test_told_of_verdicts_every_gated_condition_tells_its_model(name, tmp_path, data_dir):
    condition, store = find(name), BankStore.create(tmp_path / "bank", build.REPO)
    for entry in [*build.opening(), Proposed(proposal=build.proposal(1))]:
        store.append(entry)
    hook = plugins.load(["valve", *([condition.hooks] if condition.hooks else [])])
    attempts = ATTEMPTS if name == "batch" else ATTEMPTS[:2]
    with running(json.dumps({"principles": [], "skills": []})) as server:
        settings = Settings(
            model="openai/m", model_kwargs={"api_base": server.base, "api_key": "none", "num_retries": 0}
        )
        steps = with_feedback(condition.steps)(hook, store, settings)
        issue = "Issue of t1." + " It is long." * 3000
        before = steps.extract(issue, attempts)
        store.append(build.judged(store.bank, build.proposal(1), 1, 0, build.rollouts("b", "unresolved")))
        after = steps.extract(issue, attempts)
    first, second = (request["messages"][-1]["content"] for request in server.asked)
    assert "What validation decided" not in first
    assert second.startswith(first), "it has a place of its own"
    compare("feedback.prompt.txt", second.removeprefix(first))
    assert before.prompt_hash != after.prompt_hash, "the ledger says that it was told"


def test_the_effort_asked_for_is_sent_also_where_it_would_be_dropped():
    """Litellm believes that this model takes none, and mini's defaults let it drop such arguments."""
    with running("{}") as server:
        given = {"api_base": server.base, "api_key": "none", "drop_params": True, "reasoning_effort": "high"}
        settings = Settings(model="openai/gpt-4o", model_kwargs=given)
        ask(settings, settings.model, [{"role": "user", "content": "?"}], "item")
    assert server.asked[0]["reasoning_effort"] == "high"


def injected(name: str, bank: Bank) -> list[str]:
    condition = find(name)
    settings = resolve({"embedding": "hashing"}, condition.settings)
    hook = plugins.load(["valve", *([condition.hooks] if condition.hooks else [])]).hook
    context = hook.valve_retrieve(settings=settings, bank=bank, task_id="t1", issue="Issue of t1.")
    return [item for _, item in context.items]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_injected(name):
    names = injected(name, KNOWN)
    if name == "no-principles":
        assert names == ["grep_it"]
    elif name == "inject-all":
        assert names == ["new_view", "old_view", "grep_it"], "reverse creation order"
    elif name in ("document", "skillopt"):
        assert names == ["old_view", "new_view", "grep_it"], "sections in the order they were appended"
    else:
        assert sorted(names) == ["grep_it", "new_view", "old_view"]


def test_no_memory_is_no_block_and_asks_nobody():
    assert find("base").steps is None
    assert injected("base", Bank(repo="o/r")) == []


def test_conditions_are_what_the_paper_couples():
    assert find("batch").settings == {"rollouts": 1}
    assert find("ungated").steps is Ungated
    assert find("ungated").gated is False
    assert find("valve").steps is Steps
    with pytest.raises(ConfigError, match="no condition 'best'; there are base"):
        find("best")


def steps(kind: type[Steps]) -> Steps:
    return kind.__new__(kind)


def group(task: str, *outcomes: str) -> list[Attempt]:
    return [
        Attempt(id=f"{task}{n}", task_id=task, ordinal=n, source="evolve", outcome=o) for n, o in enumerate(outcomes)
    ]


@given(st.lists(st.lists(st.sampled_from(["resolved", "unresolved"]), min_size=3, max_size=3), max_size=14))
def test_batches_of_four_are_reflected_on_when_one_of_them_is_mixed(outcomes):
    batches, found = steps(Batches), []
    for number, results in enumerate(outcomes):
        found.append(batches.material(group(f"t{number}", *results)))
    for number, material in enumerate(found):
        four = outcomes[number - 3 : number + 1] if number % 4 == 3 else []
        if any(len(set(results)) == 2 for results in four):
            assert [a.task_id for a in material] == [f"t{n}" for n in range(number - 3, number + 1) for _ in range(3)]
        else:
            assert not material


def test_every_task_teaches_in_all_tasks_and_mixed_ones_in_the_reference():
    failed = group("t", "unresolved", "unresolved")
    assert steps(find("all-tasks").steps).material(failed) == failed
    assert not steps(find("valve").steps).material(failed)


ONE = (
    "Check which way it goes.",
    "Look in utils.py before you change __init__.py",
    "On Python 3.11 (e.g. in CI, i.e. there) run `make test. Then stop`, etc. and see Fig. 3.",
    "Does the sign flip?",
    "Wait for it... then go on from . or .. as before",
    "Compare old vs. new values\nin one go",
)
MORE = (
    "First do this. Then that.\n- a\n- b",
    "First do this: \n- a\n- b",
    "# Heading\nDo this.",
    "Do this\n\nand that",
    "1. Do this 2. do that",
    "Does it flip? Then flip it.",
    "Open setup.cfg. Change it.",
    "Use 3.11. Then stop.",
    "It did it etc. Then it stopped",
    "Do this:\n```\nx\n```",
    'It said "no." Then it left',
)


@pytest.mark.parametrize(("text", "one"), [*((t, True) for t in ONE), *((t, False) for t in MORE)])
def test_what_a_sentence_is(text, one):
    assert single(text) is one


@given(st.lists(st.from_regex(r"[A-Z][a-z]{2,8}( [a-z]{2,8}){1,4}", fullmatch=True), min_size=1, max_size=3))
def test_sentences_are_counted(sentences):
    assert single(". ".join(sentences) + ".") is (len(sentences) == 1)


def test_an_item_of_more_than_a_sentence_is_withheld_and_line_breaks_are_none(tmp_path, data_dir):
    skills = [
        {"name": "many", "text": "First do this. Then that.\n- a\n- b", "scope_hint": "x.py"},
        {"name": "one", "text": "Flip it\nat once.", "scope_hint": "diff.py,\nhere."},
    ]
    with running(json.dumps({"principles": [], "skills": skills})) as server:
        settings = Settings(model="openai/m", model_kwargs={"api_base": server.base, "api_key": "none"})
        hook = plugins.load(["valve", find("sentence").hooks]).hook
        proposal = hook.valve_extract(
            settings=settings, bank=KNOWN, issue="", attempts=ATTEMPTS[:2], trajectories=["", ""], feedback=""
        )
    assert [i.markdown for i in proposal.items] == ["(diff.py, here) Flip it at once."]
    (withheld,) = proposal.withheld
    assert (withheld.name, withheld.why) == ("many", "more than one sentence")
    assert withheld.item is not None


def test_what_is_more_than_a_sentence_suppresses_no_other_item():
    more = {"name": "more", "text": "Read the callers first. Then change the signature."}
    one = {"name": "one", "text": "Read the callers first, then change the signature."}
    with running(json.dumps({"principles": [more, one], "skills": []})) as server:
        settings = Settings(model="openai/m", model_kwargs={"api_base": server.base, "api_key": "none"})
        hook = plugins.load(["valve", find("sentence").hooks]).hook
        proposal = hook.valve_extract(
            settings=settings, bank=KNOWN, issue="", attempts=ATTEMPTS[:2], trajectories=["", ""], feedback=""
        )
    assert [i.name for i in proposal.items] == ["one"]
    assert [w.name for w in proposal.withheld] == ["more"]
    assert not proposal.suppressed


def test_no_gate_judges_contexts_that_a_plugin_replaces():
    manager = plugins.load(["valve", find("inject-all").hooks])
    with pytest.raises(ConfigError, match=r"inject_all:Hooks' replaces retrieval.*pairing=deployed"):
        require_pairing(manager, build.PANEL)
    require_pairing(manager, replace(build.PANEL, pairing="deployed"))
    require_pairing(plugins.load(["valve", find("batch").hooks]), build.PANEL)


# The document's rules.
BASE = Proposal(task_id="t1")
sections = st.sampled_from(["a", "b", "c"])
edits = st.builds(
    Edit, operation=st.sampled_from(["add", "replace", "delete"]), target=sections, name=sections,
    text=st.just("Something."), markdown=sections,
)  # fmt: skip


def bank_of(names: set[str]) -> Bank:
    made = tuple(Item(kind="skill", name=n, text=n, markdown=f"old {n}") for n in sorted(names))
    return Bank(repo="o/r", skills=made)


def expected(document: dict[str, str], written: list[Edit]) -> dict[str, str]:
    """The paper's rules, one edit after the other, on an ordered mapping."""
    for e in written:
        if e.operation == "delete":
            document.pop(e.target, None)  # a missing one: nothing happens
            continue
        replacing = e.operation == "replace" and e.target in document
        if e.name in document and not (replacing and e.name == e.target):
            continue  # an addition that reuses a name is ignored
        if replacing:
            del document[e.target]
        document[e.name] = e.markdown
    return document


@given(st.sets(sections), st.lists(edits, max_size=3))
def test_section_edits_do_what_the_paper_says(names, written):
    bank = bank_of(names)
    move = edited(bank, [("skill", e) for e in written])
    proposal = _proposal(BASE, move, ATTEMPTS, "")
    after = bank if proposal.empty else moves.apply(bank, proposal)
    assert {i.name: i.markdown for i in after.skills} == expected({i.name: i.markdown for i in bank.skills}, written)
    assert len(move.noops) <= len(written)
    assert settled(proposal, bank) == proposal


def test_no_ops_are_recorded():
    move = edited(
        bank_of({"a"}),
        [("skill", Edit("delete", target="b")), ("skill", Edit("add", name="a", text="x", markdown="y"))],
    )
    proposal = _proposal(BASE, move, ATTEMPTS, "")
    assert proposal.empty
    assert [w.why for w in proposal.withheld] == [
        "ignored: a deletion of a section that is not there",
        "ignored: an addition under a name that is taken",
    ]


def test_a_missing_target_makes_a_replacement_an_addition():
    written = Edit("replace", target="b", name="c", text="Something.", markdown="new")
    proposal = _proposal(BASE, edited(bank_of({"a"}), [("skill", written)]), ATTEMPTS, "")
    assert proposal.removed == ()
    assert [i.name for i in proposal.items] == ["c"]


def test_a_replacement_whose_new_text_is_withheld_leaves_the_old_one():
    written = Edit("replace", target="a", name="b", text="Something.", markdown="Use AKIAIOSFODNN7EXAMPLE then.")
    proposal = _proposal(BASE, edited(bank_of({"a"}), [("skill", written)]), ATTEMPTS, "")
    assert proposal.removed == ()
    assert proposal.empty


@strategies.few
@given(strategies.banks, st.data())
def test_what_no_longer_applies_is_dropped(bank, data):
    """The documents changed after the proposal was made: what is left of it applies."""
    gone = data.draw(
        st.lists(st.sampled_from([("skill", "zz"), *(i.key for i in bank.items)]), max_size=3, unique=True)
    )
    added = data.draw(strategies.unique(strategies.items(created_step=st.just(0)), 3))
    proposal = Proposal(task_id="t", items=added, **({"removes": tuple(gone)} if gone else {}))
    left = settled(proposal, bank)
    if not left.empty:
        moves.apply(bank, left)
    assert settled(left, bank) == left
