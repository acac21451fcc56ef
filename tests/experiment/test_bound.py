"""What a folder's runs were made with: a file that says something else is refused, with the difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from valve_plugin.codec import decode, digest, pretty
from valve_plugin.errors import ConfigError
from valve_plugin.experiment import bound
from valve_plugin.experiment.run import task_folder
from valve_plugin.experiment.spec import cells, read
from valve_plugin.tasks.load import load

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
    for cell in cells(experiment):
        bound.bind(experiment, cell, tmp_path / "out", tmp_path)
        task_folder(experiment, cell, tmp_path / "out", tmp_path)
    return tmp_path


def _file(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text)
    return path


def require(folder: Path, text: str, *, tables: bool) -> None:
    experiment = read(_file(folder, text))
    bound.require(experiment, list(cells(experiment)), folder / "out", folder, tables=tables)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('rho = "0.1"', 'rho = "0.2"', "rho = 0.1, the file now says 0.2"),
        ('rho = "0.1"', "", "rho = 0.1, the file now says 0.02"),
        ('rho = "0.1"', 'rho = "0.1"\nconfirm = true', "confirm = false, the file now says true"),
        ('rho = "0.1"', 'rho = "0.1"\nmodel = "openai/m"', "model = , the file now says openai/m"),
        ('rho = "0.1"', 'rho = "0.1"\nmodel_kwargs = { temperature = 1 }', "model_kwargs = {}, the file now says"),
        ("rollouts = 2\nrho", "rollouts = 3\nrho", "rollouts = 2, the file now says 3"),
        ("holdout = 3", "holdout = 4", "holdout = 3, the file now says 4"),
        ("holdout = 3", "holdout = 3\nholdout_seed = 7", "holdout_seed = 42, the file now says 7"),
        ("eval_rollouts = 2", "eval_rollouts = 3", "eval_rollouts = 2, the file now says 3"),
        ("every = 2", "every = 3", "every = 2, the file now says 3"),
        ("simulate = true", "simulate = false", "simulate = true, the file now says false"),
        ("limit = 3", "limit = 2", "limit = 3, the file now says 2"),
        ('use = "valve"', 'use = "sentence"', "use = valve, the file now says sentence"),
        ('use = "valve"', 'use = "valve"\nfeedback = true', "feedback = false, the file now says true"),
        ('use = "valve"', 'use = "valve"\npanel = 2', "panel = 3, the file now says 2"),
        ("[[repository]]", MORE + "panel = 4\n[[repository]]", "largest_panel = 3, the file now says 4"),
    ],
)
def test_another_claim_is_refused_with_both_values_and_a_way_out(made, old, new, said, tables):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        require(made, FILE.replace(old, new), tables=tables)
    assert f"give another --out, or delete {made / 'out'}" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds = [1]", "seeds = [1, 2]"),
        ("[[repository]]", MORE + "[[repository]]"),
        ("[[repository]]", MORE + "panel = 2\n[[repository]]"),
        ("limit = 3", "limit = 4"),
        ("limit = 3", ""),
        ('rho = "0.1"', 'rho = "0.1"\nworkers = 2\nrun_ahead = 1\nmax_hours = 3\nbudget_usd = 1'),
        ('name = "bound"', 'name = "another title"'),
        ("[[repository]]", '[[repository]]\nname = "second"\ntasks = "calc"\n[[repository]]'),
        ("[settings]", '[[model]]\nname = "default"\n[[model]]\nname = "m"\nsettings = { step_limit = 9 }\n[settings]'),
    ],
)
def test_what_leaves_the_runs_as_they_are_may_change(made, old, new):
    require(made, FILE.replace(old, new), tables=False)
    require(made, FILE.replace(old, new), tables=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, file: (rows[:-1], file),
        lambda rows, file: (
            [row.replace('"problem_statement": "', '"problem_statement": "More: ') for row in rows],
            file,
        ),
        lambda rows, file: (rows, file + "cpu_seconds = 31\n"),
    ],
    ids=["fewer", "told otherwise", "tested otherwise"],
)
def test_other_tasks_under_the_same_name_are_refused_before_anything_runs(made, tmp_path, change):
    rows = (tmp_path / "calc" / "tasks.jsonl").read_text().splitlines(keepends=True)
    file = (tmp_path / "calc" / "repository.toml").read_text()
    other_rows, other_file = change(rows, file)
    assert (other_rows, other_file) != (rows, file)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tasks.jsonl").write_text("".join(other_rows))
    (tmp_path / "other" / "repository.toml").write_text(other_file)
    other = FILE.replace('tasks = "calc"', 'tasks = "other"')
    with pytest.raises(ConfigError, match="tasks of calc = digest"):
        require(made, other, tables=False)
    require(made, other, tables=True)


def test_a_folder_that_moved_with_its_environment_goes_on(made, tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/tasks.jsonl").write_bytes((tmp_path / "calc/tasks.jsonl").read_bytes())
    definition = (tmp_path / "calc/repository.toml").read_text()
    (tmp_path / "tasks/repository.toml").write_text(re.sub('environment = ".*"', 'environment = "venv"', definition))
    text = FILE.replace('tasks = "calc"', 'tasks = "tasks"')
    experiment = read(_file(tmp_path, text))
    (cell,) = cells(experiment)
    bound.bind(experiment, cell, tmp_path / "out2", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for name in ("tasks", "out2"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    bound.require(experiment, [cell], tmp_path / "elsewhere/out2", tmp_path / "elsewhere", tables=False)
    found = load(tmp_path / "elsewhere/tasks")
    noted = digest([replace(found.repository, source=""), found.tasks])
    shared = decode((tmp_path / "elsewhere/out2" / bound.SHARED).read_bytes(), bound.Shared, where="")
    (tmp_path / "elsewhere/out2" / bound.SHARED).write_bytes(pretty(replace(shared, tasks={"calc": noted})))
    bound.require(
        experiment, [cell], tmp_path / "elsewhere/out2", tmp_path / "elsewhere", tables=False
    )  # an older note


def test_a_longer_stream_reopens_the_run_and_a_longer_schedule_of_skillopts_is_another_run(made, tmp_path):
    longer = read(_file(tmp_path, FILE.replace("limit = 3", "")))
    (cell,) = cells(longer)
    assert bound.longer(longer, cell, tmp_path / "out") == "it ran with limit 3, the file says none"
    bound.bind(longer, cell, tmp_path / "out", tmp_path)
    assert bound.longer(longer, cell, tmp_path / "out") == ""
    skillopt = FILE.replace('use = "valve"\nlabel = "a"', 'use = "skillopt"')
    experiment = read(_file(tmp_path, skillopt))
    bound.bind(experiment, next(cells(experiment)), tmp_path / "out", tmp_path)
    with pytest.raises(ConfigError, match="limit = 3, the file now says 5"):
        require(made, skillopt.replace("limit = 3", "limit = 5"), tables=False)


def test_a_folder_without_records_is_read_and_not_added_to(made, tmp_path):
    (tmp_path / "out" / bound.SHARED).unlink()
    require(made, FILE, tables=True)
    with pytest.raises(ConfigError, match="was made before runs noted what they were made with"):
        require(made, FILE, tables=False)


def test_keys_are_not_noted(made, tmp_path):
    with_key = FILE.replace('rho = "0.1"', 'rho = "0.1"\nmodel_kwargs = { api_key = "sk-planted", top_p = 0.5 }')
    experiment = read(_file(tmp_path, with_key.replace("simulate = true", "simulate = false")))
    (cell,) = cells(experiment)
    bound.bind(experiment, cell, tmp_path / "other", tmp_path)
    noted = (tmp_path / "other" / cell.path / bound.RUN).read_text()
    assert "top_p" in noted
    assert "planted" not in noted
    another = read(_file(tmp_path, with_key.replace("planted", "another").replace("simulate = true", "")))
    (cell,) = cells(another)
    with pytest.raises(ConfigError, match=r"the solver .* = digest"):
        bound.require(another, [cell], tmp_path / "other", tmp_path, tables=False)


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[]", b'{"use": "valve"}', b'{"simulate": 1}', b"{" * 5000])
@pytest.mark.parametrize("name", [bound.SHARED, f"calc/default/a/seed-1/{bound.RUN}"])
def test_a_damaged_record_is_refused_by_name(made, name, raw):
    (made / "out" / name).write_bytes(raw)
    with pytest.raises(ConfigError, match=re.escape(Path(name).name) + ".*give another --out"):
        require(made, FILE, tables=True)
