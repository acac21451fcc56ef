"""Failing tests run as a person would run them: that they fail again, and what they say, which becomes the issue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.tasks.git import git
from valve_plugin.tasks.issue_text import compose, leaks
from valve_plugin.tasks.repository import Prepared

_MOST_TEXTS = 5
# With Hypothesis as in a graded run (`harness.py`), so that a failure can be told again.
_PYTEST = """import importlib.util, sys, pytest
if importlib.util.find_spec("_hypothesis_pytestplugin"):
    from hypothesis import HealthCheck, settings
    settings.register_profile("valve", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("valve")
    sys.argv.append("--hypothesis-seed=0")
sys.exit(pytest.main(sys.argv[1:]))"""
_SHOW = ("-c", _PYTEST, "-q", "--tb=short", "--color=no", "-p", "no:cacheprovider", "-rf")
_SECTION = re.compile(r"^_{3,} (.+) _{3,}$", re.MULTILINE)
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)


def shown(
    prepared: Prepared,
    bug: str,
    paths: Sequence[str],
    sandbox: Sandbox,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> str:
    """Return what pytest prints when these tests or files run by themselves; what a limit stopped counts too."""
    with workspaces.at_commit(prepared, bug) as workspace:
        command = [str(prepared.python), *_SHOW, *prepared.repository.pytest_args, *paths]
        return sandbox.run(command, workspace, limits=limits).output.decode("utf-8", "replace")


def failures(output: str, tests: Sequence[str]) -> dict[str, str]:
    """Return the section of each test that the summary at the end calls failed. Pure.

    A test whose section cannot be told from another's is left out.
    """
    body, *_, summary = _SUMMARY.split(output) if _SUMMARY.search(output) else ("", "")
    failed = [line.removeprefix("FAILED ") for line in summary.splitlines() if line.startswith("FAILED ")]
    parts = _SECTION.split(body)
    sections = {name: text for name, text in zip(parts[1::2], parts[2::2], strict=True) if parts.count(name) == 1}
    alike = Counter(map(_heading, tests))
    found = {test: sections.get(_heading(test), "") for test in tests if alike[_heading(test)] == 1}
    return {t: text for t, text in found.items() if text and any(x == t or x.startswith(f"{t} - ") for x in failed)}


def issue_text(
    prepared: Prepared, bug: str, patch: str, failing: Sequence[str], sandbox: Sandbox, heard: Mapping[str, str]
) -> str:
    """Return an issue from the shortest failing test whose text does not give the fix away; empty: there is none.

    Args:
        heard: what tests are known to say; the others are run.
    """
    kind, _, where = prepared.repository.source.partition(":")
    version = where.replace("==", " ") if kind == "pypi" else "an earlier commit"
    for test in sorted(failing, key=lambda t: (len(t), t))[:_MOST_TEXTS]:
        output = heard[test] if test in heard else shown(prepared, bug, [test], sandbox)
        source = git("cat-file", "blob", f"{bug}:{test.split('::')[0]}", git_dir=prepared.store)
        others = [other for other in failing if other != test]
        text = compose(test, source.decode("utf-8", "replace"), output, others, version)
        if not leaks(text, patch):
            return text
    return ""


def _heading(test: str) -> str:
    """Return what pytest writes above the traceback of a test."""
    name, bracket, case = test.partition("[")
    return ".".join(name.split("::")[1:]) + bracket + case
