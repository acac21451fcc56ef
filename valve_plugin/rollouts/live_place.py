"""Copies of a person's directory for the sandbox, and what of their tools is visible beside them.

A copy appears at the directory's own path: editable installs, virtual environments and absolute paths mean the copy,
as they mean the original outside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.limits import MIB, Limits
from valve_plugin.rollouts.sandbox import Sandbox, choose
from valve_plugin.rollouts.supervise import Completed, disk_bytes
from valve_plugin.rollouts.workspace import Workspace
from valve_plugin.tasks.environment import base_prefix

if TYPE_CHECKING:
    from valve_plugin.rollouts.live import Base

_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_VENVS = (".venv", "venv")
# Ignored by git, so not in the tree, but nothing runs without them.
_INSTALLED = (*_VENVS, "node_modules")
# Folders above a `bin` that hold more than its programs: keys, caches, other people's data.
_PRIVATE = ("", ".local", ".cargo")


@dataclass(frozen=True)
class Tools:
    """What commands of a copy need besides it."""

    readonly: tuple[Path, ...]
    path: str
    """The variable PATH."""


@contextmanager
def copy(base: Base, tree: str, sandbox: Sandbox) -> Iterator[Workspace]:
    """Yield a workspace with the files of a tree of this run, removed at the end.

    Raises:
        InfrastructureError: git or the disk failed.
    """
    trees = base.trees
    with workspaces.empty() as workspace:
        tools = find_tools(trees.root, base.cwd, os.environ)
        roots: tuple[str, ...] = ()
        if sandbox.root is None:  # the copy is not where editable installs point: let its own modules come first
            roots = tuple(name for name in (".", "src") if (trees.root / name).is_dir())
        placed = replace(workspace, place=str(trees.root), readonly=tools.readonly, source_roots=roots)
        yield workspaces.filled(placed, trees.store, trees.commit(tree))


def run_check(settings: Settings, base: Base, tree: str) -> Completed:
    """Run `settings.check` on a tree of this run, in a copy, and return how it ended.

    Raises:
        SandboxError: there is no sandbox, and doing without was not allowed.
        InfrastructureError: git or the disk failed.
    """
    sandbox = choose(settings)
    with copy(base, tree, sandbox) as workspace:
        seconds = settings.check_timeout
        limits = Limits(
            wall_seconds=seconds,
            cpu_seconds=seconds * 64,  # of all processes together: the wall clock is what the person set
            memory_bytes=16_384 * MIB,
            processes=4096,
            disk_bytes=disk_bytes(workspace.root) + 4096 * MIB,
        )
        return sandbox.run(settings.check, workspace, limits=limits, cwd=base.below, env=environment(base))


def environment(base: Base) -> dict[str, str]:
    """Return the variables of the person's shell that decide which programs and modules a command means."""
    python_path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
    return {"PATH": find_tools(base.trees.root, base.cwd, os.environ).path, **python_path}


def find_tools(root: Path, cwd: Path, environ: Mapping[str, str]) -> Tools:
    """Find virtual environments, interpreters and programs that the person's own shell would use in `cwd`."""
    venvs = [Path(environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    venvs += [folder / name for folder in dict.fromkeys((cwd, root)) for name in _VENVS]
    venvs = [venv for venv in dict.fromkeys(venvs) if (venv / "bin").is_dir()]
    on_path = [Path(entry) for entry in environ.get("PATH", os.defpath).split(os.pathsep) if entry.startswith("/")]
    on_path = [entry for entry in on_path if entry.is_dir()]
    bins = [venv / "bin" for venv in venvs] + on_path + [Path(sys.prefix, "bin")]
    outside = [entry for entry in on_path if not entry.is_relative_to(root)]  # the copy has its own
    visible = [*venvs, Path(sys.prefix), *map(_installation, outside)]
    visible += [prefix for venv in [*venvs, Path(sys.prefix)] if (prefix := _base(venv))]
    visible += [folder / name for folder in (cwd, root) for name in _INSTALLED if (folder / name).is_dir()]
    readonly = [part for place in dict.fromkeys(visible) for part in _around(root, place) if not _in_system(part)]
    path = dict.fromkeys([*map(str, bins), *_SYSTEM_PATH])
    return Tools(readonly=tuple(_outermost(readonly)), path=os.pathsep.join(path))


def _installation(entry: Path) -> Path:
    """Return the folder a directory of PATH belongs to: `x` for `x/bin`, unless that holds more than programs."""
    above = entry.parent
    home = Path.home()
    if entry.name in ("bin", "shims") and above not in {home / name for name in _PRIVATE} and above != Path("/"):
        return above
    return entry


def _base(venv: Path) -> Path | None:
    """Return the installation a virtual environment borrows its standard library from."""
    try:
        return base_prefix(venv)
    except (OSError, InfrastructureError):  # not a virtual environment, or conda's kind, which is complete
        return None


def _around(root: Path, place: Path) -> list[Path]:
    """Return a place, or its parts if the copy lies inside of it: shown whole, it would cover the copy."""
    if not root.is_relative_to(place):
        return [place]
    return [part for name in ("bin", "lib", "lib64", "pyvenv.cfg") if (part := place / name).exists()]


def _in_system(place: Path) -> bool:
    return any(place.is_relative_to(top) for top in ("/usr", "/bin", "/sbin", "/lib", "/lib64"))


def _outermost(places: list[Path]) -> list[Path]:
    """Drop places inside of others: those are visible with them."""
    return [p for p in places if not any(p != q and p.is_relative_to(q) for q in places)]
