"""The solver's chance follows the parameters; its script follows from its key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.lab.simulation.rows import row
from valve_plugin.lab.simulation import parameters as p
from valve_plugin.lab.simulation.draw import Draw
from valve_plugin.lab.simulation.solver import SUBMIT, bug_class, script, success_chance
from valve_plugin.retrieval import block

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
            assert one >= bare
        elif lesson.quality == "harmful":
            assert one <= bare
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
