"""Source trees from archives and directories."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollouts.test_foreign import dig
from valve_plugin.cli.detect import language
from valve_plugin.errors import TaskError
from valve_plugin.rollouts.foreign import remove
from valve_plugin.tasks import source


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    """Write a .tar.gz."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def test_an_archive_loses_its_top_directory(tmp_path: Path) -> None:
    path = archive(tmp_path / "x-1.tar.gz", {"x-1/a.py": b"a", "x-1/b/run.sh": b"b"}, {"x-1/link": "a.py"})
    assert sorted(source.from_archive(path)) == [
        ("a.py", "100644", b"a"),
        ("b/run.sh", "100755", b"b"),
        ("link", "120000", b"a.py"),
    ]


def test_what_git_takes_for_its_own_is_left_out(tmp_path: Path) -> None:
    path = archive(tmp_path / "x-1.tar.gz", {"x-1/a.py": b"a", "x-1/data/.git": b"gitdir: ..", "x-1/.GIT/config": b""})
    assert source.from_archive(path) == [("a.py", "100644", b"a")]


def test_a_zip_archive_reads_the_same(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x-1.zip", "w") as zipped:
        zipped.writestr("x-1/a.py", "a")
    assert source.from_archive(tmp_path / "x-1.zip") == [("a.py", "100644", b"a")]


@pytest.mark.parametrize("name", ["/etc/x", "x-1/../../y"])
def test_hostile_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="hostile path"):
        source.from_archive(archive(tmp_path / "x-1.tar.gz", {name: b""}))


def test_another_archive_than_the_tasks_were_made_from_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x-1.tar.gz", {"x-1/a.py": b"a"})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.from_archive(path, digest)
    with pytest.raises(TaskError, match=f"sha256 is {digest}, expected {'0' * 64}"):
        source.from_archive(path, "0" * 64)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00cut"])
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(TaskError, match=r"x\.tar\.gz: not a readable source archive"):
        source.from_archive(tmp_path / "x.tar.gz")


def test_too_much_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 10)
    with pytest.raises(TaskError, match="more than 10 bytes"):
        source.from_archive(archive(tmp_path / "x.tar.gz", {"x/a": b"a" * 11}))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_bytes(b"a" * 11)
    with pytest.raises(TaskError, match="more than 10 bytes"):
        source.from_directory(tmp_path / "tree")


def test_a_directory_without_what_is_not_source(tmp_path: Path) -> None:
    for name in (
        ".git/config",
        "pkg/__pycache__/a.pyc",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "pkg/a.py",
        "b.pyc",
        "sub/.git",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "pkg/a.py").chmod(0o755)
    assert source.from_directory(tmp_path) == [("loop", "120000", b"."), ("pkg/a.py", "100755", b"x")]


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed by us: pytest recurses over what tests leave."""
    (tmp_path / "pit").mkdir()
    yield tmp_path / "pit"
    remove(tmp_path / "pit")


def test_a_directory_may_be_deep_and_links_stay_links(pit: Path) -> None:
    dig(pit, 1500)
    (pit / "link").symlink_to("a")
    found = source.from_directory(pit)
    assert [(name[-5:], mode, len(content)) for name, mode, content in found] == [
        ("link", "120000", 1),
        ("/x.py", "100644", 65_536),
    ]
    assert language(pit).value == "Python"
    dig(pit, 30, "b" * 200)
    with pytest.raises(TaskError, match=r"b{80}: File name too long"):
        source.from_directory(pit)


def test_no_directory_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such directory"):
        source.from_directory(tmp_path / "nowhere")


def test_what_never_ends_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.symlink_to("/dev/zero")
    with pytest.raises(TaskError, match="no regular file"):
        source.from_archive(archive)
