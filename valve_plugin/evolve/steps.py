"""The method's steps on one bank, as implemented by the run's plugins. The loop calls them in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pluggy
from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.agents.retry import listen_to_waits
from valve_plugin.bank import moves
from valve_plugin.bank.entries import AttemptNote, DecisionEntry, Entry, Judged, Proposed, Taken, undecided
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest_bytes
from valve_plugin.config import Settings
from valve_plugin.errors import (
    BankError,
    BudgetError,
    InfrastructureError,
    PluginError,
    StaleVerdictError,
    UnjudgedError,
)
from valve_plugin.events import (
    AttemptFinished,
    Event,
    ExtractionStarted,
    ModelCalled,
    ProposalAccepted,
    ProposalRecorded,
    ProposalTaken,
    TaskFinished,
    TaskStarted,
    VerdictReached,
    VerdictStale,
    event_of,
)
from valve_plugin.evidence.evaluations import step_tasks
from valve_plugin.evidence.summary import fallen_by_accept, verdict_lines
from valve_plugin.evolve.speculation import Speculation
from valve_plugin.extract import ask
from valve_plugin.extract.digest import digests
from valve_plugin.extract.duplicates import fit
from valve_plugin.gate.panel import rollout_facts, run_durably
from valve_plugin.gate.plan import PlannedRollout, fixed_panel, panel_settings
from valve_plugin.plugins import send
from valve_plugin.records import Attempt, Context, Proposal, Task, Verdict
from valve_plugin.rollouts.retry import Guard, iterate_results, limits_of, with_limits
from valve_plugin.rollouts.workers import Workers
from valve_plugin.words import plural

ATTEMPTS = 3
"""Default number of attempts per task: R of tab:impl-config."""

T = TypeVar("T")


class Steps:
    """One run on one bank. Its state is read from the ledger, so a new process continues where another one ended."""

    def __init__(self, manager: pluggy.PluginManager, store: BankStore, settings: Settings) -> None:
        self.hook = manager.hook
        self.store = store
        settings = panel_settings(settings, fixed_panel(store))
        self.settings = replace(settings, attempts=settings.attempts or ATTEMPTS)
        self.guard = Guard(self.hook.valve_attempt, limits_of(settings), observe=self._tell)
        self.ahead = Speculation(self._durable, settings.workers)
        self._upcoming: Sequence[Task] = ()
        self._answers: list[dict[str, str]] = []

    def remaining(self, stream: Sequence[Task]) -> Iterator[Task]:
        """Yield the stream's tasks after the last mixed one in the ledger, until enough tasks were mixed.

        Tasks that are not mixed leave no entry, so after the last mixed one they are repeated, from the journal.
        """
        ids = [task.instance_id for task in stream]
        for number in range(stream_position(self.store, ids), len(stream)):
            if len(mixed_tasks(self.store, ids)) >= self.settings.max_mixed:
                return
            self._tell(TaskStarted(task_id=ids[number], position=number + 1, of=len(ids)))
            self._upcoming = stream[number : number + 1 + self.settings.run_ahead]
            self._run_ahead()
            yield stream[number]

    def retrieve(self, task: Task) -> Context:
        """Return the task's context from the current bank, for all its attempts."""
        context: Context | None = self.hook.valve_retrieve(
            settings=self.settings, bank=self.store.bank, task_id=task.instance_id, issue=task.problem_statement
        )
        return _answered(context, "valve_retrieve")

    def cells(self, task: Task, context: Context) -> list[PlannedRollout]:
        """Return the planned attempts at a task with a context, each with its ordinal."""
        first = self.store.ordinals(task.instance_id, context.hash)
        return [PlannedRollout(task, context, first + n) for n in range(self.settings.attempts)]

    def attempt(self, task: Task, context: Context) -> list[Attempt]:
        """Run all attempts at a task, and count the context's items as used.

        Raises:
            InfrastructureError: an attempt is errored after all retries; the run pauses, because this is not a failure.
            BudgetError: a limit is reached; finished attempts are kept.
        """
        cells = self.cells(task, context)
        self.ahead.busy(len(cells))
        with Workers(min(self.settings.workers, len(cells))) as executor:
            jobs = [executor.submit(partial(self.ahead.first, cell)) for cell in cells]
            attempts = [self._finished(attempt) for _, attempt in iterate_results(jobs)]
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
        self._tell(TaskFinished(task_id=task.instance_id, passed=passed, attempts=len(attempts)))
        return attempts

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts for reflection after a task: all of them if they are mixed, else none."""
        return attempts if mixed(attempts) else ()

    def extract(self, issue: str, attempts: Sequence[Attempt]) -> Proposal:
        """Contrast the attempts into a proposal."""
        self.guard.left()
        self._tell(ExtractionStarted(task_id=attempts[0].task_id, attempts=len(attempts)))  # a call may take minutes
        kept = [kept_trajectory(self.store, a) for a in attempts]
        shown = digests(kept, attempts, tokens=self.settings.digest_tokens)
        with ask.count_calls() as calls, listen_to_waits(self.guard.report):
            proposal: Proposal | None = self.hook.valve_extract(
                settings=self.settings, bank=self.store.bank, issue=issue, attempts=attempts, trajectories=shown,
                feedback=self.feedback(),
            )  # fmt: skip
        for call in calls:
            self.guard.spend(call.cost_usd or 0.0, 0)
            self.store.local.write_telemetry("calls", call.facts)
            self._tell(ModelCalled(**call.facts))
        self._answers = [{"for": call.source, "model": call.model, "answer": call.answer} for call in calls]
        return _answered(proposal, "valve_extract")

    def feedback(self) -> str:
        """Return a text about earlier verdicts for reflection; empty in the paper's protocol."""
        return "" if self.settings.protocol == "paper" else verdict_lines(self.store.entries())

    def record(self, proposal: Proposal, attempts: Sequence[Attempt] = ()) -> None:
        """Write the proposal to the ledger, even if it is empty; withheld items are kept only on this machine."""
        proposal = self.refreshed(proposal)  # whichever plugin extracted it
        for withheld in proposal.withheld:
            if withheld.item is not None:
                self.store.local.add_withheld(withheld)
        shared = replace(proposal, withheld=tuple(replace(w, item=None, reason=UNSET) for w in proposal.withheld))
        self.store.local.keep_answers(shared.id, self._answers)
        self._answers = []
        self.store.append(Proposed(proposal=shared, attempts=tuple(attempt_note(a) for a in attempts)))
        self._tell(
            ProposalRecorded(
                task_id=shared.task_id,
                proposal_id=shared.id,
                items=tuple(f"{i.kind}: {i.name}" for i in shared.items),
                removes=tuple(f"{kind}: {name}" for kind, name in shared.removed),
                merges=len(shared.merges),
                suppressed=len(shared.suppressed),
                withheld=len(shared.withheld),
                reason=shared.reason,
            )
        )

    def refreshed(self, proposal: Proposal) -> Proposal:
        """Return the proposal with duplicates handled against the present bank."""
        found = fit(proposal, self.store.bank)
        if found == proposal or not found.empty:
            return found
        return replace(found, reason="every item is a duplicate of what the bank has now")

    def pending(self) -> Proposal | None:
        """Return the proposal that waits for a verdict, updated to the present bank, or None."""
        while proposal := waiting(self.store):
            fresh = self.refreshed(proposal)
            if fresh == proposal:
                return proposal
            self.record(fresh)  # it replaces the old one; if it is empty, the next proposal follows
        return None

    def validate(self, proposal: Proposal) -> DecisionEntry | None:
        """Ask the gate. A proposal that no panel task retrieves is set aside, with the reason: then None.

        That uses no query: it depends on the bank and the proposal alone, on no outcome, so nobody learns anything
        about the panel from it.

        Raises:
            BudgetError: a limit is reached; what ran is kept, and the same query goes on with the next run.
        """
        try:
            with self.guard.lend() as left:
                answer: Verdict | None = self.hook.valve_validate(
                    settings=with_limits(self.settings, left),
                    bank_dir=self.store.dir,
                    proposal=proposal,
                    observe=self._observe,
                    account=self,
                )
        except UnjudgedError as e:
            self.store.refresh()  # the gate may have added the baseline
            self.record(Proposal(task_id=proposal.task_id, reason=f"{proposal.id} {e}"))  # replaces it
            return None
        except BudgetError as e:  # its message names the part of the budget that the gate had; the person set the whole
            raise self.guard.used_up() from e
        verdict = _answered(answer, "valve_validate")
        self.store.refresh()  # the gate may have added the baseline
        after = moves.apply(self.store.bank, proposal) if verdict.decision == "accept" else self.store.bank
        return Judged(verdict=verdict, bank_after=after.hash)

    def commit(self, proposal: Proposal, decision: DecisionEntry) -> None:
        """Write the decision to the ledger. A stale decision is dropped, and its proposal stays pending.

        Raises:
            InfrastructureError: the verdict is indecisive; the bank stays and the run pauses.
        """
        try:
            if decision != self._last_entry():
                self.store.append(decision)
        except StaleVerdictError as e:
            self._tell(VerdictStale(proposal_id=proposal.id, reason=str(e)))
            return
        self._run_ahead()  # an accept may have changed contexts
        about: dict[str, Any] = {
            "proposal_id": proposal.id,
            "task_id": proposal.task_id,
            "version": self.store.bank.version,
        }
        if isinstance(decision, Taken):
            self._tell(ProposalTaken(**about))
            return
        verdict = decision.verdict
        worse = fallen_by_accept(self.store.entries()).get(proposal.id, ()) if verdict.decision == "accept" else ()
        self._tell(_verdict_event(verdict, worse=worse, **about))
        if verdict.decision == "accept":
            self._tell(ProposalAccepted(**about))
        if verdict.decision == "indecisive":
            lost = sum(o.outcome == "errored" for o in verdict.measured)
            raise InfrastructureError(
                f"the verdict about {proposal.id} hangs on {plural(lost, 'errored rollout')}; the bank stays, "
                "and the run pauses: its next start retries only those"
            )

    def _finished(self, attempt: Attempt) -> Attempt:
        self._tell(AttemptFinished(**rollout_facts(attempt), replayed=not self.guard.ran(attempt)))
        return attempt

    def _durable(self, cell: PlannedRollout) -> Attempt:
        return run_durably(self.guard, self.store.local, self.settings, cell, "evolve")

    def _run_ahead(self) -> None:
        """Let idle workers attempt the next tasks with the present contexts."""
        if self.settings.run_ahead:
            self.ahead.plan([cell for task in self._upcoming for cell in self.cells(task, self.retrieve(task))])

    def _observe(self, event: Event | str, data: Mapping[str, Any] | None = None) -> None:
        """Pass on an event of the gate; a plugin may give it as name and data."""
        self._tell(event_of(event, data or {}) if isinstance(event, str) else event)

    def spend(self, usd: float, rollouts: int) -> None:
        """Charge the run's budget; see `hookspecs.Account`."""
        self.guard.spend(usd, rollouts)

    def expect(self, rollouts: int) -> None:
        """Leave workers to the gate; see `hookspecs.Account`."""
        self.ahead.busy(rollouts)

    def _tell(self, event: Event) -> None:
        send(self.hook, event)

    def _last_entry(self) -> Entry:
        *_, last = self.store.entries()
        return last


class Ungated(Steps):
    """The same run without validation: every proposal with something new in it is taken as it is.

    Source: sec:exp-setup ("VALVE without validation").
    """

    def validate(self, proposal: Proposal) -> DecisionEntry:
        """Accept it without asking the gate."""
        before = self.store.bank
        return Taken(proposal_id=proposal.id, bank_hash=before.hash, bank_after=moves.apply(before, proposal).hash)


def waiting(store: BankStore) -> Proposal | None:
    """Return the oldest undecided proposal, or None."""
    return next(iter(undecided(store.entries())), None)


def _verdict_event(verdict: Verdict, **about: Any) -> VerdictReached:
    return VerdictReached(
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


def _answered(value: T | None, step: str) -> T:
    if value is None:
        raise PluginError(f"no plugin answered {step}; is `valve` among the plugins of this run?")
    return value


def mixed(attempts: Sequence[Attempt]) -> bool:
    """Whether some attempts passed and some failed.

    Source: eq:impl-mixed.
    """
    passed = sum(a.outcome == "resolved" for a in attempts)
    return 0 < passed < len(attempts)


def attempt_note(attempt: Attempt) -> AttemptNote:
    """Return the ledger's note about an attempt from which a proposal was extracted."""
    return AttemptNote(
        task_id=attempt.task_id,
        ordinal=attempt.ordinal,
        outcome=attempt.outcome,
        context_hash=attempt.context_hash,
        patch_hash=digest_bytes(attempt.patch.encode("utf-8", "surrogatepass")),
    )


def kept_trajectory(store: BankStore, attempt: Attempt) -> bytes:
    """Return the stored trajectory of an attempt, or b"" if it is lost (patch and outcome remain usable)."""
    try:
        return store.local.trajectory(attempt)
    except BankError:
        return b""


def stream_position(store: BankStore, ids: Sequence[str]) -> int:
    """Return the number of finished tasks of the stream: all up to the last one with a proposal."""
    return max((ids.index(n.task_id) + 1 for e in _proposals(store) for n in e.attempts if n.task_id in ids), default=0)


def mixed_tasks(store: BankStore, ids: Sequence[str]) -> set[str]:
    """Return the stream's tasks that count as evolution steps."""
    return {task for e in _proposals(store) for task in step_tasks(e.attempts)} & set(ids)


def _proposals(store: BankStore) -> Iterator[Proposed]:
    return (e for e in store.entries() if isinstance(e, Proposed))
