"""Failing tests run as a person would run them: that they fail again, and what they say, which becomes the issue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.tasks.git import git
from valve_plugin.tasks.issue_text import Issue, heard
from valve_plugin.tasks.repository import Prepared

NAMES_FIX = "every issue text would name the fix"
SILENT = "no failing test says by itself what is wrong"
ONLY_IMPORT = "only breaks the import of a test file"
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
_NOT_IMPORTED = re.compile(r"^(?:_+ ERROR collecting .* _+|ImportError while loading conftest .*)$", re.MULTILINE)
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
        said = sandbox.run(command, workspace, limits=limits).output.decode("utf-8", "replace")
        return said.replace(str(workspace.path), "/testbed").replace(str(workspace.tmp), "/tmp")  # noqa: S108


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


def issue(
    prepared: Prepared, bug: str, patch: str, failing: Sequence[str], sandbox: Sandbox, told: Mapping[str, str]
) -> tuple[Issue | None, str]:
    """Return (what failing tests show without giving the fix away, the shortest first; why there is nothing).

    One that fails since its file cannot be imported shows nothing: what it does by itself still works.

    Args:
        told: what tests are known to say; of the others, as many are run as one issue needs.
    """
    kind, _, where = prepared.repository.source.partition(":")
    made = Issue(version=where.replace("==", " ") if kind == "pypi" else "an earlier commit", voices=())
    broken, silent, leaking, runs = set[str](), False, False, 0
    for test in sorted(failing, key=lambda t: (len(t), t)):
        path = test.split("::")[0]
        if len(made.voices) == _MOST_TEXTS or path in broken:
            continue
        if test not in told and (made.voices or runs == _MOST_TEXTS):
            continue
        runs += test not in told
        output = told[test] if test in told else shown(prepared, bug, [test], sandbox)
        if test not in told and _NOT_IMPORTED.search(output):
            broken.add(path)
            continue
        source = git("cat-file", "blob", f"{bug}:{path}", git_dir=prepared.store).decode("utf-8", "replace")
        if not (voice := heard(test, source, output)):
            silent = True
        elif replace(made, voices=(voice,)).text(failing, patch):
            made = replace(made, voices=(*made.voices, voice))
        else:
            leaking = True
    if made.voices:
        return made, ""
    return None, NAMES_FIX if leaking else SILENT if silent else ONLY_IMPORT


def _heading(test: str) -> str:
    """Return what pytest writes above the traceback of a test."""
    name, bracket, case = test.partition("[")
    return ".".join(name.split("::")[1:]) + bracket + case
