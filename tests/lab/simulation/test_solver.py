"""The SIMULATED solver: from a patch to edits, and the steps of an attempt."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.lab.simulation.rows import BUGGY, FIXED, patch, row
from valve_plugin.lab.simulation import parameters as p
from valve_plugin.lab.simulation import solver
from valve_plugin.lab.simulation.parameters import Draw
from valve_plugin.lab.simulation.solver import SUBMIT, bug_class, script, success_chance
from valve_plugin.retrieval import block

# Lines that could pass for parts of a diff, for shell or sed syntax, or for Python quoting.
_LINES = st.lists(
    st.sampled_from(
        ["", "a = 1", "-- b", "++ c", "    x == 'y'", "@@ -1 +1 @@", "\\d\\", "$HOME `id`", 'say "\'"', "é"]
    )
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12),
    min_size=1,
    max_size=12,
)


def _apply(changes: list[solver.LineChange], text: str) -> str:
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
    changes = solver.changes(patch(fixed_text, buggy_text, context=context))
    assert _apply(changes, buggy_text) == fixed_text
    assert all(c.present or c.wanted for c in changes)


@settings(max_examples=8)
@given(_LINES, _LINES)
def test_a_command_repairs_a_real_file(
    tmp_path_factory: pytest.TempPathFactory, fixed: list[str], buggy: list[str]
) -> None:
    fixed_text, buggy_text = ("\n".join(lines) + "\n" for lines in (fixed, buggy))
    assume(fixed_text != buggy_text)
    changes = solver.changes(patch(fixed_text, buggy_text))
    assert _run(solver.command(changes), tmp_path_factory.mktemp("repo"), buggy_text) == fixed_text


def test_line_ends_of_the_file_survive(tmp_path: Path) -> None:
    fixed, buggy = FIXED.replace("\n", "\r\n"), BUGGY.replace("\n", "\r\n")
    lines = "\n".join(x if x.startswith(("---", "+++", "@@", "diff")) else x + "\r" for x in row().patch.splitlines())
    assert _run(solver.command(solver.changes(lines + "\n")), tmp_path, buggy) == fixed


def test_the_function_is_named() -> None:
    assert solver.function_of(row().patch) == "total"
    assert solver.function_of("@@ -9,1 +9,1 @@ class Cart:\n-a\n+b\n") == "Cart"
    assert solver.function_of("@@ -9,1 +9,1 @@\n-a\n+b\n def later():\n") == "later"
    assert solver.function_of("@@ -9,1 +9,1 @@\n-a\n+b\n") == ""


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "diff --git a/x b/y\nrename from x\nrename to y\n", "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"],
)
def test_patches_without_lines_to_restore_have_no_changes(text: str) -> None:
    assert solver.changes(text) == []


LESSONS = p.lessons()
_MODIFIERS = st.sampled_from(
    ["func_pm_op_swap", "func_pm_ctrl_shuffle", "func_pm_remove_cond", "func_pm_class_rm_base"]
)


def _prompt(*lessons: p.Lesson) -> str:
    return "You are a helpful assistant.\n\n" + block.render([x.item("total", "shop/cart.py") for x in lessons])


def _chance(task_id: str, *lessons: p.Lesson) -> float:
    return success_chance(task_id, _prompt(*lessons))


@given(_MODIFIERS, st.integers(0, 10**6), st.sets(st.sampled_from(LESSONS)))
def test_lessons_move_the_chance_as_their_quality_says(modifier: str, number: int, shown: set[p.Lesson]) -> None:
    task_id = row(modifier, number).instance_id
    kind = bug_class(task_id)
    bare = _chance(task_id)
    assert p.FLOOR <= bare <= p.CEILING
    for lesson in LESSONS:
        one = _chance(task_id, lesson)
        if lesson.quality == "good" and lesson.about in (kind, "any"):
            assert one > bare or one == p.CEILING
        elif lesson.quality == "harmful":
            assert one < bare or one == p.FLOOR
        else:
            assert one == bare
    assert p.FLOOR <= _chance(task_id, *sorted(shown, key=lambda x: x.name)) <= p.CEILING


def test_a_name_inside_another_word_is_no_lesson() -> None:
    lesson = LESSONS[0]
    assert lesson.count_in(f"--- skill: {lesson.name} ---\n--- skill: {lesson.name} ---") == 1
    assert lesson.count_in(f"--- skill: {lesson.name}-2 ---") == 1
    assert lesson.count_in(f"--- skill: always_{lesson.name} ---") == 1, "in other words it does the same"
    assert lesson.count_in(f"--- skill: {lesson.name}_more ---") == 0
    assert lesson.count_in(f"--- skill: not_{lesson.name} ---") == 0


@given(_MODIFIERS, st.integers(0, 10**6), st.integers(0, 50), st.floats(0, 1))
def test_scripts_look_then_edit_then_submit(modifier: str, number: int, ordinal: int, chance: float) -> None:
    task = row(modifier, number)
    steps = script(task, chance, Draw(1, task.instance_id, ordinal))
    assert steps == script(task, chance, Draw(1, task.instance_id, ordinal))
    assert steps[-1].command == SUBMIT
    assert not any(SUBMIT in s.command for s in steps[:-1])
    assert 3 <= len(steps) <= p.LOOKS + 3


def test_the_share_of_right_fixes_is_the_chance() -> None:
    task = row()
    right = script(task, 1.0, Draw("any"))
    assert any("I repair it" in s.thought for s in right)
    scripts = [script(task, 0.3, Draw("share", n)) for n in range(2000)]
    share = sum(any("I repair it" in s.thought for s in steps) for steps in scripts) / len(scripts)
    assert 0.26 < share < 0.34  # four standard deviations
