"""Validate: judge a proposal by paired rollouts on the panel, and stop asking as soon as the answer is certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from msgspec import UNSET

from valve_plugin import plugins
from valve_plugin.bank import moves
from valve_plugin.bank.entries import Baseline, EpochOpened, Judged, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import BankError, BudgetError, HorizonError, InfrastructureError
from valve_plugin.gate.guard import Guard, Observe, limited, limits_of
from valve_plugin.gate.panel import Line
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
    require_pairing,
    staging,
)
from valve_plugin.gate.rollout import SPENDING
from valve_plugin.gate.solver import require_solver
from valve_plugin.gate.stream import stream
from valve_plugin.gate.took import took
from valve_plugin.records import Conditions, Decision, Outcome, PanelOutcome, PanelResult, Proposal, Task, Verdict
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.tasks.load import load
from valve_plugin.theory import gate
from valve_plugin.words import plural


def judge(
    settings: Settings, bank_dir: Path, proposal: Proposal, observe: Observe = lambda name, data: None
) -> Verdict:
    """Return the gate's verdict about a proposal. The first gate of an epoch measures the current bank first.

    Appends that baseline to the ledger, never the verdict: who asked commits it.

    Args:
        settings: `tasks` names the task set the panel was chosen from.
        bank_dir: the bank; its panel is fixed and an epoch is open.
        proposal: at least one new item, not in the bank yet.
        observe: told about gate_started, confirm_started, rollout_finished, baseline.

    Raises:
        HorizonError: all queries of the epoch are used.
        BankError: no panel is fixed, no epoch is open, or another solver measured the panel.
        InfrastructureError: the baseline could not be completed; run again to retry what failed.

    Source: eq:gate, app:impl-validate.
    """
    return _Gate(settings, bank_dir, observe).judge(proposal)


def measure(settings: Settings, bank_dir: Path, panels: int, observe: Observe = lambda name, data: None) -> None:
    """Measure the current bank again, completely and on fresh rollouts, until `panels` such measurements are recorded.

    Each is a do-nothing candidate: an A/A gate. The baseline comes first where the epoch has none. Interrupted and
    started again, it goes on where it stopped.

    Args:
        panels: wanted in all, for this bank in this epoch.
        observe: told about baseline_started, baseline, rollout_finished, aa_started, aa.

    Raises:
        BankError: no panel is fixed, no epoch is open, or another solver measured the panel.
        InfrastructureError: a measurement could not be completed; run again to retry what failed.
    """
    _Gate(settings, bank_dir, observe).measure(panels)


class _Gate:
    """One bank, its panel, and how to ask about it."""

    def __init__(self, settings: Settings, bank_dir: Path, observe: Observe) -> None:
        self.store = BankStore.open(bank_dir)
        self.panel = fixed_panel(self.store)
        self.settings = panel_settings(settings, self.panel)
        self.observe = observe
        self.tasks: list[Task] = panel_tasks(self.panel, load(Path(settings.tasks)).tasks)
        self.manager = plugins.load(settings.plugins)
        self.retrieve = self.manager.hook.valve_retrieve
        self.guard = Guard(self.manager.hook.valve_attempt, limits_of(self.settings))

    def judge(self, proposal: Proposal) -> Verdict:
        if proposal.items:
            require_pairing(self.manager, self.panel)
        require_solver(self.store, self.settings)
        epoch, query = self._query(proposal)
        current = self.store.current_outcomes() or self._baseline(epoch)
        plan = gate_plan(self.settings, self.store, self.tasks, proposal, self.retrieve)
        needed = gate.needed_passes(self.panel.rho, len(self.panel.tasks), self.panel.rollouts)
        now = _values(current)
        self.observe("gate_started", {
            "proposal_id": proposal.id, "query": query, "needed": needed, "rollouts": len(plan.cells),
            "current_passes": gate.passes(now), "reused_passes": gate.passes(_values(plan.reused)), "order": plan.order,
        })  # fmt: skip
        asked = epoch.conditions or Conditions()
        decision, outcomes = self._candidate(proposal, plan)
        confirming = None
        if decision == "accept" and asked.confirm:
            plan = continued(plan, self.panel.rollouts)
            self.observe("confirm_started", {"proposal_id": proposal.id, "rollouts": len(plan.cells)})
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
            current_passes=gate.passes(now),
            candidate_passes=gate.passes(_values(outcomes)),
            unknown=gate.unknown(_values(outcomes)),
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
        for number in range(self.store.remeasured() + 1, panels + 1):
            plan = baseline_plan(self.settings, self.store, self.tasks, self.retrieve)
            self.observe("aa_started", {"rollouts": len(plan.cells), "number": number, "of": panels})
            result = self._complete(plan, "A/A measurement")
            self.store.append(Remeasured(epoch=epoch.epoch, result=result))
            self.observe("aa", {"passes": result.passes, "rollouts": len(result.outcomes), "number": number})

    def _epoch(self) -> EpochOpened:
        epoch = self.store.epoch()
        if epoch is None:
            raise BankError(f"{self.store.dir}: no epoch is open, so no horizon is declared; `valve evolve` opens one")
        return epoch

    def _query(self, proposal: Proposal) -> tuple[EpochOpened, int]:
        """The open epoch and this query's number in it: the same again for a proposal left undecided."""
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
                f"epoch {epoch.epoch} has used {plural(epoch.horizon, 'gate query', 'gate queries')}, all it declared; "
                "go on with --new-epoch (its first gate measures the bank anew, and its certificates get a smaller "
                "share of delta)"
            )
        return epoch, query

    def _baseline(self, epoch: EpochOpened) -> tuple[PanelOutcome, ...]:
        plan = baseline_plan(self.settings, self.store, self.tasks, self.retrieve)
        self.observe("baseline_started", {"rollouts": len(plan.cells), "bank_hash": self.store.bank.hash})
        result = self._complete(plan, "baseline")
        self.store.append(Baseline(epoch=epoch.epoch, result=result, solver=solver_of(self.settings)))
        self.observe("baseline", {"passes": result.passes, "rollouts": len(result.outcomes)})
        current = self.store.current_outcomes()
        assert current is not None
        return current

    def _complete(self, plan: Plan, what: str) -> PanelResult:
        """Measure the current bank by every rollout of the plan."""
        found: dict[tuple[str, int], PanelOutcome] = {}
        with self._lines(None) as lines:
            for line in lines:
                self._seen(line, plan, found)
        outcomes = prefix(plan, found)
        errored = gate.unknown(_values(outcomes))
        if errored or len(outcomes) < len(plan.cells):
            raise InfrastructureError(
                f"the {what} lacks {plural(len(plan.cells) - len(outcomes) + errored, 'rollout')} of "
                f"{len(plan.cells)}, {errored} of them errored; it is complete or it is none: the next start "
                "retries only those"
            )
        return PanelResult(bank_hash=self.store.bank.hash, outcomes=outcomes)

    def _candidate(
        self, proposal: Proposal, plan: Plan, *, confirm: bool = False
    ) -> tuple[Decision, tuple[PanelOutcome, ...]]:
        """Run the candidate's rollouts until their canonical prefix decides; return decision and prefix."""
        found: dict[tuple[str, int], PanelOutcome] = {}
        cost = 0.0
        stage = staging(self.store, plan)
        assert stage is not None  # the current bank is measured first
        decision, length = stage(found)
        if length is None or not self.settings.early_stop:
            with self._lines(proposal, confirm=confirm) as lines:
                for line in lines:
                    self._seen(line, plan, found)
                    cost += line.telemetry.get("cost_usd", 0.0)
                    decision, length = stage(found)
                    if length is not None and self.settings.early_stop:
                        break
        ran = took(self.store.local, self.settings, plan, found, cost)
        self.store.local.telemetry("gates", {"proposal_id": proposal.id, "confirming": confirm, **ran})
        outcomes = prefix(plan, found)
        if length is None and len(outcomes) < len(plan.cells):
            raise InfrastructureError(
                f"the panel run ended after {len(found)} of {plural(len(plan.cells), 'rollout')}; the next one goes on"
            )
        return decision, outcomes if length is None else outcomes[: max(0, length - len(plan.reused))]

    @contextmanager
    def _lines(self, proposal: Proposal | None, *, confirm: bool = False) -> Iterator[Iterator[Line]]:
        """Run the panel with what the runs before it have left of the budget."""
        try:
            with self.guard.lend(partial(self.store.local.told, SPENDING)) as left:
                settings = limited(self.settings, left)
                with closing(
                    stream(settings, self.store.dir, proposal, observe=self.observe, confirm=confirm)
                ) as lines:
                    yield lines
        except BudgetError as e:  # it names what was left for this one run, and nobody asked for that
            raise self.guard.used_up() from e

    def _seen(self, line: Line, plan: Plan, found: dict[tuple[str, int], PanelOutcome]) -> None:
        o = line.outcome
        found[o.task_id, o.ordinal] = o
        self.observe("rollout_finished", {**line.telemetry, "done": len(found), "of": len(plan.cells)})


def _values(outcomes: Sequence[PanelOutcome]) -> list[Outcome]:
    return [o.outcome for o in outcomes]
