"""Every way to start mini takes plugins: scripts, modules, benchmarks, `valve mini`, a real HTTP model."""

from __future__ import annotations

import json
import os
import sysconfig

import pytest

from tests.agents.support import commanding
from tests.host.harness import SUBMIT, Mini, deterministic
from tests.tools import some

CONFIG = ("-c", "mini.yaml", "-c", "model.yaml")

PROGRAMS = [
    ("mini-swe-agent",),
    ("python", "-m", "minisweagent"),
    ("python", "-X", "utf8", "-m", "minisweagent.run.mini"),
    ("python", "-c", "from minisweagent.run.mini import app; app()"),
]


@pytest.mark.parametrize("program", some(PROGRAMS, PROGRAMS[3]), ids=" ".join)
def test_single_runs(mini: Mini, program: tuple[str, ...]) -> None:
    done = mini.task(*CONFIG, "--plugin=probe", program=program)
    assert done.returncode == 0, done.stderr
    assert mini.trajectory()["info"]["plugins"] == ["probe"]
    assert mini.events("post_run")[0]["result"]["api_calls"] == 2


@pytest.mark.parametrize("switch", some(["0", "1"], "0"))
def test_valve_mini(mini: Mini, switch: str) -> None:
    env = {"VALVE_STARTUP": switch}
    done = mini.task(*CONFIG, "-c", "valve.learn=off", "--plugin", "probe", program=("valve", "mini"), env=env)
    assert done.returncode == 0, done.stderr
    assert mini.trajectory()["info"]["plugins"] == ["valve", "probe"]
    assert mini.events("configure")[0]["options"] == {"level": 7}


@pytest.fixture
def bench(mini: Mini) -> Mini:
    """Two SWE-bench rows in a local data set, run in the local environment."""
    rows = [{"instance_id": f"task__{n}", "problem_statement": f"Issue number {n}."} for n in range(2)]
    data = mini.directory / "dataset"
    data.mkdir()
    (data / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mini.variables |= {"HF_DATASETS_CACHE": str(mini.directory / "cache"), "HF_HUB_OFFLINE": "1"}
    deterministic(mini.directory / "model.yaml", "true")
    (mini.directory / "block").write_text("{{ block }}")
    return mini


BENCH = ("--subset", "dataset", "--split", "test", "-c", "swebench.yaml", "-c", "model.yaml")
LOCAL = ("-c", "environment.environment_class=local", "-c", "environment.cwd=.", "--plugin", "probe")


def test_swebench_batch_in_threads(bench: Mini) -> None:
    done = bench(
        *BENCH, *LOCAL, "-w", "2", "-o", "out", program=("mini-extra", "swebench"), env={"PROBE_BLOCK": "block"}
    )
    assert done.returncode == 0, done.stderr
    predictions = json.loads((bench.directory / "out" / "preds.json").read_text())
    assert {k: v["model_patch"] for k, v in predictions.items()} == {
        "task__0": "the-submission\n",
        "task__1": "the-submission\n",
    }
    for n in range(2):
        name = f"out/task__{n}/task__{n}.traj.json"
        assert bench.system_message(name).endswith("\n\n{{ block }}")
        assert bench.trajectory(name)["info"]["plugins"] == ["probe"]
        assert bench.trajectory(name)["instance_id"] == f"task__{n}"
    assert len(bench.events("configure")) == 1
    assert sorted(e["task"] for e in bench.events("post_run")) == ["Issue number 0.", "Issue number 1."]
    assert [e["result"]["cost"] for e in bench.events("post_run")] == [1.0, 1.0]


@pytest.mark.heavy
def test_swebench_single(bench: Mini) -> None:
    args = ("-i", "task__1", "-y", "--exit-immediately", "-o", "t.json")
    done = bench(*BENCH, *LOCAL, *args, program=("mini-extra", "swebench-single"), env={"PROBE_BLOCK": "block"})
    assert done.returncode == 0, done.stderr
    assert bench.events("post_run")[0]["task"] == "Issue number 1."
    assert bench.system_message().endswith("\n\n{{ block }}")


@pytest.mark.heavy
def test_a_repository_names_no_server_for_the_keys(mini: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm looks for a `.env` above where it is installed, and above the working directory of a `python -c`."""
    monkeypatch.delenv("LITELLM_MODE", raising=False)  # a test that used valve in this process has set it
    (mini.directory / "site-packages").symlink_to(sysconfig.get_path("purelib"))  # an environment in the clone
    with commanding([SUBMIT]) as mine, commanding([SUBMIT]) as theirs:
        env = {
            "OPENAI_API_KEY": "sk-test",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PYTHONPATH": f"{mini.directory / 'site-packages'}{os.pathsep}{mini.plugins}",
        }
        (mini.directory / "global").mkdir()
        (mini.directory / "global/.env").write_text(f"OPENAI_API_BASE={mine.url}\n")
        (mini.directory / ".env").write_text(f"OPENAI_BASE_URL={theirs.url}\n")
        for plugin, asked in (("probe", (0, 1)), ("valve", (1, 1))):  # the plant works, and no longer does
            done = mini.task("-m", "openai/scripted", "--plugin", plugin, env=env)
            assert done.returncode == 0, done.stderr
            assert (len(mine.requests), len(theirs.requests)) == asked, plugin
