"""Verifying tasks: what does not resolve, what varies and what gives itself away is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import calc
from valve_plugin.sandbox import bubblewrap as sandboxes
from valve_plugin.tasks import repository
from valve_plugin.tasks import verify as verifying
from valve_plugin.tasks.task_set import load
from valve_plugin.tasks.verify import Defect, Verification, Verifier, fix_lines_in


def verify(folder: Path, rows: list[dict[str, object]], times: int = 1) -> list[Verification]:
    """Verify rows of the little repository, without a sandbox."""
    found = load(calc.write(folder, rows))
    verifier = Verifier(repository.prepare(found.repository), sandboxes.UnsafeLocal(), times)
    return [verifier.verify(task) for task in found.tasks]


def kinds(result: Verification) -> set[str]:
    return {finding.kind for finding in result.findings}


def test_good_and_bad_tasks(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_LEAST_LINE", 10)
    two = ["tests/test_ops.py::TestClamp::test_high"]
    nothing = calc.change(calc.OPS, calc.OPS.replace("Arithmetic", "Sums of two numbers"))
    rows = [
        calc.row(),
        calc.row(instance_id="passes", patch=nothing, FAIL_TO_PASS=two, PASS_TO_PASS=[]),
        calc.row(instance_id="fails", FAIL_TO_PASS=[*calc.F2P, "tests/test_other.py::test_gone"], PASS_TO_PASS=[]),
        calc.row(instance_id="elsewhere", patch=calc.change("x\n", "y\n")),
        calc.row(instance_id="tells", patch=calc.change(calc.OPS, calc.BUGGY) + "\n", problem_statement="return high!"),
    ]
    good, passes, fails, elsewhere, tells = verify(tmp_path, rows)
    assert (good.gold, good.empty, good.findings) == (1, 1, ())
    assert kinds(passes) == {"empty passes"}
    assert "test_gone" in fails.findings[0].message
    assert kinds(fails) == {"gold fails"}
    assert kinds(elsewhere) == {"unusable"}
    assert [f.message for f in tells.findings] == ["the issue text contains a line of the fix: return high"]


def test_a_copy_of_the_fix_and_a_test_that_varies(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(calc.FILES, "build/lib/calc/ops.py", calc.OPS)
    state = tmp_path / "seen"
    lines = [
        *("import pathlib", "def test_it():", f"    p = pathlib.Path({str(state)!r})"),
        *("    p.unlink() if p.exists() else p.touch()", "    assert p.exists()"),
    ]
    varying = "\n".join(lines)
    monkeypatch.setitem(calc.FILES, "tests/test_varying.py", varying)
    rows = [calc.row(PASS_TO_PASS=[*calc.P2P, "tests/test_varying.py::test_it"])]
    (result,) = verify(tmp_path, rows, times=2)
    assert result.gold == 1, result.findings
    messages = {finding.kind: finding.message for finding in result.findings}
    assert messages["flaky"].startswith(
        "tests/test_varying.py::test_it does not pass with the fix in 1 of 2 runs (AssertionError"
    )
    assert "build/lib/calc/ops.py is a copy of it" in messages["leak"]


def test_a_test_that_only_fails_in_company_shows_the_bug(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in grading, where everything runs after the files of FAIL_TO_PASS."""
    company = "from calc import ops\n\n\ndef test_it():\n    assert getattr(ops, 'seen', 9) == 9\n"
    first = "from calc import ops\n\n\ndef test_it():\n    ops.seen = ops.clamp(10, 0, 9)\n"
    monkeypatch.setitem(calc.FILES, "tests/test_company.py", company)
    monkeypatch.setitem(calc.FILES, "tests/test_before.py", first)
    (result,) = verify(tmp_path, [calc.row(FAIL_TO_PASS=["tests/test_company.py::test_it"])])
    assert (result.gold, result.empty, result.findings) == (1, 1, ())


def test_the_package_itself_in_the_environment(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages/calc/ops.py"
    installed.parent.mkdir(parents=True)
    installed.write_text(calc.OPS)
    monkeypatch.setattr("valve_plugin.tasks.verify._python_files", lambda _: {"ops.py": [installed]})
    (result,) = verify(tmp_path, [calc.row()])
    assert result.findings[0].kind == "leak"
    assert str(installed) in result.findings[0].message
    assert isinstance(result.findings[0], Defect)


def test_lines_of_the_fix_in_an_issue() -> None:
    patch = (
        "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-    if value is None or value < 0:\n+    if value is None:\n kept\n"
    )
    assert fix_lines_in("I think `if value is None or value < 0:` is missing", patch) == [
        "if value is None or value < 0:"
    ]
    assert fix_lines_in("I think `if value is None:` is wrong", patch) == []
