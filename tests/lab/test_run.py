"""Whole runs of every condition: killed and resumed they end alike, and what runs share is what is the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.evolve import library
from tests.lab.simulation.rows import requests
from tests.tools import need
from valve_plugin.bank.entries import Evaluated, Judged, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app
from valve_plugin.cli import experiment as command
from valve_plugin.cli.runs import open_run
from valve_plugin.errors import BankBusyError, ConfigError, TaskError
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab import folder, results
from valve_plugin.lab.folder import Experiment, ExperimentRun, list_runs, read
from valve_plugin.lab.results import collect
from valve_plugin.lab.run import SHARED, complete_run, draw_split, task_folder
from valve_plugin.records import Proposal
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.task_set import load

SWEEPS = {
    "told-confirm-2": "panel = 2\nfeedback = true\nsettings = { confirm = true }",
    "deployed-effort": 'settings = { pairing = "deployed", model_kwargs = { reasoning_effort = "high" } }',
    "no-panel": "panel = 0",
}
"""Variants of the reference protocol that a sweep would list, by label."""
MATRIX = """
name = "all conditions, toy agent"
simulate = true
holdout = 3
panel = 3
limit = 6
every = 2
eval_rollouts = 2
seeds = [1]
settings = { rollouts = 2, embedding = "hashing", rho = "0.1", unsafe_local = true }
[[repository]]
name = "calc"
tasks = "calc"
"""


@pytest.fixture
def start(installed: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Starts runs whose agent is the toy; extraction asks the scripted model."""
    monkeypatch.setenv("TOY_SECONDS", "0")
    monkeypatch.setenv("TOY_ASKS", "1")

    def begin(tasks, bank, given, **options):
        return open_run(tasks, bank, {**given, "plugins": [*given["plugins"], "toy"]}, **options)

    return begin


def experiment(place: Path, calc: Path, *names: str) -> Experiment:
    if not (place / "calc").exists():
        (place / "calc").symlink_to(calc)
    file = place / "matrix.toml"
    file.write_text(MATRIX + "".join(map(condition, names)))
    return read(file)


def complete(made: Experiment, run: ExperimentRun, out: Path, start: Callable[..., Any], workers: int = 1) -> Path:
    """Complete a run; the experiment's file is beside its folder."""
    return complete_run(made, run, out, out.parent, {"workers": workers}, start)


def condition(name: str) -> str:
    """One condition of the file: a plain one, or a sweep's variant under its label."""
    asked = f'use = "valve"\nlabel = "{name}"\n{SWEEPS[name]}' if name in SWEEPS else f'use = "{name}"'
    return f"[[condition]]\n{asked}\n"


def counted(run: Path) -> set[str]:
    return set(results.read_times(run))


def in_verdicts(run: Path) -> set[tuple[str, str, int]]:
    """What learning measured according to the ledger, attempts that taught nothing left out."""
    found = set()
    for entry in BankStore.open(run / "bank").entries():
        for part, outcomes in (("verdict", "measured"), ("result", "outcomes")):
            found |= {("panel", o.task_id, o.ordinal) for o in getattr(getattr(entry, part, None), outcomes, ())}
        found |= {("evolve", a.task_id, a.ordinal) for a in getattr(entry, "attempts", ())}
    return found


def require_same_hours(whole: Path, killed: Path) -> None:
    """A hard stop loses no rollout: two workers may finish more of a gate than its verdict needs, and no fewer."""
    one, other = counted(whole), counted(killed)
    assert {r for r in one if r.startswith("evolve")} == {r for r in other if r.startswith("evolve")}
    for run, names in ((whole, one), (killed, other)):
        noted = {(source, task, int(ordinal)) for source, task, ordinal, *_ in map(str.split, names)}
        assert in_verdicts(run) <= noted, "what the ledger holds was counted"


def ledger(out: Path, name: str) -> bytes:
    return (out / "calc" / "default" / name / "seed-1" / "bank" / "ledger.jsonl").read_bytes()


class Deadly:
    """Kills its process at the nth event, by the signal that nothing can catch."""

    def __init__(self, events: int) -> None:
        self.left = events

    @hookimpl
    def valve_event(self, name, data):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(made, run, out, start, events) -> None:
    """Run the run in a process of its own that is killed at its nth event."""

    @contextmanager
    def killing(*arguments, **options):
        with start(*arguments, **options) as run:
            run.manager.register(Deadly(events))
            yield run

    child = os.fork()
    if child == 0:
        try:
            complete(made, run, out, killing, 2)
        finally:
            os._exit(1)  # it was not killed, or it broke: nothing of the parent's may run here
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended before its nth event"
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["base", "ungated", "document", "batch", "skillopt", *list(SWEEPS)[:2]])
def test_killed_and_resumed_a_condition_ends_as_uninterrupted(name, calc, start, tmp_path, monkeypatch):
    if name == "skillopt":
        pytest.importorskip("skillopt")
    asked = requests(monkeypatch)
    made = experiment(tmp_path, calc, name)
    (run,) = list_runs(made)
    complete(made, run, tmp_path / "whole", start)
    CHECKS.get(name, lambda *about: None)(tmp_path / "whole" / run.path, asked)
    run_until_killed(made, run, tmp_path / "killed", start, 5 if name == "base" else 14)
    assert collect(made, tmp_path / "killed").rows == [], "what is under way is no result"
    before = counted(tmp_path / "killed" / run.path)
    bank = complete(made, run, tmp_path / "killed", start, 2)
    assert len(collect(made, tmp_path / "killed").rows) == 1
    assert before <= counted(tmp_path / "killed" / run.path)
    require_same_hours(tmp_path / "whole" / run.path, tmp_path / "killed" / run.path)
    assert ledger(tmp_path / "killed", name) == ledger(tmp_path / "whole", name)
    assert verify(bank) == []
    before = ledger(tmp_path / "whole", name)
    complete(made, run, tmp_path / "whole", start)
    assert ledger(tmp_path / "whole", name) == before, "a finished run has nothing to add"


def told_and_confirmed(run: Path, asked: list[dict]) -> None:
    """A smaller panel, confirmation, and a reflection that reads verdicts."""
    entries = list(BankStore.open(run / "bank").entries())
    verdicts = [e.verdict for e in entries if isinstance(e, Judged)]
    assert {(v.n_tasks, v.conditions.confirm) for v in verdicts} == {(2, True)}
    assert any(v.confirming for v in verdicts), "one was repeated"
    proposals = {e.proposal.id: e.proposal for e in entries if isinstance(e, Proposed)}
    told = [text for text in prompts(asked) if "What validation decided about earlier notes" in text]
    said = re.findall(r"^- (accept|reject): (.*?)\)?$", told[-1], re.MULTILINE)
    assert said
    for line, verdict in zip(said, verdicts, strict=False):
        items = ", ".join(f"{i.kind} {i.name}" for i in proposals[verdict.proposal_id].items)
        assert line == (verdict.decision, items)


def deployed_and_at_high_effort(run: Path, asked: list[dict]) -> None:
    """The other pairing; what reflects is asked for more effort (tests/agents has the agent's own requests)."""
    verdicts = [e.verdict for e in BankStore.open(run / "bank").entries() if isinstance(e, Judged)]
    assert {v.pairing for v in verdicts} == {"deployed"}
    assert {request.get("reasoning_effort") for request in asked} == {"high"}
    assert prompts(asked)
    assert not any("What validation decided" in text for text in prompts(asked)), "the other switch is off"


def trained(run: Path, asked: list[dict]) -> None:
    """SkillOpt's own trainer ran on our tasks, and its analysts answered."""
    log = (run / "skillopt.log").read_text()
    for line in ("BASELINE", "[1/6 ROLLOUT]", "edits"):
        assert line in log


def prompts(asked: list[dict]) -> list[str]:
    return [str(request["messages"][-1]["content"]) for request in asked]


CHECKS = {"told-confirm-2": told_and_confirmed, "deployed-effort": deployed_and_at_high_effort, "skillopt": trained}


def test_runs_share_what_is_the_same_and_every_number_has_its_line(calc, start, tmp_path):
    made, out = experiment(tmp_path, calc, "base", "no-panel"), tmp_path / "out"
    banks = [complete(made, run, out, start) for run in list_runs(made)]
    (other,) = list_runs(experiment(tmp_path, calc, "ungated"))
    complete(made, other, tmp_path / "alone", start)
    assert ledger(tmp_path / "alone", "ungated") == ledger(out, "no-panel"), (
        "sharing changes nothing, and a panel of 0 is no validation"
    )
    first = [next(e for e in BankStore.open(b).entries() if isinstance(e, Evaluated)) for b in banks]
    assert first[0].outcomes == first[1].outcomes
    assert {(BankStore.open(b).local.dir / name).resolve() for b in banks for name in SHARED} == {
        (out / "shared" / name).resolve() for name in SHARED
    }
    rows, remarks = collect(made, out)
    assert [r.condition for r in rows] == ["base", "no-panel"]
    assert remarks == {}
    assert (rows[0].steps, rows[0].hours, rows[0].gain) == (0, 0.0, (0.0, 0.0))
    for row in rows:
        lines = (out / row.ledger).read_bytes().splitlines()
        for point in row.curve:
            assert b'"type":"evaluated"' in lines[point.line - 1]
    assert "ledger line" in results.markdown(rows, "t", simulated=True)
    _what_comes_after_the_run_takes_nothing_away(made, out, start)
    (out / "calc" / "default" / "base" / "seed-1" / folder.END_FILE).unlink()
    rows, remarks = collect(made, out)
    assert [r.condition for r in rows] == ["no-panel"], "what has not ended is no result"
    assert remarks["calc/default/base/seed-1"] == "begun and not ended"


def _what_comes_after_the_run_takes_nothing_away(made, out, start):
    rows, run = collect(made, out).rows, list_runs(made)[1]
    bank = out / run.path / "bank"
    store = BankStore.open(bank)
    reading = next(e for e in store.entries() if isinstance(e, Evaluated))
    store.append(replace(reading, outcomes=tuple(replace(o, outcome="resolved") for o in reading.outcomes)))
    assert collect(made, out) == (rows, {}), "a later reading of the holdout is no part of the run"
    store.append(Proposed(proposal=Proposal(task_id="later"), attempts=()))
    found = collect(made, out)
    remark = found.remarks[run.path.as_posix()]
    assert found.rows == rows
    assert "its bank went on after the run" in remark
    assert remark in results.markdown(found.rows, "t", simulated=True, remarks=found.remarks)
    before = (bank / "ledger.jsonl").read_bytes()
    complete(made, run, out, start)
    assert (bank / "ledger.jsonl").read_bytes() == before, "and a later start leaves it alone"


def test_panel_sizes_share_holdout_and_stream_and_the_smaller_is_part_of_the_larger(calc, tmp_path):
    made = experiment(tmp_path, calc, "valve", "told-confirm-2")
    large, small = (
        splits.read(task_folder(made, run, tmp_path / "out", tmp_path) / splits.FILE_NAME) for run in list_runs(made)
    )
    assert (small.holdout, small.stream) == (large.holdout, large.stream)
    assert small.panel.tasks == large.panel.tasks[:2]
    assert len(large.panel.tasks) == 3


def test_sizes_that_do_not_fit_are_answered_in_the_file_s_own_words(calc, tmp_path):
    made = replace(experiment(tmp_path, calc, "valve"), holdout=100)
    with pytest.raises(
        TaskError, match=r"such as holdout = 2, and no panel above 7, in the experiment's file"
    ) as caught:
        draw_split(made, load(calc))
    assert "--" not in str(caught.value)
    draw_split(replace(made, holdout=2, panel=7), load(calc))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["ungated", "batch"])
def test_a_longer_stream_goes_on_where_the_shorter_one_ended(name, calc, start, tmp_path):
    made = experiment(tmp_path, calc, name)
    (run,) = list_runs(made)
    complete(made, run, tmp_path / "whole", start)
    complete(replace(made, limit=3), run, tmp_path / "grown", start)
    assert collect(made, tmp_path / "grown").remarks == {run.path.as_posix(): "it ran with limit 3, the file says 6"}, (
        "a table would claim what did not run"
    )
    complete(made, run, tmp_path / "grown", start)
    (one,), (other,) = (collect(made, tmp_path / place).rows for place in ("whole", "grown"))
    assert (one.final, one.each, one.steps, one.skills) == (other.final, other.each, other.steps, other.skills)
    assert counted(tmp_path / "whole" / run.path) == counted(tmp_path / "grown" / run.path)
    with pytest.raises(ConfigError, match="limit = 6, the file now says 3"):
        complete(replace(made, limit=3), run, tmp_path / "grown", start)


@pytest.mark.heavy
def test_what_stops_one_run_stops_no_other(calc, start, tmp_path, monkeypatch):
    """A budget, a horizon: the tables are written, and say which runs are missing and why."""
    experiment(tmp_path, calc, "base")
    limits = {"poor": "max_rollouts = 16", "short": "horizon = 1"}
    file = tmp_path / "matrix.toml"
    file.write_text(
        MATRIX
        + "".join(f'[[condition]]\nuse = "valve"\nlabel = "{n}"\nsettings = {{ {s} }}\n' for n, s in limits.items())
        + condition("base")
    )
    monkeypatch.setattr(command, "open_run", start)
    asked = ["experiment", "run", str(file), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2, done.output
    page = (tmp_path / "out" / "tables.md").read_text()
    assert re.search(r"^\| base \| [\d.]+ \(", page, re.MULTILINE), done.output
    assert "- `calc/default/poor/seed-1`: the budget of" in page
    assert "- `calc/default/short/seed-1`: its gate queries are used up" in page
    assert "--new-epoch" not in done.output
    assert CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "poor"), "--only", "poor"]).exit_code == 4
    assert CliRunner().invoke(app, [*asked, "--only", "base", "--only", "bsae"]).exit_code == 2

    def beaten(*about):
        complete_run(*about)
        raise BankBusyError("process 7 is evolving")

    monkeypatch.setattr("valve_plugin.lab.run.complete_run", beaten)
    done = CliRunner().invoke(app, [*asked, "--only", "base"])
    page = (tmp_path / "out" / "tables.md").read_text()
    assert (done.exit_code, "process 7" in page) == (0, False), "another process took it to its end"
    (last,) = [run for run in list_runs(read(file)) if run.variant.name == "base"]
    bank = tmp_path / "out" / last.path / "bank"
    with BankStore.open(bank).lease(), pytest.raises(BankBusyError):
        complete(replace(read(file), limit=None), last, tmp_path / "out", start)
    assert (bank.parent / folder.END_FILE).exists(), "who does not get the lease reopens nothing"


@pytest.mark.parametrize(
    ("names", "message"), [(("base", "skillopt"), "skillopt==0.2.0 is needed"), (("base",), "no model is named")]
)
def test_what_is_missing_is_reported_before_a_folder_is_made(names, message, calc, tmp_path, monkeypatch):
    experiment(tmp_path, calc, *names)
    file = tmp_path / "matrix.toml"
    if "skillopt" not in names:
        file.write_text(file.read_text().replace("simulate = true", "simulate = false"))
    monkeypatch.setattr("valve_plugin.lab.conditions.skillopt.version", lambda name: "0.1")
    monkeypatch.delenv("MSWEA_MODEL_NAME", raising=False)
    monkeypatch.setattr("valve_plugin.agents.mini.load_user_settings", lambda: None)
    done = CliRunner().invoke(app, ["experiment", "run", str(file), "--out", str(tmp_path / "out")])
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_every_condition_of_a_small_matrix(calc, start, tmp_path):
    (tmp_path / "calc").symlink_to(calc)
    shutil.copy(Path(__file__).with_name("matrix.toml"), tmp_path)
    made = read(tmp_path / "matrix.toml")
    made = replace(made, settings={**made.settings, "unsafe_local": True})
    for run in list_runs(made):
        complete(made, run, tmp_path / "out", start, 2)
    require_sound(made, tmp_path / "out", [v.name for v in made.condition])


@pytest.mark.heavy
def test_a_small_matrix_with_real_rollouts(calc, tmp_path):
    """The conditions whose rollouts differ: real agent, sandbox, tests and gate; only the model is scripted."""
    need("bwrap")
    (tmp_path / "calc").symlink_to(calc)
    shutil.copy(Path(__file__).with_name("matrix.toml"), tmp_path)
    names = ["base", "skillopt", "valve", "document"]
    only = [word for name in names for word in ("--only", name)]
    done = library.valve(
        "experiment", "run", tmp_path / "matrix.toml", "--out", tmp_path / "out", "--workers", "2", *only
    )
    assert "SIMULATION" in (tmp_path / "out" / "tables.md").read_text(), done.stderr
    require_sound(read(tmp_path / "matrix.toml"), tmp_path / "out", names)


def require_sound(made: Experiment, out: Path, names: list[str]) -> None:
    rows, remarks = collect(made, out)
    assert sorted(r.condition for r in rows) == sorted(names)
    assert len(remarks) == len(made.condition) - len(names), "of those that did not run"
    assert len({r.base for r in rows}) == 1, "step 0 is the same for all"
    for row in rows:
        assert verify((out / row.ledger).parent) == []
