"""Which bank a simulation uses, and how every command that reads one says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.cli import output
from valve_plugin.errors import BankNotFoundError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.config import Settings


def bank_for(bank: str, simulate: bool, tasks: str = "") -> str:
    """Return the `--bank` that applies: with `--simulate` and without one, the simulation's own in user data.

    Neither `$VALVE_BANK` nor the repository's `.valve` counts then: what is committed is learned for real.

    Args:
        tasks: the task set, after whose repository the bank is called; empty: after the one at hand.
    """
    if bank or not simulate:
        return bank
    from valve_plugin.bank.checkout import find
    from valve_plugin.bank.paths import simulation_dir
    from valve_plugin.shell_words import quote
    from valve_plugin.tasks import folder
    from valve_plugin.tasks.load import load

    name = load(folder.find(tasks)).repository.name if tasks else find(Path.cwd()).name
    chosen = str(simulation_dir(name))
    output.note(
        f"SIMULATION, in a bank of its own: {chosen}; to look at it: valve bank log --bank {quote(chosen)}",
        style="bold yellow",
    )
    return chosen


def opened(bank: str, simulate: bool, tasks: str = "") -> BankStore:
    """Open the bank that applies; see `bank_for`.

    Raises:
        BankError: there is none, or it is damaged.
    """
    from valve_plugin.cli.options import open_bank

    chosen = bank_for(bank, simulate, tasks)
    try:
        return open_bank(chosen)
    except BankNotFoundError as e:
        if chosen == bank:
            raise
        raise BankNotFoundError(f"{chosen}: no simulation was begun here; `valve evolve TASKS --simulate` does") from e


def require_apart(store: BankStore | None, directory: Path, settings: Settings, *, simulate: bool) -> None:
    """Refuse a real run on a simulation's bank, and a simulation on a real one (ConfigError)."""
    from valve_plugin.bank import simulation
    from valve_plugin.rollouts.worker import SCRIPTED_MODEL

    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    asked = SCRIPTED_MODEL if simulate else model
    simulation.require_apart(store, directory, asked, settings.tasks or "TASKS")


def told(directory: Path, *, json: bool, data: bool = False) -> bool:
    """Whether this is a simulation's bank, said in the first line.

    Args:
        json: it is said by the caller, as `simulation`.
        data: stdout is for something that must stay as it is; the line goes to stderr.
    """
    from valve_plugin.bank.simulation import LABEL, simulated

    found = simulated(directory)
    if found and not json:
        (output.note if data else output.say)(LABEL, style="bold yellow")
    return found
