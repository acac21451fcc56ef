"""Places that a person can set apart are on file systems of their own: nothing is renamed or linked across them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import missing, need

RUN = """
import sys
from pathlib import Path
from tests.live.conftest import CHECK, FIX, QUICK, item, make_bank, make_project
from valve_plugin.cli.doctor import Place, checks
from valve_plugin.checkout import find
from valve_plugin.config import Settings
import os
repository, attempts = Path(sys.argv[1]), int(sys.argv[2])
project = make_project(repository / "project")
make_bank(project.bank, item())
os.chdir(project.root)
found = checks()["user data"](Place(find(project.root), project.bank, Settings()))
print("doctor", found.state, found.detail)
project.run(FIX, check=QUICK, **({"attempts": attempts} if attempts > 1 else {}))
for attempt in project.attempts():
    print(attempt.outcome, attempt.reason)
"""
PLACES = ("TMPDIR", "VALVE_DATA", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "REPOSITORY")


def run_apart(root: Path, script: str = "") -> list[str]:
    """Run a graded attempt with each place on its own file system; return what it printed.

    Args:
        root: where the places are.
        script: shell commands that first do something to `$1`, the folder of the places.
    """
    if os.geteuid() != 0:
        missing("mounting file systems needs root")
    need("unshare")
    need("bwrap")
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "x", str(root)], capture_output=True, check=False)
    if probe.returncode:
        missing(f"no file system can be mounted here: {probe.stderr.decode().strip()}")
    mounts = "".join(f'mkdir -p "$1/{name}" && mount -t tmpfs x "$1/{name}" && ' for name in PLACES)
    command = f'{mounts} : && {script or ":"} && shift && exec "$@"'
    work = [sys.executable, "-c", RUN, str(root / "REPOSITORY"), "1"]
    env = {**os.environ, **{name: str(root / name) for name in PLACES}, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = ["unshare", "-m", "sh", "-c", command, "sh", str(root), *work]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "with: colon").mkdir()
    return tmp_path / "with: colon"


def test_an_attempt_is_graded_with_every_place_on_its_own_file_system(places: Path) -> None:
    doctor, *attempts = run_apart(places)
    assert doctor.startswith("doctor ok"), doctor
    assert attempts == ["resolved the check failed before the attempt and passes after it"]


@pytest.mark.parametrize(
    ("name", "script", "state"),
    [
        ("VALVE_DATA", 'mount -o remount,ro "$1/VALVE_DATA"', "failed"),
        ("TMPDIR", 'head -c 1M /dev/zero > "$1/TMPDIR/x"; mount -o remount,size=1M "$1/TMPDIR"', "missing"),
    ],
    ids=["data read-only", "temporary folder full"],
)
def test_a_place_that_cannot_be_written_is_named(places: Path, name: str, script: str, state: str) -> None:
    doctor, *attempts = run_apart(places, script)
    assert doctor.startswith(f"doctor {state}"), doctor
    assert str(places / name) in doctor
    assert state == "failed" or attempts[0].startswith("resolved"), "another temporary folder is taken"
