"""A simulation's bank: what the scripted model taught it is for looking at, and never for the run of another model."""

from __future__ import annotations

from pathlib import Path

from valve_plugin.bank import files, ledger
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.paths import BANK_NAME, simulation_dir
from valve_plugin.bank.store import BankStore
from valve_plugin.errors import BankError, ConfigError
from valve_plugin.rollouts.worker import SCRIPTED_MODEL
from valve_plugin.shell_words import quote

LABEL = "SIMULATION: the scripted model, no real one; its figures show how things work, not how well"
_MARK = f'"model":"{SCRIPTED_MODEL}"'.encode()


def recorded(data: bytes) -> bool:
    """Whether the scripted model proposed anything in a ledger of these bytes. Pure.

    A ledger is canonical JSON, in which texts escape their quotes: the mark is nowhere but where a proposal names its
    model. So nothing is parsed, and a live run is not held up by a long ledger.
    """
    return _MARK in data


def simulated(bank_dir: Path) -> bool:
    """Whether this is a simulation's bank, by its place or its ledger; no bank, or one that cannot be read, is none."""
    if bank_dir.resolve().parent == simulation_dir("").parent.resolve():
        return True
    try:
        return recorded(files.read_limited(bank_dir / ledger.FILE_NAME, ledger.MAX_BYTES, "ledger"))
    except BankError:
        return False


def took_part(store: BankStore) -> bool:
    """Whether the scripted model proposed anything here, or ran anything that this machine has kept."""
    return simulated(store.dir) or any(a.model == SCRIPTED_MODEL for a in store.local.attempts() if a.source != "live")


def _real(store: BankStore) -> bool:
    """Whether there are items here, or work of a model with a name; what a plugin runs may have none."""
    proposed = (e.proposal.model for e in store.entries() if isinstance(e, Proposed))
    ran = (a.model for a in store.local.attempts() if a.source != "live")
    return bool(store.bank.items) or any(proposed) or any(ran)


def withheld(bank_dir: Path, model: str) -> str:
    """Return why a run of this model is given nothing of this bank; empty: it may be."""
    if model == SCRIPTED_MODEL or not simulated(bank_dir):
        return ""
    return f"SIMULATION: {bank_dir} was learned by the scripted model, so nothing in it is for {model or 'a real one'}"


def require_apart(store: BankStore | None, bank_dir: Path, model: str, tasks: str = "TASKS") -> None:
    """Keep what the scripted model does and what real ones do in banks of their own.

    Args:
        store: the bank, if there is one.
        model: of the run that wants to go on here.
        tasks: the task set, for the advice.

    Raises:
        ConfigError: the bank is of the other sort.
    """
    if store is not None and took_part(store):
        if model != SCRIPTED_MODEL:
            raise ConfigError(
                f"{bank_dir}: this bank was learned by a simulation, and a real run would take its verdicts for its "
                f"own; learn for real in another: `valve evolve {quote(tasks)} --bank DIR`"
            )
        return
    if model != SCRIPTED_MODEL:
        return
    real = store is not None and _real(store)
    if real or bank_dir.resolve().name == BANK_NAME:
        what = "holds what was learned or measured without it" if real else "is a repository's own bank"
        raise ConfigError(
            f"{bank_dir}: {what}, and a simulation's lessons do not belong in it; leave --bank out, and the "
            "simulation has a bank of its own, or name another"
        )
