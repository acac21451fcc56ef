"""Plugins that rebind, wrap or repeat tests: a right fix resolves in an environment with that plugin, no other does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import calc
from tests.once import once
from tests.tools import some
from valve_plugin.config import Settings
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.states import gold_patch
from valve_plugin.tasks.task_set import load

HIGH = "assert clamp(10, 0, 9) == 9"
LOW = "assert clamp(-1, 0, 9) == 0"
IMPORT = "import pytest\nfrom calc.ops import clamp\n"
ASYNC = f"""{IMPORT}
@pytest.mark.MARK
async def test_high():
    {HIGH}

@pytest.mark.MARK
@pytest.mark.parametrize("x", [-1, -2])
async def test_low(x):
    assert clamp(x, 0, 9) == 0

class TestIn:
    @pytest.mark.MARK
    async def test_low(self):
        {LOW}
"""
ANYIO = ASYNC.replace("MARK", "anyio") + "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
LIBRARY = f"""
import unittest
from calc.ops import clamp

class Base:
    def test_high(self):
        {HIGH}

class Case(unittest.TestCase):
    def test_low(self):
        self.assertEqual(clamp(-1, 0, 9), 0)
"""
INHERITED = """
from calc.testing import Base, Case

class TestOurs(Base):
    pass

class TestCase(Case):
    pass
"""
FLAKY = f"""{IMPORT}from flaky import flaky
runs = []

@flaky(max_runs=3)
def test_high():
    runs.append(1)
    assert len(runs) > 1
    {HIGH}

@flaky
def test_low():
    {LOW}
"""
RERUN = f"""{IMPORT}
runs = []

@pytest.mark.flaky(reruns=2)
def test_high():
    runs.append(1)
    assert len(runs) > 1
    {HIGH}

def test_low():
    {LOW}
"""
SUBTESTS = f"""{IMPORT}import unittest

def test_high(subtests):
    for x in (10, 11):
        with subtests.test(x=x):
            assert clamp(x, 0, 9) == 9

class TestCase(unittest.TestCase):
    def test_low(self):
        for x in (-1, -2):
            with self.subTest(x=x):
                self.assertEqual(clamp(x, 0, 9), 0)
"""
PARAMETRIZED = f"""{IMPORT}
@pytest.mark.parametrize(("x", "y"), [(10, 9), (-1, 0)], ids=["high", "low"])
def test_both(x, y):
    assert clamp(x, 0, 9) == y

@pytest.fixture(params=[-1, -2])
def below(request):
    return request.param

def test_low(below):
    assert clamp(below, 0, 9) == 0
"""
HYPOTHESIS = f"""{IMPORT}from hypothesis import given, strategies as st

@given(st.integers(10))
def test_high(x):
    assert clamp(x, 0, 9) == 9

@given(st.integers(max_value=-1))
def test_low(x):
    assert clamp(x, 0, 9) == 0
"""
MOCKED = f"""{IMPORT}from unittest import mock

def test_high(mocker):
    mocker.patch("builtins.open")
    {HIGH}

@mock.patch("os.getcwd")
def test_low(cwd, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    {LOW}
"""
TIMED = f"""{IMPORT}
@pytest.mark.timeout(60)
def test_high():
    {HIGH}

@pytest.mark.timeout(60, method="thread")
def test_low():
    {LOW}
"""
ASYNCIO = ASYNC.replace("MARK", "asyncio")
F2P, P2P = ("tests/test_x.py::test_high",), ("tests/test_x.py::test_low",)
ASYNC_P2P = ("tests/test_x.py::test_low[-1]", "tests/test_x.py::test_low[-2]", "tests/test_x.py::TestIn::test_low")
Row = tuple[list[str], str, tuple[str, ...], tuple[str, ...]]
LATEST = ["pytest>=9", "anyio", "trio", "hypothesis", "pytest-mock", "pytest-timeout"]
EIGHT = ["pytest<9", "pytest-trio==0.8.0", "pytest-subtests"]
"""These have several plugins, as real environments do; those that wrap or repeat every test have theirs alone."""
TABLE: dict[str, Row] = {
    "pytest-asyncio 0.21": (["pytest<8", "pytest-asyncio==0.21.2"], ASYNCIO, F2P, ASYNC_P2P),
    "pytest-asyncio 0.24": (["pytest<9", "pytest-asyncio==0.24.0"], ASYNCIO, F2P, ASYNC_P2P),
    "pytest-asyncio 1.0": (["pytest<9", "pytest-asyncio==1.0.0"], ASYNCIO, F2P, ASYNC_P2P),
    "pytest-asyncio 1.2": (["pytest<9", "pytest-asyncio==1.2.0"], ASYNCIO, F2P, ASYNC_P2P),
    "pytest-trio": (EIGHT, ASYNC.replace("MARK", "trio"), F2P, ASYNC_P2P),
    "anyio": (LATEST, ANYIO, F2P, ASYNC_P2P),
    "anyio with trio": (LATEST, ANYIO.replace("'asyncio'", "'trio'"), F2P, ASYNC_P2P),
    "flaky": (["pytest<9", "flaky==3.8.1"], FLAKY, F2P, P2P),
    "rerunfailures": (["pytest", "pytest-rerunfailures"], RERUN, F2P, P2P),
    "pytest-subtests": (EIGHT, SUBTESTS, F2P, ("tests/test_x.py::TestCase::test_low",)),
    "subtests of pytest 9": (LATEST, SUBTESTS, F2P, ("tests/test_x.py::TestCase::test_low",)),
    "parametrized": (
        [],
        PARAMETRIZED,
        ("tests/test_x.py::test_both[high]",),
        ("tests/test_x.py::test_both[low]", "tests/test_x.py::test_low[-1]"),
    ),
    "inherited": ([], INHERITED, ("tests/test_x.py::TestOurs::test_high",), ("tests/test_x.py::TestCase::test_low",)),
    "hypothesis": (LATEST, HYPOTHESIS, F2P, P2P),
    "pytest-mock": (LATEST, MOCKED, F2P, P2P),
    "pytest-timeout": (LATEST, TIMED, F2P, P2P),
}


@pytest.mark.parametrize("name", some(TABLE, *(name for name, row in TABLE.items() if not row[0])))
def test_a_right_fix_resolves_and_no_other(name: str, tmp_path: Path, unsafe: Settings) -> None:
    requirements, text, fail, keep = TABLE[name]
    files = {"calc/__init__.py": "", "calc/ops.py": calc.OPS, "calc/testing.py": LIBRARY, "tests/test_x.py": text}
    venv = str(environment(requirements)) if requirements else ""  # pytest alone is at hand
    row = calc.row(FAIL_TO_PASS=list(fail), PASS_TO_PASS=list(keep))
    found = load(calc.write(tmp_path, [row], files=files, venv=venv))
    where, task = prepare(found.repository), found.tasks[0]
    gold = grade(where, task, gold_patch(where, task), unsafe)
    assert (gold.outcome, gold.reason) == ("resolved", "")
    other = calc.BUGGY.replace("return low\n    return x", "return min(x, high)\n    return x")
    assert other != calc.BUGGY
    right = grade(where, task, calc.change(calc.BUGGY, other), unsafe)
    assert right.outcome == "resolved"
    assert ("hardly show the bug" in right.reason) == (name == "inherited")
    nothing = grade(where, task, calc.change(calc.BUGGY, calc.BUGGY + "# nothing\n"), unsafe)
    assert nothing.outcome == "unresolved"
    assert fail[0] in nothing.reason


def environment(requirements: list[str]) -> Path:
    """Return a virtual environment with these packages, from the package index."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"), "install", "-q"]
        done = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    return once(f"plugins {' '.join(requirements)}", make) / "venv"
