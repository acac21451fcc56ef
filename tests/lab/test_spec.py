"""An experiment's file: what it may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from valve_plugin.errors import ConfigError
from valve_plugin.lab.spec import list_runs, read

FINE = """
name = "two sizes"
seeds = [0, 1]
settings = { rho = "0.05" }

[[repository]]
name = "calc"
tasks = "calc"

[[condition]]
use = "batch"

[[condition]]
use = "valve"
label = "valve-10"
panel = 10
settings = { rho = "0.1" }
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "x.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_combination_is_a_run_and_the_closer_setting_wins(tmp_path):
    experiment = read(written(tmp_path, FINE))
    found = list_runs(experiment)
    assert [str(c.path) for c in found] == [
        "calc/default/batch/seed-0", "calc/default/valve-10/seed-0",
        "calc/default/batch/seed-1", "calc/default/valve-10/seed-1",
    ]  # fmt: skip
    batch, small = (c.settings(experiment) for c in found[:2])
    assert (batch["rho"], batch["rollouts"], batch["panel_size"], batch["seed"]) == ("0.05", 1, 50, 0)
    assert batch["plugins"] == ["valve", "valve_plugin.lab.conditions.ablations:BatchHooks"]
    assert (small["rho"], small["panel_size"], small["plugins"]) == ("0.1", 10, ["valve"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("use = \"batch\"", "use = \"batches\""), r"x\.toml: batches: no condition 'batches'; did you mean 'batch'"),
        (("rho = \"0.05\"", "roh = \"0.05\""), "unknown setting 'roh'; did you mean 'rho'?"),
        (("rho = \"0.05\"", "seed = 3"), "seed is the experiment's to say, not a setting's: write seeds"),
        (("seeds = [0, 1]", "seeds = [1, 0, 1]"), "seeds has 1 twice, which is one run"),
        (("name = \"calc\"\ntasks", "name = \"shared\"\ntasks"), "a repository is called 'shared'"),
        (("label = \"valve-10\"", "label = \"batch\""), "two of its conditions are called 'batch'"),
        (("label = \"valve-10\"", "label = \"../up\""), "label"),
        (("seeds = [0, 1]", "sede = 1"), "sede"),
        (("use = \"batch\"", "use = \"batch\"\npanel = 0"), "batch has panel = 0; only `use = \"valve\"` can"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        read(written(tmp_path, FINE.replace(*change)))


@pytest.mark.parametrize("use", ["document", "inject-all"])
def test_settings_that_belong_to_a_condition_win(tmp_path, use):
    text = FINE.replace('use = "batch"', f'use = "{use}"\nsettings = {{ pairing = "paper" }}')
    experiment = read(written(tmp_path, text.replace('rho = "0.05"', 'pairing = "paper"')))
    ours, ranked, *_ = (run.settings(experiment)["pairing"] for run in list_runs(experiment))
    assert (ours, ranked) == ("deployed", "paper")


def test_a_panel_of_zero_is_no_validation_and_arguments_of_the_model_add_up(tmp_path):
    text = FINE.replace("panel = 10", "panel = 0") + 'model_kwargs = { reasoning_effort = "high" }\n'
    text = text.replace('settings = { rho = "0.1" }\n', "[condition.settings]\n")
    text += '[[model]]\nname = "m"\nsettings = { model_kwargs = { api_base = "http://127.0.0.1:1", top_p = 1 } }\n'
    experiment = read(written(tmp_path, text))
    run = list_runs(experiment)[1]
    assert (run.variant.name, run.condition.gated, run.panel) == ("valve-10", False, 50), "set aside all the same"
    assert run.settings(experiment)["model_kwargs"] == {
        "api_base": "http://127.0.0.1:1", "top_p": 1, "reasoning_effort": "high",
    }  # fmt: skip


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"", b"x = " + b"[" * 5000, b"a = 1\n" * 400_000])
def test_hostile_files_are_refused(tmp_path, raw):
    with pytest.raises(ConfigError):
        read(written(tmp_path, raw))
