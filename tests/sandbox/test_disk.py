"""Disk space of files with many names or in closed folders; ways to hold one without a name are in `mischief.py`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from valve_plugin.sandbox.disk import DiskWatch, disk_bytes
from valve_plugin.sandbox.supervisor import MIB


def _watch_closed_folder(place: Path) -> None:
    """Fill a folder and close it, as a user whom permissions bind."""
    if os.geteuid() == 0:
        os.setuid(65_534)
    watch = DiskWatch(place, MIB)
    closed = place / "a/closed"
    closed.mkdir(parents=True)
    (closed / "big").write_bytes(b"x" * 50 * MIB)
    with (closed / "big").open("rb") as file:
        os.fsync(file.fileno())
    closed.chmod(0o111)
    running = [watch.exceeded([]) for _ in range(20)]
    assert (running[0], running[-1]) == (False, True), "the disk is fuller, and there is a closed folder"
    assert DiskWatch(place, MIB).exceeded([]) is False, "it was before"
    assert DiskWatch(place, MIB).exceeded()
    assert closed.stat().st_mode & 0o777 == 0o111


def test_a_file_counts_once_and_each_of_its_names_a_block(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * MIB)
    for n in range(9):
        (tmp_path / f"name {n}").hardlink_to(tmp_path / "big")
    assert MIB + 9 * 4096 <= disk_bytes(tmp_path) < MIB + 12 * 4096


def test_a_closed_folder_hides_nothing() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        if not (child := os.fork()):
            try:
                _watch_closed_folder(Path(place))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
