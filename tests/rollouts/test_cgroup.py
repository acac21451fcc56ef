"""Sums of a control group: those of a container that died are its own last ones, never the machine's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from valve_plugin.rollouts import cgroup


def test_a_process_that_ended_and_was_not_waited_for_has_no_group_of_its_own() -> None:
    """Control groups of version 1 put it into the root group, whose CPU time is everybody's."""
    with subprocess.Popen(["true"]) as child:
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        groups = Path(f"/proc/{child.pid}/cgroup").read_text()
        used = cgroup.Group(child.pid).usage()
    assert used == cgroup.Usage() or not all(line.endswith(":/") for line in groups.splitlines())


def test_a_pid_of_nobody_has_used_nothing() -> None:
    assert cgroup.Group(2**22 + 1).usage() == cgroup.Usage()
