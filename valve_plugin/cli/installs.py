"""The commands that install something: into the environment that runs this, or into the system."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from valve_plugin.extras import DISTRIBUTION
from valve_plugin.shell_words import join, quote

APT = Path("/usr/bin/apt-get")
LISTS = Path("/var/lib/apt/lists")
_SYSTEM = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")


def system_install(*packages: str, again: bool = False) -> str:
    """Return the command that installs packages of Debian and Ubuntu; empty on another system.

    Args:
        again: they are there, and do not work.
    """
    if not APT.exists():
        return ""
    install = ["apt-get", "install", "-y", *(["--reinstall"] if again else []), *packages]
    fresh = any(LISTS.glob("*_Packages*"))  # a container's image comes without the lists
    return " && ".join(as_root(join(c)) for c in ([] if fresh else [["apt-get", "update"]]) + [install])


def as_root(command: str) -> str:
    """Return a command that needs root's rights, as this user gives it."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def repaired(tool: str, package: str) -> str:
    """Return the command for a tool that is there and does not work.

    What is not the system's is moved out of the way; the next one on PATH, or none, is looked at then.
    """
    path = Path(shutil.which(tool) or f"/usr/bin/{tool}")
    if str(path.parent) in _SYSTEM:
        return system_install(package, again=True)
    move = join(["mv", str(path), f"{path}.set-aside"])
    return move if os.access(path.parent, os.W_OK) else as_root(move)


def ours(program: str, *words: str) -> str:
    """Return a command of this installation, as it is found where it is copied to: by name on PATH, else by its path.

    `valve` may have been called by its path, in an environment that is not activated.
    """
    beside = Path(sys.executable).with_name(program)
    return join([str(beside) if not shutil.which(program) and beside.is_file() else program, *words])


def aside(path: str) -> str:
    """Return the command that moves something out of the way, to where nobody can have put anything before.

    Under a name that can be known, a repository could have a link to somebody's file.
    """
    folder, _, name = path.rpartition("/")
    return f'mv -- {quote(path)} "$(mktemp -d -- {quote(f"{folder}/.{name}.aside-XXXXXX")})"'


def origin(recorded: str | None, version: str) -> list[str]:
    """Return what pip takes to install this again from where it came; never a bare name, which may be another's. Pure.

    Args:
        recorded: `direct_url.json` of the installation (PEP 610); None where it came from an index.
        version: the installed one.
    """
    if recorded is None:
        return [f"{DISTRIBUTION}=={version}"]
    facts = json.loads(recorded)
    url = str(facts["url"])
    if "vcs_info" in facts:
        return [f"{DISTRIBUTION} @ {facts['vcs_info']['vcs']}+{url}@{facts['vcs_info']['commit_id']}"]
    place = unquote(urlsplit(url).path) if url.startswith("file:") else url
    return ["--editable", place] if facts.get("dir_info", {}).get("editable") else [place]
