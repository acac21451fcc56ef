"""The command that installs what an extra of this distribution takes, by the packages' own names.

An index may know this distribution under another name, or another by its name.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from valve_plugin.shell_words import join, quote

DISTRIBUTION = "valve-plugin"


def install(extra: str, *, anywhere: bool = False) -> str:
    """Return the command that installs an extra into the environment that runs this.

    Args:
        anywhere: for whoever reads it on another machine, without a path of this one.
    """
    try:
        return join(["pip", "install", *wanted(extra)]) if anywhere else pip_install(*wanted(extra))
    except metadata.PackageNotFoundError:  # a source tree on the path
        return f"the extra {extra!r} in pyproject.toml names it"


def wanted(extra: str | None) -> list[str]:
    """Return what this distribution, or one of its extras, requires on this Python, as it is written there."""
    from packaging.requirements import Requirement

    found = []
    for line in metadata.requires(DISTRIBUTION) or ():
        marker = Requirement(line).marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always if extra is None else not always and marker.evaluate({"extra": extra}):  # type: ignore[union-attr]
            found.append(line.partition(";")[0].strip())
    return found


def pip_install(*words: str) -> str:
    """Return the command that installs into the environment that runs this; uv makes environments without pip."""
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return join(["uv", "pip", "install", "--python", sys.executable, *words])
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists() and sys.prefix == sys.base_prefix
    anyway = ["--break-system-packages"] if managed else []  # whoever installed valve there did so too
    install = join([sys.executable, "-m", "pip", "install", *anyway, *words])
    if importlib.util.find_spec("pip") is None:
        return f"{quote(sys.executable)} -m ensurepip && {install}"
    return install
