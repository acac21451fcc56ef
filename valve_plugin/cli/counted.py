"""What this machine keeps of a bank's attempts, by what they were for. Pure.

Live ones are the person's own runs; those of stream, panel and holdout are the loop's rollouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from valve_plugin.bank.entries import Baseline, Entry, Evaluated, Judged, LeftOut, Proposed, Remeasured
from valve_plugin.records import Attempt, is_live
from valve_plugin.words import plural

SOURCES = {"live": "live", "evolve": "stream", "panel": "panel", "eval": "holdout"}
"""Source of an attempt -> what it is counted as."""
_ELSEWHERE = "not on this machine"
_PANEL = (Baseline, Judged, Remeasured, LeftOut)


def count(attempts: Iterable[Attempt], entries: Iterable[Entry]) -> dict[str, Any]:
    """Count recorded and graded attempts, and the groups (task, base tree, context) whose graded ones are mixed.

    Args:
        attempts: those on this machine.
        entries: the ledger's. Where it names rollouts of a kind and none is here, that kind is None: not on this
            machine, which is not zero.

    Returns:
        recorded, graded and mixed_groups of all kinds (mixed: of live attempts and the stream, which teach), None
        where everything that is known of is elsewhere; then the same of each kind.
    """
    kinds: dict[str, list[Attempt]] = {kind: [] for kind in SOURCES.values()}
    for attempt in attempts:
        kinds[SOURCES[attempt.source]].append(attempt)
    named = _named(entries)
    found = {kind: _counted(kept) if kept or kind not in named else None for kind, kept in kinds.items()}
    here = [one for one in found.values() if one is not None and one["recorded"]]
    if not here and named:
        return {"recorded": None, "graded": None, "mixed_groups": None, **found}
    return {
        "recorded": sum(one["recorded"] for one in here),
        "graded": sum(one["graded"] for one in here),
        "mixed_groups": sum(one["mixed_groups"] for kind in ("live", "stream") if (one := found[kind])),
        **found,
    }


def in_words(counts: dict[str, Any]) -> str:
    """Return what `count` found in one line."""
    live, stream = counts["live"], counts["stream"]
    said = []
    if live and (live["recorded"] or counts["recorded"]):
        graded = f"{live['graded']} graded, {plural(live['mixed_groups'], 'mixed group')}"
        said.append(f"{live['recorded']} live ({graded})" if live["recorded"] else "none live")
    if stream and stream["recorded"]:
        said.append(f"{stream['recorded']} of the stream ({plural(stream['mixed_groups'], 'mixed group')})")
    for kind in ("panel", "holdout"):
        if counts[kind] and counts[kind]["recorded"]:
            said.append(plural(counts[kind]["recorded"], f"{kind} rollout"))
    if elsewhere := [kind for kind in SOURCES.values() if counts[kind] is None]:
        said.append(f"{', '.join(elsewhere)}: {_ELSEWHERE}")
    return "; ".join(said) or "none recorded on this machine"


def _counted(attempts: Sequence[Attempt]) -> dict[str, int]:
    groups: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    for a in attempts:
        if a.outcome in ("resolved", "unresolved"):
            groups[a.task_id, a.task_text, a.base_tree, a.context_hash].append(a.outcome == "resolved")
    return {
        "recorded": len(attempts),
        "graded": sum(map(len, groups.values())),
        "mixed_groups": sum(any(passed) and not all(passed) for passed in groups.values()),
    }


def _named(entries: Iterable[Entry]) -> set[str]:
    """Return the kinds of rollouts that a ledger names."""
    found = set()
    for entry in entries:
        if isinstance(entry, Proposed):
            found |= {"live" if is_live(note.task_id) else "stream" for note in entry.attempts}
        elif isinstance(entry, _PANEL):
            found.add("panel")
        elif isinstance(entry, Evaluated):
            found.add("holdout")
    return found
