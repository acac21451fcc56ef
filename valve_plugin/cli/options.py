"""What several commands share: options and their ranges, the bank they are about, and settings of the command line."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from valve_plugin.bank.identity import find_bank
from valve_plugin.bank.scripted_bank import find_simulation
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import Checkout, find
from valve_plugin.cli import output
from valve_plugin.codec import repeated_key
from valve_plugin.config import Settings, Use, is_unused, load, resolve
from valve_plugin.errors import BankNotFoundError, ConfigError, ValveError
from valve_plugin.files import read_regular
from valve_plugin.paths import BANK_NAME
from valve_plugin.records import Bank, Item
from valve_plugin.words import meant, quote

Command = TypeVar("Command", bound=Callable[..., Any])
Real = float | None
Count = int | None
RARE = "Rarely needed"
"""Section of the help for options that few people need."""
_POINTS = "a difference of rates: 5 points are 0.05"


def option(name: str, metavar: str, text: str, *, also: str = "", rare: bool = False, **how: Any) -> Any:
    """Return an option that takes a value; `text` is its help, `also` another name."""
    section = RARE if rare else None
    return typer.Option(*filter(None, [name, also]), metavar=metavar, help=text, rich_help_panel=section, **how)


def flag(name: str, text: str, *, rare: bool = False, **how: Any) -> Any:
    """Return an option without a value; `text` is its help."""
    return typer.Option(name, help=text, rich_help_panel=RARE if rare else None, **how)


def argument(metavar: str, text: str, **how: Any) -> Any:
    """Return an argument of a command; `text` is its help."""
    return typer.Argument(metavar=metavar, help=text, **how)


Json = Annotated[bool, flag("--json", "Print JSON instead of text.")]


def remember_bank(given: str) -> str:
    """Remember what `--bank` named, for the commands that are advised; the callback of that option."""
    output.bank = given
    return given


BankDir = Annotated[
    str,
    option(
        "--bank", "DIR", "Bank directory. Default: $VALVE_BANK, <repo>/.valve, user data.", callback=remember_bank
    ),
]  # fmt: skip


def examples(*lines: str) -> str:
    """Return the epilog that shows how a command is used, one example a line: `command  # what it does`."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


class SectionedCommand(TyperCommand):
    """A command whose help has a section for each `rich_help_panel` of its options, also without Rich."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an error says the value, which newer versions of Typer leave out."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as e:
            if errors := getattr(e.__cause__, "errors", None):
                value, said = repr(errors()[0]["input"]), e.message.removeprefix("Value error, ")
                e.message = said if value in said else f"{value}: {said}"
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options, and after them the sections with a name of their own."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            usual = "Arguments" if param.param_type_name == "argument" else "Options"
            if record := param.get_help_record(ctx):
                if usual == "Arguments":  # Typer adds the type as Python names it, like <list[Path]>
                    record = (re.sub(r" <\S+>$", "", record[0]), record[1])
                sections.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(typer.Typer):
    """The commands of one module; with a name, a group of commands as `valve NAME` with examples in its help."""

    def __init__(self, name: str | None = None, *lines: str, **how: Any) -> None:
        super().__init__(name=name, epilog=examples(*lines) if lines else None, **how)

    def add(self, name: str, *lines: str, **how: Any) -> Callable[[Command], Command]:
        """Return a decorator that makes a function the command `name`; `lines` are the examples in its help."""
        register = self.command(name, **{"cls": SectionedCommand, "epilog": examples(*lines), **how})

        def add(function: Command) -> Command:
            register(_with_groups(function))
            return function

        return add


def _with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the fields of a named tuple in place of each parameter of that type.

    So options that several commands have are declared once.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hasattr(hint, "_field_defaults")}
    if not groups:
        return function
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            fields, defaults = get_type_hints(groups[name], include_extras=True), groups[name]._field_defaults
            shown += [parameter.replace(name=n, annotation=kind, default=defaults[n]) for n, kind in fields.items()]
        else:
            shown.append(parameter.replace(annotation=hints[name]))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in group._fields})
        function(**given)

    del command.__wrapped__
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in shown}
    return command


def read_input(name: str, most: int) -> bytes:
    """Return the bytes of a regular file, of a pipe that the shell opened, as <(command) does, or of stdin for "-".

    Raises:
        ConfigError: there are more than `most` bytes, or the file cannot be read.
    """
    try:
        if name != "-" and not name.startswith(("/dev/fd/", "/proc/self/fd/")):
            return read_regular(Path(name), most)
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as stream:
            raw = stream.read(most + 1)
    except OSError as e:
        raise ConfigError(f"{name}: cannot be read: {e.strerror or e}") from e
    if len(raw) > most:
        what = "the text on stdin" if name == "-" else name
        raise ConfigError(f"{what} has more than {most} bytes; is this the right file?")
    return raw


def bank_dir(bank: str) -> Path:
    """Return the bank directory that applies here; if there is none, the one that `valve init` would make."""
    here = find(Path.cwd())
    directory = find_bank(bank, here)
    return directory if directory.exists() else new_bank_dir(bank, here)


def new_bank_dir(bank: str, here: Checkout, *, private: bool = False) -> Path:
    """Return where a new bank goes: `.valve`, unless another place is named or the bank is private."""
    elsewhere = bank or private or os.environ.get("VALVE_BANK")
    return find_bank(bank, here) if elsewhere else here.folder / BANK_NAME


def open_bank(bank: str) -> BankStore:
    """Open the bank that applies here; print its warnings to stderr.

    Raises:
        BankError: there is none, or it is damaged.
    """
    try:
        store = BankStore.open(bank_dir(bank))
    except BankNotFoundError as e:
        load(bank_dir(bank))  # settings that cannot be used raise, as they do where a bank is made
        raise BankNotFoundError(f"{e}{_elsewhere(bank, any_=True)}") from e
    for warning in store.warnings:
        output.warn(warning)
    if store.bank.version == 0 and len(list(store.entries())) == 1 and (hint := _elsewhere(bank)):
        output.warn(f"{store.dir}: nothing happened in this bank yet{hint}")
    return store


def _elsewhere(bank: str, *, any_: bool = False) -> str:
    """Return where a simulation's bank is, for a person who looks for it in the bank that applies here; or nothing."""
    found = None if bank or os.environ.get("VALVE_BANK") else find_simulation(find(Path.cwd()).name, any_=any_)
    return f"; what a simulation learned is in a bank of its own: --bank {quote(str(found))}" if found else ""


def find_item(bank: Bank, name: str) -> Item:
    """Return the item called `name`, or kind/name.

    Raises:
        ConfigError: there is none (the message has the nearest names), or two.
    """
    found = [item for item in bank.items if name in (item.name, f"{item.kind}/{item.name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"a principle and a skill are called {name!r}; say principle/{name} or skill/{name}")
    hint = meant(name, [item.name for item in bank.items], most=3) or "`valve bank list` shows what there is"
    raise ConfigError(f"no note {name!r} in version {bank.version} of the bank of {bank.repo}; {hint}")


def overrides(specs: Sequence[str], use: Use, *, simulate: bool = False, **options: Any) -> dict[str, Any]:
    """Return the settings of `-c KEY=VALUE` and of a command's own options; an option that was not given is None.

    Raises:
        ConfigError: not KEY=VALUE, an unknown key, a value out of range, or a setting that has no effect in this run.
    """
    given: dict[str, Any] = {}
    for spec in specs:
        key, equals, text = spec.partition("=")
        if not equals:
            raise ConfigError(f"-c {spec!r}: expected KEY=VALUE, like -c rho=0.02")
        key = key.removeprefix("valve.")
        # `model_kwargs.a.b` is a name inside that mapping, as for mini
        name, *below = key.split(".") if key.startswith("model_kwargs.") else [key]
        if "" in below:
            raise ConfigError(f"-c {key}={text}: an empty name; expected one like model_kwargs.temperature=0.2")
        value, layer = _setting_value(name, text), given
        for part in below:
            inside = layer.get(name)
            layer[name] = dict(inside) if isinstance(inside, dict) else {}
            layer, name = layer[name], part
        layer[name] = value
    given |= {name: value for name, value in options.items() if value is not None}
    resolve(given, where="the command line")  # before anything is made
    for name in given:
        if is_unused(name, use, draws=simulate or "plugins" in given):
            raise ConfigError(f"{name} has no effect in this command; leave it out, or see its --help for another way")
    return given


def _setting_value(key: str, text: str) -> Any:
    """Return a setting's value: text where the setting is text, else JSON, else the text, whose type is refused."""
    import msgspec

    kinds = {f.name: f.type for f in msgspec.structs.fields(Settings)}
    if kinds.get(key) is str or key in ("rho", "delta"):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    if (twice := repeated_key(text)) is not None:
        raise ConfigError(f"-c {key}={text}: the key {twice!r} is given twice in one object; keep one of the two")
    return value


def between(low: float, high: float, hint: str, *, ends: str = "[]") -> Callable[[str, str, str], Any]:
    """Return a function that makes an option for a number, or a list of numbers, in a range.

    Args:
        hint: what the number means and how it is written.
        ends: whether each end belongs to the range, as in `(0, 1]`.
    """

    def check(given: Any) -> Any:
        for number in given if isinstance(given, list) else [given]:
            if number is None:
                continue
            above = number > low or (number == low and ends[0] == "[")
            if not (above and (number < high or (number == high and ends[1] == "]"))):  # false for nan, too
                shown = f"{number:g}" if isinstance(number, float) else number
                raise typer.BadParameter(f"{shown} is not in {ends[0]}{low}, {high}{ends[1]}; it is {hint}")
        return given

    def make(name: str, metavar: str, text: str) -> Any:
        return typer.Option(name, metavar=metavar, callback=check, help=text)

    return make


difference = between(-1, 1, _POINTS)
loss = between(0, 1, _POINTS)
tolerable = between(0, 1, _POINTS, ends="(]")
chance = between(0, 1, "a probability: 1 time in 20 is 0.05", ends="()")
rate = between(0, 1, "a solve rate: 75 % are 0.75", ends="()")
noise = between(0, 0.25, "the mean of p(1-p), never above a quarter", ends="(]")
spread = between(0, 1, "in squared rates: the paper's is 0.025, and none is above 1", ends="(]")
queries = between(1, 100_000, "a number of gate queries")
tasks = between(1, 1_000_000, "a number of tasks")
banks = between(1, 1_000_000, "a number of different banks")
accepts = between(1, 100_000, "a number of accepts")
panel_tasks = between(1, 1000, "a number of panel tasks")
per_task = between(1, 30, "a number of rollouts per task")
useless = between(0, 1000, "a number of accepts that do not help, in expectation; 0 limits nothing")
share = between(0, 1, "a share of the panel's tasks", ends="(]")
passes = between(0, 30, "a number of passes; 0 guards nothing")
Variance = Annotated[Real, spread("--variance", "V", "Bound on the variance of a paired difference, e.g. 0.025.")]


@contextmanager
def theory_errors() -> Iterator[None]:
    """Turn a ValueError of the theory, which names the value, into a ConfigError."""
    try:
        yield
    except ValveError:
        raise
    except ValueError as e:
        raise ConfigError(str(e)) from e


def points(rate: float) -> str:
    """Return a difference of rates in signed points."""
    return f"{100 * rate:+.1f}"
