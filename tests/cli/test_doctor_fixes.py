"""Each command of `valve doctor`, run as printed, turns its row green; `doctor_fixes.md` says where each was run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.banks import sample
from tests.cli.conftest import forget
from tests.cli.test_doctor import BIN, SYSTEM, here
from tests.cli.test_tasks_mine import commit
from tests.lean import lean
from tests.rollouts import calc
from tests.tools import need
from valve_plugin import config
from valve_plugin.cli import doctor_bank, doctor_sandbox, doctor_tasks, installs
from valve_plugin.cli.doctor_rows import LOOKS, Found, Place
from valve_plugin.rollouts.engine import fails
from valve_plugin.tasks import folder

FAILS = "#!/bin/sh\necho broken >&2; exit 1\n"
NO_WALLS = """#!/bin/bash
[ "$1" = --version ] && echo bubblewrap 0 && exit
while [ $# -gt 0 ] && [ "$1" != -- ]; do [ "$1" = --json-status-fd ] && status=$2; shift; done; shift
"$@"; code=$?; [ -z "$status" ] || echo '{"exit-code": 0}' >&$status; exit $code
"""
Break = Callable[[Path, pytest.MonkeyPatch], object]


def row(name: str) -> Found:
    """Look again, as a new process would."""
    forget()
    fails.cache_clear()
    place = here()
    try:
        place = place._replace(settings=config.load(place.bank))
    except config.ConfigError as e:
        place = place._replace(trouble=str(e))
    return LOOKS[name](place)


def paste(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command in a shell like a person's, whose environment goes on."""
    script = f"{command}\ncode=$?; printf '%s\\0' ''; env -0; exit $code"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, (command, done.stderr)
    after = dict(word.split("=", 1) for word in done.stdout.split("\0")[1:] if "=" in word)
    for name in {name for name in os.environ if name.startswith("VALVE_")} - set(after):
        monkeypatch.delenv(name)
    for name in ("PATH", "VALVE_DATA"):
        if name in after:
            monkeypatch.setenv(name, after[name])


def tool(name: str, text: str) -> Break:
    """A program of that name before the system's."""

    def put(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (machine / "bin" / name).write_text(text)
        (machine / "bin" / name).chmod(0o755)

    return put


def settings(text: str) -> Break:
    return lambda machine, monkeypatch: (sample(Path.cwd() / ".valve").dir / "valve.toml").write_text(text)


def unknown_command(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings('test_command = "nosuch"\n')(machine, monkeypatch)
    monkeypatch.setenv("EDITOR", "sed -i s/nosuch/true/")


def runner_beside(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings('test_command = "pytest"\n')(machine, monkeypatch)
    monkeypatch.setenv("PATH", SYSTEM)
    assert shutil.which("pytest") is None


def in_a_repository(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    monkeypatch.setenv("VALVE_DATA", "data")


def a_file_for_a_folder(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "file").touch()
    monkeypatch.setenv("VALVE_DATA", str(machine / "file"))


def home_is_a_repository(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", machine / "home"], check=True)
    monkeypatch.delenv("VALVE_DATA")
    monkeypatch.setattr("psutil.disk_partitions", lambda: [Mounted(str(machine / "disk"))])
    (machine / "disk").mkdir()


class Mounted:
    def __init__(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint


def little_room(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path(os.environ["VALVE_DATA"])
    monkeypatch.setattr(doctor_bank, "_free", lambda path: 0 if path == full else 1 << 40)


def stray_panel(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from valve_plugin.bank.store import BankStore

    (BankStore.create(Path.cwd() / ".valve", "owner/name", {}).dir / "panel.json").write_text("{}")


BROKEN: dict[str, tuple[str, Break]] = {
    "git before the system's": ("git", tool("git", FAILS)),
    "bwrap before the system's": ("sandbox", tool("bwrap", FAILS)),
    "bwrap without walls": ("sandbox", tool("bwrap", NO_WALLS)),
    "podman before the system's": ("container engine", tool("podman", FAILS)),
    "no bank": ("bank", lambda machine, monkeypatch: None),
    "settings that are no TOML": ("bank", settings("rho = ")),
    "a bank of another version": (
        "bank integrity",
        lambda machine, monkeypatch: (sample(Path.cwd() / ".valve").dir / "bank.json").write_text('{"format": 99}'),
    ),
    "a stray panel.json": ("bank integrity", stray_panel),
    "no check command, settings that end in a table": ("check command", settings("[model_kwargs]\ntemperature = 0")),
    "no check command, no bank": ("check command", lambda machine, monkeypatch: None),
    "an unknown check command": ("check command", unknown_command),
    "a test runner beside python": ("check command", runner_beside),
    "user data in a repository": ("user data", in_a_repository),
    "user data in a file": ("user data", a_file_for_a_folder),
    "user data below a device": ("user data", lambda machine, m: m.setenv("VALVE_DATA", "/dev/null/x")),
    "user data where nothing can be made": ("user data", lambda machine, m: m.setenv("VALVE_DATA", "/proc/nothing")),
    "home is a repository": ("user data", home_is_a_repository),
    "a full disk": ("disk", little_room),
    "the start-up file switched off": ("start-up file", lambda machine, m: m.setenv("VALVE_STARTUP", "0")),
}


@pytest.mark.parametrize("how", BROKEN)
def test_the_command_turns_its_row_green(how: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:{BIN}:{SYSTEM}")
    need({"sandbox": "bwrap", "container engine": "podman"}.get(BROKEN[how][0], "git"))
    name, spoil = BROKEN[how]
    spoil(machine, monkeypatch)
    before = row(name)
    assert before.state != "ok", before
    assert before.fix, before
    paste(before.fix, monkeypatch)
    after = row(name)
    assert after.state == "ok", (before, after)


def as_nobody(folder: Path) -> list[str]:
    """What doctor prints to another user about a folder that cannot be read, and that cannot be written."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setgid(65534)
        os.setuid(65534)
        said = [doctor_bank._closed(folder, how) for how in (os.R_OK, os.W_OK)]
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    with os.fdopen(read) as file:
        return file.read().split("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_files_that_are_closed_to_this_user(tmp_path: Path) -> None:
    place = Path("/tmp") / f"valve-closed-{os.getpid()}"
    sample_dir = place / "a bank"
    sample_dir.mkdir(parents=True)
    try:
        for name in ("ledger.jsonl", "valve.toml"):
            (sample_dir / name).write_text("")

        taken = f"sudo chown -R 65534 '{sample_dir}' && chmod -R u+rwX '{sample_dir}'"
        assert as_nobody(sample_dir) == ["", taken], "readable, as it is root's"
        sample_dir.chmod(0o700)
        assert as_nobody(sample_dir) == [taken, taken]
        for path in (sample_dir, *sample_dir.iterdir()):
            os.chown(path, 65534, 65534)
        (sample_dir / "ledger.jsonl").chmod(0o400)
        opened = f"chmod -R u+rwX '{sample_dir}'"
        assert as_nobody(sample_dir) == ["", opened]
        sample_dir.chmod(0)
        assert as_nobody(sample_dir) == [opened, opened]
        subprocess.run(opened, shell=True, check=True)
        assert as_nobody(sample_dir) == ["", ""]
    finally:
        shutil.rmtree(place)


def test_commands_for_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installs, "APT", tmp_path / "apt-get")
    monkeypatch.setattr(installs, "LISTS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert installs.system_install("git") == "", "no command of another system is guessed"
    (tmp_path / "apt-get").touch()
    assert installs.system_install("git") == "apt-get update && apt-get install -y git"
    (tmp_path / "mirror_Packages").touch()
    assert installs.system_install("a", "b", again=True) == "apt-get install -y --reinstall a b"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert installs.system_install("git") == "sudo apt-get install -y git"


def test_what_an_engine_that_does_not_work_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor_sandbox, "system_install", lambda *packages: f"install {' '.join(packages)}")
    fix = doctor_sandbox._engine_fix
    assert fix(["docker"], ["docker"], {"docker": "Cannot connect to the Docker daemon"}) == "sudo service docker start"
    assert fix(["podman", "docker"], ["docker"], {"docker": "x"}) == "install podman runc"
    assert fix(["docker"], [], {"docker": "docker is not on PATH"}) == "install docker.io"
    limits = {"podman": "podman would not limit memory and processes"}
    assert fix(["podman"], ["podman"], limits) == 'sudo -E "$(command -v valve)" doctor'


def test_a_command_of_ours_is_found_where_it_is_pasted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "valve").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    path = shlex.quote(str(tmp_path / "valve"))
    assert installs.ours("valve", "tasks", "a && valve b") == f"{path} tasks 'a && valve b'"
    assert installs.ours("hf", "download", "x") == "hf download x", "it is not there either"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installs.ours("valve", "init") == "valve init"


def test_every_kind_of_command_is_in_the_table() -> None:
    code = "".join(path.read_text() for path in Path(doctor_bank.__file__).parent.glob("doctor_*.py"))
    code += Path(installs.__file__).read_text()
    table = Path(__file__).with_name("doctor_fixes.md").read_text()
    words = r"(apt-get|chmod|chown|ensurepip|export|hf|mini-extra|mv|pip|service|sudo|sysctl|unset|uv|valve)"
    found = set(re.findall(rf"""[f"'(]["']?{words}["', ]""", code)) - {"valve"}
    assert found
    assert {word for word in found if not re.search(rf"\b{word}\b", table)} == set()


@pytest.mark.heavy
@pytest.mark.timeout(200)
def test_mining_turns_its_row_green(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, after what cannot be read; but for the environment to test in, which else is made from an index."""
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:{BIN}:{SYSTEM}")
    need("git")
    project = Path.cwd()
    subprocess.run(["git", "init", "-q"], check=True)
    commit(project, "start", {**calc.FILES, "calc/ops.py": calc.BUGGY, "tests/test_ops.py": ""})
    commit(project, "fix the clamp", {"calc/ops.py": calc.OPS, "tests/test_ops.py": calc.TEST_OPS})
    made = folder.default(f"{project.name}__mined")
    made.mkdir(parents=True)
    (made / "tasks.jsonl").write_text("no JSON")
    given = shlex.join(["--python", str(lean()), "--unsafe-local"])
    tool("valve", f'#!/bin/sh\nexec {BIN}/valve "$@" {given}\n')(machine, monkeypatch)
    before = row("task set")
    assert before.state == "failed"
    assert before.fix.endswith("valve tasks mine")
    paste(before.fix, monkeypatch)
    after = row("task set")
    assert (after.state, after.detail[:7]) == ("ok", "1 task "), after


def test_what_makes_tasks_where_there_is_no_history(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_tasks, "lacking", lambda extra: {"swesmith": ""})
    subprocess.run(["git", "init", "-q"], check=True, env={"PATH": SYSTEM})
    found = row("task set")
    assert found.detail.endswith("`valve evolve` needs one. Making one takes git, see there")
    assert found.fix == ""
    monkeypatch.setenv("PATH", SYSTEM)
    fix = row("task set").fix
    assert "pip install swe" in fix
    assert " && " in fix
    assert fix.endswith("valve tasks generate"), "neither a history nor the extra"
    monkeypatch.setattr(doctor_tasks, "lacking", lambda extra: {})
    assert row("task set").fix == installs.ours("valve", "tasks", "generate")
    for name in ("start", "more"):
        assert row("task set").fix == installs.ours("valve", "tasks", "generate"), "no commit has one before it"
        commit(Path.cwd(), name, {f"{name}.py": ""})
    assert row("task set").fix.endswith("valve tasks mine")
    folder.default(f"{Path.cwd().name}__mined").mkdir(parents=True)
    assert row("task set").fix.endswith("valve tasks generate"), "its history was looked at in vain"


def test_tasks_of_a_folder_whose_name_is_none_for_a_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, called in (("a b;c", "a-b-c"), ("-é", "repository")):
        (project / name).mkdir()
        subprocess.run(["git", "init", "-q", "."], cwd=project / name, check=True)
        for number in "12":
            commit(project / name, number, {"x": number})
        monkeypatch.chdir(project / name)
        assert row("task set").fix.endswith(f"valve tasks mine --repo {called}")


def test_nowhere_with_room(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setattr(doctor_bank, "_free", lambda path: 0)
    place: Place = here()
    found = doctor_bank._disk(place)
    assert (found.state, found.fix) == ("failed", "")


def test_the_sandbox_is_not_blamed_for_user_data(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:{BIN}:{SYSTEM}")
    need("bwrap")
    a_file_for_a_folder(machine, monkeypatch)
    assert row("sandbox").state == "missing"
    assert row("sandbox").detail == "not known while user data cannot be written, see there"
