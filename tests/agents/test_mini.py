"""mini as the agent of a rollout: its configuration and prices, the slot, and environments without a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minisweagent.exceptions import Submitted

from tests.cli.conftest import Run
from tests.evolve import library
from valve_plugin.agents import mini
from valve_plugin.agents.mini import rollout_config
from valve_plugin.agents.mini_environment import KEPT_BYTES, SUBMIT_LINE, SandboxEnvironment, shorten
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.sandbox.container import Container
from valve_plugin.sandbox.engine import Image
from valve_plugin.sandbox.supervisor import CommandResult, Limit, ProcessLimits

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
        assert f"mini_config {SINGULARITY}: environment_class 'singularity' is refused" in said, command
        assert said.endswith("Leave it out, or name 'docker'"), command
    assert (store.dir / "ledger.jsonl").read_bytes() == before
    assert not (project / "out").exists()
    assert not (Path(os.environ["VALVE_DATA"]) / "repositories").exists(), "nothing was prepared"


def test_the_last_file_that_names_a_class_decides(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("environment:\nagent: {step_limit: 3}\n")
    back = ("environment.environment_class=docker", "environment.environment_class=null")
    for files in ((), ("swebench.yaml",), *(("swebench_modal.yaml", one) for one in back)):
        mini.require_config([*files, str(tmp_path / "mine.yaml")])
    assert mini.read_config([str(tmp_path / "mine.yaml")]) == {
        "agent": {"step_limit": 3},
        "model": {},
        "environment": {},
    }
    with pytest.raises(ValueError, match=r"mini_config swebench_modal\.yaml: .*is refused"):
        mini.require_config(["swebench.yaml", "swebench_modal.yaml", str(tmp_path / "mine.yaml")])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no such file"),
        (b"\xff\xfe\x00", "expected a file or KEY=VALUE"),
        (b"environment: docker", "expected agent, model, environment, each a mapping"),
        (b"environment: {environment_class: [a]}", "is refused"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "given.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as caught:
        mini.require_config([str(path)])
    assert str(path) in str(caught.value)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MSWEA_COST_TRACKING", "MSWEA_MODEL_NAME", "LITELLM_MODEL_REGISTRY_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_what_the_refusal_advises_is_taken(tmp_path: Path, counting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(model="openai/nobody-prices-this")
    with pytest.raises(ConfigError, match="the price of openai/nobody-prices-this is not known") as refused:
        mini.require_price(settings)
    advised = re.search(r"LITELLM_MODEL_REGISTRY_PATH names, with JSON like (\{.*\}), in USD", str(refused.value))
    assert advised
    assert "export MSWEA_COST_TRACKING=ignore_errors" in str(refused.value)
    (tmp_path / "prices.json").write_text(json.dumps(json.loads(advised[1])))
    monkeypatch.setenv("LITELLM_MODEL_REGISTRY_PATH", str(tmp_path / "prices.json"))
    mini.require_price(settings)


def test_a_model_that_nobody_prices_is_refused_without_loading_litellm(counting: None) -> None:
    script = (
        "import sys; from valve_plugin.client import is_priced; "
        "assert not is_priced('openai/nobody-prices-this'); assert 'litellm' not in sys.modules; "
        "assert is_priced('openai/gpt-4o')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_where_no_price_is_needed_none_is_asked_for(
    tmp_path: Path, counting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "openai/nobody-prices-that"
    config = tmp_path / "mini.yaml"
    config.write_text(f"model: {{model_name: {unknown}}}\n")
    for refused in (Settings(model="no-provider-at-all"), Settings(mini_config=(str(config),))):
        with pytest.raises(ConfigError, match="is not known"):
            mini.require_price(refused)
    config.write_text("model: {cost_tracking: ignore_errors}\n")
    for taken in (
        Settings(model="openai/gpt-4o"),
        Settings(model="openrouter/maker/its-replies-have-a-cost"),
        Settings(model=unknown, model_class="requesty"),
        Settings(model=unknown, model_kwargs={"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}),
        Settings(model=unknown, mini_config=(str(config),)),
    ):
        mini.require_price(taken)
    monkeypatch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
    mini.require_price(Settings(model=unknown))


def test_an_effort_asked_for_is_insisted_on_where_litellm_is_the_client() -> None:
    given = {"reasoning_effort": "high"}
    for settings, insists in (
        (Settings(model="openai/gpt-4o", model_kwargs=given), True),
        (Settings(model="openai/gpt-4o"), False),
        (Settings(model="m", model_class="portkey", model_kwargs=given), False),
    ):
        spec: Any = SimpleNamespace(settings=settings, task_id="t", ordinal=0)
        sent = rollout_config(spec)["model"]["model_kwargs"]
        assert sent["drop_params"] is True
        assert (sent.get("allowed_openai_params") == ["reasoning_effort"]) == insists


@given(st.binary(max_size=100), st.integers(0, 3 * KEPT_BYTES))
def test_long_outputs_keep_their_beginning_and_end(part: bytes, fill: int) -> None:
    output = part + b"x" * fill + part[::-1]
    short = shorten(output)
    if len(output) <= 2 * KEPT_BYTES:
        assert short == output
    else:
        assert len(short) <= 2 * KEPT_BYTES + 40
        assert short.startswith(output[:KEPT_BYTES])
        assert short.endswith(output[-KEPT_BYTES:])
        assert b"bytes left out" in short


class _Replies:
    """A sandbox that answers one thing, and notes what it was asked."""

    name, root = "replies", "/testbed"

    def __init__(self, output: bytes = b"", returncode: int = 0, limit: Limit = "") -> None:
        self.done = CommandResult(returncode=returncode, output=output, truncated=False, limit=limit)
        self.asked: dict[str, Any] = {}

    def run(self, command: str | Sequence[str], workspace: Any, **options: Any) -> CommandResult:
        self.asked = {"command": command, **options}
        return self.done


def _environment(sandbox: Any, **config: Any) -> SandboxEnvironment:
    return SandboxEnvironment(sandbox, None, **config)  # type: ignore[arg-type]


def test_limits_and_variables_reach_the_sandbox() -> None:
    sandbox = _Replies(b"\xff ok")
    done = _environment(sandbox, env={"A": "b"}, timeout=7, unknown="ignored, as by mini").execute({"command": "ls"})
    assert done == {"output": "\ufffd ok", "returncode": 0, "exception_info": ""}
    assert sandbox.asked["command"] == "ls"
    assert sandbox.asked["env"] == {"A": "b"}
    assert sandbox.asked["limits"] == ProcessLimits(cpu_seconds=7)
    _environment(sandbox).execute({"command": "ls"}, "sub", timeout=3)
    assert (sandbox.asked["limits"].cpu_seconds, sandbox.asked["cwd"]) == (3, "sub")


def test_a_container_is_one_for_the_whole_rollout() -> None:
    class Box(Container):
        def start(self, workspace: Any, readonly: Sequence[Path] = (), memory_bytes: int = 0) -> Any:
            started.append(memory_bytes)
            return SimpleNamespace(run=run, stop=lambda: started.append("stopped"))

    def run(command: Sequence[str], **options: Any) -> CommandResult:
        asked.append((command, options["cwd"], options["env"]))
        return CommandResult(returncode=0, output=b"ok", truncated=False, limit="")

    started, asked = list[Any](), list[Any]()
    box = _environment(Box(Image(engine="podman", name="i", id="1")), env={"A": "b"}, memory_mib=7, cwd="/testbed")
    for _ in range(2):
        assert box.execute({"command": "ls"})["output"] == "ok"
    box.cleanup()
    box.cleanup()
    assert asked == [(["bash", "-c", "ls"], "/testbed", {"A": "b"})] * 2
    assert started == [7 * 2**20, "stopped"]


@pytest.mark.parametrize(
    ("output", "returncode", "submits"),
    [
        (SUBMIT_LINE, 0, True),
        (f"\n  {SUBMIT_LINE}  \nrest\n", 0, True),
        (f"first\n{SUBMIT_LINE}", 0, False),
        (f"{SUBMIT_LINE} and more", 0, False),
    ],
)
def test_submissions_are_recognised_as_mini_does(output: str, returncode: int, submits: bool) -> None:
    from minisweagent.environments.local import LocalEnvironment

    def submitted(check: Any) -> Mapping[str, Any] | None:
        try:
            check()
        except Submitted as e:
            return e.messages[0]
        return None

    ours = submitted(lambda: _environment(_Replies(output.encode(), returncode)).execute({"command": "x"}))
    minis = submitted(lambda: LocalEnvironment()._check_finished({"output": output, "returncode": returncode}))
    assert ours == minis
    assert (ours is not None) == submits


def test_prompts_cannot_read_this_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    environment = _environment(_Replies())
    assert "planted" not in str(environment.get_template_vars()) + str(environment.serialize())
    assert environment.get_template_vars(a=1)["a"] == 1
    assert environment.get_template_vars()["system"]


def test_a_home_that_cannot_be_written_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", "/proc/mini")
    with pytest.raises(ConfigError, match=r"the folder /proc/mini.*MSWEA_GLOBAL_CONFIG_DIR="):
        mini.require_config([])
