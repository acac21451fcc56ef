"""Copying a foreign image's /testbed: whatever links it holds, nothing beside the copy is written, read or removed.

The engine is a script that hands out a folder as `podman cp` does, links included.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests import calc, tools
from tests.tools import need, put
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.records import Task
from valve_plugin.sandbox.engine import Engine, Image, image_id
from valve_plugin.sandbox.git import git
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.image import copy_image
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import gold_patch, open_task

Calc = tuple[PreparedRepository, Task]
_PODMAN = """#!/bin/sh
case "$1" in create) echo container ;; cp) cp -a "$TESTBED" "$3" ;; esac
"""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """What belongs to this machine: a repository with a hook, and a file."""
    where = tmp_path / "victim"
    put(where, dict.fromkeys(("b.txt", ".git/hooks/pre-commit", "kept/file"), "mine\n"))
    tools.git(where, "init", "-q")
    return where


@pytest.fixture
def image(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """An image, not copied yet, of the little repository with files that git does not track."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/podman").write_text(_PODMAN)
    (tmp_path / "bin/podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TESTBED", str(tmp_path / "testbed"))
    root = put(tmp_path / "testbed", {**calc.FILES, "a/b.txt": "theirs\n"})
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        tools.git(root, *command)
    built = ("data/evil.txt", "calc/fast.so", "build/lib/calc.py", "calc/__pycache__/ops.pyc")
    put(root, dict.fromkeys(built, "built\n"))
    return Image(engine="podman", name="acme/evil", id="0" * 64)


def content(root: Path) -> dict[str, str]:
    """Return all that is below a folder, to see that it stays."""
    return {str(p): p.read_text("latin-1") for p in sorted(root.rglob("*")) if p.is_file()}


def swap(path: Path, target: Path) -> None:
    """Put a link in the place of whatever is there."""
    subprocess.run(["rm", "-rf", str(path)], check=True)
    path.symlink_to(target)


def test_what_is_kept_is_what_git_does_not_track(image: Image, tmp_path: Path) -> None:
    (tmp_path / "testbed/link").symlink_to("/etc")
    os.mkfifo(tmp_path / "testbed/data/pipe")
    made = copy_image(image)
    assert made.built_files == {"data/evil.txt", "calc/fast.so", "link"}
    assert sorted(p.name for p in made.built.iterdir()) == ["calc", "data", "link"]
    assert "fsmonitor" not in (made.git / "config").read_text()


def test_a_git_directory_with_traps_loses_them(image: Image, tmp_path: Path) -> None:
    own = tmp_path / "testbed/.git"
    tools.git(own.parent, "config", "core.fsmonitor", "evil")
    for name in ("commondir", "objects/info/alternates"):
        (own / name).write_text("/elsewhere\n")
    (own / "config.worktree").mkdir()
    made = copy_image(image)
    assert "evil" not in (made.git / "config").read_text()
    assert not any((made.git / name).exists() for name in ("commondir", "hooks", "config.worktree"))
    assert git("log", "--format=%s", git_dir=made.git) == b"one\n"


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "config": lambda root, victim: swap(root / ".git/config", victim / "b.txt"),
    "git": lambda root, victim: swap(root / ".git", victim / ".git"),
    "no folder": lambda root, victim: (root / ".git").rename(root / "git") and swap(root / ".git", victim / "b.txt"),
    "refs": lambda root, victim: swap(root / ".git/refs/heads", victim / ".git/refs"),
    "objects": lambda root, victim: swap(root / ".git/objects", victim / ".git/objects"),
    "hooks": lambda root, victim: swap(root / ".git/hooks", victim / ".git/hooks"),
    "pipe": lambda root, victim: os.mkfifo(root / ".git/ipc"),
    "folder": lambda root, victim: swap(root / "a", victim),
    "testbed": lambda root, victim: swap(root, victim),
}


@pytest.mark.parametrize("how", LINKS)
def test_a_link_out_of_the_copy_is_refused_and_nothing_outside_is_touched(
    image: Image, victim: Path, tmp_path: Path, how: str
) -> None:
    LINKS[how](tmp_path / "testbed", victim)
    before = content(victim)
    with pytest.raises(TaskError, match=r"^acme/evil: .*expected (a git clone|the files of that commit)"):
        copy_image(image)
    assert content(victim) == before
    with pytest.raises(TaskError, match="acme/evil"):
        copy_image(image)


NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{2}\n"
LINK = NEW + "\\ No newline at end of file\n"


@pytest.mark.parametrize("path", ["data", "calc/fast.so"])
def test_a_row_that_leads_a_built_file_out_of_the_workspace_is_refused(
    image: Image, victim: Path, calc_task: Calc, path: str
) -> None:
    prepared, task = calc_task
    evil = replace(task, patch=task.patch + LINK.format(path, 120000, victim / "kept"))
    where = replace(prepared, image=copy_image(image))
    before = content(victim)
    said = f"acme/evil: its /testbed has the untracked file '{path}.*expected a patch"
    with pytest.raises(TaskError, match=said), open_task(where, evil):
        pass
    assert content(victim) == before


def test_an_agent_that_does_so_has_not_solved_the_task(image: Image, victim: Path, calc_task: Calc) -> None:
    prepared, task = calc_task
    where = replace(prepared, image=copy_image(image))
    before = content(victim)
    made = grade(where, task, gold_patch(*calc_task) + LINK.format("data", 120000, victim), Settings())
    assert made.outcome == "unresolved"
    assert made.reason.startswith("suspicious patch: data"), "a link is no repair"
    assert content(victim) == before


def test_a_built_file_takes_the_place_of_a_file(image: Image, calc_task: Calc) -> None:
    prepared, task = calc_task
    where = replace(prepared, image=copy_image(image))
    new = NEW.format("data/evil.txt", 100644, "x")
    with open_task(where, replace(task, patch=task.patch + new)) as place:
        assert (place.path / "data/evil.txt").read_text() == "built\n"
        assert (place.path / "calc/fast.so").stat().st_uid == place.uid


@pytest.mark.heavy
def test_a_real_engine_copies_links_as_they_are(
    victim: Path, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    need("podman")
    swap(tmp_path / "testbed/.git/config", victim / "b.txt")
    tar = subprocess.run(["tar", "-C", str(tmp_path), "-cf", "-", "testbed"], check=True, capture_output=True).stdout
    name = "localhost/valve/evil:latest"
    engine = Engine("podman")
    subprocess.run(["podman", "import", "-q", "-", name], input=tar, check=True, capture_output=True)
    try:
        with pytest.raises(TaskError, match=r"evil:latest: /testbed/\.git/config is a link"):
            copy_image(Image(engine="podman", name=name, id=image_id("podman", name)))
    finally:
        engine.call("rmi", name)
    assert (victim / "b.txt").read_text() == "mine\n"
