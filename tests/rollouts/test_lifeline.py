"""What runs on the host ends with whoever started it, however that ends: pip, venv, builds, git, plain commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.tools import need_module
from valve_plugin.errors import InfrastructureError
from valve_plugin.rollouts import lifeline
from valve_plugin.tasks.git import git

ROOT = Path(__file__).parents[2]
# A tree: a child in a session of its own that nobody waits for, one in a group of its own, one that is waited for.
TREE = "(setsid sleep 601 &); set -m; sleep 602 & sleep 603"
RUN = "from valve_plugin.rollouts import lifeline; lifeline.run(['bash', '-c', {tree!r}])"
TIED = """
from valve_plugin.rollouts.lifeline import tied
with tied(['bash', '-c', {tree!r}], interrupted=True) as process:
    process.wait()
"""
UNSAFE = """
from pathlib import Path
from valve_plugin.rollouts.sandbox import UnsafeLocal
from valve_plugin.rollouts.workspace import Workspace
tree, home, tmp = (Path({place!r}) / name for name in ("tree", "home", "private"))
for folder in (tree, home, tmp):
    folder.mkdir()
UnsafeLocal().run({tree!r}, Workspace(path=tree, home=home, tmp=tmp, uid=1))
"""
FORKED = """
import time
from valve_plugin.tasks import smith
def slow(*_):
    time.sleep(600)
smith._in_file = slow
smith.candidates(__import__('pathlib').Path({place!r}), lambda _: False, 0, 2)
"""
VENV = """
from pathlib import Path
from valve_plugin.tasks import environment
environment.create(Path({place!r}, "venv"), environment.find_python(""), [], lambda _: None)
"""
PIP = """
import sys
from pathlib import Path
from valve_plugin.tasks import environment
here = {place!r}
environment.pip(Path(sys.executable), "install", "--target", here + "/there", "slow @ file://" + here + "/slow")
"""
SLOW_BUILD = """
import subprocess, sys, time

def tick(*_):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    while True:
        with open({place!r} + "/ticks", "a") as file:
            file.write("x")
        time.sleep(0.02)

prepare_metadata_for_build_wheel = build_wheel = tick
"""


HEARS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # also where the tests were begun under nohup


def start(code: str, place: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": f"{place}/tmp", "VALVE_DATA": f"{place}/data"}
    (place / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, "-c", HEARS + code], env=env, cwd=place)


def tree_of(process: subprocess.Popen[bytes], *words: str) -> list[psutil.Process]:
    """Wait until all of these words are in some command of its tree, and return the tree."""
    for _ in range(600):
        found = psutil.Process(process.pid).children(recursive=True)
        said = {word for one in found for word in command(one)}
        if said.issuperset(words):
            return found
        assert process.poll() is None, "it ended before"
        time.sleep(0.05)
    raise AssertionError(f"{words} not among {said}")


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def assert_gone(tree: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 2
    while (left := [process for process in tree if lives(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [command(process) for process in left] == []


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # of a zombie only its parent has not heard
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("code", [RUN, TIED, UNSAFE], ids=["run", "tied", "unsafe-local"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=["kill", "term", "hup"])
def test_a_tree_ends_with_whoever_started_it(tmp_path: Path, code: str, how: signal.Signals) -> None:
    with start(code.format(tree=TREE, place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, "601", "602", "603")
        process.send_signal(how)
    assert_gone(tree)


@pytest.mark.parametrize("code", [RUN, TIED], ids=["run", "tied"])
def test_ctrl_c_ends_it_too(tmp_path: Path, code: str) -> None:
    with start(code.format(tree=TREE), tmp_path) as process:
        tree = tree_of(process, "601", "602", "603")
        process.send_signal(signal.SIGINT)
        if code == TIED:  # as a terminal does: it is the command's as well
            next(p for p in tree if p.cmdline()[-1:] == [TREE] and p.name() == "bash").send_signal(signal.SIGINT)
    assert_gone(tree)


def test_processes_forked_to_look_for_candidates(tmp_path: Path) -> None:
    need_module("swesmith")
    (tmp_path / "a.py").write_text("")
    with start(FORKED.format(place=str(tmp_path)), tmp_path) as process:
        for _ in range(600):
            tree = psutil.Process(process.pid).children()
            if len(tree) == 2:
                break
            time.sleep(0.05)
        assert len(tree) == 2
        time.sleep(0.3)
        process.kill()
    assert_gone(tree)


def test_git_that_waits_for_a_pipe(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git/HEAD").unlink()
    os.mkfifo(tmp_path / ".git/HEAD")
    code = "from pathlib import Path; from valve_plugin.tasks import history; history.git_dir(Path({place!r}))"
    with start(code.format(place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, "--absolute-git-dir")
        process.kill()
    assert_gone(tree)
    with pytest.raises(InfrastructureError, match="git rev-parse did not end within 1 s"):
        git("rev-parse", "--absolute-git-dir", cwd=tmp_path, seconds=1)


@pytest.mark.parametrize(
    ("code", "word"), [(VENV, "ensurepip"), (PIP, "import time; time.sleep(600)")], ids=["venv", "build"]
)
def test_an_environment_that_is_being_made(tmp_path: Path, code: str, word: str) -> None:
    package = tmp_path / "slow"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'slow_build'\nbackend-path = ['.']\n"
    )
    (package / "slow_build.py").write_text(SLOW_BUILD.format(place=str(tmp_path)))
    with start(code.format(place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, word)
        process.kill()
    assert_gone(tree)
    assert list((tmp_path / "tmp").iterdir()) == []  # and the next run removes what is in a slot of user data
    before = written(tmp_path)
    time.sleep(0.3)
    assert written(tmp_path) == before


def written(place: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for path in place.rglob("*") if not path.is_dir())


def test_what_it_came_to() -> None:
    done = lifeline.run(["sh", "-c", "cat; echo no >&2; exit 3"], data=b"yes")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"yes", b"no\n")
    assert lifeline.run(["sh", "-c", "kill -9 $$"]).returncode == 128 + 9
    missing = lifeline.run(["/no/such/command"])
    assert (missing.returncode, missing.stderr[:16]) == (127, b"/no/such/command")


def test_a_time_limit_and_the_end_leave_nothing(tmp_path: Path) -> None:
    own = psutil.Process()
    with pytest.raises(subprocess.TimeoutExpired):
        lifeline.run(["bash", "-c", TREE], seconds=0.5)
    leaving = f"(setsid sh -c 'echo $$ > {tmp_path}/pid; sleep 604' &); while [ ! -s {tmp_path}/pid ]; do :; done"
    lifeline.run(["sh", "-c", leaving])
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert not [p for p in own.children(recursive=True) if {"601", "602", "603", "604"} & set(command(p))]
