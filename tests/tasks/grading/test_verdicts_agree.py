"""SWE-smith's harness, ours in a container and ours in bubblewrap grade the same patches; the table is in the docs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.tasks.grading import verdicts_table as table
from tests.tools import need, need_module, until
from valve_plugin.config import Settings
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.image import place_in_image
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.task_set import load

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "containers.md"
BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->"
FIXES = {"the fix", "the fix, with planted files"}


@pytest.mark.heavy
def test_verdicts_agree(tmp_path: Path) -> None:
    need("podman")
    need("bwrap")
    need_module("swesmith")
    (tmp_path / "image").mkdir()
    table.build(tmp_path / "image")
    patches = {name: table.patch(files) for name, files in table.patches().items()}
    run = uuid4().hex[:8]
    with served(tmp_path, run) as environ, ThreadPoolExecutor(1) as beside:
        smith = beside.submit(by_smith, tmp_path, run, patches, environ)
        ours = {kind: graded(tmp_path / kind, patches, kind) for kind in ("container", "bwrap")}
        theirs = smith.result()
    for name in patches:
        right = "resolved" if name in FIXES else "unresolved"
        assert (ours["container"][name], ours["bwrap"][name]) == (right, right), name
        assert theirs[name] == (name in FIXES) or name.startswith("forged"), name
    written = rows(theirs, ours)
    page = PAGE.read_text()
    if os.environ.get("WRITE_GOLDEN"):
        PAGE.write_text(page.split(BEGIN)[0] + BEGIN + written + END + page.split(END)[1])
    assert f"{BEGIN}{written}{END}" in PAGE.read_text(), written


def by_smith(folder: Path, run: str, patches: dict[str, str], environ: dict[str, str]) -> dict[str, bool]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.grading.verdicts_table", run],
        input=json.dumps(patches),
        cwd=folder,
        env=os.environ | environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, bool] = json.loads(done.stderr.strip().splitlines()[-1])
    return found


def graded(folder: Path, patches: dict[str, str], kind: str) -> dict[str, str]:
    taskset = load(table.write(folder, in_image=kind == "container"))
    settings = Settings(sandbox="podman" if kind == "container" else "bwrap")
    where = place_in_image(prepare(taskset.repository), taskset.tasks[0], settings)
    assert (where.image is not None) == (kind == "container")
    results = {name: grade(where, taskset.tasks[0], patch, settings) for name, patch in patches.items()}
    assert all(result.outcome != "errored" for result in results.values()), results
    return {name: result.outcome for name, result in results.items()}


def rows(theirs: dict[str, bool], ours: dict[str, dict[str, str]]) -> str:
    lines = ["| patch | SWE-smith's harness | VALVE, container | VALVE, bubblewrap |", "|---|---|---|---|"]
    for name, resolved in theirs.items():
        word = "resolved" if resolved else "unresolved"
        word = f"**{word}: fooled**" if resolved and name not in FIXES else word
        lines.append(f"| {name} | {word} | {ours['container'][name]} | {ours['bwrap'][name]} |")
    return "\n".join(lines) + "\n"


@contextmanager
def served(folder: Path, run: str) -> Iterator[dict[str, str]]:
    """Serve podman's API for docker's client library; yields the variable that it looks at."""
    limits = folder / "containers.conf"
    # Without CAP_SYS_RESOURCE the engine's own defaults are more than it may give.
    limits.write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n')
    socket = folder / "engine.sock"
    command = ["podman", "system", "service", "--time=0", f"unix://{socket}"]
    server = subprocess.Popen(command, env=os.environ | {"CONTAINERS_CONF": str(limits)}, stderr=subprocess.DEVNULL)
    try:
        until(socket.exists)
        yield {"DOCKER_HOST": f"unix://{socket}"}
    finally:
        server.kill()
        server.wait()
        for name in names(run):  # SWE-smith's harness leaves a container behind where it cannot check a branch out
            subprocess.run(["podman", "rm", "-f", "-t", "0", name], capture_output=True, check=False)


def names(run: str) -> list[str]:
    command = ["podman", "ps", "-aq", "--filter", f"name={run}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
