"""Candidates kept from one run to the next, and looked for again where they do not hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.tasks import scan, smith
from valve_plugin.tasks.smith import Candidate

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CANDIDATES = st.lists(st.builds(Candidate, modifier=TEXT, file=TEXT, digest=TEXT, patch=TEXT), max_size=5)
ONE = [Candidate(modifier="m", file="a.py", digest="1", patch="p")]
FILES = [("a.py", "100644", b"a"), ("b.py", "100644", b"b")]


@given(CANDIDATES)
def test_what_was_kept_is_found_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, found: list[Candidate]
) -> None:
    path = tmp_path_factory.mktemp("scan") / "work" / "candidates.json"
    scan.keep(path, "k", found)
    assert scan.kept(path, "k") == found
    assert scan.kept(path, "other") is None


def test_the_key_is_of_source_seed_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    key = scan.key_of(FILES, 1)
    assert key == scan.key_of(FILES[::-1], 1)
    others = [scan.key_of(FILES, 2), scan.key_of(FILES[:1], 1), scan.key_of([("a.py", "100644", b"b"), FILES[1]], 1)]
    for name, value in (("_VERSION", 0), ("python_version", lambda: "3.0.0"), ("_version", lambda _: "9")):
        with monkeypatch.context() as patch:
            patch.setattr(scan, name, value)
            others.append(scan.key_of(FILES, 1))
    assert len({key, *others}) == 7


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-5],
    "malformed": lambda data: b"[" + data,
    "empty": lambda data: b"",
    "no UTF-8": lambda data: data.replace(b"a.py", b"\xff.py"),
    "of an older version": lambda data: data.replace(b'"digest"', b'"hash"'),
    "nested": lambda data: b"[" * 100_000,
    "huge": lambda data: data + b" " * 2000,
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_cannot_be_read_is_looked_for_again(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "candidates.json"
    monkeypatch.setattr(scan, "_MOST", 1000)
    scan.keep(path, "k", ONE)
    assert scan.kept(path, "k") == ONE
    path.write_bytes(HARMS[harm](path.read_bytes()))
    assert scan.kept(path, "k") is None


def nothing_in(root: Path, seed: int, name: str) -> list[Candidate]:
    return []


def test_the_time_left_goes_by_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("swesmith", "bug_gen", "adapters", "procedural", "python"):
        above = {"bug_gen": "swesmith.", "python": "swesmith.bug_gen.procedural."}.get(name, "swesmith.bug_gen.")
        full = name if name == "swesmith" else above + name
        monkeypatch.setitem(sys.modules, full, ModuleType(full))
    monkeypatch.setattr(smith, "_in_file", nothing_in)
    for name, size in (("a", 99), ("b", 299), ("c", 599)):
        (tmp_path / f"{name}.py").write_bytes(b"#" * size)
    shares: list[float] = []
    assert smith.candidates(tmp_path, lambda _: False, 0, told=shares.append) == []
    assert shares == [0.1, 0.4, 1.0]
