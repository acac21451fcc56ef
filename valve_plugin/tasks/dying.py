"""Test files that end pytest's own process, as native code that crashes does: named, and left out of a task set.

They go to `pytest_args` of the definition, so that whatever runs the set's tests later leaves them out as well.
"""

from __future__ import annotations

import glob
import signal

from msgspec.structs import replace

from valve_plugin.errors import TaskError
from valve_plugin.rollouts.testrun import TestRun
from valve_plugin.shell_words import quote
from valve_plugin.tasks.follow import Follow
from valve_plugin.tasks.git import read_tree
from valve_plugin.tasks.repository import LEAVES_OUT, Prepared, Repository

MOST = 3
"""Files that are left out unasked; where more end the process it is not the files."""


class DiedError(TaskError):
    """A run was ended by what it ran."""

    def __init__(self, message: str, file: str, how: str) -> None:
        super().__init__(message)
        self.file, self.how = file, how


def error(prepared: Prepared, run: TestRun, follow: Follow | None) -> TaskError:
    """Return why a run of the untouched source is of no use: a `DiedError` where a test file of the tree is at fault.

    Args:
        run: one with trouble.
        follow: who followed it, and so knows where it was.
    """
    message = f"{prepared.name}: its own tests do not run through: {run.trouble}"
    # Where memory runs out the machine kills: that says nothing about the test that happened to run.
    if run.died in (None, -signal.SIGKILL, 128 + signal.SIGKILL) or follow is None:
        return TaskError(message)
    if follow.file not in read_tree(prepared.store, prepared.base):  # nor is what tests print to be believed
        return TaskError(message)
    return DiedError(message, follow.file, _how(run.died))


def without(repository: Repository, died: DiedError, again: str) -> Repository:
    """Return the definition without the file that ended the process.

    Args:
        again: the command as it was typed.

    Raises:
        TaskError: that would be one too many, or it was left out already.
    """
    argument, known = LEAVES_OUT + glob.escape(died.file), left_out(repository)
    if len(known) >= MOST or argument in repository.pytest_args:
        files = list(dict.fromkeys([*known, died.file]))
        ignore = " ".join(f"--ignore {quote(file)}" for file in files)
        raise TaskError(
            f"{repository.name}: its own tests do not run through: {', '.join(files)} end the process, the last by "
            f"{died.how}; more than {MOST} files are not left out unasked. `{again} {ignore}` leaves these out; a "
            "package of the test environment may be broken"
        )
    return replace(repository, pytest_args=(*repository.pytest_args, argument))


def left_out(repository: Repository) -> list[str]:
    """Return the files that were left out because they end the process."""
    found = (word.removeprefix(LEAVES_OUT) for word in repository.pytest_args if word.startswith(LEAVES_OUT))
    return [file.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?") for file in found]


def _how(code: int) -> str:
    number = -code if code < 0 else code - 128
    return f"signal {number}" if number > 0 else f"exit code {code}"
