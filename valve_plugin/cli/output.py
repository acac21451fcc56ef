"""What every command prints, and how it fails.

Results go to stdout, everything else to stderr. Text from banks, ledgers and models is data: it is never
markup, and what could steer a terminal is left out. Exit codes: 0 ok, 1 a negative finding, 2 wrong use,
3 infrastructure.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer

from valve_plugin.cli.missing import told
from valve_plugin.errors import ValveError
from valve_plugin.words import plural as plural

if TYPE_CHECKING:
    from rich.console import Console

FINDING = 1
"""Exit code of a command that worked and found something wrong."""
INFRASTRUCTURE = 3
INTERRUPTED = 130
"""128 + SIGINT, what a shell expects."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader went away, as in `valve bank log | head`."""

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"  # the other escapes
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"  # invisible, or turning the reading order
    "\ud800-\udfff]"  # lone surrogates: no encoding has them
)


nothing = nullcontext[None]
above: Callable[[], AbstractContextManager[None]] = nothing
"""How `going_on` makes room for a line above what it shows."""


def clean(text: str) -> str:
    """Return `text` without escape sequences and without characters a terminal obeys or does not show."""
    return _UNSEEN.sub("", _SEQUENCES.sub("", text))


def one_line(text: str) -> str:
    """Return `text` cleaned, its white space (line breaks included) folded to single spaces."""
    return " ".join(clean(text).split())


def say(text: str = "", style: str = "") -> None:
    """Print one result line (or several) to stdout; `style` shows on terminals only."""
    _print(text, style, stderr=False)


def note(text: str, style: str = "dim") -> None:
    """Print a remark to stderr, where it does not disturb a pipe."""
    _print(text, style, stderr=True)


def emit_json(data: Any) -> None:
    """Print records or plain values as indented JSON, in ASCII: the same bytes under every locale."""
    from valve_plugin.codec import plain

    print(json.dumps(plain(data), indent=2))


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], can_wait: Iterable[str] = (), prose: Collection[str] = ()
) -> None:
    """Print rows under a header: as `tables` lays them out on a terminal, tab-separated and whole elsewhere.

    Args:
        header: names of the columns, the one that names the row first.
        rows: as many cells each.
        can_wait: names of columns that a narrow terminal does without, the first to go first.
        prose: names of columns whose cells may be cut.
    """
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    if not is_terminal():
        for row in [list(header), *cells]:
            print("\t".join(row))
        return
    from valve_plugin.cli.tables import laid_out

    head, body = laid_out(header, cells, console().width, can_wait, prose)
    say("\n".join(head), style="bold")
    for line in body:
        say(line)


def hanging(lead: str, text: str) -> str:
    """Return one line of text behind a lead; on a terminal broken at spaces, further lines as far in as the text."""
    if not is_terminal():
        return lead + text
    import textwrap

    rest = " " * len(lead)
    return textwrap.fill(
        text,
        console().width,
        initial_indent=lead,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def verbatim(text: str) -> None:
    """Print text byte for byte; on a terminal, without what steers it and with a line end."""
    if is_terminal():
        shown = clean(text)
        sys.stdout.write(shown if shown.endswith("\n") or not shown else f"{shown}\n")
    else:
        sys.stdout.write(text.encode("utf-8", "replace").decode())


def markdown(text: str) -> None:
    """Print Markdown: rendered on a terminal, every HTML tag shown as the text it is; verbatim elsewhere."""
    if not is_terminal():
        verbatim(text)
        return
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    shown = clean(text)
    page = Markdown(shown, hyperlinks=False)
    # Rich's own parser drops HTML unseen, and what a reader cannot see is what must not hide in an item.
    page.parsed = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).parse(shown)
    console().print(page)


def is_terminal() -> bool:
    """Whether a person reads stdout directly."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console that guesses nothing from the text: no markup, no highlighting, no emoji codes."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


@contextmanager
def boundary() -> Iterator[None]:
    """Turn what a command raises into one line on stderr and an exit code; a traceback only for VALVE_DEBUG=1."""
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
        raise _stop(told(e) or _defect(e), INFRASTRUCTURE) from e
    except Exception as e:  # whatever a defect raises, its user reads one line and knows how to see more
        if type(e).__module__.partition(".")[0] in ("typer", "click"):  # wrong use: typer prints it with the usage
            raise
        raise _stop(_defect(e), INFRASTRUCTURE) from e


def _defect(error: Exception) -> str:
    return f"internal error, {type(error).__name__}: {error}; VALVE_DEBUG=1 shows where, please report it"


def silence() -> None:
    """Send what is still unwritten nowhere, so that nothing complains while the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _stop(message: str, code: int) -> typer.Exit:
    if os.environ.get("VALVE_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    _print(f"valve: {one_line(message)}", "red", stderr=True)
    return typer.Exit(code)


def _print(text: str, style: str, *, stderr: bool) -> None:
    stream = sys.stderr if stderr else sys.stdout
    with above():
        if not (style and stream.isatty()):
            stream.write(f"{clean(text)}\n")  # in one piece: two runs that tell at once do not mix their lines
            return
        from rich.text import Text

        console(stderr=stderr).print(Text(clean(text), style), soft_wrap=True)
