"""What became of items, and where they came from; nothing is made up."""

from __future__ import annotations

from pathlib import Path

from tests.cli.banks import GOOD, sample
from tests.report.parsed import page
from tests.report.runs import Maker
from valve_plugin.bank.acts import act
from valve_plugin.bank.store import BankStore
from valve_plugin.records import Item
from valve_plugin.report.build import build_run
from valve_plugin.report.findings import lesson, origins
from valve_plugin.report.page import attempt_details, render_page
from valve_plugin.report.templates import text


def test_an_item_leads_to_its_attempts_within_the_room(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3, seed=3)
    maker.stream(12, 4)
    run = build_run(maker.store)
    assert [(s.ordinal, s.outcome) for s in run.items[0].sources] == [
        (0, "resolved"),
        (1, "unresolved"),
        (2, "resolved"),
    ]
    learned = {r.attempt for item in run.items for r in item.sources}
    everything, some, none = (attempt_details([(run, maker.store.local)], room) for room in (1_000_000, 1000, 0))
    assert learned <= {value for line in page([run], everything).all("data-attempts") for value in line.split()}
    assert len(everything) == len(none) == 36
    assert all("Step 2" in a["trajectory"] for a in everything.values())
    assert {id_ for id_, a in some.items() if "patch" in a} <= learned
    assert not any("patch" in a for a in none.values())


def test_a_duplicate_says_what_it_repeats_and_its_text_if_the_ledger_holds_it(tmp_path: Path, data_dir: Path) -> None:
    for older in (False, True):
        maker = Maker(tmp_path / str(older), 4, seed=3)
        maker.older = older
        maker.stream(12, 3)
        near = [i for i in build_run(maker.store).items if i.state == "near-duplicate"]
        assert near
        assert all(i.why.startswith("repeats item-") and i.why.endswith("similarity 0.50") for i in near)
        assert {(bool(i.text), bool(i.markdown)) for i in near} == {(not older, not older)}


def test_what_the_owner_put_in_was_learned_from_no_attempt(tmp_path: Path, data_dir: Path) -> None:
    stores = BankStore.create(tmp_path / "own", "owner/name"), sample(tmp_path / "both")
    for store, learned in zip(stores, (0, len(GOOD.items)), strict=True):
        act(
            store,
            "add",
            "AGENTS.md",
            items=[Item(kind="skill", name="setup", text="Run make dev.", markdown="Run it.")],
        )
        run = build_run(store)
        owned = [item for item in run.items if item.owned]
        assert [item.name for item in owned] == ["setup"]
        told = lesson(run, owned[0], {})
        assert told.values["place"] == "owner: AGENTS.md", "whole, though ids of tasks are cut at their dots"
        assert "by the bank's owner: AGENTS.md" in text(told)
        said = origins(run)
        assert (said.values["owned"], said.values["items"] - said.values["owned"]) == (1, learned)
        assert ("proposed by a model" in text(said)) is bool(learned)
        assert text(said) in " ".join(render_page([run], {}).replace("&#39;", "'").split())
