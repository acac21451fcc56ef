"""What the loop may ask for next: the same loop on imagined ledgers.

A future assumes what is not known yet: attempts are not mixed, an extraction gives nothing, a gate ends in one of its
two ways. On its ledger, which is never written, the loop itself runs with steps that look results up instead of making
them, and note what they would have had to make. Where a gate may end both ways, the other end is a future of its own,
which goes on from there. The likeliest futures are imagined first; their odds multiply, and a rollout that several
futures ask for has the sum of theirs. No future is imagined further than the workers get soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from heapq import heappop, heappush
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.bank import moves
from valve_plugin.bank.entries import (
    FAILED_AGAIN,
    UNREACHED,
    Baseline,
    DecisionEntry,
    Entry,
    Judged,
    Proposed,
    undecided,
)
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore, LedgerState
from valve_plugin.errors import ValveError
from valve_plugin.evidence.evaluations import step_tasks
from valve_plugin.evolve.speculation import LEAST, Key, Prospect, key_of
from valve_plugin.evolve.steps import Steps, Ungated, aside, attempt_note
from valve_plugin.gate.plan import (
    Plan,
    PlannedRollout,
    Stage,
    baseline_plan,
    continued,
    fixed_panel,
    gate_plan,
    judged_contexts,
    reaches,
    staging,
)
from valve_plugin.records import (
    Attempt,
    Bank,
    Context,
    Decision,
    Outcome,
    Panel,
    PanelOutcome,
    PanelResult,
    Proposal,
    Task,
    Verdict,
)  # fmt: skip
from valve_plugin.theory import gate_rule
from valve_plugin.theory.panel_order import GateOdds, gate_odds, pass_chance

_MOST_FUTURES = 6
_ENOUGH = 3
"""Pieces of likely work per worker after which nothing further is imagined."""

T = TypeVar("T")
Loop = Callable[[Steps, Sequence[Task]], None]


class ImaginedLedger(LedgerState):
    """A ledger that goes on from the present one and is never written."""

    def __init__(self, store: BankStore, state: Replay, before: Sequence[Entry]) -> None:
        self.dir, self.local = store.dir, store.local
        self._replay, self._before, self._added = state.branch(), before, list[Entry]()

    def fork(self) -> ImaginedLedger:
        """Return another ledger that goes on from here."""
        other = copy(self)
        other._replay, other._added = self._replay.branch(), [*self._added]
        return other

    @property
    def state(self) -> Replay:
        """What the entries lead to."""
        return self._replay

    @property
    def bank(self) -> Bank:
        """The bank that the entries lead to."""
        return self._replay.bank

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, oldest first."""
        yield from self._before
        yield from self._added

    def append(self, entry: Entry) -> None:
        """Add an entry, if it is allowed now."""
        self._replay.feed(entry)
        self._added.append(entry)


class Imagination:
    """Where the loop of one run is, and what it may ask for from there."""

    def __init__(self, loop: Loop, steps: Steps, stream: Sequence[Task]) -> None:
        self.loop, self.steps, self.stream = loop, steps, stream
        self.places = {task.instance_id: number for number, task in enumerate(stream, start=1)}
        self.state, self.entries, self.head = Replay(trusting=True), list[Entry](), ""
        self.waits: Proposal | None = None
        self.position = 0
        """Tasks of the stream that are done with."""
        self.mixed: set[str] = set()
        self.verdicts, self.accepts = 0, 0
        self._memory: dict[Any, Any] = {}
        self._faded: dict[Any, Any] = {}

    @property
    def mixed_share(self) -> float:
        """Estimated chance that a task's attempts are mixed."""
        return (len(self.mixed) + 1) / (self.position + 3)

    @property
    def accept_share(self) -> float:
        """Estimated chance that a proposal is accepted which nothing is known about."""
        return (self.accepts + 1) / (self.verdicts + 5)

    def go_on(self, number: int = 0) -> list[Key]:
        """Take the ledger as it is now, and the stream from a task on; return the rollouts that new entries use."""
        used, begun = list[Key](), bool(self.entries)
        if self.head != self.steps.store.head:
            self.head = self.steps.store.head
            for entry in [*self.steps.store.entries()][len(self.entries) :]:
                used += self._take(entry)
            self.waits = next(iter(undecided(self.entries)), None)
            self._memory, self._faded = {}, self._memory  # what is not asked for until the next turn is forgotten
        self.position = max(number, self.position)
        return used if begun else []

    def _take(self, entry: Entry) -> Iterator[Key]:
        """Take one more entry; yield the rollouts that it rests on."""
        self.state.feed(entry)
        self.entries.append(entry)
        if isinstance(entry, Proposed):
            known = {note.task_id for note in entry.attempts} & self.places.keys()
            self.position = max(self.position, *(self.places[task] for task in known), 0)
            self.mixed |= step_tasks(entry) & known
        elif isinstance(entry, Judged):
            self.verdicts, self.accepts = self.verdicts + 1, self.accepts + (entry.verdict.decision == "accept")
            if entry.verdict.decision != "indecisive":
                yield from map(_key, (*entry.verdict.outcomes, *(entry.verdict.confirming or ())))
        elif isinstance(entry, Baseline):
            yield from map(_key, entry.result.outcomes)

    def prospect(self) -> Prospect:
        """Return what the likeliest futures ask for."""
        prospect = Prospect(self.state.bank.hash)
        likeliest = type("Future", (ImaginedSteps, type(self.steps)), {})  # also where a run has steps of its own
        futures: list[ImaginedSteps] = [likeliest(self, prospect)]
        for _ in range(_MOST_FUTURES):
            if not futures or self.enough(prospect):
                break
            future = heappop(futures)
            with suppress(ValveError):  # such as the end of the horizon
                self.loop(future, self.stream)
            for other in future.others:
                heappush(futures, other)
        prospect.partial = self.enough(prospect)
        return prospect

    def enough(self, prospect: Prospect) -> bool:
        """Whether the workers have enough to do for now."""
        return prospect.likely >= _ENOUGH * self.steps.settings.workers

    def remember(self, key: Any, make: Callable[[], T]) -> T:
        """Return what is remembered under a key; made where it is not."""
        if key not in self._memory:
            self._memory[key] = self._faded[key] if key in self._faded else make()
        found: T = self._memory[key]
        return found


def _key(outcome: PanelOutcome) -> Key:
    return outcome.task_id, outcome.context_hash, outcome.ordinal


class Measurement:
    """One measurement of a gate, in one future, and what is known of it."""

    def __init__(self, plan: Plan, stage: Stage, spare: int, chances: Sequence[float]) -> None:
        self.plan, self._stage, self._spare, self._chances = plan, stage, spare, chances
        self.keys = [key_of(cell) for cell in plan.cells]
        self._known: list[Outcome | None] = []
        self._told = GateOdds(0.0, ())

    def odds(self, known: list[Outcome | None]) -> GateOdds:
        """Return the odds of an accept, and that each rollout is needed, by the outcomes that are known."""
        if known != self._known:
            self._known, self._told = known, self._look(known)
        return self._told

    def _look(self, known: list[Outcome | None]) -> GateOdds:
        ended = [(c, o) for c, o in zip(self.plan.cells, known, strict=True) if o]
        decision, length = self._stage({(c.task.instance_id, c.ordinal): outcome_of(c, o) for c, o in ended})
        chances = zip(known, self._chances, strict=True)
        told = gate_odds(self._spare, [p if o is None else float(o != "unresolved") for o, p in chances])
        if length is None:
            return told
        if decision == "accept":
            return GateOdds(1.0, told.needed)
        return GateOdds(0.0, tuple(float(n < length - len(self.plan.reused)) for n in range(len(known))))


def outcome_of(cell: PlannedRollout, outcome: Outcome) -> PanelOutcome:
    """Return the outcome of a rollout as the ledger has it."""
    return PanelOutcome(
        task_id=cell.task.instance_id, ordinal=cell.ordinal, outcome=outcome, context_hash=cell.context.hash
    )


class ImaginedSteps(Steps):
    """The steps of a run, on an imagined ledger: those of the likeliest future, or, forked off, of another one."""

    store: ImaginedLedger  # type: ignore[assignment]  # the part of a store that steps read

    def __init__(self, imagination: Imagination, prospect: Prospect) -> None:  # not a run of its own
        self.imagination, self.prospect, self.real = imagination, prospect, imagination.steps
        self.hook, self.settings, self._tasks = self.real.hook, self.real.settings, self.real.tasks()
        self.store = ImaginedLedger(self.real.store, imagination.state, imagination.entries)
        self.waits, self.position, self.mixed = imagination.waits, imagination.position, len(imagination.mixed)
        self.others: list[ImaginedSteps] = []
        """Futures that begin like this one and then differ."""
        self.odds = 1.0
        """Odds that the bank is this one when the loop gets here."""
        self.exact = 1.0
        """Odds that all of the ledger is this one."""

    def __lt__(self, other: ImaginedSteps) -> bool:
        """Whether this future is likelier."""
        return self.odds > other.odds

    @contextmanager
    def speculating(self, foresee: Any, take: Any) -> Iterator[None]:
        """Do nothing: this is what idle workers work for."""
        yield

    def remaining(self, stream: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks that are left, while it is likely that anything here is needed and started soon."""
        while self.position < len(stream) and self.mixed < self.settings.max_mixed and self.odds >= LEAST:
            if self.imagination.enough(self.prospect):
                return
            self.position += 1
            yield stream[self.position - 1]

    def attempt(self, task: Task, context: Context) -> list[Attempt]:
        """Return the attempts if all are known; else assume that they are not mixed."""
        present = self.imagination
        self._measure(1 - (1 - present.mixed_share) ** (len(present.stream) - self.position + 1))
        cells = self.cells(task, context)
        found = [self._ask(cell, self.odds) for cell in cells]
        if None not in found:
            if len(set(found)) == 1 and type(self.real).material is Steps.material:
                return []  # nothing to contrast, so nobody reads them
            return present.remember(key_of(cells[0]), lambda: self._journaled(cells))
        known = {outcome for outcome in found if outcome}
        mixed = 1.0 if len(known) > 1 else present.mixed_share
        self.odds *= 1 - mixed * present.accept_share
        self.exact *= 1 - mixed
        return []

    def extract(self, issue: str, attempts: Sequence[Attempt]) -> Proposal:
        """Return the proposal if it is known; else assume an empty one, so that no later extraction is foreseen."""
        self.mixed += 1
        now = self.store.bank.hash, self.feedback(), attempts[-1].id
        work = self.imagination.remember(now, lambda: self.extraction(issue, attempts))
        done = self.real.extracted_before(work)
        self.prospect.add(work, key_of(work), self.exact if self.feedback() else self.odds, done=done is not None)
        if done is not None:
            return done.proposal
        self.odds *= 1 - self.imagination.accept_share
        self.exact = 0.0
        return Proposal(task_id=attempts[0].task_id, reason="not extracted yet")

    def record(self, proposal: Proposal, attempts: Sequence[Attempt] = ()) -> None:
        """Add the proposal to the imagined ledger."""
        proposal = self.refreshed(proposal)
        proposal = replace(proposal, withheld=tuple(replace(w, item=None, reason=UNSET) for w in proposal.withheld))
        self.store.append(Proposed(proposal=proposal, attempts=tuple(attempt_note(a) for a in attempts)))
        self.waits = None if proposal.empty else proposal

    def pending(self) -> Proposal | None:
        """Return the proposal that waits, updated to the imagined bank, or None."""
        while proposal := self.waits:
            self.waits, fresh = None, self.refreshed(proposal)
            if fresh == proposal:
                return proposal
            self.record(fresh)
        return None

    def validate(self, proposal: Proposal) -> DecisionEntry | None:
        """Return the verdict that is known or likelier, and note which rollouts it may need."""
        if isinstance(self, Ungated):
            return Ungated.validate(self, proposal)
        if not self.real.judges_here:  # what another gate runs is not known
            self.odds, self.exact = self.odds * (1 - self.imagination.accept_share), 0.0
            self.record(Proposal(task_id=proposal.task_id, reason="judged elsewhere"))
            return None
        if (passing := self._screen(proposal)) == 0.0:
            return None
        if self.store.current_outcomes() is None and not self._reaches(proposal):
            self.record(aside(proposal, UNREACHED))
            return None
        self._measure()
        current = self.store.current_outcomes() or ()  # some of them may be guesses, until the baseline has ended
        now = self.imagination.head, self.store.bank.hash, proposal.id, tuple(o.outcome for o in current)
        measurements = self.imagination.remember(now, lambda: self._measurements(proposal))
        if not measurements[0].keys:
            self.record(aside(proposal, UNREACHED))
            return None
        accept = passing  # a proposal that fails its screen leaves the same bank as a rejection
        for measurement in measurements:
            accept *= self._look(measurement, self.odds * accept)
        return self._decide(proposal, accept, measurements)

    def _screen(self, proposal: Proposal) -> float:
        """Note the attempts that screen a proposal; return the chance that all pass. 0: one failed, as is added."""
        passing, now = 1.0, (self.imagination.head, self.store.bank.hash, proposal.id, "screen")
        cells = self.imagination.remember(now, lambda: self.screening(proposal))
        for number, cell in enumerate(cells, start=1):
            outcome = self._ask(cell, self.odds * passing)
            if outcome == "unresolved":
                self.exact *= passing
                self.record(aside(proposal, FAILED_AGAIN), self._journaled(cells[:number]))
                return 0.0
            passing *= 1.0 if outcome else self._pass_chance(cell.task)
        return passing

    def commit(self, proposal: Proposal, decision: DecisionEntry) -> None:
        """Add the decision to the imagined ledger."""
        self.store.append(decision)

    def _journaled(self, cells: Sequence[PlannedRollout]) -> list[Attempt]:
        return [attempt for cell in cells if (attempt := self.real.journaled(cell))]

    @property
    def _panel(self) -> Panel:
        return fixed_panel(self.store)

    def _ask(self, cell: PlannedRollout, odds: float) -> Outcome | None:
        """Note that a rollout is asked for; return its outcome if it is known."""
        found = self.real.known(cell, key := key_of(cell))
        self.prospect.add(cell, key, odds, done=found is not None)
        return found

    def _measure(self, needed: float = 1.0) -> None:
        """Have the imagined bank's outcomes. Those that are missing the next gate asks for first, if there is one."""
        epoch = self.store.epoch()
        if epoch is None or self.store.current_outcomes() is not None:
            return
        plan = baseline_plan(self.settings, self.store, self.real.panel_members(), self._retrieve)
        found = [(cell, self._ask(cell, self.odds * needed)) for cell in plan.cells]
        outcomes = tuple(outcome_of(cell, outcome or self._guess(cell)) for cell, outcome in found)
        result = PanelResult(bank_hash=self.store.bank.hash, outcomes=outcomes)
        self.store.append(Baseline(epoch=epoch.epoch, result=result))

    def _measurements(self, proposal: Proposal) -> list[Measurement]:
        """Return what may decide about a proposal: its measurement, and one more where accepts are confirmed."""
        members, panel, contexts = self.real.panel_members(), self._panel, self._judged(proposal)
        plans = [gate_plan(self.settings, self.store, members, proposal, self._retrieve, contexts)]
        epoch, current = self.store.epoch(), self.store.current_outcomes()
        assert epoch is not None  # it is measured
        assert current is not None
        if epoch.conditions and epoch.conditions.confirm:
            plans.append(continued(plans[0], panel.rollouts))
        needed = gate_rule.needed_passes(panel.rho, len(panel.tasks), panel.rollouts)
        found = []
        for plan in plans:
            stage = staging(self.store, plan)
            assert stage is not None  # it is measured
            _, high = gate_rule.gain_bounds([o.outcome for o in current], [o.outcome for o in plan.reused])
            chances = [self._pass_chance(cell.task) for cell in plan.cells]
            found.append(Measurement(plan, stage, high - needed, chances))
        return found

    def _judged(self, proposal: Proposal) -> dict[str, Context]:
        """Return the contexts that a proposal is judged by."""
        bank, members = self.store.bank, self.real.panel_members()
        return self.imagination.remember(
            (bank.hash, proposal.id, "judged"),
            lambda: judged_contexts(self.settings, bank, members, proposal, self._retrieve),
        )

    def _reaches(self, proposal: Proposal) -> bool:
        members, judged = self.real.panel_members(), self._judged(proposal)
        return reaches(self.settings, self.store.bank, members, proposal, self._retrieve, judged)

    def _look(self, measurement: Measurement, odds: float) -> float:
        """Note what a measurement may need; return the chance that it reaches the margin."""
        cells = measurement.plan.cells
        known = [self.real.known(cell, key) for cell, key in zip(cells, measurement.keys, strict=True)]
        told = measurement.odds(known)
        for cell, key, outcome, needed in zip(cells, measurement.keys, known, told.needed, strict=True):
            wanted = odds * needed if self.settings.early_stop else odds
            if wanted >= LEAST:
                self.prospect.add(cell, key, wanted, done=outcome is not None)
        return told.accept

    def _decide(self, proposal: Proposal, accept: float, measurements: Sequence[Measurement]) -> DecisionEntry:
        """Return how a gate ends in this future, and leave its other end to another one."""
        chances: dict[Decision, float] = {"accept": accept, "reject": 1 - accept}
        decision, other = sorted(chances, key=lambda d: -chances[d])
        if self.odds * chances[other] >= LEAST:
            future = copy(self)
            future.store, future.others = self.store.fork(), []
            future.store.append(future._assume(other, chances[other], proposal, measurements))
            self.others.append(future)
        return self._assume(decision, chances[decision], proposal, measurements)

    def _assume(
        self, decision: Decision, chance: float, proposal: Proposal, measurements: Sequence[Measurement]
    ) -> Judged:
        """Return the verdict, in the future in which it is this one."""
        self.odds, self.exact = self.odds * chance, self.exact * chance
        after = moves.apply(self.store.bank, proposal) if decision == "accept" else self.store.bank
        return Judged(verdict=self._verdict(proposal, decision, measurements), bank_after=after.hash)

    def _verdict(self, proposal: Proposal, decision: Decision, measurements: Sequence[Measurement]) -> Verdict:
        epoch, panel, plan = self.store.epoch(), self._panel, measurements[0].plan
        assert epoch is not None  # it is measured
        # Of a rejection's rollouts those count that are known, as far as that can be foreseen.
        found = [
            tuple(
                outcome_of(cell, outcome or self._guess(cell))
                for cell, key in zip(one.plan.cells, one.keys, strict=True)
                if (outcome := self.real.known(cell, key)) or decision == "accept"
            )
            for one in (measurements if decision == "accept" else measurements[:1])
        ]
        return Verdict(
            proposal_id=proposal.id, decision=decision, epoch=epoch.epoch, query=self.store.queries_used() + 1,
            panel_hash=panel.hash, bank_hash=self.store.bank.hash, pairing=panel.pairing, rho=panel.rho,
            n_tasks=len(panel.tasks), rollouts=panel.rollouts, needed=0, current_passes=0, candidate_passes=0,
            order=plan.order, outcomes=found[0], reused=plan.reused, conditions=epoch.conditions,
            confirming=found[1] if len(found) > 1 else UNSET,
        )  # fmt: skip

    def _retrieve(self, *, settings: Any, bank: Any, task_id: str, issue: str) -> Context:
        def ask() -> Context:
            context: Context = self.hook.valve_retrieve(settings=settings, bank=bank, task_id=task_id, issue=issue)
            return context

        return self.imagination.remember((bank.hash, task_id), ask)

    def _guess(self, cell: PlannedRollout) -> Outcome:
        return "resolved" if self._pass_chance(cell.task) >= 0.5 else "unresolved"

    def _pass_chance(self, task: Task) -> float:
        return float(pass_chance(*self.store.state.recorded.get(task.instance_id, (0, 0))))
