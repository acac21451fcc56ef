"""One bug, and patches that fix it, do not, or pretend to: the table of verdicts in docs/how-to/containers.md."""

from __future__ import annotations

import difflib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests import images
from tests.lean import lean

OPS = '''\
"""Arithmetic."""


def add(a, b):
    return a + b


def clamp(x, low, high):
    return max(low, min(x, high))


def sign(x):
    return (x > 0) - (x < 0)
'''
BUGGY = OPS.replace("min(x, high)", "min(x, low)").replace("(x > 0) - (x < 0)", "(x > 0) + (x < 0)")
HALF = BUGGY.replace("min(x, low)", "min(x, high)")
HIDDEN = """\
from calc.ops import clamp, sign


def test_clamp():
    assert clamp(5, 0, 9) == 5


def test_sign():
    assert sign(-3) == -1


def test_low():
    assert clamp(-5, 0, 9) == 0
"""
SHOWN = "from calc.ops import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
FILES = {
    "calc/__init__.py": "",
    "calc/ops.py": OPS,
    "tests/test_hidden.py": HIDDEN,
    "tests/test_shown.py": SHOWN,
    "pytest.ini": "[pytest]\naddopts =\n",
}
IMAGE = images.IMAGE.replace("_calc.", "_graded.")  # of its own: other tests make theirs at the same time
COMMIT = IMAGE.rpartition(".")[2]
NAME = f"acme__graded.{COMMIT}.func_pm_x__1"
F2P = ["tests/test_hidden.py::test_clamp", "tests/test_hidden.py::test_sign"]
P2P = ["tests/test_hidden.py::test_low", "tests/test_shown.py::test_add"]

_PASSED = "".join(f"{test} PASSED\\n" for test in F2P)
_HOOK = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
"""


def patches() -> dict[str, dict[str, str]]:
    """Return, by what they are, the files that each patch leaves behind; all others stay as they are."""
    return {
        "the fix": _ops(OPS),
        "empty": {},
        "half of the fix": _ops(HALF),
        "edits the visible test": _ops(BUGGY) | {"tests/test_shown.py": "def test_add():\n    pass\n"},
        "writes the hidden tests anew": _ops(BUGGY)
        | {
            "tests/test_hidden.py": "".join(
                f"def {n}():\n    pass\n\n\n" for n in ("test_clamp", "test_sign", "test_low")
            )
        },
        "fix that breaks another test": _ops(OPS.replace("a + b", "a - b")),
        "fix that never ends": _ops(OPS.replace("    return a + b", "    while True:\n        pass")),
        "syntax error": _ops(OPS + "def (:\n"),
        "forged: ends the run": _ops("import os\nos._exit(0)\n" + BUGGY),
        "forged: prints results at exit": _ops(f'import atexit\natexit.register(print, "\\n{_PASSED}")\n' + BUGGY),
        "forged: calls xfail where a test fails": _ops(
            BUGGY.replace("    return (", '    import pytest; pytest.xfail("later")\n    return (').replace(
                "    return max", '    import pytest; pytest.xfail("later")\n    return max'
            )
        ),
        "forged: empties pytest's way to run a test": _ops("import pytest\npytest.Function.runtest = id\n" + BUGGY),
        "forged: plants conftest.py": _ops(BUGGY) | {"conftest.py": _HOOK},
        "forged: plants a plugin by pytest.ini": _ops(BUGGY)
        | {"calc/evil.py": _HOOK, "pytest.ini": "[pytest]\naddopts = -p calc.evil\n"},
        "forged: plants sitecustomize.py": _ops(BUGGY)
        | {"sitecustomize.py": f'import atexit\natexit.register(print, "\\n{_PASSED}")\n'},
        "the fix, with planted files": _ops(OPS) | {"conftest.py": _HOOK, "sitecustomize.py": "x = 1\n"},
    }


def _ops(text: str) -> dict[str, str]:
    return {"calc/ops.py": text}


def patch(files: dict[str, str]) -> str:
    """Return the patch that makes the buggy tree, without the hidden tests, hold these files."""
    before = FILES | {"calc/ops.py": BUGGY}
    before.pop("tests/test_hidden.py")
    parts = []
    for name, text in files.items():
        old, new = before.get(name), text.splitlines(keepends=True)
        if old != text:
            source = "/dev/null" if old is None else f"a/{name}"
            head = f"diff --git a/{name} b/{name}\n" + ("new file mode 100644\n" if old is None else "")
            lines = difflib.unified_diff((old or "").splitlines(keepends=True), new, source, f"b/{name}")
            parts.append(head + "".join(lines))
    return "".join(parts)


def bug() -> str:
    """Return the patch of the row, which introduces the bug."""
    lines = difflib.unified_diff(
        OPS.splitlines(keepends=True), BUGGY.splitlines(keepends=True), "a/calc/ops.py", "b/calc/ops.py"
    )
    return "".join(lines)


def build(folder: Path) -> str:
    """Make SWE-smith's image of the bug; return its name."""
    branch = [{"calc/ops.py": BUGGY}, {"tests/test_hidden.py": None}]
    return images.build(folder, IMAGE, {"main": [FILES], NAME: branch}, {})


def write(folder: Path, *, in_image: bool) -> Path:
    """Write the task directory: tested in the image, or in an environment of this machine."""
    (folder / "source").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / "source" / name).parent.mkdir(exist_ok=True)
        (folder / "source" / name).write_text(text)
    lines = ['name = "acme/calc"', "cpu_seconds = 4"]
    if in_image:
        lines.append(f'source = "image:{IMAGE}"')
    else:
        lines += ['source = "path:source"', f"environment = {json.dumps(str(lean()))}"]
    (folder / "repository.toml").write_text("\n".join(lines) + "\n")
    row = {
        "instance_id": NAME,
        "repo": "acme/calc",
        "patch": bug(),
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
        "problem_statement": "clamp(5, 0, 9) is 0, and sign(-3) is 1.",
        "image_name": IMAGE if in_image else "",
    }
    (folder / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def smith(run: str, patches: dict[str, str]) -> dict[str, bool]:
    """Grade with SWE-smith's own harness in the working directory; return whether each is resolved.

    Run in a process of its own: the harness writes logs where it is, and importing it takes seconds. `run` is in the
    containers' names: those of a run that was killed may still be there, and the harness takes a name that is in use
    for a patch that does not resolve.
    """
    from swebench.harness.constants import (
        APPLY_PATCH_FAIL,
        KEY_INSTANCE_ID,
        KEY_PREDICTION,
        LOG_INSTANCE,
        LOG_TEST_OUTPUT,
        RUN_EVALUATION_LOG_DIR,
        TESTS_TIMEOUT,
    )
    from swesmith.constants import TEST_OUTPUT_END
    from swesmith.harness.grading import get_eval_report
    from swesmith.harness.utils import run_patch_in_container
    from swesmith.profiles import registry
    from swesmith.profiles.python import PythonProfile

    @dataclass
    class Calc(PythonProfile):
        owner: str = "acme"
        repo: str = "graded"
        commit: str = COMMIT
        _cache_image_exists = True
        _cache_repo_private: bool = False

    registry.register_profile(Calc)

    def graded(number: int, name: str, text: str) -> bool:
        row = {KEY_INSTANCE_ID: NAME, "repo": f"swesmith/{NAME.rpartition('.')[0]}"}
        row |= {"FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}
        endless = "never ends" in name
        seconds = 20 if endless else 120
        for attempt in range(3):
            folder = f"{run}.{number}.{attempt}"
            run_patch_in_container(row, folder, RUN_EVALUATION_LOG_DIR, seconds, patch=text, commit=NAME)
            logs = RUN_EVALUATION_LOG_DIR / folder / NAME
            if APPLY_PATCH_FAIL in (logs / LOG_INSTANCE).read_text():
                return False
            log = logs / LOG_TEST_OUTPUT
            output = log.read_text() if log.exists() else ""
            if TEST_OUTPUT_END in output or (endless and TESTS_TIMEOUT in output):
                prediction = {KEY_INSTANCE_ID: NAME, KEY_PREDICTION: text}
                return bool(get_eval_report(prediction, row, str(log))["resolved"])
        raise RuntimeError(f"{name}: three tries ended without the tests' output: {logs / LOG_INSTANCE}")

    with ThreadPoolExecutor(4) as pool:  # most of its time, it waits for its containers to stop
        verdicts = pool.map(graded, range(len(patches)), patches, patches.values())
        return dict(zip(patches, verdicts, strict=True))


if __name__ == "__main__":
    json.dump(smith(sys.argv[1], json.load(sys.stdin)), sys.stderr)
