"""Where a bank stands after the entries so far, and what has to hold before another may come.

`replay` moves it on; every rule that more than one kind of entry asks for is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from valve_plugin.bank import moves
from valve_plugin.bank.entries import EpochOpened
from valve_plugin.errors import HorizonError, RecordError, StaleVerdictError
from valve_plugin.records import Bank, Panel, PanelOutcome, Proposal, Verdict


class Standing:
    """The state that entries lead to."""

    def __init__(self) -> None:
        self.banks: list[Bank] = []
        """By version; the last is the current one. Empty until `Opened`."""
        self.panel: Panel | None = None
        self.epoch: EpochOpened | None = None
        """The open epoch; None before the first and between a new panel and its epoch."""
        self.queries = 0
        """Gate queries of the open epoch."""
        self.outcomes: tuple[PanelOutcome, ...] | None = None
        """The current bank's outcomes on the panel; None until the open epoch's baseline."""
        self.proposals: dict[str, Proposal] = {}
        """Every proposal recorded so far, by id."""
        self.ordinals: dict[tuple[str, str], int] = {}
        """(task id, context hash) -> first ordinal no recorded rollout has."""
        self.holdout: dict[str, str] = {}
        """Every task the bank was evaluated on: id -> content hash. Sealed: never learned from or judged on."""
        self.sources: set[str] = set()
        """Ids of all tasks that proposals were learned from."""
        self.remeasured = 0
        """A/A measurements of the current bank in the open epoch."""
        self._epochs = 0
        self._open_query = ""  # id of the proposal whose last verdict was indecisive

    @property
    def bank(self) -> Bank:
        """The current bank."""
        return self.banks[-1]

    def _require_idle(self, epoch: int, bank_hash: str) -> None:
        """The current bank may be measured for its own sake: between queries, after the baseline."""
        self._require_epoch(epoch)
        if self.outcomes is None:
            raise RecordError(f"epoch {epoch} has no baseline to measure again; record that first")
        if self._open_query:
            raise RecordError(
                f"query {self.queries} about proposal {self._open_query} is undecided; finish it first "
                "(`valve gate`): a measurement in between would change which rollouts it goes on with"
            )
        if bank_hash != self.bank.hash:
            raise StaleVerdictError(f"bank {bank_hash[:12]} was measured again, {self._now()}")

    def _require_unread(self, ids: Iterable[str], contents: Iterable[str], what: str) -> None:
        """Holdout tasks that were read stay sealed, by id and by content."""
        read = sorted(self.holdout.keys() & set(ids)) or sorted(set(self.holdout.values()) & set(contents))
        if read:
            raise RecordError(f"{read[0]} is a holdout task that this bank was evaluated on; it may not {what}")

    def _require_query(self, verdict: Verdict) -> None:
        """A verdict must be about this bank, panel and epoch, and the next query, or the undecided one again."""
        if verdict.bank_hash != self.bank.hash:
            raise StaleVerdictError(
                f"proposal {verdict.proposal_id} was judged against bank {verdict.bank_hash[:12]}, {self._now()}; "
                "queue it again"
            )
        epoch = self._require_epoch(verdict.epoch)
        if self.panel is None or verdict.panel_hash != epoch.panel_hash or self.outcomes is None:
            raise RecordError("a verdict needs a baseline of the fixed panel in this epoch; record that first")
        terms = (len(self.panel.tasks), self.panel.rollouts, self.panel.rho, self.panel.pairing)
        if (verdict.n_tasks, verdict.rollouts, verdict.rho, verdict.pairing) != terms:
            raise RecordError(f"a verdict by other terms (N, r, rho, pairing) than the panel's {terms}")
        if verdict.conditions != epoch.conditions:
            raise RecordError(f"a verdict under {verdict.conditions}, but epoch {epoch.epoch} has {epoch.conditions}")
        self._proposal(verdict.proposal_id)
        again = verdict.query == self.queries and verdict.proposal_id == self._open_query
        if verdict.query != self.queries + 1 and not again:
            raise RecordError(f"query {verdict.query} after {self.queries}, expected {self.queries + 1}")
        if verdict.query > epoch.horizon:
            raise HorizonError(
                f"query {verdict.query} of the {epoch.horizon} declared for epoch {epoch.epoch}; open a new epoch"
            )

    def _require_epoch(self, number: int) -> EpochOpened:
        if self.epoch is None or self.epoch.epoch != number:
            now = self.epoch.epoch if self.epoch else "none"
            raise RecordError(f"about epoch {number}, but the open one is {now}; open an epoch first")
        return self.epoch

    def _require_complete(
        self, outcomes: Iterable[PanelOutcome], what: str, *, of: Collection[str] | None = None
    ) -> None:
        """All rollouts must be there and known: of these panel tasks, or of all."""
        assert self.panel is not None  # an epoch is open
        counts = {t.instance_id: 0 for t in self.panel.tasks if of is None or t.instance_id in of}
        for outcome in outcomes:
            if outcome.task_id not in counts or outcome.outcome == "errored":
                raise RecordError(
                    f"{what} has {outcome.outcome} for {outcome.task_id!r}; expected known panel outcomes"
                )
            counts[outcome.task_id] += 1
        wrong = [task for task, count in counts.items() if count != self.panel.rollouts]
        if wrong:
            raise RecordError(
                f"{what} has {counts[wrong[0]]} outcomes for {wrong[0]!r}, expected {self.panel.rollouts}"
            )

    def _after(self, verdict: Verdict) -> Bank:
        if verdict.decision != "accept":
            return self.bank
        self._require_complete(verdict.measured, "an accept")
        return self._moved(verdict.proposal_id)

    def _moved(self, proposal_id: str) -> Bank:
        proposal = self._proposal(proposal_id)
        if proposal.empty:
            raise RecordError(f"proposal {proposal.id} adds nothing, so there is nothing to accept")
        return moves.apply(self.bank, proposal)

    def _proposal(self, proposal_id: str) -> Proposal:
        if proposal_id not in self.proposals:
            raise RecordError(f"proposal {proposal_id} is not in the ledger; record it before what is decided about it")
        return self.proposals[proposal_id]

    def _in_panel_order(self, outcomes: Iterable[PanelOutcome]) -> tuple[PanelOutcome, ...]:
        assert self.panel is not None
        place = {task.instance_id: i for i, task in enumerate(self.panel.tasks)}
        return tuple(sorted(outcomes, key=lambda o: (place[o.task_id], o.ordinal)))

    def _use(self, outcomes: Iterable[PanelOutcome]) -> None:
        for outcome in outcomes:
            self._use_ordinal(outcome.task_id, outcome.context_hash, outcome.ordinal)

    def _use_ordinal(self, task_id: str, context_hash: str, ordinal: int) -> None:
        key = (task_id, context_hash)
        self.ordinals[key] = max(self.ordinals.get(key, 0), ordinal + 1)

    def _now(self) -> str:
        return f"the current one is {self.bank.hash[:12]}"
