"""What the driver, its bridge and the nodes of a Ray cluster tell each other about rollouts; what runs on a node."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from valve_plugin import __version__
from valve_plugin.agents import faults, mini
from valve_plugin.agents.protocol import Payment, payment_of
from valve_plugin.agents.retry import listen_to_waits
from valve_plugin.client import client
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, InfrastructureError, SandboxError, ValveError
from valve_plugin.events import Waiting
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.rollouts.attempt import attempt, read_trajectory, rollout_key
from valve_plugin.rollouts.workers import Workers
from valve_plugin.sandbox import bubblewrap, engine
from valve_plugin.tasks.image import place_in_image
from valve_plugin.tasks.repository import Repository, prepare_from

T = TypeVar("T")
encode = msgspec.msgpack.encode
_POLL_SECONDS = 0.2
_BEAT_SECONDS = 2.0
"""So often a rollout says that it goes on, also where there is nothing new."""


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
    key_variable: str = ""
    """Variable of the model's key, which a node has to have itself; empty if none is needed."""


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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """From the driver to its bridge: a rollout, or (with settings alone) what the nodes can do, or what they do now."""

    rollout: bytes = b""
    base: str = ""
    store: str = ""
    """Path of the git repository that has `base`."""
    settings: bytes = b""
    key_variable: str = ""
    """As of a rollout, for what the nodes can do."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the bridge or a node says: how a rollout goes on, the attempt, or why there is none."""

    goes_on: bool = False
    """The rollout has not ended: another answer follows."""
    paid: Payment = Payment()
    """Of a rollout without an attempt, so far."""
    wait: Waiting | None = None
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


def read(data: bytes, type_: type[T]) -> T:
    """Return a message."""
    return msgspec.msgpack.decode(data, type=type_)


def nobody(problems: Mapping[str, str]) -> str:
    """Return that no node takes a rollout, from why each does not."""
    why = "; ".join(f"{name}: {problem}" for name, problem in problems.items()) or "it has no nodes"
    return f"no node of the cluster can take a rollout ({why}); `valve doctor --executor ray` shows them"


def run_here(version: str, data: bytes, bundle: list[Any]) -> Iterator[tuple[str, bytes]]:
    """Run a rollout on this node; the answers are those about how it goes on, then its last one."""
    import ray

    if version != __version__:
        yield f"it has valve {__version__}, the driver {version}", b""
        return
    rollout = read(data, Rollout)
    os.environ.update(rollout.environ)
    if problem := _unfit(rollout, lambda: bytes(ray.get(bundle[0]))):
        yield problem, b""
        return
    yield "", encode(Answer(goes_on=True))
    told = last = Answer(goes_on=True)

    def note(**news: Any) -> None:
        nonlocal last
        last = replace(last, **news)

    def step(calls: int, usd: float) -> None:
        note(paid=Payment(calls, usd), wait=None)

    def run() -> Attempt:
        with listen_to_waits(lambda wait: note(wait=wait), step):
            return attempt(rollout.settings, rollout.task, rollout.context, rollout.ordinal, rollout.source)

    with Workers(1) as one:
        job = one.submit(run)
        beat = time.monotonic()
        try:
            while not wait([job], timeout=_POLL_SECONDS).done:
                if last != told or time.monotonic() - beat > _BEAT_SECONDS:
                    told, beat = last, time.monotonic()
                    yield "", encode(told)
        except KeyboardInterrupt:  # Ray's way to cancel
            one.cancel(job)
            wait([job])
    try:
        made = job.result()
        answer = Answer(attempt=made, trajectory=read_trajectory(made) if made.trajectory else b"")
    except CancelledError as e:
        answer = Answer(cancelled=True, paid=payment_of(e))
    except ValveError as e:
        answer = Answer(error=(type(e).__name__, str(e)))
    yield "", encode(answer)


def _unfit(rollout: Rollout, fetch: Callable[[], bytes]) -> str:
    """Return why this node cannot run a rollout; empty if it can."""
    settings, task = rollout.settings, rollout.task
    if problem := _lacks_key(settings.model, rollout.key_variable):
        return problem
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


def look_here(version: str, data: bytes, key_variable: str) -> Iterator[tuple[str, bytes]]:
    """Say why this node takes no rollout, and what it can do."""
    if version != __version__:
        yield f"it has valve {__version__}, the driver {version}", b""
        return
    settings = read(data, Settings)
    lacks = _lacks_key(settings.model, key_variable)
    sandbox, problem = _sandbox(settings)
    node = Node(
        python=platform.python_version(), valve=__version__, sandbox=sandbox, key=has_key(settings.model, os.environ)
    )
    yield "; ".join(filter(None, (problem, lacks))), encode(node)


def has_key(model: str, environ: Mapping[str, str]) -> bool:
    """Whether there is a key for a model, under the provider's variable or another one that litellm takes."""
    variable = faults.key_variable(model)
    if variable in environ:
        return bool(environ[variable])
    return bool(model) and bool(client().validate_environment(model)["keys_in_environment"])


def _lacks_key(model: str, variable: str) -> str:
    """Return that this node lacks the key of this variable; empty if it has it, or none is needed."""
    mini.load_user_settings()
    if not variable or has_key(model, os.environ):
        return ""
    return f"it has no key for {model}: set {variable} in the environment of its `ray start`, or in mini's file of keys"


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
