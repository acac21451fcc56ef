"""Grading a live attempt by the person's own check: it must fail on the tree the run started from, and pass after.

Both runs happen in copies, inside the sandbox, under the same conditions. What belongs to the tests is taken from the
starting tree, so an attempt cannot pass by editing them; a check that passed before proves nothing and grades nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, SandboxError
from valve_plugin.rollouts.exits import Graded, one_line
from valve_plugin.rollouts.protect import is_protected

if TYPE_CHECKING:
    from valve_plugin.rollouts.live import Base
    from valve_plugin.rollouts.supervise import Completed

FAILS_NOW = (
    "Write the test that fails first, or name a check that fails now and passes once the task is done, "
    "such as -c valve.check='pytest tests/test_of_the_task.py'"
)
_PYTEST_EXITS = {
    2: "pytest was interrupted, usually because a test file could not be imported: no test failed",
    3: "pytest had an internal error",
    4: "pytest was used wrongly, or the test does not exist",
    5: "pytest found no tests",
}
# Far more than is kept: a secret must not be cut in two before it is taken out.
_PRINTED_BYTES = 1 << 16
# Test files of languages whose runners do not name them as pytest does, and what a runner takes its commands from.
_TEST_PATTERNS = ("test_*", "*_test.*", "*.test.*", "*.spec.*", "*_spec.*", "*Test.java", "*Tests.cs")
_TEST_FOLDERS = ("tests", "__tests__")
_RUNNER_FILES = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "npm": ("package.json",),
    "yarn": ("package.json",),
    "pnpm": ("package.json",),
    "nox": ("noxfile.py",),
    "just": ("justfile", "Justfile"),
}
# Modules that Python or pytest would import from the working directory in place of the real ones.
_SHADOWS = ("sitecustomize", "usercustomize", "pytest", "_pytest", "pluggy", "py", "unittest")


class Check:
    """The check of one task, which has one starting tree."""

    def __init__(self, settings: Settings, base: Base) -> None:
        self._settings, self._base = settings, base
        self._fails_at_base: str | None = None
        self._printed = ""

    def unusable(self) -> str:
        """Return why the check cannot grade, empty when it can: when tests run at the base, and fail. Run once.

        Raises:
            SandboxError: there is no sandbox, and doing without was not allowed.
        """
        if self._fails_at_base is None:
            done = self._run(self._base.tree)
            self._fails_at_base, self._printed = not_a_failure(self._settings.check, done), printed(done)
        return self._fails_at_base

    @property
    def printed_at_base(self) -> str:
        """What it printed on the starting tree, still with secrets in it; empty before it ran."""
        return self._printed

    def grade(self, end: str, unfinished: str = "") -> Graded:
        """Grade the tree an attempt ended with. Never raises for what the attempt did.

        Args:
            end: its tree.
            unfinished: why the agent did not get done; such an attempt is not resolved whatever it left.
        """
        try:
            if reason := self.unusable():
                return Graded("ungraded", f"the check cannot grade: {reason}", output=self._printed)
            if unfinished:
                return Graded("unresolved", unfinished)
            graded, dropped = self.graded_tree(end)
            if graded == self._base.tree:
                return Graded("unresolved", "nothing but tests changed" if dropped else "nothing changed", dropped)
            return self._after(graded, dropped)
        except (SandboxError, InfrastructureError) as e:
            return Graded("ungraded", f"the check could not run: {one_line(in_mini(e))}")

    def graded_tree(self, end: str) -> tuple[str, tuple[str, ...]]:
        """Return what is graded: the end tree with what belongs to the tests put back, and which paths that were."""
        trees, base = self._base.trees, self._base.tree
        belongs = Belonging(self._settings.check, self._base.below, str(trees.root))
        known = set(trees.paths(base))
        changed = [change.path for change in trees.changes(base, end)]
        dropped = tuple(path for path in changed if belongs.to_tests(path, new=path not in known))
        return trees.with_paths_from(end, base, dropped), dropped

    def _after(self, tree: str, dropped: tuple[str, ...]) -> Graded:
        done = self._run(tree)
        if done.timed_out:  # once more: something else may have slowed it down
            done = self._run(tree)
        reason = "the check failed before the attempt and passes after it"
        if done.limit:
            reason = f"the check was stopped after the attempt: {_limit(done, self._settings)}"
        elif done.returncode != 0:
            reason = f"the check fails after the attempt (exit code {done.returncode})"
        passed = not done.limit and done.returncode == 0
        return Graded("resolved" if passed else "unresolved", reason, dropped, printed(done))

    def _run(self, tree: str) -> Completed:
        from valve_plugin.rollouts.live_place import run_check

        return run_check(self._settings, self._base, tree)


class Belonging:
    """Which paths belong to the tests that a check runs. Pure."""

    def __init__(self, check: str, cwd: str = ".", root: str = "/") -> None:
        """Take the command, and where it runs.

        Args:
            check: the command.
            cwd: relative to the tree, with `/`; `.` is its top.
            root: the tree's own path, for words that are absolute.
        """
        words = _words(check)
        paths = [re.sub(r"::.*", "", word.rpartition("=")[2], flags=re.DOTALL) for word in words]
        self._named = {_joined(cwd, path.removeprefix(root.rstrip("/") + "/")) for path in paths}
        self._runner_files = {name for word in words for name in _RUNNER_FILES.get(_name(word), ())}
        self._tops = {".", cwd}

    def to_tests(self, path: str, *, new: bool) -> bool:
        """Tell whether a changed path is the tests' rather than the attempt's; `new`: it was not there before.

        A file that the check names is the check's, unless the attempt was to make it.
        """
        pure = PurePosixPath(path)
        return (
            (path in self._named and not new)
            or pure.name in self._runner_files
            or is_protected(path, ())
            or any(fnmatchcase(pure.name, pattern) for pattern in _TEST_PATTERNS)
            or any(folder in pure.parts[:-1] for folder in _TEST_FOLDERS)
            or (new and self._shadows(pure))
        )

    def _shadows(self, path: PurePosixPath) -> bool:
        for top in self._tops:
            if path.is_relative_to(top) and path.relative_to(top).parts[0].partition(".")[0] in _SHADOWS:
                return True
        return False


def is_pytest(check: str) -> bool:
    """Tell whether a command runs pytest by name, so that its exit codes mean what pytest says they do."""
    return any(_name(word) in ("pytest", "py.test") for word in _words(check))


def not_a_failure(check: str, done: Completed) -> str:
    """Return why a run of the check is no failure of tests, empty when it is one.

    For pytest that is exit code 1 alone. For other commands it is any exit code from 1 to 125: above are the shell's
    for commands that were not found, could not be executed, or died by a signal.
    """
    if done.limit:
        return f"at the base it was stopped: out of {done.limit}"
    code = done.returncode
    if code == 0:
        return "it passes at the base already"
    if is_pytest(check):
        if re.search(rb"No module named '?_?pytest", done.output):
            return (
                "pytest is not installed where the check runs: start mini with the repository's environment activated, "
                "or name a python on your PATH that has pytest in the check"
            )
        if code in _PYTEST_EXITS:
            return f"at the base {_PYTEST_EXITS[code]} (exit code {code}){_by_python(check, done.output)}"
    if code == 1 or (1 <= code <= 125 and not is_pytest(check)):
        return ""
    return f"at the base it could not run (exit code {code}): {_last_line(done.output)}"


def _by_python(check: str, output: bytes) -> str:
    """Return what helps where `pytest` alone does not find the project's own modules; empty: it is not that."""
    program = re.search(r"(?<!\S)(-m\s+)?((?:\S*/)?)py\.?test(?!\S)", check)
    if program is None or program[1] or b"ModuleNotFoundError" not in output:
        return ""
    python = f"{check[: program.start()]}{program[2]}python -m pytest{check[program.end() :]}"
    return (
        "; `python -m pytest` also imports from the directory it is started in, `pytest` does not: try "
        f"-c valve.check={shlex.quote(python)}"
    )


def in_mini(error: Exception) -> str:
    """Return an error's message, with the option that it names as a person gives it to mini."""
    return str(error).replace("--unsafe-local", "-c valve.unsafe_local=true")


def grade(settings: Settings, base: Base, end: str, unfinished: str = "") -> Graded:
    """Grade one attempt; see `Check.grade`."""
    return Check(settings, base).grade(end, unfinished)


def printed(done: Completed) -> str:
    """Return the end of what a run of the check printed, in whole lines; still with secrets in it."""
    text = done.output[-_PRINTED_BYTES:].decode("utf-8", "replace")
    if len(done.output) > _PRINTED_BYTES:
        text = text.partition("\n")[2]
    return text + ("\n[it printed more than is read]" if done.truncated else "")


def _limit(done: Completed, settings: Settings) -> str:
    return f"it took over {settings.check_timeout} s" if done.timed_out else f"out of {done.limit}"


def _words(check: str) -> Sequence[str]:
    lexer = shlex.shlex(check, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # quotes that do not close; bash will say so
        return check.split()


def _name(word: str) -> str:
    return PurePosixPath(word).name


def _joined(cwd: str, word: str) -> str:
    parts: list[str] = []
    for part in PurePosixPath(cwd, word).parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return one_line(lines[-1]) if lines else "it printed nothing"
