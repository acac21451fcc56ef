"""The repository speaks of the project alone, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERIC = {
    *("/", "/tmp", "/home", "/Users", "/var", "/opt", "/usr", "/srv", "/root", "/mnt", "/data"),
    *("/app", "/build", "/builds", "/code", "/github", "/project", "/repo", "/src", "/testbed", "/tests", "/workspace"),
}
"""Say nothing about one machine."""
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def test_no_file_names_a_directory_of_this_machine() -> None:
    # `admin` is nobody's home: an attack in the screen's corpus names it.
    places = {str(p) for p in (ROOT, ROOT.parent, Path.home(), *ROOT.parent.parents)} - GENERIC
    pattern = re.compile(
        "|".join([rf"{re.escape(place)}\b/" for place in sorted(places)] + [r"/(?:home|Users)/(?!admin/)\w+/"])
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in tracked()
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), start=1)
        if (match := pattern.search(line))
    ]
    assert not found, "\n".join(found)


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {match['target']}"
        for page in tracked()
        if page.suffix == ".md"
        for match in LINK.finditer(re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL))
        if "://" not in match["target"] and not (page.parent / match["target"]).exists()
    ]
    assert not broken, "\n".join(broken)


def test_the_start_page_names_every_page() -> None:
    named = {match["target"] for match in LINK.finditer((ROOT / "docs/index.md").read_text("utf-8"))}
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - named == {"index.md"}


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
