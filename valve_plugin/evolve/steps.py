"""The method's steps on one bank, each as the run's plugins implement it. The loop calls them in flow order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import pluggy
from msgspec.structs import replace

from valve_plugin.bank import moves
from valve_plugin.bank.entries import Decision, Entry, Judged, Proposed, Taken, decided
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import BudgetError, InfrastructureError, PluginError, StaleVerdictError
from valve_plugin.evolve.ahead import Ahead
from valve_plugin.evolve.group import mixed, note, trajectory
from valve_plugin.evolve.position import learned, position
from valve_plugin.extract import cost
from valve_plugin.extract.digest import digest
from valve_plugin.extract.duplicates import split
from valve_plugin.gate.guard import Guard, finished, limited, limits_of
from valve_plugin.gate.plan import Cell, fixed_panel, panel_settings
from valve_plugin.gate.rollout import CUT, SPENDING, durable, telemetry
from valve_plugin.records import Attempt, Context, Proposal, Task, Verdict
from valve_plugin.rollouts.executors import LocalExecutor
from valve_plugin.rollouts.waits import heard
from valve_plugin.words import plural

ATTEMPTS = 3
"""R of tab:impl-config, where settings leave it open."""

T = TypeVar("T")


class Steps:
    """One run over one bank. What has happened is read from the ledger, so a new process goes on where one ended."""

    def __init__(self, manager: pluggy.PluginManager, store: BankStore, settings: Settings) -> None:
        self.hook = manager.hook
        self.store = store
        settings = panel_settings(settings, fixed_panel(store))
        self.settings = replace(settings, attempts=settings.attempts or ATTEMPTS)
        self.guard = Guard(self.hook.valve_attempt, limits_of(settings), observe=self._observe)
        self.ahead = Ahead(self._durable, settings.workers)
        self._upcoming: Sequence[Task] = ()
        self._observed: set[tuple[str, int]] = set()

    def remaining(self, stream: Sequence[Task]) -> Iterator[Task]:
        """Yield the stream's tasks from behind the last mixed one in the ledger, until enough were mixed.

        Tasks that were not mixed leave no entry; behind the last that was, they come again, out of the journal.
        """
        ids = [task.instance_id for task in stream]
        for number in range(position(self.store, ids), len(stream)):
            if len(learned(self.store, ids)) >= self.settings.max_mixed:
                return
            self._tell("task_started", task_id=ids[number], position=number + 1, of=len(ids))
            self._upcoming = stream[number : number + 1 + self.settings.run_ahead]
            self._run_ahead()
            yield stream[number]

    def retrieve(self, task: Task) -> Context:
        """Compose the task's context from the current bank, once for all its attempts."""
        context: Context | None = self.hook.valve_retrieve(
            settings=self.settings, bank=self.store.bank, task_id=task.instance_id, issue=task.problem_statement
        )
        return _answered(context, "valve_retrieve")

    def cells(self, task: Task, context: Context) -> list[Cell]:
        """Return the attempts at a task under a context, each with the number that is its own."""
        first = self.store.ordinals(task.instance_id, context.hash)
        return [Cell(task, context, first + n) for n in range(self.settings.attempts)]

    def attempt(self, task: Task, context: Context) -> list[Attempt]:
        """Run all attempts at a task, and count the context's items as used.

        Raises:
            InfrastructureError: one is errored, also after retries: it is no failure, so the run pauses here.
            BudgetError: a limit is reached; those that ran are kept.
        """
        cells = self.cells(task, context)
        self.ahead.busy(len(cells))
        with LocalExecutor(min(self.settings.workers, len(cells))) as executor:
            jobs = [executor.submit(partial(self.ahead.first, cell)) for cell in cells]
            attempts = [self._finished(attempt) for _, attempt in finished(jobs)]
        self.ahead.busy(0)
        self._upcoming = self._upcoming[1:]
        self.guard.check()
        lost = [a for a in attempts if a.outcome == "errored"]
        if lost:
            raise InfrastructureError(
                f"{len(lost)} of {plural(len(attempts), 'attempt')} at {task.instance_id} hit a failure of host or "
                f"provider ({lost[0].reason}); the run pauses, and its next start retries only those"
            )
        self.store.local.count_use(context)
        passed = sum(a.outcome == "resolved" for a in attempts)
        self._tell("task_finished", task_id=task.instance_id, passed=passed, attempts=len(attempts))
        return attempts

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return what to reflect upon now that a task's attempts are in: these where they are mixed, else nothing."""
        return attempts if mixed(attempts) else ()

    def extract(self, issue: str, attempts: Sequence[Attempt]) -> Proposal:
        """Contrast the attempts into a proposal."""
        self.guard.left()
        self._tell("extracting", task_id=attempts[0].task_id, attempts=len(attempts))  # a call may take minutes
        digests = [digest(trajectory(self.store, a), a) for a in attempts]
        with cost.counted() as calls, heard(self.guard.waits):
            proposal: Proposal | None = self.hook.valve_extract(
                settings=self.settings, bank=self.store.bank, issue=issue, attempts=attempts, trajectories=digests,
                feedback=self.feedback(),
            )  # fmt: skip
        for call in calls:
            self.guard.spend(call.get("cost_usd", 0.0), 0)
            self.store.local.telemetry("calls", call)
            self._tell("extracted", **call)
        return _answered(proposal, "valve_extract")

    def feedback(self) -> str:
        """Return what reflection is told of earlier verdicts: in the reference protocol, nothing."""
        return ""

    def record(self, proposal: Proposal, attempts: Sequence[Attempt] = ()) -> None:
        """Write the proposal to the ledger, also an empty one; what was withheld stays on this machine."""
        proposal = self.refreshed(proposal)  # whichever plugin extracted it
        for withheld in proposal.withheld:
            if withheld.item is not None:
                self.store.local.set_aside(withheld)
        shared = replace(proposal, withheld=tuple(replace(w, item=None) for w in proposal.withheld))
        self.store.append(Proposed(proposal=shared, attempts=tuple(note(a) for a in attempts)))
        self._tell(
            "proposed", task_id=shared.task_id, proposal_id=shared.id, merges=len(shared.merges),
            items=[f"{i.kind}: {i.name}" for i in shared.items], removes=[f"{k}: {n}" for k, n in shared.removed],
            suppressed=len(shared.suppressed), withheld=len(shared.withheld), reason=shared.reason,
        )  # fmt: skip

    def refreshed(self, proposal: Proposal) -> Proposal:
        """Return the proposal with its duplicates sorted out against the bank as it is now."""
        new, merges, suppressed = split(proposal.items, self.store.bank)
        if new == proposal.items:
            return proposal
        return replace(
            proposal,
            items=new,
            merges=proposal.merges + merges,
            suppressed=proposal.suppressed + suppressed,
            reason=proposal.reason if new else "every item is a duplicate of what the bank has now",
        )

    def pending(self) -> Proposal | None:
        """Return the proposal that waits for a verdict, brought up to date with the bank."""
        while proposal := waiting(self.store):
            fresh = self.refreshed(proposal)
            if fresh == proposal:
                return proposal
            self.record(fresh)  # it stands in for the other; when nothing is left of it, the next one's turn comes
        return None

    def validate(self, proposal: Proposal) -> Decision:
        """Ask the gate.

        Raises:
            BudgetError: a limit is reached; what ran is kept, and the same query goes on with the next run.
        """
        try:
            with self._unused(), self.guard.lend(partial(self.store.local.told, SPENDING)) as left:
                answer: Verdict | None = self.hook.valve_validate(
                    settings=limited(self.settings, left),
                    bank_dir=self.store.dir,
                    proposal=proposal,
                    observe=self._observe,
                )
        except BudgetError as e:  # it names what was left for the gate, and nobody asked for that
            raise self.guard.used_up() from e
        verdict = _answered(answer, "valve_validate")
        self.store.refresh()  # the gate may have added the baseline
        after = moves.apply(self.store.bank, proposal) if verdict.decision == "accept" else self.store.bank
        return Judged(verdict=verdict, bank_after=after.hash)

    def commit(self, proposal: Proposal, decision: Decision) -> None:
        """Write the decision; an accept is that one line. A stale one is dropped and its proposal stays pending.

        Raises:
            InfrastructureError: the verdict is indecisive; the bank stays and the run pauses.
        """
        try:
            if decision != self._last_entry():
                self.store.append(decision)
        except StaleVerdictError as e:
            self._tell("stale", proposal_id=proposal.id, reason=str(e))
            return
        self._run_ahead()  # an accept may have changed contexts
        about = {"proposal_id": proposal.id, "task_id": proposal.task_id, "version": self.store.bank.version}
        if isinstance(decision, Taken):
            self._tell("taken", **about)
            return
        verdict = decision.verdict
        self._tell(
            "verdict",
            **about,
            decision=verdict.decision,
            current_passes=verdict.current_passes,
            candidate_passes=sum(o.outcome == "resolved" for o in verdict.measured),
            needed=verdict.needed,
            net=verdict.net,
            repeated=bool(verdict.confirming),
            rollouts=verdict.ran,
            of=verdict.n_tasks * verdict.rollouts,
        )
        if verdict.decision == "indecisive":
            lost = sum(o.outcome == "errored" for o in verdict.measured)
            raise InfrastructureError(
                f"the verdict about {proposal.id} hangs on {plural(lost, 'errored rollout')}; the bank stays, "
                "and the run pauses: its next start retries only those"
            )

    @contextmanager
    def _unused(self) -> Iterator[None]:
        """Tell about rollouts of the panel run, a process of its own, that ended when its verdict was certain."""
        told = self.store.local.told
        before, self._observed = sum(1 for _ in told("rollouts")), set[tuple[str, int]]()
        cut = sum(1 for _ in told(CUT))
        try:
            yield
        finally:
            noted = islice(told("rollouts"), before, None)
            for record in (r for r in noted if r["source"] == "panel"):
                if (record["task_id"], record["ordinal"]) not in self._observed:
                    self._tell("rollout_unused", **record)
            for record in (r for r in islice(told(CUT), cut, None) if r["source"] == "panel"):
                self._tell("rollout_cut", **record)

    def _finished(self, attempt: Attempt) -> Attempt:
        self._tell("attempt_finished", **telemetry(attempt), replayed=not self.guard.ran(attempt))
        return attempt

    def _durable(self, cell: Cell) -> Attempt:
        return durable(self.guard, self.store.local, self.settings, cell, "evolve")

    def _run_ahead(self) -> None:
        """Let idle workers attempt the task that is next, and those behind it, under the bank's present contexts."""
        if self.settings.run_ahead:
            self.ahead.plan([cell for task in self._upcoming for cell in self.cells(task, self.retrieve(task))])

    def _observe(self, name: str, data: Mapping[str, Any]) -> None:
        if name in ("baseline_started", "gate_started", "confirm_started"):
            self.ahead.busy(data["rollouts"])
        elif name == "rollout_finished":
            self._observed.add((data["task_id"], data["ordinal"]))
            self.ahead.busy(data["of"] - data["done"])
        self.hook.valve_event(name=name, data=data)

    def _tell(self, event: str, **data: Any) -> None:
        self._observe(event, data)

    def _last_entry(self) -> Entry:
        *_, last = self.store.entries()
        return last


class Ungated(Steps):
    """The same run without validation: every proposal with something new in it is taken as it is.

    Source: sec:exp-setup ("VALVE without validation").
    """

    def validate(self, proposal: Proposal) -> Decision:
        """Ask nobody."""
        before = self.store.bank
        return Taken(proposal_id=proposal.id, bank_hash=before.hash, bank_after=moves.apply(before, proposal).hash)


def waiting(store: BankStore) -> Proposal | None:
    """Return the oldest proposal nothing was decided about; a task's later proposal stands in for an earlier one."""
    latest: dict[str, Proposal] = {}
    for entry in store.entries():
        if isinstance(entry, Proposed):
            latest[entry.proposal.task_id] = entry.proposal
        elif done := decided(entry):
            latest = {task: p for task, p in latest.items() if p.id != done}
    return next((p for p in latest.values() if not p.empty), None)


def _answered(value: T | None, step: str) -> T:
    if value is None:
        raise PluginError(f"no plugin answered {step}; is `valve` among the plugins of this run?")
    return value
