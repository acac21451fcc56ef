"""A tracker: the versions, verdicts, costs and the page of each run in MLflow. An ordinary observer of `valve_event`.

It sends nothing anywhere but to the store: a file in user data, unless $MLFLOW_TRACKING_URI names another. What it
logs is what events say, the bank's items as text, and the page: no keys, no settings of model calls.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from valve_plugin import events
from valve_plugin.errors import ConfigError
from valve_plugin.extras import install_command
from valve_plugin.files import hold_lock
from valve_plugin.hookspecs import hookimpl
from valve_plugin.paths import data_dir
from valve_plugin.theory.budget import Role, Spending, spending_by_role

_TOLD = (events.TaskFinished, events.VerdictReached, events.EvaluationRecorded, events.RunEnded)
"""Events after which the costs are logged; each rollout would be too often."""
_QUIET = {"DISABLE_TELEMETRY": "true", "LOGGING_LEVEL": "WARNING"}  # read by its import; else it tells of its tables
_SETTINGS = {**_QUIET, "HTTP_REQUEST_TIMEOUT": "10", "HTTP_REQUEST_MAX_RETRIES": "1"}
"""MLflow's own, where the person has none. A run waits for its tracker, and MLflow alone would try for minutes."""


def _own_store(place: Path) -> str:
    """Return the address of the store in user data, made aside first: tables that are half made stay so."""
    store = place / "runs.db"
    if not store.exists():
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        make: Any = SqlAlchemyStore  # it has no types
        with TemporaryDirectory(dir=place) as aside:
            make(f"sqlite:///{aside}/runs.db", (place / "artifacts").as_uri()).engine.dispose()
            Path(aside, "runs.db").replace(store)
    return f"sqlite:///{store}"


class Tracker:
    """Logs each run of a process. What goes wrong ends the tracking, and never the run."""

    def __init__(self) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(f"tracker is 'mlflow', which is not installed here: {install_command('mlflow')}")
        self._lock = threading.RLock()  # workers send events, too
        self._client: Any = None
        self._run = ""
        self._bank = Path()
        self._spent: dict[Role, Spending] = {}
        self._verdicts: list[dict[str, Any]] = []

    @hookimpl
    def valve_event(self, event: events.Event) -> None:
        """Log one event."""
        with self._lock:
            try:
                if isinstance(event, events.RunStarted):
                    self._start(event)
                elif self._run:
                    self._log(event)
            except Exception as e:  # noqa: BLE001 (a store that fails costs its records, not the run)
                self._run = ""
                sys.stderr.write(f"valve: no more is logged to MLflow: {type(e).__name__}: {str(e)[:300]!r}\n")

    def _start(self, event: events.RunStarted) -> None:
        for setting, value in _SETTINGS.items():
            os.environ.setdefault(f"MLFLOW_{setting}", value)
        from mlflow import MlflowClient

        uri, place = os.environ.get("MLFLOW_TRACKING_URI", ""), (data_dir() / "mlflow").resolve()
        where = None if uri else (place / "artifacts" / event.repo.replace("/", "__")).as_uri()
        name = f"valve {event.repo}"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)  # the page quotes the person's code
        opening, busy = place / "opening.lock", f"{place}: another run has been opening the store for 5 minutes"
        # MLflow makes its tables without a lock, and runs start at the same time.
        with nullcontext() if uri.startswith("http") else hold_lock(opening, 300, busy):
            self._client = MlflowClient(tracking_uri=uri or _own_store(place))
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name, artifact_location=where)
        tags = {"valve.command": event.command, "valve.note": event.note, "valve.bank": event.bank}
        self._run = self._client.create_run(experiment, tags=tags, run_name=event.note or None).info.run_id
        self._bank, self._spent, self._verdicts = Path(event.bank), {}, []
        for name in ("workers", "rho", "of", "version"):
            self._client.log_param(self._run, name, getattr(event, name))
        if event.panel_passes is not None:
            self._metric("panel_passes", event.panel_passes, event.version)

    def _log(self, event: events.Event) -> None:
        from valve_plugin.bank.store import BankStore

        kinds = (events.RolloutEvent, events.RolloutCut, events.ModelCalled)
        if isinstance(event, kinds) and not getattr(event, "replayed", False):
            for role, more in spending_by_role([event.data]).items():
                self._spent[role] = self._spent.get(role, Spending()).plus(*more)
        match event:
            case events.VerdictReached():
                self._verdicts.append(event.data)
                for name in ("candidate_passes", "current_passes", "needed", "rollouts", "version"):
                    self._metric(name, getattr(event, name), len(self._verdicts))
                self._metric("accepted", event.decision == "accept", len(self._verdicts))
                if event.decision == "accept":
                    self._metric("panel_passes", event.candidate_passes, event.version)
                lines = "".join(json.dumps(verdict) + "\n" for verdict in self._verdicts)
                self._client.log_text(self._run, lines, "verdicts.jsonl")
            case events.ProposalAccepted() | events.ProposalTaken():
                items = BankStore.open(self._bank).bank.items
                text = "\n\n".join(f"# {item.kind} {item.name}\n\n{item.markdown}" for item in items)
                self._client.log_text(self._run, text, f"versions/{event.version}.md")
            case events.BaselineMeasured():
                self._metric("panel_passes", event.passes, event.version)
            case events.TaskFinished():
                self._metric("task_passes", event.passed, len(self._verdicts))
        if isinstance(event, _TOLD):
            self._costs(len(self._verdicts))
        if isinstance(event, events.RunEnded):
            self._page()
            self._client.set_tag(self._run, "valve.ended", event.how)
            self._client.set_terminated(self._run, "FINISHED" if event.how == "the run is done" else "KILLED")
            self._run = ""

    def _costs(self, step: int) -> None:
        usd = {f"usd.{role}": spent.usd for role, spent in self._spent.items()}
        for name, value in {**usd, "usd": sum(usd.values())}.items():
            if value:  # 0: nobody counted it
                self._metric(name, value, step)
        for role, spent in self._spent.items():
            self._metric(f"rollouts.{role}", spent.rollouts, step)

    def _page(self) -> None:
        from valve_plugin.bank.store import BankStore
        from valve_plugin.report.build import build_run
        from valve_plugin.report.page import attempt_details, render_page

        store = BankStore.open(self._bank)
        report = build_run(store)
        self._client.log_text(
            self._run, render_page([report], attempt_details([(report, store.local)], 1_000_000)), "report.html"
        )

    def _metric(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._run, name, float(value), step=step)
