"""A package that is not installed, told in one line. Imports no package: any may be the one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from valve_plugin.shell_words import quote

_MODULES = {"minisweagent": "mini-swe-agent", "markdown_it": "markdown-it-py"}
_CODE = 3
"""Infrastructure; see `output`."""


def told(error: ModuleNotFoundError) -> str:
    """Return what is missing and the command that installs it; empty: it is a module of ours, so a defect."""
    module = (error.name or "").partition(".")[0]
    if module in ("", "valve_plugin"):
        return ""
    name = _MODULES.get(module, module.replace("_", "-"))
    python = quote(sys.executable)
    for requirement in metadata.requires("valve-plugin") or ():
        what, _, marker = (part.strip() for part in requirement.partition(";"))
        if re.match(r"[\w.-]+", what)[0].lower() == name and "extra" not in marker:  # type: ignore[index]
            return f"the package {name} is not installed; run: {python} -m pip install {quote(what)}"
    return f"the module {module} is not installed; `{python} -m pip check` says which package lacks what"


@contextmanager
def needed() -> Iterator[None]:
    """Stop with one line where a package is not installed."""
    try:
        yield
    except ModuleNotFoundError as e:
        if not (line := told(e)):
            raise
        sys.stderr.write(f"valve: {line}\n")
        sys.exit(_CODE)
