"""`valve eval`: whatever kills, slows or breaks it, the ledger says the same; and nobody learns from the holdout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.bank.build import decided
from tests.evolve.library import ASK
from valve_plugin import plugins
from valve_plugin.bank.entries import Baseline, EpochOpened, Evaluated, PanelFixed, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app
from valve_plugin.codec import digest, pretty
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.events import EvaluationAdvanced
from valve_plugin.evidence.evaluations import solve_rate
from valve_plugin.evolve.evaluate import Evaluation, Frozen, holdout_of
from valve_plugin.evolve.open import fix_panel
from valve_plugin.records import Item, Panel, PanelOutcome, PanelResult, Proposal
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.task_set import TaskSet, load


@pytest.fixture(scope="module")
def tasks(calc: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The little library's tasks with a split: 4 to evaluate, 3 to judge by, 7 to learn from."""
    folder = Path(shutil.copytree(calc, tmp_path_factory.mktemp("split") / "calc"))
    found = load(folder)
    (folder / splits.FILE_NAME).write_bytes(pretty(splits.draw("acme/core", found.tasks, holdout=4, panel=3)))
    return folder


@pytest.fixture(autouse=True)
def _no_time(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_SECONDS", "0")


def settings(workers: int = 1) -> Settings:
    return Settings(
        plugins=("valve", "toy"),
        model="toy",
        unsafe_local=True,
        protocol="paper",
        retrieval="paper",
        embedding="hashing",
        workers=workers,
        panel_size=3,
    )


def accept(store: BankStore, item: Item) -> None:
    """Write a proposal and the verdict that accepts it."""
    panel, bank = store.panel(), store.bank
    assert panel is not None
    proposal = Proposal(task_id=f"learned {item.name}", items=(item,))
    store.append(Proposed(proposal=proposal))
    current = store.current_outcomes()
    first = 3 * bank.version + 3
    passed = tuple(
        PanelOutcome(task_id=t.instance_id, ordinal=first + n, outcome="resolved", context_hash=digest("x"))
        for t in panel.tasks
        for n in range(3)
    )
    if current is None:
        failed = tuple(_unresolved(o) for o in passed)
        store.append(Baseline(epoch=1, result=PanelResult(bank_hash=bank.hash, outcomes=failed)))
    store.append(decided(panel, bank, proposal, passed, accept=True, current_passes=0, query=bank.version + 1))


def _unresolved(o: PanelOutcome) -> PanelOutcome:
    return PanelOutcome(task_id=o.task_id, ordinal=o.ordinal - 3, outcome="unresolved", context_hash=digest("y"))


GOOD = Item(kind="skill", name="good", text="GOOD advice about values", markdown="**Scope:** GOOD values")


@pytest.fixture
def make(tasks: Path, tmp_path: Path, installed: None) -> Callable[[str], BankStore]:
    """`make(name)`: a bank with one accepted item, GOOD, and nothing evaluated."""

    def new(name: str) -> BankStore:
        store = BankStore.create(tmp_path / name, "acme/core")
        fix_panel(store, settings(), load(tasks))
        accept(store, GOOD)
        return store

    return new


def evaluation(store: BankStore, tasks: Path, workers: int = 1) -> Evaluation:
    given = settings(workers)
    return Evaluation(plugins.load(given.plugins), store, given, load(tasks), 2)


def ledger(store: BankStore) -> bytes:
    return (store.dir / "ledger.jsonl").read_bytes()


VERSIONS = [Frozen(0), Frozen(1), Frozen(1, ("skill", "good"))]


def test_workers_kills_and_repetition_change_nothing(make, tasks):
    whole, many, killed = make("whole"), make("many"), make("killed")
    evaluation(whole, tasks).run(VERSIONS)
    evaluation(many, tasks, workers=5).run(VERSIONS)
    assert ledger(many) == ledger(whole)
    for deadly in (1, 3, 7, 9, 2, 5):  # the fourth dies in the second bank, which it is then that goes on
        with pytest.raises(KeyboardInterrupt):
            evaluation(killed, tasks, workers=2).run(VERSIONS, _dies_after(deadly))
    evaluation(killed, tasks).run(VERSIONS)
    assert ledger(killed) == ledger(whole)
    evaluation(killed, tasks).run(VERSIONS)
    assert ledger(killed) == ledger(whole), "what is on record is not measured again"
    assert verify(killed.dir) == []
    found = [e for e in whole.entries() if isinstance(e, Evaluated)]
    assert [e.outcomes for e in found[1:]] == [found[1].outcomes] * 2, "equal blocks share their rollouts"
    assert len(whole.local.attempts()) == 4 * 2 * 2
    assert {a.source for a in whole.local.attempts()} == {"eval"}


def _dies_after(rollouts):
    def observe(event):
        if isinstance(event, EvaluationAdvanced) and event.done >= rollouts:
            raise KeyboardInterrupt

    return observe


def test_what_errored_is_unknown_and_only_that_is_run_again(make, tasks, tmp_path, monkeypatch):
    store, down = make("bank"), tmp_path / "down"
    held = load(tasks).split.holdout.tasks
    down.write_text(f"eval {held[0].instance_id[-2:]} 1 {digest_of_nothing()}\n")
    monkeypatch.setenv("TOY_DOWN", str(down))
    (open_,) = evaluation(store, tasks).run([Frozen(0)])
    assert not open_.complete
    assert solve_rate(open_).high - solve_rate(open_).low == pytest.approx(1 / 8)
    down.unlink()
    (final,) = evaluation(store, tasks).run([Frozen(0)])
    assert final.complete
    assert solve_rate(open_).low <= solve_rate(final).low <= solve_rate(open_).high
    assert len([e for e in store.entries() if isinstance(e, Evaluated)]) == 2, "every reading is on record"
    assert [o for o, p in zip(final.outcomes, open_.outcomes, strict=True) if o != p] == [final.outcomes[1]]


def digest_of_nothing():
    from valve_plugin.codec import digest_bytes

    return digest_bytes(b"")[:8]


def test_a_holdout_that_is_not_sealed_is_refused(make, tasks, calc, tmp_path):
    store, found = make("bank"), load(tasks)
    with pytest.raises(TaskError, match="run `valve split TASKS`"):
        evaluation(store, calc)
    assert holdout_of(store, found) == found.split.holdout.tasks
    other = BankStore.create(tmp_path / "judged", "acme/core")
    panel = Panel(tasks=found.split.holdout.tasks[:1])
    other.append(PanelFixed(panel=panel))
    with pytest.raises(TaskError, match="is a task of its panel"):
        holdout_of(other, found)
    taught = BankStore.create(tmp_path / "taught", "acme/core")
    taught.append(Proposed(proposal=Proposal(task_id=found.split.holdout.tasks[1].instance_id, reason="nothing")))
    with pytest.raises(TaskError, match="taught this bank something"):
        holdout_of(taught, found)


def test_what_was_read_is_neither_learned_from_nor_judged_on_without_its_split(tasks, calc, tmp_path, installed):
    """Step 0 is evaluated before anything is learned; then somebody drops the split."""
    store = BankStore.create(tmp_path / "bank", "acme/core")
    evaluation(store, tasks).run([Frozen(0)])
    held = {t.instance_id for t in load(tasks).split.holdout.tasks}
    everything: TaskSet = load(calc)
    stream = fix_panel(store, settings(), everything)
    panel = store.panel()
    assert panel is not None
    assert held.isdisjoint(t.instance_id for t in stream)
    assert held.isdisjoint(t.instance_id for t in panel.tasks)
    assert len(stream) + len(panel.tasks) + len(held) == len(everything.tasks)
    assert any(isinstance(e, EpochOpened) for e in store.entries())


def test_the_command(make, tasks, tmp_path, monkeypatch):
    store = make("bank")
    arguments = ["eval", str(tasks), "--bank", str(store.dir), *ASK, "--rollouts", "2"]
    shown = CliRunner().invoke(app, ["eval", "--show", "--bank", str(store.dir)])
    assert shown.stdout == f"no evaluation is on record; `valve eval --bank {store.dir}` makes one\n"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.replace(f" --bank {store.dir}", "") == EXPECTED
    assert "[16/16]" in done.stderr
    again = CliRunner().invoke(app, [*arguments[:1], *arguments[2:], "--json"])
    facts = json.loads(again.stdout)
    assert facts["checkpoints"][1]["line"] == 8
    assert facts["drawdown"] == [0.0, 0.0]
    lines = CliRunner().invoke(app, ["bank", "log", "--bank", str(store.dir)])
    assert lines.stdout.splitlines()[-1] == "    8  read the holdout for version 1: 4 of 8 rollouts passed on 4 tasks"
    down = tmp_path / "down"
    down.write_text("".join(f"eval {t.instance_id[-2:]} 2 {digest_of_nothing()}\n" for t in load(tasks).tasks))
    monkeypatch.setenv("TOY_DOWN", str(down))
    open_ = CliRunner().invoke(app, [*arguments[:-1], "3"])
    assert open_.exit_code == 3
    assert " to " in open_.stdout
    assert "not final; run again" in open_.stderr


def test_each_item_alone_is_a_report_that_spends_the_holdout(make, tasks, tmp_path):
    store = make("bank")
    arguments = ["eval", str(tasks), "--bank", str(store.dir), *ASK, "--rollouts", "2", "--items"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    header, row, note = done.stdout.splitlines()
    assert header.split("\t") == ["KIND", "NAME", "GAIN", "INTERVAL", "MOVED", "LINE"]
    assert row.split("\t")[:3] == ["skill", "good", "+12.5"]
    assert note.startswith("Report only. This holdout is now spent")
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    (item,) = facts["items"]
    assert item["low"] <= item["gain"] <= item["high"]
    entry = list(store.entries())[item["line"] - 1]
    assert isinstance(entry, Evaluated)
    assert entry.only == ("skill", "good")
    sorting = tmp_path / "sorted.toml"
    sorting.write_text('code_semantics = ["good"]\n')
    lines = CliRunner().invoke(app, [*arguments, "--categories", str(sorting)]).stdout.splitlines()
    assert lines[1].split("\t")[-1] == "code_semantics"
    assert lines[2].split("\t") == ["CATEGORY", "NOTES", "GAIN", "INTERVAL"]
    assert lines[3].split("\t")[:3] == ["code_semantics", "1", "+12.5"]
    wrong = CliRunner().invoke(app, ["eval", "--bank", str(store.dir), "--categories", str(sorting), "--show"])
    assert (wrong.exit_code, "give --items as well" in wrong.stderr) == (2, True)


def test_no_item_is_no_reading_of_the_holdout(tasks, tmp_path, installed):
    store = BankStore.create(tmp_path / "empty", "acme/core")
    done = CliRunner().invoke(app, ["eval", str(tasks), "--bank", str(store.dir), *ASK, "--items"])
    assert (done.exit_code, "holds no notes" in done.stderr, done.stdout) == (2, True, "")
    assert len(list(store.entries())) == 1


EXPECTED = """\
STEP\tVERSION\tAVG@2\tGAIN\tBETTER\tWORSE\tLINE
0\t0\t37.5 %\t+0.0\t0\t0\t7
0\t1\t50.0 %\t+12.5\t1\t0\t8
final     50.0 % at step 0, +12.5
peak      50.0 % at step 0: selected on this holdout, so it is no untouched final-test estimate
drawdown  0.0 from peak to final
4 holdout tasks; `valve certify` says what this proves
"""
