"""What one gate still takes on this bank, so that a budget too small for it is refused before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.client import price
from valve_plugin.config import Settings
from valve_plugin.evolve.position import learned, position
from valve_plugin.evolve.steps import ATTEMPTS, Steps, waiting
from valve_plugin.gate.plan import Cell, baseline_plan, fixed_panel, gate_plan, panel_tasks
from valve_plugin.records import Panel, Task
from valve_plugin.rollouts.attempt import rollout_key
from valve_plugin.theory import gate
from valve_plugin.theory.budget import Each, each, priced


class Way(NamedTuple):
    """What a verdict takes."""

    rollouts: int
    """At most, of the next proposal: the baseline where none is measured, and a whole panel, or two where accepts have
    to repeat; where no proposal waits, also the attempts at the one task that gives it."""
    each_task: int = 0
    """Attempts at each task before that one, since only mixed attempts give a proposal; 0: a proposal comes."""


def way_to_verdict(steps: Steps, tasks: Sequence[Task], stream: Sequence[Task]) -> Way | None:
    """Return the rollouts that take the next proposal to its verdict, without those that are in the journal.

    Args:
        steps: of the run; nothing runs.
        tasks: that the panel was chosen from.
        stream: tasks to learn from.

    Returns:
        The way; None: no proposal waits, and the stream has nothing left to attempt.
    """
    if waiting(steps.store):
        return Way(judged(steps, tasks))
    missing = _attempts_missing(steps, stream)
    if missing is None:
        return None
    return Way(missing + judged(steps, tasks), steps.settings.attempts if missing else 0)


def _attempts_missing(steps: Steps, stream: Sequence[Task]) -> int | None:
    """Count what has to run at the next task that may give a proposal; None: there is no such task."""
    ids = [task.instance_id for task in stream]
    if len(learned(steps.store, ids)) >= steps.settings.max_mixed:
        return None
    for task in stream[position(steps.store, ids) :]:
        keys = (rollout_key(steps.settings, *cell) for cell in steps.cells(task, steps.retrieve(task)))
        found = [steps.store.local.journal_get(key) for key in keys]
        known = [attempt for attempt in found if attempt]
        if len(known) < len(found) or steps.material(known):
            return len(found) - len(known)
    return None


def judged(steps: Steps, tasks: Sequence[Task]) -> int:
    """Return the rollouts from a proposal to its verdict; none where the run takes everything unasked."""
    store, settings, retrieve = steps.store, steps.settings, steps.hook.valve_retrieve
    epoch = store.epoch()
    if epoch is None:
        return 0
    panel = fixed_panel(store)
    members, full = panel_tasks(panel, tasks), len(panel.tasks) * panel.rollouts
    repeated = full if epoch.conditions and epoch.conditions.confirm else 0
    current, proposal = store.current_outcomes(), waiting(store)
    if current is None:
        return (
            _missing(store.local, settings, baseline_plan(settings, store, members, retrieve).cells) + full + repeated
        )
    if proposal is None:
        return full + repeated
    plan = gate_plan(settings, store, members, proposal, retrieve)
    needed = gate.needed_passes(panel.rho, len(panel.tasks), panel.rollouts)
    if gate.decisive_prefix([o.outcome for o in current], [o.outcome for o in plan.reused], needed) is not None:
        return 0
    return _missing(store.local, settings, plan.cells) + repeated


def anew(settings: Settings, panel: Panel | None, *, proposed: bool = False) -> Way:
    """Return what the first verdict takes of a bank that is not made yet, or of an epoch that is not open.

    Args:
        settings: of the run.
        panel: to be measured; None: it will be ungated.
        proposed: a proposal waits, or attempts that were made before.
    """
    attempts = 0 if proposed else settings.attempts or ATTEMPTS
    full = len(panel.tasks) * panel.rollouts if panel else 0
    return Way(attempts + full * (3 if settings.confirm else 2), attempts if panel else 0)


def expected(store: BankStore | None, settings: Settings) -> Each:
    """Return what a rollout of this model took here, or takes by its known price; unknown where neither is known.

    Args:
        store: its telemetry is read; None: there is none yet.
        settings: model and limits.
    """
    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    seen = each(r for r in (store.local.told("rollouts") if store else ()) if r.get("model", "") in ("", model))
    if seen.usd is not None or not settings.budget_usd:
        return seen
    known = price(model)  # 4 s, so only where dollars are asked for
    if known is None:
        return seen
    by_price = priced(*known, settings.step_limit, settings.cost_limit)
    return by_price._replace(seconds=seen.seconds)


def _missing(local: LocalStore, settings: Settings, cells: Iterable[Cell]) -> int:
    keys = (rollout_key(settings, cell.task, cell.context, cell.ordinal) for cell in cells)
    return sum(local.journal_get(key) is None for key in keys)
