"""What the driver, its bridge and the nodes of a Ray cluster tell each other about rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from valve_plugin.agents.protocol import Payment
from valve_plugin.config import Settings
from valve_plugin.events import Waiting
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.tasks.repository import Repository

T = TypeVar("T")


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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """From the driver to its bridge: a rollout, or (with settings alone) what the nodes can do, or what they do now."""

    rollout: bytes = b""
    base: str = ""
    store: str = ""
    """Path of the git repository that has `base`."""
    settings: bytes = b""


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


encode = msgspec.msgpack.encode


def read(data: bytes, type_: type[T]) -> T:
    """Return a message."""
    return msgspec.msgpack.decode(data, type=type_)


def nobody(problems: Mapping[str, str]) -> str:
    """Return that no node takes a rollout, from why each does not."""
    why = "; ".join(f"{name}: {problem}" for name, problem in problems.items()) or "it has no nodes"
    return f"no node of the cluster can take a rollout ({why}); `valve doctor --executor ray` shows them"
