"""`valve doctor` on a bare, a half-configured and a good machine; and that its commands fix what it found."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.banks import sample
from tests.cli.conftest import Run, forget
from tests.evolve import library
from tests.faults import proxy
from tests.tools import need
from valve_plugin import config
from valve_plugin.bank.checkout import find
from valve_plugin.cli import doctor_bank, doctor_rows, doctor_tasks  # noqa: F401 (its rows)
from valve_plugin.cli.doctor import lines
from valve_plugin.cli.doctor_rows import LOOKS, Found, Place, Row, cheapest, examine
from valve_plugin.cli.doctor_sandbox import _outlived, escapes, refused
from valve_plugin.cli.installs import origin
from valve_plugin.config import SAMPLING, Settings
from valve_plugin.extras import pip_install
from valve_plugin.rollouts.sandbox import Bubblewrap, UnsafeLocal
from valve_plugin.shell_words import programs
from valve_plugin.simulate import server
from valve_plugin.tasks.load import load

GOLDEN = Path(__file__).with_name("golden") / "doctor"
SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
BIN = Path(sys.executable).parent


def tools(machine: Path, *names: str) -> None:
    for name in names:
        (machine / "bin" / name).symlink_to(str(shutil.which(name, path=SYSTEM)))
    forget()


def test_a_cache_is_made_again_and_a_ledger_never_overwritten(machine: Path, valve: Run) -> None:
    """The bank.json of a bank git does not hold, nor all of, is repaired; the ledger's lines are all still there."""
    tools(machine, "git")
    store = sample(Path.cwd() / ".valve")
    ledger, cache = store.dir / "ledger.jsonl", store.dir / "bank.json"
    whole, good = ledger.read_bytes(), cache.read_bytes()
    said = ""
    for broken in (good.replace(b'"version": 1', b'"version": 7'), b"{", good + b" ", b'{"format": 99}'):
        cache.write_bytes(broken)
        said += looked("bank integrity")
        if broken == b"{":
            assert "next       valve bank verify --repair" in valve()
        fix = LOOKS["bank integrity"](here()).fix
        shell(fix)
        assert (ledger.read_bytes(), cache.read_bytes()) == (whole, good)
        assert LOOKS["bank integrity"](here()).state == "ok"
    damaged = whole.replace(b"look-first", b"look-worst")
    ledger.write_bytes(damaged)
    said += looked("bank integrity")
    ledger.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    said += looked("bank integrity")
    ledger.write_bytes(damaged)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "bank"]):
        subprocess.run(["git", *command], check=True)
    said += looked("bank integrity")
    ledger.write_bytes(damaged + b"x")
    said += looked("bank integrity")
    assert "checkout" not in said
    golden("integrity", said, machine)


def test_a_check_command_is_never_taken_for_a_package(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come out of somebody's repository."""
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:{BIN.parent / 'nothing'}")
    tools(machine, "git")
    monkeypatch.setattr(sys, "executable", str(machine / "bin/python"))
    said = "".join(
        looked("check command", here()._replace(settings=Settings(test_command=command)))
        for command in (
            "cd api && git --version", "cd api && pytest", "source x/bin/activate && anything", "python -m pytest",
            "for x in a b; do git $x; done", "A=1 nox -s tests 2>&1 | tee log", "reqests && pytest", "./run.sh",
            "cd api && ./run.sh", "pytest 'x", "PATH=x:$PATH anything", "git status; (nose2 > log)", "\"a b\" c",
        )
    )  # fmt: skip
    installed = set(re.findall(r"-m pip install (.*)", said))
    assert installed == {"pytest", "nox", "nose2"}
    golden("check", said, machine)


@given(st.text("ab;&|()<>'\"$=. \n", max_size=30))
def test_any_line_is_read_or_refused(line: str) -> None:
    try:
        found = programs(line)
    except ValueError:
        return
    assert all(re.fullmatch(r"[\w./+-]+", name) for name in found)


def test_no_row_ends_the_report(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = iter([ValueError("odd"), subprocess.TimeoutExpired("git", 60), OSError("gone"), KeyError("x")])

    def look(place: Place) -> Found:
        raise next(raised)

    monkeypatch.setattr("valve_plugin.cli.doctor_rows.LOOKS", dict.fromkeys("abcd", look))
    rows = examine(here())
    assert [(row.state, row.detail.split(":")[0]) for row in rows] == [
        ("failed", name) for name in ("ValueError", "TimeoutExpired", "OSError", "KeyError")
    ]


def test_what_is_there_and_does_not_work_is_not_installed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bwrap", "podman"):
        (machine / "bin" / name).write_text("#!/bin/sh\necho no such luck >&2; exit 1\n")
        (machine / "bin" / name).chmod(0o755)
    tools(machine, "prlimit", "setpriv")
    monkeypatch.setattr("valve_plugin.cli.doctor_sandbox.refused", lambda settings: "")
    said = looked("sandbox") + looked("container engine")
    golden("present", said.replace("; unprivileged user namespaces may be switched off on this machine", ""), machine)


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    ],
)
def test_the_setting_that_refuses_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, command: str
) -> None:
    assert refused(tmp_path) == ""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refused(tmp_path) == f"sudo sysctl -w {command}"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert refused(tmp_path) == f"sysctl -w {command}"
    (tmp_path / name).write_text("7\n")
    assert refused(tmp_path) == ""


def test_a_lost_start_up_file_comes_from_where_the_package_did() -> None:
    assert origin(None, "1.2") == ["valve-plugin==1.2"]
    for facts, words in (
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, ["--editable", "/a b"]),
        ({"url": "file:///a/b.whl", "archive_info": {}}, ["/a/b.whl"]),
        ({"url": "https://h/v.whl", "archive_info": {}}, ["https://h/v.whl"]),
        ({"url": "https://h/v", "vcs_info": {"vcs": "git", "commit_id": "0a"}}, ["valve-plugin @ git+https://h/v@0a"]),
    ):
        assert origin(json.dumps(facts), "1.2") == words


def test_a_cut_ledger_is_not_repaired_whatever_bank_json_says(project: Path, valve: Run) -> None:
    bank = sample(project / ".valve").dir
    ledger, cache = bank / "ledger.jsonl", bank / "bank.json"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:3]))
    cache.write_text(cache.read_text().replace("{", '{"unknown": 1,', 1))
    assert "the end was cut off" in valve("bank", "verify", code=1)
    found = LOOKS["bank integrity"](here())
    assert "the end was cut off" in found.detail
    assert "--repair" not in found.fix


@given(st.dictionaries(st.sampled_from([*sorted(SAMPLING), "api_base", "timeout", "num_retries"]), st.integers()))
def test_a_call_costs_little_whatever_the_bank_asks_for(asked: dict[str, int]) -> None:
    sent = cheapest(asked)
    limits = [value for name, value in sent.items() if "tokens" in name]
    assert limits == [16], "one limit, and ours"
    assert "max_completion_tokens" not in asked or "max_completion_tokens" in sent
    assert (sent["timeout"], sent["num_retries"], sent["max_retries"]) == (60, 0, 0)
    assert all(sent[name] == asked[name] for name in ("temperature", "api_base", "seed") if name in asked)


def test_git_that_fails(machine: Path) -> None:
    (machine / "bin/git").write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    (machine / "bin/git").chmod(0o755)
    said = looked("git")
    assert said.startswith(f"failed   git  {machine}/bin/git --version ended with 1: broken\n"), said


def here() -> Place:
    return Place(find(Path.cwd()), Path.cwd() / ".valve", Settings())


def looked(name: str, place: Place | None = None) -> str:
    row = Row(name, *LOOKS[name](place or here()))
    return "\n".join(text for text, _ in list(lines([row]))[:-2]) + "\n"


def shell(command: str) -> None:
    subprocess.run(
        ["/bin/bash", "-c", command], check=True, capture_output=True, env={**os.environ, "PATH": f"{BIN}:{SYSTEM}"}
    )


def golden(name: str, text: str, machine: Path) -> None:
    """Compare without what differs from machine to machine; WRITE_GOLDEN=1 writes."""
    text = re.sub(r"-[0-9a-f]{12}\b", "-HASH", text.replace(str(machine), "ROOT").replace(sys.executable, "PYTHON"))
    text = text.replace(str(BIN), "BIN")
    text = re.sub(r"\d+ GiB free", "N GiB free", re.sub(r"\b\d+\.\d+[\w.]*(?<!\.)", "N", text))
    kept, skip = [], False
    for line in text.splitlines():
        skip = " extra " in line[:20] or (skip and line.lstrip().startswith("$"))  # installed here or not
        kept += [] if skip else [line.rstrip()]
    path, said = GOLDEN / f"{name}.txt", "\n".join(kept) + "\n"
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said)
    assert said == path.read_text()


def test_a_bare_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_STARTUP", "0")
    monkeypatch.setattr(doctor_tasks, "lacking", lambda extra: {"swesmith": ""})
    golden("bare", valve("doctor", code=1), machine)


def test_a_half_configured_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    half_configured(machine, monkeypatch)
    monkeypatch.setattr(doctor_tasks, "lacking", lambda extra: {"swesmith": ""})
    golden("half", valve("doctor", code=1), machine)


def half_configured(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bank whose cache was edited, settings with a typing error, broken tasks, data where an agent can read it."""
    tools(machine, "git")
    project = Path.cwd()
    store = sample(project / ".valve")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "bank"], check=True)
    monkeypatch.setenv("VALVE_DATA", str(project / "data"))
    (store.dir / "bank.json").write_text((store.dir / "bank.json").read_text().replace('"version": 1', '"version": 7'))
    (store.dir / "valve.toml").write_text('rho = "0.02"\ntop_skils = 3\n')
    tasks = project / "data/tasks/owner__name"
    tasks.mkdir(parents=True)
    (tasks / "repository.toml").write_text('name = "owner/name"\nsource = "path:x"\n')
    (tasks / "tasks.jsonl").write_text("{broken\n")


def test_a_good_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", SYSTEM)
    forget()
    need("bwrap")
    need("podman")
    store = sample(Path.cwd() / ".valve")
    (store.dir / "valve.toml").write_text(
        'embedding = "hashing"\nmodel = "openai/any"\ntest_command = "git --version"\n'
    )
    tasks = Path(os.environ["VALVE_DATA"]) / "tasks/owner__name"
    tasks.mkdir(parents=True)
    (tasks / "repository.toml").write_text('name = "owner/name"\nsource = "path:x"\n')
    row = {
        "instance_id": "a", "repo": "owner/name", "patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n",
        "FAIL_TO_PASS": ["t.py::t"], "PASS_TO_PASS": [], "problem_statement": "x",
    }  # fmt: skip
    (tasks / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    golden("good", valve("doctor"), machine)
    assert {row["state"] for row in valve("doctor", "--json")["rows"] if not row["name"].startswith("extra")} == {"ok"}


@pytest.mark.heavy
def test_each_command_turns_its_row_green(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person would: the command in a shell, then doctor again. Those that need a network are left out."""
    half_configured(machine, monkeypatch)
    monkeypatch.setenv("PATH", f"{BIN}:{SYSTEM}")
    need("bwrap")
    monkeypatch.setenv("VALVE_STARTUP", "0")
    fixed, script = [], ":"
    for _ in range(8):
        said = subprocess.run(["bash", "-c", f"{script}; valve doctor --json"], capture_output=True, text=True)
        rows = [Row(**row) for row in json.loads(said.stdout)["rows"]]
        offline = [r for r in rows if r.fix and not r.fix.startswith((str(BIN), "apt-get", "hf ", "valve tasks"))]
        bad = [r for r in offline if r.state != "ok" and r.name != "task set"]
        assert not {r.name for r in bad} & set(fixed), bad
        if not bad:
            break
        fixed.append(bad[0].name)
        script += f"; {{ {bad[0].fix}; }} >/dev/null"
    assert {"start-up file", "model", "bank", "bank integrity", "user data"} <= set(fixed), (fixed, rows)


@pytest.mark.heavy
def test_each_command_that_installs_turns_its_row_green(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pip from an index on this machine, whose packages are empty, in an environment that has ours beneath it."""
    python = machine / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", machine / "venv"], check=True)
    beneath = next((machine / "venv/lib").glob("python*/site-packages/")) / "beneath.pth"
    beneath.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    monkeypatch.setenv("PATH", f"{python.parent}:{SYSTEM}")

    def rows() -> list[Row]:
        said = subprocess.run([python, "-m", "valve_plugin", "doctor", "--json"], capture_output=True, text=True)
        return [Row(**row) for row in json.loads(said.stdout)["rows"]]

    wanted = {row.name: row.fix for row in rows() if row.fix.startswith(str(python)) and row.name != "task set"}
    assert "extra semantic" in wanted
    for requirement in [word for fix in wanted.values() for word in shlex.split(fix)[4:]]:
        empty_wheel(machine / "index", *re.findall(r"^[\w-]+|[\d.]+$", requirement))
    with index(machine / "index") as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_DEPS", "1")
        for fix in wanted.values():
            subprocess.run(["bash", "-c", fix], check=True, capture_output=True)
    assert {row.name for row in rows() if row.name in wanted and row.state == "ok"} == set(wanted)


def empty_wheel(folder: Path, name: str, version: str) -> None:
    module, place = name.replace("-", "_"), folder / name
    place.mkdir(parents=True)
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(place / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@contextmanager
def index(folder: Path) -> Iterator[str]:
    """Serve a folder; its listings are what pip takes for an index."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.heavy
def test_what_the_system_s_packages_are_called() -> None:
    need("apt-get")
    fixes = re.findall(r"\$ apt-get install -y (.*)", (GOLDEN / "bare.txt").read_text())
    assert len(fixes) == 3
    command = ["apt-get", "install", "-y", "--simulate", *" ".join(fixes).split()]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_an_environment_that_uv_made_has_no_pip(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_install("a>=1").endswith(" -m pip install 'a>=1'")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    python = sys.executable
    assert pip_install("a") == f"{python} -m ensurepip && {python} -m pip install a", "nor is uv on PATH"
    (machine / "bin/uv").touch(0o755)
    assert pip_install("a") == f"uv pip install --python {sys.executable} a"


def installed(folder: Path, **versions: str) -> None:
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()


def test_versions_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(machine / "beside", numpy="1.25.2", swesmith="0.0.9", swebench="5.0.2", sentence_transformers="5.1.2")
    monkeypatch.syspath_prepend(machine / "beside")
    packages, smith, semantic = (LOOKS[name](here()) for name in ("packages", "extra smith", "extra semantic"))
    assert (packages.state, packages.detail) == ("failed", "not installed as needed: numpy>=1.26 (1.25.2 is installed)")
    assert packages.fix.endswith("pip install 'numpy>=1.26'")
    assert smith.detail.startswith("not as needed: swebench==4.1.0 (5.0.2 is installed); ")
    assert "sentence-transformers>=6 (5.1.2 is installed)" in semantic.detail
    assert {smith.state, semantic.state} == {"missing"}


def test_every_extra_has_a_row_that_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = config.tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = set(declared["optional-dependencies"])
    assert {name.removeprefix("extra ") for name in LOOKS if name.startswith("extra ")} == names
    monkeypatch.setattr(doctor_rows, "lacking", lambda extra: {"x": ""})
    missing = {name: LOOKS[f"extra {name}"](here()) for name in names}
    assert all("what it is for" not in found.detail and found.fix for found in missing.values()), missing
    assert missing["skillopt"].detail == "not installed; experiments have no condition `skillopt`"
    assert missing["skillopt"].fix.endswith(" -m pip install skillopt==0.2.0")


@pytest.mark.parametrize(("module", "command"), [("msgspec", "doctor"), ("typer", "doctor"), ("numpy", "plan")])
def test_a_package_that_is_not_there_is_one_line(module: str, command: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv = ['valve', {command!r}]; import valve_plugin.cli"
    done = subprocess.run([sys.executable, "-c", f"{code}; valve_plugin.cli.main()"], capture_output=True, text=True)
    assert done.returncode == 3, done
    (line,) = done.stderr.splitlines()
    assert f"{module} is not installed" in line
    assert " -m pip " in line


@pytest.mark.heavy
def test_one_call_of_the_model(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted model over HTTP, a provider that refuses the key, one whose quota is used up, and nobody at all."""
    taskset = load(library.write(machine / "calc"))
    monkeypatch.setenv("MSWEA_MODEL_NAME", "openai/valve-scripted")
    said, calls = "", []
    with server.start(taskset) as model, proxy.before(model.base_url, 0, 0.0) as provider:
        for name, value in provider.environment(model.environment()).items():
            monkeypatch.setenv(name, value)
        for trouble in ("", "401", "quota", "500"):
            provider.always = trouble
            said += called()
            calls.append(provider.seen.total())
        address = provider.base_url
        provider.always = ""
        assert "model             openai/valve-scripted answers\n" in valve("doctor", "--call", code=1)
    assert calls == [1, 2, 3, 4], "one call each, and none is tried again"
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        free = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, free)
    said += called()
    golden("call", said.replace(address, "ADDRESS").replace(free, "FREE"), machine)


def called() -> str:
    place = Place(find(Path.cwd()), Path.cwd(), Settings(), call=True)
    return "\n".join(text for text, _ in lines([Row("model", *LOOKS["model"](place))])) + "\n"


def test_the_sandbox_is_tried_for_real(data_dir: Path) -> None:
    need("bwrap")
    assert escapes(Bubblewrap()) == []
    assert escapes(UnsafeLocal()) == ["network", "files of this machine", "environment variables"]
    subprocess.Popen(["sleep", "601.25"]).returncode = 0  # it goes on, and nobody waits for it
    assert (_outlived("601.25"), _outlived("601.25")) == (True, False)


@pytest.mark.parametrize("data", ["data", "deep/er/data"])
def test_looking_leaves_nothing(project: Path, monkeypatch: pytest.MonkeyPatch, valve: Run, data: str) -> None:
    need("bwrap")
    forget()
    monkeypatch.setenv("VALVE_DATA", data)
    before = sorted(project.rglob("*"))
    assert "bubblewrap: no network" in valve("doctor", code=None)
    assert sorted(project.rglob("*")) == before
    assert os.environ["VALVE_DATA"] == data


def test_settings_and_task_texts_cannot_steer_the_terminal() -> None:
    shown = [text for text, _ in lines([Row("task set", "failed", "\x1b[2Jx\ny", "rm \x1b]0;z\x07 a")])]
    assert shown == ["failed   task set  x y", f"{'':8} {'':8}  $ rm a", "", "1 row failed: task set"]
