"""Containers hold what bubblewrap holds, on an image with SWE-smith's layout; nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from tests import calc, docker, images
from tests.agents.support import SUBMIT, saying
from tests.evolve.library import valve
from tests.sandbox.mischief import LIMITS, MISCHIEF, UNNAMED
from tests.sandbox.test_seccomp import ALLOCATE
from tests.tools import until
from valve_plugin.agents import process
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import SandboxError, TaskError
from valve_plugin.evolve.open import fix_panel as fix_panel
from valve_plugin.paths import data_dir
from valve_plugin.records import Context, Task
from valve_plugin.rollouts.attempt import attempt
from valve_plugin.sandbox import seccomp
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.sandbox.cgroup import ControlGroup
from valve_plugin.sandbox.container import Container, RunningContainer
from valve_plugin.sandbox.engine import OWNER_LABEL, Engine, engine_problem, image_id, owner
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.supervisor import MIB, ProcessLimits
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.image import place_in_image
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import gold_patch, open_task
from valve_plugin.tasks.task_set import load

pytestmark = pytest.mark.heavy
_FORKS = (
    "for n in range(500):\n try:\n  if not os.fork(): os.execlp('sleep', 'sleep', '60')\n except OSError:\n  print(n)"
)
FORK_MANY = f'python -c "import os\n{_FORKS}\n  break"'


@pytest.fixture(scope="module")
def where(image: str, calc_task: tuple[PreparedRepository, Task]) -> tuple[PreparedRepository, Task]:
    """The calc repository in its image."""
    prepared, task = calc.with_image(calc_task)
    return place_in_image(prepared, task, Settings()), task


@pytest.fixture(scope="module")
def workspace(where: tuple[PreparedRepository, Task]) -> Iterator[Workspace]:
    with open_task(*where) as place:
        yield place


@pytest.fixture(scope="module")
def box(workspace: Workspace) -> Iterator[RunningContainer]:
    assert workspace.image
    with Container(workspace.image).start(workspace) as started:
        yield started


def out(box: RunningContainer, command: str, **limits: int) -> str:
    done = box.run(command, limits=ProcessLimits(**limits))
    return f"{done.limit} {done.returncode} {done.output.decode()}".strip()


def test_it_is_the_task_and_the_image_s_environment(box: RunningContainer) -> None:
    tree = "README.md calc calc.egg-info conftest.py pytest.ini tests"
    assert out(box, "pwd; git log --oneline | wc -l; echo $(ls)") == f"0 /testbed\n1\n{tree}"
    assert out(box, "type -P python") == "0 /opt/miniconda3/envs/testbed/bin/python"
    assert "2 passed" in out(box, "python -m pytest -q tests | tail -1")
    assert "test_ops" not in out(box, "find / -name '*test_ops*' -not -path '/proc/*' 2>/dev/null")


def test_nothing_of_this_machine_is_there(box: RunningContainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("http_proxy", "http://user:sk-secret@localhost:1")
    assert "sk-secret" not in out(box, "env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert out(box, "ls /sys/class/net") == "0 lo"
    assert out(box, "hostname 2>/dev/null || cat /proc/sys/kernel/hostname") == "0 sandbox"
    assert str(Path.home()) == "/" or out(box, f"ls -A {Path.home()}") == "0"
    code = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
    assert "unreachable" in out(box, f'python -c "{code}" 2>&1 | tail -1')


def test_nothing_but_the_workspace_can_be_written(box: RunningContainer) -> None:
    for place in ("/", "/etc", "/usr/bin", "/opt/miniconda3/envs/testbed", "/run/valve", "/var/tmp", "/root"):
        assert "1" in out(box, f"touch {place}/x 2>/dev/null; echo $?"), place
    assert out(box, "touch ~/x /tmp/x /testbed/x && rm /testbed/x; id -u | wc -c") == "0 11"
    assert "CapEff:\t0000000000000000" in out(box, "grep CapEff /proc/self/status")


def test_limits(box: RunningContainer) -> None:
    assert out(box, "while :; do :; done", cpu_seconds=1).startswith("cpu")
    spread = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
    assert out(box, spread, cpu_seconds=2).startswith("cpu")
    assert out(box, "sleep 60", wall_seconds=1).startswith("wall")
    assert out(box, "dd if=/dev/zero of=big bs=1M count=20", file_bytes=8 * MIB).startswith(f"{128 + signal.SIGXFSZ}")
    fill = "for i in 1 2 3; do dd if=/dev/zero of=b$i bs=1M count=9; done; sleep 100"
    assert out(box, fill, disk_bytes=20 * MIB).startswith("disk")
    assert out(box, "rm -f b*; echo fine") == "0 fine"
    assert out(box, "cat /proc/self/oom_score_adj").endswith("1000")
    assert "MemoryError" in out(box, "python -c 'x = bytearray(300 * 2**20)' 2>&1 | tail -1", memory_bytes=200 * MIB)
    assert 200 < int(out(box, FORK_MANY).split()[1]) < 300
    assert len(box.run("head -c 300000 /dev/zero", limits=ProcessLimits(output_bytes=1000)).output) == 1000


@pytest.mark.parametrize("how", UNNAMED)
def test_files_without_a_name_use_disk_space(box: RunningContainer, how: str) -> None:
    limits = ProcessLimits(disk_bytes=40 * MIB, file_bytes=16 * MIB)
    assert box.run(UNNAMED[how], limits=limits).limit == "disk"


def test_nothing_outlives_its_command(box: RunningContainer) -> None:
    out(box, "nohup setsid sleep 1000 >/dev/null 2>&1 & (sleep 1001 &) ; exit 3")
    assert "sleep 100" not in out(box, "cat /proc/*/cmdline | tr '\\0' ' '")
    assert out(box, "kill -9 -1; exit 4") != "0"  # also ends what watches over it; the next one is not disturbed
    assert out(box, "kill -9 1 2>/dev/null; echo still here") == "0 still here"
    for _ in range(3):
        out(box, "for i in $(seq 50); do (sleep 500 &); done")
    assert int(out(box, "ls -d /proc/[0-9]* | wc -l").split()[1]) < 12


def test_a_command_can_print_and_return_anything(box: RunningContainer) -> None:
    for code in (1, 125, 126, 127, 137, 255):
        assert out(box, f"exit {code}") == str(code)
    assert out(box, "no-such-command").startswith("127")
    done = box.run("head -c 5000000 /dev/urandom | tee copy | cat; rm copy", limits=ProcessLimits())
    assert len(done.output) == 5_000_000
    assert box.run("cat", limits=ProcessLimits(), stdin=b"x" * 3_000_000).output == b"x" * 3_000_000


@pytest.mark.parametrize("name", MISCHIEF)
def test_an_agent_cannot_make_its_rollout_errored(
    where: tuple[PreparedRepository, Task], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspaces, "_IGNORE_CPU_SECONDS", 1)
    with open_task(*where) as place:
        assert place.image
        with Container(place.image).start(place, memory_bytes=1024 * MIB) as box:
            done = box.run(MISCHIEF[name], limits=LIMITS)
            assert b"command not found" not in done.output, "the image lacks what this try needs"
            after = box.run("echo still here", limits=ProcessLimits())
            assert b"still here\n" in after.output or after.limit == "disk"
        with suppress(TaskError):
            workspaces.diff(place)


CLOSED = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def failed(*words):
    ctypes.set_errno(0)
    return libc.syscall(*map(ctypes.c_long, words)) < 0
machine = os.uname().machine
unshare, keyctl, bpf, ptrace, socket = (272, 250, 321, 101, 41) if machine == "x86_64" else (97, 219, 280, 117, 198)
print(all([failed(unshare, 0x10000000), failed(keyctl, 0, -3, 1), failed(bpf, 0, 0, 0), failed(ptrace, 0),
           failed(425, 1, 0), failed(435, 0, 0), failed(socket, 40, 1, 0), failed(socket, 17, 3, 0)]))
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(2) as pool: print(sum(pool.map(int, "12")))
"""


def assert_calls_are_closed(box: RunningContainer) -> None:
    assert box.run(["python", "-c", CLOSED], limits=ProcessLimits()).output == b"True\n3\n"
    words = ["python", "-c", ALLOCATE, *map(str, seccomp.ALLOCATE)]
    assert box.run(words, limits=ProcessLimits()).output == b"fine\n"


def test_system_calls_that_nobody_needs_are_closed(box: RunningContainer) -> None:
    assert_calls_are_closed(box)


def test_a_container_without_memory_is_no_error_of_the_host(workspace: Workspace) -> None:
    """A command can make the kernel kill process 1, which ends the container."""
    assert workspace.image
    with Container(workspace.image).start(workspace, memory_bytes=1024 * MIB) as box:
        for gone in (False, True):  # its control group is gone at some time
            if gone:
                box._group = ControlGroup(2**22)
            assert box.run(MISCHIEF["memory of nobody"], limits=LIMITS).limit == "memory"
            assert out(box, "echo still here") == "0 still here"


def test_a_dead_engine_is_an_error_of_the_host(workspace: Workspace) -> None:
    assert workspace.image
    started = Container(workspace.image).start(workspace)
    begun = workspace.path / "begun"
    kill = ["sh", "-c", 'until [ -e "$2" ]; do sleep 0.05; done; podman kill "$1"', "sh", started.id, str(begun)]
    with subprocess.Popen(kill, stdout=subprocess.DEVNULL), pytest.raises(SandboxError, match="exec ended with"):
        started.run("touch begun; sleep 600", limits=ProcessLimits())
    with pytest.raises(SandboxError):
        started.run("true", limits=ProcessLimits())
    started.stop()


def test_grades(where: tuple[PreparedRepository, Task]) -> None:
    prepared, task = where
    settings = Settings()
    assert choose(settings, prepared.image).name.startswith("podman:")
    assert grade(prepared, task, gold_patch(prepared, task), settings).outcome == "resolved"
    wrong = grade(prepared, task, calc.change(calc.BUGGY, calc.WRONG_FIX), settings)
    assert wrong.outcome == "unresolved", wrong
    assert wrong.tests["tests/test_ops.py::TestClamp::test_high"] == "failed"


@pytest.mark.parametrize("what", ["bash", "flock"])
def test_what_an_image_lacks_is_named(where: tuple[PreparedRepository, Task], workspace: Workspace, what: str) -> None:
    assert workspace.image is not None
    engine, name = Engine("podman"), f"localhost/valve/without-{what}:latest"
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    made = engine.call("create", *limits, "--entrypoint", "/usr/bin/rm", workspace.image.id, f"/usr/bin/{what}")
    engine.call("start", "-a", made)
    engine.call("commit", "-q", made, name)
    engine.remove(made)
    poorer = msgspec.structs.replace(workspace.image, name=name, id=image_id("podman", name))
    try:
        with pytest.raises(SandboxError, match=rf"without-{what}:latest has no (/bin/)?{what}; a container here needs"):
            Container(poorer).run("true", workspace)
    finally:
        engine.call("rmi", "-f", name)


def test_docker_s_own_daemon(
    where: tuple[PreparedRepository, Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout and its grade: docker is asked for nothing that only podman knows, and leaves nothing either."""
    prepared, task = where
    settings = saying("git checkout -q HEAD~2 -- calc/ops.py", SUBMIT, sandbox="docker", keep_history=True)
    with docker.daemon(tmp_path, images.IMAGE) as environ:
        monkeypatch.setenv("DOCKER_HOST", environ["DOCKER_HOST"])
        engine_problem.cache_clear()
        inside = place_in_image(replace(prepared, image=None), task, settings)
        assert inside.image
        assert inside.image.engine == "docker"
        found = attempt(settings, task, Context(text=""), 0, "stream")
        assert (found.outcome, found.reason) == ("resolved", "")
        with open_task(inside, task) as place, Container(inside.image).start(place) as box:
            assert out(box, "ls /sys/class/net; grep CapEff /proc/self/status") == "0 lo\nCapEff:\t0000000000000000"
            assert 200 < int(out(box, FORK_MANY).split()[1]) < 300
            assert out(box, "while :; do :; done", cpu_seconds=1).startswith("cpu")
            assert_calls_are_closed(box)
            assert box.run(UNNAMED["mapped"], limits=ProcessLimits(disk_bytes=40 * MIB)).limit == "disk"
        with open_task(inside, task) as place, Container(inside.image).start(place, memory_bytes=1024 * MIB) as box:
            for _ in range(8):  # it is a race of the engine with the kernel
                assert box.run(MISCHIEF["memory of nobody"], limits=LIMITS).limit == "memory"
        assert Engine("docker").call("ps", "-aq") == ""
    engine_problem.cache_clear()


def test_the_history_is_in_sight_only_when_it_is_asked_for(
    where: tuple[PreparedRepository, Task], tmp_path: Path
) -> None:
    """`valve panel run` with an agent that looks for the fix in the history, and nowhere else."""
    bug = {"patch": calc.change(calc.OPS, calc.OPS.replace("a + b", "a - b")), "FAIL_TO_PASS": [calc.P2P[3]]}
    other = calc.row(instance_id="acme__calc.1.func_pm_x__2", image_name=images.IMAGE, PASS_TO_PASS=[], **bug)
    taskset = load(calc.write(tmp_path / "tasks", [calc.row(image_name=images.IMAGE), other]))
    store = BankStore.create(tmp_path / "bank", "acme/calc", {})
    fix_panel(store, Settings(panel_size=1, rollouts=1, embedding="hashing"), taskset)
    cheat = saying("git checkout -q HEAD~2 -- calc/ops.py", SUBMIT)
    given = {"model": cheat.model, "model_class": cheat.model_class, "mini_config": json.dumps(cheat.mini_config)}
    words = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    words += ["--bank", str(store.dir), "--tasks", str(tmp_path / "tasks"), "--fork-server", process.server_address()]
    found = [valve("panel", "run", "--current", *words, *flags).stdout for flags in ([], ["--keep-history"])]
    last = [lines.splitlines()[-1] for lines in found]  # on a busy machine, lines about progress come first
    assert [json.loads(line)["outcome"]["outcome"] for line in last] == ["unresolved", "resolved"]


CHILD = """
import sys
import msgspec
from valve_plugin.sandbox import workspace
from valve_plugin.rollouts.attempt import attempt
from valve_plugin.sandbox.cgroup import ControlGroup
from valve_plugin.sandbox.container import Container
from valve_plugin.sandbox.supervisor import ProcessLimits
from valve_plugin.sandbox.engine import Image
with workspace.open_workspace() as place, Container(msgspec.json.decode(sys.argv[1], type=Image)).start(place) as box:
    print("up", flush=True)
    box.run("sleep 777.5", limits=ProcessLimits())
"""


def test_nothing_is_left_of_killed_runs(workspace: Workspace) -> None:
    """Killed with SIGKILL while the container starts, runs a command, or just after; KILLS=100 makes it a campaign."""
    before, random = set(left()), Random(7)
    for _ in range(int(os.environ.get("KILLS", "4"))):
        argument = msgspec.json.encode(workspace.image).decode()
        environ = os.environ | {"PYTHONPATH": str(Path.cwd())}
        child = subprocess.Popen([sys.executable, "-c", CHILD, argument], stdout=subprocess.PIPE, env=environ)
        assert child.stdout
        if random.random() < 0.5:
            assert child.stdout.readline() == b"up\n"
            time.sleep(random.random())
        else:
            time.sleep(random.uniform(0.3, 2.5))
        child.kill()
        child.wait()

    def nothing_left() -> bool:
        Engine("podman").sweep()  # as the next start does, and the next workspace
        with scratch_folder():
            time.sleep(0.2)
        return before.issuperset(left())

    until(nothing_left)


def left() -> list[str]:
    """Return our containers, mounts of containers that are gone, our processes, and folders of workspaces."""
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if "/overlay/" in line}
    form = "{{.GraphDriver.Data.MergedDir}}"
    everyone = podman("ps", "-aq")
    mounts -= set(podman("inspect", "--format", form, *everyone)) if everyone else set()
    listed = podman("ps", "-aq", "--filter", f"label={OWNER_LABEL}={owner()}")
    processes = [str(p.pid) for p in psutil.process_iter(["cmdline"]) if "777.5" in (p.info["cmdline"] or [])]
    folders = [p.name for p in (data_dir() / "workspaces").iterdir() if p.is_dir()]
    return sorted([*listed, *mounts, *processes, *folders])


def podman(*arguments: str) -> list[str]:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split()
