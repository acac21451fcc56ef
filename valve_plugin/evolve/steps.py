"""The method's steps on one bank, as implemented by the run's plugins. The loop calls them in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pluggy
from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin import __version__, errors, events
from valve_plugin.agents.retry import listen_to_waits
from valve_plugin.bank import entries, moves
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest, digest_bytes
from valve_plugin.config import Settings, model_of
from valve_plugin.evidence.evaluations import step_tasks
from valve_plugin.evidence.summary import fallen_by_accept, verdict_lines
from valve_plugin.evolve.speculation import Extraction, Key, Prospect, Speculation, Waste, Work, key_of
from valve_plugin.extract import ask
from valve_plugin.extract.digest import digests
from valve_plugin.extract.duplicates import fit
from valve_plugin.gate import plan
from valve_plugin.gate.panel_run import rollout_facts, run_durably
from valve_plugin.plugins import send
from valve_plugin.records import Attempt, Bank, Context, Outcome, Proposal, Source, Task, Verdict
from valve_plugin.rollouts.attempt import rollout_key
from valve_plugin.rollouts.retry import Guard, iterate_results, limits_of, with_limits
from valve_plugin.rollouts.workers import Workers
from valve_plugin.tasks.names import name_patches, put_names
from valve_plugin.tasks.task_set import load
from valve_plugin.words import plural

ATTEMPTS = 3
"""Default number of attempts per task: R of tab:impl-config."""

_EXTRACTING = ("model_class", "model_kwargs", "protocol", "digest_tokens", "review", "plugins", "condition", "seed")
"""Settings that an extraction depends on, besides its model."""

T = TypeVar("T")


class Extracted(msgspec.Struct, frozen=True):
    """What an extraction gave."""

    proposal: Proposal
    answers: Sequence[Mapping[str, str]] = ()
    """What the model wrote; for this machine only."""


class Steps:
    """One run on one bank. Its state is read from the ledger, so a new process continues where another one ended."""

    def __init__(self, manager: pluggy.PluginManager, store: BankStore, settings: Settings) -> None:
        self.hook = manager.hook
        self.store = store
        settings = plan.panel_settings(settings, plan.fixed_panel(store))
        self.settings = replace(settings, attempts=settings.attempts or ATTEMPTS)
        self.guard = Guard(self.hook.valve_attempt, limits_of(settings), observe=self._tell)
        self.ahead = Speculation(self._early, settings.workers, settings.speculate)
        self._take: Callable[[int], Collection[Key]] | None = None
        self._outcomes: dict[Key, Outcome | None] = {}
        self._extracted: dict[str, Extracted | None] = {}
        self._members: Sequence[Task] = ()
        self._tasks: Mapping[str, Task] = {}
        self._answers: Sequence[Mapping[str, str]] = ()
        self._told: set[Key] = set()
        """Rollouts whose end was told: a run may stop before its ledger rests on them."""

    @contextmanager
    def speculating(self, foresee: Callable[[], Prospect], take: Callable[[int], Collection[Key]]) -> Iterator[None]:
        """Let idle workers do what the loop may ask for, until the block ends.

        Args:
            foresee: says what that is.
            take: takes the ledger as it is now, and the stream from a task of this number on; returns the rollouts that
                new entries rest on.
        """
        self._take = take
        try:
            self.panel_members()  # now: workers, which ask for them as well, must not share the store
            with self.ahead.begun(foresee, self.guard.affords):
                self._go_on()
                yield
        finally:
            self._take = None
            for cell in self.ahead.unasked:  # what was paid is told, whatever becomes of it
                if key_of(cell) not in self._told and (unused := self.journaled(cell)):
                    self._tell(events.RolloutUnused(**rollout_facts(unused)))
            if (waste := self.ahead.waste) != Waste():
                self.store.local.write_telemetry("speculation", waste._asdict())

    def remaining(self, stream: Sequence[Task]) -> Iterator[Task]:
        """Yield the stream's tasks after the last mixed one in the ledger, until enough tasks were mixed.

        Tasks that are not mixed leave no entry, so after the last mixed one they are repeated, from the journal.
        """
        ids, head, mixed = [task.instance_id for task in stream], "", 0
        for number in range(stream_position(self.store, ids), len(stream)):
            if self.store.head != head:
                head, mixed = self.store.head, len(mixed_tasks(self.store, ids))
            if mixed >= self.settings.max_mixed:
                return
            title = _named([stream[number]]).get(ids[number], "")
            self._tell(events.TaskStarted(task_id=ids[number], title=title, position=number + 1, of=len(ids)))
            self._go_on(number)
            yield stream[number]

    def retrieve(self, task: Task) -> Context:
        """Return the task's context from the current bank, for all its attempts."""
        return self._retrieve(
            settings=self.settings, bank=self.store.bank, task_id=task.instance_id, issue=task.problem_statement
        )

    def _retrieve(self, *, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        context: Context | None = self.hook.valve_retrieve(settings=settings, bank=bank, task_id=task_id, issue=issue)
        return _answered(context, "valve_retrieve")

    def cells(self, task: Task, context: Context, number: int = 0) -> list[plan.PlannedRollout]:
        """Return the planned attempts at a task with a context, each with its ordinal."""
        first = self.store.state.ordinals.get((task.instance_id, context.hash), 0)
        return [plan.PlannedRollout(task, context, first + n) for n in range(number or self.settings.attempts)]

    def attempt(self, task: Task, context: Context) -> list[Attempt]:
        """Run all attempts at a task, and count the context's items as used.

        Raises:
            InfrastructureError: an attempt is errored after all retries; the run pauses, because this is not a failure.
            BudgetError: a limit is reached; finished attempts are kept.
        """
        attempts = self._attempts(self.cells(task, context), lambda a: False)
        self.store.local.count_use(context)
        passed = sum(a.outcome == "resolved" for a in attempts)
        title = _named([task]).get(task.instance_id, "")
        self._tell(events.TaskFinished(task_id=task.instance_id, title=title, passed=passed, attempts=len(attempts)))
        return attempts

    def _attempts(self, cells: Sequence[plan.PlannedRollout], last: Callable[[Attempt], bool]) -> list[Attempt]:
        """Run attempts at one task, to the last that counts, whatever became of those after it; raises as `attempt`."""
        found: dict[Any, Attempt] = {}
        stopped: errors.BudgetError | None = None
        with Workers(min(self.settings.workers, len(cells))) as executor:
            jobs = [executor.submit(partial(self.ahead.first, cell, self._durable)) for cell in cells]
            try:
                for job, attempt in iterate_results(jobs):
                    found[job] = self._finished(attempt)
            except errors.BudgetError as e:
                stopped = e
        ended = [found[job] for job in takewhile(lambda j: j in found and found[j].outcome != "errored", jobs)]
        if number := next((n for n, a in enumerate(ended, 1) if last(a)), 0):
            self.ahead.used([key_of(cell) for cell in cells])
            return ended[:number]
        if stopped:
            raise stopped
        self.guard.check()
        attempts = list(found.values())
        lost = [a for a in attempts if a.outcome == "errored"]
        if lost:
            raise errors.InfrastructureError(
                f"{len(lost)} of {plural(len(attempts), 'attempt')} at {lost[0].task_id} hit a failure of host or "
                f"provider ({lost[0].reason}); the run pauses, and its next start retries only those"
            )
        self.ahead.used([key_of(cell) for cell in cells])
        return attempts

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts for reflection after a task: all of them if they are mixed, else none."""
        return attempts if mixed(attempts) else ()

    def extract(self, issue: str, attempts: Sequence[Attempt]) -> Proposal:
        """Contrast the attempts into a proposal."""
        self.guard.left()
        # a call may take minutes
        self._tell(events.ExtractionStarted(task_id=attempts[0].task_id, attempts=len(attempts)))
        work = self.extraction(issue, attempts)
        done = self.ahead.first(work, self._reflect)
        self._extracted.pop(work.key, None)  # the ledger will have it
        self._answers = done.answers
        return done.proposal

    def extraction(self, issue: str, attempts: Sequence[Attempt]) -> Extraction:
        """Return an extraction with the key that its result is kept under, from which it is never made again."""
        bank, feedback, settings = self.store.bank, self.feedback(), self.settings
        model = model_of(settings)
        how = [__version__, model, *(getattr(settings, name) for name in _EXTRACTING)]
        return Extraction(digest([how, bank.hash, issue, list(attempts), feedback]), bank, issue, attempts, feedback)

    def extracted_before(self, work: Extraction) -> Extracted | None:
        """Return the result of an extraction that was made already."""
        if work.key not in self._extracted:
            self._extracted[work.key] = self.store.local.extraction_get(work.key, Extracted)
        return self._extracted[work.key]

    def _reflect(self, work: Extraction) -> Extracted:
        """Return the result of an extraction, from this machine if it was made before."""
        if known := self.extracted_before(work):
            return known
        kept = [kept_trajectory(self.store, a) for a in work.attempts]
        shown = digests(kept, work.attempts, tokens=self.settings.digest_tokens)
        with ask.count_calls() as calls, listen_to_waits(self.guard.report):
            proposal: Proposal | None = self.hook.valve_extract(
                settings=self.settings, bank=work.bank, issue=work.issue, attempts=work.attempts, trajectories=shown,
                feedback=work.feedback,
            )  # fmt: skip
        for call in calls:
            self.guard.spend(call.cost_usd or 0.0, 0)
            self.store.local.write_telemetry("calls", call.facts)
            self._tell(events.ModelCalled(**call.facts))
        answers = [{"for": call.source, "model": call.model, "answer": call.answer} for call in calls]
        done = Extracted(_answered(proposal, "valve_extract"), answers)
        self.store.local.extraction_put(work.key, done)
        self._extracted[work.key] = done
        return done

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
        self._answers = ()
        before = waiting(self.store)
        entry = entries.Proposed(proposal=shared, attempts=tuple(map(attempt_note, attempts)))
        self.store.append(entry)
        left = before.items if before and entries.why_aside(entry) else ()
        self._tell(
            events.ProposalRecorded(
                task_id=shared.task_id,
                proposal_id=shared.id,
                items=tuple(f"{i.kind}: {i.name}" for i in shared.items),
                removes=tuple(f"{kind}: {name}" for kind, name in shared.removed),
                merges=len(shared.merges),
                suppressed=len(shared.suppressed),
                withheld=len(shared.withheld),
                reason=entries.why_aside(entry) or shared.reason,
                aside=tuple(f"{i.kind}: {i.name}" for i in left),
            )
        )
        self._go_on()

    def refreshed(self, proposal: Proposal) -> Proposal:
        """Return the proposal with duplicates handled against the present bank."""
        found = fit(proposal, self.store.bank)
        if found == proposal or not found.empty:
            return found
        return replace(found, reason="every note is a duplicate of what the bank has now")

    def pending(self) -> Proposal | None:
        """Return the proposal that waits for a verdict, updated to the present bank, or None."""
        while proposal := waiting(self.store):
            fresh = self.refreshed(proposal)
            if fresh == proposal:
                return proposal
            self.record(fresh)  # it replaces the old one; if it is empty, the next proposal follows
        return None

    def screening(self, proposal: Proposal) -> list[plan.PlannedRollout]:
        """Return the attempts that screen a proposal: at the task it was learned from, with it (`screen_context`).

        None in the paper's protocol, where no query is left, and for what was not learned from attempts at a task of
        the task set. Nor where no panel task's context changes, so that no gate is asked; at a panel task, whose
        attempts the gate would take for its own; where that task's context stays the same, so that they would say
        nothing about the proposal; and where a proposal of this task was judged before: the ledger does not name the
        attempts of a screen that was passed, so they would count twice.
        """
        epoch, name = self.store.epoch(), proposal.task_id
        fresh = epoch and epoch.conditions and epoch.conditions.fresh and self.store.queries_used() < epoch.horizon
        if not fresh or not self.settings.screen or not proposal.items:
            return []
        made = [e for e in _proposals(self.store) if e.proposal.task_id == name]
        asked = {e.verdict.proposal_id for e in self.store.entries() if isinstance(e, entries.Judged)}
        attempted = any(n.task_id == name for e in made for n in e.attempts)
        task, panel = (
            self.tasks().get(name),
            plan.panel_tasks(plan.fixed_panel(self.store), list(self.tasks().values())),
        )
        if task is None or task in panel or asked & {e.proposal.id for e in made} or not attempted:
            return []
        settings, bank, retrieve = self.settings, self.store.bank, self._retrieve
        given = plan.screen_context(settings, bank, task, proposal, retrieve)
        changed = given.hash != self.retrieve(task).hash and plan.reaches(settings, bank, panel, proposal, retrieve)
        return self.cells(task, given, settings.screen) if changed else []

    def screened(self, proposal: Proposal) -> bool:
        """Screen a proposal; return whether it passed. If not it is set aside, with the attempts up to the failure.

        To pass is no evidence, and only saves gates: it says nothing about the panel, so it is no query.

        Raises:
            InfrastructureError, BudgetError: as `attempt`.
        """
        cells = self.screening(proposal)
        if cells:
            self._tell(events.ScreenStarted(task_id=proposal.task_id, proposal_id=proposal.id, attempts=len(cells)))
        done: list[Attempt] = []
        while cells[len(done) :]:
            done += self._attempts(cells[len(done) :][: self.settings.workers], lambda a: a.outcome == "unresolved")
            if done[-1].outcome == "unresolved":
                self.record(aside(proposal, entries.FAILED_AGAIN), done)
                return False
        return True

    def validate(self, proposal: Proposal) -> entries.DecisionEntry | None:
        """Screen it, then ask the gate. What fails its screen or no panel task retrieves is set aside: then None.

        That uses no query: neither depends on an outcome of the panel, so nobody learns anything about it.

        Raises:
            BudgetError: a limit is reached; what ran is kept, and the same query goes on with the next run.
        """
        if not self.screened(proposal):
            return None
        try:
            answer: Verdict | None = self.hook.valve_validate(
                settings=with_limits(self.settings, self.guard.left()),
                bank_dir=self.store.dir,
                proposal=proposal,
                observe=self._observe,
                account=self,
            )
        except errors.UnjudgedError as e:
            self.store.refresh()  # the gate may have added the baseline
            self.record(aside(proposal, str(e)))
            return None
        except (
            errors.BudgetError
        ) as e:  # its message names the part of the budget that the gate had; the person set the whole
            raise self.guard.used_up() from e
        verdict = _answered(answer, "valve_validate")
        self.store.refresh()  # the gate may have added the baseline
        after = moves.apply(self.store.bank, proposal) if verdict.decision == "accept" else self.store.bank
        return entries.Judged(verdict=verdict, bank_after=after.hash)

    def commit(self, proposal: Proposal, decision: entries.DecisionEntry) -> None:
        """Write the decision to the ledger. A stale decision is dropped, and its proposal stays pending.

        Raises:
            InfrastructureError: the verdict is indecisive; the bank stays and the run pauses.
        """
        try:
            if decision != self._last_entry():
                self.store.append(decision)
        except errors.StaleVerdictError as e:
            self._tell(events.VerdictStale(proposal_id=proposal.id, reason=str(e)))
            return
        self._go_on()
        about: dict[str, Any] = {
            "proposal_id": proposal.id,
            "task_id": proposal.task_id,
            "version": self.store.bank.version,
        }
        if isinstance(decision, entries.Taken):
            self._tell(events.ProposalTaken(**about))
            return
        verdict = decision.verdict
        worse = fallen_by_accept(self.store.entries()).get(proposal.id, ()) if verdict.decision == "accept" else ()
        names = _named(self.panel_members()) if worse else {}
        self._tell(_verdict_event(verdict, worse=tuple(put_names(line, names) for line in worse), **about))
        if verdict.decision == "accept":
            self._tell(events.ProposalAccepted(**about))
        if verdict.decision == "indecisive":
            lost = sum(o.outcome == "errored" for o in verdict.measured)
            raise errors.InfrastructureError(
                f"the verdict about {proposal.id} hangs on {plural(lost, 'errored rollout')}; the bank stays, "
                "and the run pauses: its next start retries only those"
            )

    def _finished(self, attempt: Attempt) -> Attempt:
        self.store.local.use(attempt)  # an idle worker may have made it
        self._told.add((attempt.task_id, attempt.context_hash, attempt.ordinal))
        self._tell(events.AttemptFinished(**rollout_facts(attempt), replayed=not self.guard.ran(attempt)))
        return attempt

    def _durable(self, cell: plan.PlannedRollout) -> Attempt:
        return self._noted(cell, run_durably(self.guard, self.store.local, self.settings, cell, "evolve", self._tell))

    def _early(self, work: Work) -> Attempt | Extracted:
        """Do work that may not be needed; where it fails, the loop will try again if it comes to it."""
        if isinstance(work, Extraction):
            self.guard.left()
            return self._reflect(work)
        source: Source = "panel" if work.task in self.panel_members() else "evolve"
        done = run_durably(self.guard.once, self.store.local, self.settings, work, source, self._tell, early=True)
        return self._noted(work, done)

    def _noted(self, cell: plan.PlannedRollout, attempt: Attempt) -> Attempt:
        if attempt.outcome in ("resolved", "unresolved"):
            self._outcomes[key_of(cell)] = attempt.outcome
        return attempt

    def known(self, cell: plan.PlannedRollout, key: Key) -> Outcome | None:
        """Return the outcome of a rollout, of this key, that has ended; None if it has not, or errored."""
        if key not in self._outcomes:
            self._outcomes[key] = None
            if found := self.journaled(cell):
                self._noted(cell, found)
        return self._outcomes[key]

    def journaled(self, cell: plan.PlannedRollout) -> Attempt | None:
        """Return a rollout that has ended, or None."""
        return self.store.local.journal_get(rollout_key(self.settings, *cell))

    def panel_members(self) -> Sequence[Task]:
        """Return the panel's tasks."""
        if not self._members:
            self._members = plan.panel_tasks(plan.fixed_panel(self.store), list(self.tasks().values()))
        return self._members

    def tasks(self) -> Mapping[str, Task]:
        """Return the task set's tasks by id."""
        if not self._tasks:
            self._tasks = load(Path(self.settings.tasks)).by_id
        return self._tasks

    @property
    def judges_here(self) -> bool:
        """Whether the gate is VALVE's own: the last hook is asked first."""
        return [one.plugin_name for one in self.hook.valve_validate.get_hookimpls()[-1:]] == ["valve"]

    def _go_on(self, number: int = 0) -> None:
        """Tell idle workers where the loop is."""
        if self._take and self.ahead.active:
            self.ahead.step(partial(self._taken, self._take, number))

    def _taken(self, take: Callable[[int], Collection[Key]], number: int) -> Collection[Key]:
        used = take(number)
        for key in used:
            self._outcomes.pop(key, None)  # its ordinal is used, so nobody will look for it again
        return used

    def _observe(self, event: events.Event | str, data: Mapping[str, Any] | None = None) -> None:
        """Pass on an event of the gate; a plugin may give it as name and data."""
        event = events.event_of(event, data or {}) if isinstance(event, str) else event
        if isinstance(event, events.RolloutFinished) and event.outcome in ("resolved", "unresolved"):
            self._outcomes[event.task_id, event.context_hash, event.ordinal] = event.outcome
        self._tell(event)

    def spend(self, usd: float, rollouts: int) -> None:
        """Charge the run's budget; see `hookspecs.Account`."""
        self.guard.spend(usd, rollouts)

    @contextmanager
    def lend(self, settings: Settings) -> Iterator[Settings]:
        """Lend the rest of the budget; see `hookspecs.Account`."""
        with self.guard.lend() as left:
            yield with_limits(settings, left)

    def expect(self, rollouts: int) -> None:
        """Leave workers to the gate; see `hookspecs.Account`."""
        self.ahead.outside(rollouts)

    def finished(self, cells: Sequence[tuple[Task, Context, int]]) -> Iterator[tuple[Attempt, bool]]:
        """Yield what idle workers finish of a gate's rollouts; see `hookspecs.Account`."""
        for cell in self.ahead.finished([plan.PlannedRollout(*cell) for cell in cells], self.known):
            if (attempt := self.journaled(cell)) is None:  # though its outcome is known
                raise errors.TaskError(
                    f"{cell[0].instance_id}: the task changed while the run went on; put its task set back as it was, "
                    "and start the run again: nothing is lost"
                )
            self.store.local.use(attempt)
            self._told.add(key_of(cell))
            yield attempt, not self.guard.ran(attempt)

    def _tell(self, event: events.Event) -> None:
        send(self.hook, event)

    def _last_entry(self) -> entries.Entry:
        *_, last = self.store.entries()
        return last


class Ungated(Steps):
    """The same run without validation: every proposal with something new in it is taken as it is.

    Source: sec:exp-setup ("VALVE without validation").
    """

    def validate(self, proposal: Proposal) -> entries.DecisionEntry:
        """Accept it without asking the gate."""
        before = self.store.bank
        return entries.Taken(
            proposal_id=proposal.id, bank_hash=before.hash, bank_after=moves.apply(before, proposal).hash
        )


def waiting(store: BankStore) -> Proposal | None:
    """Return the oldest undecided proposal, or None."""
    return next(iter(entries.undecided(store.entries())), None)


def aside(proposal: Proposal, reason: str) -> Proposal:
    """Return what replaces a proposal that is set aside."""
    return Proposal(task_id=proposal.task_id, reason=f"{proposal.id} {reason}")


def _verdict_event(verdict: Verdict, **about: Any) -> events.VerdictReached:
    return events.VerdictReached(
        **about,
        decision=verdict.decision,
        current_passes=verdict.current_passes,
        candidate_passes=sum(o.outcome == "resolved" for o in verdict.measured),
        needed=verdict.needed,
        net=verdict.net,
        repeated=bool(verdict.confirming),
        rollouts=verdict.ran,
        of=verdict.n_tasks * verdict.rollouts - len(verdict.reused),
    )


def _named(tasks: Sequence[Task]) -> dict[str, str]:
    return name_patches({task.instance_id: task.patch for task in tasks}, ids=True)


def _answered(value: T | None, step: str) -> T:
    if value is None:
        raise errors.PluginError(f"no plugin answered {step}; is `valve` among the plugins of this run?")
    return value


def mixed(attempts: Sequence[Attempt]) -> bool:
    """Whether some attempts passed and some failed.

    Source: eq:impl-mixed.
    """
    passed = sum(a.outcome == "resolved" for a in attempts)
    return 0 < passed < len(attempts)


def attempt_note(attempt: Attempt) -> entries.AttemptNote:
    """Return the ledger's note about an attempt from which a proposal was extracted."""
    return entries.AttemptNote(
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
    except errors.BankError:
        return b""


def stream_position(store: BankStore, ids: Sequence[str]) -> int:
    """Return the number of finished tasks of the stream: all up to the last one with a proposal."""
    places = {task: number for number, task in enumerate(ids, start=1)}
    return max((places.get(note.task_id, 0) for e in _proposals(store) for note in e.attempts), default=0)


def mixed_tasks(store: BankStore, ids: Sequence[str]) -> set[str]:
    """Return the stream's tasks that count as evolution steps."""
    return {task for e in _proposals(store) for task in step_tasks(e)} & set(ids)


def _proposals(store: BankStore) -> Iterator[entries.Proposed]:
    return (e for e in store.entries() if isinstance(e, entries.Proposed))
