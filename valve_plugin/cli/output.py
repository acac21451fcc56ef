"""What every command prints, how a table fits the terminal, how a command fails, and the command that resumes it.

Results go to stdout, everything else to stderr. Text from banks, ledgers and models is data: it is never
markup, and escape sequences are left out. Exit codes: 0 ok, 1 a negative finding, 2 wrong use, 3 infrastructure,
130 interrupted.

Only free text is cut. Ids, outcomes, numbers and paths are always whole, so that they can be copied.
On a terminal, long lines are broken at words; commands never are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError, InfrastructureError, ValveError
from valve_plugin.extras import missing_package
from valve_plugin.words import join, quote, visible
from valve_plugin.words import plural as plural

if TYPE_CHECKING:
    from rich.console import Console

    from valve_plugin.bank.local import LocalStore

FINDING = 1
"""Exit code of a command that worked and found something wrong."""
INFRASTRUCTURE = 3
INTERRUPTED = 130
"""128 + SIGINT, what a shell expects."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader is gone, as in `valve bank log | head`."""

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"  # the other escapes
)
bank = ""
"""The directory that `--bank` named; commands that are advised name it too."""

_ADVISED = re.compile(
    r"`(valve (?:attempts|bank|certify|context|doctor|eval|evolve|extract|gate|panel|plan|report)\b[^`\n]*)`"
)

_COLUMNS = re.compile(r"^ +| {2,}")
_PIECES = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
"""Words, and commands in backticks with what touches them."""
_ALONE = re.compile(r"(?:next: )?(?:\$ |(?:\S*/)?(?:valve|mini|mini-extra) )")

live: Console | None = None
"""The console of a live display at the bottom of the terminal; lines are printed above it."""
GAP = "  "
REASONS = ("WHY", "REASON", "REMARK", "ENDED")
"""Columns whose free text takes more lines where it finds no room: the last word may be the one that matters."""
LEAST = 20
"""Width below which a column of free text says too little; where there are several, the last is then left out."""
_START = "start it again"
_NOTE = "run"


def clean(text: str) -> str:
    """Return `text` without escape sequences, control characters and invisible characters."""
    return visible(_SEQUENCES.sub("", text).replace("\r", ""), "")


def one_line(text: str) -> str:
    """Return `text` cleaned, on one line: white space is folded to single spaces."""
    return " ".join(clean(text).split())


def say(text: str = "", style: str = "") -> None:
    """Print one result line (or several) to stdout; `style` shows on terminals only."""
    _print(text, style, stderr=False)


def note(text: str, style: str = "dim") -> None:
    """Print a remark to stderr."""
    relay(advice(text), style)


def warn(text: str) -> None:
    """Print to stderr what a person should know, although the command goes on."""
    note(f"valve: {text}", "yellow")


def relay(text: str, style: str = "dim") -> None:
    """Print to stderr what another process wrote: its commands name their bank already."""
    _print(text, style, stderr=True)


def advice(text: str) -> str:
    """Return our own text in which each command between backticks names the bank that `--bank` named."""
    return _ADVISED.sub(lambda found: f"`{for_bank(found[1])}`", text)


def for_bank(command: str) -> str:
    """Return a command for the bank that `--bank` named; the same command where none was named."""
    if not bank or "--bank" in command or command.startswith(("valve split", "valve tasks", "mini-extra")):
        return command
    if command.startswith("mini --plugin valve"):
        return command.replace("valve", f"valve -c {quote(f'valve.bank={bank}')}", 1)
    return f"{command} --bank {quote(bank)}"


def emit_json(data: Any) -> None:
    """Print records or plain values as indented JSON, in ASCII: the same bytes under every locale."""
    print(json.dumps(plain(data), indent=2))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], prose: Collection[str] = ()) -> None:
    """Print rows under a header: fitted to the width of a terminal, tab-separated and complete elsewhere.

    Args:
        header: names of the columns.
        rows: as many cells each.
        prose: names of columns of free text, which a terminal may cut, wrap (`REASONS`) or leave out; all others are
            always whole.
    """
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    if not is_terminal():
        for row in [list(header), *cells]:
            print("\t".join(row))
        return
    found = fit(header, cells, prose, console().width)
    for line in found.heads:
        say(line, style="bold")
    for line in found.lines:
        say(line)
    if found.hidden:
        note(f"no room for {', '.join(found.hidden)}: a wider window, a pipe and --json have them")


def verbatim(text: str) -> None:
    """Print text byte for byte; on a terminal, cleaned and with a line end."""
    if is_terminal():
        shown = clean(text)
        sys.stdout.write(shown if shown.endswith("\n") or not shown else f"{shown}\n")
    else:
        sys.stdout.write(text.encode("utf-8", "replace").decode())


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console without markup, highlighting and emoji codes."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def confirm(question: str, nobody: str) -> bool:
    """Return what the person at the terminal answers; where there is none, raise ConfigError(nobody)."""
    if not (sys.stdin.isatty() and is_terminal()):
        raise ConfigError(nobody)
    return typer.confirm(question)


def edit(text: str) -> str | None:
    """Let the person change a text in `$EDITOR`; return what was saved, None where nothing was.

    Raises:
        ConfigError: the editor cannot be started, or failed.
    """
    import click

    try:
        return click.edit(text, extension=".md")
    except click.ClickException as error:
        raise ConfigError(f"{error.message.rstrip('.')}; set EDITOR to one that works here, as EDITOR=nano") from error


@contextmanager
def boundary() -> Iterator[None]:
    """Turn an exception into one line on stderr and an exit code; VALVE_DEBUG=1 adds the traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except ValveError as e:
        raise _stop(str(e) or type(e).__name__, e.exit_code) from e
    except KeyboardInterrupt as e:
        raise _stop("; ".join(["interrupted; what was acknowledged is kept", *map(str, e.args)]), INTERRUPTED) from e
    except BrokenPipeError as e:
        silence()
        raise typer.Exit(BROKEN_PIPE) from e
    except OSError as e:
        raise _stop(f"{type(e).__name__}: {e}", INFRASTRUCTURE) from e
    except ModuleNotFoundError as e:
        raise _stop(missing_package(e) or _defect(e), INFRASTRUCTURE) from e
    except Exception as e:  # the last boundary: a defect is one line too
        if type(e).__module__.partition(".")[0] in ("typer", "click"):  # wrong use: typer prints it with the usage
            raise
        raise _stop(_defect(e), INFRASTRUCTURE) from e


def _defect(error: Exception) -> str:
    return f"internal error, {type(error).__name__}: {error}; VALVE_DEBUG=1 shows where, please report it"


def silence() -> None:
    """Discard what stdout still holds, so that the interpreter ends without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _stop(message: str, code: int) -> typer.Exit:
    if os.environ.get("VALVE_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    _print(f"valve: {advice(one_line(message))}", "red", stderr=True)
    return typer.Exit(code)


def _print(text: str, style: str, *, stderr: bool) -> None:
    stream, text = sys.stderr if stderr else sys.stdout, clean(text)
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(fold(line, width) for line in text.split("\n"))
    if not (stream.isatty() and (style or live)):
        stream.write(f"{text}\n")  # in one piece, so that lines of two threads do not mix
        return
    from rich.text import Text

    (live or console(stderr=stderr)).print(Text(text, style), soft_wrap=True)


def fold(line: str, width: int) -> str:
    """Return a line broken at words where it is wider than a terminal, below the place where its text begins.

    A command, in backticks or alone, stays in one piece, so that it can be copied: the terminal itself wraps it.
    """
    if _width(line) <= width:
        return line
    columns = [gap.end() for gap in _COLUMNS.finditer(line) if gap.end() <= width // 2]
    start = columns[-1] if columns else 0
    head, text = line[:start], line[start:]
    if _ALONE.match(text):
        return line
    indent = start if start else len(GAP)
    return head + ("\n" + " " * indent).join(_broken(_PIECES.findall(text), width - indent))


def _broken(words: Iterable[str], width: int) -> list[str]:
    """Return words as lines of a width in cells; a word that is wider has a line of its own."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and _width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


# The places that a command may write to


def require_page(option: str, path: Path) -> None:
    """Require a place for an HTML page (else ConfigError)."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{option} {path}: the page is HTML; name a file ending in .html or .htm")
    require_folder(option, path.parent)


def require_folder(option: str, path: Path) -> None:
    """Require a folder that exists or can be made (else ConfigError)."""
    with explain_errors(option, path):
        place = path.resolve()
        if there := next((f for f in (place, *place.parents) if f.exists() and not f.is_dir()), None):
            raise ConfigError(f"{option} {path}: {there} is no folder; name another place")


def make_folder(option: str, path: Path) -> None:
    """Make a folder, and those above it; a ConfigError if it cannot be made."""
    with explain_errors(option, path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def explain_errors(option: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system (OSError) into one line (ConfigError)."""
    try:
        yield
    except OSError as e:
        raise ConfigError(f"{option} {path}: {e.strerror or e}; name a place that can be written to") from e


class Fitted(NamedTuple):
    """A table as the lines of a terminal."""

    heads: list[str]
    """The header."""
    lines: list[str]
    hidden: list[str]
    """Names of the columns that found no room."""


def fit(header: Sequence[str], rows: Sequence[Sequence[str]], prose: Collection[str], width: int) -> Fitted:
    """Return the lines of a table.

    Columns without a cell are left out. Columns of free text share the room that the others leave, the first ones
    before the last ones. Where the others alone are too wide, the widest of them gets a line of its own in each row,
    which the terminal may wrap.

    Args:
        header: names of the columns.
        rows: as many cells each, without line ends.
        prose: names of columns of free text.
        width: of the terminal, in cells.
    """
    shown = [n for n in range(len(header)) if not rows or any(row[n] for row in rows)]
    widths = {n: max(map(_width, [header[n], *(row[n] for row in rows)])) for n in shown}
    text = [n for n in shown if header[n] in prose]
    least = {n: widths[n] if n not in text else min(widths[n], max(LEAST, _width(header[n]))) for n in shown}
    above: list[int] = []
    hidden: list[int] = []

    def spare() -> int:
        columns = [n for n in shown if n not in (*above, *hidden)]
        return width - sum(least[n] for n in columns) - len(GAP) * (len(columns) - 1) - len(GAP) * bool(above)

    while spare() < 0 and len(text) > 1:
        hidden.append(text.pop())
    while spare() < 0 and (rest := [n for n in shown if n not in (*above, *hidden, *text)]):
        above.append(max(rest, key=lambda n: widths[n]))
    if spare() < 0:
        hidden += text
        text = []
    _share(least, widths, text, max(0, spare()))
    columns = [n for n in shown if n not in (*above, *hidden)]
    wrapped = {n for n in columns if header[n] in REASONS and header[n] in prose}
    lines = [_lines(row, sorted(above), columns, least, wrapped) for row in [header, *rows]]
    return Fitted(lines[0], [line for row in lines[1:] for line in row], [header[n] for n in sorted(hidden)])


def _share(got: dict[int, int], wanted: dict[int, int], text: Sequence[int], room: int) -> None:
    """Give columns of free text the room that is left: evenly, and none more than its longest cell."""
    waiting = sorted(text, key=lambda n: wanted[n] - got[n])
    for number, n in enumerate(waiting):
        more = min(wanted[n] - got[n], room // (len(waiting) - number))
        got[n] += more
        room -= more


def _lines(
    row: Sequence[str], above: Sequence[int], columns: Sequence[int], widths: dict[int, int], wrapped: set[int]
) -> list[str]:
    cells = [_wrapped(row[n], widths[n]) if n in wrapped else [row[n]] for n in columns]
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        line = GAP.join(_cell(part, widths[n]) for part, n in zip(parts, columns, strict=True))
        lines.append(f"{GAP * bool(above)}{line}".rstrip())
    return [*(row[n] for n in above), *lines]


def _wrapped(text: str, width: int) -> list[str]:
    """Return free text as lines of a width; a word that is wider is cut into pieces."""
    from rich.cells import chop_cells

    return _broken([piece for word in text.split(" ") for piece in chop_cells(word, width) or [""]], width)


def _cell(text: str, width: int) -> str:
    """Return a text cut or filled to a width."""
    from rich.cells import set_cell_size

    cut = text if _width(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"
    return set_cell_size(cut, width)


def _width(text: str) -> int:
    """Return the cells that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def resume_command() -> str:
    """Return the command line of this process, quoted for a shell, without keys; empty if it is not `valve`."""
    from valve_plugin.redact import Redactor

    if os.path.basename(sys.argv[0]) not in ("valve", "__main__.py"):
        return ""
    typed = [word for word in sys.argv[1:] if word != "--new-epoch"]  # by now it is open
    return Redactor.of(os.environ, config=[_assigned(word) for word in typed])(join(["valve", *typed]))


def _assigned(word: str) -> Any:
    """Return what a word like `a.b=VALUE` sets, as nested data; a list within may hold such words again."""
    name, equals, text = word.partition("=")
    value: Any = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if isinstance(value, list):
        value = [[one, _assigned(one)] if isinstance(one, str) else one for one in value]
    return {name.rpartition(".")[2]: value} if equals else None


@contextmanager
def advise_on_stop() -> Iterator[None]:
    """Name the command that resumes the run when a failure or Ctrl-C stops it."""
    again = resume_command()
    advice = _START + (f": {again}" if again else "")
    try:
        yield
    except InfrastructureError as e:
        if _START in str(e):
            raise
        raise InfrastructureError(f"{e}; then {advice}") from e
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(*(e.args or [f"to continue, {advice}"])) from e


def remember(local: LocalStore) -> None:
    """Record the current command: `valve` shows it if the run is stopped."""
    typed = resume_command()
    resumes = not typed.startswith("valve demo")  # which begins anew
    local.remember(_NOTE, f"{os.getcwd()}\n{typed}" if resumes else "")


def recall(local: LocalStore) -> str:
    """Return the last run's command; empty if it was typed in another directory, as its paths may be relative."""
    where, _, typed = local.recall(_NOTE).partition("\n")
    return typed if where == os.getcwd() else ""
