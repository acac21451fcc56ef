"""The commands that install something into the environment that runs this."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "valve-plugin"


def pip_install(*words: str) -> str:
    """Return the command that installs into the environment that runs this; uv makes environments without pip."""
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *words])
    install = shlex.join([sys.executable, "-m", "pip", "install", *words])
    if importlib.util.find_spec("pip") is None:
        return f"{shlex.quote(sys.executable)} -m ensurepip && {install}"
    return install


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
