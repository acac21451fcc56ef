"""A task's own container image, as SWE-smith's are made: /testbed is a clone, a conda environment tests it.

What rollouts need of /testbed is copied out of the image once, without running anything in it: its git, and what
building left beside the source (metadata of the editable install, compiled modules).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from msgspec.structs import replace

from valve_plugin.bank.files import write_atomic
from valve_plugin.bank.paths import data_dir
from valve_plugin.errors import ConfigError, InfrastructureError, SandboxError, TaskError
from valve_plugin.records import Record, Task
from valve_plugin.rollouts import engine as engines
from valve_plugin.rollouts.foreign import Folder, beneath, remove, walk
from valve_plugin.tasks import history
from valve_plugin.tasks.git import read_tree

if TYPE_CHECKING:
    from valve_plugin.config import Settings
    from valve_plugin.tasks.repository import Prepared
    from valve_plugin.tasks.source import File

SMITH_ENVIRONMENT = "/opt/miniconda3/envs/testbed"
SOURCE = "image:"
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+-]*", re.ASCII)
"""What can be the name of an image."""
# Left behind by builds and tests: copies of the source as it was before the bug, so they would give the fix away.
_COPIES = frozenset({"build", "dist", "__pycache__", ".eggs", ".tox", ".pytest_cache", ".mypy_cache", ".hypothesis"})

_DONE = "copied"  # older versions wrote "complete", and did not look for links
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"


class Image(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """An image that is here, and what was copied out of it."""

    engine: engines.Name
    name: str
    id: str
    """64 hex digits; the same name may stand for another image tomorrow."""
    environment: str = SMITH_ENVIRONMENT
    """Inside the image: the environment whose bin/python runs the tests."""

    @property
    def folder(self) -> Path:
        """Where the copies are."""
        return data_dir() / "images" / self.id[:16]

    @property
    def git(self) -> Path:
        """The git directory of /testbed, with all the history the image has."""
        return self.folder / "git"

    @property
    def built(self) -> Path:
        """What /testbed holds beside its source."""
        return self.folder / "built"

    @cached_property
    def built_files(self) -> frozenset[str]:
        """Paths of the files and links in `built`, relative to the tree."""
        return frozenset(folder.path(name) for folder in walk(self.built) for name in folder.others)


def named(task: Task, source: str) -> str:
    """Return the name of the image a task runs in; empty: it has none.

    Args:
        source: of its repository.
    """
    return task.image_name or (source.removeprefix(SOURCE) if source.startswith(SOURCE) else "")


def placed(prepared: Prepared, task: Task, settings: Settings, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """Return the repository as rollouts of a task find it: in the task's image, or in the environment made here.

    Raises:
        ConfigError, SandboxError: see `wanted`.
        TaskError: see `copied`.
    """
    source = prepared.repository.source
    found = wanted(task, source, settings)
    if not found:
        return prepared
    engine, image_id = found
    environment = prepared.repository.image_environment
    image = Image(engine=engine.name, name=named(task, source), id=image_id, environment=environment)
    return replace(prepared, image=copied(image, say))


def wanted(task: Task, source: str, settings: Settings) -> tuple[engines.Engine, str] | None:
    """Return (engine, id) of the image a task is to run in; None: it runs in the environment made here.

    Args:
        source: of its repository.

    Raises:
        ConfigError: the tests run in nothing but an image, and the settings allow none.
        SandboxError: the settings ask for a container, or the tests do, and there is no engine or no image; says what
            to do.
    """
    name, only = named(task, source), source.startswith(SOURCE)
    if settings.sandbox == "bwrap" and only:
        raise ConfigError(f"{task.repo} is tested in its image, {name}; sandbox is 'bwrap', use 'auto'")
    found = here(task, settings, name)
    if found is None and (only or settings.sandbox in engines.NAMES):
        raise SandboxError(_missing(name, settings.sandbox))
    return found


def here(task: Task, settings: Settings, name: str = "") -> tuple[engines.Engine, str] | None:
    """Return (engine, id) of a task's image where the settings allow containers and the image is on this machine."""
    name = name or task.image_name
    if not name or settings.sandbox == "bwrap":
        return None
    return engines.with_image(name, [n for n in engines.NAMES if settings.sandbox in ("auto", n)])


def copied(image: Image, say: Callable[[str], None] = lambda _: None) -> Image:
    """Copy what rollouts need of the image, unless that was done before.

    Raises:
        SandboxError: the engine failed.
        TaskError: /testbed is not there, no git repository, or none that can be copied safely; says what is wrong.
    """
    folder = image.folder
    folder.mkdir(parents=True, exist_ok=True)
    done, lock = folder / _DONE, folder / "lock"
    with FileLock(lock):
        if done.exists():
            return image
        say(f"copying /testbed out of {image.name}")
        for half in (image.git, image.built):
            remove(half)
        _copy_out(engines.Engine(image.engine), image, lock)
        _require_clone(image)
        (image.built / ".git").rename(image.git)
        _disarm(image.git)
        _keep_built(image)
        write_atomic(done, image.name.encode() + b"\n")
    return image


def files(name: str, settings: Settings, say: Callable[[str], None]) -> tuple[Path, list[File]]:
    """Return (git directory, files of its HEAD) of an image's /testbed.

    Raises:
        SandboxError: no engine, or no such image; says what to do.
    """
    found = engines.with_image(name, [n for n in engines.NAMES if settings.sandbox in ("auto", n)])
    if found is None:
        raise SandboxError(_missing(name, settings.sandbox))
    image = copied(Image(engine=found[0].name, name=name, id=found[1]), say)
    return image.git, history.files_at(image.git, "HEAD")


def _copy_out(engine: engines.Engine, image: Image, lock: Path) -> None:
    labels = ["--label", f"{engines.OWNER_LABEL}={engines.owner()}", "--label", f"{engines.ALIVE_LABEL}={lock}"]
    container = engine.call("create", "--pull", "never", "--network", "none", *labels, image.id, "true")
    try:
        engine.copy(container, "/testbed", image.built)
    finally:
        engine.remove(container)


def _require_clone(image: Image) -> None:
    """Refuse what no clone has in its `.git`, and git would follow out of it.

    Raises:
        TaskError: /testbed is a link, its `.git` no folder, or something in that neither folder nor file.
    """
    expected = "expected a clone with files and folders of its own, as SWE-smith's images have"
    for folder in (image.built, image.built / ".git"):
        if not folder.is_dir() or folder.is_symlink():
            raise TaskError(f"{image.name}: its {_inside(image, folder)} is not there or a link; {expected}")
    for found in walk(image.built / ".git", unlock=True):
        for name in found.others:
            if not stat.S_ISREG(found.status(name).st_mode):
                what = f"/testbed/.git/{found.path(name)}"
                raise TaskError(f"{image.name}: {what} is a link or a special file; {expected}")
    if not (image.built / ".git" / "HEAD").is_file():
        raise TaskError(f"{image.name}: its /testbed is no git repository; {expected}")


def _inside(image: Image, path: Path) -> str:
    return (Path("/testbed") / path.relative_to(image.built)).as_posix()


def _disarm(git_dir: Path) -> None:
    """Take out of a foreign git directory what could lead git elsewhere or name programs, which it would run here."""
    for name in (
        *("config", "config.worktree", "commondir", "objects/info/alternates"),
        *("hooks", "worktrees", "modules"),
    ):
        remove(git_dir / name)
    (git_dir / "config").write_text(_CONFIG)


def _keep_built(image: Image) -> None:
    """Remove from the copy of /testbed the source and every copy of it.

    Raises:
        TaskError: there is no commit, or a link stands where it has a folder.
    """
    try:
        tracked = read_tree(image.git, "HEAD")
    except InfrastructureError as e:
        raise TaskError(f"{image.name}: the git repository in its /testbed has no commit: {e}") from e
    for path in tracked:
        _unlink(image, path)

    def drop_empty(above: Folder, name: str) -> None:
        with suppress(OSError):  # it is not empty
            os.rmdir(name, dir_fd=above.fd)

    for folder in walk(image.built, unlock=True, left=drop_empty):
        for name in [name for name in folder.folders if name in _COPIES]:
            folder.folders.remove(name)
            remove(name, folder.fd)
        for name in folder.others:
            if name.endswith(".pyc") or stat.S_IFMT(folder.status(name).st_mode) not in (stat.S_IFREG, stat.S_IFLNK):
                os.unlink(name, dir_fd=folder.fd)


def _unlink(image: Image, path: str) -> None:
    """Remove a tracked file from the copy of /testbed, where it is there."""
    *folders, name = path.split("/")
    try:
        with suppress(FileNotFoundError), beneath(image.built, folders) as fd:
            os.unlink(name, dir_fd=fd)
    except (NotADirectoryError, IsADirectoryError) as e:
        raise TaskError(
            f"{image.name}: its last commit has the file {path!r}, and its /testbed a link or a folder on that path; "
            "expected that commit's files, as a clone has them"
        ) from e


def _missing(name: str, wanted: str) -> str:
    if not name:
        return f"sandbox is {wanted!r}, and the task names no image_name; use 'auto'"
    tried = [n for n in engines.NAMES if wanted in ("auto", n)]
    down = [why for n in tried if (why := engines.fails(n))]
    if len(down) == len(tried):
        return f"the image {name} needs a container engine: {'; '.join(down)}; Debian, Ubuntu: apt-get install podman"
    engine = next(n for n in tried if not engines.fails(n))
    command = f": {engine} pull {name}" if _NAME.fullmatch(name) else ""  # a row's name may be anything, as an option
    return f"the image {name} is not on this machine{command}"
