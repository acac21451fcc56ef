"""Whole runs of every condition: killed and resumed they end alike, and what runs share is what is the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.evolve import library
from tests.evolve.conftest import calc, toy  # noqa: F401 (fixtures)
from tests.tools import need
from valve_plugin.bank.entries import Evaluated
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli.session import holding, running
from valve_plugin.experiment import tables
from valve_plugin.experiment.conditions import NAMES
from valve_plugin.experiment.results import collect
from valve_plugin.experiment.run import SHARED, run_cell
from valve_plugin.experiment.spec import Experiment, cells, read
from valve_plugin.hookspecs import hookimpl

OWN = [name for name in NAMES if name != "skillopt"]
MATRIX = """
name = "all conditions, toy agent"
simulate = true
holdout = 3
panel = 3
limit = 5
every = 2
eval_rollouts = 2
settings = { rollouts = 2, embedding = "hashing", rho = "0.1", unsafe_local = true }
[[repository]]
name = "calc"
tasks = "calc"
"""


@pytest.fixture
def start(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:  # noqa: F811
    """Starts runs whose agent is the toy; extraction asks the scripted model."""
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TOY_SECONDS", "0")
    monkeypatch.setenv("TOY_ASKS", "1")

    @contextmanager
    def begin(tasks, bank, given, *, simulate, gated, panel):
        given = {**given, "plugins": [*given["plugins"], "toy"]}
        if panel:
            with running(tasks, bank, given, simulate=simulate, gated=gated) as run:
                yield run
        else:
            with holding(tasks, bank, given, simulate=simulate) as run:
                yield run

    return begin


def experiment(folder: Path, calc: Path, *names: str) -> Experiment:  # noqa: F811
    shutil.copytree(calc, folder / "calc", dirs_exist_ok=True)
    file = folder / "matrix.toml"
    file.write_text(MATRIX + "".join(f'[[condition]]\nuse = "{name}"\n' for name in names))
    return read(file)


def ledger(out: Path, name: str) -> bytes:
    return (out / "calc" / "default" / name / "seed-0" / "bank" / "ledger.jsonl").read_bytes()


class Deadly:
    """Kills the run at its nth event."""

    def __init__(self, events: int) -> None:
        self.left = events

    @hookimpl
    def valve_event(self, name, data):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def killing(start, events):
    @contextmanager
    def begin(*arguments, **options):
        with start(*arguments, **options) as run:
            run.manager.register(Deadly(events))
            yield run

    return begin


@pytest.mark.heavy
@pytest.mark.parametrize("name", OWN)
def test_killed_and_resumed_a_condition_ends_as_uninterrupted(name, calc, start, tmp_path):  # noqa: F811
    made = experiment(tmp_path, calc, name)
    (cell,) = cells(made)
    run_cell(made, cell, tmp_path / "whole", tmp_path, start, 1)
    for events in (5, 13):
        try:
            run_cell(made, cell, tmp_path / "killed", tmp_path, killing(start, events), 2)
        except KeyboardInterrupt:
            continue
    bank = run_cell(made, cell, tmp_path / "killed", tmp_path, start, 2)
    assert ledger(tmp_path / "killed", name) == ledger(tmp_path / "whole", name)
    assert verify(bank) == []
    before = ledger(tmp_path / "whole", name)
    run_cell(made, cell, tmp_path / "whole", tmp_path, start, 1)
    assert ledger(tmp_path / "whole", name) == before, "a finished run has nothing to add"


def test_runs_share_what_is_the_same_and_every_number_has_its_line(calc, start, tmp_path):  # noqa: F811
    made = experiment(tmp_path, calc, "base", "ungated")
    out = tmp_path / "out"
    banks = [run_cell(made, cell, out, tmp_path, start, 1) for cell in cells(made)]
    alone = [run_cell(made, cell, tmp_path / "alone", tmp_path, start, 1) for cell in list(cells(made))[1:]]
    assert (alone[0] / "ledger.jsonl").read_bytes() == (banks[1] / "ledger.jsonl").read_bytes(), (
        "sharing changes nothing"
    )
    first = [next(e for e in BankStore.open(b).entries() if isinstance(e, Evaluated)) for b in banks]
    assert first[0].outcomes == first[1].outcomes
    assert {(BankStore.open(b).local.dir / name).resolve() for b in banks for name in SHARED} == {
        (out / "shared" / name).resolve() for name in SHARED
    }
    rows = collect(made, out)
    assert [r.condition for r in rows] == ["base", "ungated"]
    assert (rows[0].steps, rows[0].hours, rows[0].gain) == (0, 0.0, (0.0, 0.0))
    for row in rows:
        lines = (out / row.ledger).read_bytes().splitlines()
        for point in row.curve:
            assert b'"type":"evaluated"' in lines[point.line - 1]
    assert "ledger line" in tables.markdown(rows, "t", simulated=True)


@pytest.mark.heavy
def test_a_small_matrix_with_real_rollouts(calc, tmp_path):  # noqa: F811
    """The committed matrix, on the little library: real agent, sandbox, tests and gate; only the model is scripted."""
    need("bwrap")
    shutil.copytree(calc, tmp_path / "calc")
    shutil.copy(Path(__file__).with_name("matrix.toml"), tmp_path)
    done = library.valve("experiment", "run", tmp_path / "matrix.toml", "--out", tmp_path / "out", "--workers", "2")
    assert "SIMULATION" in (tmp_path / "out" / "tables.md").read_text()
    made = read(tmp_path / "matrix.toml")
    rows = collect(made, tmp_path / "out")
    assert [r.condition for r in rows] == [v.name for v in made.condition], done.stderr
    assert len({r.base for r in rows}) == 1, "step 0 is the same for all"
    for row in rows:
        assert verify((tmp_path / "out" / row.ledger).parent) == []
