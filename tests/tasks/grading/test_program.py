"""Tests that run as a program: the same answers, and nothing by which code could find out that it is under test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools import put
from valve_plugin.tasks.grading import testrun
from valve_plugin.tasks.grading.answers import VARIANTS, digest
from valve_plugin.tasks.grading.other_inputs import asking
from valve_plugin.tasks.grading.testrun import HarnessReport, read_report
from valve_plugin.tasks.grading.words import WORDS

KEY = b"k" * 32
TESTS = """\
import unittest
from unittest import mock

import pytest

from lib.core import look, twice
from tests.wanted import FOUR


def helper(x):
    return twice(x)


def test_twice():
    assert helper(2) == FOUR


def test_wrong():
    assert twice(2) == 5


@pytest.mark.parametrize("x, y", [(1, 2), pytest.param(2, 4, id="two")])
@pytest.mark.parametrize("z", [0, 1])
def test_pairs(x, y, z):
    assert twice(x) == y + 0 * z


@pytest.mark.parametrize(["x"], [(1,), (3,)])
def test_one(x):
    assert x in (1, 3)


@pytest.mark.parametrize("x", [1, 2])
def test_some(x):
    assert x == 1


def test_raises():
    with pytest.raises(TypeError):
        twice(None)


def test_fixture(tmp_path):
    assert tmp_path


async def test_async():
    assert twice(1) == 2


def test_leaves():
    raise SystemExit(0)


def test_sees_nothing():
    assert look() == []


class TestSetUp:
    def setup_method(self):
        self.x = 3

    def test_set_up(self):
        assert True


class TestPlain:
    x = 3

    def test_method(self):
        assert twice(self.x) == self.test_helper() == 6

    def test_helper(self):
        return 6


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.y = 1

    def setUp(self):
        self.x = self.y + 1

    def test_case(self):
        self.assertEqual(twice(self.x), 4)

    @mock.patch("lib.core.twice", return_value=7)
    def test_mocked(self, twice):
        self.assertEqual(twice(1), 7)

    def test_false(self):
        self.assertEqual(twice(self.x), 5)

    @unittest.skip("never")
    def test_skipped(self):
        pass


if __name__ == "__main__":
    unittest.main()
"""
CORE = """\
import importlib.util, logging, os, sys, warnings

held = "pytest" in sys.modules or "unittest" in sys.modules


def twice(x):
    return x * 2 if isinstance(x, int) else x + 1


def importable(name):
    try:
        return bool(importlib.util.find_spec(name))
    except ImportError:
        return False


def depth(n=0):
    try:
        return depth(n + 1)
    except RecursionError:
        return n


def look():
    frame, names = sys._getframe(), []
    while frame:
        names += [frame.f_code.co_name, os.path.basename(frame.f_code.co_filename)]
        frame = frame.f_back
    found = {
        "import": held,
        "modules": any(name.startswith(("pytest", "_pytest", "unittest")) for name in sys.modules),
        "environment": any("TEST" in name for name in os.environ),
        "arguments": any("test" in os.path.basename(one) for one in sys.argv),
        "stack": any("test" in name for name in names),
        "streams": sys.stdout is not sys.__stdout__,
        "handlers": logging.getLogger().handlers,
        "folder": os.path.exists("tests"),
        "functions": {"runs", "end_of", "outcomes", "_call"}.intersection(names),
        "scripts": {"answers.py", "signed.py", "program.py", "harness.py"}.intersection(names),
        "processes": "program.py" in open("/proc/self/cmdline").read(),
        "depth": not 980 < depth() < 1020,
        "tools": importable("pytest"),
    }
    return [name for name, seen in found.items() if seen]
"""
PASSES = {
    "test_twice", "test_pairs", "test_one", "test_raises", "test_sees_nothing", "test_async", "TestPlain::test_method",
    "Case::test_case", "Case::test_mocked",
}  # fmt: skip
FAILS = {
    "test_wrong", "test_some", "test_fixture", "test_leaves", "Case::test_false", "Case::test_skipped",
    "test_that_is_missing", "Missing::test_x", "TestSetUp::test_set_up",
}  # fmt: skip


def run(root: Path, file: str, names: set[str]) -> HarnessReport:
    """Return what is reported of tests of a file."""
    source = (root / file).read_bytes()
    plan = {
        "key": KEY.hex(), "hidden": [], "root": str(root), "paths": [str(root)], "packages": ["lib"],
        "files": {file: asking(source) or source.decode()}, "tests": [f"{file}::{name}" for name in sorted(names)],
        "variants": VARIANTS, "beside": [str(path) for path in testrun._BESIDE],
    }  # fmt: skip
    own = shutil.copyfile(testrun._PROGRAM, root.parent / "own.py")
    done = subprocess.run(
        [sys.executable, "-s", own], input=json.dumps(plan).encode(), capture_output=True, cwd=root,
        env={"HOME": str(root.parent), "PYTHONPATH": ""}, check=True,
    )  # fmt: skip
    report = read_report(done.stdout, KEY)
    assert (report.started, report.ended, report.tampered) == (True, True, "")
    return report


@pytest.mark.parametrize("package", [True, False])
def test_tests_as_a_program(tmp_path: Path, package: bool) -> None:
    root = tmp_path / "tree"
    marker = {"tests/__init__.py": ""} if package else {}
    put(root, {"lib/core.py": CORE, "lib/__init__.py": "", "tests/wanted.py": "FOUR = 4\n", **marker})
    put(root, {"tests/test_it.py": TESTS.replace("tests.wanted", ".wanted" if package else "wanted")})
    report = run(root, "tests/test_it.py", PASSES | FAILS)
    found = {test.partition("::")[2]: outcome for test, outcome in report.tests.items()}
    assert found == dict.fromkeys(PASSES, "passed") | dict.fromkeys(FAILS, "failed")
    runs = {
        test.partition("::")[2]: {key.partition(" ")[0] for key in answers} for test, answers in report.answers.items()
    }
    assert {name for name in runs if name.startswith("test_pairs")} == {f"test_pairs#{n}" for n in range(4)}
    assert runs["test_twice#0"] == runs["Case::test_case#0"] == {str(n) for n in range(VARIANTS + 1)}
    values = report.answers["tests/test_it.py::test_twice#0"]
    assert len({value for key, value in values.items() if key.endswith(" 0")}) > VARIANTS // 4, "other inputs"


@pytest.mark.parametrize("conftest", ["", "import pytest\n@pytest.fixture(autouse=True)\ndef fed(): pass\n"])
def test_tests_that_get_a_fixture_each_do_not_run(tmp_path: Path, conftest: str) -> None:
    root = tmp_path / "tree"
    put(root, {"tests/a/test_x.py": "def test_x(): pass\n", "conftest.py": conftest})
    found = run(root, "tests/a/test_x.py", {"test_x"}).tests
    assert found == ({} if conftest else {"tests/a/test_x.py::test_x": "passed"})


@pytest.mark.parametrize("text", ["def test_x(:", "import missing_module\ndef test_x(): pass\n", "raise SystemExit\n"])
def test_a_file_that_cannot_be_loaded_has_no_outcomes(tmp_path: Path, text: str) -> None:
    put(tmp_path / "tree", {"test_x.py": text})
    assert run(tmp_path / "tree", "test_x.py", {"test_x"}).tests == {}


@pytest.mark.parametrize(("start", "loads"), [
    ("import pytest", False),
    ("import pytest\nfrom pytest import raises", False),
    ("import pytest\nfrom pytest import raises, approx", True),
    ("import pytest\nfrom pytest import (\n    raises, mark\n)", False),
    ("import pytest\nx = pytest.raises, pytest.approx(1)", True),
    ("import pytest\nimport pytest as p", True),
    ("import pytest\nfrom helper import x", True),
])  # fmt: skip
def test_pytest_is_loaded_only_for_what_has_no_stand_in(tmp_path: Path, start: str, loads: bool) -> None:
    passes = {
        "raises": "with pytest.raises((KeyError, ValueError), match='^inv') as e:\n        int('x')\n"
        "    assert e.type is ValueError and isinstance(e.value, ValueError) and e.match('invalid')",
        "called": "assert isinstance(pytest.raises(ValueError, int, 'x', base=10).value, ValueError)",
        "loaded": f"assert LOADED is {loads}",
    }
    fails = {
        "nothing": "with pytest.raises(ValueError):\n        int('1')",
        "another": "with pytest.raises(KeyError):\n        int('x')",
        "text": "with pytest.raises(ValueError, match='another'):\n        int('x')",
    }
    body = "".join(f"def test_{name}():\n    {does}\n\n\n" for name, does in (passes | fails).items())
    marked = "@pytest.mark.one(x=1)\n@pytest.mark.two\nclass TestX:\n    @pytest.mark.three(2)\n"
    source = f"import sys\n{start}\nLOADED = '_pytest' in sys.modules\n\n\n{body}{marked}    def test_x(self): pass\n"
    helper = "import pytest\n@pytest.fixture\ndef x(): pass\n"
    put(tmp_path / "tree", {"test_x.py": source, "helper.py": helper})
    found = run(tmp_path / "tree", "test_x.py", {"TestX::test_x", *(f"test_{name}" for name in passes | fails)}).tests
    assert {test for test, outcome in found.items() if outcome == "passed"} == {
        "test_x.py::TestX::test_x", *(f"test_x.py::test_{name}" for name in passes),
    }  # fmt: skip


LOOKS = """\
import json, sys


def twice(x):
    frame, seen = sys._getframe(1), []
    while frame.f_back:
        code = frame.f_code
        held = [name for one in (code.co_varnames, code.co_cellvars, code.co_freevars) for name in one]
        seen.append([frame.f_globals["__name__"], code.co_name, code.co_filename, frame.f_lineno, held])
        frame = frame.f_back
    with open(SEEN, "a") as file:
        file.write(json.dumps([seen, sys.modules[seen[0][0]].__name__, sys.modules[seen[0][0]].__file__]) + "\\n")
    return x * 2
"""
CALLS = """\
import pytest

from lib.core import twice


class Case:
    def is_twice(self, number, wanted):
        found = twice(number)
        return [one for one in [number] if found == wanted]


def checked(number, wanted):
    assert Case().is_twice(number, wanted)


@pytest.mark.parametrize("given, expected", [(1, 2)])
def test_twice(given, expected):
    mine = {"a": lambda: expected}
    checked(given, expected)
    assert twice(given) == mine["a"]()
"""


def callers(root: Path) -> list[Any]:
    """Return what a tested function sees of its callers, each time that it is called."""
    put(root, {"lib/__init__.py": "", "lib/core.py": LOOKS.replace("SEEN", repr(str(root.parent / "seen")))})
    put(root, {"tests/test_it.py": CALLS})
    report = run(root, "tests/test_it.py", {"test_twice"})
    assert report.tests == {"tests/test_it.py::test_twice": "passed"}
    return [json.loads(line) for line in (root.parent / "seen").read_text().splitlines()]


FIXTURES = """\
import pytest

from lib.core import twice, when_made


@pytest.fixture
def four(tmp_path):
    mine = 4
    return mine


def test_twice(four):
    wanted = 8
    assert twice(four) == wanted


def test_made():
    assert not when_made.startswith("test")
"""


def test_under_pytest_callers_do_not_stay_the_same_either(tmp_path: Path) -> None:
    kinds, held = set[str](), []
    looks = LOOKS.replace("SEEN", repr(str(tmp_path / "seen"))).replace(
        "[seen,", "[sys.breakpointhook.__module__, seen,"
    )
    looks += "\n\ndef __getattr__(name):\n    return sys._getframe(1).f_globals['__name__']\n"
    for nth in range(3):
        (tmp_path / "seen").unlink(missing_ok=True)
        root = put(tmp_path / str(nth), {"lib/__init__.py": "", "lib/core.py": looks})
        file = "tests/test_it.py"
        put(root, {file: asking(FIXTURES.encode()) or ""})
        asked = [f"{file}::test_twice", f"{file}::test_made"]
        plan = {
            "key": KEY.hex(), "hidden": [f"{root}/{file}"], "root": str(root), "paths": [str(root)],
            "packages": ["lib"], "new": [], "asked": asked, "variants": VARIANTS, "progress": False,
            "arguments": ["-p", "no:cacheprovider", "--assert=plain", "--rootdir", str(root), *asked],
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-s", testrun._HARNESS], input=json.dumps(plan).encode(), capture_output=True, cwd=root,
            env={"HOME": str(tmp_path), "PYTHONPATH": ""}, check=True,
        )  # fmt: skip
        report = read_report(done.stdout, KEY)
        ends = {test: answers["0 end 0"] for test, answers in report.answers.items()}
        assert ends == dict.fromkeys(asked, digest(""))
        seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
        assert {hook for hook, *_ in seen} == {"sys"}
        kinds |= {kind(stack[0][0]) for _, stack, *_ in seen}
        assert all(
            path.startswith(str(tmp_path)) and path != f"{root}/{file}"
            for _, _, path in (one[1][0][:3] for one in seen)
        )
        held.append({name for _, stack, *_ in seen for *_, names in stack[:3] for name in names})
    assert kinds == {"main", "plain", "inside"}
    assert set.intersection(*held) <= {*WORDS, "four"}


def kind(name: str) -> str:
    return "main" if name == "__main__" else "inside" if "." in name else "plain"


DEEP = """\
import threading


def room(calls=0):
    try:
        return room(calls + 1)
    except RecursionError:
        return calls


def twice(x):
    beside = []
    one = threading.Thread(target=lambda: beside.append(room()))
    one.start()
    one.join()
    with open(SEEN, "a") as file:
        file.write(f"{room()} {beside[0]}\\n")
    return x * 2
"""


def test_what_tests_hand_on_is_named_as_if_it_stood_outside_of_them(tmp_path: Path) -> None:
    lib = "def name(x):\n    return f'{x.__qualname__} {x!r}'\n"
    test = "from lib import name\n\n\ndef test_one():\n    class One:\n        pass\n\n    def two(): pass\n"
    test += "    assert not [one for one in (One, two, lambda: 1, One()) if '<locals>' in repr(one)]\n"
    test += "    assert '<locals>' not in name(One) + name(two)\n"
    root = put(tmp_path / "tree", {"lib.py": lib, "test_x.py": test})
    assert run(root, "test_x.py", {"test_one"}).tests == {"test_x.py::test_one": "passed"}


def test_as_many_calls_are_left_as_in_a_script_or_somewhat_fewer(tmp_path: Path) -> None:
    lib = DEEP.replace("SEEN", repr(str(tmp_path / "seen")))
    test = "from lib import twice\n\n\ndef right(x):\n    return twice(x) == 2 * x\n\n\n"
    test += "def test_one():\n    assert twice(2) == 4\n\n\ndef test_two():\n    assert right(2) and twice(3) == 6\n"
    root = put(tmp_path / "tree", {"lib.py": lib, "test_x.py": test, "script.py": "import lib\nlib.twice(2)\n"})
    subprocess.run([sys.executable, "script.py"], cwd=root, check=True)
    script, thread = (tmp_path / "seen").read_text().split()
    assert run(root, "test_x.py", {"test_one", "test_two"}).tests
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()[1:]]
    # Python counts fewer calls of C once code has run.
    assert int(script) <= max(int(left) for left, _ in seen) <= int(script) + 1
    assert len({left for left, _ in seen}) > 5
    assert all(int(left) > int(script) - 60 for left, _ in seen)
    assert {abs(int(left) - int(thread)) for _, left in seen} <= {0, 1}


def test_nothing_of_the_callers_stays_the_same(tmp_path: Path) -> None:
    always, nearest = [], set[tuple[str, ...]]()
    for nth in range(4):
        root = put(tmp_path / str(nth) / "tree", {})
        found = callers(root)
        own_inputs = found[:6]
        assert {kind(stack[0][0]) for stack, *_ in own_inputs} == {"main", "plain", "inside"}
        assert {kind(stack[0][0]) for stack, *_ in found[6:]} == {"main", "plain", "inside"}
        assert all(stack[0][0] == by_name for stack, by_name, _ in found), "the module is found by its name"
        for stack, _, file in found:
            assert {path for _, _, path, _, _ in stack} == {file, str(root.parent / "own.py")}
            assert file.startswith(f"{root.parent}/")
            assert not any("expected" in Path(path).read_text() for _, _, path, _, _ in stack), "ordinary scripts"
        frames = [frame for stack, *_ in found for frame in stack]
        names = {name for *_, held in frames for name in held} | {name for _, name, *_ in frames}
        always.append(names | {f"{file}:{line}" for _, _, file, line, _ in frames})
        nearest |= {tuple(stack[0][4]) for stack, *_ in found}
    assert len(nearest) >= 2
    assert {stack[0][1] == "<module>" for stack, *_ in found} == {True, False}, "scripts call outside of functions"
    # Of methods, which other code may call by the names of their parameters, these stay.
    own = {"self", "number", "wanted", "is_twice", "checked", ".0", "<module>", "<lambda>", "<listcomp>"}
    assert set.intersection(*always) <= {*own, *WORDS}
    assert own.isdisjoint(WORDS)
