"""`valve context`: the block VALVE would inject, for any other agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Json, examples, open_bank, stdin
from valve_plugin.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Context

_EXAMPLES = examples(
    "valve context --task 'Timestamps lose their time zone'",
    "gh issue view 41 --json body -q .body | valve context --task -",
    "valve context --file issue.md --json        # with the items chosen and the block's hash",
    'other-agent --append-system-prompt "$(valve context --file issue.md)"',
)
_MAX_BYTES = 1_000_000


def register(app: typer.Typer) -> None:
    """Add `valve context`."""
    app.command("context", epilog=_EXAMPLES)(context)


def context(
    task: Annotated[
        str, typer.Option("--task", "-t", metavar="TEXT", help="What the agent is asked; - reads stdin.")
    ] = "",
    file: Annotated[Path | None, typer.Option("--file", help="Read the task from this file.", dir_okay=False)] = None,
    task_id: Annotated[str, typer.Option("--id", metavar="ID", help="The task's id, where it has one.")] = "",
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Print the block for a task, for any other agent.

    These are the bytes that `mini --plugin valve` ends the system message with. An empty bank gives an empty
    block, and says so on stderr only.
    """
    from valve_plugin.codec import plain

    issue = _read(task, file)
    store = open_bank(bank)
    block = _retrieve(store, task_id, issue)
    if not store.bank.items:
        output.note(f"{store.dir}: the bank holds no items yet, so there is nothing to inject")
    if json:
        items = [{"kind": kind, "name": name} for kind, name in block.items]
        output.emit_json({**plain(block), "items": items, "hash": block.hash})
    else:
        output.verbatim(block.text)


def _retrieve(store: BankStore, task_id: str, issue: str) -> Context:
    """Ask whichever plugin of this bank's settings retrieves."""
    from valve_plugin import plugins

    settings = store.settings()
    hook = plugins.load(settings.plugins).hook
    block: Context | None = hook.valve_retrieve(settings=settings, bank=store.bank, task_id=task_id, issue=issue)
    if block is None:
        raise PluginError(f"none of the plugins {', '.join(settings.plugins)} retrieves; add valve to `plugins`")
    return block


def _read(task: str, file: Path | None) -> str:
    """Return the task's text.

    Raises:
        ConfigError: none or two were given, or the file cannot be read.
    """
    if bool(task) == bool(file):
        raise ConfigError("give the task once: --task TEXT, --task - for stdin, or --file PATH")
    if file is None and task != "-":
        return task
    if file is None:
        return stdin(_MAX_BYTES, "the task").decode("utf-8", "replace")
    try:
        with file.open("rb") as stream:  # also a pipe, as <(command) gives
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"{file}: cannot be read: {e.strerror}") from e
    if len(raw) > _MAX_BYTES:
        raise ConfigError(f"the task has more than {_MAX_BYTES} bytes; is this the right file?")
    return raw.decode("utf-8", "replace")
