"""Grading: what resolves, what does not, and whose fault it is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from tests import calc
from tests.tools import need_module, put
from valve_plugin import codec
from valve_plugin.config import Settings
from valve_plugin.paths import data_dir
from valve_plugin.records import Task
from valve_plugin.sandbox import bubblewrap as sandboxes
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.tasks import states
from valve_plugin.tasks.grading import grade as grading
from valve_plugin.tasks.grading import kept as kept_runs
from valve_plugin.tasks.grading.grade import Grade, grade, refused_fixes
from valve_plugin.tasks.grading.testrun import TestRun
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.states import gold_patch, open_task
from valve_plugin.tasks.task_set import load

Calc = tuple[PreparedRepository, Task]


def patched(calc_task: Calc, files: Mapping[str, str | None]) -> str:
    """Return the patch an agent would make by writing these files, or by removing those without text."""
    with open_task(*calc_task) as place:
        put(place.path, {path: text for path, text in files.items() if text is not None})
        for path in [path for path, text in files.items() if text is None]:
            (place.path / path).unlink()
        return workspaces.diff(place)


def test_gold_resolves(calc_task: Calc, unsafe: Settings) -> None:
    result = grade(*calc_task, gold_patch(*calc_task), unsafe)
    assert result == Grade(outcome="resolved", tests=result.tests)
    assert set(calc.F2P + calc.P2P) <= result.tests.keys()
    assert result.tests["tests/test_ops.py::test_add[with a space]"] == "passed"
    assert result.tests["tests/test_ops.py::test_known_bug"] == "xfailed"
    assert result.tests["tests/test_ops.py::OldStyle::test_hopeless"] == "xfailed"
    assert result.tests["tests/test_ops.py::test_skipped"] == "skipped"


FEEDING = """\
import builtins
from unittest import mock


def test_input(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "9")
    assert input("? ") == "9"


def test_open(mocker):
    mocker.patch("builtins.open", mock.mock_open(read_data="9"))
    assert open("x").read() == "9"


def test_a_module_that_is_missing(monkeypatch):
    real = builtins.__import__

    def fake(name, *rest, **named):
        if name == "colorsys":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", fake)
    try:
        import colorsys
    except ImportError:
        return
    raise AssertionError
"""


def test_tests_may_replace_builtins_to_feed_the_code(tmp_path: Path, unsafe: Settings) -> None:
    need_module("pytest_mock")
    names = ("input", "open", "a_module_that_is_missing")
    wanted = [*calc.P2P, *(f"tests/test_feeding.py::test_{name}" for name in names)]
    files = {**calc.FILES, "tests/test_feeding.py": FEEDING}
    found = load(calc.write(tmp_path, [calc.row(PASS_TO_PASS=wanted)], files=files, venv=sys.prefix))
    made = prepare(found.repository), found.tasks[0]
    result = grade(*made, gold_patch(*made), unsafe)
    assert (result.outcome, result.reason) == ("resolved", "")


@pytest.mark.parametrize("few", [0, 10])
def test_a_wrong_fix_names_a_failing_test_and_stops_after_the_first_run_of_many(
    calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(states, "_FEW_TESTS", few)
    result = grade(*calc_task, patched(calc_task, {"calc/ops.py": calc.WRONG_FIX}), unsafe)
    assert result.outcome == "unresolved"
    assert result.reason == "2 of 2 required tests do not pass: tests/test_ops.py::OldStyle::test_high failed"
    assert ("tests/test_other.py::test_middle" in result.tests) is (few == 10)


def test_a_file_that_is_no_python_is_no_forgery(calc_task: Calc, unsafe: Settings) -> None:
    result = grade(*calc_task, patched(calc_task, {"calc/ops.py": "def (:\n"}), unsafe)
    assert (result.outcome, result.reason) == ("unresolved", "calc/ops.py cannot be read as Python")


def test_a_fix_that_breaks_something_else_does_not_resolve(calc_task: Calc, unsafe: Settings) -> None:
    breaks = calc.OPS.replace("    return x", "    return x + (x == 5)")
    result = grade(*calc_task, patched(calc_task, {"calc/ops.py": breaks}), unsafe)
    assert result.reason == "1 of 10 required tests do not pass: tests/test_other.py::test_middle failed"


def told(result: Grade) -> list[tuple[str, str, str]]:
    """Return (test, role, reason) of each failed test of a grade."""
    return [(t.test.rpartition("::")[2], t.role, t.reason) for t in result.failed_tests]


def test_failed_tests_say_what_was_raised_and_no_expected_value(calc_task: Calc, unsafe: Settings) -> None:
    quoted = (calc_task[0], replace(calc_task[1], problem_statement="`TestClamp.test_high` fails"))
    result = grade(*quoted, patched(calc_task, {"calc/ops.py": calc.WRONG_FIX}), unsafe)
    assert {(role, reason) for _, role, reason in told(result)} == {
        ("quoted", "AssertionError: \u2026 != \u2026"),  # unittest's message gives both values away
        ("quoted", "AssertionError"),
    }


def test_failed_tests_say_where_the_code_raised(calc_task: Calc, unsafe: Settings) -> None:
    gone = "    if x == 5:\n        raise KeyError('gone')\n"
    raises = calc.WRONG_FIX.replace("    if x < low:", f"{gone}    if x < low:")
    raises = raises.replace("return x\n    return x", "return high\n    return x")
    result = grade(*calc_task, patched(calc_task, {"calc/ops.py": raises}), unsafe)
    assert told(result) == [("test_middle", "before", "KeyError: 'gone' (calc/ops.py:10)")]


def test_tests_that_cannot_be_collected_say_why(calc_task: Calc, unsafe: Settings) -> None:
    issue = "def test_low(self): ...\n\nProbably the same cause: `test_high`"  # named, but only another one is shown
    named = (calc_task[0], replace(calc_task[1], problem_statement=issue))
    result = grade(*named, patched(calc_task, {"calc/ops.py": "def clamp(x, low, high):\n    return x\n"}), unsafe)
    assert {role for _, role, _ in told(result)} == {"other"}
    assert all("ImportError: cannot import name" in reason for _, _, reason in told(result))


def test_edits_of_tests_are_dropped_and_reported(calc_task: Calc, unsafe: Settings) -> None:
    files = {
        "calc/ops.py": calc.OPS,
        "tests/test_ops.py": "def test_mine(): pass\n",
        "tests/data/x.json": "{}",
        "pytest.ini": "[pytest]\naddopts = --collect-only\n",
        "calc/conftest.py": "import os\nos._exit(0)\n",
    }
    result = grade(*calc_task, patched(calc_task, files), unsafe)
    assert result.outcome == "resolved"
    assert result.dropped_paths == ("calc/conftest.py", "pytest.ini", "tests/data/x.json", "tests/test_ops.py")


def test_edits_of_tests_alone_are_not_even_run(calc_task: Calc, unsafe: Settings) -> None:
    result = grade(*calc_task, patched(calc_task, {"tests/test_ops.py": "def test(): pass\n"}), unsafe)
    assert (result.outcome, result.reason) == ("unresolved", "the patch changes nothing that is graded")
    assert result.dropped_paths == ("tests/test_ops.py",)


@pytest.mark.parametrize(
    "patch",
    [
        "not a patch",
        calc.change("other\n", "text\n"),
        calc.change("", "x\n", "../escape.py"),
        calc.change("", "x\n", ".git/hooks/post-checkout"),
        "diff --git a/x b/x\n\ud800",
        "\0" * 100,
        "",
        " \n",
    ],
)
def test_what_does_not_apply_is_the_agents_doing(calc_task: Calc, unsafe: Settings, patch: str) -> None:
    why = "does not apply" if patch.strip() else "is empty"
    assert grade(*calc_task, patch, unsafe) == Grade(outcome="unresolved", reason=f"the patch {why}")


@pytest.mark.parametrize(
    "added",
    [
        "X = " + "+".join(["1"] * 3000),
        "def f(a):\n    return a" + ".b" * 3000,
    ],
    ids=["long sum", "long chain"],
)
def test_code_that_cannot_be_inspected_is_the_agents_doing(calc_task: Calc, unsafe: Settings, added: str) -> None:
    result = grade(*calc_task, patched(calc_task, {"calc/ops.py": f"{calc.OPS}\n\n{added}\n"}), unsafe)
    assert result.outcome == "unresolved"
    # Which of the two it is depends on how deep the Python that runs this can go.
    assert result.reason.startswith(("suspicious patch", "calc/ops.py cannot be read as Python"))
    assert result.reason.encode()


def test_what_a_stray_script_is_compared_with_takes_no_time(calc_task: Calc, unsafe: Settings) -> None:
    text = 'NOTE = """\nimport ' + "(" * 5000 + '\n"""\n'
    result = grade(*calc_task, patched(calc_task, {"stray.py": "X = 1\n", "calc/ops.py": calc.OPS + text}), unsafe)
    assert result.outcome == "resolved"
    assert result.dropped_paths == ("stray.py",)


def test_an_enormous_patch_is_the_agents_doing(calc_task: Calc, unsafe: Settings) -> None:
    assert grade(*calc_task, "+" * 20_000_000, unsafe).outcome == "unresolved"


@pytest.mark.parametrize("planted", ["tests", "tests/test_ops.py", "conftest.py"])
def test_a_link_in_the_place_of_tests_changes_nothing(calc_task: Calc, unsafe: Settings, planted: str) -> None:
    with open_task(*calc_task) as place:
        target = place.path / planted
        if target.is_dir():
            target.rename(place.path / "moved")
        target.unlink(missing_ok=True)
        target.symlink_to("/tmp")
        (place.path / "calc/ops.py").write_text(calc.OPS)
        patch = workspaces.diff(place)
    assert grade(*calc_task, patch, unsafe).outcome == "resolved"


@pytest.mark.heavy
def test_a_source_that_hangs_is_repeated_once_and_then_unresolved(
    calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, task = calc_task
    runs: list[TestRun] = []
    real = kept_runs.run_tests
    monkeypatch.setattr(kept_runs, "run_tests", lambda *words, **more: runs.append(real(*words, **more)) or runs[-1])
    brief = replace(prepared, repository=replace(prepared.repository, cpu_seconds=2))
    hangs = calc.OPS.replace("if x > high:", "while x > high:")
    hangs = hangs.replace("return high", "pass")
    result = grade(brief, task, patched(calc_task, {"calc/ops.py": hangs}), unsafe)
    assert (result.outcome, result.reason) == ("unresolved", "the tests hit the cpu limit")
    assert [run.timed_out for run in runs] == [True, True]


def test_equal_trees_are_graded_once(calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    first = patched(calc_task, {"calc/ops.py": calc.OPS.replace("Arithmetic", "Sums")})
    resolved = grade(*calc_task, first, unsafe)
    monkeypatch.setattr(kept_runs, "run_tests", lambda *_, **more: pytest.fail("graded again"))
    assert grade(*calc_task, first, unsafe) == resolved
    written_differently = first.replace("index ", "index 1")  # same effect, other bytes
    assert grade(*calc_task, written_differently, unsafe).outcome == "resolved"


def test_grading_the_same_tree_at_once_runs_its_tests_once(
    calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = patched(calc_task, {"calc/ops.py": calc.OPS.replace("Arithmetic", "At once")})
    runs: list[str] = []
    real = kept_runs.run_tests
    monkeypatch.setattr(
        kept_runs,
        "run_tests",
        lambda *words, **more: runs.append(f"{words[1].commit} {words[3]} {more}") or real(*words, **more),
    )
    with ThreadPoolExecutor(3) as pool:
        grades = list(pool.map(lambda _: grade(*calc_task, patch, unsafe), range(3)))
    assert [g.outcome for g in grades] == ["resolved"] * 3
    assert len(runs) == len(set(runs))


def test_a_damaged_cache_entry_is_graded_again(calc_task: Calc, unsafe: Settings) -> None:
    patch = patched(calc_task, {"calc/ops.py": calc.OPS.replace("Arithmetic", "Numbers")})
    first = grade(*calc_task, patch, unsafe)
    kept = [path for path in (data_dir() / "testruns").glob("*/*") if path.stat().st_size]
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:-5])
    assert grade(*calc_task, patch, unsafe) == first


def test_a_broken_host_is_errored_and_not_remembered(
    calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepared, task = calc_task
    patch = patched(calc_task, {"calc/ops.py": calc.OPS.replace("Arithmetic", "Calculation")})
    gone = replace(prepared, repository=replace(prepared.repository, environment=str(tmp_path)))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to("/usr/bin/false")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    result = grade(gone, task, patch, unsafe)
    assert result.outcome == "errored"
    assert "the test harness did not start" in result.reason
    monkeypatch.setenv("PATH", str(tmp_path))
    assert grade(prepared, task, patch, unsafe).outcome == "errored"  # no git
    monkeypatch.undo()
    assert grade(prepared, task, patch, unsafe).outcome == "resolved"


def test_no_sandbox_is_errored(calc_task: Calc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "bubblewrap_problem", lambda: "it is not installed")
    result = grade(*calc_task, gold_patch(*calc_task), Settings())
    assert result.outcome == "errored"
    assert "--unsafe-local" in result.reason


class Killer:
    """Kills one process of the harness 0.5 s after it appears, or all at once, as the kernel does without memory."""

    def __init__(self, most: int) -> None:
        self.left, self.wait, self.done = most, 0.5 if most == 1 else 0.0, threading.Event()
        self.seen: dict[int, float] = {}  # CPU time would not do: a fast machine needs next to none
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        me = psutil.Process()
        while self.left and not self.done.wait(0.02):
            for process in me.children(recursive=True):
                with suppress(psutil.Error, IndexError):
                    words = process.cmdline()
                    if "python" not in words[0] or not words[-1].endswith("harness.py"):
                        continue
                    if time.monotonic() - self.seen.setdefault(process.pid, time.monotonic()) >= self.wait:
                        process.kill()
                        self.left -= 1
                        break

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


SLOW = calc.OPS.replace("def add", "import time\n\ntime.sleep(SECONDS)\n\n\ndef add")


def kept() -> set[Path]:
    return {path for path in (data_dir() / "testruns").glob("*/*") if path.name != ".lock"}


@pytest.mark.parametrize("number", [1, pytest.param(99, marks=pytest.mark.heavy)])
def test_a_death_from_outside_is_nobodys_failure(calc_task: Calc, unsafe: Settings, number: int) -> None:
    patch = calc.change(calc.BUGGY, SLOW.replace("SECONDS", "1.5" if number == 1 else "60"))
    grade(*calc_task, gold_patch(*calc_task), unsafe)
    before = kept()
    with Killer(number):
        result = grade(*calc_task, patch, unsafe)
    if number > 1:
        assert (result.outcome, kept()) == ("errored", before)
        assert "from outside" in result.reason or "did not start" in result.reason
    elif result.outcome == "errored":  # it died before it began
        result = grade(*calc_task, patch, unsafe)
    if number == 1:
        assert result.outcome == "resolved"


@pytest.mark.parametrize("code", ["kill -9 $PPID", pytest.param("exit 137", marks=pytest.mark.heavy)])
def test_a_patch_that_ends_its_own_tests_is_not_errored(calc_task: Calc, unsafe: Settings, code: str) -> None:
    ends = "os._exit(137)" if code == "exit 137" else f"subprocess.run(['sh', '-c', {code!r}])"
    source = calc.OPS.replace("def add", f"import os, subprocess\n\n\ndef add(a, b):\n    {ends}\n\n\ndef other", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "inspect_patch", lambda *_: [])
        result = grade(*calc_task, calc.change(calc.BUGGY, source), unsafe)
    assert (result.outcome, result.reason) == ("unresolved", "its processes ended the test run by a signal")


def test_names_that_no_file_or_record_can_have(calc_task: Calc, unsafe: Settings) -> None:
    new = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x = 1\n"
    fix = calc.change(calc.BUGGY, calc.OPS)
    result = grade(*calc_task, fix + new.format(f"calc/{'x' * 300}.py"), unsafe)
    assert (result.outcome, result.reason) == ("unresolved", "the patch does not apply")
    result = grade(*calc_task, fix + new.format('"tests/\\377.py"').replace('a/"', '"a/').replace('b/"', '"b/'), unsafe)
    assert result.outcome == "resolved"
    assert codec.decode(codec.canonical(result), Grade, where="grade") == result


def test_a_fix_that_does_not_resolve_is_told_with_test_cause_and_cure(tmp_path: Path, unsafe: Settings) -> None:
    needs = "import colours_of_nowhere\n\n\ndef test_red():\n    pass\n"
    rows = [
        calc.row(),
        calc.row(
            instance_id="other",
            patch=calc.change(calc.OPS, calc.WRONG_FIX),
            PASS_TO_PASS=["tests/test_red.py::test_red"],
        ),
    ]
    found = load(calc.write(tmp_path, rows, files={**calc.FILES, "tests/test_red.py": needs}))
    ((task, why),) = refused_fixes(prepare(found.repository), found.tasks, unsafe)
    assert task.instance_id == "other"
    assert "tests/test_red.py::test_red did not run with the fix (" in why
    assert "colours_of_nowhere" in why
    assert "--with PACKAGE" in why
