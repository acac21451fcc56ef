"""Progress of a run: a live view on a terminal, otherwise one line per event.

The run's process shows it on stderr and writes each event to the bank's telemetry. `valve evolve --attach` reads the
events there, from another terminal.
"""

from __future__ import annotations

import platform
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from valve_plugin import events
from valve_plugin.cli import output
from valve_plugin.cli.run_view import SIMULATION, View, draw, eta, fold, line, rows, working
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.errors import BankError
from valve_plugin.hookspecs import hookimpl
from valve_plugin.plugins import send
from valve_plugin.words import clock

if TYPE_CHECKING:
    import pluggy
    from rich.live import Live

    from valve_plugin.bank.local import LocalStore
    from valve_plugin.bank.store import BankStore
    from valve_plugin.evolve.open import OpenRun

EVENTS = "events"
"""The telemetry that holds the latest run's events."""
_STYLES = {"accept": "green", "indecisive": "yellow"}
_POLL_SECONDS = 0.5
_CENSUS_SECONDS, _CENSUS_AGAIN = 5.0, 60.0
_ELSEWHERE_SECONDS = 300.0
"""A run on another machine has ended where its record says nothing new for so long."""
_SILENCE_SECONDS = 60.0
"""Time without a line, after which one says what the agents do."""


class Progress:
    """A plugin that shows and records a run's events. Use it as a context manager around the run.

    Args:
        label: printed before every line, where several runs follow each other.
    """

    def __init__(self, label: str = "") -> None:
        self._label = label
        self.view = View(started=time.time())  # until a run says so
        self.stopped = ""
        """Why a budget stopped the run; empty: none did."""
        self._said = time.time()
        """When the last line was printed."""
        self._local: LocalStore | None = None
        self._live: Live | None = None
        self._lock = threading.RLock()  # workers send events, too
        self._over = threading.Event()
        self._hook: pluggy.HookRelay | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._over.set()
        if self._hook:
            send(self._hook, events.RunEnded(how=self.stopped or _ending(error)))
        if self._live:
            self._live.stop()

    def begin(self, run: OpenRun) -> None:
        """Show and record the run from here on."""
        from valve_plugin.evolve.open import start_event

        self._local = run.store.local
        self._local.clear_telemetry(EVENTS)
        self._hook = run.manager.hook
        note = SIMULATION if run.settings.model == SCRIPTED_MODEL else ""
        send(self._hook, start_event(run, note, output.resume_command()))
        if sys.stderr.isatty():
            self._live = _live(lambda: self.view, stderr=True)
            self._live.start()
        if run.settings.executor != "ray":
            send(self._hook, events.AgentsLoading())  # the first rollout waits for it, silently
        else:
            threading.Thread(target=self._census, args=(run,), daemon=True).start()

    def _census(self, run: OpenRun) -> None:
        """Tell what the cluster's nodes do, as long as the run goes on."""
        from valve_plugin.rollouts.ray_executor import nodes_now

        told, at = events.ClusterSeen(), 0.0
        while not self._over.wait(_CENSUS_SECONDS):
            found = nodes_now(run.settings)
            seen = [
                events.NodeSeen(name=one.name, cores=one.cores, rollouts=one.rollouts, problem=one.problem)
                for one in found
            ]
            now = events.ClusterSeen(nodes=tuple(seen))
            if (now != told or time.time() - at > _CENSUS_AGAIN) and not self._over.is_set():
                told, at = now, time.time()
                send(run.manager.hook, told)

    @hookimpl
    def valve_event(self, event: events.Event) -> None:
        """Show one event; any thread may send it."""
        with self._lock:
            now = time.time()
            self.view = fold(self.view, event, now)
            if self._local is not None:
                try:
                    self._local.write_telemetry(EVENTS, {"event": event.name, "data": event.data})
                except (BankError, OSError):  # a run must not fail because its events cannot be recorded
                    self._local = None
            text = line(event)
            if isinstance(event, events.AgentsWorking) and now - self._said >= _SILENCE_SECONDS:
                text = f"working   {working(event)}"
            if text and self._live is None:
                self._said = now
                style = _STYLES.get(event.decision, "") if isinstance(event, events.VerdictReached) else ""
                # position and time left, which a live view shows all the time
                done, of, left = 0, 0, None
                if isinstance(event, events.TaskFinished):
                    done, of, left = self.view.position, self.view.of, eta(self.view, now)
                elif isinstance(event, events.EvaluationAdvanced | events.TrialAdvanced):
                    done, of = event.done, event.of
                    left = (now - (self.view.evaluating_since or self.view.started)) / done * (of - done)
                unknown = ", time left not known yet" if left is None and done < of else ""
                place = f"  [{done}/{of}" + (f", {clock(left)} left]" if left else f"{unknown}]") if of else ""
                output.note(self._label + text + place, style=style)


def _live(view: Callable[[], View], *, stderr: bool) -> Live:
    """Return the display of a view that changes, drawn twice a second from its start to its stop."""
    from rich.console import Group
    from rich.live import Live

    return Live(
        # The terminal echoes ^C at the cursor: the empty line keeps it away from what is erased later.
        get_renderable=lambda: Group(draw(view(), time.time()), ""),
        console=output.console(stderr=stderr),
        refresh_per_second=2,
        transient=stderr,
    )


def _ending(error: BaseException | None) -> str:
    if error is None:
        return "the run is done"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return output.one_line(str(error) or type(error).__name__)


# ---- watching the run of another terminal


class Watched:
    """The bank's latest run on this machine, read from its recorded events."""

    def __init__(self, local: LocalStore) -> None:
        self._local = local
        self._began, self._seen = 0.0, 0
        self.view = View()
        self.read()

    def read(self) -> list[events.Event]:
        """Return the events recorded since the last call; a new run replaces the file, which is then read from 0."""
        recorded = list(self._local.read_timed_telemetry(EVENTS))
        began = recorded[0][0] if recorded else 0.0
        if began != self._began:
            self._began, self._seen = began, 0
        new = []
        for at, data in recorded[self._seen :]:
            with suppress(KeyError, TypeError, ValueError):
                new.append(events.event_of(str(data["event"]), data["data"]))
                self.view = fold(self.view, new[-1], at)
        self._seen = len(recorded)
        return new

    @property
    def alive(self) -> bool:
        """Whether the run goes on. Process ids are reused, so the start time of the process must agree as well."""
        import psutil

        run = self.view.run
        if not run.pid or self.view.ended:
            return False
        if run.host and run.host != platform.node():
            return time.time() - self._local.telemetry_path(EVENTS).stat().st_mtime < _ELSEWHERE_SECONDS
        try:
            return abs(psutil.Process(run.pid).create_time() - run.created) < 1.0
        except (psutil.Error, ValueError):
            return False

    @property
    def ending(self) -> str:
        """How the run ended; empty where there was no run."""
        return self.view.ended or ("it was killed" if self.view.started else "")


def attach(store: BankStore, *, json: bool = False) -> bool:
    """Follow the bank's run until it ends or Ctrl-C; return whether one was going on. If not, show how the last ended.

    With `json`, print once what would be shown now.
    """
    run = Watched(store.local)
    alive, note = run.alive, run.view.run.note
    if json:
        shown = {**dict(rows(run.view, time.time())), **({"note": note} if note else {})}
        ended = "" if alive else run.ending
        output.emit_json({"running": alive, "simulation": note == SIMULATION, "shown": shown, "ended": ended})
    elif alive:
        try:
            live = _live(lambda: run.view, stderr=False) if sys.stdout.isatty() else None
            if live is None:
                say_rows(run.view, time.time())
            with live or nullcontext():
                while run.alive:
                    time.sleep(_POLL_SECONDS)
                    for text in filter(None, map(line, run.read())):
                        if live is None:
                            output.say(text)
            run.read()
            command = run.view.run.command
            resumes = f"start it again to continue: {command}" if command else "start it again to continue"
            output.say(f"ended: {run.view.ended}" if run.view.ended else f"the run was killed; {resumes}")
        except KeyboardInterrupt:
            output.say("stopped watching; the run goes on")
    elif run.view.started:
        output.say(f"no run of this bank is active; the last one on this machine ended: {run.ending}")
        say_rows(run.view, run.view.started, without=("ended", "left"))
    else:
        output.say(
            f"no run of this bank is active, and none is recorded here: {store.dir}. One that has just started is seen "
            "once its first task begins"
        )
    return alive


def say_rows(view: View, now: float, without: Collection[str] = ()) -> None:
    """Print the view's figures, one a line."""
    note = [("note", view.run.note)] if view.run.note else []
    for label, text in note + rows(view, now):
        if label not in without:
            output.say(f"{label:<9} {text}")
