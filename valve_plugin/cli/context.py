"""`valve context`: the block VALVE would inject, for any other agent."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import output, simulations
from valve_plugin.cli.options import BankDir, Json, examples, stdin
from valve_plugin.errors import ConfigError, PluginError
from valve_plugin.reading import regular

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Context

_EXAMPLES = examples(
    "valve context 'Timestamps lose their time zone'",
    "gh issue view 41 --json body -q .body | valve context -",
    "valve context --file issue.md --json        # with the items chosen and the block's hash",
    'other-agent --append-system-prompt "$(valve context --file issue.md)"',
)
_MAX_BYTES = 1_000_000


def register(app: typer.Typer) -> None:
    """Add `valve context`."""
    app.command("context", epilog=_EXAMPLES)(context)


def context(
    text: Annotated[
        str, typer.Argument(metavar="TASK", help="What the agent is asked; - reads stdin.", show_default=False)
    ] = "",
    task: Annotated[str, typer.Option("--task", "-t", metavar="TEXT", help="The same, as an option.")] = "",
    file: Annotated[Path | None, typer.Option("--file", help="Read the task from this file.", dir_okay=False)] = None,
    task_id: Annotated[str, typer.Option("--id", metavar="ID", help="The task's id, where it has one.")] = "",
    bank: BankDir = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Print it of a simulation's bank, too: to look at, not to use.")
    ] = False,
    json: Json = False,
) -> None:
    """Print the block for a task, for any other agent.

    These are the bytes that `mini --plugin valve` ends the system message with. An empty bank gives an empty
    block, and says so on stderr only. A simulation's bank is refused: no real agent is given what a script taught.
    """
    from valve_plugin.codec import plain

    issue = _read([text, task], file)
    store = simulations.opened(bank, simulate)
    simulation = simulations.told(store.dir, json=json, data=True)
    if simulation and not simulate:
        raise ConfigError(f"{store.dir} was learned by the scripted model: for no real agent; --simulate prints it")
    _tell_foreign(store)
    block = _retrieve(store, task_id, issue)
    if not store.bank.items:
        output.note(f"{store.dir}: the bank holds no items yet, so there is nothing to inject")
    if json:
        items = [{"kind": kind, "name": name} for kind, name in block.items]
        output.emit_json({**plain(block), "items": items, "hash": block.hash, "simulation": simulation})
    else:
        output.verbatim(block.text)


def _tell_foreign(store: BankStore) -> None:
    from valve_plugin.bank.belonging import differs, foreign
    from valve_plugin.bank.checkout import find

    here = find(Path.cwd())
    if foreign(store.bank.repo, store.dir, here):
        words = differs(store.bank.repo, store.dir, here.name)
        output.note(f"valve: {words}: its notes are not about this code", style="yellow")


def _retrieve(store: BankStore, task_id: str, issue: str) -> Context:
    """Ask whichever plugin of this bank's settings retrieves."""
    from valve_plugin import plugins

    settings = store.settings()
    if settings.condition:
        output.note(
            f"valve: {store.dir} is of an experiment's run: its condition {settings.condition!r:.60} is not applied "
            "here, nor by mini, which rank as ever; what the run injected may differ",
            style="yellow",
        )
    hook = plugins.load(settings.plugins).hook
    block: Context | None = hook.valve_retrieve(settings=settings, bank=store.bank, task_id=task_id, issue=issue)
    if block is None:
        raise PluginError(f"none of the plugins {', '.join(settings.plugins)} retrieves; add valve to `plugins`")
    return block


def _read(texts: Sequence[str], file: Path | None) -> str:
    """Return the task's text.

    Args:
        texts: what was given as text, in either way.

    Raises:
        ConfigError: none or two were given, or the file cannot be read.
    """
    given = [text for text in texts if text]
    if len(given) + bool(file) != 1:
        raise ConfigError("give the task once: `valve context TASK`, `valve context -` for stdin, or --file PATH")
    task = "".join(given)
    if file is None and task != "-":
        return task
    if file is None:
        return stdin(_MAX_BYTES, "the task").decode("utf-8", "replace")
    try:
        return _bytes(file).decode("utf-8", "replace")
    except OSError as e:
        raise ConfigError(f"{file}: cannot be read: {e.strerror}") from e


def _bytes(file: Path) -> bytes:
    """Return a file's bytes, or those of a pipe that the shell opened, as <(command) does: any other may be a trap."""
    if not file.as_posix().startswith(("/dev/fd/", "/proc/self/fd/")):
        return regular(file, _MAX_BYTES)
    with file.open("rb") as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {_MAX_BYTES} bytes")
    return raw
