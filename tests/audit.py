"""Asks pip-audit for known holes in the lowest versions that pyproject.toml allows: `make audit`.

It ends with 1 if there are some, and with 0 where its data cannot be reached, which it says.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECONDS = 90
"""Time limit of each step."""


def lowest(requirements: Iterable[str]) -> list[str]:
    """Return the requirements with a lower bound or a version, pinned to it, each once."""
    found = (re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?[>=]=([0-9.]+)", requirement) for requirement in requirements)
    return [*dict.fromkeys(f"{match[1]}=={match[2]}" for match in found if match)]


def declared(project: Mapping[str, Any]) -> list[str]:
    """Return the requirements of a project and of its extras, but not of `dev`, which no user installs."""
    extras = (extra for name, extra in project["optional-dependencies"].items() if name != "dev")
    return [*project["dependencies"], *chain.from_iterable(extras)]


def report(answer: str) -> tuple[list[str], list[str]]:
    """Return (holes, packages without an answer), a line each, from pip-audit's JSON; empty text says nothing."""
    packages: list[dict[str, Any]] = json.loads(answer or '{"dependencies": []}')["dependencies"]
    holes = [
        f"{package['name']} {package['version']}: {hole['id']} {', '.join(hole['aliases'])}; "
        f"fixed in {', '.join(hole['fix_versions']) or 'no version'}"
        for package in packages
        for hole in package.get("vulns", ())
    ]
    return holes, [package["name"] for package in packages if "skip_reason" in package]


def main() -> int:
    """Print the findings; return the exit code."""
    wanted = lowest(declared(tomllib.loads(Path("pyproject.toml").read_text())["project"]))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lowest.txt").write_text("\n".join(wanted))
        pip = [f"{folder}/venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q", "pip-audit"]
        audit = [f"{folder}/venv/bin/pip-audit", "-r", f"{folder}/lowest.txt", "--no-deps", "--disable-pip"]
        audit += ["-f", "json", "--timeout", "10"]
        try:
            for command in ([sys.executable, "-m", "venv", f"{folder}/venv"], pip):
                subprocess.run(command, timeout=SECONDS, check=True, capture_output=True)
            answer = subprocess.run(audit, timeout=SECONDS, check=False, capture_output=True, text=True).stdout
        except (OSError, subprocess.SubprocessError) as e:
            print(f"not audited: pip-audit cannot be installed, or does not answer: {e}")
            return 0
    holes, skipped = report(answer)
    if len(skipped) == len(wanted) or not answer:
        print("not audited: the data of pip-audit cannot be reached")
        return 0
    if skipped:
        print(f"not audited: {', '.join(skipped)}")
    print(*holes, sep="\n", end="\n" if holes else "")
    print(f"{len(holes)} known holes in the lowest versions of {len(wanted) - len(skipped)} packages")
    return bool(holes)


if __name__ == "__main__":
    sys.exit(main())
