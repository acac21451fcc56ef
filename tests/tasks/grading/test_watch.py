"""Watchers of test runs: what they report, which runs they end, and which files they leave out."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from tests.tasks.make.test_generate import candidate
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.sandbox import bubblewrap as sandboxes
from valve_plugin.sandbox import supervisor
from valve_plugin.sandbox.supervisor import ProcessLimits, Sample
from valve_plugin.tasks.grading import watch
from valve_plugin.tasks.grading.testrun import TestRun, run_tests
from valve_plugin.tasks.grading.watch import CandidateSandbox, FailureWatch, Watch, WatchGroup
from valve_plugin.tasks.make import generate
from valve_plugin.tasks.make.generate import stable_suite, try_candidate
from valve_plugin.tasks.repository import PreparedRepository, prepare, read_definition
from valve_plugin.tasks.states import open_commit

COMMAND = "valve tasks generate --n 5"


def progress(**record: object) -> bytes:
    return b"\n@valve-now " + json.dumps(record).encode() + b"\n"


class Script:
    """Feeds a watcher made-up samples, one for each second."""

    def __init__(self, **options: object) -> None:
        self.said: list[str] = []
        self.wall = self.idle = 0.0
        self.group = WatchGroup(self.said.append, **options)  # type: ignore[arg-type]
        self.watch = self.group.run("first run")

    def __call__(self, seconds: int, output: bytes = b"", *, idle: bool = False, line: str = "") -> None:
        for second in range(seconds):
            sample = Sample(output if second == 0 else b"", 1.0, lambda: line, self.wall, self.idle)
            self.watch(sample)
            self.wall += 1
            self.idle = self.idle + 1 if idle else 0.0


def prepared(tmp_path: Path, files: dict[str, str] = calc.FILES) -> PreparedRepository:
    return prepare(read_definition(calc.write(tmp_path, files=files) / "repository.toml"))


def test_progress_and_the_time_that_is_left() -> None:
    script = Script()
    script(31, progress(collect="tests/test_a.py"))
    script(30, progress(tests=4) + progress(test="tests/test_a.py::test_1") + progress(ended=True))
    script(30, progress(ended=True))
    assert script.said == [
        "first run: collecting tests/test_a.py, 0:30",
        "first run: 1 of 4 tests ended, 1:00, about 3:00 left",
        "first run: 2 of 4 tests ended, 1:30, about 1:30 left",
    ]


def test_a_run_that_waits_is_reported_and_ended() -> None:
    script = Script(command=COMMAND, gives_up=True)
    script(10, progress(tests=2) + progress(test="tests/test a.py::test_\x1b[31m\u202eb") + progress(ended=True))
    with pytest.raises(TaskError) as caught:
        script(400, idle=True, line="\x07retrying in 3 seconds...")
    waits = [said for said in script.said if "no CPU time used for" in said]
    assert [said.split("used for ")[1][:4] for said in waits] == ["1:00", "2:00", "4:00"]
    assert "waiting in tests/test a.py::test_ [31m b; the last line it printed: retrying in 3 seconds..." in waits[0]
    advice = f"`{COMMAND} --ignore 'tests/test a.py'` ignores the file"
    assert len([said for said in script.said if advice in said]) == 1
    assert "waited 300 s in tests/test a.py::test_" in str(caught.value)
    assert "1 test had ended" in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize("gives_up", [False, True])
def test_tests_that_end_and_cpu_time_keep_a_run_going(gives_up: bool) -> None:
    script = Script(gives_up=gives_up)
    for _ in range(40):
        script(50, progress(test="t.py::t") + progress(ended=True), idle=True)  # each test waits
    script(2000)  # it computes, or waits for a busy machine
    assert not any("no CPU time" in said for said in script.said)
    assert len(script.said) in range(125, 134)


def test_a_run_that_may_not_be_ended_waits() -> None:
    script = Script()
    script(2000, progress(collect="t.py"), idle=True)
    assert any("waiting while t.py is collected" in said for said in script.said)
    assert len([said for said in script.said if "--ignore t.py` ignores the file" in said]) == 1


CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.builds(lambda name: progress(test=name), st.text(max_size=300)),
        st.builds(lambda name: progress(collect=name), st.text()),
        st.builds(lambda n: progress(tests=n), st.integers()),
        st.just(progress(ended=True)),
        st.sampled_from(
            [b"\n@valve-now {}\n", b"\n@valve-now {\n", b'\n@valve-now {"test":1}\n', b"@valve-now " * 999]
        ),
    )
)


@given(CHUNKS, st.lists(st.integers(min_value=1, max_value=100), min_size=1))
def test_whatever_a_suite_prints_and_wherever_it_is_cut(chunks: list[bytes], cuts: list[int]) -> None:
    def read(parts: list[bytes]) -> tuple[object, ...]:
        run = WatchGroup(lambda _: None).run("first run")
        for part in parts:
            run.read(part)
            assert len(run._lines._rest) <= watch._LONGEST_LINE
        assert len(run.place) <= watch._LONGEST_NAME
        assert run.place.isprintable()
        return run.place, run.tests, run.ended

    whole, pieces, at = b"".join(chunks) + b"\n", [], 0
    while at < len(whole):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(whole[at : at + size])
        at += size
    if len(max(whole.split(b"\n"), key=len)) < watch._LONGEST_LINE:
        assert read([whole]) == read(pieces)
    read(chunks)


@given(st.text())
def test_a_name_is_one_short_printable_line(text: str) -> None:
    shown = watch.clean_line(text)
    assert len(shown) <= 200
    assert shown.isprintable()
    assert watch.clean_line(shown) == shown


SLEEPS = """\
import time


def test_a():
    pass


def test_b():
    print("asked", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"tests/test_b.py": SLEEPS}, "in tests/test_b.py::test_b, using no CPU time; the last line it printed: ask"),
        (
            {"tests/test_a.py": "def test():\n    pass\n", "tests/test_b.py": "import time\n\ntime.sleep(60)\n"},
            "while tests/test_b.py is collected, using no CPU time; 0 tests had ended",
        ),
    ],
    ids=["a test", "a file"],
)
def test_a_real_suite_that_waits_is_ended(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], place: str
) -> None:
    monkeypatch.setattr(watch, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(watch, "HANG_SECONDS", 3.0)
    monkeypatch.setattr(supervisor, "_LOOK_AFTER_SECONDS", 0.0)
    said: list[str] = []
    repository = read_definition(calc.write(tmp_path, files=files) / "repository.toml")
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    with pytest.raises(TaskError) as caught:
        generate.survey(tmp_path / "out", repository, "valve tasks generate", sandbox, said.append, again=COMMAND)
    assert place in str(caught.value)
    assert f"{COMMAND} --ignore tests/test_b.py` ignores the file" in str(caught.value)
    assert any(line.startswith("first run: no CPU time used for 0:0") for line in said)
    assert not (tmp_path / "out").exists()


def test_a_watcher_changes_no_verdict(tmp_path: Path, data_dir: Path) -> None:
    """Not even where tests replace what the progress plugin uses."""
    hostile = {"tests/test_json.py": "import json, os\n\n\ndef test_it():\n    json.dumps = os.write = None\n"}
    where = prepared(tmp_path, {**calc.FILES, **hostile})
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    with open_commit(where, where.base) as workspace:  # as grading runs them
        alone = run_tests(sandbox, workspace, where, where.repository.test_roots, ProcessLimits()).tests
    group = WatchGroup(lambda _: None)
    suite, _ = stable_suite(where, sandbox, group)
    assert suite == sorted(test for test, outcome in alone.items() if outcome == "passed")
    assert [(run.tests, run.ended) for run in group.runs] == [(12, 12), (12, 12)]
    assert all(0 <= run.cpu_seconds < 60 for run in group.runs)  # 0: ended before its first sample


SUITE = frozenset(f"t{number}" for number in range(200))
RECORDS = st.builds(
    lambda number, outcome: f'{{"test":"t{number}","when":"call","outcome":"{outcome}","raised":false}}',
    st.integers(0, 250),  # some are not of the suite
    st.sampled_from(["passed", "failed", "failed", "skipped"]),
)


def broken(output: bytes, cuts: list[int]) -> str:
    """Return why the run is ended; empty: it is not."""
    watcher, start = FailureWatch(SUITE, lambda _: None), 0
    try:
        for end in [*sorted(cuts), len(output)]:
            watcher(Sample(output[start:end], 0.0, str))
            start = max(start, end)
    except watch.TooManyFailuresError as e:
        return str(e)
    return ""


@given(st.integers(150, 250), st.lists(RECORDS, max_size=60), st.lists(st.integers(0, 9000), max_size=9))
def test_only_lost_runs_are_ended_wherever_the_output_is_cut(collected: int, lines: list[str], cuts: list[int]) -> None:
    failed = {f"t{n}" for n in range(200) if any(f'"t{n}"' in line and '"failed"' in line for line in lines)}
    lost = max(0, 200 - collected)
    output = progress(tests=collected) + "".join(f"\n@valve {'0' * 128} {line}\n" for line in lines).encode()
    why = broken(output, cuts)
    assert why == broken(output, [])
    assert bool(why) == (lost + len(failed) > 20)
    if why:
        assert why == f"breaks more than a tenth: at least {max(21, lost)} of 200 tests"


@pytest.mark.parametrize(
    "line", [b"@valve {", b'\n@valve-now {"tests":"x"}\n', b'\n@valve-now {"tests":-9, "test": 3}\n', b"\xff" * 100_000]
)
def test_other_output_ends_nothing(line: bytes) -> None:
    assert broken(line * 30, []) == ""


@pytest.mark.parametrize(("few", "many", "suite"), [(4, 5, 8), (10, 11, 50), (20, 21, 200)])
def test_how_many_are_too_many(few: int, many: int, suite: int) -> None:
    assert watch.too_many_failures(few, suite) == ""
    assert f"{many} of {suite} tests" in watch.too_many_failures(many, suite)


LONG = """\
import time

import pytest

from calc.ops import add


@pytest.mark.parametrize("n", range(40))
def test_many(n):
    if n == 30 and add(1, 1) != 2:
        time.sleep(300)
    assert add(n, 1) == n + 1
"""


def test_a_real_run_ends_when_too_many_fail_or_are_not_collected(tmp_path: Path, data_dir: Path) -> None:
    where = prepared(tmp_path, {**calc.FILES, "tests/test_zmany.py": LONG})
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    suite, _ = stable_suite(where, sandbox)
    assert len(suite) == 48
    for source, least in ((calc.OPS.replace("a + b", "a - b"), 11), (calc.OPS.replace("def add", "def sum"), 46)):
        tried = try_candidate(where, suite, candidate("x", source), CandidateSandbox(sandbox, Event()), "x")
        assert tried.reason == f"breaks at least {least} of 48 tests"


def test_a_file_that_ends_the_process_is_named_with_the_command_to_repeat(tmp_path: Path, data_dir: Path) -> None:
    files = {**calc.FILES, "tests/test_b.py": "import os\n\nos._exit(0)\n"}
    repository = read_definition(calc.write(tmp_path, files=files) / "repository.toml")
    sandbox, out = sandboxes.choose(Settings(unsafe_local=True)), tmp_path / "out"
    with pytest.raises(TaskError, match=f"{COMMAND} --ignore tests/test_b.py"):
        generate.survey(out, repository, "valve tasks generate", sandbox, lambda _: None, again=COMMAND)


@pytest.mark.parametrize(
    ("died", "place", "file"),
    [
        (139, "tests/test_ops.py::test_high", "tests/test_ops.py"),
        (-signal.SIGABRT, "tests/test_ops.py::test_high", "tests/test_ops.py"),
        (3, "tests/test_ops.py::test_high", "tests/test_ops.py"),
        (128 + signal.SIGKILL, "tests/test_ops.py::test_high", ""),
        (None, "tests/test_ops.py::test_high", ""),
        (139, "tests/never_there.py::test_high", ""),
        (139, "", ""),
    ],
)
def test_only_files_of_the_tree_are_at_fault(
    tmp_path: Path, data_dir: Path, died: int | None, place: str, file: str
) -> None:
    run: Watch = WatchGroup(lambda _: None).run("first run")
    run.place = place
    found = watch.run_error(prepared(tmp_path), TestRun(tests={}, trouble="it ended", died=died), run)
    assert ("ends the process" in str(found)) == bool(file)
    assert f"--ignore {file}" in str(found) or not file
    assert "it ended" in str(found)
