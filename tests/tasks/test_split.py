"""Splits: sampled as Python's random does over the prepared order, disjoint, and refused with numbers."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import calc
from valve_plugin.codec import pretty
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.evolve.open import choose_panel
from valve_plugin.records import Task
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.syntax import patch_changes
from valve_plugin.tasks.task_set import load


def tasks(bugs: list[int]) -> list[Task]:
    """Return one task for each number; equal numbers are the same bug under other ids and tests."""
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+{}\n"
    return [
        Task(instance_id=f"t{n}", repo="acme/calc", patch=patch.format(bug), fail_to_pass=(f"tests/t.py::t{n}",))
        for n, bug in enumerate(bugs)
    ]


GROUPS = splits.Groups({}, {"t0": "t0", "t1": "t1", "t2": "t1"}, "function")


def names(part: tuple[splits.PanelTask, ...]) -> list[str]:
    return [task.instance_id for task in part]


def test_the_reference_protocol() -> None:
    every = tasks(list(range(300)))
    made = splits.draw("acme/calc", every)
    holdout = random.Random(42).sample(every, 100)
    rest = [t for t in every if t not in holdout]
    panel = random.Random(123).sample(rest, 50)
    assert names(made.holdout.tasks) == [t.instance_id for t in holdout]
    assert names(made.panel.tasks) == [t.instance_id for t in panel]
    assert names(made.stream) == [t.instance_id for t in rest if t not in panel]
    assert made.left_out == 0


@given(st.lists(st.integers(0, 30), min_size=6, max_size=40), st.integers(1, 4), st.integers(1, 4), st.integers())
def test_no_id_and_no_bug_is_in_two_parts(bugs: list[int], holdout: int, panel: int, seed: int) -> None:
    every = tasks(bugs)
    bug_of = {f"t{n}": bug for n, bug in enumerate(bugs)}
    try:
        made = splits.draw("acme/calc", every, holdout=holdout, panel=panel, holdout_seed=seed)
    except TaskError:
        assert len(set(bugs)) < holdout + panel + 1
        return
    parts = [names(p) for p in (made.holdout.tasks, made.panel.tasks, made.stream)]
    assert [len(p) for p in parts[:2]] == [holdout, panel]
    assert sum(map(len, parts)) + made.left_out == len(every)
    for n, part in enumerate(parts):
        for other in parts[n + 1 :]:
            assert not {bug_of[t] for t in part} & {bug_of[t] for t in other}
    assert parts[2] == sorted(parts[2], key=lambda name: int(name[1:]))


@given(st.lists(st.integers(0, 8), min_size=6, max_size=40), st.integers(1, 6), st.integers(1, 6), st.integers())
def test_no_group_is_in_two_parts(kinds: list[int], holdout: int, panel: int, seed: int) -> None:
    every = tasks(list(range(len(kinds))))
    kind_of = {f"t{n}": str(kind) for n, kind in enumerate(kinds)}
    groups = splits.Groups({name: name for name in kind_of}, kind_of, "function")
    try:
        made = splits.draw("acme/calc", every, holdout=holdout, panel=panel, holdout_seed=seed, groups=groups)
    except TaskError as refused:
        if fit := re.search(r"such as --holdout (\d+) --panel (\d+)", str(refused)):
            sizes = {"holdout": int(fit[1]), "panel": int(fit[2])}
            if "group" in str(refused):
                assert splits.draw("acme/calc", every, **sizes, holdout_seed=seed, groups=groups).stream
        return
    parts = [names(part) for part in (made.holdout.tasks, made.panel.tasks, made.stream)]
    assert [len(part) for part in parts[:2]] == [holdout, panel]
    used = [{kind_of[name] for name in part} for part in parts]
    assert sum(map(len, used)) == len(set.union(*used))
    assert sum(map(len, parts)) + made.left_out == len(every)


def test_a_bug_is_the_same_however_its_patch_is_written() -> None:
    one = calc.change(calc.OPS, calc.BUGGY)
    lines = one.replace("a/calc", "i/calc").replace("b/calc", "w/calc").splitlines(keepends=True)
    start = next(n for n, text in enumerate(lines) if text.startswith("@@"))
    assert lines[start].startswith("@@ -9,5 +9,5 @@")
    fewer = "".join([*lines[:start], "@@ -11,2 +11,2 @@ def clamp\n", *lines[start + 3 : start + 6]])
    changes = [[(c.path, c.line, c.text) for c in patch_changes(patch)] for patch in (one, fewer)]
    assert changes[0] == changes[1] != []


def test_too_few_are_refused_with_numbers() -> None:
    with pytest.raises(TaskError, match=r"150 tasks, expected at least 151 \(holdout 100, panel 50.*make 1 more"):
        splits.draw("acme/calc", tasks(list(range(150))))
    with pytest.raises(TaskError, match="3 tasks are in 2 groups by function"):
        splits.draw("acme/calc", tasks([1, 2, 3]), holdout=1, panel=1, groups=GROUPS)


def test_evolve_follows_the_file(tmp_path: Path) -> None:
    rows = [calc.row(instance_id=f"t{n}", patch=calc.change(calc.OPS, calc.OPS + f"# {n}\n")) for n in range(9)]
    folder = calc.write(tmp_path, rows)
    made = splits.draw("acme/calc", load(folder).tasks, holdout=2, panel=3)
    (folder / splits.FILE_NAME).write_bytes(pretty(made))
    found = load(folder)
    assert found.split == made
    assert choose_panel(Settings(), found).tasks == made.panel.tasks
    with pytest.raises(TaskError, match=r"split.json has 3 tasks, --panel-size asks for 4"):
        choose_panel(replace(Settings(), panel_size=4), found)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:40], "make it again"),
        (lambda text: text.replace('"t1"', '"t0"'), "same instance_id"),
        (lambda text: text.replace('"t1"', '"t8"'), "1 of its 6 tasks are missing or changed here, the first t8"),
        (lambda text: text.replace("acme/calc", "acme/other"), "a split of tasks of acme/other"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(tmp_path: Path, damage: object, said: str) -> None:
    rows = [calc.row(instance_id=f"t{n}", patch=calc.change(calc.OPS, calc.OPS + f"# {n}\n")) for n in range(6)]
    folder = calc.write(tmp_path, rows)
    made = pretty(splits.draw("acme/calc", load(folder).tasks, holdout=2, panel=2)).decode()
    (folder / splits.FILE_NAME).write_text(damage(made))  # type: ignore[operator]
    with pytest.raises(TaskError, match=said):
        load(folder)


@given(st.integers(0, 160))
def test_sizes_that_fit_are_named_where_any_do(count: int) -> None:
    every = tasks(list(range(count)))
    if count >= 151:
        splits.draw("acme/calc", every)
        return
    with pytest.raises(TaskError) as refused:
        splits.draw("acme/calc", every)
    found = re.search(r"smaller sizes, such as --holdout (\d+) --panel (\d+), or ", str(refused.value))
    assert bool(found) == (count >= 4)
    if found:
        assert int(found[2]) > 1
        assert int(found[2]) >= max(int(found[1]), count - int(found[1]) - int(found[2])), "most of them judge"
        splits.draw("acme/calc", every, holdout=int(found[1]), panel=int(found[2]))
