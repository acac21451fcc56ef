"""A bank that the scripted model taught or judged: it is shown to people, and never given to a run of another model."""

from __future__ import annotations

from pathlib import Path

from valve_plugin import files
from valve_plugin.bank import ledger
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.errors import BankError, ConfigError
from valve_plugin.paths import BANK_NAME, scripted_bank_dir
from valve_plugin.words import quote

LABEL = "SIMULATION: the scripted model, no real one; its figures show how things work, not how well"
HEEDS_ITS_OWN = "The scripted model heeds only its own notes, so here no other text can help or harm."
_MARK = f'"model":"{SCRIPTED_MODEL}"'.encode()


def names_scripted_model(data: bytes) -> bool:
    """Return True if the scripted model wrote a proposal, or ran a baseline, in a ledger of these bytes.

    No verdict is without a baseline. A ledger is canonical JSON, in which texts escape their quotes. So the mark occurs
    only where an entry names its model, and a long ledger need not be parsed at the start of a live run.
    """
    return _MARK in data


def is_scripted(bank_dir: Path) -> bool:
    """Whether the scripted model taught or judged a bank, by its place or ledger; False where none can be read."""
    if bank_dir.resolve().parent == scripted_bank_dir("").parent.resolve():
        return True
    try:
        return names_scripted_model(files.read_limited(bank_dir / ledger.FILE_NAME, ledger.MAX_BYTES, "ledger"))
    except BankError:
        return False


def find_simulation(repo: str, *, any_: bool = False) -> Path | None:
    """Return the scripted model's own bank about a repository (owner/name); None: there is none.

    Args:
        any_: where there is none about it, return the one of any repository that was written last.
    """
    own = scripted_bank_dir(repo)
    there = {path.parent: path.stat().st_mtime for path in own.parent.glob(f"*/{ledger.FILE_NAME}")}
    if own in there or not (any_ and there):
        return own if own in there else None
    return max(there, key=there.__getitem__)


def ran_scripted_model(store: BankStore) -> bool:
    """Return True if the scripted model taught or judged this bank, or ran an attempt that is kept on this machine."""
    return is_scripted(store.dir) or any(
        a.model == SCRIPTED_MODEL for a in store.local.attempts() if a.source != "live"
    )


def refusal(bank_dir: Path, model: str) -> str:
    """Return why a run of this model must not use this bank, or an empty string if it may."""
    if model == SCRIPTED_MODEL or not is_scripted(bank_dir):
        return ""
    whom = model or "a real one"
    return f"SIMULATION: {bank_dir} was learned or judged by the scripted model, so nothing in it is for {whom}"


def require_own_bank(store: BankStore | None, bank_dir: Path, model: str, tasks: str = "TASKS") -> None:
    """Check that the scripted model and real models do not share a bank.

    Raises:
        ConfigError: the bank belongs to the other sort of run.
    """
    if store is not None and ran_scripted_model(store):
        if model != SCRIPTED_MODEL:
            raise ConfigError(
                f"{bank_dir}: this bank was learned or judged by the scripted model, and a real run would take its "
                f"verdicts for its own; learn for real in another: `valve evolve {quote(tasks)} --bank DIR`"
            )
        return
    if model != SCRIPTED_MODEL:
        return
    real = False
    if store is not None:  # items, or proposals or attempts of a named model (a plugin's may have no name)
        proposed = (e.proposal.model for e in store.entries() if isinstance(e, Proposed))
        ran = (a.model for a in store.local.attempts() if a.source != "live")
        real = bool(store.bank.items) or any(proposed) or any(ran)
    if real or bank_dir.resolve().name == BANK_NAME:
        what = "holds what was learned or measured without it" if real else "is a repository's own bank"
        raise ConfigError(
            f"{bank_dir}: {what}, and what the scripted model learns does not belong in it; leave --bank out, and that "
            "model uses a bank of its own, or name another"
        )
