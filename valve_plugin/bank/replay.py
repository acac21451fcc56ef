"""The state a ledger's entries lead to. The one place that says which entry may follow which.

Which outcomes an accept carries forward: those of its last measurement, so the confirming ones where the epoch asks
for confirmation. They reach the margin as the first did, which is all that thm:conv-main needs. They are no less
flattering: an accept takes both measurements above the same margin, and given that, one is like the other. What
confirming changes is who gets that far. Carrying the lower, or the mean of both, would flatter less, but compare
unlike with unlike in the next gate; see `report.again` for how much a carried score flatters.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatchmethod
from typing import NamedTuple

from valve_plugin.bank import ledger, moves
from valve_plugin.bank.entries import (
    Baseline,
    Entry,
    EpochOpened,
    Evaluated,
    Judged,
    LeftOut,
    Opened,
    PanelFixed,
    Proposed,
    Remeasured,
    Taken,
)
from valve_plugin.bank.standing import Standing
from valve_plugin.errors import BankCorruptError, RecordError, StaleVerdictError, ValveError
from valve_plugin.records import Bank


class Replay(Standing):
    """Folds entries one by one. A refused entry raises and leaves everything as it was."""

    def feed(self, entry: Entry) -> None:
        """Take one more entry.

        Raises:
            StaleVerdictError: a verdict about another bank than the current one.
            HorizonError: a gate query beyond the horizon.
            RecordError: anything else that may not come now; the message says what has to come first.
        """
        if bool(self.banks) == isinstance(entry, Opened):
            raise RecordError("the first entry of a ledger, and only the first, is `opened`")
        self._feed(entry)

    @singledispatchmethod
    def _feed(self, entry: Entry) -> None:
        raise TypeError(f"{type(entry).__name__} is not a ledger entry")

    @_feed.register
    def _opened(self, entry: Opened) -> None:
        self.banks.append(Bank(repo=entry.repo))

    @_feed.register
    def _panel_fixed(self, entry: PanelFixed) -> None:
        ids = [task.instance_id for task in entry.panel.tasks]
        if not ids or len(set(ids)) < len(ids):
            raise RecordError(
                f"a panel of {len(ids)} tasks ({len(set(ids))} different); expected at least one, each once"
            )
        self._require_unread(ids, [task.content_hash for task in entry.panel.tasks], "judge")
        self.panel, self.epoch = entry.panel, None
        self.queries, self.outcomes, self.remeasured, self._open_query = 0, None, 0, ""

    @_feed.register
    def _epoch_opened(self, entry: EpochOpened) -> None:
        if self.panel is None or entry.panel_hash != self.panel.hash:
            raise RecordError(f"epoch {entry.epoch} is not about the fixed panel; fix the panel first")
        if entry.epoch != self._epochs + 1:
            raise RecordError(f"epoch {entry.epoch} after {self._epochs}, expected {self._epochs + 1}")
        self.epoch, self._epochs = entry, entry.epoch
        self.queries, self.outcomes, self.remeasured, self._open_query = 0, None, 0, ""

    @_feed.register
    def _baseline(self, entry: Baseline) -> None:
        self._require_epoch(entry.epoch)
        if self.outcomes is not None:
            raise RecordError(f"epoch {entry.epoch} has a baseline already; open a new epoch for another")
        if entry.result.bank_hash != self.bank.hash:
            raise StaleVerdictError(f"the baseline measured bank {entry.result.bank_hash[:12]}, {self._now()}")
        self._require_complete(entry.result.outcomes, "the baseline")
        self._use(entry.result.outcomes)
        self.outcomes = self._in_panel_order(entry.result.outcomes)

    @_feed.register
    def _remeasured(self, entry: Remeasured) -> None:
        self._require_idle(entry.epoch, entry.result.bank_hash)
        self._require_complete(entry.result.outcomes, "an A/A measurement")
        self._use(entry.result.outcomes)
        self.remeasured += 1

    @_feed.register
    def _left_out(self, entry: LeftOut) -> None:
        self._require_idle(entry.epoch, entry.bank_hash)
        moves.only(self.bank, entry.without)  # it is there
        self._require_complete(entry.outcomes, "a measurement without an item", of={o.task_id for o in entry.outcomes})
        self._use(entry.outcomes)

    @_feed.register
    def _proposed(self, entry: Proposed) -> None:
        sources = {entry.proposal.task_id, *(note.task_id for note in entry.attempts)}
        self._require_unread(sources, (), "be learned from")
        self.sources |= sources
        self.proposals[entry.proposal.id] = entry.proposal
        for note in entry.attempts:
            self._use_ordinal(note.task_id, note.context_hash, note.ordinal)

    @_feed.register
    def _judged(self, entry: Judged) -> None:
        verdict = entry.verdict
        self._require_query(verdict)
        after = self._after(verdict)
        if entry.bank_after != after.hash:
            raise RecordError(
                f"bank_after is {entry.bank_after[:12]}, but {verdict.decision} leads to {after.hash[:12]}"
            )
        if verdict.decision != "indecisive":  # else the query goes on with the same rollouts
            self._use((*verdict.outcomes, *(verdict.confirming or ())))
        self.queries = verdict.query
        self._open_query = verdict.proposal_id if verdict.decision == "indecisive" else ""
        if verdict.decision == "accept":
            self.remeasured = 0
            self.banks.append(after)
            self.outcomes = self._in_panel_order(verdict.measured)

    @_feed.register
    def _taken(self, entry: Taken) -> None:
        if self._epochs:
            raise RecordError(
                f"proposal {entry.proposal_id} is taken without a gate after epoch {self._epochs} of gate queries; a "
                "bank that was ever gated takes nothing unjudged"
            )
        if entry.bank_hash != self.bank.hash:
            raise StaleVerdictError(
                f"proposal {entry.proposal_id} was taken into bank {entry.bank_hash[:12]}, {self._now()}"
            )
        after = self._moved(entry.proposal_id)
        if entry.bank_after != after.hash:
            raise RecordError(f"bank_after is {entry.bank_after[:12]}, but the move leads to {after.hash[:12]}")
        self.banks.append(after)

    @_feed.register
    def _evaluated(self, entry: Evaluated) -> None:
        if not entry.version < len(self.banks):
            raise RecordError(f"evaluates version {entry.version}, but the bank has versions 0 to {self.bank.version}")
        frozen = self.banks[entry.version]
        if entry.only is not None:
            frozen = moves.only(frozen, entry.only)
        if entry.bank_hash != frozen.hash:
            raise RecordError(f"evaluates bank {entry.bank_hash[:12]}, but that one is {frozen.hash[:12]}")
        expected = [(task.instance_id, n) for task in entry.holdout for n in range(entry.rollouts)]
        if [(o.task_id, o.ordinal) for o in entry.outcomes] != expected:
            raise RecordError(f"an evaluation needs {entry.rollouts} rollouts of each holdout task, in order")
        pinned = {task.instance_id: task.content_hash for task in entry.holdout}
        judges = self.panel.tasks if self.panel else ()
        taken = {task.instance_id for task in judges if task.content_hash in pinned.values()}
        taken |= {task.instance_id for task in judges} & pinned.keys() | self.sources & pinned.keys()
        if taken or len(pinned) < len(entry.holdout):
            why = f"{min(taken)} was learned from or judges" if taken else "it names a task twice"
            raise RecordError(f"this holdout is not sealed: {why}; draw another with `valve split`")
        self.holdout |= pinned
        self._use(entry.outcomes)


class History(NamedTuple):
    """A whole ledger, replayed."""

    state: Replay
    chain: list[tuple[str, str]]
    """Of each line: its hash, and the hash of the bank from there on."""

    @property
    def seq(self) -> int:
        """Number of the last line, from 0."""
        return len(self.chain) - 1

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self.chain[-1][0]


def replayed(lines: Iterable[ledger.Line], where: str) -> History:
    """Fold the lines of a ledger.

    Raises:
        BankCorruptError: a line may not come where it is, names another bank than replay gives, or there is none.
    """
    state, chain = Replay(), []
    for line in lines:
        place = f"{where}: line {line.seq + 1}"
        try:
            state.feed(line.entry)
        except ValveError as e:
            raise BankCorruptError(f"{place}: {e}; {ledger.RESTORE}") from e
        if line.bank != state.bank.hash:
            raise BankCorruptError(
                f"{place}: names bank {line.bank[:12]}, replay gives {state.bank.hash[:12]}; {ledger.RESTORE}"
            )
        chain.append((line.hash, line.bank))
    if not chain:
        raise BankCorruptError(
            f"{where}: no complete line; {ledger.RESTORE}, or move the whole directory away to start anew"
        )
    return History(state, chain)
