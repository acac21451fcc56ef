"""What `--plugin` does once it is used: from names on a command line to instrumented agents.

mini's command runs unchanged. While it does, the two globals it goes through are exchanged: the factory returns
instrumented agents, and the merged configuration passes the plugins.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import typer

from valve_plugin._boot import say
from valve_plugin.config import Settings, resolve
from valve_plugin.errors import AgentError, ConfigError, PluginError, ValveError
from valve_plugin.host.events import Host, failed
from valve_plugin.host.instrument import attach
from valve_plugin.plugins import load

SECTION = "valve"
_TEXTS = frozenset(f.name for f in msgspec.structs.fields(Settings) if f.type is str)


@dataclass(frozen=True)
class Request:
    """The plugins that one command line names, loaded, with the options they add."""

    host: Host | None
    problem: str = ""
    """Why there is no host: a name that is not installed, with those that are."""
    parameters: tuple[inspect.Parameter, ...] = ()
    dests: tuple[str, ...] = ()
    """Under which name the plugins find the value of each parameter."""

    def run(
        self,
        module: types.ModuleType,
        factory: str,
        main: Callable[..., Any],
        names: Sequence[str],
        arguments: dict[str, Any],
    ) -> Any:
        """Run mini's command `main` with the plugins attached.

        Raises:
            typer.BadParameter: unknown plugin, or a wrong `valve.KEY` (exit code 2).
        """
        pairs = zip(self.dests, self.parameters, strict=True)
        options = {dest: arguments.pop(p.name, p.default.default) for dest, p in pairs}
        if not names:
            return main(**arguments)
        if self.host is None:
            raise typer.BadParameter(self.problem, param_hint="--plugin")
        arguments["config_spec"] = config_specs(module, arguments["config_spec"])
        with attached(module, factory, self.host, options):
            return main(**arguments)


def prepare(names: Sequence[str], main: Callable[..., Any]) -> Request:
    """Load the plugins. One that does not load is left out, with one line; stock mini goes on without it."""
    try:
        host = Host(load(names, broken=lambda error: say(f"{error}; going on without it")))
    except PluginError as e:
        return Request(host=None, problem=str(e))
    taken = {flag for p in inspect.signature(main).parameters.values() for flag in _flags(p)} | {"--plugin", "--help"}
    parameters: list[inspect.Parameter] = []
    dests: list[str] = []
    for name, spec in host.add_options():
        try:
            parameter = _parameter(len(parameters), name, spec)
            if clash := taken.intersection(_flags(parameter)):
                raise ValueError(f"option {', '.join(sorted(clash))} is taken")
        except (LookupError, TypeError, ValueError) as e:
            failed(name, "add_options", e)
            continue
        taken.update(_flags(parameter))
        parameters.append(parameter)
        dests.append(spec["dest"])
    return Request(host=host, parameters=tuple(parameters), dests=tuple(dests))


def config_specs(module: Any, specs: Sequence[str]) -> list[str]:
    """Return the values of `-c` for mini: with its default configuration first where only `valve.*` was given.

    Any `-c` makes mini drop its default configuration; settings of ours are not configuration of mini's, so alone
    they do not. With a `-c` of mini's own beside them, mini's rule holds.

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
def attached(module: types.ModuleType, factory: str, host: Host, options: Mapping[str, Any]) -> Iterator[None]:
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
        except ValveError as e:
            _refuse(e)
        config.pop(SECTION, None)
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
    if key.removeprefix(f"{SECTION}.") not in _TEXTS:
        return spec
    try:
        quoted = isinstance(json.loads(value), str)
    except ValueError:
        quoted = False
    return spec if quoted else f"{key}={json.dumps(value)}"


def _parameter(number: int, plugin: str, spec: Mapping[str, Any]) -> inspect.Parameter:
    default, flag, type_ = spec.get("default"), spec["flag"], spec.get("type", str)
    if not (isinstance(flag, str) and flag.startswith("-")):
        raise ValueError(f"flag is {flag!r}, expected one like '--{spec['dest']}'")
    option = typer.Option(default, flag, help=spec.get("help", ""), rich_help_panel=f"Plugin {plugin}")
    annotation = type_ | None if default is None and isinstance(type_, type) else type_
    return inspect.Parameter(
        f"plugin_option_{number}", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=option
    )


def _flags(parameter: inspect.Parameter) -> list[str]:
    return [part for flag in getattr(parameter.default, "param_decls", None) or () for part in flag.split("/")]


def _refuse(error: ValveError) -> NoReturn:
    """End the command before anything was spent: one line, and the error's own exit code."""
    say(str(error))
    raise typer.Exit(error.exit_code) from error
