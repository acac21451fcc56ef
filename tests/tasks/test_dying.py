"""Test files that end pytest's own process are left out, aloud; too many, and who kills from outside, are not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.rollouts import calc
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.rollouts import sandbox as sandboxes
from valve_plugin.rollouts.testrun import TestRun
from valve_plugin.tasks import dying, follow, make
from valve_plugin.tasks.repository import prepare, read

AGAIN = "valve tasks generate --n 5"
DIES = {
    "tests/test_a[1].py": "import os, signal\n\n\ndef test_fine():\n    pass\n\n\ndef test_it():\n"
    "    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "tests/test_b.py": "import os\n\nos._exit(0)\n",
}


@pytest.mark.timeout(100)
def test_files_that_end_the_process_are_left_out_of_the_set(tmp_path: Path, data_dir: Path) -> None:
    said: list[str] = []
    repository = read(calc.write(tmp_path, files={**calc.FILES, **DIES}) / "repository.toml")
    sandbox, out = sandboxes.choose(Settings(unsafe_local=True)), tmp_path / "out"
    prepared, ground = make.survey(out, repository, "valve tasks generate", sandbox, said.append, again=AGAIN)
    assert [line for line in said if "ends the process" in line] == [
        "tests/test_b.py ends the process (exit code 0): left out; running the others",
        "tests/test_a[1].py ends the process (signal 11): left out; running the others",
    ]
    assert "tests/test_ops.py::TestClamp::test_high" in ground.suite
    assert not [test for test in ground.suite if test.startswith(("tests/test_a", "tests/test_b"))]
    assert dying.left_out(prepared.repository) == ["tests/test_b.py", "tests/test_a[1].py"]
    # Who repeats the command goes on with what is written down, and runs nothing.
    kept = read(out / "repository.toml")
    assert kept == prepared.repository
    assert make.survey(out, kept, "valve tasks generate", sandbox, said.append, again=AGAIN) == (prepared, ground)


@pytest.mark.timeout(100)
def test_a_file_at_the_top_is_left_out_although_it_is_a_test_root(tmp_path: Path, data_dir: Path) -> None:
    files = {"test_a.py": "import os\n\n\ndef test_it():\n    os.abort()\n", "test_b.py": "def test_it():\n    pass\n"}
    repository = read(calc.write(tmp_path, files=files) / "repository.toml")
    repository = replace(repository, test_roots=("test_a.py", "test_b.py"))
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    prepared, ground = make.survey(tmp_path / "out", repository, "x", sandbox, lambda _: None, again=AGAIN)
    assert (prepared.repository.whole, ground.suite) == (("test_b.py",), ("test_b.py::test_it",))
    assert replace(prepared.repository, test_roots=("test_a.py",)).whole == ("test_a.py",)  # not all of it


def test_more_than_three_are_named_with_the_command_to_repeat(tmp_path: Path) -> None:
    repository = read(calc.write(tmp_path) / "repository.toml")
    for name in "abc":
        repository = dying.without(repository, dying.DiedError("", f"tests/test {name}.py", "signal 6"), AGAIN)
    with pytest.raises(TaskError) as caught:
        dying.without(repository, dying.DiedError("", "tests/d.py", "signal 6"), AGAIN)
    named = "--ignore 'tests/test a.py' --ignore 'tests/test b.py' --ignore 'tests/test c.py' --ignore tests/d.py"
    assert f"`{AGAIN} {named}` leaves these out" in str(caught.value)
    with pytest.raises(TaskError, match="more than 3"):  # it would never end
        dying.without(repository, dying.DiedError("", "tests/test a.py", "signal 6"), AGAIN)


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
    where = prepare(read(calc.write(tmp_path) / "repository.toml"))
    following = follow.Following(lambda _: None).run("first run")
    following.place = place
    found = dying.error(where, TestRun(tests={}, trouble="it ended", died=died), following)
    assert (found.file if isinstance(found, dying.DiedError) else "") == file
    assert "it ended" in str(found)
