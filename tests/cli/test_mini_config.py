"""What mini's configuration may not ask of unattended rollouts is refused by every command, before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.evolve import library
from valve_plugin.bank.store import BankStore
from valve_plugin.rollouts import mini_config

SINGULARITY = "environment.environment_class=singularity"
EXPERIMENT = """
name = "x"
simulate = true
holdout = 2
panel = 2
repository = [{ name = "calc", tasks = "calc" }]
condition = [{ use = "base" }, { use = "valve", settings = { mini_config = ["CONFIG"] } }]
"""


def test_a_refused_environment_class_stops_every_command_before_anything_runs(project: Path, valve: Run) -> None:
    library.write(project / "calc")
    store = BankStore.create(project / "bank", "acme/calc", {})
    store.local.queue_push({"kind": "extract"})  # so that the gate has something to do
    (project / "matrix.toml").write_text(EXPERIMENT.replace("CONFIG", SINGULARITY))
    before = (store.dir / "ledger.jsonl").read_bytes()
    given = ("-c", "model=any", "-c", f'mini_config=["mini.yaml", "{SINGULARITY}"]', "--bank", "bank")
    for command in (
        ("evolve", "calc", *given),
        ("panel", "run", "--current", "--tasks", "calc", *given),
        ("gate", "--tasks", "calc", *given),
        ("eval", "calc", *given),
        ("plan", "--measure", "2", "--tasks", "calc", *given),
        ("experiment", "run", "matrix.toml", "--out", "out"),
    ):
        assert valve(*command, code=2) == "", command
        said = valve.err.splitlines()[-1]  # type: ignore[attr-defined]
        assert f"mini_config {SINGULARITY}: environment_class 'singularity' is refused: its --contain" in said, command
        assert said.endswith("Leave it out, or name 'docker'"), command
    assert (store.dir / "ledger.jsonl").read_bytes() == before
    assert not (project / "out").exists()
    assert not (Path(os.environ["VALVE_DATA"]) / "repositories").exists(), "nothing was prepared"


def test_the_last_file_that_names_a_class_decides(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("environment:\nagent: {step_limit: 3}\n")
    back = ("environment.environment_class=docker", "environment.environment_class=null")
    for given in ((), ("swebench.yaml",), *(("swebench_modal.yaml", one) for one in back)):
        mini_config.require([*given, str(tmp_path / "mine.yaml")])
    assert mini_config.read([str(tmp_path / "mine.yaml")]) == {
        "agent": {"step_limit": 3},
        "model": {},
        "environment": {},
    }
    with pytest.raises(ValueError, match=r"mini_config swebench_modal\.yaml: .*outlive a killed run"):
        mini_config.require(["swebench.yaml", "swebench_modal.yaml", str(tmp_path / "mine.yaml")])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no such file"),
        (b"agent: [unclosed", "expected a file or KEY=VALUE"),
        (b"\xff\xfe\x00", "expected a file or KEY=VALUE"),
        (b"- a list", "expected agent, model, environment, each a mapping"),
        (b"environment: docker", "expected agent, model, environment, each a mapping"),
        (b"environment: {environment_class: [a]}", "nothing is known about its isolation"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "given.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as caught:
        mini_config.require([str(path)])
    assert str(path) in str(caught.value)
