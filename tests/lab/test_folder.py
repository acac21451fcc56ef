"""An experiment's file, and the folder of its runs: what continues, what is refused, how far each run is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.lab import folder
from valve_plugin.lab.folder import list_runs, read
from valve_plugin.lab.run import task_folder

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


FILE = """
name = "bound"
simulate = true
holdout = 3
panel = 3
limit = 3
every = 2
eval_rollouts = 2
seeds = [1]
[settings]
rollouts = 2
rho = "0.1"
[[repository]]
name = "calc"
tasks = "calc"
[[condition]]
use = "valve"
label = "a"
"""
MORE = '[[condition]]\nuse = "batch"\n'


@pytest.fixture
def made(calc: Path, tmp_path: Path) -> Path:
    """A folder in which one run has noted what it is made with."""
    (tmp_path / "calc").symlink_to(calc)
    experiment = read(_file(tmp_path, FILE))
    for run in list_runs(experiment):
        folder.record_run(experiment, run, tmp_path / "out", tmp_path)
        task_folder(experiment, run, tmp_path / "out", tmp_path)
    return tmp_path


def _file(place: Path, text: str) -> Path:
    path = place / "x.toml"
    path.write_text(text)
    return path


def require(place: Path, text: str) -> None:
    experiment = read(_file(place, text))
    folder.require_unchanged(experiment, list_runs(experiment), place / "out", place)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('rho = "0.1"', 'rho = "0.2"', "rho = 0.1, the file now says 0.2"),
        ('rho = "0.1"', 'rho = "0.1"\nmodel_kwargs = { temperature = 1 }', "model_kwargs = {}, the file now says"),
        ("holdout = 3", "holdout = 4", "holdout = 3, the file now says 4"),
        ("limit = 3", "limit = 2", "limit = 3, the file now says 2"),
        ('use = "valve"', 'use = "sentence"', "use = valve, the file now says sentence"),
        ('use = "valve"', 'use = "valve"\npanel = 2', "panel = 3, the file now says 2"),
        ("[[repository]]", MORE + "panel = 4\n[[repository]]", "largest_panel = 3, the file now says 4"),
    ],
)
def test_another_claim_is_refused_with_both_values_and_a_way_out(made, old, new, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        require(made, FILE.replace(old, new))
    assert f"give another --out, or delete {made / 'out'}" in str(caught.value)


def test_defaults_of_another_version_are_refused_in_a_run_that_has_not_ended(made):
    (file,) = (made / "out").glob(f"**/{folder.RUN_FILE}")
    noted = json.loads(file.read_text())
    assert noted["settings"].pop("screen") == Settings().screen
    file.write_text(json.dumps({**noted, "settings": {**noted["settings"], "screen": 2}}))
    with pytest.raises(ConfigError, match=re.escape("screen = 2, the file now says 5: give another --out")):
        require(made, FILE)
    require(made, FILE.replace('rho = "0.1"', 'rho = "0.1"\nscreen = 2'))
    file.write_text(json.dumps(noted))
    with pytest.raises(ConfigError, match="does not say with which screen: finish it with that version"):
        require(made, FILE)
    folder.write_ending(file.parent, "head")
    require(made, FILE)
    with pytest.raises(ConfigError, match="does not say with which screen"):
        require(made, FILE.replace("limit = 3", "limit = 4"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds = [1]", "seeds = [1, 2]"),
        ("[[repository]]", MORE + "[[repository]]"),
        ("limit = 3", "limit = 4"),
        ('rho = "0.1"', 'rho = "0.1"\nworkers = 2\nspeculate = 1\nmax_hours = 3\nbudget_usd = 1'),
        ("[[repository]]", '[[repository]]\nname = "second"\ntasks = "calc"\n[[repository]]'),
        ("[settings]", '[[model]]\nname = "default"\n[[model]]\nname = "m"\nsettings = { step_limit = 9 }\n[settings]'),
    ],
)
def test_what_leaves_the_runs_as_they_are_may_change(made, old, new):
    require(made, FILE.replace(old, new))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tasks.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:-1])),
        ("tasks.jsonl", lambda text: text.replace('"problem_statement": "', '"problem_statement": "More: ')),
        ("repository.toml", lambda text: text + "cpu_seconds = 31\n"),
    ],
    ids=["fewer", "other text", "other tests"],
)
def test_other_tasks_under_the_same_name_are_refused_before_anything_runs(made, tmp_path, name, change):
    (tmp_path / "other").mkdir()
    for file in ("tasks.jsonl", "repository.toml"):
        (tmp_path / "other" / file).write_text((tmp_path / "calc" / file).read_text())
    before = (tmp_path / "calc" / name).read_text()
    (tmp_path / "other" / name).write_text(change(before))
    assert change(before) != before
    other = FILE.replace('tasks = "calc"', 'tasks = "other"')
    with pytest.raises(ConfigError, match="tasks of calc = digest"):
        require(made, other)


def test_a_longer_stream_reopens_the_run_and_a_longer_schedule_of_skillopts_is_another_run(made, tmp_path):
    longer = read(_file(tmp_path, FILE.replace("limit = 3", "")))
    (run,) = list_runs(longer)
    place = tmp_path / "out" / run.path
    (place / "bank").mkdir()
    (place / "bank" / "ledger.jsonl").touch()
    folder.write_ending(place, "head")
    assert folder.read_ending(longer, run, tmp_path / "out").remark == "it ran with limit 3, the file says none"
    folder.record_run(longer, run, tmp_path / "out", tmp_path)
    assert "no longer holds the line" in folder.read_ending(longer, run, tmp_path / "out").remark
    skillopt = FILE.replace('use = "valve"\nlabel = "a"', 'use = "skillopt"')
    experiment = read(_file(tmp_path, skillopt))
    folder.record_run(experiment, list_runs(experiment)[0], tmp_path / "out", tmp_path)
    with pytest.raises(ConfigError, match="limit = 3, the file now says 5"):
        require(made, skillopt.replace("limit = 3", "limit = 5"))


def test_keys_are_not_noted(made, tmp_path):
    with_key = FILE.replace('rho = "0.1"', 'rho = "0.1"\nmodel_kwargs = { api_key = "sk-planted", top_p = 0.5 }')
    experiment = read(_file(tmp_path, with_key.replace("simulate = true", "simulate = false")))
    (run,) = list_runs(experiment)
    folder.record_run(experiment, run, tmp_path / "other", tmp_path)
    noted = (tmp_path / "other" / run.path / folder.RUN_FILE).read_text()
    assert "top_p" in noted
    assert "planted" not in noted
    another = read(_file(tmp_path, with_key.replace("planted", "another").replace("simulate = true", "")))
    (run,) = list_runs(another)
    with pytest.raises(ConfigError, match=r"the solver .* = digest"):
        folder.require_unchanged(another, [run], tmp_path / "other", tmp_path)


@pytest.mark.parametrize("raw", [b"", b"\xff", b'{"use": "valve"}', b"{" * 5000])
@pytest.mark.parametrize("name", [folder.FOLDER_FILE, f"calc/default/a/seed-1/{folder.RUN_FILE}"])
def test_a_damaged_record_is_refused_by_name(made, name, raw):
    (made / "out" / name).write_bytes(raw)
    with pytest.raises(ConfigError, match=re.escape(Path(name).name) + ".*give another --out"):
        require(made, FILE)
