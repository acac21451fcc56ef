"""Runs of hidden tests that are kept by what determines them, so that no tree runs twice."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from shutil import disk_usage

from valve_plugin import codec
from valve_plugin.errors import InfrastructureError, RecordError, SandboxError, TaskError
from valve_plugin.files import make_private_dir, write_atomic
from valve_plugin.paths import data_dir
from valve_plugin.records import Task
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import git_line
from valve_plugin.sandbox.supervisor import ProcessLimits
from valve_plugin.tasks.grading.testrun import Asked, TestRun, elsewhere, run_tests
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import commit_tree, open_commit, test_files
from valve_plugin.words import one_line

GRADER_VERSION = 79
"""Part of every cache key; increase it with each change that may change a grade."""

_ASKED_SECONDS = 120
_LEAST_FREE = 32 << 20  # bytes; with less, tests may fail for lack of room


class KilledError(InfrastructureError):
    """Each try to run the tests was ended by a signal that mostly comes from outside."""


@lru_cache(maxsize=16)
def tree_id(store: Path, commit: str) -> str:
    return git_line("rev-parse", f"{commit}^{{tree}}", git_dir=store)


def run_once(
    prepared: PreparedRepository,
    tree: str,
    paths: Sequence[str],
    sandbox: Sandbox,
    asked: Asked | None = None,
    *,
    again: bool = False,
) -> TestRun:
    """Return the run of these tests on this tree; reuse a stored run, and wait for one that is in progress."""
    key = codec.digest([GRADER_VERSION, prepared.digest, tree, sorted(paths), sandbox.name, asked, again])
    folder = data_dir() / "testruns" / key[:2]
    make_private_dir(folder.parent)
    make_private_dir(folder)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = folder / key
        try:
            return codec.decode(kept.read_bytes(), TestRun, where=str(kept))
        except (OSError, RecordError):
            run = run_again(prepared, commit_tree(prepared, tree), paths, sandbox, asked)
            if run.keeps:
                write_atomic(kept, codec.canonical(run))
            return run


def run_again(
    prepared: PreparedRepository,
    commit: str,
    paths: Sequence[str],
    sandbox: Sandbox,
    asked: Asked | None,
) -> TestRun:
    """Run the tests; repeat it alone where a limit of time or a signal ended it, which the machine may have caused.

    Raises:
        InfrastructureError: signals from outside ended each try, or the disk is full.
    """
    wall = _ASKED_SECONDS if asked else ProcessLimits.wall_seconds
    where = elsewhere(prepared) if asked else ()
    spaces = 64 if asked else 1  # how much can be had without use tells where code runs
    limits = ProcessLimits(cpu_seconds=prepared.repository.cpu_seconds, wall_seconds=wall, spaces=spaces)
    for alone in (False, True, True):
        try:
            with _turn(alone), open_commit(prepared, commit, *where) as workspace:
                run = run_tests(sandbox, workspace, prepared, paths, limits, asked=asked)
                free = disk_usage(workspace.root).free
        except TaskError as e:  # the patch put a link where the image has files of its own
            return TestRun(tests={}, trouble=one_line(str(e)))
        if free < _LEAST_FREE:
            raise InfrastructureError(f"{data_dir()}: {free:,} bytes are free; tests need {_LEAST_FREE:,}: make room")
        if asked or not (run.timed_out or run.died_of_signal) or (alone and not run.killed):
            return run
    raise KilledError(f"the tests were killed from outside, {run.trouble}; is the machine out of memory?")


@contextmanager
def _turn(alone: bool) -> Iterator[None]:
    """Hold the machine's grading lock: shared, or exclusive for a run that others must not slow down."""
    path = data_dir() / "grading.lock"
    path.touch(mode=0o600)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def survives(prepared: PreparedRepository, task: Task, sandbox: Sandbox) -> bool:
    """Whether the tests run to their end on the untouched source, now: then what ended them is of the patch."""
    try:
        run_again(prepared, prepared.base, test_files(task.fail_to_pass), sandbox, None)
    except (InfrastructureError, SandboxError, OSError):
        return False
    return True
