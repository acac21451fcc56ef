"""One run of hidden tests in a sandbox."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from valve_plugin.errors import InfrastructureError
from valve_plugin.records import Record
from valve_plugin.rollouts import verdicts
from valve_plugin.rollouts.glance import Tap
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.protect import is_protected
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.supervise import Completed
from valve_plugin.rollouts.workspace import Workspace
from valve_plugin.tasks.git import read_tree
from valve_plugin.tasks.repository import Prepared

# Read and run inside the sandbox, never imported here: pytest belongs to the test environment, not to this one.
_HARNESS = Path(__file__).resolve().with_name("harness.py")
_JUDGE = _HARNESS.with_name("judge.py")
NOW = _HARNESS.with_name("now.py")
_OPTIONS = (
    "--assert=plain",
    "--color=no",
    "--continue-on-collection-errors",
    "--disable-warnings",
    "-p",
    "no:cacheprovider",
    "-q",
    "--tb=no",
)


class TestRun(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verdicts of one run, and how it ended."""

    __test__ = False
    tests: dict[str, str]
    trouble: str = ""
    """Why the run as a whole cannot be believed; empty: it can."""
    timed_out: bool = False
    died: int | None = None
    """Exit code where what it ran ended the process (-n, or 128 + n: signal n); None: it did not."""


def run_tests(
    sandbox: Sandbox,
    workspace: Workspace,
    prepared: Prepared,
    paths: Sequence[str],
    limits: Limits,
    options: Sequence[str] = (),
    tap: Tap | None = None,
) -> TestRun:
    """Run the tests under `paths` (files, directories or test ids of the tree) and return their verdicts.

    Args:
        options: of pytest, beside the repository's own.
        tap: follows the run; `follow.py` reads what the run then says of itself.

    Raises:
        InfrastructureError: the harness did not come up; nothing that was tested had run yet.
    """
    root = sandbox.root or str(workspace.path)
    key = secrets.token_bytes(32)
    plan = {
        "key": key.hex(),
        "judge": _JUDGE.read_text(),
        "now": NOW.read_text() if tap else "",
        "hidden": [f"{root}/{path}" for path in _hidden_sources(prepared, workspace)],
        "packages": _packages(prepared),
        "paths": [str(PurePosixPath(root, r)) for r in prepared.repository.source_roots],
        "arguments": [*_OPTIONS, *prepared.repository.pytest_args, *options, "--rootdir", root, *paths],
    }
    # The tree comes on the import path only once the harness puts it there.
    done = sandbox.run(
        [str(prepared.python), "-s", str(_HARNESS)],
        workspace,
        limits=limits,
        env={"PYTHONPATH": ""},
        stdin=json.dumps(plan).encode(),
        readonly=[_HARNESS],
        tap=tap,
    )
    report = verdicts.read(done.output, key)
    if not report.started:
        raise InfrastructureError(f"the test harness did not start: {_tail(done)}")
    died = None if report.ended or report.tampered or done.limit else done.returncode
    return TestRun(tests=report.tests, trouble=_trouble(report, done), timed_out=done.timed_out, died=died)


def _hidden_sources(prepared: Prepared, workspace: Workspace) -> list[str]:
    """Return the Python files whose code may be a test or decide how one runs."""
    paths = read_tree(prepared.store, workspace.commit)
    roots = prepared.repository.test_roots
    return [p for p in paths if p.endswith(".py") and is_protected(p, roots) and (workspace.path / p).is_file()]


def _packages(prepared: Prepared) -> list[str]:
    """Return the importable names that the untouched source provides."""
    files = [PurePosixPath(path) for path in read_tree(prepared.store, prepared.base) if path.endswith(".py")]
    roots = [PurePosixPath(root) for root in prepared.repository.source_roots]
    inside = [file.relative_to(root) for file in files for root in roots if file.is_relative_to(root)]
    return sorted({path.parts[0].removesuffix(".py") for path in inside})


def _trouble(report: verdicts.Report, done: Completed) -> str:
    if "_pytest.unittest.TestCaseFunction.addS" in report.tampered:
        return f"{report.tampered}, as pytest-subtests does: use pytest 9, which needs no plugin, or remove it"
    if report.tampered:
        return report.tampered
    if done.limit:
        return f"the tests hit the {done.limit} limit"
    return "" if report.ended else f"the test run ended early: {_tail(done)}"


def _tail(done: Completed) -> str:
    text = done.output[-2000:].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line and not line.startswith("@valve")]
    return f"exit code {done.returncode}; {' / '.join(lines[-3:])[-300:]}"
