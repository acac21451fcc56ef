"""Several runs at once, each in a process of its own, with one set of workers and one budget for all of them.

A run's lines appear with its name before them. What one run does cannot stop another.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple

from valve_plugin.cli import output
from valve_plugin.config import Settings
from valve_plugin.extras import ignore_dotenv
from valve_plugin.theory.budget import BudgetLimits

_GRACE_SECONDS = 20.0


class Job(NamedTuple):
    """A run: a function of the package, and its arguments, which travel as JSON."""

    name: str
    function: str
    """module:function"""
    arguments: Mapping[str, Any]


class Ended(NamedTuple):
    """How a run ended."""

    code: int
    said: str
    """Its last line, without "valve: "."""
    answer: Any
    """The JSON that it printed; None where it printed none."""


def run(
    jobs: Sequence[Job],
    settings: Settings,
    limits: BudgetLimits | None = None,
    tell: Callable[[str, Ended], None] = lambda name, ended: None,
) -> dict[str, Ended]:
    """Run jobs, at most as many at a time as there are workers, and return how each ended; `tell` hears it at once.

    Ctrl-C ends all of them, each as Ctrl-C ends it alone.
    """
    from valve_plugin.rollouts import ray_executor
    from valve_plugin.rollouts.share import Share

    if settings.executor == "ray":
        ray_executor.require_nodes(settings)  # here, so that all use one connection to the cluster, which outlives each
    ended: dict[str, Ended] = {}
    width = max((len(job.name) for job in jobs), default=0)
    with Share(settings.workers, limits) as share, ThreadPoolExecutor(settings.workers) as pool:
        children = _Children(share.address)
        open_: dict[Future[Ended], str] = {pool.submit(children.run, job, width): job.name for job in jobs}
        try:
            while open_:
                for done in wait(open_, return_when=FIRST_COMPLETED).done:
                    name = open_.pop(done)
                    ended[name] = done.result()
                    tell(name, ended[name])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            raise
    return ended


class _Children:
    """The processes of the runs."""

    def __init__(self, share: str) -> None:
        from valve_plugin.agents.process import server_address

        self._share, self._server = share, server_address()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: Job, width: int) -> Ended:
        """Run one to its end."""
        from valve_plugin.rollouts.share import VARIABLE
        from valve_plugin.sandbox.supervisor import python_command

        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
            given.write(json.dumps([job.function, job.arguments, sys.argv, os.getpid(), self._server]).encode())
            given.seek(0)
            with self._lock:
                if self._stopped:
                    raise KeyboardInterrupt
                process = subprocess.Popen(
                    python_command(f"from {__name__} import main; main()"),
                    stdin=given,  # not arguments, which all can read: it may hold keys
                    stdout=answer,
                    stderr=subprocess.PIPE,
                    env={**os.environ, VARIABLE: self._share},
                    start_new_session=True,  # Ctrl-C is for us
                )
                self._running.add(process)
            said = ""
            assert process.stderr is not None
            with process.stderr:
                for raw in process.stderr:
                    text = raw.decode("utf-8", "replace").rstrip()
                    said = text or said
                    output.relay(f"{job.name:{width}}  {text}")
            code = process.wait()
            with self._lock:
                self._running.discard(process)
            answer.seek(0)
            with suppress(ValueError):
                return Ended(code, said.removeprefix("valve: "), json.loads(answer.read() or b"null"))
            return Ended(code, said.removeprefix("valve: "), None)

    def stop(self) -> None:
        """End all, as Ctrl-C would."""
        from valve_plugin.sandbox.supervisor import kill_tree

        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                kill_tree(process.pid)


def main() -> None:
    """Run one job, in its process."""
    import typer

    from valve_plugin.agents.process import use_server
    from valve_plugin.gate.panel_run import stop_with

    ignore_dotenv()
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    function, arguments, sys.argv, parent, server = json.load(sys.stdin)  # the words of the command resume the run
    stop_with(parent)
    use_server(server)
    output.bank = str(arguments.get("bank") or "")
    module, _, name = function.partition(":")
    try:
        with output.boundary():
            getattr(importlib.import_module(module), name)(**arguments)
    except typer.Exit as e:
        sys.exit(e.exit_code)
