"""Verifying candidates with a repository's own tests, and the order they are tried in."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from tests.lean import lean
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.records import Task
from valve_plugin.sandbox import bubblewrap as sandboxes
from valve_plugin.sandbox import supervisor
from valve_plugin.sandbox.supervisor import CommandResult, ProcessLimits
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.grading import watch
from valve_plugin.tasks.grading.testrun import TestRun
from valve_plugin.tasks.grading.watch import CandidateSandbox
from valve_plugin.tasks.make import candidates as smith
from valve_plugin.tasks.make import generate as generating
from valve_plugin.tasks.make.candidates import Candidate, is_excluded, order_candidates
from valve_plugin.tasks.make.define import SuiteNeeds, read_source
from valve_plugin.tasks.make.generate import CandidateResult, generate, stable_suite
from valve_plugin.tasks.repository import prepare, read_definition
from valve_plugin.tasks.task_set import SmithRow, check_rows, is_test_id

candidates = st.builds(
    Candidate,
    modifier=st.sampled_from("xyz"),
    file=st.sampled_from("abc"),
    digest=st.text("0123", min_size=1, max_size=3),
    patch=st.text(max_size=3),
)


@given(st.lists(candidates, max_size=20), st.integers())
def test_ordering_only_reorders_and_begins_with_every_place(found: list[Candidate], seed: int) -> None:
    ordered = order_candidates(found, seed)
    assert sorted(map(repr, ordered)) == sorted(map(repr, found))
    assert ordered == order_candidates(reversed(found), seed)


def test_of_bugs_in_the_same_lines_one_comes_first() -> None:
    changed = ["a - b", "b - a", "a * b"]
    same = [candidate(f"m{n}", calc.OPS.replace("a + b", to)) for n, to in enumerate(changed)]
    other = candidate("m3", calc.BUGGY)
    assert other in order_candidates([*same, other], 0)[:2]


def candidate(name: str, source: str) -> Candidate:
    return Candidate(modifier=name, file="calc/ops.py", digest="1", patch=calc.change(calc.OPS, source))


CANDIDATES = [
    candidate("no_change", calc.OPS.replace("Arithmetic", "Sums")),
    candidate("crash", "1 / 0\n"),
    candidate("clamp", calc.BUGGY),
    candidate("leak", calc.OPS.replace("return low", "raise KeyError('if x > high: return high')")),
    candidate("add", calc.OPS.replace("a + b", "a - b")),
]


def test_candidates_become_rows_or_reasons(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_BROKEN_SHARE", 0.5)
    where = prepare(read_definition(calc.write(tmp_path) / "repository.toml"))
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    suite, _ = stable_suite(where, sandbox)
    assert set(suite) == {*calc.F2P, *calc.P2P} - {
        "tests/test_ops.py::test_known_bug",
        "tests/test_ops.py::OldStyle::test_hopeless",
    }
    told: list[CandidateResult] = []
    journal = tmp_path / "journal"
    options = {"wanted": 2, "prefix": "acme__calc.1", "journal": journal, "workers": 2}
    kept, rows = generate(where, suite, CANDIDATES, sandbox, report=told.append, **options)  # type: ignore[arg-type]
    assert kept == suite
    assert [tried.reason for tried in told[:2]] == ["no test notices it", "breaks 8 of 8 tests"]
    assert [row.instance_id for row in rows] == ["acme__calc.1.clamp__1", "acme__calc.1.leak__1"]
    assert rows[0].fail_to_pass == tuple(sorted(calc.F2P))
    assert "def test_high" in rows[0].problem_statement
    assert "calc/ops.py" not in rows[0].problem_statement
    lines = [json.dumps({**calc.row(), "instance_id": row.instance_id, "patch": row.patch}).encode() for row in rows]
    tasks, refusals = check_rows(enumerate(lines[:1], 1), where.repository)
    assert isinstance(tasks[1], Task)
    assert refusals == {}

    monkeypatch.setattr(generating, "try_candidate", lambda *_: pytest.fail("tried again"))
    journal.write_bytes(journal.read_bytes() + b'{"torn')
    again = generate(where, suite, CANDIDATES[:4], sandbox, **options)  # type: ignore[arg-type]
    assert again == (kept, rows)


IMPORTING = """\
from calc.ops import add, clamp

LIMIT = clamp(10, 0, 9)


def test_of_a_file():
    assert add(1, 2) == 3
"""
BOXES = """\
import pathlib
import tempfile

from calc.ops import clamp


class Box:
    pass


def test_box(tmp_path):
    found = clamp(10, 0, 9)
    where = pathlib.Path(tempfile.mkdtemp(), "a")
    assert found == 9, (Box(), str(tmp_path), str(where))
"""


def test_what_a_text_shows_fails_by_itself_and_is_the_same_each_time(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MAX_BROKEN_SHARE", 1.0)
    files = calc.FILES | {"tests/test_im.py": IMPORTING, "tests/test_boxes.py": BOXES}
    where = prepare(read_definition(calc.write(tmp_path, files=files) / "repository.toml"))
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    importing, box = "tests/test_im.py::test_of_a_file", "tests/test_boxes.py::test_box"
    crash = candidate("crash", calc.OPS.replace("return high", "raise KeyError(high)"))

    def tried(suite: Sequence[str], bug: Candidate = crash) -> CandidateResult:
        return generating.try_candidate(where, [*suite, *calc.P2P], bug, CandidateSandbox(sandbox, Event()), "x")

    assert tried([importing]).reason == "only breaks the import of a test file: KeyError: 9"
    found = tried([importing, box])
    assert found.row
    assert found.row.fail_to_pass == (box, importing)
    assert found.row.problem_statement.startswith("box: KeyError: 9\n")
    assert "Probably the same cause: `test_of_a_file`." in found.row.problem_statement
    first, second = (tried([box], candidate("clamp", calc.BUGGY)).row for _ in range(2))
    assert first == second
    assert first
    assert "Box object at 0x…>" in first.problem_statement
    assert "/tmp…/a" in first.problem_statement


class Hurried:
    """A sandbox with a wall limit of its own, for a tree that holds "slow"; notes the limits it was told."""

    def __init__(self) -> None:
        self._sandbox = sandboxes.choose(Settings(unsafe_local=True))
        self.name, self.root, self.isolates = self._sandbox.name, self._sandbox.root, self._sandbox.isolates
        self.told: list[ProcessLimits] = []

    def run(
        self, command: Sequence[str], workspace: Workspace, *, limits: ProcessLimits, **options: Any
    ) -> CommandResult:
        self.told.append(limits)
        if "slow" in (workspace.path / "calc/ops.py").read_text():
            limits = dataclasses.replace(limits, wall_seconds=1)
        return self._sandbox.run(command, workspace, limits=limits, **options)


def test_waiting_ends_a_candidate_and_the_clock_says_nothing(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "CANDIDATE_HANG_SECONDS", 2.0)
    monkeypatch.setattr(supervisor, "_LOOK_AFTER_SECONDS", 0.0)
    where = prepare(read_definition(calc.write(tmp_path) / "repository.toml"))
    waits = candidate("waits", calc.OPS.replace("return high", "import threading; threading.Event().wait()"))
    slow = candidate("slow", calc.OPS.replace("return high", "while True: pass  # slow"))
    sandbox, told = Hurried(), list[CandidateResult]()
    for _ in range(2):  # the second time what waits is known
        options = {"wanted": 3, "prefix": "x", "journal": tmp_path / "journal", "report": told.append}
        generate(where, [*calc.F2P, *calc.P2P], [waits, slow], sandbox, **options)  # type: ignore[arg-type]
    assert [tried.reason for tried in told] == 2 * ["its tests wait without end", "the tests hit the wall limit"]
    assert list(generating._read_journal(tmp_path / "journal")) == [waits.patch]
    assert [(limits.cpu_seconds, limits.wall_seconds) for limits in sandbox.told] == [(20, 600)] * 3


def test_what_still_runs_when_it_ends_is_ended(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CANDIDATE_HANG_SECONDS", 5.0)
    monkeypatch.setattr(supervisor, "_LOOK_AFTER_SECONDS", 0.0)
    where = prepare(read_definition(calc.write(tmp_path) / "repository.toml"))
    waits = candidate("waits", calc.OPS.replace("return high", "import threading; threading.Event().wait()"))

    def interrupt(_: CandidateResult) -> None:
        raise KeyboardInterrupt

    options = {"wanted": 3, "prefix": "x", "journal": tmp_path / "journal", "workers": 2, "report": interrupt}
    with pytest.raises(KeyboardInterrupt):
        generate(where, [*calc.F2P, *calc.P2P], [CANDIDATES[0], waits], Hurried(), **options)  # type: ignore[arg-type]
    assert list(generating._read_journal(tmp_path / "journal")) == [CANDIDATES[0].patch]  # waits was not waited for


CASES = ["::", "[a::[b]]", "two words", 'it\'s "so"', "`x` 100%", "é 😀", "a\nb", "tab\t"]


@pytest.mark.parametrize("escaped", [True, False])
def test_tests_that_no_task_can_name_are_left_out(tmp_path: Path, data_dir: Path, escaped: bool) -> None:
    ini = f"[pytest]\ndisable_test_id_escaping_and_forfeit_all_rights_to_community_support = {not escaped}\n"
    test = f"import pytest\n\n\n@pytest.mark.parametrize('x', {CASES})\ndef test_it(x):\n    assert x\n"
    folder = calc.write(tmp_path, files=calc.FILES | {"pytest.ini": ini, "tests/test_it.py": test})
    suite, _ = stable_suite(
        prepare(read_definition(folder / "repository.toml")), sandboxes.choose(Settings(unsafe_local=True))
    )
    ids = [case.encode("unicode-escape").decode() for case in CASES] if escaped else CASES[:-2]
    assert {t for t in suite if "test_it.py" in t} == {f"tests/test_it.py::test_it[{case}]" for case in ids}
    assert all(map(is_test_id, suite))


@pytest.mark.parametrize("path", ["tests/conftest.py", "tests/test_extra.py"])
def test_what_the_environment_lacks_is_named_with_its_cure(tmp_path: Path, data_dir: Path, path: str) -> None:
    toml = '[project]\nname = "calc"\n[project.optional-dependencies]\nfull = ["itsdangerous"]\n'
    more = {"pyproject.toml": toml, "calc/signed.py": "import itsdangerous\n", path: "import calc.signed\n"}
    folder, said = calc.write(tmp_path, files=calc.FILES | more), list[str]()
    repository, sandbox = read_definition(folder / "repository.toml"), sandboxes.choose(Settings(unsafe_local=True))
    cure = "module itsdangerous is missing: extra full declares itsdangerous; add --with itsdangerous, or --auto-env"
    if path.endswith("conftest.py"):
        with pytest.raises(TaskError, match=f"No module named 'itsdangerous'.*; the {cure}$"):
            generating.survey(folder, repository, "valve tasks generate", sandbox, said.append)
        return
    _, found = generating.survey(folder, repository, "valve tasks generate", sandbox, said.append)
    assert found.suite
    assert f"  the {cure}" in said
    first = "the first: tests/test_extra.py: ModuleNotFoundError: No module named 'itsdangerous'"
    assert any(line.endswith(first) for line in said)


def rows_of(sets: Sequence[str]) -> dict[str, CandidateResult]:
    """A verified candidate for each set of tests, which have one letter each; a capital letter varies."""
    found = {}
    for n, tests in enumerate(map(tuple, sets)):
        made = Candidate(modifier="m", file="f", digest=str(n), patch=str(n))
        row = SmithRow(instance_id=f"x.m__{n}", repo="r", patch="p", fail_to_pass=tests, problem_statement="x")
        flaky = tuple(test.lower() for test in tests if test.isupper())
        found[made.patch] = CandidateResult(candidate=made, row=None if flaky else row, flaky=flaky)
    return found


@pytest.mark.parametrize(
    ("sets", "held", "kept", "suite", "looked_at"),
    [
        (["a", "b", "c"], "", "01", "abcd", 2),
        (["a"], "", "0", "abcd", 1),
        (["a", "ab", "c"], "2", "02", "abcd", 3),  # what is in the set stays
        (["a", "A", "b", "bc", "d"], "", "23", "bcd", 4),  # a varies: what shows it is gone
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_which_rows_are_kept(
    sets: list[str], held: str, kept: str, suite: str, looked_at: int, workers: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tries, told = rows_of(sets), list[CandidateResult]()
    monkeypatch.setattr(generating, "try_candidate", lambda *a: tries[a[2].patch])
    options = {"wanted": 2, "prefix": "x", "journal": tmp_path / "journal", "report": told.append, "workers": workers}
    made = [tried.candidate for tried in tries.values()]
    there = sandboxes.choose(Settings(unsafe_local=True))
    found = generate(None, "abcd", made, there, held=[f"x.m__{n}" for n in held], **options)  # type: ignore[arg-type]
    assert "".join(row.instance_id[-1] for row in found.rows) == kept
    assert "".join(found.suite) == suite
    assert len(told) == looked_at


@pytest.mark.parametrize(
    ("again", "varying", "paths"),
    [
        (["pppff"], "", [["d", "e"]]),
        (["pppfp", "pppfp"], "e", [["d", "e"], []]),
        (["pppfp", "pppff"], "", [["d", "e"], []]),  # fails in company only
    ],
)
def test_what_fails_is_run_once_more(
    again: list[str], varying: str, paths: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter for each of the tests a to e: passed or failed."""

    def run_of(letters: str) -> TestRun:
        words = {"p": "passed", "f": "failed"}
        return TestRun(tests={test: words[x] for test, x in zip("abcde", letters, strict=True)})

    left, asked = [run_of(letters) for letters in again], []

    def run(_1: object, _2: object, _3: object, paths: Sequence[str] = ()) -> TestRun:
        asked.append(list(paths))
        return left.pop(0)

    monkeypatch.setattr(generating, "_run", run)
    found = generating._varying(None, "", None, "abcde", run_of("pppff"))  # type: ignore[arg-type]
    assert found == (tuple(varying), "")
    assert asked == paths


def test_where_no_bug_is_wanted() -> None:
    assert all(is_excluded(path, ["tests"]) for path in ("tests/x.py", "setup.py", "docs/conf.py", "conftest.py"))
    assert not is_excluded("calc/ops.py", ["tests"])


@pytest.mark.heavy
def test_real_modifiers_are_deterministic(tmp_path: Path) -> None:
    pytest.importorskip("swesmith", reason="the extra `smith` is not installed (500 MB)")
    for name in ("a", "b"):
        calc.write(tmp_path / name)
    first, second = (
        smith.find_candidates(tmp_path / n / "source", lambda p: is_excluded(p, ["tests"]), 1) for n in ("a", "b")
    )
    assert first == second
    assert {c.file for c in first} == {"calc/ops.py"}


def test_changed_source_drops_rows_about_the_old(tmp_path: Path, data_dir: Path) -> None:
    files, out = read_source(str(calc.write(tmp_path) / "source")), tmp_path / "out"
    venv = str(lean())

    def define(command: str, more: str = "") -> str:
        every = [*files, ("new.py", "100644", more.encode())]
        made = generating.define_repository(
            out, "acme/calc", every, command, SuiteNeeds(python=venv), say=lambda _: None, wanted=1
        )
        return made.source

    first = define("valve tasks generate")
    (out / "tasks.jsonl").write_text("{}\n")
    assert define("valve tasks generate") == first
    assert (out / "tasks.jsonl").exists()
    with pytest.raises(TaskError, match="valve tasks mine does not replace them"):
        define("valve tasks mine")
    assert define("valve tasks generate", "x = 1\n") != first
    assert not (out / "tasks.jsonl").exists()


@pytest.mark.parametrize("root", ["", "src/"])
def test_the_tree_comes_before_a_package_that_pytest_brought_along(tmp_path: Path, data_dir: Path, root: str) -> None:
    files = {
        f"{root}iniconfig/__init__.py": "from iniconfig.mine import here\n",
        f"{root}iniconfig/mine.py": "here = True\n",
        "tests/test_it.py": "import iniconfig\n\n\ndef test_it():\n    assert iniconfig.here\n",
    }
    folder = calc.write(tmp_path, extra=f'source_roots = ["{root or "."}"]', files=files)
    where = prepare(read_definition(folder / "repository.toml"))
    assert stable_suite(where, sandboxes.choose(Settings(unsafe_local=True)))[0] == ["tests/test_it.py::test_it"]


DRAWN = """\
import time

import pytest
from hypothesis import given, settings, strategies as st


@pytest.mark.parametrize("case", range(24))
@settings(max_examples=2, database=None)
@given(n=st.integers(0, 10**9))
def test_drawn(case, n):
    assert n < 5 * 10**8


@settings(max_examples=1, database=None)
@given(n=st.integers())
def test_on_a_busy_machine(n):
    time.sleep(0.3)
"""


def test_neither_draws_nor_deadlines_of_hypothesis_vary(tmp_path: Path, data_dir: Path) -> None:
    where = prepare(
        read_definition(calc.write(tmp_path, files={"tests/test_drawn.py": DRAWN}, venv=sys.prefix) / "repository.toml")
    )
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    first, second = (generating._run(where, where.base, sandbox).tests for _ in range(2))
    assert first == second
    assert first["tests/test_drawn.py::test_on_a_busy_machine"] == "passed"
