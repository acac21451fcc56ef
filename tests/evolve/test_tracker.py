"""The tracker for MLflow, with a real store: what a run came to is there, and a store that fails costs no run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.evolve import library
from tests.lean import lean
from tests.tools import need_module
from valve_plugin import plugins
from valve_plugin.bank.entries import Judged
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import PluginError
from valve_plugin.evolve.open import plugin_names

KEY = "hunter22-hunter22"
TRACK = """
import sys
from valve_plugin import events
from valve_plugin.hooks.mlflow import Tracker

tracker = Tracker()
tracker.valve_event(events.RunStarted(repo=sys.argv[1], panel_passes=3))
tracker.valve_event(events.BaselineMeasured(version=0, passes=3, rollouts=8))
verdict = {"needed": 1, "net": (2, 2), "rollouts": 8, "of": 8}
tracker.valve_event(
    events.VerdictReached(decision="accept", version=1, current_passes=3, candidate_passes=5, **verdict)
)
tracker.valve_event(events.BaselineMeasured(version=1, passes=5, rollouts=8))
tracker.valve_event(events.ModelCalled(seconds=1.0))
tracker.valve_event(events.TaskFinished(task_id="a", passed=1, attempts=2))
"""
"""Some events of a run, whose costs nobody counted, of the repository that is its argument."""


def track(repo: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", TRACK, repo], stderr=subprocess.PIPE, text=True)


@pytest.mark.heavy
def test_a_run_is_in_the_store_without_its_keys(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("mlflow")
    monkeypatch.setenv("PYTHONPATH", str(library.toy_site(tmp_path / "site")), prepend=":")
    monkeypatch.setenv("TOY_USD", "0.25")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    library.write(tmp_path / "calc", lean())
    asked = ("evolve", "calc", "--bank", tmp_path / "bank", *library.TOY, "-c", "tracker=mlflow", "--limit", "6")
    library.valve(*asked, "-c", f"model_kwargs.api_key={KEY}", apart=True)
    from mlflow import MlflowClient

    store = BankStore.open(tmp_path / "bank")
    verdicts = [entry.verdict for entry in store.entries() if isinstance(entry, Judged)]
    assert any(verdict.decision == "accept" for verdict in verdicts), "or nothing is tested"
    client = MlflowClient(tracking_uri=f"sqlite:///{data_dir}/mlflow/runs.db")
    experiment = client.get_experiment_by_name("valve acme/core")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.tags["valve.ended"]) == ("FINISHED", "the run is done")
    accepted = client.get_metric_history(run.info.run_id, "accepted")
    assert [one.value == 1 for one in accepted] == [verdict.decision == "accept" for verdict in verdicts]
    assert run.data.metrics["usd"] == pytest.approx(0.25 * sum(
        value for name, value in run.data.metrics.items() if name.startswith("rollouts.")
    ))  # fmt: skip
    kept = Path(client.download_artifacts(run.info.run_id, ""))
    lines = (kept / "verdicts.jsonl").read_text().splitlines()
    assert [json.loads(line)["decision"] for line in lines] == [verdict.decision for verdict in verdicts]
    text = (kept / "versions" / f"{store.bank.version}.md").read_text()
    assert all(item.markdown in text for item in store.bank.items)
    assert "<html" in (kept / "report.html").read_text()
    files = [path for path in (data_dir / "mlflow").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in files)
    assert not (tmp_path / "mlruns").exists(), "nothing is left where the run was started"

    (tmp_path / "file").write_text("")
    done = library.valve(
        *asked,
        "--bank",
        tmp_path / "other",
        "--limit",
        "1",
        apart=True,
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/file/x.db",
    )
    assert done.stderr.count("no more is logged to MLflow") == 1


@pytest.mark.heavy
def test_runs_that_start_at_once_on_a_fresh_store_are_all_logged(data_dir: Path) -> None:
    need_module("mlflow")
    repos = ("acme/core", "acme/core", "acme/web")
    assert [run.communicate(timeout=600)[1] for run in [track(repo) for repo in repos]] == ["", "", ""], (
        "nothing is said"
    )
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{data_dir}/mlflow/runs.db")
    runs = [
        run
        for repo in set(repos)
        for run in client.search_runs([client.get_experiment_by_name(f"valve {repo}").experiment_id])
    ]
    assert len(runs) == len(repos)
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "panel_passes")
        assert {(one.step, one.value) for one in history} == {(0, 3), (1, 5)}, "by the version that was measured"
        assert run.data.metrics["rollouts.extractor"] == 1
        assert not [name for name in run.data.metrics if name.startswith("usd")], "unknown is not 0"


@pytest.mark.heavy
def test_a_run_that_is_killed_while_it_makes_the_store_leaves_none(data_dir: Path) -> None:
    need_module("mlflow")
    with track("acme/core") as killed:
        while not any(path.stat().st_size for path in data_dir.glob("mlflow/**/runs.db")):
            assert killed.poll() is None, "or nothing is tested"
            time.sleep(0.02)
        killed.kill()
    assert not (data_dir / "mlflow" / "runs.db").exists(), "a store has all of its tables"
    assert track("acme/core").communicate(timeout=600)[1] == ""


@pytest.mark.heavy
def test_a_server_that_is_away_holds_a_run_for_seconds(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("mlflow")
    with socket.socket() as nobody:  # bound, so no other process listens there, and not listening itself
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        _, said = track("acme/core").communicate(timeout=60)
    (line,) = said.splitlines()
    assert "no more is logged to MLflow" in line


def test_a_tracker_is_one_more_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin_names(Settings()) == ("valve",)
    assert plugin_names(Settings(tracker="mlflow")) == ("mlflow", "valve")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginError, match="not installed here: "):
        plugins.load(["mlflow"])
