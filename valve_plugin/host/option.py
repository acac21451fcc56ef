"""The option `--plugin` of mini's commands: loads the plugins and instruments the agents.

mini's command itself is not changed. While it runs, two globals of its module are replaced: the factory returns
instrumented agents, and the merge function passes the configuration to the plugins.
"""

from __future__ import annotations

import functools
import json
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import typer

from valve_plugin._boot import as_parameter, say
from valve_plugin.config import Settings, resolve
from valve_plugin.errors import AgentError, ConfigError, PluginError, ValveError
from valve_plugin.host.instrument import Host, attach, report_failure
from valve_plugin.plugins import load

SECTION = "valve"
_NAME_MODEL = (
    "-m PROVIDER/NAME names the model for one run, MSWEA_MODEL_NAME for a shell, and `mini-extra config setup` for all "
    "of yours, with its key"
)


class Request:
    """The plugins that one command line names, loaded, with the options they add."""

    def __init__(self, host: Host | None, problem: str = "") -> None:
        """Set the host or, if a plugin is not installed, the error message."""
        self.host, self.problem = host, problem
        self.dests: dict[str, str] = {}
        """Name under which the plugins find each option, by parameter name."""
        self.options: dict[str, Any] = {}

    def take_options(self, parsed: dict[str, Any]) -> None:
        """Move the values of the plugins' options out of what was parsed for mini."""
        self.options = {dest: parsed.pop(name, None) for name, dest in self.dests.items()}

    def run(self, module: types.ModuleType, factory: str, command: Callable[..., Any], **arguments: Any) -> Any:
        """Run mini's command with the plugins attached.

        Raises:
            typer.BadParameter: unknown plugin, or a wrong `valve.KEY` (exit code 2).
            typer.Exit: a plugin refused the run.
        """
        if self.host is None:
            raise typer.BadParameter(self.problem, param_hint="--plugin")
        if hasattr(module, "configure_if_first_time") and not os.environ.get(
            "MSWEA_CONFIGURED"
        ):  # mini asks for a model and a key before it reads its options
            say(f"mini is not set up yet and asks now; without its questions: MSWEA_CONFIGURED=true, and {_NAME_MODEL}")
        arguments["config_spec"] = config_specs(module, arguments["config_spec"])
        try:
            with attach_plugins(module, factory, self.host, self.options):
                returned = command(**arguments)
        except KeyboardInterrupt:
            if not self.host.started:
                say("stopped before the first step: nothing was recorded, spent or changed")
            raise
        if self.host.exit_code:
            raise typer.Exit(self.host.exit_code)
        return returned


def prepare(names: Sequence[str], command: Any) -> Request:
    """Load the plugins and add their options to the command.

    A plugin that does not load is reported in one line and left out.
    """
    try:
        request = Request(Host(load(names, broken=lambda error: say(f"{error}; going on without it", error))))
    except PluginError as e:
        return Request(host=None, problem=str(e))
    assert request.host is not None
    taken = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
    for plugin, spec in request.host.add_options():
        try:
            default, flag, type_ = spec.get("default"), spec["flag"], spec.get("type", str)
            if not (isinstance(flag, str) and flag.startswith("-")):
                raise ValueError(f"flag is {flag!r}, expected one like '--{spec['dest']}'")
            annotation = type_ | None if default is None and isinstance(type_, type) else type_
            option = typer.Option(default, flag, help=spec.get("help", ""), rich_help_panel=f"Plugin {plugin}")
            option = as_parameter(f"plugin_option_{len(request.dests)}", annotation, option)
            flags = {*option.opts, *option.secondary_opts}
            if flags & taken:
                raise ValueError(f"option {', '.join(sorted(flags & taken))} is taken")
            request.dests[option.name] = spec["dest"]
        except Exception as e:  # noqa: BLE001 - whatever Typer or a plugin's own mapping may raise
            report_failure(plugin, "add_options", e)
            continue
        taken |= flags
        command.params.append(option)
    return request


def config_specs(module: Any, specs: Sequence[str]) -> list[str]:
    """Return the values of `-c` for mini, with its default configuration first if only `valve.*` keys are given.

    Any `-c` makes mini drop its default configuration. Settings of VALVE alone should not do that, so the default is
    added. If there is also a `-c` for mini itself, mini's rule applies.

    Raises:
        typer.BadParameter: unknown setting (with the nearest known one), or a value of the wrong type.
    """
    ours = [spec for spec in specs if _is_ours(spec)]
    if not ours:
        return list(specs)
    try:
        merged = module.recursive_merge(*(module.get_config_from_spec(_as_typed(spec)) for spec in ours))
        _section(merged)
    except ValueError as e:  # includes ConfigError
        raise typer.BadParameter(str(e), param_hint="-c") from e
    default = [str(module.DEFAULT_CONFIG_FILE)] if len(ours) == len(specs) else []
    return default + [_as_typed(spec) if _is_ours(spec) else spec for spec in specs]


@contextmanager
def attach_plugins(module: types.ModuleType, factory: str, host: Host, options: Mapping[str, Any]) -> Iterator[None]:
    """Exchange the runner module's agent factory and merge function, and put both back."""
    stock = {name: getattr(module, name) for name in (factory, "recursive_merge")}

    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            return attach(stock[factory](*args, **kwargs), host)
        except AgentError as e:
            _refuse(e)

    def merge(*configs: Any) -> dict[str, Any]:
        config: dict[str, Any] = stock["recursive_merge"](*configs)
        try:
            _section(config)
            host.configure(config, options)
            if not ((config.get("model") or {}).get("model_name") or os.environ.get("MSWEA_MODEL_NAME")):
                raise ConfigError(f"no model is named; {_NAME_MODEL}")
        except ValveError as e:
            _refuse(e)
        return config

    vars(module).update({factory: build, "recursive_merge": merge})
    try:
        yield
    finally:
        vars(module).update(stock)


def _section(config: Mapping[str, Any]) -> None:
    """Check the section `valve` of a merged configuration, whichever files and keys it came from."""
    given = config.get(SECTION) or {}
    if not isinstance(given, dict):
        raise ConfigError(f"{SECTION} is {given!r}, expected settings like valve.attempts=3")
    resolve(given, where="valve.*")


def _is_ours(spec: str) -> bool:
    key, equals, _ = spec.partition("=")
    return bool(equals) and (key == SECTION or key.startswith(f"{SECTION}."))


def _as_typed(spec: str) -> str:
    """Quote the value of a setting that is text: `valve.check=true` names a command, `valve.rho=0.020` its digits.

    mini reads values as JSON where it can, which would make a boolean and another number of them.
    """
    key, _, value = spec.partition("=")
    if key.removeprefix(f"{SECTION}.") not in _texts():
        return spec
    try:
        quoted = isinstance(json.loads(value), str)
    except ValueError:
        quoted = False
    return spec if quoted else f"{key}={json.dumps(value)}"


@functools.cache
def _texts() -> frozenset[str]:
    return frozenset(f.name for f in msgspec.structs.fields(Settings) if f.type is str)


def _refuse(error: ValveError) -> NoReturn:
    """End the command before anything was spent: one line, and the error's own exit code."""
    say(str(error))
    raise typer.Exit(error.exit_code) from error
