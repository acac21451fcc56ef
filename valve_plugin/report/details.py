"""What the page shows of single attempts: patch and trajectory digest, as much as fits a page that opens at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from valve_plugin.bank.local import LocalStore
from valve_plugin.errors import BankError
from valve_plugin.extract.digest import DEFAULT_TOKENS, digest, readable, show, steps
from valve_plugin.records import Attempt
from valve_plugin.report.run import Run, Source

TOKENS = 1_200
"""Of one trajectory digest, where it taught nothing that is in the bank."""
_PATCH = 6_000
_STEP = 1_500
_REASON = 600


def attempts(runs: Iterable[tuple[Run, LocalStore]], budget: int) -> dict[str, dict[str, Any]]:
    """Return attempt id -> what the page says about it, for every attempt that a page of these runs points to.

    Args:
        runs: each with what this machine kept of it.
        budget: characters of patches and digests in all. Attempts that proposals were learned from come first, then
            those of gates that accepted; beyond the budget only facts are kept, and each says so.
    """
    found: dict[str, dict[str, Any]] = {}
    for run, local in runs:
        sources = {s.attempt: s for item in run.items for s in item.sources if s.attempt}
        taught = {s.attempt for item in run.items if item.version is not None for s in item.sources}
        known = {a.id: a for a in local.attempts()}
        for id_ in _by_interest(run):
            if id_ in known and id_ not in found:
                found[id_] = _facts(known[id_])
                if budget > 0:
                    texts = _texts(known[id_], local, sources.get(id_), whole=id_ in taught)
                    budget -= sum(len(text) for text in texts.values() if isinstance(text, str))
                    found[id_] |= texts
    return found


def _by_interest(run: Run) -> Iterator[str]:
    columns = sorted(run.columns, key=lambda c: c.decision != "accept")
    yield from (r.attempt for item in run.items for r in item.sources if r.attempt)
    yield from (
        r.attempt for column in columns for cell in column.cells for r in (*cell.rollouts, *cell.late) if r.attempt
    )
    yield from (r.attempt for point in run.stream for r in point.rollouts if r.attempt)
    yield from (a.attempt for a in run.live.latest)


def _facts(a: Attempt) -> dict[str, Any]:
    return {
        "task": readable(a.task_text, _STEP) or a.task_id,
        "ordinal": a.ordinal,
        "source": a.source,
        "outcome": a.outcome,
        "reason": readable(a.reason, _REASON),
        "steps": a.steps,
        "seconds": round(a.seconds, 1),
        "usd": round(a.cost_usd, 4),
        "model": a.model,
        "injected": [f"{kind}: {name}" for kind, name in a.context_items],
        "dropped": list(a.dropped_paths),
    } | ({"check": a.check, "printed": readable(a.check_output, _PATCH)} if a.check else {})


def _texts(a: Attempt, local: LocalStore, source: Source | None, *, whole: bool) -> dict[str, Any]:
    """Patch and trajectory; of what taught an item of the bank in the digest that the extractor is given."""
    try:
        trajectory = local.trajectory(a)
    except BankError:  # an older one that was tidied away; the outcome stands without it
        trajectory = b""
    tokens = DEFAULT_TOKENS if whole else TOKENS
    texts: dict[str, Any] = {"patch": readable(a.patch, _PATCH), "trajectory": digest(trajectory, a, tokens=tokens)}
    if whole:
        texts["whole"] = True
    if source and source.own:
        turns = steps(trajectory)
        first = source.own[0]
        texts |= {"own": source.own, "parting": show(first, turns[first - 1], _STEP).strip()}
    return texts
