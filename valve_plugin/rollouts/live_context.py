"""What a live run takes from the bank; a bank that cannot be used costs the context, never the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from valve_plugin.bank import files
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.simulation import withheld
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import decode
from valve_plugin.errors import BankError, ValveError
from valve_plugin.records import Bank, Context, Panel
from valve_plugin.rollouts.live_trust import Witness

EMPTY = Context(text="")
Say = Callable[[str], None]
"""Shows the person one line."""


def compose(
    bank_dir: Path, local: LocalStore, retrieve: Callable[[Bank], Context], say: Say, model: str
) -> tuple[Context, Witness | None]:
    """Return the context of a run, and the witness of the bank it came from.

    A damaged or unverified bank, one of a later version, or a simulation's for the run of a real model, gives the empty
    context and one line.

    Args:
        retrieve: the step `valve_retrieve` for this run's task.
        model: of the run.
    """
    try:
        witness = Witness(local.dir, bank_dir)
        if witness.doubts():
            _verify(bank_dir)
            witness.settle()
            say("the bank changed during an earlier run and was verified now")
        store = BankStore.open(bank_dir)
        witness.arrive()
        for warning in store.warnings:
            say(warning)
        if why := withheld(bank_dir, model):
            say(why)
            return EMPTY, witness
        context = retrieve(store.bank)
        if context.items:
            local.count_use(context)
            _compare_embedding(bank_dir, context, say)
    except ValveError as e:
        say(f"nothing is injected: {e}")
        return EMPTY, None
    return context, witness


def _verify(bank_dir: Path) -> None:
    """Verify a bank that is in doubt.

    Raises:
        BankError: something does not hold.
    """
    from valve_plugin.bank.verify import verify

    errors = [finding for finding in verify(bank_dir) if finding.level == "error"]
    if errors:
        first = f"{errors[0].file} {errors[0].place}".strip()
        raise BankError(
            f"{bank_dir} changed during an earlier run and does not verify: {first}: {errors[0].message}; "
            "see `valve bank verify`"
        )


def _compare_embedding(bank_dir: Path, context: Context, say: Say) -> None:
    from valve_plugin.bank.embedding import mismatch

    with suppress(ValveError):  # no panel yet; or it is damaged, which is for `verify` to say
        panel = decode(files.read_limited(bank_dir / "panel.json", 10_000_000, "panel"), Panel, where="panel.json")
        if warning := mismatch(panel.embedding, context.embedding):
            say(warning)
