"""Validation: judge a proposal by paired rollouts on the panel, and stop as soon as the verdict is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import UNSET

from valve_plugin import plugins
from valve_plugin.agents import outside
from valve_plugin.bank import moves
from valve_plugin.bank.entries import UNREACHED, Baseline, EpochOpened, Judged, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import convert
from valve_plugin.config import SCRIPTED_MODEL, Settings
from valve_plugin.errors import BankError, BudgetError, HorizonError, InfrastructureError, UnjudgedError
from valve_plugin.events import (
    BaselineMeasured,
    BaselineStarted,
    ConfirmationStarted,
    Event,
    GateStarted,
    Observe,
    PanelRemeasured,
    RemeasureStarted,
    RolloutCut,
    RolloutUnused,
    ignore,
)
from valve_plugin.gate.panel_run import PanelLine, panel_outcome, panel_process, rollout_facts, rollout_finished
from valve_plugin.gate.plan import (
    Plan,
    baseline_plan,
    continued,
    deployed_share,
    fixed_panel,
    gate_plan,
    panel_settings,
    panel_tasks,
    prefix,
    reaches,
    require_pairing,
    require_solver,
    staging,
)
from valve_plugin.hookspecs import Account
from valve_plugin.records import Decision, Outcome, PanelOutcome, PanelResult, Proposal, Task, Verdict
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.rollouts.retry import Guard, limits_of, with_limits
from valve_plugin.tasks.task_set import load
from valve_plugin.theory import gate_rule
from valve_plugin.words import plural


def judge(
    settings: Settings,
    bank_dir: Path,
    proposal: Proposal,
    observe: Observe = ignore,
    account: Account | None = None,
) -> Verdict:
    """Return the gate's verdict about a proposal. The first gate of an epoch measures the current bank first.

    Appends that baseline to the ledger, never the verdict: the caller commits it.

    Args:
        settings: `tasks` names the task set the panel was chosen from.
        bank_dir: the bank; its panel is fixed and an epoch is open.
        proposal: at least one new item, not in the bank yet.
        observe: gets the events of a gate, and of the baseline before it.
        account: of the run that asks.

    Raises:
        UnjudgedError: the proposal changes no panel task's context.
        HorizonError: all queries of the epoch are used.
        BankError: no panel is fixed, no epoch is open, or another solver measured the panel.
        InfrastructureError: the baseline could not be completed; run again to retry what failed.

    Source: eq:gate, app:impl-validate.
    """
    return _Gate(settings, bank_dir, observe, account).judge(proposal)


def measure(settings: Settings, bank_dir: Path, panels: int, observe: Observe = ignore) -> None:
    """Measure the current bank again, completely and on fresh rollouts, until `panels` such measurements are recorded.

    Each is an A/A gate: a do-nothing candidate. If the epoch has no baseline, this is measured first. After an
    interruption, the next start continues.

    Args:
        settings: as for `judge`.
        bank_dir: the bank.
        panels: total number of measurements of this bank in this epoch.
        observe: gets the events of A/A measurements, and of the baseline before them.

    Raises:
        BankError: no panel is fixed, no epoch is open, or another solver measured the panel.
        InfrastructureError: a measurement could not be completed; run again to retry what failed.
    """
    _Gate(settings, bank_dir, observe, None).measure(panels)


class _PanelRun:
    """The outcomes and cost of a panel run so far."""

    def __init__(self, plan: Plan, observe: Observe) -> None:
        self.plan, self._observe = plan, observe
        self.found: dict[tuple[str, int], PanelOutcome] = {}
        self.ran, self.usd = 0, 0.0
        self.cut, self.cut_usd = 0, 0.0

    def add(self, line: PanelLine) -> None:
        """Add a rollout that counts."""
        self._pay(line)
        self.found[line.outcome.task_id, line.outcome.ordinal] = line.outcome
        self._observe(rollout_finished(line, len(self.found), len(self.plan.cells)))

    def unused(self, line: PanelLine) -> None:
        """Add the cost of a rollout that ended after the verdict was certain."""
        self._pay(line)
        self._observe(convert(line.telemetry, RolloutUnused, where="valve panel run"))

    def observe(self, event: Event) -> None:
        """Pass on an event, and count rollouts that were stopped."""
        if isinstance(event, RolloutCut):
            self.cut, self.cut_usd = self.cut + 1, self.cut_usd + event.cost_usd
        self._observe(event)

    def _pay(self, line: PanelLine) -> None:
        self.ran, self.usd = self.ran + 1, self.usd + line.telemetry.get("cost_usd", 0.0)


class _Gate:
    """The gate of one bank: its panel, plugins and budget."""

    def __init__(self, settings: Settings, bank_dir: Path, observe: Observe, account: Account | None) -> None:
        self.store: BankStore = account.store if account else BankStore.open(bank_dir)
        self.store.refresh()  # its owner may have changed it
        self.panel = fixed_panel(self.store)
        self.settings = panel_settings(settings, self.panel)
        self.observe, self.account = observe, account
        self.tasks: list[Task] = panel_tasks(self.panel, load(Path(settings.tasks)).tasks)
        self.manager = plugins.load(settings.plugins)
        self.retrieve = self.manager.hook.valve_retrieve
        self.guard = Guard(self.manager.hook.valve_attempt, limits_of(self.settings))

    def judge(self, proposal: Proposal) -> Verdict:
        if proposal.items:
            require_pairing(self.manager, self.panel)
        require_solver(self.store, self.settings)
        epoch, query = self._query(proposal)
        current = self.store.current_outcomes()
        if current is None:  # what cannot be judged is set aside before a baseline is paid
            if not reaches(self.settings, self.store.bank, self.tasks, proposal, self.retrieve):
                raise UnjudgedError(UNREACHED)
            current = self._baseline(epoch)
        plan = gate_plan(self.settings, self.store, self.tasks, proposal, self.retrieve)
        if not plan.cells:
            raise UnjudgedError(UNREACHED)
        needed = gate_rule.needed_passes(self.panel.rho, len(self.panel.tasks), self.panel.rollouts)
        passes = gate_rule.count_passes(_values(current))
        self.observe(
            GateStarted(
                proposal_id=proposal.id,
                query=query,
                needed=needed,
                current_passes=passes,
                kept=len(plan.reused),
                reused_passes=gate_rule.count_passes(_values(plan.reused)),
                rollouts=len(plan.cells),
            )
        )
        decision, outcomes = self._candidate(proposal, plan)
        confirming = None
        if decision == "accept" and epoch.conditions and epoch.conditions.confirm:
            plan = continued(plan, self.panel.rollouts)
            self.observe(ConfirmationStarted(proposal_id=proposal.id, rollouts=len(plan.cells)))
            decision, confirming = self._candidate(proposal, plan, confirm=True)
        enlarged = moves.apply(self.store.bank, proposal)
        deployed = decision == "accept" and deployed_share(self.settings, enlarged, self.tasks, plan, self.retrieve)
        return Verdict(
            proposal_id=proposal.id,
            decision=decision,
            epoch=epoch.epoch,
            query=query,
            panel_hash=self.panel.hash,
            bank_hash=self.store.bank.hash,
            pairing=self.panel.pairing,
            rho=self.panel.rho,
            n_tasks=len(self.panel.tasks),
            rollouts=self.panel.rollouts,
            needed=needed,
            current_passes=passes,
            candidate_passes=gate_rule.count_passes(_values(outcomes)),
            unknown=gate_rule.count_errored(_values(outcomes)),
            order=plan.order,
            outcomes=outcomes,
            reused=plan.reused,
            deployed=int(deployed),
            conditions=epoch.conditions,
            confirming=UNSET if confirming is None else confirming,
        )

    def measure(self, panels: int) -> None:
        require_solver(self.store, self.settings)
        epoch = self._epoch()
        if self.store.current_outcomes() is None:
            self._baseline(epoch)
        for number in range(self.store.state.remeasured + 1, panels + 1):
            plan = baseline_plan(self.settings, self.store, self.tasks, self.retrieve)
            self.observe(RemeasureStarted(rollouts=len(plan.cells), number=number, of=panels))
            result = self._complete(plan, "A/A measurement")
            self.store.append(Remeasured(epoch=epoch.epoch, result=result))
            self.observe(PanelRemeasured(passes=result.passes, rollouts=len(result.outcomes), number=number))

    def _epoch(self) -> EpochOpened:
        epoch = self.store.epoch()
        if epoch is None:
            raise BankError(f"{self.store.dir}: no epoch is open, so no horizon is declared; `valve evolve` opens one")
        return epoch

    def _query(self, proposal: Proposal) -> tuple[EpochOpened, int]:
        """Return (open epoch, number of this query in it); an undecided proposal keeps its number."""
        epoch = self._epoch()
        last = None
        for entry in self.store.entries():
            last = entry.verdict if isinstance(entry, Judged) else last
        undecided = (
            last and last.decision == "indecisive" and last.proposal_id == proposal.id and last.epoch == epoch.epoch
        )
        query = self.store.queries_used() + (0 if undecided else 1)
        if query > epoch.horizon:
            raise HorizonError(
                f"epoch {epoch.epoch} has used all {plural(epoch.horizon, 'gate query', 'gate queries')} of its "
                "horizon; continue with --new-epoch (its first gate measures the bank again, and its certificates get "
                "a smaller share of delta)"
            )
        return epoch, query

    def _baseline(self, epoch: EpochOpened) -> tuple[PanelOutcome, ...]:
        plan = baseline_plan(self.settings, self.store, self.tasks, self.retrieve)
        self.observe(BaselineStarted(rollouts=len(plan.cells)))
        result = self._complete(plan, "baseline")
        self.store.append(
            Baseline(
                epoch=epoch.epoch,
                result=result,
                solver=solver_of(self.settings),
                agent=outside.describe(self.settings) or UNSET,
                model=SCRIPTED_MODEL if self.settings.model == SCRIPTED_MODEL else UNSET,
            )
        )
        current = self.store.current_outcomes()
        assert current is not None
        passes = gate_rule.count_passes(_values(current))
        self.observe(BaselineMeasured(version=self.store.bank.version, passes=passes, rollouts=len(current)))
        return current

    def _complete(self, plan: Plan, what: str) -> PanelResult:
        """Measure the current bank by every rollout of the plan."""
        run = _PanelRun(plan, self.observe)
        self._follow(run, None, until=lambda: False)
        outcomes = prefix(plan, run.found)
        errored = gate_rule.count_errored(_values(outcomes))
        if errored or len(outcomes) < len(plan.cells):
            raise InfrastructureError(
                f"the {what} lacks {plural(len(plan.cells) - len(outcomes) + errored, 'rollout')} of "
                f"{len(plan.cells)}, {errored} of them errored; it must be complete, so the next start retries only "
                "those"
            )
        return PanelResult(bank_hash=self.store.bank.hash, outcomes=outcomes)

    def _candidate(
        self, proposal: Proposal, plan: Plan, *, confirm: bool = False
    ) -> tuple[Decision, tuple[PanelOutcome, ...]]:
        """Run the candidate's rollouts until a prefix in canonical order decides; return (decision, prefix)."""
        run = _PanelRun(plan, self.observe)
        stage = staging(self.store, plan)
        assert stage is not None  # the current bank is measured first

        def decided() -> bool:
            return self.settings.early_stop and stage(run.found)[1] is not None

        if not decided():
            self._follow(run, proposal, until=decided, confirm=confirm)
        self.store.local.write_telemetry("gates", {
            "proposal_id": proposal.id, "confirming": confirm,
            "ran": run.ran, "cut": run.cut, "cost_usd": run.usd, "cut_usd": run.cut_usd,
        })  # fmt: skip
        outcomes = prefix(plan, run.found)
        decision, length = stage(run.found)
        if length is None and len(outcomes) < len(plan.cells):
            ended = f"{len(run.found)} of {plural(len(plan.cells), 'rollout')}"
            raise InfrastructureError(f"the panel run ended after {ended}; the next start continues it")
        return decision, outcomes if length is None else outcomes[: max(0, length - len(plan.reused))]

    def _follow(
        self, run: _PanelRun, proposal: Proposal | None, *, until: Callable[[], bool], confirm: bool = False
    ) -> None:
        """Run the panel until it ends or `until` returns True: what the run's workers bring, then a panel run."""
        for line in self._brought(run.plan):
            run.add(line)
            if until():
                return
        if len(run.found) == len(run.plan.cells):
            return
        try:
            with self._lend() as settings:
                lines = panel_process(
                    settings,
                    self.store.dir,
                    proposal,
                    observe=run.observe,
                    charge=self._charge,
                    unused=run.unused,
                    confirm=confirm,
                )
                self._expect(len(run.plan.cells) - len(run.found))
                with closing(lines):
                    for line in lines:
                        run.add(line)
                        self._expect(len(run.plan.cells) - len(run.found))
                        if until():
                            break
        except BudgetError as e:  # its message is about the part of the budget that this panel run had
            raise self.guard.used_up() from e
        finally:
            self._expect(0)

    def _brought(self, plan: Plan) -> Iterator[PanelLine]:
        """Yield the rollouts that the workers of the run that asks finish."""
        cells = {(cell.task.instance_id, cell.ordinal): cell for cell in plan.cells}
        for done, replayed in self.account.finished(plan.cells) if self.account else ():
            facts = {**rollout_facts(done), "replayed": replayed}
            yield PanelLine(outcome=panel_outcome(cells[done.task_id, done.ordinal], done), telemetry=facts)

    @contextmanager
    def _lend(self) -> Iterator[Settings]:
        if self.account:
            with self.account.lend(self.settings) as settings:
                yield settings
        else:
            with self.guard.lend() as left:
                yield with_limits(self.settings, left)

    def _charge(self, usd: float, rollouts: int) -> None:
        self.guard.spend(usd, rollouts)
        if self.account:
            self.account.spend(usd, rollouts)

    def _expect(self, rollouts: int) -> None:
        if self.account:
            self.account.expect(rollouts)


def _values(outcomes: Sequence[PanelOutcome]) -> list[Outcome]:
    return [o.outcome for o in outcomes]
