"""Following a run: one line per event on stderr, with a bar and the time left where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from valve_plugin.cli import output
from valve_plugin.cli.meter import Meter
from valve_plugin.hookspecs import hookimpl

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_STYLES = {"accept": "green", "indecisive": "yellow"}


class Progress:
    """A plugin that only watches. Use it as a context manager around the run.

    Args:
        label: stands before everything that is shown, where several runs are watched at once.
        beside: the progress, already entered, of another run that goes on at the same time.
    """

    def __init__(self, label: str = "", beside: Progress | None = None) -> None:
        self._label, self._beside = label, beside
        self._bars: Bars | None = None
        self._stream: TaskID | None = None
        self._gate: TaskID | None = None
        self._meter = Meter(0)
        self.cost_usd = 0.0
        """Of all rollouts seen, replayed ones included."""

    def __enter__(self) -> Progress:
        if self._beside is not None:
            self._bars = self._beside._bars  # a terminal shows one live display at a time
        elif sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=output.console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars and self._beside is None:
            self._bars.stop()

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Show one event."""
        shown = getattr(self, f"_{name}", None)
        line = shown(data) if shown else None
        if line:
            output.note(self._label + line, style=_STYLES.get(str(data.get("decision", "")), ""))

    def _task_started(self, data: Mapping[str, Any]) -> None:
        self._stream = self._advance(self._stream, "stream", data["position"] - 1, data["of"])

    def _attempt_finished(self, data: Mapping[str, Any]) -> None:
        self.cost_usd += data["cost_usd"]

    def _task_finished(self, data: Mapping[str, Any]) -> str:
        mixed = "mixed" if 0 < data["passed"] < data["attempts"] else "not mixed"
        return f"task      {data['task_id']}: {data['passed']} of {data['attempts']} passed, {mixed}"

    def _proposed(self, data: Mapping[str, Any]) -> str:
        what = ", ".join(data["items"]) or f"nothing ({data['reason']})"
        return f"proposed  {what}" + (f"; {data['withheld']} withheld" if data["withheld"] else "")

    def _baseline_started(self, data: Mapping[str, Any]) -> str:
        self._gate = self._advance(None, "baseline", 0, data["rollouts"])
        return f"baseline  {data['rollouts']} rollouts of the current bank on the panel"

    def _baseline(self, data: Mapping[str, Any]) -> str:
        return f"baseline  {data['passes']} of {data['rollouts']} passed"

    def _aa_started(self, data: Mapping[str, Any]) -> str:
        self._gate = self._advance(None, f"A/A {data['number']} of {data['of']}", 0, data["rollouts"])
        return f"A/A {data['number']:<5} of {data['of']}: {data['rollouts']} fresh rollouts of the current bank"

    def _aa(self, data: Mapping[str, Any]) -> str:
        return f"A/A {data['number']:<5} {data['passes']} of {data['rollouts']} passed"

    def _gate_started(self, data: Mapping[str, Any]) -> str:
        self._gate = self._advance(None, "gate", 0, data["rollouts"])
        return f"gate {data['query']:<4} needs {data['current_passes'] + data['needed']} passes"

    def _confirm_started(self, data: Mapping[str, Any]) -> str:
        self._gate = self._advance(None, "confirm", 0, data["rollouts"])
        return f"confirm   reached; has to repeat on {data['rollouts']} fresh rollouts"

    def _rollout_finished(self, data: Mapping[str, Any]) -> None:
        self.cost_usd += data["cost_usd"]
        self._gate = self._advance(self._gate, "gate", data["done"], data["of"])

    def _verdict(self, data: Mapping[str, Any]) -> str:
        wanted = data["current_passes"] + data["needed"]
        ran = f"{data['rollouts']} of {data['of'] * (1 + data['repeated'])} rollouts"
        if data["decision"] == "accept":
            return f"accepted  {data['candidate_passes']} passes, {wanted} needed; now version {data['version']}"
        if data["decision"] == "reject":
            if data["net"][1] >= data["needed"]:
                return f"rejected  a panel task lost more passes than the guard allows, after {ran}"
            return f"rejected  {wanted} passes are out of reach after {ran}"
        return f"undecided {ran} are in, but errored ones could change the verdict"

    def _taken(self, data: Mapping[str, Any]) -> str:
        return f"taken     without a gate; now version {data['version']}"

    def _eval_started(self, data: Mapping[str, Any]) -> str:
        self._gate = self._advance(None, "eval", 0, data["rollouts"])
        self._meter = Meter(data["rollouts"])
        return f"eval      {data['banks']} banks on {data['tasks']} holdout tasks: {data['rollouts']} rollouts to run"

    def _eval_rollout(self, data: Mapping[str, Any]) -> str | None:
        self._gate = self._advance(self._gate, "eval", data["done"], data["of"])
        shown = self._meter.shown(data["done"])
        tenth = data["done"] * 10 // data["of"] > (data["done"] - 1) * 10 // data["of"]
        return f"eval      {shown}" if tenth and self._bars is None else None

    def _evaluated(self, data: Mapping[str, Any]) -> str:
        return f"eval      version {data['version']} is on record"

    def _stale(self, data: Mapping[str, Any]) -> str:
        return f"stale     {data['reason']}"

    def _advance(self, bar: TaskID | None, what: str, done: int, of: int) -> TaskID | None:
        if self._bars is None:
            return None
        if bar is None:
            if self._gate is not None and what != "stream":
                self._bars.remove_task(self._gate)
            bar = self._bars.add_task(self._label + what, total=of)
        self._bars.update(bar, completed=done, total=of)
        return bar
