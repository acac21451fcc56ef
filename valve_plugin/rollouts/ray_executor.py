"""Rollouts on the nodes of a Ray cluster: an attempt step like the local one, where Ray chooses the place.

A rollout travels as data (`Rollout`), its repository once per node by the commit's hash; the attempt comes back.
Journal, retries and budget stay with the driver, and the key of a model call is the node's own. Ray ends a process
whose cluster is gone, so the driver keeps Ray in a child process, the bridge. Panel runs use the same one.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection as pipes
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock
from msgspec.structs import replace

from valve_plugin import __version__, errors
from valve_plugin.agents import faults, mini, process
from valve_plugin.agents.protocol import Payment, RolloutCancelledError, payment_of
from valve_plugin.codec import digest
from valve_plugin.config import SCRIPTED_MODEL, Settings
from valve_plugin.errors import ConfigError, InfrastructureError, SandboxError, ValveError
from valve_plugin.extras import install_command
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.redact import is_key_name
from valve_plugin.rollouts.attempt import attempt as attempt_here
from valve_plugin.rollouts.attempt import keep_trajectory, read_trajectory, rollout_key
from valve_plugin.rollouts.workers import Workers, stop_event
from valve_plugin.sandbox import bubblewrap, engine
from valve_plugin.sandbox.git import git
from valve_plugin.sandbox.supervisor import python_command
from valve_plugin.tasks.image import place_in_image
from valve_plugin.tasks.repository import BASE_REF, Repository, find_prepared, prepare_from
from valve_plugin.words import one_line

T = TypeVar("T")
_POLL_SECONDS = 0.2
_PROBE_SECONDS = 120.0
_LATE_SECONDS = 60.0
_WATCH_SECONDS = 2.0
_CANCEL_SECONDS = 30.0
_NODE_ID = "ray.io/node-id"
_BRIDGE = "from valve_plugin.rollouts.ray_executor import bridge; bridge()"
_SCRIPTED = ("OPENAI_API_BASE", "OPENAI_BASE_URL", "OPENAI_API_KEY", "MSWEA_COST_TRACKING", "NO_PROXY", "no_proxy")
"""Variables of the scripted model, whose key is none."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """What travels to a node. It holds no key."""

    settings: Settings
    task: Task
    context: Context
    ordinal: int
    source: Source
    repository: Repository
    base: str
    """Commit of the source; a node that has it fetches nothing."""
    python: str
    """Version of the interpreter that runs the tests."""
    key: str
    """`rollout_key` of all this; a node where it differs has another agent, image or file."""
    environ: Mapping[str, str] = {}


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What one node can do."""

    name: str = ""
    cores: float = 0
    python: str = ""
    valve: str = ""
    sandbox: str = ""
    key: bool = False
    """Whether the node has a key for the model."""
    problem: str = ""
    """Why it takes no rollout; empty if it does."""


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """From the driver to its bridge: a rollout, or (without one) the question what the nodes can do."""

    rollout: bytes = b""
    base: str = ""
    store: str = ""
    """Path of the git repository that has `base`."""
    settings: bytes = b""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt, or why there is none."""

    attempt: Attempt | None = None
    trajectory: bytes = b""
    paid: Payment | None = None
    """Of a rollout that was cancelled."""
    error: tuple[str, str] | None = None
    """Class and message of a ValveError."""
    lost: str = ""
    """What happened to the worker, the node or the cluster."""
    nodes: tuple[Node, ...] = ()


_encode = msgspec.msgpack.encode


def _read(data: bytes, type_: type[T]) -> T:
    return msgspec.msgpack.decode(data, type=type_)


# In the driver


def attempt(settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
    """Run one rollout on a node of the cluster; see `rollouts.attempt.attempt`.

    A worker, a node or a cluster that is lost makes it `errored`: it is tried again, wherever Ray then has room.
    """
    started, prepared = time.monotonic(), find_prepared(task.repo)
    sent = _sent(settings)
    rollout = Rollout(
        settings=sent, task=task, context=context, ordinal=ordinal, source=source, repository=prepared.repository,
        base=prepared.base, python=prepared.base_python, key=rollout_key(sent, task, context, ordinal),
        environ={name: os.environ[name] for name in _SCRIPTED if name in os.environ and sent.model == SCRIPTED_MODEL},
    )  # fmt: skip
    request = _Request(rollout=_encode(rollout), base=prepared.base, store=str(prepared.store))
    answer = _ask(settings.ray_address, request)
    if answer.paid is not None:
        raise RolloutCancelledError(answer.paid)
    if answer.error:
        raise getattr(errors, answer.error[0], ValveError)(answer.error[1])
    rollout_id = rollout_key(settings, task, context, ordinal)[:16]
    if answer.attempt:
        return replace(answer.attempt, id=rollout_id, trajectory=keep_trajectory(rollout_id, answer.trajectory))
    return Attempt(
        id=rollout_id, task_id=task.instance_id, ordinal=ordinal, source=source, outcome="errored", reason=answer.lost,
        exit_status="Lost", seconds=time.monotonic() - started, recorded_at=time.time(), model=sent.model,
        task_text=task.problem_statement, context_hash=context.hash, context_items=context.items,
    )  # fmt: skip


def nodes(settings: Settings) -> tuple[Node, ...]:
    """Return what the cluster's nodes can do.

    Raises:
        ConfigError: Ray is not installed here.
        InfrastructureError: the cluster cannot be reached.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"executor is 'ray', which is not installed here: {install_command('ray')}")
    answer = _ask(settings.ray_address, _Request(settings=_encode(_sent(settings))))
    if answer.lost:
        raise InfrastructureError(f"{answer.lost}; start it, or name another with -c ray_address=HOST:PORT")
    return answer.nodes


def require_nodes(settings: Settings) -> None:
    """Check, before a model is paid, that some node can take a rollout.

    Raises:
        InfrastructureError: the cluster cannot be reached.
        SandboxError: it has no such node.
    """
    found = nodes(settings)
    if all(node.problem for node in found):
        raise SandboxError(_none({node.name: node.problem for node in found}))


def _none(problems: Mapping[str, str]) -> str:
    why = "; ".join(f"{name}: {problem}" for name, problem in problems.items()) or "it has no nodes"
    return f"no node of the cluster can take a rollout ({why}); `valve doctor --executor ray` shows them"


def _sent(settings: Settings) -> Settings:
    """Return the settings for a node, with the driver's model and without keys."""
    mini.load_user_settings()
    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    arguments, config = _without_keys(settings.model_kwargs), tuple(filter(None, map(_entry, settings.mini_config)))
    return replace(settings, executor="local", model=model, model_kwargs=arguments, mini_config=config)


def _without_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_keys(v) for k, v in value.items() if not (isinstance(v, str) and is_key_name(str(k)))}
    return [_without_keys(v) for v in value] if isinstance(value, list | tuple) else value


def _entry(given: str) -> str:
    """Return an entry of `mini_config` without keys; empty if it is one."""
    name, equals, value = given.partition("=")
    held: Any = value
    with suppress(ValueError):
        held = json.loads(value)
    kept = _without_keys({name: held})
    if not equals or kept == {name: held}:
        return given
    return f"{name}={json.dumps(kept[name])}" if kept else ""


def _ask(address: str, request: _Request) -> _Answer:
    """Ask the bridge and wait for its answer; a set stop event cancels the rollout."""
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    stop, give_up = stop_event(), float("inf")
    place = Path(process.server_address()).with_name(f"ray-{digest(address)[:8]}")
    try:
        with _connect(place, address) as connection:
            connection.send_bytes(_encode(request))
            while not connection.poll(_POLL_SECONDS):
                if stop is not None and stop.is_set() and give_up == float("inf"):
                    connection.send_bytes(b"cancel")
                    give_up = time.monotonic() + _CANCEL_SECONDS
                if time.monotonic() > give_up:
                    raise CancelledError
            return _read(connection.recv_bytes(), _Answer)
    except (EOFError, OSError):
        if stop is not None and stop.is_set():
            raise CancelledError from None
        log = place.with_suffix(".log")
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        said = next((line for line in reversed(lines) if re.search("rror|ailed|started anew", line)), "it ended")
        return _Answer(lost=f"no Ray cluster answers at {address} ({one_line(said)[:300]})")


def _connect(place: Path, address: str) -> Connection:
    """Return a connection to the bridge of this run, which starts where there is none."""
    with FileLock(place.with_suffix(".lock")):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as known:
            known.connect(str(place))
            return Connection(known.detach())
        place.unlink(missing_ok=True)
        alive, _keep = os.pipe()  # our end closes when this process ends, however it ends
        with socket.socket(socket.AF_UNIX) as listener, place.with_suffix(".log").open("wb") as log:
            listener.bind(str(place))
            listener.listen(1024)
            handed = (listener.fileno(), alive)
            subprocess.Popen(
                python_command(_BRIDGE, *map(str, handed), address),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=handed,
                start_new_session=True,  # Ctrl-C is for us
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            )
        os.close(alive)
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(place))
        return Connection(made.detach())


# In the bridge


def bridge() -> None:
    """Pass rollouts on to the cluster until the process that started this one has ended.

    `sys.argv` holds the file descriptors of a listening socket and of a pipe, and the cluster's address.
    """
    alive, address = int(sys.argv[2]), sys.argv[3]
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()  # Ray would try for a minute
    import ray

    with _in_time():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    threading.Thread(target=_watch, args=(ray,), daemon=True).start()
    cluster = _Cluster(ray)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        while alive not in pipes.wait([listener, alive]):
            accepted, _ = listener.accept()
            threading.Thread(target=cluster.serve, args=(Connection(accepted.detach()),), daemon=True).start()
    ray.shutdown()
    os._exit(0)


@contextmanager
def _in_time() -> Iterator[None]:
    """End this process where a call of Ray does not."""
    late = threading.Timer(_LATE_SECONDS, os._exit, (1,))
    late.daemon = True
    late.start()
    yield
    late.cancel()


def _watch(ray: Any) -> None:
    """End this process when its node is gone or the head is another one; Ray itself may then wait for ever."""
    here, alive = ray.get_runtime_context().get_node_id(), True
    try:
        while alive:
            time.sleep(_WATCH_SECONDS)
            with _in_time():
                alive = any(node["Alive"] and node["NodeID"] == here for node in ray.nodes())
        print("the cluster started anew, or lost the node of this process", flush=True)
    finally:
        os._exit(1)


class _Cluster:
    """The cluster as the bridge sees it."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._there = _remote_function(ray)
        self._unfit: dict[str, str] = {}
        """Why nodes take no rollouts, by id."""
        self._bundles: dict[str, Any] = {}
        """References to bundles in the object store, by commit."""
        self._lock = threading.Lock()

    def serve(self, connection: Connection) -> None:
        """Answer one request. A message before the answer, or the end of the connection, cancels the rollout."""
        with connection, suppress(OSError, EOFError):
            request = _read(connection.recv_bytes(), _Request)
            answer = self._run(request, connection) if request.rollout else self._nodes(request)
            connection.send_bytes(_encode(answer))

    def _run(self, request: _Request, connection: Connection) -> _Answer:
        """Run a rollout on a node that can; one that cannot says so before the agent starts."""
        bundle = self._bundle(request)
        while True:
            unfit = ",".join(self._unfit)
            where = {"label_selector": {_NODE_ID: f"!in({unfit})"}} if unfit else {}
            job = self._there.options(**where).remote("run_here", __version__, request.rollout, [bundle])
            try:
                self._await(job, connection)
                node, problem, answer = self._ray.get(job)
            except self._ray.exceptions.TaskCancelledError:
                return _Answer(paid=Payment())
            except self._ray.exceptions.RayError as e:
                return _Answer(lost=_said(e))
            if not problem:
                return _read(answer, _Answer)
            self._unfit[node] = problem
            alive = [one["NodeID"] for one in self._alive()]
            if all(one in self._unfit for one in alive):
                return _Answer(error=("SandboxError", _none({one: self._unfit[one] for one in alive})))

    def _await(self, job: Any, connection: Connection) -> None:
        cancelled = False
        while not self._ray.wait([job], timeout=_POLL_SECONDS)[0]:
            if not cancelled and connection.poll():
                self._ray.cancel(job)
                cancelled = True

    def _bundle(self, request: _Request) -> Any:
        """Return the reference to a repository's bundle; Ray copies it to a node at most once."""
        with self._lock:
            if request.base not in self._bundles:
                data = git("bundle", "create", "-q", "-", BASE_REF, git_dir=Path(request.store))
                self._bundles[request.base] = self._ray.put(data)
            return self._bundles[request.base]

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def _nodes(self, request: _Request) -> _Answer:
        jobs = {}
        for node in self._alive():
            look = self._there.options(num_cpus=0, label_selector={_NODE_ID: node["NodeID"]})
            jobs[look.remote("look_here", __version__, request.settings)] = node
        self._ray.wait(list(jobs), num_returns=len(jobs), timeout=_PROBE_SECONDS) if jobs else None
        return _Answer(nodes=tuple(self._seen(job, node) for job, node in jobs.items()))

    def _seen(self, job: Any, node: Mapping[str, Any]) -> Node:
        try:
            _, problem, found = self._ray.get(job, timeout=0)
        except self._ray.exceptions.RayError as e:  # a timeout too
            problem, found = _said(e) or "it does not answer", b""
        seen = _read(found, Node) if found else Node()
        name = f"{node['NodeManagerAddress']} {node['NodeID'][:8]}"
        return replace(seen, name=name, cores=node["Resources"]["CPU"], problem=problem)


def _said(error: Exception) -> str:
    return one_line(str(getattr(error, "cause", None) or error))[:300]


def _remote_function(ray: Any) -> Any:
    """Return the remote function that calls one of those below. It travels by value, so it runs without VALVE, too."""

    def there(function: str, *arguments: Any) -> tuple[str, str, bytes]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            from valve_plugin.rollouts import ray_executor
        except ImportError as e:
            return node, f"valve cannot be loaded there: {e}", b""
        return node, *getattr(ray_executor, function)(*arguments)

    return ray.remote(num_cpus=1, max_retries=0)(there)  # retries are the driver's: it counts and shows them


# On a node


def run_here(version: str, data: bytes, bundle: list[Any]) -> tuple[str, bytes]:
    """Run a rollout on this node; return (why this node cannot, the answer)."""
    import ray

    if version != __version__:
        return f"it has valve {__version__}, the driver {version}", b""
    rollout = _read(data, Rollout)
    settings, task, context, ordinal = rollout.settings, rollout.task, rollout.context, rollout.ordinal
    os.environ.update(rollout.environ)
    try:
        prepared = prepare_from(rollout.repository, rollout.base, lambda: bytes(ray.get(bundle[0])))
        bubblewrap.choose(settings, place_in_image(prepared, task, settings).image)
        if prepared.base_python != rollout.python:
            return f"its tests would run in Python {prepared.base_python}, the driver's in {rollout.python}", b""
        if rollout_key(settings, task, context, ordinal) != rollout.key:
            return "its agent, its container image or a file of mini_config is not the driver's", b""
    except (ConfigError, InfrastructureError, SandboxError) as e:
        return str(e), b""
    with Workers(1) as one:
        job = one.submit(partial(attempt_here, settings, task, context, ordinal, rollout.source))
        try:
            while not job.done():
                wait([job], timeout=_POLL_SECONDS)
        except KeyboardInterrupt:  # Ray's way to cancel
            one.cancel(job)
            wait([job])
    try:
        made = job.result()
        answer = _Answer(attempt=made, trajectory=read_trajectory(made) if made.trajectory else b"")
    except CancelledError as e:
        answer = _Answer(paid=payment_of(e))
    except ValveError as e:
        answer = _Answer(error=(type(e).__name__, str(e)))
    return "", _encode(answer)


def look_here(version: str, data: bytes) -> tuple[str, bytes]:
    """Return why this node takes no rollout, and what it can do."""
    if version != __version__:
        return f"it has valve {__version__}, the driver {version}", b""
    settings = _read(data, Settings)
    mini.load_user_settings()
    has_key = bool(os.environ.get(faults.key_variable(settings.model)))
    sandbox, problem = _sandbox(settings)
    node = Node(python=platform.python_version(), valve=__version__, sandbox=sandbox, key=has_key)
    return problem, _encode(node)


def _sandbox(settings: Settings) -> tuple[str, str]:
    """Return the first sandbox that works here; where none does, why."""
    problems = []
    if settings.sandbox in ("auto", "bwrap"):
        problems.append(bubblewrap.bubblewrap_problem())
        if settings.unsafe_local or not problems[0]:
            return "no sandbox" if problems[0] else "bubblewrap", ""
    for name in (name for name in engine.ENGINES if settings.sandbox in ("auto", name)):
        problems.append(engine.engine_problem(name))
        if not problems[-1]:
            return name, ""
    return "", f"it has no sandbox: {'; '.join(problems)}"
