"""`valve doctor` on a bare, a half-configured and a good machine; its hints are run and turn their rows green."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.banks import sample
from tests.cli.conftest import Run, forget
from tests.evolve import library
from tests.faults import proxy
from tests.tools import need
from valve_plugin import config
from valve_plugin.checkout import find
from valve_plugin.cli import doctor
from valve_plugin.cli.connect import with_hooks
from valve_plugin.cli.doctor import CheckResult, Place, cheapest, checks, escapes, examine, lines
from valve_plugin.config import SAMPLING, Settings
from valve_plugin.extras import pip_install
from valve_plugin.lab.simulation import server
from valve_plugin.rollouts import ray_executor
from valve_plugin.rollouts.ray_node import Node
from valve_plugin.sandbox.bubblewrap import Bubblewrap, UnsafeLocal
from valve_plugin.tasks.task_set import load

SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
BIN = Path(sys.executable).parent
FAILS = "#!/bin/sh\necho broken >&2; exit 1\n"
NO_WALLS = """#!/bin/bash
[ "$1" = --version ] && echo bubblewrap 0 && exit
while [ $# -gt 0 ] && [ "$1" != -- ]; do [ "$1" = --json-status-fd ] && status=$2; shift; done; shift
PATH=/usr/bin:/bin "$@"; code=$?; [ -z "$status" ] || echo '{"exit-code": 0}' >&$status; exit $code
"""
ROWS = {
    "python", "git", "start-up file", "model", "test command", "bank", "claude", "user data", "sandbox",
    "container engine",
}  # fmt: skip


def here() -> Place:
    return Place(find(Path.cwd()), Path.cwd() / ".valve", Settings())


def check(name: str, place: Place | None = None) -> CheckResult:
    """Look again, as a new process would."""
    forget()
    if place is None:
        place = here()
        try:
            place = place._replace(settings=config.load(place.bank))
        except config.ConfigError as e:
            place = place._replace(trouble=str(e))
    return examine(place, {name: checks()[name]})[name]


def tools(machine: Path, *names: str) -> None:
    for name in names:
        (machine / "bin" / name).symlink_to(str(shutil.which(name, path=SYSTEM)))
    forget()


def paste(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command in a shell like a person's, whose environment stays."""
    script = f"{command}\ncode=$?; printf '%s\\0' ''; env -0; exit $code"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, (command, done.stderr)
    after = dict(word.split("=", 1) for word in done.stdout.split("\0")[1:] if "=" in word)
    for name in {name for name in os.environ if name.startswith("VALVE_")} - set(after):
        monkeypatch.delenv(name)
    if "VALVE_DATA" in after:
        monkeypatch.setenv("VALVE_DATA", after["VALVE_DATA"])


def in_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    monkeypatch.setenv("VALVE_DATA", "data")


def edited_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    (sample(Path.cwd() / ".valve").dir / "bank.json").write_text('{"format": 99}')


def moved_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect Claude Code to a valve whose Python is then deleted."""
    old = Path("old env/bin")
    old.mkdir(parents=True)
    settings = with_hooks({}, shlex.quote(str(old.absolute() / "valve")), "make 'all tests'")
    Path(".claude").mkdir()
    Path(".claude/settings.local.json").write_text(json.dumps(settings))
    (old / "valve").write_text("#!/nowhere/python\n")
    (old / "valve").chmod(0o755)
    assert "/nowhere/python is not there" in check("claude").detail
    shutil.rmtree("old env")


BROKEN: dict[str, tuple[str, Callable[..., object]]] = {
    "no bank": ("bank", lambda monkeypatch: None),
    "a bank of another version": ("bank", edited_cache),
    "user data in a repository": ("user data", in_a_repository),
    "user data below a device": ("user data", lambda monkeypatch: monkeypatch.setenv("VALVE_DATA", "/dev/null/x")),
    "the environment of the hooks deleted": ("claude", moved_away),
    "the start-up file switched off": ("start-up file", lambda monkeypatch: monkeypatch.setenv("VALVE_STARTUP", "0")),
}


@pytest.mark.parametrize("how", BROKEN)
def test_the_hint_turns_its_row_green(how: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{SYSTEM}")
    Path("test_one.py").write_text("def test(): pass\n")
    name, spoil = BROKEN[how]
    spoil(monkeypatch)
    before = check(name)
    assert before.state != "ok"
    paste(before.hint, monkeypatch)
    after = check(name)
    assert after.state == "ok", (before, after)


@pytest.mark.parametrize(
    ("name", "program", "text", "detail"),
    [
        ("git", "git", FAILS, "--version ended with 1: broken"),
        ("sandbox", "bwrap", FAILS, "bubblewrap does not work here"),
        ("sandbox", "bwrap", NO_WALLS, "does not keep commands from: network"),
        ("container engine", "podman", FAILS, "podman"),
    ],
)
def test_a_tool_that_is_there_and_does_not_work(
    name: str, program: str, text: str, detail: str, machine: Path
) -> None:  # fmt: skip
    tools(machine, "bash", "sh", "prlimit", "setpriv", "env", "cat", "sleep", "nohup", "setsid", "tr")
    (machine / "bin" / program).write_text(text)
    (machine / "bin" / program).chmod(0o755)
    found = check(name)
    assert found.state == ("missing" if name == "container engine" else "failed")
    assert detail in found.detail
    assert "install" not in found.hint


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in report["rows"] if not row["name"].startswith("extra")}


def states(rows: dict[str, dict[str, str]], state: str) -> set[str]:
    return {name for name, row in rows.items() if row["state"] == state}


def test_a_bare_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_STARTUP", "0")
    rows = rows_of(valve("doctor", "--json", code=1))
    assert set(rows) == ROWS
    assert states(rows, "failed") == {"git", "model", "sandbox"}
    assert states(rows, "ok") == {"python", "claude", "user data"}
    programs = {name: (shlex.split(row["fix"]) or [""])[0].rpartition("/")[2] for name, row in rows.items()}
    assert (programs["model"], programs["start-up file"]) == ("mini-extra", "unset")
    assert programs["bank"] == programs["test command"] == "valve"


def test_a_good_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", SYSTEM)
    forget()
    need("bwrap")
    need("podman")
    store = sample(Path.cwd() / ".valve")
    (store.dir / "valve.toml").write_text(
        'repo = "owner/name"\nembedding = "hashing"\ntest_command = "git --version"\n'
    )
    monkeypatch.setenv("MSWEA_MODEL_NAME", "openai/any")
    rows = rows_of(valve("doctor", "--json"))
    assert states(rows, "ok") == ROWS
    assert not any(row["fix"] for row in rows.values())


def test_a_damaged_ledger_has_no_repair(machine: Path) -> None:
    tools(machine, "git")
    ledger = sample(Path.cwd() / ".valve").dir / "ledger.jsonl"
    whole = ledger.read_bytes()
    cut = b"".join(whole.splitlines(keepends=True)[:3])
    for damaged in (whole.replace(b"look-first", b"look-worst"), cut):
        ledger.write_bytes(damaged)
        found = check("bank")
        assert (found.state, found.hint) == ("failed", "")
        assert "restore " in found.detail


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("test -e pyproject.toml && A=1 git --version", "ok"),
        ("exit 1", "ok"),
        ("sleep 60", "ok"),
        ("touch made; cd nowhere && git --version; exit 126", "failed"),
        ("./run.sh", "failed"),
    ],
)
def test_a_check_command_is_run_in_a_copy(
    command: str, state: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", SYSTEM)
    if command.startswith("sleep"):
        monkeypatch.setattr("valve_plugin.cli.doctor._TEST_SECONDS", 2)
    forget()
    need("bwrap")
    found = check("test command", here()._replace(settings=Settings(test_command=command)))
    assert (found.state, found.hint) == (state, ""), found
    assert ("valve.toml: `test_command = " in found.detail) == (state == "failed")
    assert not Path("made").exists()


def test_the_setting_that_forbids_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("bwrap")
    path = tmp_path / "apparmor_restrict_unprivileged_userns"
    (tmp_path / "sysctl").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for text, command in (("1\n", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"), ("0\n", "")):
        path.write_text(text)
        assert doctor._allow_bubblewrap(path).removeprefix("sudo ") == command


@given(st.dictionaries(st.sampled_from([*sorted(SAMPLING), "api_base", "timeout", "num_retries"]), st.integers()))
def test_a_call_costs_little_whatever_the_bank_asks_for(asked: dict[str, int]) -> None:
    sent = cheapest(asked)
    limits = [value for name, value in sent.items() if "tokens" in name]
    assert limits == [16], "one limit, and ours"
    assert (sent["timeout"], sent["num_retries"], sent["max_retries"]) == (60, 0, 0)
    assert all(sent[name] == asked[name] for name in ("temperature", "api_base", "seed") if name in asked)


def test_a_repository_of_another_user(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", SYSTEM)
    subprocess.run(["git", "init", "-q"], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    found = check("git")
    assert (found.state, "another user owns it" in found.detail) == ("failed", True)
    (machine / "home").mkdir()
    paste(found.hint, monkeypatch)
    assert check("git").state == "ok"


def test_versions_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in {"numpy": "1.25.2", "swebench": "5.0.2"}.items():
        info = machine / f"beside/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(machine / "beside")
    python, smith = check("python"), check("extra smith")
    assert (python.state, smith.state) == ("failed", "missing")
    assert "numpy>=1.26 (1.25.2 is installed)" in python.detail
    assert python.hint == pip_install("numpy>=1.26")
    assert "swebench==4.1.0 (5.0.2 is installed)" in smith.detail


@pytest.mark.heavy
def test_one_call_of_the_model(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted model over HTTP, a provider that refuses the key, one whose quota is used up, and nobody at all."""
    place = Place(find(Path.cwd()), Path.cwd(), Settings(), call=True)
    monkeypatch.setenv("MSWEA_MODEL_NAME", "openai/valve-scripted")
    found = []
    with server.start(load(library.write(machine / "calc"))) as model, proxy.before(model.base_url, 0, 0.0) as provider:
        for name, value in provider.environment(model.environment()).items():
            monkeypatch.setenv(name, value)
        for calls, trouble in enumerate(("", "401", "quota", "500"), start=1):
            provider.always = trouble
            found.append(check("model", place))
            assert provider.seen.total() == calls, "one call each, and none is tried again"
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        free = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, free)
    found.append(check("model", place))
    assert [one.state for one in found] == ["ok", *["failed"] * 4]
    assert found[1].hint.endswith("mini-extra config set OPENAI_API_KEY KEY")
    assert all(one.hint.endswith("valve doctor --call") for one in found[2:])
    assert free in found[4].detail


def test_the_sandbox_is_tried_for_real(data_dir: Path) -> None:
    need("bwrap")
    assert escapes(Bubblewrap()) == []
    assert escapes(UnsafeLocal()) == [
        *("network", "namespaces of their own", "files of this machine", "environment variables")
    ]


def test_a_node_of_a_cluster_is_a_row_with_the_model_that_it_has_a_key_for(
    machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = Node(name="host 1", cores=1, python="3.11.7", valve="0.1.0", sandbox="bubblewrap", key=True)
    bare = Node(name="host 2", problem="it has no sandbox")
    monkeypatch.setattr(ray_executor, "nodes", lambda settings: (able, bare))
    monkeypatch.setenv("MSWEA_MODEL_NAME", "openai/gpt-5")
    first, second = valve("doctor", "--executor", "ray", code=1).splitlines()[:2]
    assert first.split(maxsplit=1) == [
        "ok",
        "host 1  1 core, Python 3.11.7, valve 0.1.0, bubblewrap, a key for openai/gpt-5",
    ]
    assert second.split(maxsplit=1) == ["failed", "host 2  it has no sandbox"]
    monkeypatch.setattr(ray_executor, "nodes", lambda settings: (able,))
    valve("doctor", "--executor", "ray")


def test_extras_that_are_not_installed_are_one_row_unless_all_is_asked_for() -> None:
    absent = {f"extra {name}": CheckResult("missing", "not installed", "pip install x") for name in ("smith", "ray")}
    found = {"git": CheckResult("ok", "2.40"), **absent, "extra mcp": CheckResult("ok", "installed")}
    short, whole = ([text for text, _ in lines(found, all_=all_)] for all_ in (False, True))
    assert [text.split()[1] for text in short[:3]] == ["git", "extra", "extras"]
    assert "smith, ray" in short[2]
    assert not any("$" in text for text in short)
    assert sum("pip install x" in text for text in whole) == 2


def test_settings_and_task_texts_cannot_steer_the_terminal() -> None:
    shown = [text for text, _ in lines({"task set": CheckResult("failed", "\x1b[2Jx\ny", "rm \x1b]0;z\x07 a")})]
    assert shown == ["failed   task set  x y", f"{'':8} {'':8}  $ rm a", "", "1 row failed: task set"]
