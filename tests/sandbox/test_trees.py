"""Trees of strangers: walked and removed at any depth, with few descriptors, never through a link."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandbox.support import dig
from valve_plugin.sandbox.disk import disk_bytes
from valve_plugin.sandbox.trees import remove_tree, walk

KINDS = ("folder", "file", "link", "pipe", "locked")

entries = st.lists(st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.sampled_from(KINDS)))


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
        remove_tree(root)
        assert [p.name for p in Path(place).iterdir()] == ["outside"]
        assert [p.name for p in outside.iterdir()] == ["kept"]


@given(entries)
def test_folders_are_closed_again(wanted: list[tuple[list[str], str]]) -> None:
    def modes() -> dict[str, int]:
        opened = walk(root, unlock=True, relock=True)
        return {f.path(name): stat.S_IMODE(f.status(name).st_mode) for f in opened for name in f.folders}

    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        root.mkdir()
        plant(root, wanted, Path(place))
        before = modes()
        assert set(before.values()) <= {0, 0o755}
        assert modes() == before
        remove_tree(root)


def test_depth_takes_neither_stack_nor_descriptors(pit: Path) -> None:
    pit.mkdir()
    dig(pit)
    before = most = len(os.listdir("/proc/self/fd"))
    for folder in walk(pit):
        most = max(most, len(os.listdir("/proc/self/fd")))
        size = sum(folder.status(name).st_size for name in folder.others)
    assert size == 65_536
    assert most - before < 100
    assert disk_bytes(pit) >= 65_536
    remove_tree(pit)
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
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "never was")
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
