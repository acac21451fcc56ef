"""The shipped deepdiff tasks, for real: source archive, test environment, sandbox, grading. Minutes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.tools import need, until
from valve_plugin.config import Settings
from valve_plugin.paths import data_dir
from valve_plugin.sandbox.git import git
from valve_plugin.tasks.grading.grade import effective_tree, grade
from valve_plugin.tasks.repository import PreparedRepository, find_prepared, prepare
from valve_plugin.tasks.states import gold_patch, task_states
from valve_plugin.tasks.task_set import TaskSet, load

DEEPDIFF = Path(__file__).parents[3] / "examples" / "deepdiff"
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def deepdiff() -> tuple[TaskSet, PreparedRepository]:
    """The shipped tasks, prepared (half a minute, from the package index)."""
    need("bwrap")
    tasks = load(DEEPDIFF)
    return tasks, prepare(tasks.repository)


def test_preparing_again_makes_nothing_again(deepdiff: tuple[TaskSet, PreparedRepository]) -> None:
    made = {path: path.stat().st_mtime_ns for path in (deepdiff[1].store, deepdiff[1].venv)}
    assert prepare(deepdiff[0].repository) == deepdiff[1] == find_prepared("seperman/deepdiff")
    assert made == {path: path.stat().st_mtime_ns for path in made}


def test_every_gold_patch_restores_the_base_exactly(deepdiff: tuple[TaskSet, PreparedRepository]) -> None:
    """So what holds for the base (its suite passes) holds for every gold patch."""
    tasks, where = deepdiff
    base = git("rev-parse", f"{where.base}^{{tree}}", git_dir=where.store).decode().strip()
    for task in tasks.tasks:
        assert effective_tree(where, task_states(where, task), gold_patch(where, task)) == (base, ())


@pytest.mark.parametrize("number", [0, 13, 27])
def test_gold_resolves_and_the_untouched_bug_does_not(
    deepdiff: tuple[TaskSet, PreparedRepository], number: int
) -> None:
    tasks, where = deepdiff
    task = tasks.tasks[number]
    gold = grade(where, task, gold_patch(where, task), Settings())
    assert gold.outcome == "resolved", gold.reason
    assert set(task.fail_to_pass) | set(task.pass_to_pass) <= gold.tests.keys()
    comment = (
        "diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+# nothing\n"
    )
    useless = grade(where, task, comment, Settings())
    assert useless.outcome == "unresolved"
    assert "required tests do not pass" in useless.reason


def test_issue_texts_do_not_name_the_fix(deepdiff: tuple[TaskSet, PreparedRepository]) -> None:
    from valve_plugin.tasks.issue_text import leaks

    for task in deepdiff[0].tasks:
        assert leaks(task.problem_statement, task.patch) == []


GRADING = """
import sys
from valve_plugin.config import Settings
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.states import gold_patch
from valve_plugin.tasks.task_set import load
from valve_plugin.tasks.repository import find_prepared
from pathlib import Path
task = load(Path(sys.argv[1])).tasks[int(sys.argv[2])]
where = find_prepared(task.repo)
print("go", flush=True)
print(grade(where, task, gold_patch(where, task), Settings()).outcome)
"""


def test_the_next_grading_removes_what_killed_ones_left(
    deepdiff: tuple[TaskSet, PreparedRepository], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", GRADING, str(DEEPDIFF)]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}  # others on this machine use valve, too
    for number in range(12):
        with subprocess.Popen([*command, str(number + 1)], stdout=subprocess.PIPE, env=environ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05 + number * 0.25)
            process.send_signal(signal.SIGKILL)
    last = subprocess.run([*command, "1"], capture_output=True, text=True, check=True, env=environ)
    assert last.stdout.split() == ["go", "resolved"]
    mine = str(data_dir())
    until(lambda: not [p for p in psutil.process_iter(["cmdline"]) if mine in " ".join(p.info["cmdline"] or ())])
    assert mine not in Path("/proc/mounts").read_text()
    assert [p for p in (data_dir() / "workspaces").iterdir() if p.is_dir()] == []
    assert list(tmp_path.iterdir()) == []
