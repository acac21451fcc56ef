"""What a gate will run: which context each panel task is judged under, and in which order its rollouts count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import pluggy
from msgspec.structs import replace

from valve_plugin.bank import embedding, moves, retrieval
from valve_plugin.bank.entries import Baseline, Judged, PanelFixed, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import BankError, ConfigError, RecordError, TaskError
from valve_plugin.records import Bank, Conditions, Context, Decision, Kind, Panel, PanelOutcome, Proposal, Task
from valve_plugin.theory import gate


class Retrieve(Protocol):
    """The retrieve step, as all plugins of a run implement it."""

    def __call__(self, *, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """See `hookspecs.Steps.valve_retrieve`."""
        ...


class Cell(NamedTuple):
    """One rollout to be: a task, its context and this rollout's ordinal for the two."""

    task: Task
    context: Context
    ordinal: int


Found = Mapping[tuple[str, int], PanelOutcome]
"""Task and ordinal -> outcome, of what has ended."""
Stage = Callable[[Found], tuple[Decision, int | None]]
"""`theory.gate.stage` of one plan: the decision, and the length of the prefix that decides, None while none does."""


class Plan(NamedTuple):
    """All rollouts of one gate (or baseline) in canonical order."""

    order: tuple[str, ...]
    """Every panel task."""
    cells: tuple[Cell, ...]
    """The rollouts to run."""
    reused: tuple[PanelOutcome, ...] = ()
    """Current outcomes that stand for the candidate too, since its context is the same bytes."""


def fixed_panel(store: BankStore) -> Panel:
    """Return the bank's panel.

    Raises:
        BankError: none is fixed yet.
    """
    panel = store.panel()
    if panel is None:
        raise BankError(f"{store.dir}: no panel is fixed yet; `valve evolve TASKS` fixes one before its first task")
    return panel


def panel_settings(settings: Settings, panel: Panel) -> Settings:
    """Return the settings under which this panel's outcomes are comparable: its own win over whatever is set now.

    Raises:
        ConfigError: the panel was measured with an embedding that this machine does not have.
    """
    return replace(
        settings, rho=panel.rho, rollouts=panel.rollouts, pairing=panel.pairing,
        embedding=embedding.pinned(panel.embedding, settings.embedding),
        panel_size=len(panel.tasks), panel_seed=panel.seed,
    )  # fmt: skip


def panel_tasks(panel: Panel, tasks: Sequence[Task]) -> list[Task]:
    """Return the panel's tasks in panel order.

    Raises:
        TaskError: a task is missing, or its content is not what was pinned.
    """
    by_id = {task.instance_id: task for task in tasks}
    found = []
    for pinned in panel.tasks:
        task = by_id.get(pinned.instance_id)
        if task is None or task.content_hash != pinned.content_hash:
            what = "has other content than the panel pinned" if task else "is not in the task set"
            raise TaskError(f"panel task {pinned.instance_id} {what}; give the task set the panel was chosen from")
        found.append(task)
    return found


def require_pairing(manager: pluggy.PluginManager, panel: Panel) -> None:
    """Refuse to judge other contexts than are used: under pairing "paper" the gate ranks as VALVE does.

    Raises:
        ConfigError: another plugin retrieves.
    """
    others = [i.plugin_name for i in manager.hook.valve_retrieve.get_hookimpls() if i.plugin_name != "valve"]
    if others and panel.pairing == "paper":
        raise ConfigError(
            f"plugin {others[-1]!r} replaces retrieval, and pairing is paper: the gate would judge contexts that VALVE "
            "ranks and nothing uses. Give -c pairing=deployed, to a bank whose panel is not fixed yet (--bank DIR)"
        )


def baseline_plan(settings: Settings, store: BankStore, tasks: Sequence[Task], retrieve: Retrieve) -> Plan:
    """Return the complete measurement of the current bank, in panel order."""
    contexts = {t.instance_id: _current(settings, store.bank, t, retrieve) for t in tasks}
    return _plan(settings, store, tasks, contexts, [t.instance_id for t in tasks], ())


def gate_plan(
    settings: Settings, store: BankStore, tasks: Sequence[Task], proposal: Proposal, retrieve: Retrieve
) -> Plan:
    """Return the measurement of the candidate bank.

    Under pairing "deployed" a task whose context stays what its current outcomes were measured under keeps
    them. The order is learned from the ledger alone, so every process that reads it plans the same.
    """
    enlarged = moves.apply(store.bank, proposal)
    # A retired item adds nothing to any context, so what retrieval then selects is the candidate.
    deployed = settings.pairing == "deployed" or not proposal.items
    if deployed:
        contexts = {t.instance_id: _current(settings, enlarged, t, retrieve) for t in tasks}
    else:
        contexts = {
            t.instance_id: retrieval.candidate(
                settings, store.bank, enlarged, proposal, t.instance_id, t.problem_statement
            )
            for t in tasks
        }
    current = store.current_outcomes() or ()
    measured = {o.task_id: o.context_hash for o in current}
    kept = {task for task, context in contexts.items() if deployed and measured[task] == context.hash}
    order = gate.order([t.instance_id for t in tasks], history(store), current)
    return _plan(settings, store, tasks, contexts, order, tuple(o for o in current if o.task_id in kept))


def left_out_plan(
    settings: Settings, store: BankStore, tasks: Sequence[Task], without: tuple[Kind, str], retrieve: Retrieve
) -> Plan:
    """Return the measurement of the current bank without an item: the panel tasks whose context it changes.

    Unlike a gate about retiring the item, it leaves out tasks whose context merely changed since they were judged.
    """
    reduced = moves.without(store.bank, without)
    now = {t.instance_id: _current(settings, store.bank, t, retrieve) for t in tasks}
    contexts = {t.instance_id: _current(settings, reduced, t, retrieve) for t in tasks}
    changed = [t for t in tasks if contexts[t.instance_id].hash != now[t.instance_id].hash]
    return _plan(settings, store, changed, contexts, [t.instance_id for t in changed], ())


def continued(plan: Plan, rollouts: int) -> Plan:
    """Return the same measurement on the rollouts that come next: what an apparent accept has to repeat on."""
    return plan._replace(cells=tuple(cell._replace(ordinal=cell.ordinal + rollouts) for cell in plan.cells))


def prefix(plan: Plan, found: Found) -> tuple[PanelOutcome, ...]:
    """Return the finished rollouts that no unfinished one precedes in canonical order.

    Raises:
        RecordError: one was judged under another context than was planned.
    """
    outcomes: list[PanelOutcome] = []
    for cell in plan.cells:
        outcome = found.get((cell.task.instance_id, cell.ordinal))
        if outcome is None:
            break
        outcomes.append(_same_condition(cell, outcome))
    return tuple(outcomes)


def _same_condition(cell: Cell, outcome: PanelOutcome) -> PanelOutcome:
    if outcome.context_hash != cell.context.hash:
        raise RecordError(
            f"the panel run judged {outcome.task_id} under context {outcome.context_hash[:12]}, planned was "
            f"{cell.context.hash[:12]}; did the bank or its settings change meanwhile?"
        )
    return outcome


def staging(store: BankStore, plan: Plan) -> Stage | None:
    """Return how this plan's rollouts decide on this bank; None: the bank is not measured.

    The gate judges by it, and the panel run starts nothing after it: both read the same ledger.
    """
    current, panel, epoch = store.current_outcomes(), fixed_panel(store), store.epoch()
    if current is None or epoch is None:
        return None
    needed = gate.needed_passes(panel.rho, len(panel.tasks), panel.rollouts)
    guard = (epoch.conditions or Conditions()).guard
    return lambda found: gate.stage(current, (*plan.reused, *prefix(plan, found)), needed, guard)


def deployed_share(settings: Settings, enlarged: Bank, tasks: Sequence[Task], plan: Plan, retrieve: Retrieve) -> int:
    """Return how many panel tasks would get, from the enlarged bank, exactly the context they were judged under."""
    judged = {cell.task.instance_id: cell.context.hash for cell in plan.cells}
    judged |= {o.task_id: o.context_hash for o in plan.reused}
    return sum(_current(settings, enlarged, t, retrieve).hash == judged[t.instance_id] for t in tasks)


def _plan(
    settings: Settings,
    store: BankStore,
    tasks: Sequence[Task],
    contexts: dict[str, Context],
    order: Sequence[str],
    reused: tuple[PanelOutcome, ...],
) -> Plan:
    by_id = {t.instance_id: t for t in tasks}
    kept = {o.task_id for o in reused}
    fresh = [task for task in order if task not in kept]
    first = {task: store.ordinals(task, contexts[task].hash) for task in fresh}
    cells = [Cell(by_id[t], contexts[t], n) for t, n in gate.canonical_cells(fresh, settings.rollouts, first)]
    return Plan(tuple(order), tuple(cells), reused)


def _current(settings: Settings, bank: Bank, task: Task, retrieve: Retrieve) -> Context:
    return retrieve(settings=settings, bank=bank, task_id=task.instance_id, issue=task.problem_statement)


def history(store: BankStore) -> list[PanelOutcome]:
    """Every outcome recorded on the fixed panel, oldest first, whichever bank it measured."""
    outcomes: list[PanelOutcome] = []
    for entry in store.entries():
        if isinstance(entry, PanelFixed):
            outcomes = []
        elif isinstance(entry, Baseline | Remeasured):
            outcomes += entry.result.outcomes
        elif isinstance(entry, Judged) and entry.verdict.decision != "indecisive":
            outcomes += entry.verdict.outcomes  # a query that goes on keeps the order it started with
            outcomes += entry.verdict.confirming or ()
    return outcomes
