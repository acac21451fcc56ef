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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
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
from valve_plugin.agents.retry import Wait, listen_to_waits, report_step, report_wait
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
_JOIN_SECONDS = 40.0
"""Until the bridge is in the cluster, at most."""
_WATCH_SECONDS = 2.0
_SILENT_SECONDS = 20.0
"""A cluster that does not answer the bridge for so long is gone."""
_AWAY_SECONDS = 30.0
"""A rollout that is tried again so long after the cluster was found gone, and finds it gone, ends the run."""
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
    rollouts: int = 0
    """Rollouts of this run that are at work there."""


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """From the driver to its bridge: a rollout, or (with settings alone) what the nodes can do, or what they do now."""

    rollout: bytes = b""
    base: str = ""
    store: str = ""
    """Path of the git repository that has `base`."""
    settings: bytes = b""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the bridge or a node says: how a rollout goes on, the attempt, or why there is none."""

    goes_on: bool = False
    """The rollout has not ended: another answer follows."""
    paid: Payment = Payment()
    """Of a rollout without an attempt, so far."""
    wait: Wait | None = None
    """What it waits for."""
    attempt: Attempt | None = None
    trajectory: bytes = b""
    cancelled: bool = False
    error: tuple[str, str] | None = None
    """Class and message of a ValveError."""
    lost: str = ""
    """What happened to the worker or the node."""
    away: str = ""
    """Why no cluster answers."""
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
    _require_present(settings.ray_address, answer)
    if answer.cancelled:
        raise RolloutCancelledError(answer.paid)
    if answer.error:
        raise getattr(errors, answer.error[0], ValveError)(answer.error[1])
    rollout_id = rollout_key(settings, task, context, ordinal)[:16]
    if answer.attempt:
        return replace(answer.attempt, id=rollout_id, trajectory=keep_trajectory(rollout_id, answer.trajectory))
    return Attempt(
        id=rollout_id, task_id=task.instance_id, ordinal=ordinal, source=source, outcome="errored",
        reason=answer.lost or answer.away, exit_status="Lost", steps=answer.paid.calls, cost_usd=answer.paid.usd,
        seconds=time.monotonic() - started, recorded_at=time.time(), model=sent.model,
        task_text=task.problem_statement, context_hash=context.hash, context_items=context.items,
    )  # fmt: skip


_away_since: dict[str, float] = {}
"""When the clusters that do not answer were found gone, by address."""


def _require_present(address: str, answer: _Answer) -> None:
    """Give up a cluster that was found gone and has not come back since.

    Raises:
        InfrastructureError: it has not.
    """
    if not answer.away:
        _away_since.pop(address, None)
        return
    gone = time.monotonic() - _away_since.setdefault(address, time.monotonic())
    if gone > _AWAY_SECONDS:
        raise InfrastructureError(
            f"the cluster is gone: {answer.away}, for {gone:.0f} s. The run pauses, and nothing is lost: finished "
            "rollouts are kept on this machine. Start the cluster again (`ray start --head`, then its nodes)"
        )


def nodes(settings: Settings) -> tuple[Node, ...]:
    """Return what the cluster's nodes can do.

    Raises:
        ConfigError: Ray is not installed here.
        InfrastructureError: the cluster cannot be reached.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"executor is 'ray', which is not installed here: {install_command('ray')}")
    answer = _ask(settings.ray_address, _Request(settings=_encode(_sent(settings))))
    if answer.away:
        raise InfrastructureError(f"{answer.away}; start it, or name another with -c ray_address=HOST:PORT")
    return answer.nodes


def nodes_now(settings: Settings) -> tuple[Node, ...]:
    """Return the cluster's nodes with the number of rollouts at work on each; none while no cluster answers."""
    return _ask(settings.ray_address, _Request()).nodes


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
    """Ask the bridge and wait for its last answer; a set stop event cancels the rollout."""
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    stop, paid = stop_event(), Payment()
    place = Path(process.server_address()).with_name(f"ray-{digest(address)[:8]}")
    try:
        with _connect(place, address) as connection:
            connection.send_bytes(_encode(request))
            while (answer := _next(connection, stop)).goes_on:
                if answer.wait:
                    report_wait(answer.wait)
                if answer.paid != paid:
                    paid = answer.paid
                    report_step(paid.calls, paid.usd)
            return answer
    except (EOFError, OSError):
        if stop is not None and stop.is_set():
            raise RolloutCancelledError(paid) from None
        log = place.with_suffix(".log")
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        said = next((line for line in reversed(lines) if re.search("rror|ailed|started anew", line)), "it ended")
        return _Answer(away=f"no Ray cluster answers at {address} ({one_line(said)[:300]})", paid=paid)


def _next(connection: Connection, stop: threading.Event | None) -> _Answer:
    """Return the bridge's next answer. Where it should stop, it is told so, and gets some seconds for a last one."""
    give_up = float("inf")
    while not connection.poll(_POLL_SECONDS):
        if stop is not None and stop.is_set() and give_up == float("inf"):
            connection.send_bytes(b"cancel")
            give_up = time.monotonic() + _CANCEL_SECONDS
        if time.monotonic() > give_up:
            raise EOFError
    return _read(connection.recv_bytes(), _Answer)


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
        self._there = _remote_function(ray)
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
            answer = self._follow(job, connection)
            if answer is not None:
                return answer
            alive = [one["NodeID"] for one in self._alive()]
            if all(one in self._unfit for one in alive):
                return _Answer(error=("SandboxError", _none({one: self._unfit[one] for one in alive})))

    def _follow(self, job: Any, connection: Connection) -> _Answer | None:
        """Pass on what a rollout says until its last answer; None where its node takes no rollout."""
        last, at = _Answer(goes_on=True), ""
        try:
            for node, problem, data in self._heard(job, connection):
                if problem:
                    self._unfit[node] = problem
                    return None
                if not at:
                    at = node
                    self._busy[at] += 1
                last = _read(data, _Answer)
                if last.goes_on:
                    connection.send_bytes(data)
        except self._ray.exceptions.TaskCancelledError:
            return replace(last, goes_on=False, cancelled=True)
        except self._ray.exceptions.RayError as e:
            return replace(last, goes_on=False, wait=None, lost=_said(e))
        except OSError:  # nobody waits for it any more
            self._ray.cancel(job)
            raise
        finally:
            self._busy[at] -= 1
        return replace(last, goes_on=False, lost="it ended without an answer") if last.goes_on else last

    def _heard(self, job: Any, connection: Connection) -> Iterator[tuple[str, str, bytes]]:
        """Yield what a rollout says, and cancel it once the driver says anything or is gone."""
        cancelled = False
        while True:
            if self._ray.wait([job], timeout=_POLL_SECONDS)[0]:
                try:
                    yield self._ray.get(next(job))
                except StopIteration:
                    return
            elif not cancelled and connection.poll():
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
        if not request.settings:
            return _Answer(nodes=tuple(self._node(node) for node in self._alive()))
        jobs = {}
        for node in self._alive():
            look = self._there.options(num_cpus=0, label_selector={_NODE_ID: node["NodeID"]})
            jobs[look.remote("look_here", __version__, request.settings)] = node
        ends = time.monotonic() + _PROBE_SECONDS
        return _Answer(nodes=tuple(self._seen(job, node, ends - time.monotonic()) for job, node in jobs.items()))

    def _node(self, node: Mapping[str, Any]) -> Node:
        at = node["NodeID"]
        name = f"{node['NodeManagerAddress']} {at[:8]}"
        cores, problem = node["Resources"]["CPU"], self._unfit.get(at, "")
        return Node(name=name, cores=cores, problem=problem, rollouts=self._busy[at])

    def _seen(self, job: Any, node: Mapping[str, Any], seconds: float) -> Node:
        try:
            ready, _ = self._ray.wait([job], timeout=max(0.0, seconds))
            _, problem, found = self._ray.get(next(job)) if ready else ("", "it does not answer", b"")
        except self._ray.exceptions.RayError as e:
            problem, found = _said(e) or "it does not answer", b""
        seen, known = _read(found, Node) if found else Node(), self._node(node)
        return replace(seen, name=known.name, cores=known.cores, problem=problem)


def _said(error: Exception) -> str:
    """Return the first sentence of what Ray says; pages follow."""
    cause = getattr(error, "cause", None)
    return one_line(str(cause))[:300] if cause else one_line(str(error)).partition(". ")[0][:300]


def _remote_function(ray: Any) -> Any:
    """Return the remote function that calls one of those below. It travels by value, so it runs without VALVE, too."""

    def there(function: str, *arguments: Any) -> Iterator[tuple[str, str, bytes]]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            from valve_plugin.rollouts import ray_executor
        except ImportError as e:
            yield node, f"valve cannot be loaded there: {e}", b""
            return
        for answer in getattr(ray_executor, function)(*arguments):
            yield node, *answer

    # retries are the driver's: it counts and shows them
    return ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(there)


# On a node. Each function yields (why this node cannot, an answer)


def run_here(version: str, data: bytes, bundle: list[Any]) -> Iterator[tuple[str, bytes]]:
    """Run a rollout on this node; the answers are those about how it goes on, then its last one."""
    import ray

    if version != __version__:
        yield f"it has valve {__version__}, the driver {version}", b""
        return
    rollout = _read(data, Rollout)
    os.environ.update(rollout.environ)
    if problem := _unfit(rollout, lambda: bytes(ray.get(bundle[0]))):
        yield problem, b""
        return
    yield "", _encode(_Answer(goes_on=True))
    told = last = _Answer(goes_on=True)

    def note(**news: Any) -> None:
        nonlocal last
        last = replace(last, **news)

    def step(calls: int, usd: float) -> None:
        note(paid=Payment(calls, usd), wait=None)

    def run() -> Attempt:
        with listen_to_waits(lambda wait: note(wait=wait), step):
            return attempt_here(rollout.settings, rollout.task, rollout.context, rollout.ordinal, rollout.source)

    with Workers(1) as one:
        job = one.submit(run)
        try:
            while not wait([job], timeout=_POLL_SECONDS).done:
                if last != told:
                    told = last
                    yield "", _encode(told)
        except KeyboardInterrupt:  # Ray's way to cancel
            one.cancel(job)
            wait([job])
    yield "", _encode(_last_answer(job))


def _unfit(rollout: Rollout, fetch: Callable[[], bytes]) -> str:
    """Return why this node cannot run a rollout; empty if it can."""
    settings, task = rollout.settings, rollout.task
    try:
        prepared = prepare_from(rollout.repository, rollout.base, fetch)
        bubblewrap.choose(settings, place_in_image(prepared, task, settings).image)
        if prepared.base_python != rollout.python:
            return f"its tests would run in Python {prepared.base_python}, the driver's in {rollout.python}"
        if rollout_key(settings, task, rollout.context, rollout.ordinal) != rollout.key:
            return "its agent, its container image or a file of mini_config is not the driver's"
    except (ConfigError, InfrastructureError, SandboxError) as e:
        return str(e)
    return ""


def _last_answer(job: Future[Attempt]) -> _Answer:
    try:
        made = job.result()
    except CancelledError as e:
        return _Answer(cancelled=True, paid=payment_of(e))
    except ValveError as e:
        return _Answer(error=(type(e).__name__, str(e)))
    return _Answer(attempt=made, trajectory=read_trajectory(made) if made.trajectory else b"")


def look_here(version: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Say why this node takes no rollout, and what it can do."""
    if version != __version__:
        yield f"it has valve {__version__}, the driver {version}", b""
        return
    settings = _read(data, Settings)
    mini.load_user_settings()
    has_key = bool(os.environ.get(faults.key_variable(settings.model)))
    sandbox, problem = _sandbox(settings)
    node = Node(python=platform.python_version(), valve=__version__, sandbox=sandbox, key=has_key)
    yield problem, _encode(node)


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
