"""Container images of tasks. In SWE-smith's images, /testbed is a git clone and a conda environment runs its tests.

Two parts of /testbed are copied out of the image once, without running anything in it: the git directory, and the
build products beside the source (metadata of the editable install, compiled modules).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from msgspec.structs import replace

from valve_plugin.errors import ConfigError, InfrastructureError, SandboxError, TaskError
from valve_plugin.files import make_private_dir, write_atomic
from valve_plugin.records import Task
from valve_plugin.sandbox import engine as engines
from valve_plugin.sandbox.engine import Image
from valve_plugin.sandbox.git import PLAIN_CONFIG, read_files, read_tree
from valve_plugin.sandbox.trees import open_below, remove_empty, remove_tree, walk

if TYPE_CHECKING:
    from valve_plugin.config import Settings
    from valve_plugin.sandbox.git import File
    from valve_plugin.tasks.repository import PreparedRepository

IMAGE_PREFIX = "image:"
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+-]*", re.ASCII)
# Builds and tests put copies of the source from before the bug into these folders. They would show the fix.
_COPIES = frozenset({"build", "dist", "__pycache__", ".eggs", ".tox", ".pytest_cache", ".mypy_cache", ".hypothesis"})

# What in a git directory can point git elsewhere, or name programs to run.
_ELSEWHERE = ("config", "config.worktree", "commondir", "objects/info/alternates", "hooks", "worktrees", "modules")
_DONE = "copied"  # earlier versions wrote "complete", and did not check for links


def image_name(task: Task, source: str) -> str:
    """Return the name of the image that a task runs in, or an empty string if it has none."""
    return task.image_name or (source.removeprefix(IMAGE_PREFIX) if source.startswith(IMAGE_PREFIX) else "")


def place_in_image(
    prepared: PreparedRepository, task: Task, settings: Settings, say: Callable[[str], None] = lambda _: None
) -> PreparedRepository:
    """Return the repository for rollouts of a task: with the task's image if it runs in one, else unchanged.

    Raises:
        ConfigError, SandboxError: see `choose_image`.
        TaskError: see `copy_image`.
    """
    source = prepared.repository.source
    found = choose_image(task, source, settings)
    if not found:
        return prepared
    engine, image_id = found
    environment = prepared.repository.image_environment
    image = Image(engine=engine.name, name=image_name(task, source), id=image_id, environment=environment)
    return replace(prepared, image=copy_image(image, say))


def choose_image(task: Task, source: str, settings: Settings) -> tuple[engines.Engine, str] | None:
    """Return (engine, image id) for a task, or None if it runs in a virtual environment instead.

    Raises:
        ConfigError: the tests need an image, but the settings forbid containers.
        SandboxError: a container is required, but the engine or the image is missing; the message says what to do.
    """
    name, only = image_name(task, source), source.startswith(IMAGE_PREFIX)
    if settings.sandbox == "bwrap" and only:
        raise ConfigError(f"the tests of {task.repo} need the image {name}, but sandbox is 'bwrap'; use 'auto'")
    found = available_image(task, settings, name)
    if found is None and (only or settings.sandbox in engines.ENGINES):
        raise SandboxError(_missing(name, settings.sandbox))
    return found


def available_image(task: Task, settings: Settings, name: str = "") -> tuple[engines.Engine, str] | None:
    """Return (engine, image id) if the settings allow containers and the image is on this machine, else None."""
    name = name or task.image_name
    if not name or settings.sandbox == "bwrap":
        return None
    return engines.find_image(name, [n for n in engines.ENGINES if settings.sandbox in ("auto", n)])


def copy_image(image: Image, say: Callable[[str], None] = lambda _: None) -> Image:
    """Copy the parts of /testbed that rollouts need, unless that was done before; return the image.

    Raises:
        SandboxError: the engine failed.
        TaskError: /testbed is missing, is not a git repository, or cannot be copied safely.
    """
    folder = image.folder
    make_private_dir(folder.parent)
    make_private_dir(folder)
    done, lock = folder / _DONE, folder / "lock"
    with FileLock(lock):
        if done.exists():
            return image
        say(f"copying /testbed out of {image.name}")
        for half in (image.git, image.built):
            remove_tree(half)
        engine = engines.Engine(image.engine)
        words = ["--pull", "never", "--network", "none", *engines.labels(lock), image.id, "true"]
        container = engine.call("create", *words)
        try:
            engine.call("cp", f"{container}:/testbed", str(image.built), seconds=engines.COPY_SECONDS, tied=True)
        finally:
            engine.remove(container)
        _require_clone(image)
        (image.built / ".git").rename(image.git)
        for name in _ELSEWHERE:
            remove_tree(image.git / name)
        (image.git / "config").write_text(PLAIN_CONFIG)
        _keep_built(image)
        write_atomic(done, image.name.encode() + b"\n")
    return image


def image_files(name: str, say: Callable[[str], None]) -> tuple[Path, list[File]]:
    """Return (git directory, files of its HEAD) of an image's /testbed.

    Raises:
        SandboxError: the engine or the image is missing; the message says what to do.
    """
    found = engines.find_image(name)
    if found is None:
        raise SandboxError(_missing(name, "auto"))
    image = copy_image(Image(engine=found[0].name, name=name, id=found[1]), say)
    return image.git, read_files(image.git, "HEAD")


def _require_clone(image: Image) -> None:
    """Refuse a `.git` with entries that a clone never has, such as links that lead out of it."""
    expected = "expected a git clone of regular files and folders, as in SWE-smith's images"
    for folder, inside in ((image.built, "/testbed"), (image.built / ".git", "/testbed/.git")):
        if not folder.is_dir() or folder.is_symlink():
            raise TaskError(f"{image.name}: its {inside} is missing or a link; {expected}")
    for found in walk(image.built / ".git", unlock=True):
        for name in found.others:
            if not stat.S_ISREG(found.status(name).st_mode):
                what = f"/testbed/.git/{found.path(name)}"
                raise TaskError(f"{image.name}: {what} is a link or a special file; {expected}")
    if not (image.built / ".git" / "HEAD").is_file():
        raise TaskError(f"{image.name}: its /testbed is not a git repository; {expected}")


def _keep_built(image: Image) -> None:
    """Remove the source, and all copies of it, from the copy of /testbed."""
    try:
        tracked = read_tree(image.git, "HEAD")
    except InfrastructureError as e:
        raise TaskError(f"{image.name}: the git repository in its /testbed has no commit: {e}") from e
    for path in tracked:
        *folders, file = path.split("/")
        try:
            with suppress(FileNotFoundError), open_below(image.built, folders) as fd:
                os.unlink(file, dir_fd=fd)
        except (NotADirectoryError, IsADirectoryError) as e:
            raise TaskError(
                f"{image.name}: the last commit of its /testbed has the file {path!r}, but the working tree has a link "
                "or a folder there; expected the files of that commit"
            ) from e
    for folder in walk(image.built, unlock=True, on_leave=remove_empty):
        for name in [name for name in folder.folders if name in _COPIES]:
            folder.folders.remove(name)
            remove_tree(name, folder.fd)
        for name in folder.others:
            if name.endswith(".pyc") or stat.S_IFMT(folder.status(name).st_mode) not in (stat.S_IFREG, stat.S_IFLNK):
                os.unlink(name, dir_fd=folder.fd)


def _missing(name: str, sandbox: str) -> str:
    if not name:
        return f"sandbox is {sandbox!r}, but the task has no image_name; use 'auto'"
    tried = [n for n in engines.ENGINES if sandbox in ("auto", n)]
    down = [why for n in tried if (why := engines.engine_problem(n))]
    if len(down) == len(tried):
        return f"the image {name} needs a container engine: {'; '.join(down)}; Debian, Ubuntu: apt-get install podman"
    engine = next(n for n in tried if not engines.engine_problem(n))
    command = f": {engine} pull {name}" if _NAME.fullmatch(name) else ""  # a row may name anything
    return f"the image {name} is not on this machine{command}"
