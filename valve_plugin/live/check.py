"""Grading a live attempt by the person's own check: it must fail on the starting tree and pass after the attempt.

Both runs use copies in the sandbox, under the same conditions. Test files are taken from the starting tree, so an
attempt cannot pass by editing them. A check that already passes on the starting tree cannot grade.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin.checkout import find
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, SandboxError
from valve_plugin.live.trees import Base, Trees
from valve_plugin.paths import BANK_NAME
from valve_plugin.records import AttemptOutcome
from valve_plugin.sandbox import scratch
from valve_plugin.sandbox.bubblewrap import Sandbox, choose
from valve_plugin.sandbox.disk import disk_bytes
from valve_plugin.sandbox.environment import base_prefix
from valve_plugin.sandbox.supervisor import MIB, CommandResult, ProcessLimits
from valve_plugin.sandbox.workspace import Workspace, open_workspace
from valve_plugin.tasks.grading.testrun import FROM_OUTSIDE
from valve_plugin.tasks.states import is_protected
from valve_plugin.words import one_line

_ADVICE = (
    "Give a check that fails now and passes once the task is done, a new test for example: "
    "-c valve.check='python -m pytest tests/test_of_the_task.py'"
)
_NOT_INSTALLED = (
    "pytest is not installed where the check runs: activate the repository's environment before you start, or name its "
    "Python in the command"
)
_NO_MODULE = re.compile(rb"No module named '?([\w.]+)")
_PYTEST = re.compile(r"(?<!-m )(?<![\w./-])(?:pytest|py\.test)(?![\w./-])")
"""pytest called by its own name."""
_PYTEST_EXITS = {
    2: "a test file could not be imported: no test failed",
    3: "pytest had an internal error",
    4: "pytest was used wrongly, or the test does not exist",
    5: "pytest found no tests",
}
# Much more than is kept, so that no secret is cut in two before it is redacted.
_PRINTED_BYTES = 1 << 16
# Test files of other languages, and files from which runners read their commands.
_TEST_PATTERNS = ("test_*", "*_test.*", "*.test.*", "*.spec.*", "*_spec.*", "*Test.java", "*Tests.cs")
_RUNNER_FILES = {
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "npm": ("package.json",),
    "yarn": ("package.json",),
    "pnpm": ("package.json",),
    "nox": ("noxfile.py",),
    "just": ("justfile", "Justfile"),
}
# A file of this name in the working directory replaces a module that Python or pytest imports.
_SHADOWS = ("sitecustomize", "usercustomize", "pytest", "_pytest", "pluggy", "py", "unittest")
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_VENVS = (".venv", "venv")
# Git ignores these, so they are not in the tree, but commands need them.
_INSTALLED = (*_VENVS, "node_modules")


class CheckResult(NamedTuple):
    """The grade of one attempt."""

    outcome: AttemptOutcome
    reason: str
    """The reason in one line, also for a resolved task."""
    dropped_paths: tuple[str, ...] = ()
    """Changed test files; they were restored before grading."""
    output: str = ""
    """The last output of the check in the deciding run; not redacted."""


class Check:
    """The check of one task with one starting tree."""

    def __init__(self, settings: Settings, base: Base) -> None:
        self._settings, self._base = settings, base
        self._problem: str | None = None
        self.printed_at_base = ""
        """Its output on the starting tree, not redacted; empty before it ran."""

    def problem(self) -> str:
        """Return why the check cannot grade, or "" if it fails on the starting tree as it should. It runs once.

        Raises:
            SandboxError: there is no sandbox, and running without one is not allowed.
        """
        if self._problem is None:
            done = self.run(self._base.tree)
            self._problem, self.printed_at_base = base_problem(self._settings.check, done), printed_end(done)
        return self._problem

    def grade(self, end: str, unfinished: str = "") -> CheckResult:
        """Grade the final tree of an attempt. Never raises for what the attempt did.

        Args:
            unfinished: why the agent did not finish, if it did not; such an attempt is unresolved.
        """
        try:
            if reason := self.problem():
                return CheckResult("ungraded", f"the check cannot grade: {reason}", output=self.printed_at_base)
            if unfinished:
                return CheckResult("unresolved", unfinished)
            graded, dropped = self.graded_tree(end)
            if graded == self._base.tree:
                trees = self._base.trees
                apart = [f"{path} is a repository of its own" for path in sorted(trees.repositories or ())]
                if notes := [*trees.notes, *apart]:
                    why = f"nothing that was captured has changed; {'; '.join(notes)}"
                    return CheckResult("ungraded", why, dropped)
                return CheckResult("unresolved", "nothing but tests changed" if dropped else "nothing changed", dropped)
            done = self.run(graded)
            if done.timed_out:  # try again: the machine may have been busy
                done = self.run(graded)
            reason = "the check failed before the attempt and passes after it"
            if done.limit:
                limit = f"it took over {self._settings.check_timeout} s" if done.timed_out else f"out of {done.limit}"
                reason = f"the check was stopped after the attempt: {limit}"
            elif done.returncode != 0:
                reason = f"the check fails after the attempt (exit code {done.returncode})"
            passed = not done.limit and done.returncode == 0
            return CheckResult("resolved" if passed else "unresolved", reason, dropped, printed_end(done))
        except (SandboxError, InfrastructureError) as e:
            return CheckResult("ungraded", f"the check could not run: {one_line(with_mini_option(e))}")

    def graded_tree(self, end: str) -> tuple[str, tuple[str, ...]]:
        """Return (the final tree with the original test files, the paths that were restored)."""
        trees, base = self._base.trees, self._base.tree
        known = set(trees.paths(base))
        changed = [change.path for change in trees.changes(base, end)]
        where = (self._settings.check, self._base.below, str(trees.root))
        dropped = tuple(path for path in changed if belongs_to_tests(path, *where, new=path not in known))
        return trees.with_paths_from(end, base, dropped), dropped

    def run(self, tree: str) -> CommandResult:
        """Run the check on a tree, in a copy; once more if it was killed from outside.

        Raises:
            InfrastructureError: it was killed from outside both times.
        """
        for _ in range(2):
            settings, base = self._settings, self._base
            sandbox = choose(settings)
            with open_copy(base, tree, sandbox) as workspace:
                seconds = settings.check_timeout
                limits = ProcessLimits(
                    wall_seconds=seconds,
                    cpu_seconds=seconds * 64,  # of all processes together; the person's setting is wall time
                    memory_bytes=16_384 * MIB,
                    processes=4096,
                    disk_bytes=disk_bytes(workspace.root) + 4096 * MIB,
                )
                done = sandbox.run(
                    settings.check, workspace, limits=limits, cwd=base.below, env=shell_environment(base)
                )
            number = -done.returncode if done.returncode < 0 else done.returncode - 128
            if done.limit or number not in FROM_OUTSIDE:  # signals that usually come from outside
                return done
        raise InfrastructureError(
            f"it was killed from outside, by signal {number}, twice; is the machine out of memory?"
        )


def belongs_to_tests(path: str, check: str, cwd: str = ".", root: str = "/", *, new: bool) -> bool:
    """Whether a changed path belongs to the tests of a check. Pure.

    Args:
        cwd: where the check runs, relative to the tree, with `/`; `.` is the root of the tree.
        root: absolute path of the tree, for absolute paths in the command.
        new: whether the attempt created it. Then it does not count as a test merely because the check names it.
    """
    words, pure = _words(check), PurePosixPath(path)
    named = [re.sub(r"::.*", "", word.rpartition("=")[2], flags=re.DOTALL) for word in words]
    relative = [name.removeprefix(root.rstrip("/") + "/") for name in named]
    tops = [pure.relative_to(top).parts[0] for top in {".", cwd} if pure.is_relative_to(top)]
    return (
        (not new and path in {posixpath.normpath(posixpath.join(cwd, name)) for name in relative})
        or any(pure.name in _RUNNER_FILES.get(PurePosixPath(word).name, ()) for word in words)
        or is_protected(path, ())
        or any(fnmatchcase(pure.name, pattern) for pattern in _TEST_PATTERNS)
        or any(folder in pure.parts[:-1] for folder in ("tests", "__tests__"))
        or (new and any(top.partition(".")[0] in _SHADOWS for top in tops))
    )


def is_pytest(check: str) -> bool:
    """Whether a command runs pytest by name, so that it has pytest's exit codes."""
    return any(PurePosixPath(word).name in ("pytest", "py.test") for word in _words(check))


def try_command(command: str, settings: Settings, folder: Path, bank: Path, seconds: int) -> CheckResult:
    """Run a command in a copy of a folder, as a check would be, and return whether tests can be run so.

    Returns:
        `errored` with the reason if they cannot, else `ungraded` with how it ended.

    Raises:
        ValveError: there is no sandbox, or the folder cannot be captured.
    """
    with scratch.private_folder("valve-run-") as kept:
        root = find(folder).root
        trees = Trees(root, Path(kept), [bank.resolve(), root / BANK_NAME, folder / BANK_NAME])
        base = Base(trees, trees.capture(), folder)
        done = Check(replace(settings, check=command, check_timeout=seconds), base).run(base.tree)
    if done.limit == "wall":
        return CheckResult("ungraded", f"it runs; stopped after {seconds} s")
    problem = "" if done.returncode == 0 else base_problem(command, done)
    if problem:
        return CheckResult("errored", problem.removeprefix("at the base "))
    ended = "it passes" if done.returncode == 0 else "tests fail"
    return CheckResult("ungraded", ": ".join(filter(None, [ended, _last_line(done.output).strip("= ")])))


def base_problem(check: str, done: CommandResult) -> str:
    """Return why a run of the check does not count as failing tests, or "" if it does.

    For pytest, only exit code 1 counts. For other commands, exit codes from 1 to 125 count; the shell uses higher ones
    for commands that were not found, could not be executed, or were killed by a signal.
    """
    if done.limit:
        return f"at the base it was stopped: out of {done.limit}"
    code = done.returncode
    if code == 0:
        return "it passes at the base already"
    if is_pytest(check):
        if re.search(rb"No module named '?_?pytest", done.output):
            return _NOT_INSTALLED
        if code in _PYTEST_EXITS:
            return f"at the base {_PYTEST_EXITS[code]} (exit code {code}){_import_cure(check, done.output)}"
    if code == 1 or (1 <= code <= 125 and not is_pytest(check)):
        return ""
    return f"at the base it could not run (exit code {code}): {_last_line(done.output)}"


def _import_cure(check: str, printed: bytes) -> str:
    """Return what to do about a module that pytest does not find; "" where it found all."""
    missing = _NO_MODULE.search(printed)
    if not missing:
        return ""
    better = _PYTEST.sub("python -m pytest", check, count=1)
    cure = "install it where the check runs" if better == check else f"`{better}` also imports from the folder itself"
    return f": there is no module {missing[1].decode()}; {cure}"


def cannot_grade(reason: str) -> str:
    """Return a problem of a check as a sentence, with what to do where the reason does not say it."""
    cured = reason == _NOT_INSTALLED or "there is no module" in reason
    return f"the check cannot grade: {reason}" + ("" if cured else f". {_ADVICE}")


def with_mini_option(error: Exception) -> str:
    """Return an error's message in which options have the form that mini accepts."""
    return str(error).replace("--unsafe-local", "-c valve.unsafe_local=true")


def printed_end(done: CommandResult) -> str:
    """Return the last lines of a check's output; not redacted."""
    text = done.output[-_PRINTED_BYTES:].decode("utf-8", "replace")
    if len(done.output) > _PRINTED_BYTES:
        text = text.partition("\n")[2]
    return text + ("\n[more output was dropped]" if done.truncated else "")


def _words(check: str) -> Sequence[str]:
    lexer = shlex.shlex(check, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # unbalanced quotes; bash reports them
        return check.split()


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return one_line(lines[-1]) if lines else "it printed nothing"


# Copies of the directory. Each appears at the directory's own path, so that editable installs, virtual environments and
# absolute paths refer to the copy as they refer to the original outside.


@contextmanager
def open_copy(base: Base, tree: str, sandbox: Sandbox) -> Iterator[Workspace]:
    """Yield a workspace with the files of one of the run's trees; it is removed at the end.

    Raises:
        InfrastructureError: git or the disk failed.
    """
    trees = base.trees
    readonly, _ = find_tools(trees.root, base.cwd, os.environ)
    roots: tuple[str, ...] = ()
    if sandbox.root is None:  # editable installs do not point to the copy, so its modules must come first
        roots = tuple(name for name in (".", "src") if (trees.root / name).is_dir())
    commit, place = trees.commit(tree), str(trees.root)
    with open_workspace(trees.store, commit, readonly=readonly, source_roots=roots, place=place) as workspace:
        yield workspace


def shell_environment(base: Base) -> dict[str, str]:
    """Return the variables of the person's shell that determine which programs and modules a command uses."""
    python_path = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
    return {"PATH": find_tools(base.trees.root, base.cwd, os.environ)[1], **python_path}


def find_tools(root: Path, cwd: Path, environ: Mapping[str, str]) -> tuple[tuple[Path, ...], str]:
    """Return the places of the programs that the person's shell uses in `cwd`, and the value of PATH for a copy."""
    venvs = [Path(environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    venvs += [folder / name for folder in dict.fromkeys((cwd, root)) for name in _VENVS]
    venvs = [venv for venv in dict.fromkeys(venvs) if (venv / "bin").is_dir()]
    on_path = [Path(entry) for entry in environ.get("PATH", os.defpath).split(os.pathsep) if entry.startswith("/")]
    on_path = [entry for entry in on_path if entry.is_dir()]
    bins = [venv / "bin" for venv in venvs] + on_path + [Path(sys.prefix, "bin")]
    outside = [entry for entry in on_path if not entry.is_relative_to(root)]  # the copy has its own
    visible = [*venvs, Path(sys.prefix), *map(_installation, outside)]
    visible += [prefix for venv in [*venvs, Path(sys.prefix)] if (prefix := _base(venv))]
    visible += [folder / name for folder in (cwd, root) for name in _INSTALLED if (folder / name).is_dir()]
    readonly: list[Path] = []
    for place in dict.fromkeys(visible):
        if not root.is_relative_to(place):
            readonly.append(place)
        else:  # the project is inside it: mounting the whole path would hide the copy
            parts = (place / name for name in ("bin", "lib", "lib64", "pyvenv.cfg"))
            readonly += [part for part in parts if part.exists()]
    readonly = [place for place in readonly if not any(place.is_relative_to(top) for top in _SYSTEM)]
    path = dict.fromkeys([*map(str, bins), *_SYSTEM_PATH])
    outermost = (p for p in readonly if not any(p != q and p.is_relative_to(q) for q in readonly))
    return tuple(outermost), os.pathsep.join(path)


def _installation(entry: Path) -> Path:
    """Return the installation of a directory on PATH: `x` for `x/bin`, unless `x` may contain private data."""
    above = entry.parent
    private = [Path("/"), *(Path.home() / name for name in ("", ".local", ".cargo"))]  # with keys and caches
    return above if entry.name in ("bin", "shims") and above not in private else entry


def _base(venv: Path) -> Path | None:
    """Return the installation that has the standard library of a virtual environment, or None if it is unknown."""
    try:
        return base_prefix(venv)
    except (OSError, InfrastructureError):  # not a virtual environment, or conda's kind, which is complete
        return None
