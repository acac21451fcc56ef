"""The worked plugin in `examples/`: found as its metadata says, used in a run; and really installed by pip."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.bank import build
from tests.host.harness import Mini
from tests.packaging.conftest import ROOT, Tools, run
from valve_plugin.bank.store import BankStore
from valve_plugin.records import Bank, Item, Proposal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = ROOT / "examples" / "third-party-plugin"
RUN = ("-c", "mini.yaml", "-c", "model.yaml", "-c", "valve.top_skills=1", "--plugin", "valve", "--plugin", "newest")


def make_bank(path: Path) -> None:
    """A bank that accepted two skills at once: one on the task at hand, and one that is first by its name."""
    store = BankStore.create(path, build.REPO)
    items = tuple(
        Item(kind="skill", name=name, text=about, markdown=f"Body of {name}.", source_tasks=("t",))
        for name, about in (("fitting", "the task"), ("another", "unrelated"))
    )
    for entry in [*build.opening(), *build.accepting(Bank(repo=build.REPO), Proposal(task_id="t", items=items))]:
        store.append(entry)


def check_used(mini: Mini) -> None:
    """Run mini with the plugin: its step replaced VALVE's, and it was told what happened."""
    make_bank(mini.directory / "bank")
    env = {"VALVE_BANK": str(mini.directory / "bank")}
    done = mini.task(*RUN, "--newest-log", "events.jsonl", env=env)
    assert done.returncode == 0, done.stderr
    assert mini.trajectory()["info"]["plugins"] == ["valve", "newest"]
    assert "Body of another." in mini.system_message()
    assert "Body of fitting." not in mini.system_message()
    events = [json.loads(line) for line in (mini.directory / "events.jsonl").read_text().splitlines()]
    assert "attempt_finished" in [event["event"] for event in events]
    ranked = mini.task(*RUN[:-2], env=env)
    assert ranked.returncode == 0, ranked.stderr
    assert "Body of fitting." in mini.system_message()


def test_its_step_replaces_ours(mini: Mini) -> None:
    metadata = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = mini.plugins / "example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {metadata['name']}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {at}\n" for name, at in metadata["entry-points"]["minisweagent.plugins"].items())
    (info / "entry_points.txt").write_text(f"[minisweagent.plugins]\n{lines}")
    mini.variables["PYTHONPATH"] += f"{os.pathsep}{EXAMPLE / 'src'}"
    check_used(mini)


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_installed_by_pip(tools: Tools, mini: Mini, tmp_path: Path) -> None:
    env = tools.venv(tmp_path / "env")
    tools.install(env, tools.wheel, "pytest", "pip")
    run(env / "python", "-m", "pip", "install", "--quiet", EXAMPLE)
    run(env / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests", cwd=tmp_path)
    mini.bin = env
    check_used(mini)
