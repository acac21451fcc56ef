"""Details of single attempts on the page: patch and trajectory digest, within a size limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from valve_plugin.bank.local import LocalStore
from valve_plugin.errors import BankError
from valve_plugin.extract.digest import digest, printable
from valve_plugin.records import Attempt
from valve_plugin.report.run import RunReport

TOKENS = 1_200
"""Tokens of one trajectory digest."""
_PATCH = 6_000
_TASK = 1_500
_REASON = 600


def attempt_details(runs: Iterable[tuple[RunReport, LocalStore]], budget: int) -> dict[str, dict[str, Any]]:
    """Return, by attempt id, the details of every attempt that the page of these runs links to.

    Args:
        runs: each run with its local store.
        budget: total characters of patches and digests. Source attempts of proposals come first, then those of
            accepting gates. Attempts beyond the budget have no texts.
    """
    found: dict[str, dict[str, Any]] = {}
    for run, local in runs:
        known = {a.id: a for a in local.attempts()}
        for id_ in _by_interest(run):
            if id_ in known and id_ not in found:
                found[id_] = _facts(known[id_])
                if budget > 0:
                    texts = _texts(known[id_], local)
                    budget -= sum(map(len, texts.values()))
                    found[id_] |= texts
    return found


def _by_interest(run: RunReport) -> Iterator[str]:
    columns = (*sorted(run.columns, key=lambda c: c.decision != "accept"), *run.evaluations)
    yield from (r.attempt for item in run.items for r in item.sources if r.attempt)
    yield from (r.attempt for column in columns for cell in column.cells for r in cell.rollouts if r.attempt)
    yield from (r.attempt for point in run.stream for r in point.rollouts if r.attempt)


def _facts(a: Attempt) -> dict[str, Any]:
    return {
        "task": printable(a.task_text, _TASK) or a.task_id,
        "ordinal": a.ordinal,
        "source": a.source,
        "outcome": a.outcome,
        "reason": printable(a.reason, _REASON),
        "steps": a.steps,
        "seconds": round(a.seconds, 1),
        "usd": round(a.cost_usd, 4),
        "model": a.model,
        "injected": [f"{kind}: {name}" for kind, name in a.context_items],
        "dropped": list(a.dropped_paths),
    } | ({"check": a.check, "printed": printable(a.check_output, _PATCH)} if a.check else {})


def _texts(a: Attempt, local: LocalStore) -> dict[str, str]:
    """Return patch and trajectory digest."""
    try:
        trajectory = local.trajectory(a)
    except BankError:  # the file was removed; the outcome is still known
        trajectory = b""
    return {"patch": printable(a.patch, _PATCH), "trajectory": digest(trajectory, a, tokens=TOKENS)}
