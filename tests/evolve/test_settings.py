"""No setting is accepted without effect: each is used by a run, refused by it, or named by a notice."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

import valve_plugin
from tests.evolve import library
from tests.evolve.test_ledger import ledger
from valve_plugin import config
from valve_plugin.bank.entries import EpochOpened
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.cli.options import overrides
from valve_plugin.config import NAMES, Settings, Use, is_unused
from valve_plugin.errors import ConfigError
from valve_plugin.evolve.open import open_run
from valve_plugin.gate.plan import differing_settings
from valve_plugin.paths import local_dir
from valve_plugin.records import Panel, PanelTask

OTHER: dict[str, Any] = {
    "bank": "x", "repo": "o/r", "language": "x", "test_command": "x", "check": "x", "check_timeout": 7, "attempts": 2,
    "learn": "off", "review": "off", "protocol": "paper", "agent": "claude",
    "digest_tokens": 2000, "model": "x/y", "model_class": "litellm", "model_kwargs": {"temperature": 0.5},
    "mini_config": ["agent.x=1"], "model_tries": 3, "model_pause": 2.0, "step_limit": 7, "cost_limit": 7.0,
    "agent_hours": 1.0, "agent_memory": 2048,
    "top_principles": 3, "top_skills": 3, "retrieval": "paper", "embedding": "x/y",
    "context_bytes": 7000, "rho": "0.3", "screen": 1, "panel_size": 3, "rollouts": 5,
    "pairing": "deployed", "early_stop": False, "confirm": True, "guard": 1, "horizon": 7, "delta": "0.3",
    "max_mixed": 7, "panel_seed": 7, "seed": 7, "tasks": "x", "plugins": ["valve", "x"], "condition": "valve",
    "workers": 2, "sandbox": "bwrap", "keep_history": True, "budget_usd": 7.0, "max_rollouts": 7, "max_hours": 7.0,
    "speculate": 0.5, "unsafe_local": True, "executor": "ray", "ray_address": "x:1", "tracker": "x",
    "false_accepts": 2.0,
}  # fmt: skip
"""A value of each setting that is not the default."""
PANEL = ("rho", "panel_size", "rollouts", "pairing", "panel_seed")
EPOCH = ("horizon", "delta", "confirm", "guard")
LIVE_ROOMS = ("agents", "live", "retrieval", "rollouts", "sandbox", "tasks", "hooks")
RUN_ROOMS = ("agents", "evolve", "extract", "gate", "lab", "retrieval", "rollouts", "sandbox", "tasks", "cli")


def text(name: str) -> str:
    value = OTHER[name]
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def test_the_list_of_values_is_complete() -> None:
    assert set(OTHER) == set(NAMES), "a new setting needs a value here, and in config._USES where not all runs use it"
    for name, value in OTHER.items():
        assert config.resolve({name: value}) != Settings(), name
    listed = [name for names in config._USES for name in names.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(NAMES)
    assert {use for uses in config._USES.values() for use in uses.split()} <= set(get_args(Use))


@pytest.mark.parametrize("use", get_args(Use))
def test_a_setting_is_read_by_what_uses_it_or_refused_by_name(use: Use) -> None:
    """Of each setting that a run accepts, some module of its rooms reads the value."""
    package = Path(valve_plugin.__file__).parent
    rooms = LIVE_ROOMS if use in ("live", "attempts") else RUN_ROOMS
    source = "".join(path.read_text() for room in rooms for path in (package / room).rglob("*.py"))
    for name in NAMES:
        if is_unused(name, use):
            with pytest.raises(ConfigError, match=rf"{name} has no effect in this command; leave it out"):
                overrides([text(name)], use)
        else:
            assert overrides([text(name)], use, simulate=True) == {name: OTHER[name]}
            assert re.search(rf"\b(settings|asked|run|base|self)\.{name}\b|getattr\(settings", source), (name, use)


def test_a_seed_is_for_what_draws() -> None:
    with pytest.raises(ConfigError, match="seed has no effect"):
        overrides([], "learn", seed=5)
    assert overrides(['plugins=["valve", "toy"]'], "learn", seed=5)["seed"] == 5
    assert overrides([], "learn", simulate=True, seed=5) == {"seed": 5}


@pytest.fixture
def bank(whole: Path, tmp_path: Path) -> Path:
    """A bank whose panel and epoch are fixed."""
    shutil.copytree(whole, tmp_path / "bank")
    shutil.copytree(local_dir(whole), local_dir(tmp_path / "bank"))
    return tmp_path / "bank"


TOY = [word for number, word in enumerate(library.TOY) if word == "-c" or library.TOY[number - 1] == "-c"]
"""The toy plugin, without settings of panel and epoch."""


@pytest.fixture
def run(calc: Path, installed: None, bank: Path) -> Callable[..., Result]:
    tasks = {"evolve": [str(calc)], "gate": ["--tasks", str(calc)], "panel": ["--tasks", str(calc)]}

    def invoke(command: str, *arguments: str) -> Result:
        name, *more = command.split()
        given = [name, *more, *TOY, *tasks[name], "--bank", str(bank), *arguments]
        return CliRunner().invoke(app, given)

    return invoke


@pytest.mark.parametrize("command", ["evolve", "evolve --new-epoch", "panel run --current"])
def test_what_is_fixed_is_not_ignored_without_a_word(run: Callable[..., Result], bank: Path, command: str) -> None:
    before = ledger(bank)
    for name in (*PANEL, *(() if "--new-epoch" in command else EPOCH)):
        done = run(command, "-c", text(name))
        assert done.exit_code == 2, (name, done.output)
        assert re.search(rf"{name} is .*, but the (panel|epoch) of .* and keeps it", done.stderr), done.stderr
        assert "--bank DIR" in done.stderr or "--new-epoch" in done.stderr
    assert ledger(bank) == before


def test_what_agrees_with_what_is_fixed_is_no_error(run: Callable[..., Result], bank: Path) -> None:
    store = BankStore.open(bank)
    panel, epoch = store.panel(), store.epoch()
    assert panel
    assert epoch
    same = [f"rho={panel.rho}0", f"rollouts={panel.rollouts}", f"pairing={panel.pairing}", f"horizon={epoch.horizon}"]
    done = run("evolve", *(word for one in same for word in ("-c", one)))
    assert done.exit_code == 0, done.output


def test_a_new_epoch_takes_its_terms(calc: Path, installed: None, bank: Path) -> None:
    given = overrides([*TOY[1::2], *(text(name) for name in EPOCH)], "learn")
    for _ in range(2):  # opened again with the same terms, it stays open
        with open_run(str(calc), str(bank), given, new_epoch=True) as opened:
            epoch = opened.store.epoch()
            assert epoch
            assert (epoch.horizon, epoch.delta) == (7, "0.3")
            assert epoch.conditions
    assert [e.epoch for e in BankStore.open(bank).entries() if isinstance(e, EpochOpened)] == [1, 2]


def test_the_banks_own_file_is_said_to_have_no_effect(run: Callable[..., Result], bank: Path) -> None:
    with (bank / config.FILE_NAME).open("a") as file:
        file.write('rho = "0.3"\nhorizon = 7\n')
    done = run("evolve")
    assert done.exit_code == 0, done.output
    said = done.stderr.replace("\n", " ")
    assert re.search(r"valve: rho in \S+valve.toml has no effect", said)
    assert re.search(r"valve: horizon in \S+valve.toml has no effect", said)


@pytest.mark.parametrize(("kept", "agrees"), [("hashing", True), ("fused", True), ("fused:a/model", False)])
def test_the_same_vectors_agree_under_either_ranking(kept, agrees):
    panel = Panel(tasks=(PanelTask(instance_id="t", content_hash="0" * 64),), embedding=kept)
    assert (differing_settings({"embedding": "hashing"}, panel, None) == []) == agrees
