"""Options that several commands share, and the small things they have in common."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
BankDir = Annotated[
    str,
    typer.Option("--bank", metavar="DIR", help="Bank directory. Default: $VALVE_BANK, <repo>/.valve, user data."),
]


def examples(*lines: str) -> str:
    """Return the epilog that shows how a command is used, one example a line: `command  # what it does`."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def stdin(most: int, what: str) -> bytes:
    """Return what is piped in, whole.

    Raises:
        ConfigError: it has more than `most` bytes.
    """
    raw = sys.stdin.buffer.read(most + 1)
    if len(raw) > most:
        raise ConfigError(f"{what} on stdin has more than {most} bytes; is this the right file?")
    return raw


def bank_dir(bank: str) -> Path:
    """Return the bank directory that applies here; where there is none, that of the bank `valve init` would make."""
    from valve_plugin.bank.checkout import find
    from valve_plugin.bank.paths import locate
    from valve_plugin.cli.init import target

    here = find(Path.cwd())
    directory = locate(bank, here.folder, here.name)
    return directory if directory.exists() else target(bank, private=False, here=here)


def open_bank(bank: str) -> BankStore:
    """Open the bank that applies here; say on stderr what opening it had to set aside.

    Raises:
        BankError: there is none, or it is damaged.
    """
    from valve_plugin.bank.store import BankStore
    from valve_plugin.cli.output import note

    store = BankStore.open(bank_dir(bank))
    for warning in store.warnings:
        note(f"valve: {warning}", style="yellow")
    return store
