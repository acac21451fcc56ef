"""A real Ray cluster: the local ledger, byte for byte, also where workers, nodes and the whole cluster are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.agents.support import SUBMIT, saying
from tests.evolve import library
from tests.lean import lean
from tests.once import once
from tests.rollouts import cluster as cluster_module
from tests.rollouts.cluster import RayCluster, StartError, path_without
from tests.tools import need, need_module, until
from valve_plugin.agents.retry import listen_to_waits
from valve_plugin.cli import app
from valve_plugin.config import SCRIPTED_MODEL, Settings
from valve_plugin.errors import ConfigError, InfrastructureError
from valve_plugin.records import Attempt, Context
from valve_plugin.rollouts import ray_bridge, ray_executor, retry
from valve_plugin.rollouts.ray_node import Answer, has_key
from valve_plugin.rollouts.workers import Workers
from valve_plugin.sandbox.git import git, read_tree
from valve_plugin.tasks.repository import BASE_REF, prepare, prepare_from
from valve_plugin.tasks.task_set import load

RUN = (
    "--simulate", "-c", "embedding=hashing", "-c", "rho=0.1", "--panel-size", "1", "--rollouts", "2", "--limit", "2",
    "--workers", "3",
)  # fmt: skip
OUT = 3
EXPERIMENT = """
name = "two conditions on a cluster"
simulate = true
holdout = 1
panel = 1
limit = 2
seeds = [1]
eval_rollouts = 1
[[repository]]
name = "calc"
tasks = "calc"
[[condition]]
use = "ungated"
[[condition]]
use = "valve"
[settings]"""


@pytest.fixture(scope="module")
def tasks() -> Path:
    need("bwrap")
    need_module("ray")
    return once("calc-ray", lambda folder: library.write(folder, lean()))


@pytest.fixture(scope="module")
def expected(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The ledger of a run on this machine."""
    return evolve(tasks, tmp_path_factory.mktemp("local") / "bank")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    need_module("ray")
    with RayCluster(tmp_path_factory.mktemp("nodes")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RayCluster) -> RayCluster:
    """Three nodes, whatever the last test did to them; the third has no bubblewrap."""
    running.start("head", "second")
    bare = running.folder / "bin"
    running.start("bare", PATH=str(bare) if bare.exists() else path_without(bare, "bwrap", "podman", "docker"))
    return running


def evolve(tasks: Path, bank: Path, *more: str, code: int = 0) -> bytes:
    done = CliRunner().invoke(app, ["evolve", str(tasks), "--bank", str(bank), *RUN, *more])
    assert done.exit_code == code, done.output
    return (bank / "ledger.jsonl").read_bytes()


@pytest.mark.heavy
def test_the_ledger_is_the_local_one_and_a_node_without_a_sandbox_takes_no_rollout(
    tasks: Path, expected: bytes, cluster: RayCluster, tmp_path: Path
) -> None:
    assert evolve(tasks, tmp_path / "bank", *cluster.arguments) == expected
    assert cluster.rollouts("head") + cluster.rollouts("second") > 0
    assert cluster.rollouts("bare") == 0
    found = ray_executor.nodes(Settings(ray_address=cluster.address, model="anthropic/x"))
    assert sorted(bool(node.problem) for node in found) == [False, False, True]
    assert {node.cores for node in found} == {1}
    assert not any(node.key for node in found)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["worker", "hang", "node", "head"])
def test_after_a_kill_the_run_goes_on_or_pauses_and_ends_the_same(
    tasks: Path, expected: bytes, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(retry, "PAUSES", (0.1,) * len(retry.PAUSES))

    def strike() -> None:
        cluster.await_rollout()
        cluster.kill(kind, random.Random(0))

    thread = threading.Thread(target=strike)
    thread.start()
    run = partial(evolve, tasks, tmp_path / "bank", *cluster.arguments)
    ledger = run(code=OUT if kind == "head" else 0)
    thread.join()
    if kind == "hang":
        cluster.kill("worker", random.Random(0))  # it would keep its node's core
    if kind == "head":  # the cluster is gone; it starts again, and so does the run
        cluster.start("head", "second")
        until(lambda: len(ray_executor.nodes_now(Settings(ray_address=cluster.address))) == 2)
        ledger = run()
    assert ledger == expected


@pytest.mark.heavy
def test_a_queue_of_banks_runs_there_too(tasks: Path, expected: bytes, cluster: RayCluster, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(tasks, tmp_path / "sets" / name)
    words = ["evolve", "--all", str(tmp_path / "sets"), "--bank", str(tmp_path / "banks"), *RUN, *cluster.arguments]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert [path.read_bytes() for path in (tmp_path / "banks").glob("*/ledger.jsonl")] == [expected] * 2


@pytest.mark.heavy
def test_the_conditions_of_an_experiment_run_there_too(tasks: Path, cluster: RayCluster, tmp_path: Path) -> None:
    ledgers = []
    for name, more in (("here", {}), ("there", {"executor": "ray", "ray_address": cluster.address})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "calc").symlink_to(tasks)
        given = {"rollouts": 1, "embedding": "hashing", "rho": "0.1", **more}
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        file = tmp_path / name / "matrix.toml"
        file.write_text("\n".join([EXPERIMENT, *lines]))
        words = ["experiment", "run", str(file), "--out", str(tmp_path / name / "out"), "--workers", "3"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        found = sorted((tmp_path / name / "out").rglob("ledger.jsonl"))
        ledgers.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in found})
    assert len(ledgers[0]) == 2
    assert ledgers[0] == ledgers[1]


@pytest.mark.heavy
def test_a_cancelled_rollout_ends_on_its_node(tasks: Path, cluster: RayCluster) -> None:
    taskset = load(tasks)
    prepare(taskset.repository)
    settings = saying("sleep 600", SUBMIT, ray_address=cluster.address)
    workers = Workers(1)
    run = partial(ray_executor.attempt, settings, taskset.tasks[0], Context(text=""), 0, "evolve")
    job = workers.submit(run)
    cluster.await_rollout()
    workers.kill()
    with pytest.raises(CancelledError):
        job.result()
    cluster.await_end()


@pytest.mark.heavy
def test_what_a_rollout_spent_before_its_worker_died_is_known(tasks: Path, cluster: RayCluster) -> None:
    taskset, told = load(tasks), threading.Event()
    prepare(taskset.repository)
    settings = saying("sleep 600", SUBMIT, ray_address=cluster.address)

    def run() -> Attempt:
        with listen_to_waits(lambda wait: None, lambda steps, usd: told.set()):
            return ray_executor.attempt(settings, taskset.tasks[0], Context(text=""), 0, "evolve")

    with Workers(1) as workers:
        job = workers.submit(run)
        assert until(told.is_set, 300)
        assert sum(node.rollouts for node in ray_executor.nodes_now(settings)) == 1
        cluster.kill("worker", random.Random(0))
        lost = job.result()
    assert (lost.outcome, lost.exit_status, lost.steps) == ("errored", "Lost", 1)
    assert lost.cost_usd > 0


@pytest.mark.heavy
def test_a_node_without_a_key_takes_no_rollout(
    tasks: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start("keyed", MISTRAL_API_KEY="hunter22")
    monkeypatch.setenv("MISTRAL_API_KEY", "hunter22")
    needs = Settings(ray_address=cluster.address, model="mistral/x")
    assert sorted("MISTRAL_API_KEY" in node.problem for node in ray_executor.nodes(needs)) == [False, True, True, True]
    assert [node.key for node in ray_executor.nodes(needs) if not node.problem] == [True]
    free = ray_executor.nodes(Settings(ray_address=cluster.address, model="ollama/x"))
    assert not any("KEY" in node.problem for node in free)
    taskset, before = load(tasks), cluster.rollouts("head") + cluster.rollouts("second")
    prepare(taskset.repository)
    monkeypatch.setattr(ray_executor, "_key_variable", lambda settings: "MISTRAL_API_KEY")
    settings = replace(saying(SUBMIT, ray_address=cluster.address), model="mistral/said")
    made = [ray_executor.attempt(settings, taskset.tasks[0], Context(text=""), n, "evolve") for n in range(2)]
    assert [one.outcome for one in made] == ["unresolved"] * 2
    assert cluster.rollouts("keyed") == 2
    assert cluster.rollouts("head") + cluster.rollouts("second") == before


def test_a_node_that_is_slow_to_start_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [StartError("a node did not start")] * 2
    ends: list[str] = []

    def start(self: RayCluster, *names: str) -> None:
        if slow:
            raise slow.pop()

    monkeypatch.setattr(RayCluster, "start", start)
    monkeypatch.setattr(RayCluster, "kill", lambda self, kind, chance: ends.append(kind))
    monkeypatch.setattr(cluster_module, "_PAUSE_SECONDS", 0.0)
    cluster = RayCluster(tmp_path)
    cluster.start_again("head")
    assert ends == ["head", "head"]  # with all that had begun
    slow = [StartError("a node did not start")] * 9
    with pytest.raises(StartError):
        cluster.start_again("head")


def test_a_cluster_that_stays_away_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Answer(away="no Ray cluster answers")
    ray_executor._require_present("here", away)  # it may come back
    ray_executor._require_present("here", Answer(lost="a node died"))  # it is back
    ray_executor._require_present("here", away)
    monkeypatch.setattr(ray_executor, "_AWAY_SECONDS", -1.0)
    with pytest.raises(InfrastructureError, match="nothing is lost"):
        ray_executor._require_present("here", away)


def test_what_travels_has_no_key() -> None:
    arguments = {"api_key": "hunter22", "max_tokens": 9, "extra_headers": {"Authorization": "hunter22", "x": "y"}}
    config = ("own.yaml", "model.model_kwargs.api_key=hunter22", "model.model_kwargs.max_tokens=9", 'a={"token": "x"}')
    sent = ray_executor._sent(Settings(model="a/b", model_kwargs=arguments, mini_config=config))
    assert sent.mini_config == ("own.yaml", "model.model_kwargs.max_tokens=9", "a={}")
    assert sent.model_kwargs == {"max_tokens": 9, "extra_headers": {"x": "y"}}
    more = {"api_keys": ["hunter22"], "api_base": "https://me:hunter22@host/v1"}
    assert ray_executor._sent(Settings(model="a/b", model_kwargs=more)).model_kwargs == {"api_base": "https://host/v1"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"api_base": "https://h/v1?api_key=hunter22"}, {"api_base": "https://h/v1"}),
        (
            {"api_base": "https://h/v1?version=2&api-key=hunter22&x=1#a"},
            {"api_base": "https://h/v1?version=2&x=1#a"},
        ),
        ({"headers": [["Authorization", "Bearer hunter22"], ["x", "y"]]}, {"headers": [["x", "y"]]}),
        ({"api_key": {"v": "hunter22"}, "max_tokens": 9}, {"max_tokens": 9}),
    ],
)
def test_keys_of_every_shape_stay(given: dict[str, object], kept: dict[str, object]) -> None:
    entry = f"model.model_kwargs={json.dumps(given)}"
    sent = ray_executor._sent(Settings(model="a/b", model_kwargs=given, mini_config=(entry,)))
    assert sent.model_kwargs == kept
    assert json.loads(sent.mini_config[0].partition("=")[2]) == kept


@pytest.mark.parametrize(
    "given",
    [
        {"agent": "solve --with s3cret-hunter22"},
        {"test_command": "DEPLOY=s3cret-hunter22 pytest"},
        {"model_kwargs": {"extra_body": {"who": "s3cret-hunter22"}}},
        {"mini_config": ("agent.note=s3cret-hunter22",)},
    ],
)
def test_a_known_key_in_any_other_setting_is_refused(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ray_executor._sent(settings := Settings(model="a/b", **given))
    monkeypatch.setenv("DEPLOY_TOKEN", "s3cret-hunter22")
    with pytest.raises(ConfigError, match=f"{next(iter(given))} holds a secret .DEPLOY_TOKEN") as refused:
        ray_executor._sent(settings)
    assert "hunter22" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        (Settings(model="openai/x"), "OPENAI_API_KEY"),
        (Settings(model="mistral/x", model_kwargs={"api_key": "hunter22"}), "MISTRAL_API_KEY"),
        (Settings(model="ollama/x"), ""),
        (Settings(model=SCRIPTED_MODEL), ""),
        (Settings(model="bedrock/x"), ""),  # nodes may have a role
        (saying(SUBMIT), ""),
    ],
)
def test_a_node_needs_the_key_that_this_machine_has(
    settings: Settings, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter22")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter22")
    assert ray_executor._key_variable(settings) == variable


def test_another_variable_that_litellm_takes_is_a_key_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    assert not has_key("anthropic/x", os.environ)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "hunter22")
    assert has_key("anthropic/x", os.environ)
    assert not has_key("openai/x", {"OPENAI_API_KEY": ""})


def test_a_cluster_that_is_not_there_is_said_so() -> None:
    need_module("ray")
    with pytest.raises(InfrastructureError, match="no Ray cluster answers"):
        ray_executor.nodes(Settings(ray_address="127.0.0.1:1"))


def test_a_cluster_that_ended_is_told_from_one_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("ray")
    from ray._private import services

    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:1")  # as a `ray start` that was killed leaves it
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)  # the clusters of other tests
    with pytest.raises(ConnectionRefusedError):
        ray_bridge._require_listener("auto")


def test_a_repository_is_fetched_once_and_by_its_commit(calc: Path, data_dir: Path) -> None:
    made = prepare(load(calc).repository)
    fetched = []

    def bundle() -> bytes:
        fetched.append(made.base)
        return git("bundle", "create", "-q", "-", BASE_REF, git_dir=made.store)

    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("VALVE_DATA", str(data_dir / "elsewhere"))
        there = [prepare_from(made.repository, made.base, bundle) for _ in range(2)]
    assert [one.base for one in there] == [made.base] * 2
    assert there[0].store != made.store
    assert read_tree(there[0].store, BASE_REF) == read_tree(made.store, BASE_REF)
    assert fetched == [made.base]


class _Deaf:
    """Ray, where the first cancellation is lost. The real one loses it now and then, so no test can wait for that."""

    def __init__(self) -> None:
        self.cancelled = 0

    def wait(self, jobs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return (jobs, []) if self.cancelled > 1 else ([], jobs)

    def get(self, said: Any) -> Any:
        return said

    def cancel(self, job: Any) -> None:
        self.cancelled += 1

    def remote(self, **options: Any) -> Any:
        return lambda function: function


def test_a_lost_cancellation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_bridge, "_CANCEL_SECONDS", 0.0)
    here, there = Pipe()
    there.send_bytes(b"cancel")
    deaf = _Deaf()
    assert list(ray_bridge._Cluster(deaf)._heard(iter(()), here)) == []
    assert deaf.cancelled == 2
