"""Following a run: one screen where a person watches, else one line per event, on stderr.

What happens is also written to the bank's telemetry, where `valve evolve --attach` reads it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from valve_plugin.cli import again, output
from valve_plugin.cli.lines import line
from valve_plugin.cli.meter import Meter, minutes
from valve_plugin.cli.screen import live
from valve_plugin.cli.view import View, eta, fold
from valve_plugin.errors import BankError
from valve_plugin.hookspecs import hookimpl

if TYPE_CHECKING:
    from rich.live import Live

    from valve_plugin.bank.local import LocalStore
    from valve_plugin.cli.session import Run

EVENTS = "events"
"""The telemetry that holds the latest run's events."""
_STYLES = {"accept": "green", "indecisive": "yellow"}


class Progress:
    """A plugin that only watches. Use it as a context manager around the run.

    Args:
        label: stands before every line, where several runs are watched at once.
        beside: the progress of another run that goes on at the same time; it alone has the screen.
    """

    def __init__(self, label: str = "", beside: Progress | None = None) -> None:
        self._label, self._beside = label, beside
        self.view = View(started=time.time())  # until a run says so
        self.stopped = ""
        """Why a budget stopped the run; empty: none did."""
        self._local: LocalStore | None = None
        self._live: Live | None = None
        self._meter = Meter(0)
        self._lock = threading.RLock()  # waits are told by the workers

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._local:
            self.valve_event("run_ended", {"how": self.stopped or _how(error)})
        if self._live:
            self._live.stop()

    def begin(self, run: Run, note: str = "") -> None:
        """Show and record the run from here on; `note` stands in the title."""
        self._local = run.store.local
        self._local.forget(EVENTS)
        self.valve_event("run_started", {**started(run), "note": note})
        if sys.stderr.isatty() and self._beside is None:
            self._live = live(lambda: self.view, stderr=True, transient=True)
            self._live.start()
        self.valve_event("loading", {})  # the first rollout waits for it, silently

    @property
    def cost_usd(self) -> float:
        """USD of what ran in this run."""
        return self.view.total.usd

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Show one event; any thread may tell it."""
        with self._lock:
            self._show(name, data)

    def _show(self, name: str, data: Mapping[str, Any]) -> None:
        self.view = fold(self.view, name, data, time.time())
        self._record(name, data)
        text = line(name, data) or self._evaluation(name, data)
        if text and self._live is None:
            output.note(self._label + text + self._where(name), style=_STYLES.get(str(data.get("decision", "")), ""))

    def _where(self, name: str) -> str:
        """Where the run is in its stream, and how long it takes from there; a screen shows that all the time."""
        if name != "task_finished" or not self.view.of:
            return ""
        left = eta(self.view, time.time())
        return f"  [{self.view.position}/{self.view.of}" + (f", {minutes(left)} left]" if left else "]")

    def _record(self, name: str, data: Mapping[str, Any]) -> None:
        if self._local is None:
            return
        try:
            self._local.telemetry(EVENTS, {"event": name, "data": dict(data)})
        except (BankError, OSError):  # nobody's run may end because somebody might watch it
            self._local = None

    def _evaluation(self, name: str, data: Mapping[str, Any]) -> str:
        """Lines of `valve eval`, whose readings come tenth by tenth."""
        if name == "eval_started":
            self._meter = Meter(data["rollouts"])
            banks = f"{output.plural(data['banks'], 'bank')} on {output.plural(data['tasks'], 'holdout task')}"
            return f"eval      {banks}: {output.plural(data['rollouts'], 'rollout')} to run"
        if name == "eval_rollout":
            shown = self._meter.shown(data["done"])
            tenth = data["done"] * 10 // data["of"] > (data["done"] - 1) * 10 // data["of"]
            return f"eval      {shown}" if tenth else ""
        return f"eval      version {data['version']} is on record" if name == "evaluated" else ""


def _how(error: BaseException | None) -> str:
    if error is None:
        return "the run is done"
    return (
        "interrupted" if isinstance(error, KeyboardInterrupt) else output.one_line(str(error) or type(error).__name__)
    )


def started(run: Run) -> dict[str, Any]:
    """Return what is known of a run before its first event; with it a screen is complete from the start."""
    import psutil

    from valve_plugin.bank.entries import Proposed
    from valve_plugin.bank.measured import measured
    from valve_plugin.evolve.position import position
    from valve_plugin.gate.guard import limits_of

    store, panel = run.store, run.store.panel()
    entries, stream = list(store.entries()), [task.instance_id for task in run.stream]
    facts: dict[str, Any] = {
        "pid": os.getpid(), "created": psutil.Process().create_time(), "repo": store.bank.repo,
        "workers": run.settings.workers, "of": len(run.stream), "max_mixed": run.settings.max_mixed,
        "mixed": len({e.proposal.task_id for e in entries if isinstance(e, Proposed) and e.attempts} & set(stream)),
        "position": position(store, stream),
        "version": store.bank.version, "limits": limits_of(run.settings)._asdict(),
        "command": again.command(run.settings),
    }  # fmt: skip
    if panel is None:
        return facts
    complete = measured(entries).complete(panel.hash)
    current = store.current_outcomes()
    return facts | {
        "rho": panel.rho, "accepts": max(0, sum("accept" in c.what for c in complete)),
        "start_passes": sum(complete[0].passes) if complete else None,
        "panel_passes": None if current is None else sum(o.outcome == "resolved" for o in current),
        "panel_rollouts": len(panel.tasks) * panel.rollouts,
    }  # fmt: skip
