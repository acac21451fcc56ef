"""`valve doctor` on a bare, a half-configured and a good machine; and that its commands fix what it found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.banks import sample
from tests.cli.conftest import Run
from tests.tools import need
from valve_plugin.cli.doctor import lines
from valve_plugin.cli.doctor_rows import Row
from valve_plugin.cli.doctor_sandbox import escapes
from valve_plugin.rollouts import engine, sandbox
from valve_plugin.rollouts.sandbox import Bubblewrap, UnsafeLocal

GOLDEN = Path(__file__).with_name("golden") / "doctor"
SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
BIN = Path(sys.executable).parent


@pytest.fixture
def machine(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but Python: an empty PATH, no user data, no settings of mini, no models."""
    (tmp_path / "bin").mkdir()
    for name, value in {"PATH": "bin", "MSWEA_GLOBAL_CONFIG_DIR": "mini", "HF_HOME": "models", "HOME": "home"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.delenv("MSWEA_MODEL_NAME", raising=False)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Forget what this process found out about the machine's tools."""
    engine.fails.cache_clear()
    sandbox._bubblewrap_fails.cache_clear()


def tools(machine: Path, *names: str) -> None:
    for name in names:
        (machine / "bin" / name).symlink_to(str(shutil.which(name, path=SYSTEM)))
    forget()


def golden(name: str, text: str, machine: Path) -> None:
    """Compare without what differs from machine to machine; WRITE_GOLDEN=1 writes."""
    text = re.sub(r"-[0-9a-f]{12}\b", "-HASH", text.replace(str(machine), "ROOT").replace(sys.executable, "PYTHON"))
    text = re.sub(r"\d+ GiB free", "N GiB free", re.sub(r"\b\d+\.\d+[\w.]*(?<!\.)", "N", text))
    kept, skip = [], False
    for line in text.splitlines():
        skip = " extra s" in line[:20] or (skip and line.lstrip().startswith("$"))  # installed here or not
        kept += [] if skip else [line.rstrip()]
    path, said = GOLDEN / f"{name}.txt", "\n".join(kept) + "\n"
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said)
    assert said == path.read_text()


def test_a_bare_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_STARTUP", "0")
    golden("bare", valve("doctor", code=1), machine)


def test_a_half_configured_machine(machine: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    half_configured(machine, monkeypatch)
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
        offline = [r for r in rows if r.fix and not r.fix.startswith((sys.executable, "apt-get", "hf ", "valve tasks"))]
        bad = [r for r in offline if r.state != "ok" and "tasks mine" not in r.fix]
        assert not {r.name for r in bad} & set(fixed), bad
        if not bad:
            break
        fixed.append(bad[0].name)
        script += f"; {{ {bad[0].fix}; }} >/dev/null"
    assert {"start-up file", "model", "bank", "bank integrity", "user data"} <= set(fixed), (fixed, rows)


def test_the_sandbox_is_tried_for_real(data_dir: Path) -> None:
    need("bwrap")
    assert escapes(Bubblewrap()) == []
    assert escapes(UnsafeLocal()) == [
        "network",
        "files of this machine",
        "environment variables",
        "outliving their end",
    ]


def test_settings_and_task_texts_cannot_steer_the_terminal() -> None:
    shown = [text for text, _ in lines([Row("task set", "failed", "\x1b[2Jx\ny", "rm \x1b]0;z\x07 a")])]
    assert shown == ["failed   task set  x y", f"{'':8} {'':8}  $ rm a", "", "1 row failed: task set"]
