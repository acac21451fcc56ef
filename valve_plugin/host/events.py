"""Calling the plugins' host events, so that a failing plugin does not end the user's run.

Plugins are called one by one, in the order named. If one raises, one line on stderr says so, and the other plugins and
mini continue. Only errors of `valve_plugin.errors` in configure are raised: nothing was spent yet, and what the user
asked for is not possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pluggy

from valve_plugin._boot import say
from valve_plugin.errors import ValveError


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
