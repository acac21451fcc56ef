"""Edits undo a bug patch exactly, through real bash; wrong ones differ from both states."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.lab.simulation.rows import BUGGY, FIXED, patch, row
from valve_plugin.lab.simulation import edits

# Lines that could pass for parts of a diff, for shell or sed syntax, or for Python quoting.
_LINES = st.lists(
    st.sampled_from(
        ["", "a = 1", "-- b", "++ c", "    x == 'y'", "@@ -1 +1 @@", "\\d\\", "$HOME `id`", 'say "\'"', "é"]
    )
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12),
    min_size=1,
    max_size=12,
)


def _apply(changes: list[edits.LineChange], text: str) -> str:
    lines = text.split("\n")
    for change in reversed(changes):
        assert tuple(lines[change.line - 1 : change.line - 1 + len(change.present)]) == change.present
        lines[change.line - 1 : change.line - 1 + len(change.present)] = change.wanted
    return "\n".join(lines)


def _run(command: str, folder: Path, text: str) -> str:
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop/cart.py").write_bytes(text.encode())
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "shop/cart.py").read_bytes().decode()


@given(_LINES, _LINES, st.integers(0, 3))
def test_changes_undo_the_patch(fixed: list[str], buggy: list[str], context: int) -> None:
    fixed_text, buggy_text = ("\n".join(lines) + "\n" for lines in (fixed, buggy))
    changes = edits.changes(patch(fixed_text, buggy_text, context=context))
    assert _apply(changes, buggy_text) == fixed_text
    assert all(c.present or c.wanted for c in changes)


@settings(max_examples=8)
@given(_LINES, _LINES)
def test_a_command_repairs_a_real_file(
    tmp_path_factory: pytest.TempPathFactory, fixed: list[str], buggy: list[str]
) -> None:
    fixed_text, buggy_text = ("\n".join(lines) + "\n" for lines in (fixed, buggy))
    assume(fixed_text != buggy_text)
    changes = edits.changes(patch(fixed_text, buggy_text))
    assert _run(edits.command(changes), tmp_path_factory.mktemp("repo"), buggy_text) == fixed_text


def test_line_ends_of_the_file_survive(tmp_path: Path) -> None:
    fixed, buggy = FIXED.replace("\n", "\r\n"), BUGGY.replace("\n", "\r\n")
    lines = "\n".join(x if x.startswith(("---", "+++", "@@", "diff")) else x + "\r" for x in row().patch.splitlines())
    assert _run(edits.command(edits.changes(lines + "\n")), tmp_path, buggy) == fixed


def test_the_function_is_named() -> None:
    assert edits.function_of(row().patch) == "total"
    assert edits.function_of("@@ -9,1 +9,1 @@ class Cart:\n-a\n+b\n") == "Cart"
    assert edits.function_of("@@ -9,1 +9,1 @@\n-a\n+b\n def later():\n") == "later"
    assert edits.function_of("@@ -9,1 +9,1 @@\n-a\n+b\n") == ""


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "diff --git a/x b/y\nrename from x\nrename to y\n", "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"],
)
def test_patches_without_lines_to_restore_have_no_changes(text: str) -> None:
    assert edits.changes(text) == []
