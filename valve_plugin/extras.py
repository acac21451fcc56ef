"""Requirements of this distribution, and the commands that install them.

The commands name the required packages, because an index may have this distribution under another name.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from valve_plugin.words import join, quote

DISTRIBUTION = "valve-plugin"
_MODULES = {"minisweagent": "mini-swe-agent", "markdown_it": "markdown-it-py"}
"""Module name -> package name, if they differ."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the running environment."""
    try:
        return pip_install(*requirements(extra))
    except metadata.PackageNotFoundError:  # a source tree on the path
        return f"the extra {extra!r} in pyproject.toml names it"


def extras() -> list[str]:
    """Return the sorted names of the extras, or an empty list if this distribution is not installed."""
    try:
        return sorted(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [])
    except metadata.PackageNotFoundError:
        return []


def requirements(extra: str | None) -> list[str]:
    """Return the requirements of this distribution (None), or those that an extra adds, for this Python."""
    from packaging.requirements import Requirement

    found = []
    for line in metadata.requires(DISTRIBUTION) or ():
        marker = Requirement(line).marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always if extra is None else not always and marker.evaluate({"extra": extra}):  # type: ignore[union-attr]
            found.append(line.partition(";")[0].strip())
    return found


def missing_requirements(extra: str | None) -> dict[str, str]:
    """Return the unmet requirements, each with the installed version or an empty string."""
    from packaging.requirements import Requirement

    lacks = {}
    for line in requirements(extra):
        requirement = Requirement(line)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            lacks[line] = ""
        else:
            if not requirement.specifier.contains(version, prereleases=True):
                lacks[line] = version
    return lacks


def pip_install(*words: str) -> str:
    """Return the command that installs into the running environment; uv makes environments without pip."""
    if importlib.util.find_spec("pip") is None:
        return join(["uv", "pip", "install", "--python", sys.executable, *words])
    return join([sys.executable, "-m", "pip", "install", *words])


def own_command(program: str, *words: str) -> str:
    """Return a command of this installation: by name if it is on PATH, else by its path."""
    beside = Path(sys.executable).with_name(program)
    return join([str(beside) if not shutil.which(program) and beside.is_file() else program, *words])


def runnable(command: str) -> str:
    """Return a command line that works here: a program of this installation that is not on PATH gets its path."""
    program, _, words = command.partition(" ")
    return f"{own_command(program)} {words}".rstrip() if program in ("valve", "mini", "mini-extra") else command


def missing_package(error: ModuleNotFoundError) -> str:
    """Return which package is missing and how to install it, or an empty string for a module of valve's.

    This imports no package, because any package may be the missing one.
    """
    module = (error.name or "").partition(".")[0]
    if module in ("", "valve_plugin"):
        return ""
    name = _MODULES.get(module, module.replace("_", "-"))
    python = quote(sys.executable)
    for requirement in metadata.requires(DISTRIBUTION) or ():
        what, _, marker = (part.strip() for part in requirement.partition(";"))
        if re.match(r"[\w.-]+", what)[0].lower() == name and "extra" not in marker:  # type: ignore[index]
            return f"the package {name} is not installed; run: {python} -m pip install {quote(what)}"
    return f"the module {module} is not installed; `{python} -m pip check` shows which package needs it"


def ignore_dotenv() -> None:
    """Prevent litellm from reading a `.env` file of the working directory when it is imported.

    With such a file a repository could send keys and issues to another server. LITELLM_MODE=DEV allows it.
    """
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
