"""Which sandbox a task gets, and what is said when it cannot have the one that was asked for."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from tests import calc
from tests.tools import need
from valve_plugin.agents.mini import environment_refusal
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, SandboxError
from valve_plugin.records import Task
from valve_plugin.sandbox import engine
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.sandbox.container import ControlGroup, Usage, container_options
from valve_plugin.sandbox.engine import Engine
from valve_plugin.tasks.image import available_image, place_in_image
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import open_task

Calc = tuple[PreparedRepository, Task]


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine.engine_problem.cache_clear()
    yield
    engine.engine_problem.cache_clear()


def test_without_an_engine_a_task_with_an_image_runs_in_bubblewrap(calc_task: Calc, no_engine: None) -> None:
    prepared, task = calc.with_image(calc_task)
    assert place_in_image(prepared, task, Settings()) == prepared
    assert available_image(task, Settings()) is None
    with pytest.raises(SandboxError, match="docker is not on PATH; Debian, Ubuntu: apt-get install podman"):
        place_in_image(prepared, task, Settings(sandbox="docker"))


def test_a_repository_that_is_an_image_runs_nowhere_else(calc_task: Calc, no_engine: None) -> None:
    prepared, task = calc.with_image(calc_task)
    only = replace(prepared, repository=replace(prepared.repository, source=f"image:{task.image_name}"))
    with pytest.raises(SandboxError, match="podman is not on PATH; docker"):
        place_in_image(only, task, Settings())
    with pytest.raises(ConfigError, match=r"acme/calc need the image .* sandbox is 'bwrap'"):
        place_in_image(only, task, Settings(sandbox="bwrap"))


def test_an_image_that_is_not_here_is_named_with_the_command_that_gets_it(calc_task: Calc) -> None:
    need("podman")
    prepared, task = calc_task
    absent = replace(task, image_name="docker.io/nobody/nothing:at-all")
    assert place_in_image(prepared, absent, Settings()) == prepared
    with pytest.raises(SandboxError, match=r"not on this machine: podman pull docker\.io/nobody/nothing:at-all"):
        place_in_image(prepared, absent, Settings(sandbox="podman"))
    with pytest.raises(SandboxError, match="has no image_name"):
        place_in_image(prepared, task, Settings(sandbox="podman"))
    with pytest.raises(SandboxError, match="not a task with an image"):
        choose(Settings(sandbox="podman"))


def test_history_is_not_made_up(calc_task: Calc) -> None:
    with (
        pytest.raises(ConfigError, match="keep_history needs the task's container image"),
        open_task(*calc_task, keep_history=True),
    ):
        pass


def test_every_environment_class_of_mini_is_taken_or_refused_with_a_reason() -> None:
    from minisweagent.environments import _ENVIRONMENT_MAPPING

    taken = {name for name in ["", *_ENVIRONMENT_MAPPING] if not environment_refusal(name)}
    assert taken == {"", "docker"}
    assert "is refused" in environment_refusal("my.own.Class")


@pytest.mark.parametrize(
    ("info", "hold"),
    [
        ({"host": {"cgroupVersion": "v2", "cgroupControllers": ["cpu", "memory", "pids"]}}, True),
        ({"host": {"cgroupVersion": "v2", "cgroupControllers": ["memory"]}}, False),
        ({"host": {"cgroupVersion": "v1", "cgroupControllers": []}}, False),
        ({"host": {"cgroupControllers": None}}, False),
        ({"MemoryLimit": True, "PidsLimit": True}, True),
        ({"MemoryLimit": True, "PidsLimit": False}, False),
        ({}, False),
    ],
)
def test_an_engine_says_whether_it_limits_anything(info: dict[str, object], hold: bool) -> None:
    assert engine.limits_are_enforced(info) == hold


def test_podman_without_root_is_refused_where_it_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """podman as the user nobody: on control groups of version 1 it runs containers and ignores their limits."""
    podman, setpriv = need("podman"), need("setpriv")
    if os.geteuid() or Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("needs root, to become another user, and control groups of version 1")
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 65534, 65534)
        words = f"--reuid=65534 --regid=65534 --clear-groups env HOME={home} XDG_RUNTIME_DIR={home}"
        (Path(home) / "podman").write_text(f'#!/bin/sh\nexec {setpriv} {words} {podman} "$@"\n')
        (Path(home) / "podman").chmod(0o755)
        monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        engine.engine_problem.cache_clear()
        assert "podman cannot limit memory and processes" in engine.engine_problem("podman")
    engine.engine_problem.cache_clear()


@pytest.mark.parametrize("name", engine.ENGINES)
def test_what_closes_a_container_is_always_asked_for(calc_task: Calc, tmp_path: Path, name: engine.EngineName) -> None:
    with open_task(*calc_task) as workspace:
        words = container_options(Engine(name), workspace, tmp_path, {Path("/x/harness.py"): "/x/harness.py"})
    text = " ".join(words)
    for asked in ("--network none", "--read-only", "--cap-drop all", "--rm", "--pull never", "no-new-privileges"):
        assert asked in text
    assert ("--http-proxy=false" in words) == (name == "podman")
    writable = [words[i + 1] for i, word in enumerate(words) if word == "-v" and not words[i + 1].endswith(":ro")]
    assert sorted(v.split(":")[1] for v in writable) == ["/home/agent", "/testbed", "/tmp"]


def test_a_process_that_ended_and_was_not_waited_for_has_no_group_of_its_own() -> None:
    """Control groups of version 1 put it into the root group, whose CPU time is everybody's."""
    with subprocess.Popen(["true"]) as child:
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        groups = Path(f"/proc/{child.pid}/cgroup").read_text()
        used = ControlGroup(child.pid).usage()
    assert used == Usage() or not all(line.endswith(":/") for line in groups.splitlines())
