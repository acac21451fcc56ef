"""Copies of a person's directory for the sandbox, and the tools that commands see beside them.

A copy appears at the directory's own path, so that editable installs, virtual environments and absolute paths refer to
the copy as they refer to the original outside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from valve_plugin.errors import InfrastructureError
from valve_plugin.live.trees import Base
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.environment import base_prefix
from valve_plugin.sandbox.workspace import Workspace, open_workspace

_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_VENVS = (".venv", "venv")
# Git ignores these, so they are not in the tree, but commands need them.
_INSTALLED = (*_VENVS, "node_modules")
# Folders with a `bin` that also contain private data, such as keys and caches.
_PRIVATE = ("", ".local", ".cargo")


@dataclass(frozen=True)
class Tools:
    """Programs that commands in a copy need."""

    readonly: tuple[Path, ...]
    path: str
    """Value of the variable PATH."""


@contextmanager
def open_copy(base: Base, tree: str, sandbox: Sandbox) -> Iterator[Workspace]:
    """Yield a workspace with the files of one of the run's trees; it is removed at the end.

    Raises:
        InfrastructureError: git or the disk failed.
    """
    trees = base.trees
    tools = find_tools(trees.root, base.cwd, os.environ)
    roots: tuple[str, ...] = ()
    if sandbox.root is None:  # editable installs do not point to the copy, so its modules must come first
        roots = tuple(name for name in (".", "src") if (trees.root / name).is_dir())
    commit, place = trees.commit(tree), str(trees.root)
    with open_workspace(trees.store, commit, readonly=tools.readonly, source_roots=roots, place=place) as workspace:
        yield workspace


def shell_environment(base: Base) -> dict[str, str]:
    """Return the variables of the person's shell that determine which programs and modules a command uses."""
    python_path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
    return {"PATH": find_tools(base.trees.root, base.cwd, os.environ).path, **python_path}


def find_tools(root: Path, cwd: Path, environ: Mapping[str, str]) -> Tools:
    """Return the virtual environments, interpreters and programs that the person's shell uses in `cwd`."""
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
    """Return the installation of a directory on PATH: `x` for `x/bin`, unless `x` may contain private data."""
    above = entry.parent
    home = Path.home()
    if entry.name in ("bin", "shims") and above not in {home / name for name in _PRIVATE} and above != Path("/"):
        return above
    return entry


def _base(venv: Path) -> Path | None:
    """Return the installation that has the standard library of a virtual environment, or None if it is unknown."""
    try:
        return base_prefix(venv)
    except (OSError, InfrastructureError):  # not a virtual environment, or conda's kind, which is complete
        return None


def _around(root: Path, place: Path) -> list[Path]:
    """Return a path, or its parts if the project is inside it (mounting the whole path would hide the copy)."""
    if not root.is_relative_to(place):
        return [place]
    return [part for name in ("bin", "lib", "lib64", "pyvenv.cfg") if (part := place / name).exists()]


def _in_system(place: Path) -> bool:
    return any(place.is_relative_to(top) for top in ("/usr", "/bin", "/sbin", "/lib", "/lib64"))


def _outermost(places: list[Path]) -> list[Path]:
    """Return the paths that are not inside another one of them."""
    return [p for p in places if not any(p != q and p.is_relative_to(q) for q in places)]
