"""Who solved: a gate compares what one solver did with a bank to what the same solver did without the change."""

from __future__ import annotations

from msgspec import UNSET

from valve_plugin.bank.entries import Baseline
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import BankError
from valve_plugin.rollouts.attempt import solver_of


def require_solver(store: BankStore, settings: Settings) -> None:
    """Require that what the bank carries forward was measured by the solver of these settings.

    A better model would make any proposal look like a gain. Within an epoch every outcome that is carried forward comes
    from a baseline or from a verdict that passed this, so the baseline's word suffices. Older ledgers do not say.

    Raises:
        BankError: it was another one.
    """
    if store.current_outcomes() is None:
        return
    measured = [e.solver for e in store.entries() if isinstance(e, Baseline)]
    if measured and measured[-1] is not UNSET and measured[-1] != solver_of(settings):
        raise BankError(
            f"{store.dir}: the panel was measured with another solver: its model, the model's arguments, its limits, "
            "or mini's files or version differ, or a simulation's seed. Give its settings, or measure the panel anew "
            "with `valve evolve --new-epoch`"
        )
