"""Trees of strangers: walked and removed at any depth, with few descriptors, never through a link."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.bank.paths import data_dir
from valve_plugin.rollouts.foreign import remove, walk
from valve_plugin.rollouts.slots import slot
from valve_plugin.rollouts.supervise import disk_bytes

DEPTH = 1500
KINDS = ("folder", "file", "link", "pipe", "locked")

entries = st.lists(st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.sampled_from(KINDS)))


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work inside a folder, by relative paths."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def dig(folder: Path, depth: int = DEPTH, name: str = "a") -> None:
    """Make folders one in another, and a file of 64 KiB in the last."""
    with inside(folder):
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
        Path("x.py").write_bytes(b"#" * 65_536)


def plant(root: Path, wanted: Sequence[tuple[Sequence[str], str]], target: Path) -> None:
    """Make what can be made of a list of (names, kind)."""
    locked = []
    for names, kind in wanted:
        path = root.joinpath(*names)
        above = any(os.path.lexists(p) and (p.is_symlink() or not p.is_dir()) for p in path.parents)
        if above or os.path.lexists(path):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind in ("folder", "locked"):
            path.mkdir(exist_ok=True)
            locked += [path] if kind == "locked" else []
        elif kind == "link":
            path.symlink_to(target)
        else:
            path.touch() if kind == "file" else os.mkfifo(path)
    for path in reversed(locked):
        path.chmod(0)


@given(entries)
def test_a_walk_finds_what_there_is_and_remove_leaves_nothing(wanted: list[tuple[list[str], str]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, outside = Path(place, "root"), Path(place, "outside")
        root.mkdir()
        outside.mkdir()
        (outside / "kept").touch()
        plant(root, wanted, outside)
        found = [folder.path(name) for folder in walk(root, unlock=True) for name in (*folder.folders, *folder.others)]
        expected = [Path(f, n).relative_to(root) for f, names, leaves in os.walk(root) for n in (*names, *leaves)]
        assert sorted(found) == sorted(map(str, expected))
        remove(root)
        assert [p.name for p in Path(place).iterdir()] == ["outside"]
        assert [p.name for p in outside.iterdir()] == ["kept"]


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed in any case: pytest recurses over what tests leave."""
    yield (tmp_path / "pit")
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def test_depth_takes_neither_stack_nor_descriptors(pit: Path) -> None:
    pit.mkdir()
    dig(pit)
    most = 0
    for folder in walk(pit):
        most = max(most, len(os.listdir("/proc/self/fd")))
        size = sum(folder.status(name).st_size for name in folder.others)
    assert size == 65_536
    assert most < 150
    assert disk_bytes(pit) >= 65_536
    remove(pit)
    assert not pit.exists()


def test_a_folder_that_is_moved_meanwhile_leads_nowhere_else(tmp_path: Path) -> None:
    for name in ("in", "elsewhere"):
        (tmp_path / name).mkdir()
    dig(tmp_path / "in", 60)
    found = walk(tmp_path / "in")
    assert next(folder for folder in found if folder.others)
    (tmp_path / "in/a/a/a").rename(tmp_path / "elsewhere/a")
    with pytest.raises(OSError, match="moved"):
        next(found)
    assert disk_bytes(tmp_path) >= 65_536


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    with pytest.raises(OSError, match=r"directory|links"):
        list(walk(tmp_path / "link"))
    remove(tmp_path / "link")
    remove(tmp_path / "never was")
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_what_a_killed_run_left_is_removed_however_deep(pit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_DATA", str(pit))
    left = data_dir() / "workspaces" / "0"
    left.mkdir(parents=True)
    dig(left)
    with slot() as (number, _):
        assert number == 0
    assert not left.exists()


def test_a_slot_that_cannot_be_emptied_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from valve_plugin.rollouts import slots

    monkeypatch.setenv("VALVE_DATA", str(tmp_path))
    (tmp_path / "workspaces/0").mkdir(parents=True)
    monkeypatch.setattr(slots, "remove", lambda path: path.name == "0" or remove(path))
    with slot() as (number, _):
        assert number == 1
