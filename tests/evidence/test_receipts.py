"""Receipts: an honest ledger comes out again, and no number of a verdict can be changed without being found."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from tests.bank.test_version_0_1_0 import OLD
from tests.tools import TEST_ALL
from valve_plugin.bank import ledger, moves
from valve_plugin.bank.entries import Evaluated, Proposed, Taken
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, digest
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.evidence.receipts import examine
from valve_plugin.extract.duplicates import sort_duplicates
from valve_plugin.gate.plan import panel_settings
from valve_plugin.records import Item, PanelOutcome, PanelTask, Proposal
from valve_plugin.retrieval.contexts import retrieve
from valve_plugin.tasks.task_set import load


@pytest.fixture(scope="module")
def ungiven(evolve, tmp_path_factory):
    """A bank that was confirmed and guarded, far from where its task set is known."""
    bank = tmp_path_factory.mktemp("receipts") / "bank"
    evolve(bank, "-c", "confirm=true", "-c", "guard=2", "--limit", "6", "--seed", "5")
    return bank


@pytest.mark.parametrize("name", ["whole", "ungiven"])
def test_everything_comes_out_again(request, calc, name):
    found = examine(request.getfixturevalue(name), str(calc))
    assert found.findings == ()
    assert [what.partition(" (")[0] for what in found.missing] == ["source attempts of proposals"]
    assert all(found.recomputed[what] for what in ("verdicts", "contexts", "duplicates"))


def test_what_is_not_here_is_listed(whole, calc, tmp_path, monkeypatch):
    """Another machine: no user data, so no task set; the rest is recomputed all the same."""
    bank = shutil.copytree(whole, tmp_path / "copy")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    found = examine(bank)
    assert found.findings == ()
    assert any("the task set is not here" in what for what in found.missing)
    assert found.recomputed["verdicts"]
    with pytest.raises(TaskError, match="no such task directory"):
        examine(bank, "nowhere")
    other = shutil.copytree(calc, tmp_path / "tasks")
    rows = (other / "tasks.jsonl").read_text().splitlines(keepends=True)
    panel = json.loads((bank / "panel.json").read_text())["tasks"][0]["instance_id"]
    (other / "tasks.jsonl").write_text("".join(r for r in rows if panel not in r))
    assert any(panel in what for what in examine(bank, str(other)).missing)


def test_a_missing_embedding_is_listed(whole, calc, monkeypatch):
    def missing(settings, panel):
        raise ConfigError("not here")

    monkeypatch.setattr("valve_plugin.evidence.receipts.panel_settings", missing)
    found = examine(whole, str(calc))
    assert found.findings == ()
    assert any("from embedding 'hashing', which is not here" in what for what in found.missing)


def leaves(value, path=()):
    """Path of every number and text inside."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in leaves(inner, (*path, i))]
    return [path]


def changed(value):
    """Another value of the same type, one that a reader of the file would not notice."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    other = {"resolved": "unresolved", "unresolved": "resolved", "accept": "reject", "reject": "accept"}
    other |= {"paper": "deployed"}
    return other.get(value) or value[:-1] + ("0" if value[-1] != "0" else "1")


@settings(max_examples=40 if TEST_ALL else 15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_number_of_a_verdict_can_be_changed(ungiven, calc, data, tmp_path):
    """By somebody who makes the whole hash chain anew, so that only recomputing can tell."""
    lines = [json.loads(line) for line in (ungiven / "ledger.jsonl").read_text().splitlines()]
    verdicts = [line["entry"]["verdict"] for line in lines if line["entry"]["type"] == "judged"]
    verdict = data.draw(st.sampled_from(verdicts))
    *path, last = data.draw(st.sampled_from(leaves(verdict)))
    inside = verdict
    for key in path:
        inside = inside[key]
    inside[last] = changed(inside[last])
    bank = tmp_path / "bank"
    shutil.rmtree(bank, ignore_errors=True)
    shutil.copytree(ungiven, bank)
    _write(bank, lines)
    assert any(f.level == "error" for f in examine(bank, str(calc)).findings), (path, last, inside[last])


def _write(bank, lines):
    """The ledger with these lines, its chain sound, and without the cache that would give it away."""
    prev, raw = ledger.GENESIS, []
    for line in lines:
        line["prev"] = prev
        raw.append(canonical(line))
        prev = ledger.line_hash(raw[-1])
    (bank / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in raw))
    for name in ("bank.json", "panel.json"):
        (bank / name).unlink(missing_ok=True)


RUN_IT = Item(kind="skill", name="run-it", text="Run the tests first", markdown="1. Run *them*.\n2. Read.")


def repeating(path, *, told=True):
    """A bank with one item, and a proposal whose items repeat it exactly, nearly, and one another."""
    store = BankStore.create(path, "owner/name")
    first = Proposal(task_id="t-1", items=(RUN_IT,))
    store.append(Proposed(proposal=first))
    hash_ = store.bank.hash
    store.append(Taken(proposal_id=first.id, bank_hash=hash_, bank_after=moves.apply(store.bank, first).hash))
    other = replace(RUN_IT, name="other", text="Read the changelog", markdown="Look for renamed options.")
    texts = (RUN_IT, replace(RUN_IT, text="Run the tests first!"), other, replace(other, text="Read the changelog!"))
    new, merges, suppressed = sort_duplicates(
        [replace(i, name=f"{i.name}-{n}") for n, i in enumerate(texts)], store.bank
    )
    assert (len(new), len(merges), len(suppressed)) == (1, 1, 2)
    if not told:
        merges, suppressed = (tuple(replace(d, item=UNSET) for d in left) for left in (merges, suppressed))
    second = Proposal(task_id="t-2", items=new, merges=merges, suppressed=suppressed)
    store.append(Proposed(proposal=second))
    store.append(Proposed(proposal=replace(second, reason="stands in for the one before")))
    return store.dir


def test_duplicates_are_decided_again(tmp_path, data_dir):
    found = examine(repeating(tmp_path / "bank"))
    assert (found.findings, found.missing) == ((), ())
    assert found.recomputed["duplicates"] == 1 + 2 * 1 + 3


def test_an_older_ledger_says_what_it_lacks(tmp_path, data_dir):
    bank = repeating(tmp_path / "bank", told=False)
    assert b'"item":' not in (bank / "ledger.jsonl").read_bytes()
    found = examine(bank)
    assert found.findings == ()
    assert found.missing == ("duplicates (older ledgers do not contain their text): 3",)


@pytest.mark.parametrize(
    ("left", "changes"),
    [
        ("suppressed", {"similarity": 0.46}),
        ("suppressed", {"duplicate_of": "other-2"}),
        ("suppressed", {"item": {"text": "Never seen before", "markdown": "Nothing alike."}}),
        ("merges", {"item": {"text": "Run the tests first!!"}}),
    ],
)
def test_a_changed_duplicate_is_found(tmp_path, data_dir, left, changes):
    bank = repeating(tmp_path / "bank")
    lines = [json.loads(line) for line in (bank / "ledger.jsonl").read_text().splitlines()][:-1]
    inside = lines[-1]["entry"]["proposal"][left][0]
    for key, value in changes.items():
        inside[key] = {**inside[key], **value} if isinstance(value, dict) else value
    _write(bank, lines)
    (problem,) = [f.message for f in examine(bank).findings if f.level == "error"]
    assert "but it is not one" in problem


@pytest.fixture
def read(tmp_path, data_dir):
    """The bank that version 0.1.0 wrote, after a reading of two holdout tasks."""
    bank = shutil.copytree(OLD / "bank", tmp_path / "bank")
    store = BankStore.open(bank)
    used = {task.instance_id for task in store.panel().tasks} | store.state.sources
    tasks = [task for task in load(OLD / "tasks").tasks if task.instance_id not in used][:2]
    how = panel_settings(store.settings(), store.panel())
    reading = Evaluated(
        holdout=tuple(PanelTask(instance_id=t.instance_id, content_hash=t.content_hash) for t in tasks),
        rollouts=1,
        version=store.bank.version,
        bank_hash=store.bank.hash,
        solver="0" * 64,
        outcomes=tuple(
            PanelOutcome(
                task_id=t.instance_id,
                ordinal=0,
                outcome="resolved",
                context_hash=retrieve(how, store.bank, t.instance_id, t.problem_statement).hash,
            )
            for t in tasks
        ),
    )
    store.append(reading)
    return bank


def _one(lines, kind):
    return next(line["entry"] for line in lines if line["entry"]["type"] == kind)


def _rejected(lines):
    """The proposal of a rejection with items, and the verdict, which ends before the last two tasks of its order."""
    for line in lines:
        verdict = line["entry"].get("verdict", {})
        ran = {o["task_id"] for o in verdict.get("outcomes", ())}
        if verdict.get("decision") == "reject" and not ran & set(verdict["order"][-2:]):
            id_ = verdict["proposal_id"]
            found = (e["entry"] for e in lines if e["entry"]["type"] == "proposed")
            return next(e for e in found if digest(e["proposal"])[:16] == id_), verdict
    raise AssertionError("no such verdict")


def _swap(verdict):
    verdict["order"][-2:] = verdict["order"][:-3:-1]


def _flip(note):
    note["outcome"] = "unresolved" if note["outcome"] == "resolved" else "resolved"


TAMPERED = {
    "a context of a reading": (
        lambda lines: _one(lines, "evaluated")["outcomes"][0].update(context_hash="f" * 64),
        "ran under context ffffffffffff",
    ),
    "the content of a holdout task": (
        lambda lines: _one(lines, "evaluated")["holdout"][0].update(content_hash="f" * 64),
        "has content ffffffffffff",
    ),
    "the content of a panel task": (
        lambda lines: _one(lines, "panel_fixed")["panel"]["tasks"][0].update(content_hash="f" * 64),
        "has content ffffffffffff",
    ),
    "the order of panel tasks": (lambda lines: _swap(_rejected(lines)[1]), "in another order"),
    "an item's passes": (
        lambda lines: _rejected(lines)[0]["proposal"]["items"][0].update(passes=3),
        "says that 3 of 3 source attempts passed, but",
    ),
    "an attempt's outcome": (lambda lines: _flip(_rejected(lines)[0]["attempts"][0]), "source attempts passed, but"),
    "an attempt's context": (
        lambda lines: _rejected(lines)[0]["attempts"][0].update(context_hash="f" * 64),
        "had context ffffffffffff",
    ),
}


def _hashes(lines):
    """Of each line: what later lines call its panel or proposal."""
    entries = [line["entry"] for line in lines]
    return [
        digest(e["panel"]) if "panel" in e else digest(e["proposal"])[:16] if "proposal" in e else "" for e in entries
    ]


@pytest.mark.parametrize("what", [None, *TAMPERED])
def test_a_forged_ledger_that_fits_together_is_found(read, what):
    """Chain, names and counts are made anew, so only recomputing can tell; and the genuine ledger has no finding."""
    lines = [json.loads(line) for line in (read / "ledger.jsonl").read_text().splitlines()]
    change, message = TAMPERED.get(what, (lambda lines: None, ""))
    before = _hashes(lines)
    change(lines)
    text = json.dumps(lines)
    for old, new in zip(before, _hashes(lines), strict=True):
        text = text.replace(old, new) if old else text
    _write(read, json.loads(text))
    found = [f.message for f in examine(read, str(OLD / "tasks")).findings if f.level == "error"]
    assert bool(found) == bool(what)
    assert all(message in one for one in found)
