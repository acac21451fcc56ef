"""A plugin that says which phase of a run this process is in, as it enters it, to a socket that `$PHASES_TO` names.

With `$PHASES_SYNC` the bank's disk is slow: each of its synchronizations and renames takes up to that many seconds
before and after. So what is an instant elsewhere lasts long enough to be hit by a kill.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from valve_plugin.bank.entries import Entry, EpochOpened
from valve_plugin.bank.store import BankStore
from valve_plugin.hookspecs import hookimpl

ATTEMPTS, EXTRACTION, BASELINE, GATE_STARTS, GATE, BETWEEN, LEDGER, EPOCH = PHASES = (
    "attempts", "extraction", "baseline", "gate, its process starts", "gate, its rollouts", "between two steps",
    "ledger and bank written", "epoch opened",
)  # fmt: skip
_AFTER = {
    "task_started": ATTEMPTS, "baseline_started": BASELINE, "baseline": BETWEEN, "gate_started": GATE_STARTS,
    "proposed": BETWEEN, "verdict": BETWEEN,
}  # fmt: skip
_to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
_phase, _writing = BETWEEN, False


class Phases:
    """Only watches."""

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Tell the phase that an event begins."""
        if name == "task_finished":
            _enter(EXTRACTION if 0 < data["passed"] < data["attempts"] else BETWEEN)
        elif name == "rollout_finished" and _phase == GATE_STARTS:
            _enter(GATE)
        elif name in _AFTER:
            _enter(_AFTER[name])


def _enter(phase: str) -> None:
    global _phase
    _phase = phase
    _to.sendto(phase.encode(), os.environ["PHASES_TO"])


def _slow(call: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*arguments: Any, **more: Any) -> Any:
        longest = float(os.environ.get("PHASES_SYNC", "0")) if _writing else 0.0
        time.sleep(random.uniform(0, longest))
        try:
            return call(*arguments, **more)
        finally:
            time.sleep(random.uniform(0, longest))

    return slow


def _told(append: Callable[[BankStore, Entry], None]) -> Callable[[BankStore, Entry], None]:
    def told(store: BankStore, entry: Entry) -> None:
        global _writing
        before, _writing = _phase, True
        _enter(EPOCH if isinstance(entry, EpochOpened) else LEDGER)
        try:
            append(store, entry)
        finally:
            _writing = False
            _enter(before)

    return told


if "PHASES_TO" in os.environ:
    BankStore.append = _told(BankStore.append)  # type: ignore[method-assign]
    os.fsync, os.replace = _slow(os.fsync), _slow(os.replace)
