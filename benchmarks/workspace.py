"""How long a workspace takes: made, used, dropped; as ratios to `git worktree` and `podman run` of the same tree.

    python benchmarks/workspace.py [TASK_DIRECTORY] [--rounds 30] [--image NAME]

A workspace is more than a worktree: a repository of its own that nothing else can be reached from, given to a uid of
its own, compared afterwards file by file. All are timed in the same process, in turns. With `--image`, a local image
whose /testbed is the same tree, the same file is also made by `podman run` in it, by a command in bubblewrap, and by
one in a container of ours, whose removal is waited for. The last lines are the figures.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.records import Task
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.tasks.image import place_in_image
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.states import task_states
from valve_plugin.tasks.task_set import load
from valve_plugin.tasks.workspace import open_task

DEEPDIFF = Path(__file__).parent.parent / "examples" / "deepdiff"
USE = "echo 'x = 1' > new.py"


def worktree(store: Path, commit: str, folder: Path) -> None:
    """Add, change, diff and remove a git worktree."""
    subprocess.run(["git", "worktree", "add", "-q", "--detach", str(folder), commit], cwd=store, check=True)
    (folder / "new.py").write_text("x = 1\n")
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "diff", "--cached", "--binary"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=store, check=True)


def workspace(where: PreparedRepository, task: Task, command: str = "") -> None:
    """Make, change, diff and drop a workspace; with a command, a sandbox changes it."""
    with open_task(where, task) as place:
        if command:
            choose(Settings(), where.image).run(command, place)
        else:
            (place.path / "new.py").write_text("x = 1\n")
        assert "new.py" in workspaces.diff(place)


def podman(image: str) -> None:
    """Make a container, change its tree, diff it there, and drop it."""
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]  # also without CAP_SYS_RESOURCE
    command = f"{USE}; git add -A; git diff --cached --binary"
    run = ["podman", "run", "--rm", "--network", "none", *limits, "-w", "/testbed", image, "bash", "-c", command]
    subprocess.run(run, check=True, capture_output=True)


def main() -> None:
    """Time all in turns; print medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=Path, nargs="?", default=DEEPDIFF)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--image", default="", help="a local container image whose /testbed is the same tree")
    options = parser.parse_args()
    taskset = load(options.tasks)
    here, task = prepare(taskset.repository, print), taskset.tasks[0]
    tip = task_states(here, task).tip
    with tempfile.TemporaryDirectory() as scratch:
        timed: dict[str, Callable[[], None]] = {
            "workspace": lambda: workspace(here, task),
            "git worktree": lambda: worktree(here.store, tip, Path(scratch) / "tree"),
        }
        if options.image:
            inside = place_in_image(here, replace(task, image_name=options.image), Settings(sandbox="podman"))
            timed["podman run"] = lambda: podman(options.image)
            timed["workspace and bubblewrap"] = lambda: workspace(here, task, USE)
            timed["workspace and container"] = lambda: workspace(inside, task, USE)
        medians = {name: statistics.median(times) for name, times in measured(timed, options.rounds).items()}
    print(", ".join(f"{name}: {1000 * median:.0f} ms" for name, median in medians.items()), f"(of {options.rounds})")
    for name in [name for name in medians if name.startswith("workspace and")]:
        print(f"{name}, ratio to podman run: {medians[name] / medians['podman run']:.2f}")
    if options.image:
        print(f"workspace, ratio to podman run: {medians['workspace'] / medians['podman run']:.2f}")
    print(f"ratio: {medians['workspace'] / medians['git worktree']:.2f}")


def measured(timed: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, run in timed.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return times


if __name__ == "__main__":
    main()
