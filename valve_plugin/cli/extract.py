"""`valve extract`: ask the model once more what recorded attempts teach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from valve_plugin.cli import output
from valve_plugin.cli.attempts import find, kept
from valve_plugin.cli.options import BankDir, Commands, Json, argument, open_bank
from valve_plugin.errors import ConfigError
from valve_plugin.extras import runnable

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Attempt

commands = Commands()


@commands.add(
    "extract",
    "valve extract                # the last extraction that came to nothing",
    "valve extract 0a1b2c3d       # that of a proposal, as `valve bank log` names it",
    "valve extract 0a1b 77c2 9d01 # from these attempts, as `valve attempts list --all` names them",
)
def extract(
    ids: Annotated[
        list[str] | None, argument("ID...", "Attempts at one task, or a proposal. Default: the last that held nothing.")
    ] = None,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Ask the model once more what recorded attempts teach.

    For an extraction that came to nothing, such as one whose answer could not be read. No new attempt is made: the
    group is queued, and `valve gate` asks the model and judges the proposal.
    """
    from valve_plugin.evolve.loop import queue_again
    from valve_plugin.evolve.steps import mixed

    store = open_bank(bank)
    found = _group(store, ids or [])
    if len({a.task_id for a in found}) != 1 or not mixed(found):
        outcomes = ", ".join(f"{a.id} {a.outcome} at {output.one_line(a.task_id)}" for a in found)
        raise ConfigError(f"expected attempts at one task of which some passed and some failed: {outcomes}")
    queue_again(store, found)
    if json:
        output.emit_json({"queued": [a.id for a in found], "task_id": found[0].task_id})
    else:
        output.say(f"queued: {output.plural(len(found), 'attempt')} at {output.one_line(found[0].task_id)}")
        output.say(f"next: {runnable(output.for_bank('valve gate'))}")


def _group(store: BankStore, ids: Sequence[str]) -> list[Attempt]:
    """Return the attempts with these ids, or those of the proposal with this id; none: of the last empty proposal."""
    from valve_plugin.bank.entries import FAILED_AGAIN, Proposed, sets_aside
    from valve_plugin.evolve.steps import attempt_note

    every = [e for e in store.entries() if isinstance(e, Proposed) and e.attempts]
    made = [e for e in every if not sets_aside(e, FAILED_AGAIN)]  # its attempts are no extraction's
    name = ids[0] if len(ids) == 1 else ""
    wanted = [e for e in made if (e.proposal.id.startswith(name) if ids else e.proposal.empty)] if len(ids) < 2 else []
    there = kept(store.local)
    if not wanted:
        if not ids:
            raise ConfigError("no extraction that came to nothing is recorded; name the attempts, see `valve attempts`")
        return [find(there, id_) for id_ in ids]
    notes = wanted[-1].attempts
    found = [a for a in reversed(there) if a.task_id == notes[0].task_id and attempt_note(a) in notes]
    if len(found) < len(notes):
        raise ConfigError(f"the attempts of proposal {wanted[-1].proposal.id} are not on this machine; make new ones")
    return found
