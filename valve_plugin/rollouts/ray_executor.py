"""Rollouts on the nodes of a Ray cluster: an attempt step like the local one, where Ray chooses the place.

A rollout travels as data (`Rollout`), its repository once per node by the commit's hash; the attempt comes back.
Journal, retries and budget stay with the driver, and the key of a model call is the node's own. Ray ends a process
whose cluster is gone, so the driver keeps Ray in a child process, the bridge. Panel runs use the same one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from filelock import FileLock
from msgspec import to_builtins
from msgspec.structs import replace

from valve_plugin import errors
from valve_plugin.agents import mini, process
from valve_plugin.agents.faults import key_variable
from valve_plugin.agents.protocol import Payment, RolloutCancelledError
from valve_plugin.agents.retry import report_step, report_wait
from valve_plugin.codec import digest
from valve_plugin.config import SCRIPTED_MODEL, Settings
from valve_plugin.errors import ConfigError, InfrastructureError, SandboxError, ValveError
from valve_plugin.extras import install_command
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.redact import MIN_NAMED, Redactor, gather, is_key_name
from valve_plugin.rollouts.attempt import keep_trajectory, rollout_key
from valve_plugin.rollouts.ray_node import Answer, Node, Request, Rollout, encode, nobody, read
from valve_plugin.rollouts.workers import stop_event
from valve_plugin.sandbox.supervisor import python_command
from valve_plugin.tasks.repository import find_prepared
from valve_plugin.words import one_line

_POLL_SECONDS = 0.2
_AWAY_SECONDS = 30.0
"""A rollout that is tried again so long after the cluster was found gone, and finds it gone, ends the run."""
_CANCEL_SECONDS = 30.0
_SCRIPTED = ("OPENAI_API_BASE", "OPENAI_BASE_URL", "OPENAI_API_KEY", "MSWEA_COST_TRACKING", "NO_PROXY", "no_proxy")
"""Variables of the scripted model, whose key is none."""

_QUERY = re.compile(r"(?<=[?&])([^=&#\s]+)=[^&#\s]*&?")
_REDACTED = re.compile(r"\[redacted:([^\]]*)\]")


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
        key_variable=_key_variable(settings),
    )  # fmt: skip
    request = Request(rollout=encode(rollout), base=prepared.base, store=str(prepared.store))
    answer, stop = _ask(settings.ray_address, request), stop_event()
    finished = answer.attempt is not None and answer.attempt.outcome != "errored"
    if answer.cancelled or (stop is not None and stop.is_set() and not finished):  # its end may look like a loss
        made = answer.attempt
        raise RolloutCancelledError(Payment(made.steps, made.cost_usd) if made else answer.paid)
    _require_present(settings.ray_address, answer)
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


def _require_present(address: str, answer: Answer) -> None:
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
            "rollouts are kept on this machine. Start the cluster again as it was started before"
        )


def nodes(settings: Settings) -> tuple[Node, ...]:
    """Return what the cluster's nodes can do.

    Raises:
        ConfigError: Ray is not installed here.
        InfrastructureError: the cluster cannot be reached.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"executor is 'ray', which is not installed here: {install_command('ray')}")
    answer = _ask(settings.ray_address, Request(settings=encode(_sent(settings)), key_variable=_key_variable(settings)))
    if answer.away:
        raise InfrastructureError(f"{answer.away}; start it, or name another: RAY_ADDRESS=HOST:PORT in the environment")
    return answer.nodes


def nodes_now(settings: Settings) -> tuple[Node, ...]:
    """Return the cluster's nodes with the number of rollouts at work on each; none while no cluster answers."""
    return _ask(settings.ray_address, Request()).nodes


def require_nodes(settings: Settings) -> None:
    """Check, before a model is paid, that some node can take a rollout.

    Raises:
        InfrastructureError: the cluster cannot be reached.
        SandboxError: it has no such node.
    """
    found = nodes(settings)
    if all(node.problem for node in found):
        raise SandboxError(nobody({node.name: node.problem for node in found}))


def _sent(settings: Settings) -> Settings:
    """Return the settings for a node, with the driver's model and without keys.

    What is named like a key is left out, and passwords and keys in addresses; a key anywhere else is refused.

    Raises:
        ConfigError: a setting holds a secret that cannot be left out.
    """
    mini.load_user_settings()
    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    arguments, config = _without_keys(settings.model_kwargs), tuple(filter(None, map(_entry, settings.mini_config)))
    sent = replace(settings, executor="local", model=model, model_kwargs=arguments, mini_config=config)
    found = gather(os.environ, None, [settings.model_kwargs, [_held(one) for one in settings.mini_config]])
    # Of a file of keys all values count, also addresses; here only those that are named like keys, and passwords
    known = {key: name for key, name in found.items() if is_key_name(name) or os.environ.get(name, "").strip() != key}
    redact = Redactor(known)
    for name, value in to_builtins(sent).items():
        shown = json.dumps(redact.tree(value))
        if what := _REDACTED.search(shown):
            raise ConfigError(
                f"the setting {name} holds a secret ({what[1]}), and keys do not travel to the nodes of a cluster: "
                f"{one_line(shown)[:200]}. Take it out; each node has its keys in its own environment"
            )
    return sent


def _key_variable(settings: Settings) -> str:
    """Return the variable of the model's key where this machine has one, so that each node needs it; else nothing.

    A local server needs none, and machines of a cloud may have a role in the place of a key.
    """
    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    variable, given = key_variable(model), settings.model_kwargs.get("api_key") or ""
    stock = not settings.model_class or settings.model_class.startswith("litellm")
    if not (model and stock and variable.endswith("_API_KEY")) or model == SCRIPTED_MODEL:
        return ""
    return variable if os.environ.get(variable) or len(str(given)) >= MIN_NAMED else ""


def _without_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_keys(v) for k, v in value.items() if not _is_key(k, v)}
    if isinstance(value, str):
        value = re.sub(r"(\w://)[^/@\s]*@", r"\1", value)  # a user and a password in an address
        kept = _QUERY.sub(lambda m: "" if is_key_name(m[1]) else m[0], value) if "://" in value else value
        return value if kept == value else re.sub(r"[?&](?=#|$)", "", kept)
    if isinstance(value, list | tuple):  # of pairs, too, as headers may be given
        pairs = (v for v in value if not (isinstance(v, list | tuple) and len(v) == 2 and _is_key(*v)))
        return [_without_keys(v) for v in pairs]
    return value


def _is_key(name: Any, value: Any) -> bool:
    """Whether this is text, or holds some, under a name of keys; numbers, as of max_tokens, are none."""
    if isinstance(value, Mapping):
        return any(_is_key(name, below) for below in value.values())
    return isinstance(name, str) and is_key_name(name) and isinstance(value, str | list | tuple)


def _held(given: str) -> dict[str, Any]:
    """Return an entry NAME=VALUE of `mini_config` as what it sets; nothing for a file."""
    name, equals, value = given.partition("=")
    with suppress(ValueError):
        return {name: json.loads(value)} if equals else {}
    return {name: value} if equals else {}


def _entry(given: str) -> str:
    """Return an entry of `mini_config` without keys; empty if it is one."""
    held = _held(given)
    kept = _without_keys(held)
    if kept == held:
        return given
    return "".join(f"{name}={json.dumps(value)}" for name, value in kept.items())


def _ask(address: str, request: Request) -> Answer:
    """Ask the bridge and wait for its last answer; a set stop event cancels the rollout."""
    address = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    stop, paid = stop_event(), Payment()
    place = Path(process.server_address()).with_name(f"ray-{digest(address)[:8]}")
    try:
        with _connect(place, address) as connection:
            connection.send_bytes(encode(request))
            for answer in _answers(connection, stop):
                if not answer.goes_on:
                    return answer
                if answer.wait:
                    report_wait(answer.wait)
                if answer.paid != paid:
                    paid = answer.paid
                    report_step(paid.calls, paid.usd)
        raise EOFError
    except (EOFError, OSError):
        if stop is not None and stop.is_set():
            raise RolloutCancelledError(paid) from None
        log = place.with_suffix(".log")
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        said = next((line for line in reversed(lines) if re.search("rror|ailed|started anew", line)), "it ended")
        where = "on this machine" if address == "auto" else f"at {address}"
        return Answer(away=f"no Ray cluster answers {where} ({one_line(said)[:300]})", paid=paid)


def _answers(connection: Connection, stop: threading.Event | None) -> Iterator[Answer]:
    """Yield what the bridge says. Where the rollout should stop, the bridge is told, and has some seconds more."""
    give_up = float("inf")
    while time.monotonic() < give_up:
        if connection.poll(_POLL_SECONDS):
            yield read(connection.recv_bytes(), Answer)
        if stop is not None and stop.is_set() and give_up == float("inf"):
            connection.send_bytes(b"cancel")
            give_up = time.monotonic() + _CANCEL_SECONDS


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
                python_command(
                    "from valve_plugin.rollouts.ray_bridge import bridge; bridge()", *map(str, handed), address
                ),
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
