"""Attaching plugins to an agent object.

`run` and `serialize` are replaced on the *instance*; the class, `agent_type` and everything else are not changed. The
plugins' text reaches the system message as the value of a Jinja variable, so it is never interpreted as a template.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar

from valve_plugin.agents.mini import slot_variables, with_slot
from valve_plugin.config import Settings, changed_settings, resolve
from valve_plugin.errors import AgentError
from valve_plugin.host.events import Host
from valve_plugin.plugins import load

Agent = TypeVar("Agent")

_SEAM = "_valve_seam"


class Seam:
    """What an instrumented agent carries: its plugins and its stock methods."""

    def __init__(self, host: Host, run: Callable[..., Any], serialize: Callable[..., Any] | None) -> None:
        self.host, self.run, self.serialize = host, run, serialize


def instrument(
    agent: Agent,
    *,
    bank: str | os.PathLike[str] | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    plugins: Sequence[str] = ("valve",),
) -> Agent:
    """Attach plugins to a mini-SWE-agent agent built in Python, and return the same object.

    Every `agent.run(task)` after this gets its context and is recorded, as under `mini --plugin valve`. Each call
    makes plugin instances of its own, so agents may run in threads. Instrumenting an agent again replaces its
    plugins: it still gets one block and leaves one record.

    Args:
        agent: an object with `run(task, **variables)` and a `config` object with a `system_template`.
        bank: bank directory; None: found as in a `mini` run.
        settings: `Settings`, or values by name; `bank` goes on top.
        plugins: installed plugins, by name.

    Raises:
        AgentError: the agent has a dict as its config, or does not let attributes be set (`__slots__`).
        PluginError: a plugin is not installed or does not load.
        ConfigError: a setting has an unknown name or a value out of range.
    """
    given = changed_settings(settings) if isinstance(settings, Settings) else dict(settings or {})
    if bank is not None:
        given["bank"] = os.fspath(bank)
    resolve(given)
    host = Host(load(plugins))
    options = {spec["dest"]: spec.get("default") for _, spec in host.add_options()}
    host.configure({"valve": given}, options, strict=True)
    return attach(agent, host)


def attach(agent: Agent, host: Host) -> Agent:
    """Bind the plugins' events around the agent's own `run` and `serialize`.

    Raises:
        AgentError: see `instrument`.
    """
    _open_slot(agent)
    carried = getattr(agent, "__dict__", {}).get(_SEAM)
    if carried is not None:
        carried.host = host
        return agent
    method = getattr(agent, "run", None)
    if not callable(method):
        raise AgentError(f"{_name(agent)} has no method 'run'; expected an agent like mini's DefaultAgent")
    seam = Seam(host, method, getattr(agent, "serialize", None))
    try:
        setattr(agent, _SEAM, seam)
        agent.run = MethodType(_run, agent)  # type: ignore[attr-defined]
        if seam.serialize is not None:
            agent.serialize = MethodType(_serialize, agent)  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError) as e:
        raise AgentError(
            f"{_name(agent)} does not let attributes be set ({e}); expected an agent without __slots__, "
            "like mini's DefaultAgent"
        ) from e
    return agent


def _run(self: Any, task: str = "", **variables: Any) -> Any:
    """Run the agent as stock, between the plugins' pre_run and post_run."""
    seam: Seam = getattr(self, _SEAM)
    _open_slot(self)  # again: the template may have been replaced since
    blocks = seam.host.pre_run(self, task)
    variables |= slot_variables(blocks)
    cost, calls = _spent(self)
    returned: Any = None
    error: BaseException | None = None
    try:
        returned = seam.host.run(self, task)
        if returned is None:
            returned = seam.run(task, **variables)
        return returned
    except BaseException as e:
        error = e
        raise
    finally:
        after = _spent(self)
        # Exit status and submission: what `run` returned, else what the last message says, else the error
        messages = getattr(self, "messages", None)
        extra = returned if isinstance(returned, Mapping) else (messages[-1].get("extra") if messages else None)
        extra = extra or {}
        status = extra.get("exit_status") or (type(error).__name__ if error else "")
        ending = {"exit_status": status, "submission": extra.get("submission") or ""}
        seam.host.post_run(self, task, {**ending, "cost": after[0] - cost, "api_calls": after[1] - calls}, error)


def _serialize(self: Any, *extra: Mapping[str, Any]) -> Any:
    """Name the plugins in the trajectory, under what the caller adds."""
    seam: Seam = getattr(self, _SEAM)
    assert seam.serialize is not None
    return seam.serialize({"info": {"plugins": seam.host.names}}, *extra)


def _spent(agent: Any) -> tuple[float, int]:
    """Return what the agent object has spent so far: USD and model calls, both summed over its runs."""
    return getattr(agent, "cost", 0.0), getattr(agent, "n_calls", 0)


def _open_slot(agent: Any) -> None:
    config = getattr(agent, "config", None)
    template = getattr(config, "system_template", None)
    if not isinstance(template, str):
        raise AgentError(
            f"{_name(agent)} has a {type(config).__name__} as its config; expected an object with the text "
            "`system_template`, like mini's AgentConfig"
        )
    try:
        config.system_template = with_slot(template)  # type: ignore[union-attr]
    except (AttributeError, TypeError, ValueError) as e:
        raise AgentError(f"{_name(agent)}: config.system_template cannot be set: {e}; expected a mutable config") from e


def _name(agent: Any) -> str:
    return f"{type(agent).__module__}.{type(agent).__qualname__}"
