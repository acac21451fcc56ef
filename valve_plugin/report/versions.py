"""The stream by bank version: what resolved under each, its holdout reading, and what came in with it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from valve_plugin.report.run import Run, StreamPoint

_NAMED = 4
"""Items of a version that are named; more are counted."""


class Stretch(NamedTuple):
    """Stream tasks that follow each other under one bank version."""

    version: int
    where: str
    points: list[StreamPoint]


def stretches(points: Sequence[StreamPoint]) -> list[Stretch]:
    """Return the stream cut where the bank version changes."""
    found = []
    for version, group in groupby(points, key=lambda p: p.version):
        mine = list(group)
        first, last = mine[0].position, mine[-1].position
        found.append(Stretch(version, f"tasks {first}-{last}" if first < last else f"task {first}", mine))
    return found


def counts(points: Sequence[StreamPoint]) -> tuple[int, int]:
    """Return resolved and graded attempts."""
    return sum(p.passed for p in points), sum(p.graded for p in points)


def under(run: Run) -> list[str]:
    """Return a line for each bank version that stream tasks ran under; empty: the stream is not known whole."""
    if not run.stream_whole:
        return []
    names, held = _came(run), {c.version: c for c in run.checkpoints}
    told = []
    for version, where, points in stretches(run.stream):
        passed, graded = counts(points)
        told.append((version, f"version {version}, {where}: {passed} of {graded} attempts resolved"))
    if version := unused(run):
        told.append((version, f"version {version}: came in after the last task, so none ran under it"))
    found = []
    for version, said in told:
        if (c := held.get(version)) and c.low == c.high:
            said += f"; {c.low:.1%} of the holdout's"
        came = names.get(version, [])
        more = f" and {len(came) - _NAMED} more" if len(came) > _NAMED else ""
        found.append(f"{said}; came with {', '.join(came[:_NAMED])}{more}" if came else said)
    return found


def unused(run: Run) -> int:
    """Return the version that the stream's last task brought: none ran under it; 0: it brought none."""
    last = run.stream[-1] if run.stream_whole and run.stream else None
    return last.version + 1 if last and last.accepted and last.version + 1 == run.version else 0


def _came(run: Run) -> dict[int, list[str]]:
    """Version -> the items that it brought, whether they are still in the bank or not."""
    found: dict[int, list[str]] = {}
    for line in run.ledger:
        if line.type == "taken":
            proposal = line.data["proposal_id"]
        elif line.type == "judged" and line.data["verdict"]["decision"] == "accept":
            proposal = line.data["verdict"]["proposal_id"]
        else:
            continue
        brought = [i for i in run.items if i.proposal_id == proposal and i.state in ("accepted", "taken", "retired")]
        found[len(found) + 1] = [f"{i.kind} {i.name}" for i in brought]
    return found
