"""The process of a run that is in the Ray cluster: it passes rollouts on to nodes, and what they say back."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection as pipes
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from valve_plugin import __version__
from valve_plugin.agents.faults import without_wrappers
from valve_plugin.rollouts.ray_node import Answer, Node, Request, encode, nobody, read
from valve_plugin.sandbox.git import git
from valve_plugin.tasks.repository import BASE_REF
from valve_plugin.words import one_line

_POLL_SECONDS = 0.2
_PROBE_SECONDS = 120.0
_JOIN_SECONDS = 40.0
"""Until the bridge is in the cluster, at most."""
_WATCH_SECONDS = 2.0
_SILENT_SECONDS = 20.0
"""A cluster that does not answer the bridge for so long is gone."""
_QUIET_SECONDS = 30.0
"""A rollout that has begun and does not say for so long that it goes on is lost: its node or worker hangs."""
_CANCEL_SECONDS = 3.0
"""After so long a cancelled rollout that has not ended is cancelled again."""
_NODE_ID = "ray.io/node-id"


def bridge() -> None:
    """Pass rollouts on to the cluster until the process that started this one has ended.

    `sys.argv` holds the file descriptors of a listening socket and of a pipe, and the cluster's address.
    """
    alive, address = int(sys.argv[2]), sys.argv[3]
    _require_listener(address)
    import ray

    with _in_time(_JOIN_SECONDS):
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    threading.Thread(target=_watch, args=(ray,), daemon=True).start()
    cluster = _Cluster(ray)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        while alive not in pipes.wait([listener, alive]):
            accepted, _ = listener.accept()
            threading.Thread(target=cluster.serve, args=(Connection(accepted.detach()),), daemon=True).start()
    ray.shutdown()
    os._exit(0)


def _require_listener(address: str) -> None:
    """Raise `OSError` where nothing listens at HOST:PORT or "auto"; Ray would try for a minute."""
    if address == "auto":  # a file may still name a cluster that has ended
        from ray._private.services import canonicalize_bootstrap_address

        address = canonicalize_bootstrap_address(address) or ""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """End this process where a call of Ray does not."""
    late = threading.Timer(seconds, _end, (f"Error: the cluster has not answered within {seconds:.0f} s",))
    late.daemon = True
    late.start()
    yield
    late.cancel()


def _end(why: str) -> None:
    print(why, flush=True)
    os._exit(1)


def _watch(ray: Any) -> None:
    """End this process when its node is gone or the head is another one; Ray itself may then wait for minutes."""
    here, alive = ray.get_runtime_context().get_node_id(), True
    try:
        while alive:
            time.sleep(_WATCH_SECONDS)
            with _in_time(_SILENT_SECONDS):
                alive = any(node["Alive"] and node["NodeID"] == here for node in ray.nodes())
    finally:
        _end("the cluster started anew, or lost the node of this process")


class _Cluster:
    """The cluster as the bridge sees it."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

        # Calls a function of `ray_node`. It travels by value, so it runs without VALVE, too.
        def there(function: str, *arguments: Any) -> Iterator[tuple[str, str, bytes]]:
            import ray

            node = ray.get_runtime_context().get_node_id()
            try:
                from valve_plugin.rollouts import ray_node
            except ImportError as e:
                yield node, f"valve cannot be loaded there: {e}", b""
                return
            for answer in getattr(ray_node, function)(*arguments):
                yield node, *answer

        # retries are the driver's: it counts and shows them
        self._there = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(there)
        self._unfit: dict[str, str] = {}
        """Why nodes take no rollouts, by id."""
        self._bundles: dict[str, Any] = {}
        """References to bundles in the object store, by commit."""
        self._busy: Counter[str] = Counter()
        """Rollouts at work, by the id of their node."""
        self._lock = threading.Lock()

    def serve(self, connection: Connection) -> None:
        """Answer one request. A message before the answer, or the end of the connection, cancels the rollout."""
        with connection, suppress(OSError, EOFError):
            request = read(connection.recv_bytes(), Request)
            answer = self._run(request, connection) if request.rollout else self._nodes(request)
            connection.send_bytes(encode(answer))

    def _run(self, request: Request, connection: Connection) -> Answer:
        """Run a rollout on a node that can; one that cannot says so before the agent starts."""
        # The reference to a repository's bundle; Ray copies it to a node at most once
        with self._lock:
            if request.base not in self._bundles:
                data = git("bundle", "create", "-q", "-", BASE_REF, git_dir=Path(request.store))
                self._bundles[request.base] = self._ray.put(data)
            bundle = self._bundles[request.base]
        while True:
            unfit = ",".join(self._unfit)
            where = {"label_selector": {_NODE_ID: f"!in({unfit})"}} if unfit else {}
            job = self._there.options(**where).remote("run_here", __version__, request.rollout, [bundle])
            answer = self._follow(job, connection)
            if answer is not None:
                return answer
            alive = self._alive()
            if all(one["NodeID"] in self._unfit for one in alive):
                why = {_name(one): self._unfit[one["NodeID"]] for one in alive}
                return Answer(error=("SandboxError", nobody(why)))

    def _follow(self, job: Any, connection: Connection) -> Answer | None:
        """Pass on what a rollout says until its last answer; None where its node takes no rollout."""
        last, at = Answer(goes_on=True), ""
        try:
            for node, problem, data in self._heard(job, connection):
                if problem:
                    self._unfit[node] = problem
                    return None
                if not at:
                    at = node
                    self._busy[at] += 1
                last = read(data, Answer)
                if last.goes_on:
                    connection.send_bytes(data)
        except self._ray.exceptions.TaskCancelledError:
            return replace(last, goes_on=False, cancelled=True)
        except self._ray.exceptions.RayError as e:
            return replace(last, goes_on=False, wait=None, lost=_said(e))
        except TimeoutError:
            self._ray.cancel(job, force=True)  # what hangs hears nothing
            quiet = f"its node has said nothing for {_QUIET_SECONDS:.0f} s"
            return replace(last, goes_on=False, wait=None, lost=quiet)
        except OSError:  # nobody waits for it any more
            self._ray.cancel(job)
            raise
        finally:
            self._busy[at] -= 1
        return (
            replace(last, goes_on=False, lost="it ended without an answer") if last.goes_on else self._placed(last, at)
        )

    def _placed(self, answer: Answer, at: str) -> Answer:
        """Return an answer that names its node where something failed there, as a refused key does."""
        name = next((_name(one) for one in self._ray.nodes() if one["NodeID"] == at), at)
        if answer.error:
            return replace(answer, error=(answer.error[0], f"node {name}: {answer.error[1]}"))
        made = answer.attempt
        if made and made.outcome == "errored":
            return replace(answer, attempt=replace(made, reason=f"node {name}: {without_wrappers(made.reason)}"))
        return answer

    def _heard(self, job: Any, connection: Connection) -> Iterator[tuple[str, str, bytes]]:
        """Yield what a rollout says, and cancel it once the driver says anything or is gone.

        Ray cancels by an interrupt, which code that ignores errors for a moment may lose: it is tried again.

        Raises:
            TimeoutError: it began, and is silent.
        """
        cancel_at, heard = 0.0, math.inf
        while True:
            if self._ray.wait([job], timeout=_POLL_SECONDS)[0]:
                try:
                    yield self._ray.get(next(job))
                except StopIteration:
                    return
                heard = time.monotonic()
            elif time.monotonic() - heard > _QUIET_SECONDS:
                raise TimeoutError
            if time.monotonic() > cancel_at and connection.poll():
                self._ray.cancel(job)
                cancel_at = time.monotonic() + _CANCEL_SECONDS

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def _nodes(self, request: Request) -> Answer:
        if not request.settings:
            return Answer(nodes=tuple(self._node(node) for node in self._alive()))
        jobs = {}
        for node in self._alive():
            look = self._there.options(num_cpus=0, label_selector={_NODE_ID: node["NodeID"]})
            jobs[look.remote("look_here", __version__, request.settings, request.key_variable)] = node
        ends = time.monotonic() + _PROBE_SECONDS
        return Answer(nodes=tuple(self._seen(job, node, ends - time.monotonic()) for job, node in jobs.items()))

    def _node(self, node: Mapping[str, Any]) -> Node:
        at = node["NodeID"]
        cores, problem = node["Resources"]["CPU"], self._unfit.get(at, "")
        return Node(name=_name(node), cores=cores, problem=problem, rollouts=self._busy[at])

    def _seen(self, job: Any, node: Mapping[str, Any], seconds: float) -> Node:
        try:
            ready, _ = self._ray.wait([job], timeout=max(0.0, seconds))
            _, problem, found = self._ray.get(next(job)) if ready else ("", "it does not answer", b"")
        except self._ray.exceptions.RayError as e:
            problem, found = _said(e) or "it does not answer", b""
        seen, known = read(found, Node) if found else Node(), self._node(node)
        return replace(seen, name=known.name, cores=known.cores, problem=problem)


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} {node['NodeID'][:8]}"


def _said(error: Exception) -> str:
    """Return the first sentence of what Ray says; pages follow."""
    cause = getattr(error, "cause", None)
    return one_line(str(cause))[:300] if cause else one_line(str(error)).partition(". ")[0][:300]
