"""`valve try`: paired rollouts with a text and without, by the toy plugin and by real agents."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evolve import library
from tests.tools import need, until
from valve_plugin.bank.local import LocalStore
from valve_plugin.cli import app
from valve_plugin.codec import digest_bytes, pretty
from valve_plugin.evolve.trial import draw_pairs, usable_tasks
from valve_plugin.paths import data_dir, trials_dir
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.task_set import load

TOY = ("--unsafe-local", "-c", 'plugins=["valve","toy"]', "-c", "model=toy")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Texts that help, harm and do nothing for the toy agent; and an empty place for trials."""
    monkeypatch.setenv("TOY_SECONDS", "0")
    shutil.rmtree(data_dir() / "trials", ignore_errors=True)
    monkeypatch.chdir(tmp_path)
    for name in ("GOOD", "BAD", "IDLE"):
        (tmp_path / f"{name}.md").write_text(f"# Rules\n\n{name} advice\n")
    return tmp_path


@pytest.fixture
def run(calc, installed):
    """`run(*arguments, code=0)`: the command with the toy agent; JSON parsed."""

    def invoke(*arguments, code=0):
        done = CliRunner().invoke(app, ["try", *arguments, "--tasks", str(calc), *TOY])
        assert done.exit_code == code, done.output
        invoke.err = done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return invoke


def seen(facts):
    return [facts[name] for name in ("answer", "counts", "interval", "by_task", "needed")]


def test_it_answers_and_stops(run, texts):
    harmful = run("BAD.md", "--pairs", "400", "--json", code=1)
    assert harmful["answer"] == "harms"
    assert harmful["interval"][1] < 0
    pairs = sum(harmful["counts"].values())
    assert pairs < 200
    assert sum(t["pairs"] for t in harmful["by_task"]) == pairs
    difference = sum(t["with_text"] - t["without"] for t in harmful["by_task"]) / pairs
    assert harmful["difference"] == pytest.approx(difference)
    assert run("GOOD.md", "--pairs", "400", "--json")["answer"] == "helps"
    idle = run("BAD.md", "--against", "GOOD.md", "--pairs", "400", "--json", code=1)
    assert idle["answer"] == "harms", "compared with the good one"
    assert run("IDLE.md", "--pairs", "400", "--json", "--negligible", "0.4")["answer"] == "no_difference"
    assert not (texts / ".valve").exists()
    assert not (data_dir() / "banks").exists()


def test_the_page(run, texts):
    (texts / "HOSTILE.md").write_text("# <script>alert(1)</script> {{ 7 * 7 }}\n\nBAD \u202e\n")
    run("HOSTILE.md", "--pairs", "30", "--out", "page.html", code=1)
    page = (texts / "page.html").read_text()
    assert "HOSTILE.md harms" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; {{ 7 * 7 }}" in page
    assert "<script" not in page
    assert "\u202e" not in page
    assert "<polyline" in page
    assert page.count('<th scope="row"') > 5


def test_neither_workers_nor_kills_change_the_answer(run, texts, toy, calc, tmp_path):
    arguments = ("BAD.md", "--pairs", "100", "--json")
    whole = seen(run(*arguments, code=1))
    shutil.rmtree(trials_dir("acme/core"))
    assert seen(run(*arguments, "--workers", "5", code=1)) == whole
    shutil.rmtree(trials_dir("acme/core"))
    path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "valve_plugin", "try", *arguments, "--tasks", str(calc), "--workers", "2", *TOY]
    for started in (tmp_path / str(turn) for turn in range(2)):
        env = {**os.environ, "PYTHONPATH": path, "TOY_STARTED": str(started), "TOY_SECONDS": "0.05"}
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: process.poll() is not None or (started.exists() and started.read_text().count("\n") >= 8))  # noqa: B023
        process.kill()
        process.wait()
    begun = Counter(line for turn in range(2) for line in (tmp_path / str(turn)).read_text().splitlines())
    assert seen(run(*arguments, code=1)) == whole
    again = sum(max(0, number - 2) for number in begun.values())  # each stands there once for both sides
    assert again <= 2 * 2, "no more than what ran at a kill is run again"


def test_another_text_uses_the_rollouts_without_one(run, texts, monkeypatch):
    started = texts / "started"
    monkeypatch.setenv("TOY_STARTED", str(started))
    run("IDLE.md", "--pairs", "10")
    assert started.read_text().count("\n") == 20
    (texts / "IDLE.md").write_text("other idle advice")
    run("IDLE.md", "--pairs", "10")
    assert started.read_text().count("\n") == 30
    run("IDLE.md", "--pairs", "10", "--seed", "1")
    assert started.read_text().count("\n") == 50, "another seed has fresh ones"


def test_a_budget_stops_it_and_the_same_command_goes_on(run, texts):
    whole = seen(run("IDLE.md", "--pairs", "12", "--json"))
    shutil.rmtree(trials_dir("acme/core"))
    for turn in range(2):
        part = run("IDLE.md", "--pairs", "12", "--json", "--max-rollouts", "9", "--workers", "3")
        assert part["stopped"].startswith("the budget of 9 rollouts is used up"), turn
        assert part["answer"] == "unclear"
    last = run("IDLE.md", "--pairs", "12", "--json", "--max-rollouts", "9")
    assert not last["stopped"]
    assert seen(last) == whole
    shown = run("IDLE.md", "--pairs", "14", "--max-rollouts", "1")
    assert "the same command continues from here" in shown


def test_a_pair_that_is_lost_is_left_out_and_tried_again(run, texts, calc, monkeypatch):
    first = next(draw_pairs(usable_tasks(load(calc)), 0))
    down = texts / "down"
    down.write_text(f"eval {first.task.instance_id[-2:]} 0 {digest('')}\n")
    monkeypatch.setenv("TOY_DOWN", str(down))
    facts = run("IDLE.md", "--pairs", "3", "--json")
    assert sum(facts["counts"].values()) == 2
    assert facts["lost"] == ["the provider is down"]
    assert "tries them again" in run("IDLE.md", "--pairs", "3")
    run("IDLE.md", "--pairs", "1", code=3)
    assert "every pair was lost: the provider is down" in run.err
    assert "start it again" in run.err
    down.unlink()
    facts = run("IDLE.md", "--pairs", "3", "--json")
    assert (sum(facts["counts"].values()), facts["lost"]) == (3, [])


def digest(text):
    return digest_bytes(text.encode())[:8]


def test_pairs_are_drawn_with_replacement_and_never_from_the_holdout(calc, tmp_path):
    folder = Path(shutil.copytree(calc, tmp_path / "calc"))
    tasks = load(folder).tasks
    (folder / splits.FILE_NAME).write_bytes(pretty(splits.draw("acme/core", tasks, holdout=4, panel=3)))
    found = load(folder)
    held = {t.instance_id for t in found.split.holdout.tasks}
    usable = usable_tasks(found)
    assert {t.instance_id for t in usable} == {t.instance_id for t in tasks} - held
    pairs = list(itertools.islice(draw_pairs(usable, 3), 2000))
    assert len({(p.task.instance_id, p.ordinal) for p in pairs}) == 2000
    counts = Counter(p.task.instance_id for p in pairs)
    assert all(150 < counts[t.instance_id] < 250 for t in usable)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"\x7fELF\xff", "not UTF-8 text at byte 5"),
        (b"x" * 300_000, "more than context_bytes"),
        (b"x" * 20_000_000, "cannot be read"),
    ],
)
def test_bad_files_are_refused_before_anything_runs(run, texts, content, why):
    (texts / "odd.md").write_bytes(content)
    run("odd.md", code=2)
    assert why in run.err
    assert not (data_dir() / "trials").exists()


def test_what_else_is_refused(run, texts, calc, monkeypatch):
    run("missing.md", code=2)
    assert "missing.md: cannot be read: No such file" in run.err
    (texts / "empty").mkdir()
    run("empty", code=2)
    assert "no SKILL.md in this folder" in run.err
    run("GOOD.md", "--against", "GOOD.md", code=2)
    assert "there is nothing to compare" in run.err
    run("GOOD.md", "-c", "rho=0.1", code=2)
    assert "rho has no effect" in run.err
    done = CliRunner().invoke(app, ["try", "GOOD.md", *TOY])
    assert done.exit_code == 2
    assert "`valve tasks generate`" in done.stderr
    assert "`valve tasks mine`" in done.stderr


SKILL = "---\nname: {0}\ndescription: Use it for {0}.\n---\n\n# {0}\n\n--- end ---\nGOOD\n"


@pytest.mark.heavy
def test_a_folder_of_skills_by_real_agents(calc, texts):
    """The whole texts, front matter included, end the system message of one side, and nothing is in the other's."""
    need("bwrap")
    for name in ("swap", "clamp"):
        (texts / "skills" / name).mkdir(parents=True)
        (texts / "skills" / name / "SKILL.md").write_text(SKILL.format(name))
    done = library.valve("try", "skills", "--tasks", calc, "--simulate", "--pairs", "1", "--workers", "2", "--json")
    facts = json.loads(done.stdout)
    assert facts["simulation"] is True
    assert min(facts["with_text"]["tokens"], facts["without"]["tokens"]) > 1000
    store = LocalStore(trials_dir("acme/core"))
    systems = {a.context_hash[:8]: json.loads(store.trajectory(a))["messages"][0]["content"] for a in store.attempts()}
    bare = systems.pop(digest(""))
    ((_, told),) = systems.items()
    assert told.startswith(bare.rstrip())
    assert told[len(bare.rstrip()) :].strip() == (
        "Instructions for work in this repository. Lines that begin with 4 dashes come between them; a line with fewer "
        "dashes is part of what it stands in.\n\n"
        + "\n\n".join(f"---- {name}/SKILL.md ----\n{SKILL.format(name)}" for name in ("clamp", "swap"))
        + "\n\n---- end ----"
    )


@pytest.mark.heavy
def test_real_agents_in_the_scripted_world(calc, texts):
    """Texts that harm there against texts that help: far enough apart that few pairs are needed."""
    from valve_plugin.lab.simulation.parameters import lessons

    need("bwrap")
    for quality in ("good", "harmful"):
        names = [x.name.replace("${function}", "x") for x in lessons() if x.quality == quality]
        (texts / f"{quality}.md").write_text("\n".join(names))
    given = ("--pairs", "60", "--workers", "2", "--simulate", "--json")
    done = library.valve("try", "harmful.md", "--against", "good.md", "--tasks", calc, *given, check=False)
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    assert facts["answer"] == "harms"
    assert sum(facts["counts"].values()) < 60
