"""Every condition: its prompt against a golden file (delete one to have it written anew), and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.bank import build
from tests.extract.provider import provider as running
from valve_plugin import plugins
from valve_plugin.bank import moves
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings, resolve
from valve_plugin.errors import ConfigError
from valve_plugin.gate.plan import require_pairing
from valve_plugin.lab.conditions import NAMES, ablations, find
from valve_plugin.lab.run import with_feedback
from valve_plugin.records import Attempt, Bank, Context, Item, Proposal

GOLDEN = Path(__file__).with_name("golden")
KNOWN = Bank(
    repo="o/r",
    version=2,
    principles=tuple(
        Item(kind="principle", name=name, text=text, markdown=f"**Statement:** {text}", created_step=step)
        for step, (name, text) in enumerate([("old_view", "Look twice."), ("new_view", "Look once.")], 1)
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


@contextmanager
def answering(answer: object) -> Iterator[tuple[Settings, Any]]:
    """Serve a model that always gives this answer; yields settings that use it, and the server."""
    with running(json.dumps(answer)) as server:
        kwargs = {"api_base": server.base, "api_key": "none", "num_retries": 0}
        yield Settings(protocol="paper", model="openai/m", model_kwargs=kwargs, review="off"), server


def hook_of(name: str) -> Any:
    return plugins.load(["valve", *filter(None, [find(name).hooks])]).hook


def extract(name: str, settings: Settings) -> Proposal:
    attempts = ATTEMPTS if name == "batch" else ATTEMPTS[:2]
    return hook_of(name).valve_extract(
        settings=settings,
        bank=KNOWN,
        issue="Issue of t1.",
        attempts=attempts,
        trajectories=[f"digest of {a.id}" for a in attempts],
        feedback="",
    )


def retrieve(name: str, bank: Bank) -> Context:
    settings = resolve({"retrieval": "paper", "embedding": "hashing"}, find(name).settings)
    return hook_of(name).valve_retrieve(settings=settings, bank=bank, task_id="t1", issue="Issue of t1.")


BOTH = [("principle", "check_the_sign"), ("skill", "flip_it")]
KEPT = {"no-principles": BOTH[1:], "document": BOTH[:1]}
"""Items of an answer with a principle and a skill; the document's skill is ignored, since its name is taken."""


@pytest.mark.parametrize("name", EXTRACTING)
def test_what_the_model_is_asked_and_what_is_kept_of_its_answer(name):
    with answering(ANSWERS.get(name, {"principles": [RICH], "skills": [SKILL]})) as (settings, server):
        proposal = extract(name, settings)
    asked = "".join(f"### {m['role']}\n\n{m['content']}\n\n" for m in server.asked[0]["messages"])
    compare(f"{'valve' if name in AS_THE_REFERENCE else name}.prompt.txt", asked)
    assert proposal.prompt_hash
    assert [i.key for i in proposal.items] == KEPT.get(name, BOTH)
    assert proposal.removed == ((("principle", "old_view"),) if name == "document" else ())
    assert {i.source_tasks for i in proposal.items} == {tuple(OUTCOMES) if name == "batch" else ("t1",)}
    block = retrieve(name, moves.apply(KNOWN, proposal)).text
    assert all(i.markdown in block for i in proposal.items)


@pytest.mark.parametrize("name", [name for name in EXTRACTING if find(name).gated])
def test_told_of_verdicts_every_gated_condition_tells_its_model(name, tmp_path, data_dir):
    store = BankStore.create(tmp_path / "bank", build.REPO)
    for entry in [*build.opening(), Proposed(proposal=build.proposal(1))]:
        store.append(entry)
    attempts = ATTEMPTS if name == "batch" else ATTEMPTS[:2]
    manager = plugins.load(["valve", *filter(None, [find(name).hooks])])
    with answering({"principles": [], "skills": []}) as (settings, server):
        steps = with_feedback(find(name).steps)(manager, store, settings)
        issue = "Issue of t1." + " It is long." * 3000
        before = steps.extract(issue, attempts)
        store.append(build.judged(store.bank, build.proposal(1), 1, 0, build.rollouts("b", "unresolved")))
        after = steps.extract(issue, attempts)
    first, second = (request["messages"][-1]["content"] for request in server.asked)
    assert "What validation decided" not in first
    assert second.startswith(first), "it has a place of its own"
    compare("feedback.prompt.txt", second.removeprefix(first))
    assert before.prompt_hash != after.prompt_hash, "the ledger says that it was told"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_injected(name):
    names = [item for _, item in retrieve(name, KNOWN).items]
    exact = {
        "no-principles": ["grep_it"],
        "inject-all": ["new_view", "old_view", "grep_it"],  # reverse creation order
        "document": ["old_view", "new_view", "grep_it"],  # sections in the order they were appended
        "skillopt": ["old_view", "new_view", "grep_it"],
    }
    if name in exact:
        assert names == exact[name]
    else:
        assert sorted(names) == ["grep_it", "new_view", "old_view"]
    assert retrieve(name, Bank(repo="o/r")).items == (), "no memory is no block"


def group(task: str, *outcomes: str) -> list[Attempt]:
    return [
        Attempt(id=f"{task}{n}", task_id=task, ordinal=n, source="evolve", outcome=o) for n, o in enumerate(outcomes)
    ]


@given(st.lists(st.lists(st.sampled_from(["resolved", "unresolved"]), min_size=3, max_size=3), max_size=14))
def test_batches_of_four_are_reflected_on_when_one_of_them_is_mixed(outcomes):
    batches, found = ablations.Batches.__new__(ablations.Batches), []
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
    every, reference = (find(name).steps for name in ("all-tasks", "valve"))
    assert every.__new__(every).material(failed) == failed
    assert not reference.__new__(reference).material(failed)


ONE = (
    "Check which way it goes.",
    "Look in utils.py before you change __init__.py",
    "On Python 3.11 (e.g. in CI, i.e. there) run `make test. Then stop`, etc. and see Fig. 3.",
    "Compare old vs. new values\nin one go",
)
MORE = (
    "First do this. Then that.\n- a\n- b",
    "Open setup.cfg. Change it.",
    "Do this:\n```\nx\n```",
    'It said "no." Then it left',
)


@pytest.mark.parametrize(("text", "one"), [*((t, True) for t in ONE), *((t, False) for t in MORE)])
def test_what_a_sentence_is(text, one):
    assert ablations.is_single_sentence(text) is one


def test_an_item_of_more_than_a_sentence_is_withheld_and_suppresses_no_other():
    principles = [
        {"name": "more", "text": "Read the callers first. Then change the signature."},
        {"name": "one", "text": "Read the callers first, then change the signature."},
    ]
    skills = [
        {"name": "many", "text": "First do this. Then that.\n- a\n- b", "scope_hint": "x.py"},
        {"name": "flip", "text": "Flip it\nat once.", "scope_hint": "diff.py,\nhere."},
    ]
    with answering({"principles": principles, "skills": skills}) as (settings, _):
        proposal = extract("sentence", settings)
    assert [(i.name, i.markdown) for i in proposal.items] == [
        ("one", "Read the callers first, then change the signature."),
        ("flip", "(diff.py, here) Flip it at once."),
    ]
    assert [(w.name, w.why) for w in proposal.withheld] == [
        ("more", "more than one sentence"),
        ("many", "more than one sentence"),
    ]
    assert all(w.item for w in proposal.withheld)
    assert not proposal.suppressed


def test_no_gate_judges_contexts_that_a_plugin_replaces():
    manager = plugins.load(["valve", find("inject-all").hooks])
    with pytest.raises(ConfigError, match=r"ablations:InjectAllHooks' replaces retrieval.*pairing=deployed"):
        require_pairing(manager, build.PANEL)
    require_pairing(manager, replace(build.PANEL, pairing="deployed"))
    require_pairing(plugins.load(["valve", find("batch").hooks]), build.PANEL)


# The document's rules.
sections = st.sampled_from(["a", "b", "c"])
edits = st.builds(
    ablations.Edit, operation=st.sampled_from(["add", "replace", "delete"]), target=sections, name=sections,
    text=st.just("Something."), markdown=sections,
)  # fmt: skip


def proposed(plan: ablations.EditPlan) -> Proposal:
    return ablations.fill_proposal(Proposal(task_id="t1"), plan, ATTEMPTS, "", Settings(review="off"))


def bank_of(names: set[str]) -> Bank:
    made = tuple(Item(kind="skill", name=n, text=n, markdown=f"old {n}") for n in sorted(names))
    return Bank(repo="o/r", skills=made)


def expected(document: dict[str, str], written: list[ablations.Edit]) -> dict[str, str]:
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
    plan = ablations.plan_edits(bank, [("skill", e) for e in written])
    proposal = proposed(plan)
    after = bank if proposal.empty else moves.apply(bank, proposal)
    assert {i.name: i.markdown for i in after.skills} == expected({i.name: i.markdown for i in bank.skills}, written)
    assert len(plan.ignored) <= len(written)
    assert ablations.applicable(proposal, bank) == proposal


@pytest.mark.parametrize(
    ("target", "markdown", "names"),
    [
        ("b", "new", ["c"]),  # a missing target makes it an addition
        ("a", "Use AKIAIOSFODNN7EXAMPLE then.", []),  # what replaces it is withheld, so the old one stays
    ],
)
def test_a_replacement_without_a_target_or_a_new_text_removes_nothing(target, markdown, names):
    written = ablations.Edit("replace", target=target, name="c", text="Something.", markdown=markdown)
    proposal = proposed(ablations.plan_edits(bank_of({"a"}), [("skill", written)]))
    assert proposal.removed == ()
    assert [i.name for i in proposal.items] == names
