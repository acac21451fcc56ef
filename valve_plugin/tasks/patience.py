"""When a candidate's tests are ended: by CPU time, or because they wait for nothing that will come; never by a busy
machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from valve_plugin.errors import TaskError
from valve_plugin.rollouts.glance import Tap
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.supervise import Completed
from valve_plugin.rollouts.workspace import Workspace
from valve_plugin.tasks.follow import Following
from valve_plugin.tasks.repository import Prepared

PATIENCE = 90.0
"""Seconds without CPU time after which a candidate's tests wait without end. The suite's own tests have longer and are
named by then: only a candidate is at stake."""
WAITS = "its tests wait without end"
STARVED = "the tests hit the wall limit"
"""What becomes of a candidate on a machine that is too busy for it: no result, and tried again."""
_WALL_PER_CPU = 8  # where that is longer than the backstop that everything has


class StarvedError(TaskError):
    """A command hit the wall limit, and so says nothing about a candidate."""


class Patient:
    """A sandbox for candidates.

    `run` raises, beside what a sandbox does:
        EndlessError: the command waits without end.
        StarvedError: it hit the wall limit.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.name, self.root = sandbox.name, sandbox.root

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Any) -> Completed:
        """See `Sandbox.run`."""
        options["tap"] = options.get("tap") or patience()
        done = self._sandbox.run(command, workspace, **options)
        if done.limit == "wall":
            raise StarvedError(STARVED)
        return done


def patience() -> Tap:
    """Return a tap that ends what waits without end, and says nothing."""
    return Following(lambda _: None, gives_up=True, patience=PATIENCE).run("its tests")


def limits_of(prepared: Prepared) -> Limits:
    """Return the limits of a run of a repository's tests."""
    cpu = prepared.repository.cpu_seconds
    return Limits(cpu_seconds=cpu, wall_seconds=max(Limits().wall_seconds, _WALL_PER_CPU * cpu))
