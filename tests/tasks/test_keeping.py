"""No command takes tasks from a set on which something may rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from valve_plugin.codec import pretty
from valve_plugin.errors import TaskError
from valve_plugin.tasks import folder, keeping
from valve_plugin.tasks import split as splits
from valve_plugin.tasks.load import Row, load
from valve_plugin.tasks.repository import Repository

REPOSITORY = Repository(name="acme/calc", source="path:source", test_roots=("tests",))
sets = st.frozensets(st.integers(0, 5), min_size=1)


def rows(numbers: frozenset[int] | range) -> list[Row]:
    patches = {n: calc.change(calc.OPS, calc.OPS + f"# {n}\n") for n in sorted(numbers)}
    return [
        Row(
            instance_id=f"t{n}", repo="acme/calc", patch=patch, fail_to_pass=("tests/test_a.py::test_a",),
            pass_to_pass=(), problem_statement="It fails.",
        )
        for n, patch in patches.items()
    ]  # fmt: skip


@given(sets, sets)
def test_only_a_set_that_is_not_split_is_replaced_and_by_no_smaller_one(
    tmp_path_factory: pytest.TempPathFactory, there: frozenset[int], more: frozenset[int]
) -> None:
    where = tmp_path_factory.mktemp("t")
    folder.write(where, REPOSITORY, rows(there), made_by="valve tasks generate")
    before = (where / "tasks.jsonl").read_bytes()
    assert keeping.held(where) == {t.instance_id: t.content_hash for t in load(where).tasks}
    if there <= more or len(there) <= len(more):
        folder.write(where, REPOSITORY, rows(more), made_by="valve tasks generate")
        assert {t.instance_id for t in load(where).tasks} == {f"t{n}" for n in more}
        return
    with pytest.raises(TaskError, match=f"holds {len(there)} tasks, and this makes another set, without "):
        folder.write(where, REPOSITORY, rows(more), made_by="valve tasks generate")
    assert (where / "tasks.jsonl").read_bytes() == before


def test_what_a_split_names_stays_and_comes_back(tmp_path: Path) -> None:
    folder.write(tmp_path, REPOSITORY, rows(range(4)), made_by="valve tasks generate")
    (tmp_path / "split.json").write_bytes(pretty(splits.draw("acme/calc", load(tmp_path).tasks, holdout=1, panel=1)))
    with pytest.raises(TaskError, match=r"4 tasks \(4 of them in its split\), .* without 1 of them: .*--out DIR"):
        folder.write(tmp_path, REPOSITORY, rows(range(1, 9)), made_by="valve tasks generate")
    folder.write(tmp_path, REPOSITORY, rows(range(6)), made_by="valve tasks generate")
    (tmp_path / "tasks.jsonl").write_text("torn\n")
    assert set(keeping.held(tmp_path)) == {"t0", "t1", "t2", "t3"}, "it may be made again, and only it"
    with pytest.raises(TaskError, match="without 1 of them"):
        folder.write(tmp_path, REPOSITORY, rows(range(3)), made_by="valve tasks generate")
    folder.write(tmp_path, REPOSITORY, rows(range(4)), made_by="valve tasks generate")
    assert len(load(tmp_path).tasks) == 4
