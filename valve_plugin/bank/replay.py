"""The state a ledger's entries lead to. The one place that says which entry may follow which.

An accept carries its last measurement forward as the current outcomes: the confirming one where the epoch asks for
confirmation. It reached the margin as the first one did, which is all that thm:conv-main needs. It is no less
flattering: both were taken above the same margin. Carrying the lower or the mean of both would flatter less, but would
compare unlike with unlike in the next gate.

An owner's act changes the bank that the outcomes are about, and nothing judged it: it ends the epoch, so the next gate
opens another one, with a baseline and a share of delta of its own.

An epoch with `fresh` baselines carries nothing forward: the tasks that an accept ran have no outcomes then, and those
that served in so many queries lose theirs; the next gate measures these tasks first. What was selected for being high
is then never compared with. The other tasks keep their outcomes without bias: their context is the same, and they were
the same on both sides of the accept, so it did not depend on them.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import singledispatchmethod
from typing import NamedTuple

from msgspec import UNSET

from valve_plugin.bank import entries, ledger, moves
from valve_plugin.codec import digest
from valve_plugin.errors import BankCorruptError, HorizonError, RecordError, StaleVerdictError, ValveError
from valve_plugin.records import Bank, Item, Panel, PanelOutcome, Proposal, Verdict, bank_hash
from valve_plugin.theory import panel_order


class Replay:
    """The state that entries lead to, one by one. A refused entry raises and leaves everything as it was."""

    def __init__(self, *, trusting: bool = False) -> None:
        self.trusting = trusting
        """Whether entries are believed which bank they lead to, until `wrong_version` is asked."""
        self.banks: list[Bank] = []
        """By version; the last is the current one. Empty until `Opened`."""
        self.panel: Panel | None = None
        self.epoch: entries.EpochOpened | None = None
        """The open epoch; None before the first and between a new panel and its epoch."""
        self.queries = 0
        """Gate queries of the open epoch."""
        self.known: tuple[PanelOutcome, ...] = ()
        """The current bank's outcomes on the panel, in panel order, of the tasks that are measured."""
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
        self.recorded: dict[str, tuple[int, int]] = {}
        """Of each task of the panel: passes and known outcomes of all rollouts that verdicts and complete measurements
        rest on, whichever bank they measured. An undecided query counts when it is decided, so its order stays."""
        self._epochs = 0
        self._open_query = ""  # id of the proposal whose last verdict was indecisive
        self._served: Counter[str] = Counter()  # queries in which a task's known outcomes served

    def branch(self) -> Replay:
        """Return the same state, to which other entries may be fed. They share it, so feed this one no more then."""
        other = copy(self)
        for name in ("proposals", "ordinals"):
            known = getattr(self, name)
            setattr(other, name, known.copy() if isinstance(known, ChainMap) else ChainMap({}, known))
        other.holdout, other.recorded = dict(self.holdout), dict(self.recorded)
        other.banks, other.sources, other._served = [*self.banks], {*self.sources}, Counter(self._served)
        return other

    @property
    def bank(self) -> Bank:
        """The current bank."""
        return self.banks[-1]

    @property
    def outcomes(self) -> tuple[PanelOutcome, ...] | None:
        """The current bank's outcomes on the panel, in panel order; None where a task has none."""
        whole = self.panel is not None and len(self.known) == len(self.panel.tasks) * self.panel.rollouts
        return self.known if whole else None

    def unmeasured(self) -> frozenset[str]:
        """Return the ids of the panel tasks whose outcomes under the current bank are not known."""
        tasks = self.panel.tasks if self.panel else ()
        return frozenset(t.instance_id for t in tasks) - {o.task_id for o in self.known}

    def feed(self, entry: entries.Entry) -> None:
        """Apply one more entry.

        Raises:
            StaleVerdictError: a verdict about another bank than the current one.
            HorizonError: a gate query beyond the horizon.
            RecordError: anything else that may not come now; the message says what has to come first.
        """
        if bool(self.banks) == isinstance(entry, entries.Opened):
            raise RecordError("the first entry of a ledger, and only the first, is `opened`")
        self._feed(entry)

    @singledispatchmethod
    def _feed(self, entry: entries.Entry) -> None:
        raise TypeError(f"{type(entry).__name__} is not a ledger entry")

    @_feed.register
    def _opened(self, entry: entries.Opened) -> None:
        self.banks.append(Bank(repo=entry.repo, schema_version=entry.schema_version))

    @_feed.register
    def _panel_fixed(self, entry: entries.PanelFixed) -> None:
        ids = [task.instance_id for task in entry.panel.tasks]
        if not ids or len(set(ids)) < len(ids):
            raise RecordError(
                f"a panel of {len(ids)} tasks ({len(set(ids))} different); expected at least one, each once"
            )
        self._require_unread(ids, [task.content_hash for task in entry.panel.tasks], "judge")
        self.panel, self.epoch, self.recorded = entry.panel, None, {}
        self._start_count()

    @_feed.register
    def _epoch_opened(self, entry: entries.EpochOpened) -> None:
        if self.panel is None or entry.panel_hash != self.panel.hash:
            raise RecordError(f"epoch {entry.epoch} is not about the fixed panel; fix the panel first")
        if entry.epoch != self._epochs + 1:
            raise RecordError(f"epoch {entry.epoch} after {self._epochs}, expected {self._epochs + 1}")
        self.epoch, self._epochs = entry, entry.epoch
        self._start_count()

    @_feed.register
    def _baseline(self, entry: entries.Baseline) -> None:
        self._require_epoch(entry.epoch)
        if self.outcomes is not None:
            raise RecordError(f"epoch {entry.epoch} has a baseline that still holds; open a new epoch for another")
        if entry.result.bank_hash != self.bank.hash:
            raise StaleVerdictError(f"the baseline measured bank {entry.result.bank_hash[:12]}, {self._now()}")
        self._require_complete(entry.result.outcomes, "the baseline", of=self.unmeasured())
        self._count(entry.result.outcomes)
        self.known = self.in_panel_order((*self.known, *entry.result.outcomes))

    @_feed.register
    def _remeasured(self, entry: entries.Remeasured) -> None:
        self._require_idle(entry.epoch, entry.result.bank_hash)
        self._require_complete(entry.result.outcomes, "an A/A measurement")
        self._count(entry.result.outcomes)
        self.remeasured += 1

    @_feed.register
    def _left_out(self, entry: entries.LeftOut) -> None:
        self._require_idle(entry.epoch, entry.bank_hash)
        moves.single_item_bank(self.bank, entry.without)  # it is there
        self._require_complete(entry.outcomes, "a measurement without an item", of={o.task_id for o in entry.outcomes})
        self._use(entry.outcomes)

    @_feed.register
    def _proposed(self, entry: entries.Proposed) -> None:
        sources = {entry.proposal.task_id, *(note.task_id for note in entry.attempts)}
        self._require_unread(sources, (), "be learned from")
        self.sources |= sources
        self.proposals[entry.proposal.id] = entry.proposal
        self._use(entry.attempts)

    @_feed.register
    def _judged(self, entry: entries.Judged) -> None:
        verdict = entry.verdict
        self._require_query(verdict)
        after = self._after(verdict)
        self._require_after(entry.bank_after, after, verdict.decision)
        if verdict.decision != "indecisive":  # else the query goes on with the same rollouts
            self._count((*verdict.outcomes, *(verdict.confirming or ())))
        self.queries = verdict.query
        self._open_query = verdict.proposal_id if verdict.decision == "indecisive" else ""
        if verdict.decision == "accept":
            self.remeasured = 0
            self.banks.append(after)
            self.known = self.in_panel_order(verdict.measured)
        # Drop outcomes where the epoch asks for fresh baselines; never in the middle of a query.
        fresh = verdict.conditions.fresh if verdict.conditions else 0
        if not fresh or verdict.decision == "indecisive":
            return
        served = set(verdict.order) - {o.task_id for o in verdict.reused}
        self._served.update(served)
        dropped = {task for task in served if verdict.decision == "accept" or self._served[task] >= fresh}
        self.known = tuple(o for o in self.known if o.task_id not in dropped)
        for task in dropped:
            del self._served[task]

    @_feed.register
    def _taken(self, entry: entries.Taken) -> None:
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
        self._require_after(entry.bank_after, after, "the move")
        self.banks.append(after)

    @_feed.register
    def _owner_act(self, entry: entries.OwnerAct) -> None:
        if entry.bank_hash != self.bank.hash:
            raise StaleVerdictError(f"the owner changed bank {entry.bank_hash[:12]}, {self._now()}")
        sources = {task for item in entry.items for task in item.source_tasks}
        self._require_unread(sources, (), "be learned from")
        changes = bool(entry.removes or entry.items)
        if entry.act != "undo":
            if not changes or entry.undo_to is not UNSET:
                raise RecordError(f"an owner's {entry.act} names the items it removes or adds, and no version")
            after = moves.change(self.bank, entry.removes, entry.items)
        elif changes or entry.undo_to is UNSET or entry.undo_to >= self.bank.version:
            last = self.bank.version
            raise RecordError(f"an undo names a version before the current one, {last}, and nothing else")
        else:
            after = moves.restore(self.bank, self.banks[entry.undo_to])
        self._require_after(entry.bank_after, after, "the act")
        self.sources |= sources
        self.banks.append(after)
        self.epoch = None
        self._start_count()

    @_feed.register
    def _evaluated(self, entry: entries.Evaluated) -> None:
        if not entry.version < len(self.banks):
            raise RecordError(f"evaluates version {entry.version}, but the bank has versions 0 to {self.bank.version}")
        frozen = self.banks[entry.version]
        if entry.only is not None:
            frozen = moves.single_item_bank(frozen, entry.only)
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

    def _start_count(self) -> None:
        """A new panel or epoch counts its queries from 0 and needs a fresh baseline."""
        self.queries, self.known, self.remeasured, self._open_query = 0, (), 0, ""
        self._served.clear()

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

    def _require_epoch(self, number: int) -> entries.EpochOpened:
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

    def wrong_version(self) -> tuple[str, RecordError] | None:
        """Return the first version's hash that an entry named and its items do not give, with the error; else None."""
        for bank, found in zip(self.banks, version_hashes(self.banks), strict=True):
            if bank.hash != found:
                return bank.hash, RecordError(
                    f"bank_after is {bank.hash[:12]}, but version {bank.version} is {found[:12]}"
                )
        return None

    def in_panel_order(self, outcomes: Iterable[PanelOutcome]) -> tuple[PanelOutcome, ...]:
        """Return outcomes by the panel's tasks, then by ordinal."""
        assert self.panel is not None
        place = {task.instance_id: i for i, task in enumerate(self.panel.tasks)}
        return tuple(sorted(outcomes, key=lambda o: (place[o.task_id], o.ordinal)))

    def _count(self, outcomes: Iterable[PanelOutcome]) -> None:
        self._use(outcomes)
        panel_order.add_counts(self.recorded, outcomes)

    def _use(self, rollouts: Iterable[PanelOutcome | entries.AttemptNote]) -> None:
        known = self.ordinals
        for one in rollouts:
            key = (one.task_id, one.context_hash)
            if one.ordinal >= known.get(key, 0):
                known[key] = one.ordinal + 1

    def _require_after(self, named: str, after: Bank, cause: str) -> None:
        if self.trusting:
            vars(after).setdefault("hash", named)
        if named != after.hash:
            raise RecordError(f"bank_after is {named[:12]}, but {cause} leads to {after.hash[:12]}")

    def _now(self) -> str:
        return f"the current one is {self.bank.hash[:12]}"


def version_hashes(banks: Sequence[Bank]) -> Iterator[str]:
    """Yield the hashes of versions that follow each other: what `Bank.hash` gives, without hashing old items again."""
    principles, skills = _ItemList(), _ItemList()
    for bank in banks:
        if bank.schema_version == 1:
            yield bank_hash(bank)
        else:
            kinds = principles.take(bank.principles), skills.take(bank.skills)
            yield digest([bank.repo, bank.version, *kinds])


class _ItemList:
    """The hash of a version's items of one kind, which goes on to the next version."""

    def __init__(self) -> None:
        self._items, self._hash = tuple[Item, ...](), hashlib.sha256()
        self._known = dict[int, bytes]()  # hashes by id: the banks keep all items alive

    def take(self, items: tuple[Item, ...]) -> str:
        if items[: len(self._items)] != self._items:
            self._items, self._hash = (), hashlib.sha256()
        for item in items[len(self._items) :]:
            known = self._known.get(id(item)) or self._known.setdefault(id(item), digest(item).encode())
            self._hash.update(known)
        self._items = items
        return self._hash.hexdigest()


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


def read_history(data: bytes, where: str) -> History:
    """Parse and replay the bytes of a ledger; raises like `ledger.parse` and `replay`."""
    return replay(ledger.parse(data, where).lines, where)


def replay(
    lines: Iterable[ledger.Line],
    where: str,
    *,
    trusting: bool = False,
    before: Callable[[ledger.Line, Replay], None] | None = None,
    known: History | None = None,
) -> History:
    """Apply the lines of a ledger.

    Args:
        trusting: compute the hash of the last bank alone, which depends on all items that are in it.
        before: is called with each line and the state that it comes to.
        known: what earlier lines led to, which goes on with these; its state is of no use after an error.

    Raises:
        BankCorruptError: a line may not come where it is, names another bank than replay gives, or there is none.
    """
    state, chain = known or (Replay(), [])
    state.trusting, place = True, where
    try:
        for line in lines:
            place = f"{where}: line {line.seq + 1}"
            if before:
                before(line, state)
            try:
                state.feed(line.entry)
            except ValveError as e:
                raise BankCorruptError(f"{place}: {e}; {ledger.RESTORE}") from e
            _require_named(line.bank, state.bank.hash, place)
            chain.append((line.hash, line.bank))
    finally:  # a wrong version comes before what the replay stopped at
        if not trusting and (wrong := state.wrong_version()):
            number = next((n for n, (_, bank) in enumerate(chain) if bank == wrong[0]), len(chain)) + 1
            raise BankCorruptError(f"{where}: line {number}: {wrong[1]}; {ledger.RESTORE}") from wrong[1]
    if not chain:
        raise BankCorruptError(
            f"{where}: no complete line; {ledger.RESTORE}, or move the whole directory away to start anew"
        )
    if trusting:
        _require_named(chain[-1][1], bank_hash(state.bank), place)
    state.trusting = False
    return History(state, chain)


def _require_named(named: str, found: str, place: str) -> None:
    if named != found:
        raise BankCorruptError(f"{place}: names bank {named[:12]}, replay gives {found[:12]}; {ledger.RESTORE}")
