"""Folders that cannot be made are refused by name, before or instead of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_tasks_mine import history  # noqa: F401  (a fixture)

NOWHERE = "/proc/nowhere/here"
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="nowhere nothing can be made, also by root")


@pytest.mark.parametrize("command", [["demo", "--fast", "--out"], ["tasks", "mine", "--unsafe-local", "--out"]])
def test_a_folder_that_cannot_be_made(history: Path, valve: Run, command: list[str]) -> None:  # noqa: F811
    valve(*command, NOWHERE, code=2)
    line = valve.err.splitlines()[-1]
    assert line == f"valve: --out {NOWHERE}: No such file or directory; name a place that can be written to"
    (history / "file").write_text("")
    valve(*command, "file/x", code=2)
    assert "file" in valve.err.splitlines()[-1]
    assert "Errno" not in valve.err


def test_a_bank_that_cannot_be_made(project: Path, valve: Run) -> None:
    valve("init", "--bank", NOWHERE, code=2)
    assert "nothing can be made there: choose another place with --bank" in valve.err
