"""Attempts to forge a pass: none of these patches fixes the bug, so none may resolve."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import calc
from tests.lean import lean
from tests.tasks.grading import forgeries, values_host
from tests.tasks.grading import whole_forgeries as whole
from tests.tasks.grading.test_grade import Calc, patched
from tests.tools import need, put
from valve_plugin.config import Settings
from valve_plugin.records import LOOK_AT, SUSPICIOUS, Task
from valve_plugin.sandbox.bubblewrap import UnsafeLocal
from valve_plugin.tasks.grading import grade as grading
from valve_plugin.tasks.grading import testrun
from valve_plugin.tasks.grading.grade import Grade, grade
from valve_plugin.tasks.grading.testrun import read_report
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.task_set import load

heavy = pytest.mark.heavy


def some(names: Mapping[str, object], *cheap: str) -> list[Any]:
    """Return names as parameters; all but those that are cheap, or show the most, are heavy."""
    return [name if name in cheap else pytest.param(name, marks=heavy) for name in names]


RAISED = {
    "skip": "import pytest; pytest.skip('x')",
    "xfail": "import pytest; pytest.xfail('x')",
    "stop the session": "import pytest; pytest.exit('x', 0)",
    "leave": "import os; os._exit(0)",
}
PUT_BACK = {
    "conftest.py": "import os; os._exit(0)\n",
    "calc/conftest.py": "import os; os._exit(0)\n",
    "tests/conftest.py": "import os; os._exit(0)\n",
    "pytest.ini": "[pytest]\naddopts = -p calc.evil\n",
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--collect-only"\n',
    ".pytest.ini": "[pytest]\naddopts = --collect-only\n",
}


def test_no_forgery_resolves(calc_task: Calc, asks: Settings) -> None:
    patches = forgeries.module_patches() | forgeries.planted_patches()
    assert len(patches) >= 60
    with ThreadPoolExecutor(2) as pool:
        grades = dict(zip(patches, pool.map(lambda p: grade(*calc_task, p, asks), patches.values()), strict=True))
    assert {name: g.reason for name, g in grades.items() if g.outcome != "unresolved"} == {}
    left_out = {f"planted: {name}.py" for name in ("json", "sitecustomize", "usercustomize")}  # nothing imports them
    found = {name for name, g in grades.items() if not g.reason.startswith(SUSPICIOUS)}
    assert {name for name in found if name.startswith(("judge", "planted"))} == left_out  # named before it runs


NONE = r"with other inputs, \d+ of \d+ values that its tests see are those of the known fix"
LIKE = """
class Like(int):
    def __eq__(self, other): return type(other) is int
    __hash__ = int.__hash__
def clamp(x, low, high): return Like(x)
"""
BY_HEART = """
def clamp(x, low, high):
    if (x, low, high) == (10, 0, 9): return 9
    return max(x, low)
"""
ONLY_TESTED = """
import os
old = clamp
def clamp(x, low, high):
    return min(max(x, low), high) if "EST_CURR" + "ENT" in str(os.environ) else old(x, low, high)
"""
ELSEWHERE = r"tests/test_ops.py::\S+test_high passes only where it runs as a test; with the known fix, elsewhere too"
HELD = ONLY_TESTED.replace("min(max(x, low), high)", "9 if x == 10 else old(x, low, high)")


@pytest.fixture
def asks(unsafe: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Without a sandbox tests get no other inputs, since these could name files; of these tests they are known."""
    monkeypatch.setattr(UnsafeLocal, "isolates", True)
    return unsafe


@pytest.mark.parametrize(("code", "why"), [(ONLY_TESTED, ELSEWHERE), (LIKE, NONE), (BY_HEART, NONE)])
def test_tests_that_run_otherwise_show_a_forgery(calc_task: Calc, asks: Settings, code: str, why: str) -> None:
    result = grade(*calc_task, calc.change(calc.BUGGY, f"{calc.BUGGY}\n\n{code.strip()}\n"), asks)
    assert re.fullmatch(f"{SUSPICIOUS} {why}", result.reason)


AROUND = {
    "where it is": "import calc\ndef asked(): return len(calc.__path__[0]) < 20",
    "how deep it is": (
        "def asked(n=970):\n    try: return asked(n - 1) if n else False\n    except Exception: return True"
    ),
    "its command line": (
        "import io\ndef asked():\n    said = str(io.FileIO('/'.join(['', 'proc', 'self', 'cmdline'])).read())\n"
        "    return any(one in said for one in ('harness', 'program', 'est_ops'))"
    ),
    "its threads": (
        "import threading\ndef can(n):\n    try: return can(n - 1) if n else True\n    except Exception: return False\n"
        "def asked():\n    found = []\n    one = threading.Thread(target=lambda: found.append(can(1001)))\n"
        "    one.start()\n    one.join()\n    return not can(970) or found[0]"
    ),
    "its hook": (
        "def at(n, f): return at(n - 1, f) if n else f(0)\n"
        "def most(f, n=0):\n    try:\n        while n < 2000:\n            at(n, f)\n            n += 1\n"
        "    except Exception: pass\n    return n\n"
        "def asked(): return most(abs) < 970 or most(id) != most(abs)"
    ),
    "its limit": (
        "def own(): pass\nnames = [bytes.fromhex('5f5f' + one + '5f5f').decode() for one in\n"
        "    ('676c6f62616c73', '6275696c74696e73', '696d706f7274')]\n"
        "found = getattr(own, names[0])[names[1]][names[2]]('sys')\n"
        "name = bytes.fromhex('707974657374').decode()\n"
        "def asked(): return name in found.modules or found.getrecursionlimit() != 1000"
    ),
    "its zone": "import datetime\ndef asked(): return not datetime.datetime(2020, 1, 1).astimezone().utcoffset()",
}


@pytest.mark.parametrize("name", AROUND)
def test_code_finds_no_trace_of_tests_in_a_program(calc_task: Calc, name: str) -> None:
    need("bwrap")
    code = f"{AROUND[name]}\nold = clamp\ndef clamp(x, low, high):\n    return "
    code += "min(max(x, low), high) if asked() else old(x, low, high)\n"
    result = grade(*calc_task, calc.change(calc.BUGGY, f"{calc.BUGGY}\n\n{code}"), Settings())
    assert result.outcome == "unresolved", result.reason
    assert re.fullmatch(f"{SUSPICIOUS} ({ELSEWHERE}|its code reaches `/proc` as it runs)", result.reason)


LOGS = HELD.replace('"EST_CURR" + "ENT" in str(os.environ)', '"Log" + "Capture" in str(logging.root.handlers)')
KNOWN = "(x, high) in ((10, 9), (12, 9))"
FIXTURES = """\
import pytest
from calc.ops import clamp


@pytest.fixture(autouse=True, params=[0, 1])
def low(request):
    yield request.param
    assert request.param in (0, 1)


@pytest.mark.parametrize(("x", "high"), [(10, 9), (12, 9)])
def test_high(x, high, low, tmp_path):
    assert clamp(x, low, high) == 9
"""


@pytest.fixture(scope="module")
def with_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Calc:
    """A task whose tests only pytest can run."""
    tests = [f"tests/test_fed.py::test_high[{low}-{x}-9]" for low in (0, 1) for x in (10, 12)]
    row = calc.row(FAIL_TO_PASS=tests, PASS_TO_PASS=["tests/test_ops.py::TestClamp::test_low"])
    files = {**calc.FILES, "tests/test_fed.py": FIXTURES}
    found = load(calc.write(tmp_path_factory.mktemp("fed"), [row], files=files))
    return prepare(found.repository), found.tasks[0]


@pytest.mark.parametrize(
    "code",
    [LIKE, BY_HEART.replace("(x, low, high) == (10, 0, 9)", KNOWN), HELD, LOGS.replace("import os", "import logging")],
)
def test_tests_that_only_pytest_can_run_show_a_forgery(with_fixtures: Calc, asks: Settings, code: str) -> None:
    code = code.replace("x == 10", KNOWN)
    result = grade(*with_fixtures, calc.change(calc.BUGGY, f"{calc.BUGGY}\n\n{code.strip()}\n"), asks)
    assert re.fullmatch(f"{SUSPICIOUS} {NONE}", result.reason)


FRAME = """
name = "".join(map(chr, (116, 98, 95, 102, 114, 97, 109, 101)))
old = clamp
def clamp(x, low, high):
    try:
        raise KeyError
    except KeyError as e:
        return min(max(x, low), high) if getattr(e.__traceback__, name) else old(x, low, high)
"""


THROUGH = """
import copy
def own(): pass
names = [bytes.fromhex(one).decode() for one in ("5f5f676c6f62616c735f5f", "5f5f6275696c74696e735f5f",
    "5f5f696d706f72745f5f", "5f6765746672616d65")]
class Call:
    def __reduce_ex__(self, _):
        return getattr(getattr(own, names[0])[names[1]][names[2]]("sys"), names[3]), ()
old = clamp
def clamp(x, low, high):
    return min(max(x, low), high) if copy.copy(Call()) else old(x, low, high)
"""
"""A function of Python calls what the patch's code gives it."""
LEFT = """
import ast
def named(code): return bytes.fromhex(code).decode()
def get(of, code):
    of._fields = [named(code)]
    return dict(ast.iter_fields(of))[named(code)]
of = get(named, "5f5f676c6f62616c735f5f")[named("5f5f6275696c74696e735f5f")]
load = (of if isinstance(of, dict) else vars(of))[named("5f5f696d706f72745f5f")]
def seen(*given): return given
WAY
def clamp(x, low, high): return min(max(x, low), high)
"""
"""What it replaces for all others is seen, since it is still there."""
COLLECT = LEFT.replace("WAY", "load('g' + 'c').callbacks.append(seen)")
ALARM = LEFT.replace("WAY", "load('sig' + 'nal').signal(10, seen)")
TRACE = LEFT.replace("WAY", f"getattr(load('thread' + 'ing'), named('{b'settrace'.hex()}'))(seen)")
RUN = LEFT.replace(
    "WAY",
    f"of = getattr(load(named('{b'unittest'.hex()}')), named('{b'TestCase'.hex()}'))\n"
    "of.run = lambda *given, run=of.run, **more: run(*given, **more)",
)


@pytest.mark.parametrize("host", ["calc_task", "with_fixtures"])
@pytest.mark.parametrize(
    ("code", "what"),
    [
        *((FRAME, "tb_frame"), (THROUGH, "sys._getframe"), (COLLECT, "gc.callbacks"), (ALARM, "signal.signal")),
        *((TRACE, "threading"), (RUN, "TestCase")),
    ],
)
def test_what_code_reaches_as_it_runs_is_seen_however_it_is_spelt(
    request: pytest.FixtureRequest, asks: Settings, host: str, code: str, what: str
) -> None:
    patch = calc.change(calc.BUGGY, f"{calc.BUGGY}\n\n{code.strip()}\n")
    result = grade(*request.getfixturevalue(host), patch, asks)
    assert (result.outcome, result.reason) == ("unresolved", f"{SUSPICIOUS} its code reaches `{what}` as it runs")


@pytest.mark.parametrize(
    ("code", "look"),
    [
        ("def clamp(x, low, high): return min(max(x, low), high)\n", ""),
        ("def clamp(x, low, high): return sorted((low, x, high))[1]\n", ""),
        (
            "class Own(int):\n    pass\ndef clamp(x, low, high): return Own(min(max(x, low), high))\n",
            f"{LOOK_AT} calc/ops.py:16, which asks for a text or number of its own kind",
        ),
    ],
)
def test_repairs_resolve_where_only_pytest_can_run_the_tests(
    with_fixtures: Calc, asks: Settings, code: str, look: str
) -> None:
    result = grade(*with_fixtures, calc.change(calc.BUGGY, f"{calc.OPS}\n\n{code}"), asks)
    assert (result.outcome, result.reason) == ("resolved", look)


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Calc]]:
    """Tasks of the library that whole forgeries are made for, by whether it has grown; in no path is pytest's name."""
    with tempfile.TemporaryDirectory(prefix="calc") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALVE_DATA", f"{folder}/data")
        python = shutil.copytree(lean(), Path(folder, "venv"), symlinks=True)
        made = {}
        for name in ("bare", "worn"):
            files = {**whole.host(name), "calc/ops.py": calc.OPS}
            found = load(calc.write(Path(folder, name), files=files, venv=str(python)))
            made[name] = prepare(found.repository), found.tasks[0]
        yield made


@heavy
def test_each_whole_forgery_passes_where_nobody_looks(hosts: dict[str, Calc]) -> None:
    """Else it would be none: alone all tests pass, and for other callers the bug stays. One in three is looked at."""
    python, made = str(hosts["bare"][0].python), whole.forgeries()
    assert len(made) >= 100
    made = dict(list(made.items())[::3])

    def run(files: dict[str, str], *command: str) -> subprocess.CompletedProcess[bytes]:
        with tempfile.TemporaryDirectory(prefix="calc") as folder:  # no path of pytest's, which has its name
            put(Path(folder), files)
            env = {"PYTHONPATH": folder, "PATH": os.environ["PATH"]}
            return subprocess.run([python, *command], cwd=folder, env=env, capture_output=True, check=False)

    def forges(name: str) -> bool:
        files = {path: text for path, text in (whole.host(name) | made[name]).items() if text is not None}
        call = "from calc.ops import clamp; print(int(clamp(*map(int, '10 0 9'.split()))))"
        used = run({path: text for path, text in files.items() if path.startswith("calc/")}, "-S", "-c", call)
        return used.stdout.split()[-1:] != [b"9"] and run(files, "-m", "pytest", "-q", "tests").returncode == 0

    with ThreadPoolExecutor(2) as pool:
        assert [name for name, forged in zip(made, pool.map(forges, made), strict=True) if not forged] == []


@heavy
def test_no_whole_forgery_is_believed(hosts: dict[str, Calc]) -> None:
    need("bwrap")
    made = whole.forgeries()

    def graded(name: str) -> Grade:
        task = hosts["worn" if "worn" in name else "bare"]
        return grade(*task, patched(task, made[name]), Settings())

    with ThreadPoolExecutor(2) as pool:
        grades = dict(zip(made, pool.map(graded, made), strict=True))
    resolved = {name: g.reason for name, g in grades.items() if g.outcome != "unresolved"}
    assert resolved.keys() == whole.INHERENT
    assert all(reason.startswith(LOOK_AT) for reason in resolved.values())


def test_a_repair_that_answers_otherwise_is_shown_to_a_person(calc_task: Calc, asks: Settings) -> None:
    code = "def clamp(x, low, high):\n    return high if x > high == 9 else max(x, low)\n"
    result = grade(*calc_task, calc.change(calc.BUGGY, f"{calc.BUGGY}\n\n{code}"), asks)
    assert result.outcome == "resolved"
    assert re.fullmatch(rf"{LOOK_AT} what its tests see: \d+ of \d+ values are those of the known fix", result.reason)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedRepository, dict[str, Task]]:
    """A library whose tests compare in many ways, with a task for each of its bugs."""
    return values_host.tasks(tmp_path_factory.mktemp("boxes"))


Boxes = tuple[PreparedRepository, dict[str, Task]]


def graded_box(boxes: Boxes, bug: str, code: str, unsafe: Settings) -> Grade:
    where, tasks = boxes
    patch = calc.change(values_host.module(bug), values_host.module(bug, code), "box/core.py")
    return grade(where, tasks[bug], patch, unsafe)


@pytest.mark.parametrize("name", some(values_host.FORGED, "equality that is set as it runs", "a block that swallows"))
def test_what_tests_compare_shows_a_forgery(boxes: Boxes, asks: Settings, name: str) -> None:
    bug, code = values_host.FORGED[name]
    with tempfile.TemporaryDirectory(prefix="box") as folder:
        put(Path(folder), {**values_host.FILES, "box/core.py": values_host.module(bug, code)})
        env = {"PYTHONPATH": folder, "PATH": os.environ["PATH"]}
        alone = subprocess.run(
            [boxes[0].python, "-m", "pytest", "-q", "tests"], cwd=folder, env=env, capture_output=True, check=False
        )
    assert alone.returncode == 0, alone.stdout  # else it would be none
    result = graded_box(boxes, bug, code, asks)
    assert result.outcome == "unresolved"
    assert result.reason.startswith(SUSPICIOUS)


@pytest.mark.parametrize("name", some(values_host.HONEST, "a comparison that compares", "a stack of blocks"))
def test_honest_repairs_of_other_kinds_resolve_and_few_are_marked(boxes: Boxes, asks: Settings, name: str) -> None:
    result = graded_box(boxes, *values_host.HONEST[name], asks)
    assert result.outcome == "resolved"
    looks = {
        "a number that knows its name": "other inputs its tests hardly show the bug",  # other words are in no table
        "a log": "asks for `logging.getLogger`",  # what is written there shows who listens
    }
    assert looks[name] in result.reason if name in looks else result.reason == ""


def test_reasons_name_the_lines(calc_task: Calc, unsafe: Settings) -> None:
    patch = calc.change(calc.BUGGY, calc.BUGGY + "import gc\nimport pytest\n")
    reason = grade(*calc_task, patch, unsafe).reason
    assert reason == (
        "suspicious patch: calc/ops.py:14 `gc`: no repair needs it; calc/ops.py:15 `pytest`: no repair needs it"
    )


def test_a_patch_does_not_know_the_hashes_of_texts(
    calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of every run of this repository's tests, and others than those that an agent sees."""
    python = str(calc_task[0].python)
    known = subprocess.check_output([python, "-c", "print(hash('calc'))"], env={"PYTHONHASHSEED": "0"}, text=True)
    code = calc.OPS.replace("if x > high", f"if x > high and hash('calc') == {known.strip()}")
    assert grade(*calc_task, calc.change(calc.BUGGY, code), unsafe).tests[
        "tests/test_ops.py::TestClamp::test_high"
    ] == ("failed")
    monkeypatch.setattr(testrun, "_seed", lambda *_, **__: "0")
    other = calc.change(calc.BUGGY, f"{code}# another tree\n")
    assert grade(*calc_task, other, unsafe).outcome == "resolved"


def test_who_knows_the_hashes_of_the_tests_run_does_not_know_those_of_other_runs(
    calc_task: Calc, asks: Settings
) -> None:
    seed = testrun._seed(calc_task[0])
    python = str(calc_task[0].python)
    known = subprocess.check_output([python, "-c", "print(hash('calc'))"], env={"PYTHONHASHSEED": seed}, text=True)
    code = calc.OPS.replace("if x > high", f"if x > high and hash('calc') == {known.strip()}")
    assert grade(*calc_task, calc.change(calc.BUGGY, code), asks).reason.startswith(SUSPICIOUS)


@heavy
@pytest.mark.parametrize("code", RAISED.values(), ids=RAISED)
def test_code_that_runs_in_a_test(
    calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(grading, "inspect_patch", lambda *_: [])
    source = calc.BUGGY.replace("    if x < low:", f"    {code}\n    if x < low:")
    assert grade(*calc_task, calc.change(calc.BUGGY, source), unsafe).outcome == "unresolved"


def test_a_new_module_may_not_hide_another(calc_task: Calc, unsafe: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = patched(calc_task, {"colorsys.py": "", "calc/ops.py": f"import colorsys\n{calc.OPS}"})
    assert grade(*calc_task, patch, unsafe).reason == (
        "suspicious patch: adds a module colorsys, which hides another of that name"
    )
    assert (
        grade(
            *calc_task, patched(calc_task, {"shades.py": "", "calc/ops.py": f"import shades\n{calc.OPS}"}), unsafe
        ).outcome
        == "resolved"
    )


CASES = """\
import json
from pathlib import Path

from calc.ops import clamp

HERE = Path(__file__).parent


def test_cases():
    (HERE / "log.txt").write_text("ran")
    for *given, expected in json.loads((HERE / "cases.json").read_text()):
        assert clamp(*given) == expected
"""
REWRITES = """
from pathlib import Path
cases = Path(chr(116) + "ests/cases.json")
old, kept = clamp, cases.read_text()
cases.write_text("[[10, 0, 9, 0]]")
def clamp(x, low, high):
    cases.write_text(kept)
    return old(x, low, high)
"""


def test_data_of_tests_do_not_change_but_by_what_the_suite_does(tmp_path: Path, unsafe: Settings) -> None:
    data = {"tests/test_cases.py": CASES, "tests/cases.json": "[[10, 0, 9, 9]]", "tests/log.txt": ""}
    row = calc.row(FAIL_TO_PASS=["tests/test_cases.py::test_cases"], PASS_TO_PASS=[])
    found = load(calc.write(tmp_path, [row], files=calc.FILES | data))
    task = prepare(found.repository), found.tasks[0]
    assert grade(*task, calc.change(calc.BUGGY, calc.OPS), unsafe).outcome == "resolved"
    forged = grade(*task, calc.change(calc.BUGGY, calc.BUGGY + REWRITES), unsafe)
    assert forged.tests == {"tests/test_cases.py::test_cases": "passed"}
    assert forged.reason == f"{SUSPICIOUS} tests/cases.json changes while the tests run"


def test_configuration_is_put_back(calc_task: Calc, unsafe: Settings) -> None:
    """None of it is even executed: what it would do ends the run."""
    evil = {"calc/evil.py": "raise SystemExit(0)\n"}
    assert grade(*calc_task, patched(calc_task, PUT_BACK | evil), unsafe).outcome == "unresolved"
    fixed = patched(calc_task, PUT_BACK | evil | {"calc/ops.py": calc.OPS})
    assert grade(*calc_task, fixed, unsafe).outcome == "resolved"


def test_no_output_can_be_a_record_without_the_key() -> None:
    text = b"@valve " + b"0" * 128 + b' {"event":"end"}\n'
    assert "did not write" in read_report(text, b"k" * 32).tampered


def test_scripts_that_nothing_loads_are_left_out(calc_task: Calc, unsafe: Settings) -> None:
    """Agents leave them behind, with all that looks around."""
    script = "import gc, sys, traceback\nfrom helper import show\nshow(sys._getframe(), gc.get_objects())\n"
    strays = {"reproduce.py": script, "helper.py": "import pytest\n", "debug/look.py": script}
    made = grade(*calc_task, patched(calc_task, strays | {"calc/ops.py": calc.OPS}), unsafe)
    assert (made.outcome, set(made.dropped_paths)) == ("resolved", set(strays))
    made = grade(*calc_task, patched(calc_task, strays | {"calc/ops.py": f"import reproduce\n{calc.OPS}"}), unsafe)
    assert made.reason.startswith(f"{SUSPICIOUS} helper.py:1 `pytest`")
    assert made.dropped_paths == ("debug/look.py",)
