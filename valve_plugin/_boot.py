"""The start-up guard: what makes `mini --plugin NAME` work with mini-SWE-agent's own scripts.

`minisweagent_valve.pth` (from Python 3.15 on `minisweagent_valve.start`) calls this module when an interpreter starts
as one of mini's commands, and never otherwise. It then puts one finder on `sys.meta_path`, which waits for mini's
runner modules and gives each one's Typer command the option `--plugin`. That is all: the rest of this package is
imported when the option is used, and stock mini goes on whatever happens here.

`VALVE_STARTUP=0` in the environment switches it off; `valve mini ...` does the same without it.
Start-up files run twice in virtual environments, so everything here may run again without effect.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as type checkers understand it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SWITCH = "VALVE_STARTUP"
COMMANDS = ("mini", "mini-swe-agent", "mini-extra", "mini-e")
RUNNERS = {
    "minisweagent.run.mini": "get_agent",
    "minisweagent.run.benchmarks.swebench": "ProgressTrackingAgent",
    "minisweagent.run.benchmarks.swebench_single": "get_agent",
    "minisweagent.run.benchmarks.programbench": "ProgramBenchAgent",
}
"""mini's runner modules, each with the global through which it makes its agents."""
_NEEDED = ("recursive_merge", "get_config_from_spec", "DEFAULT_CONFIG_FILE")
_OLDEST, _NEXT_MAJOR = (2, 4), (3, 0)
_reported: set[str] = set()


def start() -> None:
    """Install the finder if this process is one of mini's commands (PEP 829 entry point)."""
    if os.environ.get(SWITCH) != "0" and is_mini(getattr(sys, "orig_argv", ())):
        install()


def is_mini(argv: Sequence[str]) -> bool:
    """Whether the interpreter's arguments are those of a mini command. The `.pth` line makes the same check."""
    return any(
        a.replace("\\", "/").rpartition("/")[2].removesuffix(".exe") in COMMANDS or "minisweagent" in a
        for a in argv[1:8]
    )


def install() -> None:
    """Put the finder first on `sys.meta_path`, once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def say(text: str, error: BaseException | None = None) -> None:
    """Write one line to stderr, without control characters; VALVE_DEBUG=1 adds the error's traceback."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    sys.stderr.write(f"valve: {' '.join(shown.split())}\n")
    if error is not None and os.environ.get("VALVE_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)


class Finder:
    """Finds mini's runner modules with the other finders, and adds a step after their execution."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the stock spec with our loader around its loader; None for every other module."""
        if fullname not in RUNNERS:
            return None
        others = (f for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
        spec: Any = next((s for f in others if (s := f.find_spec(fullname, path, target))), None)
        if spec is not None and hasattr(spec.loader, "get_code"):
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader:
    """The stock loader, followed by `extend`."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def create_module(self, spec: Any) -> Any:
        return self._stock.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._stock  # from here on the module is as stock
        self._stock.exec_module(module)
        extend(module)

    def get_code(self, fullname: str) -> Any:
        """Return what `python -m` runs: a module run as __main__ is never imported, so import it by its name."""
        return compile(f"from {fullname} import app\nif __name__ == '__main__':\n    app()\n", f"<{fullname}>", "exec")


def extend(module: Any) -> None:
    """Add the option `--plugin` to a runner module's command; on failure, report it and change nothing."""
    try:
        problem = _problem(module)
        if problem and problem not in _reported:  # one runner may import another
            _reported.add(problem)
            say(f"{problem}; --plugin is ignored ({SWITCH}=0 silences this)")
        _add_option(module, ignored=bool(problem))
    except Exception as e:  # noqa: BLE001 - this runs inside every mini process, and must not stop it
        say(f"--plugin is not available: {type(e).__name__}: {e}", e)


def _problem(module: Any) -> str:
    """Return why this mini-SWE-agent does not support plugins, or an empty string."""
    import re

    from minisweagent import __version__

    found = re.match(r"(\d+)\.(\d+)", __version__)
    if not (found and _OLDEST <= tuple(map(int, found.groups())) < _NEXT_MAJOR):
        return f"mini-SWE-agent {__version__} is not supported; expected 2.4 or later, before 3"
    missing = [name for name in (RUNNERS[module.__name__], *_NEEDED) if not hasattr(module, name)]
    return f"mini-SWE-agent {__version__} has no {module.__name__}.{missing[0]}" if missing else ""


def _add_option(module: Any, *, ignored: bool) -> None:
    """Replace the runner's command by one with the option `--plugin`. mini's function itself is not changed."""
    import functools

    import typer

    info = module.app.registered_commands[0]
    stock: Any = info.cls
    if getattr(stock, "takes_plugins", False):
        return
    text = "Use an installed plugin (repeatable)."
    option = typer.Option([], "--plugin", metavar="NAME", show_default=False, help=text)

    class Command(stock):  # type: ignore[misc]
        takes_plugins = True
        callback: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.params.append(as_parameter("plugin", list[str], option))

        def parse_args(self, ctx: Any, args: list[str]) -> Any:
            """Load the plugins named, as they may add options; where one is used, the call goes through the host."""
            request = None if ignored or ctx.resilient_parsing else _prepare(plugin_names(args), self)
            rest = super().parse_args(ctx, args)
            names = ctx.params.pop("plugin")
            if request is not None:
                request.take_options(ctx.params)
                if names:
                    factory = RUNNERS[module.__name__]
                    self.callback = functools.partial(request.run, module, factory, self.callback)
            return rest

    info.cls = Command


def as_parameter(name: str, annotation: Any, option: Any) -> Any:
    """Return what Typer makes of one option in a command function's signature."""
    import inspect

    import typer

    def carrier(**_: Any) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=option)
    carrier.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    carrier.__annotations__ = {name: annotation}
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    return typer.main.get_command(app).params[0]


def plugin_names(args: Sequence[str]) -> list[str]:
    """Return the plugins a command line names, before it is parsed."""
    names = []
    for here, after in zip(args, [*args[1:], ""], strict=False):
        if here == "--":
            break
        if here == "--plugin":
            names.append(after)
        elif here.startswith("--plugin="):
            names.append(here.partition("=")[2])
    return [name for name in names if name]


def _prepare(names: Sequence[str], command: Any) -> Any:
    """Return the host's request for these plugins; report it and return None if this package itself is broken."""
    if not names:
        return None
    try:
        from valve_plugin.host.option import prepare

        return prepare(names, command)
    except Exception as e:  # noqa: BLE001 - a damaged installation may raise anything
        say(f"--plugin {' '.join(names)} is ignored: {type(e).__name__}: {e}", e)
        return None
