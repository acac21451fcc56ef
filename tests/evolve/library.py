"""A tiny real repository with fourteen real bugs: small enough that a whole evolution runs in seconds."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from valve_plugin.cli import app

FUNCTIONS = {
    "total": (
        "def total(values):\n"
        "    result = 0\n"
        "    for value in values:\n"
        "        result = result + value\n"
        "    return result\n",
        ("result + value", "result - value"),
        "assert total([1, 2, 3]) == 6",
    ),
    "largest": (
        "def largest(values):\n"
        "    best = values[0]\n"
        "    for value in values:\n"
        "        if value > best:\n"
        "            best = value\n"
        "    return best\n",
        ("value > best", "value < best"),
        "assert largest([3, 9, 4]) == 9",
    ),
    "clamp": (
        "def clamp(value, low, high):\n    if value < low:\n        return low\n    return min(value, high)\n",
        ("value < low", "value > low"),
        "assert clamp(5, 0, 9) == 5",
    ),
    "parity": (
        "def parity(number):\n    if number % 2 == 0:\n        return 'even'\n    return 'odd'\n",
        ("== 0", "!= 0"),
        "assert parity(4) == 'even'",
    ),
    "mean": (
        "def mean(values):\n    if not values:\n        return 0\n    return sum(values) / len(values)\n",
        ("/ len", "* len"),
        "assert mean([2, 4]) == 3",
    ),
    "span": (
        "def span(values):\n    return max(values) - min(values)\n",
        ("max(values) - min(values)", "min(values) - max(values)"),
        "assert span([2, 7]) == 5",
    ),
    "first": (
        "def first(values, default=None):\n    if values:\n        return values[0]\n    return default\n",
        ("values[0]", "values[-1]"),
        "assert first([1, 2]) == 1",
    ),
    "joined": (
        "def joined(words, sep='-'):\n    return sep.join(str(word) for word in words)\n",
        ("'-'", "'_'"),
        "assert joined([1, 2]) == '1-2'",
    ),
    "count": (
        "def count(values, wanted):\n    return sum(1 for value in values if value == wanted)\n",
        ("value == wanted", "value != wanted"),
        "assert count([1, 1, 2], 1) == 2",
    ),
    "flat": (
        "def flat(rows):\n    result = []\n    for row in rows:\n        result.extend(row)\n    return result\n",
        ("result.extend(row)", "result.append(row)"),
        "assert flat([[1], [2]]) == [1, 2]",
    ),
    "factorial": (
        "def factorial(n):\n    result = 1\n    for i in range(1, n + 1):\n        result *= i\n    return result\n",
        ("n + 1", "n"),
        "assert factorial(4) == 24",
    ),
    "inside": (
        "def inside(value, low, high):\n    return low <= value and value <= high\n",
        ("and value", "or value"),
        "assert not inside(11, 0, 9)",
    ),
    "swap": (
        "def swap(pair):\n    left, right = pair\n    return right, left\n",
        ("right, left\n", "left, right\n"),
        "assert swap((1, 2)) == (2, 1)",
    ),
    "sign": (
        "def sign(number):\n    if number < 0:\n        return -1\n    return 1 if number > 0 else 0\n",
        ("number < 0", "number <= 0"),
        "assert sign(0) == 0",
    ),
}
"""Name: code, what is right and what the bug makes of it, and the test."""
MODIFIERS = ("func_pm_op_change", "func_pm_ctrl_invert_if", "func_pm_remove_assign")


def write(folder: Path, venv: Path | None = None) -> Path:
    """Write source, repository.toml and tasks.jsonl into `folder`; return it. Without `venv`, pytest is required."""
    source = folder / "source"
    (source / "calc").mkdir(parents=True)
    (source / "tests").mkdir()
    (source / "calc" / "__init__.py").write_text("")
    fixed = "\n\n".join(code for code, _, _ in FUNCTIONS.values())
    (source / "calc" / "core.py").write_text(fixed)
    tests = [f"def test_{name}():\n    {check}\n" for name, (_, _, check) in FUNCTIONS.items()]
    (source / "tests" / "test_core.py").write_text("from calc.core import *\n\n\n" + "\n\n".join(tests))
    pytest = f"environment = {json.dumps(str(venv))}" if venv else 'requirements = ["pytest"]'
    (folder / "repository.toml").write_text(
        f'name = "acme/core"\nsource = "path:source"\n{pytest}\ntest_roots = ["tests"]\n'
    )
    rows = [_row(number, name, fixed) for number, name in enumerate(FUNCTIONS)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _row(number: int, name: str, fixed: str) -> dict[str, object]:
    code, (right, wrong), _ = FUNCTIONS[name]
    assert code.count(right) == 1, name
    buggy = fixed.replace(code, code.replace(right, wrong))
    lines = difflib.unified_diff(
        fixed.splitlines(), buggy.splitlines(), "a/calc/core.py", "b/calc/core.py", lineterm=""
    )
    test = f"tests/test_core.py::test_{name}"
    return {
        "instance_id": f"acme__calc.0a1b2c3d.{MODIFIERS[number % 3]}__{number:08d}",
        "repo": "acme/core",
        "patch": "diff --git a/calc/core.py b/calc/core.py\n" + "\n".join(lines) + "\n",
        "FAIL_TO_PASS": [test],
        "PASS_TO_PASS": [f"tests/test_core.py::test_{other}" for other in FUNCTIONS if other != name],
        "problem_statement": f"`{name}` returns wrong values, report number {number}.\n\nIt worked in the past.",
    }


ASK = (
    "--unsafe-local", "-c", 'plugins=["valve","toy"]', "-c", "model=toy", "-c", "retrieval=paper", "-c",
    "embedding=hashing",
)  # fmt: skip
"""How to ask for rollouts with the toy plugin."""
TOY = (*ASK, "--panel-size", "4", "--rollouts", "2", "-c", "rho=0.1", "-c", "protocol=paper")
"""How to evolve with the toy plugin, in the paper's protocol."""


def toy_site(site: Path) -> Path:
    """Make `site` a directory with the toy plugin as an installed distribution, for PYTHONPATH; return it.

    `phases:Phases` is there too, for who names it.
    """
    info = site / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    for plugin in ("toy.py", "phases.py"):
        shutil.copy(Path(__file__).with_name(plugin), site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minisweagent.plugins]\ntoy = toy\n")
    return site


Done = subprocess.CompletedProcess[str]


def valve(*arguments: str | Path, check: bool = True, apart: bool = False, **env: str) -> Done:
    """Run the `valve` command with these variables, in this process: litellm and the fork server take seconds to load.

    With `apart` it has a process of its own.
    """
    words = list(map(str, arguments))
    if apart:
        command = [sys.executable, "-m", "valve_plugin", *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=1200)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["valve", *words])  # advice repeats it
            for name, value in env.items():
                patch.setenv(name, value)
            ran = CliRunner().invoke(app, words, prog_name="valve")
        done = Done(words, ran.exit_code, ran.stdout, ran.stderr)
    assert not check or done.returncode == 0, done.stderr
    return done
