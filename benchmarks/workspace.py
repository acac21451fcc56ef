"""How long a workspace takes: made, used and dropped, as a ratio to `git worktree add` and `remove` of the same tree.

    python benchmarks/workspace.py [TASK_DIRECTORY] [--rounds 30]

A workspace is more than a worktree: a repository of its own that nothing else can be reached from, given to a uid of
its own, compared afterwards file by file. Both are timed in the same process, in turns. The last lines are the figures.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.state import state
from valve_plugin.tasks.load import load
from valve_plugin.tasks.repository import prepare

DEEPDIFF = Path(__file__).parent.parent / "examples" / "deepdiff"


def worktree(store: Path, commit: str, folder: Path) -> float:
    """Return the seconds to add, change, diff and remove a git worktree."""
    started = time.perf_counter()
    subprocess.run(["git", "worktree", "add", "-q", "--detach", str(folder), commit], cwd=store, check=True)
    (folder / "new.py").write_text("x = 1\n")
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "diff", "--cached", "--binary"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=store, check=True)
    return time.perf_counter() - started


def main() -> None:
    """Time both in turns; print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=Path, nargs="?", default=DEEPDIFF)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    taskset = load(options.tasks)
    prepared = prepare(taskset.repository, print)
    task = taskset.tasks[0]
    tip = state(prepared, task).tip
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(options.rounds):
            started = time.perf_counter()
            with workspaces.open(prepared, task) as place:
                (place.path / "new.py").write_text("x = 1\n")
                workspaces.diff(place)
            ours.append(time.perf_counter() - started)
            theirs.append(worktree(prepared.store, tip, Path(scratch) / "tree"))
    median_ours, median_theirs = statistics.median(ours), statistics.median(theirs)
    print(f"workspace: {1000 * median_ours:.1f} ms, git worktree: {1000 * median_theirs:.1f} ms, median of {len(ours)}")
    print(f"ratio: {median_ours / median_theirs:.2f}")


if __name__ == "__main__":
    main()
