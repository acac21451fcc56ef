"""Grading by the person's own check, in real sandboxes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.conftest import CHECK, FIX, QUICK, Project, make_bank, make_project
from tests.tools import need
from valve_plugin.live.check import base_problem, belongs_to_tests, cannot_grade, find_tools
from valve_plugin.live.record import CHARACTERS, LINES, last_lines
from valve_plugin.sandbox import bubblewrap
from valve_plugin.sandbox.supervisor import CommandResult, Limit

BREAK = "sed -i 's/a - b/a * b * 7/' calc.py"


@pytest.fixture
def bwrap() -> None:
    need("bwrap")


@pytest.mark.usefixtures("bwrap")
class TestInTheSandbox:
    def test_failing_before_and_passing_after_is_resolved(
        self, project: Project, capsys: pytest.CaptureFixture[str]
    ) -> None:
        project.run(FIX, check=CHECK)
        attempt = project.attempt()
        assert (attempt.outcome, attempt.check) == ("resolved", CHECK)
        assert capsys.readouterr().err.splitlines() == [
            "valve: trying the check on the starting tree",
            "valve: resolved: the check failed before the attempt and passes after it",
        ]

    def test_the_last_lines_of_the_check_are_kept_without_secrets(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SOME_API_KEY", "planted-in-environment")
        loud = "; seq 1 30000; printf '%s\\n' 'key planted-in-environment' '\033[31mred'; exit 3"
        project.run(BREAK, check=QUICK + loud)
        kept = project.attempt().check_output
        assert kept.endswith("29999\n30000\nkey [redacted:SOME_API_KEY]\n\x1b[31mred"), kept
        assert len(kept.splitlines()) == 40

    @pytest.mark.parametrize(
        ("check", "reason"),
        [
            ("python -m pytest -q test_fine.py", "it passes at the base already"),
            ("python -m pytest -q test_missing.py", "the test does not exist (exit code 4)"),
            ("python -m pytest -q test_import.py", "could not be imported: no test failed"),
            ("no-such-command", "it could not run (exit code 127)"),
            ("kill -9 $$", "it was killed from outside, by signal 9, twice"),
        ],
    )
    def test_where_the_check_does_not_fail_at_the_base_no_model_is_called(
        self, project: Project, check: str, reason: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (project.root / "test_import.py").write_text("from calc import missing\n\ndef test(): pass\n")
        agent = project.run(FIX, check=check)
        assert (agent.n_calls, project.attempts()) == (0, [])
        assert reason in capsys.readouterr().err.splitlines()[-1]

    def test_a_check_that_is_killed_after_the_attempt_grades_nothing(self, project: Project) -> None:
        project.run(FIX, check=f"{QUICK} || exit 1; kill $$")
        assert project.attempt().outcome == "ungraded"
        assert "it was killed from outside, by signal 15, twice" in project.attempt().reason

    def test_the_persons_new_test_file_counts_and_their_tree_is_not_run_in(self, project: Project) -> None:
        (project.root / "test_new.py").write_text(
            "from calc import add\n\ndef test():\n    open('ran', 'w').close()\n    assert add(1, 1) == 2\n"
        )
        project.run(FIX, check="python -c 'import test_new; test_new.test()'")
        assert project.attempt().outcome == "resolved"
        assert not (project.root / "ran").exists()
        assert not list(project.root.rglob("__pycache__"))

    @pytest.mark.parametrize(
        ("cheat", "dropped"),
        [
            ("sed -i s/4/0/ test_calc.py", {"test_calc.py"}),
            ("echo 'collect_ignore = [\"test_calc.py\"]' > conftest.py", {"conftest.py"}),
            ("printf '[pytest]\\naddopts = --co\\n' > pytest.ini", {"pytest.ini"}),
            (
                "echo 'import os; os._exit(0)' > sitecustomize.py; cp sitecustomize.py pytest.py",
                {"sitecustomize.py", "pytest.py"},
            ),
            ("mkdir tests; echo 1 > tests/data", {"tests/data"}),
            ("rm test_calc.py", {"test_calc.py"}),
        ],
    )
    def test_tests_are_taken_from_the_base(self, project: Project, cheat: str, dropped: set[str]) -> None:
        project.run(cheat, check=QUICK)
        project.git("checkout", "-q", ".")
        project.git("clean", "-fdq", "-e", ".valve")
        project.run(cheat, FIX, check=QUICK)
        cheated, fixed = project.attempts()
        assert (cheated.outcome, cheated.reason) == ("unresolved", "nothing but tests changed")
        assert fixed.outcome == "resolved"
        assert set(cheated.dropped_paths) == set(fixed.dropped_paths) == dropped

    def test_a_check_is_stopped_at_its_time_limit(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        project.run(FIX, check="sleep 60", check_timeout=1)
        assert "at the base it was stopped: out of wall" in capsys.readouterr().err
        project.run("true", task="other", check="test -e done || exit 1; sleep 60", check_timeout=1)
        project.run("touch done", task="third", check="test -e done || exit 1; sleep 60", check_timeout=1)
        assert [a.outcome for a in project.attempts()] == ["unresolved", "unresolved"]
        assert project.attempts()[-1].reason == "the check was stopped after the attempt: it took over 1 s"

    def test_an_editable_install_in_the_projects_own_environment_means_the_copy(
        self, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = make_project(tmp_path / "with-venv")
        monkeypatch.chdir(made.root)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=made.root, check=True)
        (made.root / ".gitignore").write_text(".venv/\n__pycache__/\n")
        (made.root / "src").mkdir()
        (made.root / "calc.py").rename(made.root / "src" / "calc.py")
        site = next((made.root / ".venv/lib").glob("python*/site-packages"))
        (site / "editable.pth").write_text(f"{made.root}/src\n")  # what `pip install -e` leaves
        make_bank(made.bank)
        monkeypatch.delenv("VIRTUAL_ENV", raising=False)
        check = "python -c 'import calc, sys; assert calc.add(2, 2) == 4' && .venv/bin/python -c 'import calc'"
        made.run("sed -i 's/a - b/a + b/' src/calc.py", check=check)
        assert made.attempt().outcome == "resolved", made.attempt().reason

    def test_a_check_runs_where_mini_was_started(
        self, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mono = make_project(tmp_path / "mono")
        package = make_project(mono.root / "packages" / "one", git=False)
        make_bank(package.bank)
        monkeypatch.chdir(package.root)
        package.run("sed -i 's/a - b/a + b/' calc.py; sed -i s/4/0/ test_calc.py", check=QUICK)
        attempt = package.attempt()
        assert (attempt.outcome, attempt.dropped_paths) == ("resolved", ("packages/one/test_calc.py",))

    def test_an_agent_that_ran_out_of_steps_is_unresolved_whatever_it_left(self, project: Project) -> None:
        from valve_plugin import instrument

        agent = instrument(project.agent(FIX, "true", step_limit=1), settings={"check": QUICK})
        agent.run("the task")
        assert (project.attempt().outcome, project.attempt().exit_status) == ("unresolved", "LimitsExceeded")


def test_without_a_sandbox_the_check_is_refused_unless_allowed(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bubblewrap, "bubblewrap_problem", lambda: "bwrap is not on PATH")
    assert project.run(FIX, check=QUICK).n_calls == 0
    said = capsys.readouterr().err
    assert "bwrap is not on PATH" in said
    assert "-c valve.unsafe_local=true" in said
    project.run(FIX, check=QUICK, unsafe_local=True)
    assert project.attempts()[-1].outcome == "resolved"


def test_ctrl_c_during_the_check_after_the_run_still_records(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("valve_plugin.live.check.Check.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        project.run(FIX, check=CHECK)
    assert project.attempts() == []
    monkeypatch.setattr("valve_plugin.live.check.Check.problem", lambda _: "")
    project.run(FIX, check=CHECK)
    assert (project.attempt().outcome, project.attempt().reason) == ("ungraded", "the check was interrupted")


def completed(returncode: int, output: bytes = b"", limit: Limit = "") -> CommandResult:
    return CommandResult(returncode=returncode, output=output, truncated=False, limit=limit)


@given(st.integers(-31, 255))
def test_which_exit_codes_are_failures(code: int) -> None:
    assert (base_problem("pytest -q", completed(code)) == "") is (code == 1)
    assert (base_problem("make test", completed(code)) == "") is (1 <= code <= 125)
    assert base_problem("make test", completed(code, limit="wall"))


def test_a_missing_pytest_is_no_failing_test() -> None:
    said = b"/usr/bin/python: No module named pytest\n"
    assert "not installed" in base_problem("python -m pytest tests", completed(1, said))


@pytest.mark.parametrize(
    ("check", "cure"),
    [
        ("pytest tests/test_x.py -q", "`python -m pytest tests/test_x.py -q` also imports from the folder itself"),
        ("cd sub && py.test", "`cd sub && python -m pytest` also imports"),
        ("python -m pytest tests", "install it where the check runs"),
        (".venv/bin/pytest tests/pytest", "install it where the check runs"),
    ],
)
@pytest.mark.parametrize("code", [2, 4])
def test_a_module_that_is_not_found_is_named_with_a_check_that_finds_it(check: str, cure: str, code: int) -> None:
    said = b"E   ModuleNotFoundError: No module named 'pages.last'\n1 error in 0.02s\n"
    reason = base_problem(check, completed(code, said))
    assert f"there is no module pages.last; {cure}" in reason
    assert cannot_grade(reason).endswith(reason), "one cure is enough"
    assert cannot_grade("it passes at the base already").endswith("tests/test_of_the_task.py'")


@pytest.mark.parametrize(
    ("check", "cwd", "path", "new", "expected"),
    [
        ("./verify.sh", ".", "verify.sh", False, True),
        ("./verify.sh", ".", "verify.sh", True, False),
        ("../verify.sh", "sub", "verify.sh", False, True),
        ("pytest /w/checks/a.py::test_x[1::2]", ".", "checks/a.py", False, True),
        ("make test", ".", "sub/Makefile", False, True),
        ("npm test", ".", "src/a.test.ts", False, True),
        ("pytest", ".", "pkg/tests/data.json", False, True),
        ("pytest", "sub", "sub/unittest/mock.py", True, True),
    ],
)
def test_which_paths_belong_to_the_tests(check: str, cwd: str, path: str, new: bool, expected: bool) -> None:
    assert belongs_to_tests(path, check, cwd, "/w", new=new) is expected


def test_tools_never_cover_the_copy_nor_show_what_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    root = home / "env" / "projects" / "one"
    for folder in ("env/bin", "env/lib", ".local/bin", ".cargo/bin", "bin", ".nvm/v20/bin", ".pyenv/shims"):
        (home / folder).mkdir(parents=True)
    for folder in (".venv/bin", "bin", "lib"):
        (root / folder).mkdir(parents=True)
    on_path = [".local/bin", ".cargo/bin", "bin", ".nvm/v20/bin", ".pyenv/shims", "env/bin", "env/projects/one/bin"]
    environ = {"VIRTUAL_ENV": str(home / "env"), "PATH": os.pathsep.join(str(home / p) for p in on_path)}
    readonly, path = find_tools(root, root, environ)
    assert not any(root.is_relative_to(place) for place in readonly)
    shown = {str(p.relative_to(home)) for p in readonly if p.is_relative_to(home)}
    assert shown == {
        *("env/bin", "env/lib", "env/projects/one/.venv", ".local/bin", ".cargo/bin", "bin", ".nvm/v20", ".pyenv")
    }
    assert path.split(":")[:2] == [str(home / "env/bin"), str(root / ".venv/bin")]
    assert path.endswith("/sbin")


@given(st.text())
def test_last_lines_are_the_end_within_bounds(text: str) -> None:
    end = last_lines(text)
    assert len(end) <= CHARACTERS
    assert len(end.splitlines()) <= LINES
    assert end.splitlines() == text.rstrip().splitlines()[-len(end.splitlines()) :] or not end
