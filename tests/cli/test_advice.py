"""Whatever `valve` and its errors advise works as it is pasted: a refusal at least names a command that works first."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli import banks
from tests.cli.conftest import Run
from tests.evolve import library
from tests.lean import lean
from tests.tools import need
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.progress import EVENTS
from valve_plugin.paths import scripted_bank_dir
from valve_plugin.tasks import task_set

ADVISED = re.compile(r"`((?:valve|mini-extra) [^`\n]+)`|^next:? +((?:valve|mini-extra) .*?)(?:   .*)?$", re.MULTILINE)
FILLED = {
    "PROVIDER/NAME": "openai/gpt-4o-mini", "TASKS": "acme/core", "DIR": "other", "ID": "none", "KEY": "sk-none",
    "FILE": "README.md",
}  # fmt: skip
"""What stands for a person's own choice in a command, and a choice."""
LONG = ("valve tasks generate", "valve tasks mine", "valve tasks import", "valve demo", "valve report")
"""Commands that take minutes, or arguments of one's own: only whether there are such commands is looked at."""
SIZES = ("--panel-size", "2", "--rollouts", "1", "--limit", "1", "-c", "embedding=hashing")


class State(NamedTuple):
    """A state of a repository, and what a person may try in it."""

    make: Callable[[Run], object]
    tries: tuple[str, ...] = ()


def rename(valve: Run) -> None:
    valve("init", "--private")
    os.chdir(Path.cwd().rename(Path.cwd().with_name("renamed")))


def split(valve: Run) -> None:
    valve("init")
    library.write(task_set.default_folder("acme/core"), lean())
    valve("split", "acme/core", "--holdout", "1", "--panel", "2", "--by", "bug")


def judged(valve: Run) -> BankStore:
    return banks.sample(Path(".valve"), "acme/core")


def queued(valve: Run) -> None:
    judged(valve)
    Path("AGENTS.md").write_text("# Rules\n\nRun make first.\n")
    valve("bank", "import", "AGENTS.md")


def paused(valve: Run) -> None:
    """A run that somebody interrupted."""
    split(valve)
    store = BankStore.open(Path(".valve"))
    command = "valve evolve acme/core -c model=openai/gpt-4o-mini"
    started = {"repo": "acme/core", "note": "", "command": command, "pid": 0, "created": 0.0, "position": 1, "of": 3}
    store.local.write_telemetry(EVENTS, {"event": "run_started", "data": started})
    store.local.write_telemetry(EVENTS, {"event": "run_ended", "data": {"how": "interrupted"}})
    store.local.remember("run", f"{os.getcwd()}\n{command}")


READ = ("bank list", "bank show nothing", "context x", "attempts", "plan", "certify", "extract none", "tasks list")
RUN = ("gate", "evolve", "eval", "panel run --current", "panel items", "bank retire nothing", "split")
STATES = {
    "fresh clone": State(lambda valve: None, (*READ, *RUN, "try README.md")),
    "after init": State(lambda valve: valve("init"), (*READ, *RUN, "tasks show")),
    "with tasks": State(lambda valve: library.write(task_set.default_folder("acme/core"), lean()), ("gate", "eval")),
    "split": State(split, RUN),
    "panel fixed": State(judged, (*READ, *RUN)),
    "queue waiting": State(queued, ("gate", "bank review")),
    "paused run": State(paused, ("evolve --attach",)),
    "missing key": State(split, ("evolve -c model=openai/gpt-4o-mini",)),
    "unknown model": State(split, ("evolve -c model=nonsense/none",)),
    "renamed folder": State(rename, ("bank list", "attempts")),
}


@pytest.fixture
def clone(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of the little library, where no model and no key is known."""
    for name in ("MSWEA_MODEL_NAME", *(name for name in os.environ if name.endswith("_API_KEY")), "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # what a command sets in this process goes with the test, too
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "mini"))
    (project / "README.md").write_text("Core.\n")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://example.org/acme/core.git"], check=True)
    return project


@pytest.mark.parametrize("name", STATES)
def test_what_is_advised_works_as_it_is_pasted(name: str, clone: Path, valve: Run) -> None:
    state = STATES[name]
    state.make(valve)
    said = {tried: answer(tried, valve)[1] for tried in ("", *state.tries)}
    follow(said, valve)


def follow(said: dict[str, str], valve: Run) -> None:
    """Paste each command that was advised, once."""
    found = {command: tried for tried, text in said.items() for command in advised(text)}
    assert found
    assert [why for command, tried in found.items() if (why := dead_end(command, (f"valve {tried}",), valve))] == []


def advised(said: str) -> list[str]:
    return [quoted or following for quoted, following in ADVISED.findall(said)]


def dead_end(command: str, chain: tuple[str, ...], valve: Run) -> str:
    """Return what is wrong with a command: wrong words, or a refusal that names no command that works."""
    code, said = paste(command, valve)
    others = [other for other in advised(said) if other not in (*chain, command)]
    if code != 2 or ("Usage: " not in said and any(not dead_end(o, (*chain, command), valve) for o in others)):
        return ""
    return f"{' -> '.join([*chain, command])}: {said}"


def paste(command: str, valve: Run) -> tuple[int, str]:
    for word, value in FILLED.items():
        command = re.sub(rf"\b{word}\b", value, command)
    program, *words = shlex.split(command)
    if program == "valve":
        return answer(shlex.join(words) + " --help" * command.startswith(LONG), valve)
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def answer(words: str, valve: Run) -> tuple[int, str]:
    """Return the exit code of `valve WORDS`, and what it says."""
    said = valve(*shlex.split(words), code=None)
    shown = said if isinstance(said, str) else json.dumps(said)
    return valve.code, shown + valve.err  # type: ignore[attr-defined]


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("limits", [(), ("--max-rollouts", "12", "--limit", "3")], ids=["done", "stopped by a budget"])
def test_a_simulation_leads_on(limits: tuple[str, ...], clone: Path, valve: Run) -> None:
    need("bwrap")
    split(valve)
    done = library.valve("evolve", "acme/core", "--simulate", *SIZES, *limits)
    own = f"--bank {shlex.quote(str(scripted_bank_dir('acme/core')))}"
    tries = (own,) if limits else (own, f"gate {own} --simulate", "gate --simulate", f"bank list {own}")
    follow({"evolve": done.stdout + done.stderr, **{tried: answer(tried, valve)[1] for tried in tries}}, valve)


def test_without_bubblewrap_it_is_said_how_to_go_on(clone: Path, valve: Run, request: pytest.FixtureRequest) -> None:
    split(valve)
    git = need("git")
    (request.getfixturevalue("machine") / "bin" / "git").symlink_to(git)
    for tried in ("doctor", "evolve acme/core --simulate"):
        code, said = answer(tried, valve)
        assert code in (1, 3)
        assert "bubblewrap" in said
        assert "--unsafe-local" in said
