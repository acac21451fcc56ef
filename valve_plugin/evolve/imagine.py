"""What the loop may ask for next: the same loop on imagined ledgers.

A future assumes what is not known yet: attempts are not mixed, an extraction gives nothing, a gate ends in one of its
two ways. On its ledger, which is never written, the loop itself runs with steps that look results up instead of making
them, and note what they would have had to make. The likeliest futures are imagined first; their odds multiply, and a
rollout that several futures ask for has the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.bank import moves
from valve_plugin.bank.entries import FAILED_AGAIN, UNREACHED, Baseline, DecisionEntry, Entry, Judged, Proposed
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore, LedgerState
from valve_plugin.errors import ValveError
from valve_plugin.evidence.evaluations import step_tasks
from valve_plugin.evolve.speculation import LEAST, Key, Prospect, key_of
from valve_plugin.evolve.steps import Steps, Ungated, aside, attempt_note, mixed_tasks, stream_position, waiting
from valve_plugin.gate.plan import (
    Plan,
    PlannedRollout,
    baseline_plan,
    continued,
    fixed_panel,
    gate_plan,
    judged_contexts,
    staging,
)
from valve_plugin.records import (
    Attempt,
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
from valve_plugin.theory import acceptance
from valve_plugin.theory.odds import gate_odds
from valve_plugin.theory.panel_order import pass_chance

MOST_FUTURES = 6
_REMEMBERED = {"context": 2000, "judged": 30, "plan": 60, "attempts": 300, "extraction": 300}
"""How many of each kind are kept from one look to the next."""

T = TypeVar("T")
Loop = Callable[[Steps, Sequence[Task]], None]


class Present(NamedTuple):
    """Where the loop is: all that a future begins with."""

    state: Replay
    entries: tuple[Entry, ...]
    waits: tuple[Proposal, ...]
    position: int
    """Tasks of the stream that are done with."""
    mixed: int

    @property
    def mixed_share(self) -> float:
        """Estimated chance that a task's attempts are mixed."""
        return (self.mixed + 1) / (self.position + 3)

    @property
    def accept_share(self) -> float:
        """Estimated chance that a proposal is accepted which nothing is known about."""
        judged = [e.verdict.decision for e in self.entries if isinstance(e, Judged)]
        return (judged.count("accept") + 1) / (len(judged) + 5)


class ImaginedLedger(LedgerState):
    """A ledger that goes on from the present one and is never written."""

    def __init__(self, store: BankStore, present: Present) -> None:
        self.dir, self.local = store.dir, store.local
        self._replay, self._before, self.added = present.state.branch(light=True), present.entries, list[Entry]()

    @property
    def _state(self) -> Replay:
        return self._replay

    @property
    def bank(self) -> Any:
        """The bank that the entries lead to."""
        return self._replay.bank

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, oldest first."""
        yield from self._before
        yield from self.added

    def append(self, entry: Entry) -> None:
        """Add an entry, if it is allowed now."""
        self._replay.feed(entry)
        self.added.append(entry)


class Imagination:
    """Imagines the futures of one run, with what it remembers from one time to the next."""

    def __init__(self, loop: Loop, steps: Steps, stream: Sequence[Task]) -> None:
        self.loop, self.steps, self.stream = loop, steps, stream
        self.ids = [task.instance_id for task in stream]
        self.memory: dict[str, dict[Any, Any]] = {}
        self.turn = 0
        self._present: Present | None = None

    def go_on(self, number: int = 0) -> list[Key]:
        """Take the ledger as it is now, and the stream from a task on; return the rollouts that new entries use."""
        store, before = self.steps.store, self._present
        entries = tuple(store.entries())
        position = max(number, stream_position(store, self.ids))
        waits = tuple(w for w in [waiting(store)] if w)
        self._present = Present(store.branch(), entries, waits, position, len(mixed_tasks(store, self.ids)))
        self.turn += 1
        return [key for entry in entries[len(before.entries) :] for key in _used(entry)] if before else []

    @property
    def present(self) -> Present:
        """Where the loop is."""
        assert self._present is not None  # `go_on` comes first
        return self._present

    def prospect(self) -> Prospect:
        """Return what the likeliest futures ask for."""
        prospect = Prospect({}, {})
        futures: list[tuple[float, tuple[Decision, ...]]] = [(-1.0, ())]
        for _ in range(MOST_FUTURES):
            if not futures:
                break
            _, decisions = heappop(futures)
            future = _future(self, prospect, decisions)
            with suppress(ValveError):  # such as the end of the horizon
                self.loop(future, self.stream)
            for branch in future.branches:
                heappush(futures, branch)
        return prospect

    def remember(self, kind: str, key: Any, make: Callable[[], T]) -> T:
        """Return what is remembered under a key; made where it is not."""
        known = self.memory.setdefault(kind, {})
        if key not in known:
            if len(known) >= _REMEMBERED[kind]:
                del known[next(iter(known))]
            known[key] = make()
        found: T = known[key]
        return found


def _used(entry: Entry) -> Iterator[Key]:
    """Yield the rollouts that an entry rests on."""
    if isinstance(entry, Judged) and entry.verdict.decision != "indecisive":
        outcomes: Sequence[Any] = (*entry.verdict.outcomes, *(entry.verdict.confirming or ()))
    else:
        outcomes = entry.result.outcomes if isinstance(entry, Baseline) else ()
    yield from ((o.task_id, o.context_hash, o.ordinal) for o in outcomes)


def _future(imagination: Imagination, prospect: Prospect, decisions: tuple[Decision, ...]) -> ImaginedSteps:
    """Return the steps of a future in which undecided gates end as given, and later ones as is likelier."""
    real = imagination.steps
    future: ImaginedSteps = object.__new__(type("Future", (ImaginedSteps, type(real)), {}))
    future.hook, future.settings, future.real = real.hook, real.settings, real
    future._tasks = real.tasks()
    future.store = ImaginedLedger(real.store, imagination.present)
    future.imagination, future.prospect = imagination, prospect
    future.waits = list(imagination.present.waits)
    future.ahead_of, future.behind, future.branches = list(decisions), (), []
    future.odds = future.exact = 1.0
    future.left = 0
    return future


class ImaginedSteps(Steps):
    """The steps of a run, on an imagined ledger."""

    store: ImaginedLedger  # type: ignore[assignment]  # the part of a store that steps read
    real: Steps
    imagination: Imagination
    prospect: Prospect
    waits: list[Proposal]
    ahead_of: list[Decision]
    """How the next undecided gates end."""
    behind: tuple[Decision, ...]
    """How those before ended."""
    branches: list[tuple[float, tuple[Decision, ...]]]
    """Futures that begin like this one and then differ, with minus their odds."""
    odds: float
    """Odds that the bank is this one when the loop gets here."""
    exact: float
    """Odds that all of the ledger is this one."""
    left: int
    """Tasks of the stream after the current one."""

    def speculating(self, foresight: Any) -> AbstractContextManager[None]:
        """Do nothing: this is what idle workers work for."""
        return nullcontext()

    def remaining(self, stream: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks that are left, while the odds that anything here is needed are not too small."""
        present = self.imagination.present
        for number in range(present.position, len(stream)):
            mixed = present.mixed + sum(bool(_steps(e)) for e in self.store.added)
            if mixed >= self.settings.max_mixed or self.odds < LEAST:
                return
            self.left = len(stream) - number
            yield stream[number]

    def attempt(self, task: Task, context: Context) -> list[Attempt]:
        """Return the attempts if all are known; else assume that they are not mixed."""
        present = self.imagination.present
        self._measure(1 - (1 - present.mixed_share) ** self.left)
        cells = self.cells(task, context)
        found = [self._ask(cell, self.odds) for cell in cells]
        if None not in found:
            if len(set(found)) == 1 and type(self.real).material is Steps.material:
                return []  # nothing to contrast, so nobody reads them
            return self.imagination.remember("attempts", key_of(cells[0]), lambda: self._journaled(cells))
        known = {outcome for outcome in found if outcome}
        mixed = 1.0 if len(known) > 1 else present.mixed_share
        self.odds *= 1 - mixed * present.accept_share
        self.exact *= 1 - mixed
        return []

    def extract(self, issue: str, attempts: Sequence[Attempt]) -> Proposal:
        """Return the proposal if it is known; else assume an empty one, so that no later extraction is foreseen."""
        now = (self.imagination.turn, self.behind, len(self.store.added), attempts[-1].id)
        work = self.imagination.remember("extraction", now, lambda: self.extraction(issue, attempts))
        done = self.real.extracted_before(work)
        if not self.ahead_of and self.exact >= LEAST:
            self.prospect.add(work, self.exact, done=done is not None)
        if done is not None:
            return done.proposal
        self.odds *= 1 - self.imagination.present.accept_share
        self.exact = 0.0
        return Proposal(task_id=attempts[0].task_id, reason="not extracted yet")

    def record(self, proposal: Proposal, attempts: Sequence[Attempt] = ()) -> None:
        """Add the proposal to the imagined ledger."""
        proposal = self.refreshed(proposal)
        proposal = replace(proposal, withheld=tuple(replace(w, item=None, reason=UNSET) for w in proposal.withheld))
        self.store.append(Proposed(proposal=proposal, attempts=tuple(attempt_note(a) for a in attempts)))
        self.waits = [] if proposal.empty else [proposal]

    def pending(self) -> Proposal | None:
        """Return the proposal that waits, updated to the imagined bank, or None."""
        while self.waits:
            proposal = self.waits.pop(0)
            fresh = self.refreshed(proposal)
            if fresh == proposal:
                return proposal
            self.record(fresh)
        return None

    def validate(self, proposal: Proposal) -> DecisionEntry | None:
        """Return the verdict that is known, assumed, or likelier, and note which rollouts it may need."""
        if isinstance(self, Ungated):
            return Ungated.validate(self, proposal)
        if not self.real.judges_here:  # what another gate runs is not known
            self.odds, self.exact = self.odds * (1 - self.imagination.present.accept_share), 0.0
            self.record(Proposal(task_id=proposal.task_id, reason="judged elsewhere"))
            return None
        if (passing := self._screen(proposal)) == 0.0:
            return None
        current = self._measure()
        plan = self._plan(proposal)
        if not plan.cells:
            self.record(aside(proposal, UNREACHED))
            return None
        needed = acceptance.needed_passes(self._panel.rho, len(self._panel.tasks), self._panel.rollouts)
        epoch = self.store.epoch()
        assert epoch is not None  # it is measured
        plans = [plan]
        if epoch.conditions and epoch.conditions.confirm:
            plans.append(continued(plan, self._panel.rollouts))
        accept = passing  # a proposal that fails its screen leaves the same bank as a rejection
        for one in plans:
            accept *= self._measurement(one, current, needed, self.exact * accept)
        decision = self._decide(accept)
        after = moves.apply(self.store.bank, proposal) if decision == "accept" else self.store.bank
        verdict = self._verdict(proposal, decision, plans, needed)
        return Judged(verdict=verdict, bank_after=after.hash)

    def _screen(self, proposal: Proposal) -> float:
        """Note the attempts that screen a proposal; return the chance that all pass. 0: one failed, as is added."""
        passing, known = 1.0, list[Attempt]()
        for cell in self.screening(proposal):
            outcome = self._ask(cell, self.exact * passing)
            known += self._journaled([cell])
            if outcome == "unresolved":
                self.exact *= passing
                self.record(aside(proposal, FAILED_AGAIN), known)
                return 0.0
            passing *= 1.0 if outcome else self._pass_chance(cell.task)
        return passing

    def commit(self, proposal: Proposal, decision: DecisionEntry) -> None:
        """Add the decision to the imagined ledger."""
        self.store.append(decision)

    def _journaled(self, cells: Sequence[PlannedRollout]) -> list[Attempt]:
        return [found for cell in cells if (found := self.real.journaled(cell))]

    @property
    def _panel(self) -> Panel:
        return fixed_panel(self.store)

    def _ask(self, cell: PlannedRollout, odds: float) -> Outcome | None:
        """Note that a rollout is asked for; return its outcome if it is known."""
        found = self.real.known(cell)
        if not self.ahead_of and odds >= LEAST:
            self.prospect.add(cell, odds, done=found is not None)
        return found

    def _measure(self, needed: float = 1.0) -> tuple[PanelOutcome, ...]:
        """Return the imagined bank's outcomes. Those that are missing the next gate asks for first, if there is one."""
        epoch, current = self.store.epoch(), self.store.current_outcomes()
        if epoch is None or current is not None:
            return current or ()
        plan = baseline_plan(self.settings, self.store, self.real.panel_members(), self._retrieve)
        outcomes = [self._outcome(cell, self._ask(cell, self.odds * needed)) for cell in plan.cells]
        result = PanelResult(bank_hash=self.store.bank.hash, outcomes=tuple(outcomes))
        self.store.append(Baseline(epoch=epoch.epoch, result=result))
        return self.store.current_outcomes() or ()

    def _measurement(self, plan: Plan, current: Sequence[PanelOutcome], needed: int, odds: float) -> float:
        """Note what a measurement may need; return the chance that it reaches the margin."""
        known = [self.real.known(cell) for cell in plan.cells]
        stage = staging(self.store, plan)
        assert stage is not None  # it is measured
        ended = ((cell, outcome) for cell, outcome in zip(plan.cells, known, strict=True) if outcome)
        decision, length = stage({(c.task.instance_id, c.ordinal): self._outcome(c, o) for c, o in ended})
        chances = [
            self._pass_chance(cell.task) if outcome is None else float(outcome != "unresolved")
            for cell, outcome in zip(plan.cells, known, strict=True)
        ]
        _, high = acceptance.gain_bounds([o.outcome for o in current], [o.outcome for o in plan.reused])
        told = gate_odds(high - needed, chances)
        for number, cell in enumerate(plan.cells):
            wanted = told.needed[number] if self.settings.early_stop else 1.0
            if length is not None and decision == "reject" and self.settings.early_stop:
                wanted = float(number < length - len(plan.reused))
            self._ask(cell, odds * wanted)
        return told.accept if length is None else float(decision == "accept")

    def _decide(self, accept: float) -> Decision:
        """Return how a gate ends in this future, and leave its other end to another one."""
        if accept in (0.0, 1.0):
            return "accept" if accept else "reject"
        chances: Mapping[Decision, float] = {"accept": accept, "reject": 1 - accept}
        if self.ahead_of:
            decision = self.ahead_of.pop(0)
        else:
            decision, other = sorted(chances, key=lambda d: -chances[d])
            if (odds := self.odds * chances[other]) >= LEAST:
                self.branches.append((-odds, (*self.behind, other)))
        self.behind = (*self.behind, decision)
        self.odds, self.exact = self.odds * chances[decision], self.exact * chances[decision]
        return decision

    def _verdict(self, proposal: Proposal, decision: Decision, plans: Sequence[Plan], needed: int) -> Verdict:
        epoch, panel, plan = self.store.epoch(), self._panel, plans[0]
        assert epoch is not None  # it is measured
        # Of a rejection's rollouts those count that are known, as far as that can be foreseen.
        found = [
            tuple(self._outcome(c, o) for c in one.cells if (o := self.real.known(c)) or decision == "accept")
            for one in (plans if decision == "accept" else plans[:1])
        ]
        return Verdict(
            proposal_id=proposal.id, decision=decision, epoch=epoch.epoch, query=self.store.queries_used() + 1,
            panel_hash=panel.hash, bank_hash=self.store.bank.hash, pairing=panel.pairing, rho=panel.rho,
            n_tasks=len(panel.tasks), rollouts=panel.rollouts, needed=needed, current_passes=0, candidate_passes=0,
            order=plan.order, outcomes=found[0], reused=plan.reused, conditions=epoch.conditions,
            confirming=found[1] if len(found) > 1 else UNSET,
        )  # fmt: skip

    def _plan(self, proposal: Proposal) -> Plan:
        bank, members, ask = self.store.bank, self.real.panel_members(), self._retrieve

        def contexts() -> dict[str, Context]:
            return judged_contexts(self.settings, bank, members, proposal, ask)

        def plan() -> Plan:
            known = self.imagination.remember("judged", (bank.hash, proposal.id), contexts)
            return gate_plan(self.settings, self.store, members, proposal, ask, known)

        return self.imagination.remember("plan", (self.imagination.turn, self.behind, proposal.id), plan)

    def _retrieve(self, *, settings: Any, bank: Any, task_id: str, issue: str) -> Context:
        def ask() -> Context:
            context: Context = self.hook.valve_retrieve(settings=settings, bank=bank, task_id=task_id, issue=issue)
            return context

        return self.imagination.remember("context", (bank.hash, task_id), ask)

    def _outcome(self, cell: PlannedRollout, known: Outcome | None) -> PanelOutcome:
        guess: Outcome = "resolved" if self._pass_chance(cell.task) >= 0.5 else "unresolved"
        return PanelOutcome(
            task_id=cell.task.instance_id, ordinal=cell.ordinal, outcome=known or guess, context_hash=cell.context.hash
        )

    def _pass_chance(self, task: Task) -> float:
        passed, rollouts = self.store.recorded().get(task.instance_id, (0, 0))
        return _pass_chance(passed, rollouts)


@cache
def _pass_chance(passed: int, rollouts: int) -> float:
    return float(pass_chance(passed, rollouts))


def _steps(entry: Entry) -> set[str]:
    return set(step_tasks(entry.attempts)) if isinstance(entry, Proposed) else set()
