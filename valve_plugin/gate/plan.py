"""The plan of a gate: the context of each panel task, and the order in which its rollouts count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, get_args

import pluggy
from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.agents import outside
from valve_plugin.bank import moves
from valve_plugin.bank.entries import Baseline, EpochOpened
from valve_plugin.bank.store import BankStore, LedgerState
from valve_plugin.config import Ranking, Settings, ranking_of
from valve_plugin.errors import BankError, ConfigError, RecordError, TaskError
from valve_plugin.records import Bank, Conditions, Context, Decision, Kind, Panel, PanelOutcome, Proposal, Task
from valve_plugin.retrieval import embedding
from valve_plugin.retrieval.contexts import candidate
from valve_plugin.retrieval.contexts import retrieve as valves_own
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.theory import gate_rule, panel_order


class Retrieve(Protocol):
    """The retrieve step as implemented by the plugins of a run."""

    def __call__(self, *, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """See `hookspecs.StepHooks.valve_retrieve`."""
        ...


class PlannedRollout(NamedTuple):
    """A rollout to run: a task, its context, and the rollout's ordinal for (task, context)."""

    task: Task
    context: Context
    ordinal: int


Outcomes = Mapping[tuple[str, int], PanelOutcome]
"""Outcomes of finished rollouts, by task id and ordinal."""
Stage = Callable[[Outcomes], tuple[Decision, int | None]]
"""`gate_rule.decide_measurement` of one plan: returns (decision, length of the prefix that decides, or None)."""


class Plan(NamedTuple):
    """All rollouts of one gate (or baseline) in canonical order."""

    order: tuple[str, ...]
    """Ids of the panel tasks."""
    cells: tuple[PlannedRollout, ...]
    """The rollouts to run."""
    reused: tuple[PanelOutcome, ...] = ()
    """Outcomes of the current bank that also count for the candidate, because the context is identical."""


def fixed_panel(store: LedgerState) -> Panel:
    """Return the bank's panel.

    Raises:
        BankError: none is fixed yet.
    """
    panel = store.panel()
    if panel is None:
        raise BankError(f"{store.dir}: no panel is fixed yet; `valve evolve TASKS` fixes one before its first task")
    return panel


def require_kept(given: Mapping[str, Any], panel: Panel, epoch: EpochOpened | None, where: object) -> None:
    """Check that settings which were given agree with what is fixed: nothing is ignored without a word.

    Args:
        given: settings that a person gave for this run.
        panel: the panel, which keeps its settings.
        epoch: the epoch, which keeps its terms; None if this run opens one.
        where: names what keeps the panel.

    Raises:
        ConfigError: another value was given; the message says what holds, and how to change it.
    """
    if differing := differing_settings(given, panel, None):
        name, kept = differing[0]
        raise ConfigError(
            f"{name} is {given[name]}, but the panel of {where} was fixed with {kept} and keeps it, so that outcomes "
            "stay comparable; leave it out, or name another bank with --bank DIR"
        )
    if differing := differing_settings(given, panel, epoch):
        name, kept = differing[0]
        raise ConfigError(
            f"{name} is {given[name]}, but the epoch of {where} was declared with {kept} and keeps it; leave it out, "
            "or open another epoch with --new-epoch"
        )


def differing_settings(given: Mapping[str, Any], panel: Panel, epoch: EpochOpened | None) -> list[tuple[str, Any]]:
    """Return (name, kept value) of the given settings that a panel or an epoch keeps with another value."""
    fixed: dict[str, Any] = {
        "panel_size": len(panel.tasks),
        "rollouts": panel.rollouts,
        "rho": panel.rho,
        "pairing": panel.pairing,
        "panel_seed": panel.seed,
        "embedding": panel.embedding,
        "retrieval": ranking_of(panel.embedding),
    }
    if epoch:
        terms = epoch.conditions or Conditions()
        fixed |= {"horizon": epoch.horizon, "delta": epoch.delta, "confirm": terms.confirm, "guard": terms.guard}
        fixed["protocol"] = "fresh" if terms.fresh else "paper"
        asked = given.get("false_accepts", 0)
        same = gate_rule.bet_needed(epoch.horizon, asked) == terms.bet
        fixed["false_accepts"] = asked if same else epoch.horizon / terms.bet if terms.bet else 0
    return [(name, kept) for name, kept in fixed.items() if name in given and not _agree(name, given[name], kept)]


def _agree(name: str, value: Any, kept: Any) -> bool:
    if name in ("rho", "delta") and value != "auto":
        return Decimal(str(value)) == Decimal(str(kept))
    if name == "embedding":
        chosen = embedding.choose(value).name
        return kept in (value, *(embedding.recorded_as(ranking, chosen) for ranking in get_args(Ranking)))
    return bool(kept == value or value == "auto")


def panel_settings(settings: Settings, panel: Panel) -> Settings:
    """Return settings under which this panel's outcomes are comparable: the panel's own override the present ones.

    Raises:
        ConfigError: the panel was measured with an embedding that this machine does not have.
    """
    return replace(
        embedding.as_recorded(panel.embedding, settings),
        rho=panel.rho, rollouts=panel.rollouts, pairing=panel.pairing,
        panel_size=len(panel.tasks), panel_seed=panel.seed,
    )  # fmt: skip


def panel_tasks(panel: Panel, tasks: Sequence[Task]) -> list[Task]:
    """Return the panel's tasks in panel order.

    Raises:
        TaskError: a task is missing, or its content has changed.
    """
    by_id = {task.instance_id: task for task in tasks}
    found = []
    for pinned in panel.tasks:
        task = by_id.get(pinned.instance_id)
        if task is None or task.content_hash != pinned.content_hash:
            what = "has changed since the panel was fixed" if task else "is not in the task set"
            raise TaskError(f"panel task {pinned.instance_id} {what}; give the task set of which the panel is a part")
        found.append(task)
    return found


def require_pairing(manager: pluggy.PluginManager, panel: Panel) -> None:
    """Check that the gate judges the contexts that are used: with pairing "paper" it always uses VALVE's ranking.

    Raises:
        ConfigError: another plugin replaces retrieval.
    """
    others = [i.plugin_name for i in manager.hook.valve_retrieve.get_hookimpls() if i.plugin_name != "valve"]
    if others and panel.pairing == "paper":
        raise ConfigError(
            f"plugin {others[-1]!r} replaces retrieval, but pairing is paper: the gate would judge contexts of VALVE's "
            "own ranking, which are not used. Use -c pairing=deployed with a bank without a panel (--bank DIR)"
        )


def baseline_plan(settings: Settings, store: LedgerState, tasks: Sequence[Task], retrieve: Retrieve) -> Plan:
    """Return the measurement of the current bank on the tasks without outcomes, or on all where none lacks them.

    Source: app:impl-validate, where all are measured at once.
    """
    lacking = store.state.unmeasured()
    tasks = [t for t in tasks if t.instance_id in lacking] or tasks
    contexts = {t.instance_id: _current(settings, store.bank, t, retrieve) for t in tasks}
    return _plan(settings, store, tasks, contexts, [t.instance_id for t in tasks], ())


def judged_contexts(
    settings: Settings, bank: Bank, tasks: Sequence[Task], proposal: Proposal, retrieve: Retrieve
) -> dict[str, Context]:
    """Return the contexts that a proposal is judged by, by task."""
    enlarged = moves.apply(bank, proposal)
    if _deployed(settings, proposal):
        return {t.instance_id: _current(settings, enlarged, t, retrieve) for t in tasks}
    return {t.instance_id: _with_all(settings, bank, enlarged, t, proposal) for t in tasks}


def screen_context(settings: Settings, bank: Bank, task: Task, proposal: Proposal, retrieve: Retrieve) -> Context:
    """Return the context that a proposal's own task is screened with: what retrieval would give it then.

    Where that stays the same, it is the current one with all proposed items, if retrieval is VALVE's own: whether notes
    help the task they were learned from can be seen, whatever finds them.
    """
    now = _current(settings, bank, task, retrieve)
    judged = judged_contexts(settings, bank, [task], proposal, retrieve)[task.instance_id]
    if judged.hash != now.hash or _current(settings, bank, task, valves_own).hash != now.hash:
        return judged
    return _with_all(replace(settings, pairing="paper"), bank, moves.apply(bank, proposal), task, proposal)


def _with_all(settings: Settings, bank: Bank, enlarged: Bank, task: Task, proposal: Proposal) -> Context:
    return candidate(settings, bank, enlarged, proposal, task.instance_id, task.problem_statement)


def reaches(
    settings: Settings,
    bank: Bank,
    tasks: Sequence[Task],
    proposal: Proposal,
    retrieve: Retrieve,
    contexts: Mapping[str, Context] | None = None,
) -> bool:
    """Whether a proposal changes the context of any of these tasks; if not, their rollouts say nothing about it.

    Args:
        settings: the panel's.
        bank: the current one.
        tasks: of the panel.
        proposal: what makes the candidate.
        retrieve: the retrieve step.
        contexts: `judged_contexts`, where they are known.
    """
    judged = contexts or judged_contexts(settings, bank, tasks, proposal, retrieve)
    return any(judged[t.instance_id].hash != _current(settings, bank, t, retrieve).hash for t in tasks)


def _deployed(settings: Settings, proposal: Proposal) -> bool:
    # A retired item adds nothing to a context, so the candidate is what retrieval selects without it.
    return settings.pairing == "deployed" or not proposal.items


def gate_plan(
    settings: Settings,
    store: LedgerState,
    tasks: Sequence[Task],
    proposal: Proposal,
    retrieve: Retrieve,
    contexts: dict[str, Context] | None = None,
) -> Plan:
    """Return the measurement of the candidate bank.

    With pairing "deployed", a task keeps its current outcomes if its context is the same. The order depends only on the
    ledger, so all processes make the same plan.

    Args:
        settings: the panel's.
        store: the bank.
        tasks: of the panel.
        proposal: what makes the candidate.
        retrieve: the retrieve step.
        contexts: `judged_contexts`, where they are known.
    """
    contexts = contexts or judged_contexts(settings, store.bank, tasks, proposal, retrieve)
    current = store.current_outcomes() or ()
    measured = {o.task_id: o.context_hash for o in current}
    deployed = _deployed(settings, proposal)
    kept = {task for task, context in contexts.items() if deployed and measured[task] == context.hash}
    order = panel_order.task_order([t.instance_id for t in tasks], store.state.recorded, current)
    return _plan(settings, store, tasks, contexts, order, tuple(o for o in current if o.task_id in kept))


def panel_plan(
    settings: Settings,
    store: BankStore,
    tasks: Sequence[Task],
    proposal: Proposal | None,
    retrieve: Retrieve,
    *,
    confirm: bool = False,
) -> Plan:
    """Return the plan of a panel run: for the candidate bank, or for the current one without a proposal.

    Args:
        settings: the panel's.
        store: the bank.
        tasks: of the panel.
        proposal: what makes the candidate.
        retrieve: the retrieve step.
        confirm: measure it on the rollouts after those of its first measurement.
    """
    if proposal is None:
        return baseline_plan(settings, store, tasks, retrieve)
    plan = gate_plan(settings, store, tasks, proposal, retrieve)
    return continued(plan, settings.rollouts) if confirm else plan


def left_out_plan(
    settings: Settings, store: LedgerState, tasks: Sequence[Task], without: tuple[Kind, str], retrieve: Retrieve
) -> Plan:
    """Return the measurement of the current bank without an item, for panel tasks whose context this changes.

    Unlike the gate of a retirement, it leaves out tasks whose context changed only since they were measured.
    """
    reduced = moves.remove_item(store.bank, without)
    now = {t.instance_id: _current(settings, store.bank, t, retrieve) for t in tasks}
    contexts = {t.instance_id: _current(settings, reduced, t, retrieve) for t in tasks}
    changed = [t for t in tasks if contexts[t.instance_id].hash != now[t.instance_id].hash]
    return _plan(settings, store, changed, contexts, [t.instance_id for t in changed], ())


def continued(plan: Plan, rollouts: int) -> Plan:
    """Return the same plan with the next ordinals, for the confirmation of an accept."""
    return plan._replace(cells=tuple(cell._replace(ordinal=cell.ordinal + rollouts) for cell in plan.cells))


def prefix(plan: Plan, found: Outcomes) -> tuple[PanelOutcome, ...]:
    """Return the outcomes, in canonical order, before the first unfinished rollout.

    Raises:
        RecordError: a rollout used another context than planned.
    """
    outcomes: list[PanelOutcome] = []
    for cell in plan.cells:
        outcome = found.get((cell.task.instance_id, cell.ordinal))
        if outcome is None:
            break
        outcomes.append(_same_condition(cell, outcome))
    return tuple(outcomes)


def _same_condition(cell: PlannedRollout, outcome: PanelOutcome) -> PanelOutcome:
    if outcome.context_hash != cell.context.hash:
        raise RecordError(
            f"the panel run measured {outcome.task_id} with context {outcome.context_hash[:12]}, expected "
            f"{cell.context.hash[:12]}; did the bank or its settings change during the run?"
        )
    return outcome


def staging(store: LedgerState, plan: Plan) -> Stage | None:
    """Return the function that decides from finished rollouts, or None if the bank is not measured.

    The judge uses it for the verdict, and the panel run to start no more rollouts; both read the same ledger.
    """
    current, panel, epoch = store.current_outcomes(), fixed_panel(store), store.epoch()
    if current is None or epoch is None:
        return None
    needed = gate_rule.needed_passes(panel.rho, len(panel.tasks), panel.rollouts)
    asked = epoch.conditions or Conditions()
    return lambda found: gate_rule.decide_measurement(
        current, (*plan.reused, *prefix(plan, found)), needed, asked.guard, asked.bet
    )


def deployed_share(settings: Settings, enlarged: Bank, tasks: Sequence[Task], plan: Plan, retrieve: Retrieve) -> int:
    """Return the number of panel tasks whose judged context equals the one that the enlarged bank gives."""
    judged = {cell.task.instance_id: cell.context.hash for cell in plan.cells}
    judged |= {o.task_id: o.context_hash for o in plan.reused}
    return sum(_current(settings, enlarged, t, retrieve).hash == judged[t.instance_id] for t in tasks)


def _plan(
    settings: Settings,
    store: LedgerState,
    tasks: Sequence[Task],
    contexts: dict[str, Context],
    order: Sequence[str],
    reused: tuple[PanelOutcome, ...],
) -> Plan:
    by_id = {t.instance_id: t for t in tasks}
    kept = {o.task_id for o in reused}
    fresh = [task for task in order if task not in kept]
    first = {task: store.state.ordinals.get((task, contexts[task].hash), 0) for task in fresh}
    cells = [
        PlannedRollout(by_id[t], contexts[t], n)
        for t, n in panel_order.canonical_cells(fresh, settings.rollouts, first)
    ]
    return Plan(tuple(order), tuple(cells), reused)


def _current(settings: Settings, bank: Bank, task: Task, retrieve: Retrieve) -> Context:
    return retrieve(settings=settings, bank=bank, task_id=task.instance_id, issue=task.problem_statement)


def require_solver(store: BankStore, settings: Settings) -> None:
    """Check that the current outcomes were measured with the solver of these settings.

    Otherwise a better model would make any proposal look like a gain. Only the baseline is checked, because verdicts of
    an epoch pass this check themselves. Older ledgers do not record the solver.

    Raises:
        BankError: it was another solver.
    """
    if store.current_outcomes() is None:
        return
    measured = [e for e in store.entries() if isinstance(e, Baseline)]
    if measured and measured[-1].solver is not UNSET and measured[-1].solver != solver_of(settings):
        before, now = measured[-1].agent or "mini", outside.describe(settings) or "mini"
        agents = f"by the agent {before}, and this run's is {now}" if before != now else "with another solver"
        raise BankError(
            f"{store.dir}: the panel was measured {agents}: agent, model, its arguments, the limits, mini's files or "
            "version, or the scripted model's seed differ. Use the same settings, or measure the panel again with "
            "`valve evolve --new-epoch`"
        )
