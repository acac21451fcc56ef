"""Attaching plugins to an agent object, and calling their host events so that a failing plugin ends no run.

Plugins are called one by one, in the order named. If one raises, one line on stderr says so, and the other plugins and
mini continue. Only errors of `valve_plugin.errors` in configure are raised: nothing was spent yet, and what the user
asked for is not possible.

`run` and `serialize` are replaced on the *instance*; the class, `agent_type` and everything else are not changed. The
plugins' text reaches the system message as the value of a Jinja variable, so it is never interpreted as a template.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar

import pluggy

from valve_plugin._boot import say
from valve_plugin.agents.mini import slot_variables, with_slot
from valve_plugin.config import Settings, changed_settings, resolve
from valve_plugin.errors import AgentError, ValveError
from valve_plugin.plugins import load

Agent = TypeVar("Agent")
_SEAM = "_valve_seam"


class Host:
    """The plugins of one command line, or of one `instrument` call. Safe to use from several threads."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self.manager = manager
        self._plugins: dict[str, Any] = dict(manager.list_name_plugin())
        self.started = False
        """Whether a run has reached its first step; after that, plugins report how it ended."""
        self.exit_code = 0
        """Exit code of the command: not 0 if a plugin refused a run."""

    @property
    def names(self) -> list[str]:
        """Names of the plugins, in the order given."""
        return list(self._plugins)

    def add_options(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (plugin, option) for every command-line option the plugins add."""
        for name in self.names:
            try:
                yield from ((name, spec) for spec in self._call(name, "minisweagent_add_options") or ())
            except Exception as e:  # noqa: BLE001 - a plugin may raise anything
                report_failure(name, "add_options", e)

    def configure(self, config: dict[str, Any], options: Mapping[str, Any], *, strict: bool = False) -> None:
        """Let each plugin change mini's configuration in place. Each one sees the settings in `config["valve"]`.

        Raises:
            ValveError: a plugin cannot do what the user asked for; nothing has run yet.
            Exception: with `strict`, whatever a plugin raises.
        """
        settings = config.get("valve") or {}
        for name in self.names:
            config["valve"] = dict(settings)
            try:
                self._call(name, "minisweagent_configure", config=config, options=options, manager=self.manager)
            except Exception as e:
                if strict or isinstance(e, ValveError):
                    raise
                report_failure(name, "configure", e)
        config.pop("valve", None)

    def pre_run(self, agent: Any, task: str) -> list[str]:
        """Return the blocks that end the system message, in the order the plugins were named."""
        blocks = []
        for name in self.names:
            try:
                block = self._call(name, "minisweagent_pre_run", agent=agent, task=task)
                if not isinstance(block, str | None):
                    raise TypeError(f"returned {type(block).__name__}, expected text or None")
            except Exception as e:  # noqa: BLE001 - as above
                report_failure(name, "pre_run", e)
            else:
                blocks += [block] if block else []
        return blocks

    def run(self, agent: Any, task: str) -> Mapping[str, Any] | None:
        """Return the result of the first plugin that runs the task itself, or None if the agent should run it.

        A plugin that fails here ends the run, because the user did not ask for the agent's own loop.
        """
        self.started = True
        for name in self.names:
            try:
                result: Mapping[str, Any] | None = self._call(name, "minisweagent_run", agent=agent, task=task)
                self.exit_code = max(self.exit_code, int((result or {}).get("exit_code", 0)))
            except Exception as e:  # noqa: BLE001 - as above
                report_failure(name, "run", e)
                return {"exit_status": type(e).__name__, "submission": ""}
            if result is not None:
                return result
        return None

    def post_run(self, agent: Any, task: str, result: Mapping[str, Any], error: BaseException | None) -> None:
        """Tell every plugin how the run ended."""
        for name in self.names:
            try:
                self._call(name, "minisweagent_post_run", agent=agent, task=task, result=result, error=error)
            except (Exception, KeyboardInterrupt, SystemExit) as e:  # noqa: BLE001
                # Ctrl-C here means "stop grading", not "throw away the run that is already paid for".
                report_failure(name, "post_run", e)

    def _call(self, name: str, event: str, **arguments: Any) -> Any:
        others = [plugin for other, plugin in self._plugins.items() if other != name]
        answers = self.manager.subset_hook_caller(event, others)(**arguments)
        return answers[0] if answers else None


def report_failure(name: str, event: str, error: BaseException) -> None:
    """Report a plugin's failure in one line."""
    say(f"plugin {name!r} failed in {event}: {type(error).__name__}: {error}", error)


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
