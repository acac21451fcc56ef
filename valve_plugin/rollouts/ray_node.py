"""What runs on a node of a Ray cluster. Each function yields pairs: why this node takes no rollout, and an answer."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

from msgspec.structs import replace

from valve_plugin import __version__
from valve_plugin.agents import faults, mini
from valve_plugin.agents.protocol import Payment, payment_of
from valve_plugin.agents.retry import listen_to_waits
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, InfrastructureError, SandboxError, ValveError
from valve_plugin.records import Attempt
from valve_plugin.rollouts.attempt import attempt, read_trajectory, rollout_key
from valve_plugin.rollouts.ray_messages import Answer, Node, Rollout, encode, read
from valve_plugin.rollouts.workers import Workers
from valve_plugin.sandbox import bubblewrap, engine
from valve_plugin.tasks.image import place_in_image
from valve_plugin.tasks.repository import prepare_from

_POLL_SECONDS = 0.2
_BEAT_SECONDS = 2.0
"""So often a rollout says that it goes on, also where there is nothing new."""


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


def look_here(version: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Say why this node takes no rollout, and what it can do."""
    if version != __version__:
        yield f"it has valve {__version__}, the driver {version}", b""
        return
    settings = read(data, Settings)
    mini.load_user_settings()
    has_key = bool(os.environ.get(faults.key_variable(settings.model)))
    sandbox, problem = _sandbox(settings)
    node = Node(python=platform.python_version(), valve=__version__, sandbox=sandbox, key=has_key)
    yield problem, encode(node)


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
