"""Results of proposals, rollouts that gates ran and saved, and counts of recorded attempts.

Rollouts are counted from the ledger, money from telemetry, which is informational only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from valve_plugin.bank.entries import (
    FAILED_AGAIN,
    UNREACHED,
    Baseline,
    Entry,
    EpochOpened,
    Judged,
    Proposed,
    Taken,
    makes_version,
    why_aside,
)
from valve_plugin.bank.ledger import Outline
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import convert, plain
from valve_plugin.errors import RecordError
from valve_plugin.evidence.evaluations import step_tasks
from valve_plugin.records import Attempt, Count, Panel, PanelOutcome, Proposal, Record, Verdict, is_live
from valve_plugin.theory import gate_rule
from valve_plugin.words import plural

_KINDS = {"live": "live", "evolve": "stream", "panel": "panel", "eval": "holdout"}
"""Source of an attempt -> the kind under which it is counted."""


class ProposalResult(NamedTuple):
    """A proposal and its result."""

    task_id: str
    passed: int
    """Resolved ones among its source attempts."""
    attempts: int
    """Number of its source attempts."""
    proposal: Proposal
    verdict: Verdict | None
    version: int
    """Bank version after it."""
    taken: bool = False
    """True if it was accepted without a gate."""
    replaced: bool = False
    """True if a later proposal of its task took its place before a verdict: one without duplicates, or none at all."""
    aside: str = ""
    """Why it was set aside without a verdict; empty: it was not."""

    @property
    def outcome(
        self,
    ) -> Literal["accept", "reject", "indecisive", "taken", "empty", "pending", "replaced", "not judged"]:
        """The result in one or two words."""
        if self.taken:
            return "taken"
        if self.aside:
            return "not judged"
        if self.verdict:
            return self.verdict.decision
        return "empty" if self.proposal.empty else "replaced" if self.replaced else "pending"


class VersionScore(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bank's complete panel score: in-sample for an accept, which was selected by it."""

    version: int
    passes: int
    rollouts: int


def proposal_results(entries: Iterable[Entry]) -> list[ProposalResult]:
    """Return the proposals in ledger order, each with its last verdict."""
    found: dict[str, ProposalResult] = {}
    waiting: dict[str, set[str]] = defaultdict(set)  # ids by task
    version = 0
    for entry in entries:
        version += makes_version(entry)
        if isinstance(entry, Proposed):
            passed = sum(a.outcome == "resolved" for a in entry.attempts)
            p = entry.proposal
            if (why := why_aside(entry)) and (id_ := p.reason.split()[0]) in found:
                found[id_] = found[id_]._replace(aside=why)
                continue
            found |= {id_: found[id_]._replace(replaced=True) for id_ in waiting.pop(p.task_id, ())}
            waiting[p.task_id].add(p.id)
            found[p.id] = ProposalResult(p.task_id, passed, len(entry.attempts), p, None, version)
        elif isinstance(entry, Judged):
            row = found[entry.verdict.proposal_id]
            waiting[row.task_id].discard(row.proposal.id)
            found[entry.verdict.proposal_id] = row._replace(verdict=entry.verdict, version=version)
        elif isinstance(entry, Taken):
            row = found[entry.proposal_id]
            waiting[row.task_id].discard(row.proposal.id)
            found[entry.proposal_id] = row._replace(taken=True, version=version)
    return list(found.values())


def fallen_by_accept(entries: Iterable[Entry]) -> dict[str, tuple[str, ...]]:
    """Return, by id of an accepted proposal, the panel tasks it makes worse, like `TASK 2/2 -> 0/2`."""
    found: dict[str, tuple[str, ...]] = {}
    for _, entry, before, after in _panel_measurements(entries):
        if isinstance(entry, Judged):
            r, fallen = entry.verdict.rollouts, gate_rule.fallen_tasks(before, after)
            found[entry.verdict.proposal_id] = tuple(f"{t} {a}/{r} -> {b}/{r}" for t, (a, b) in fallen.items())
    return found


def version_scores(entries: Iterable[Entry]) -> list[VersionScore]:
    """Return each version's complete panel score: the baseline's, then every accept's."""
    return [
        VersionScore(version=version, passes=sum(o.outcome == "resolved" for o in outcomes), rollouts=len(outcomes))
        for version, _, _, outcomes in _panel_measurements(entries)
    ]


def _panel_measurements(
    entries: Iterable[Entry],
) -> Iterator[tuple[int, Baseline | Judged, Sequence[PanelOutcome], Sequence[PanelOutcome]]]:
    """Yield, for each baseline and accept, (version, entry, the bank's outcomes before it, those after it)."""
    version, outcomes = 0, tuple[PanelOutcome, ...]()
    for entry in entries:
        before = outcomes
        version += makes_version(entry)
        if isinstance(entry, EpochOpened):
            outcomes = ()
        elif isinstance(entry, Baseline):
            outcomes = measured_anew(before, entry)
            yield version, entry, before, outcomes
        elif isinstance(entry, Judged) and entry.verdict.decision == "accept":
            outcomes = entry.verdict.measured
            yield version, entry, before, outcomes


def unmixed_tasks(entries: Iterable[Entry], attempts: Iterable[Attempt]) -> tuple[int, int]:
    """Return how many of the stream's attempted tasks gave nothing to contrast: (always passed, never passed)."""
    proposed = {task for e in entries if isinstance(e, Proposed) for task in step_tasks(e)}
    passed: dict[str, set[bool]] = defaultdict(set)
    for attempt in attempts:
        if attempt.source == "evolve" and attempt.outcome in ("resolved", "unresolved"):
            passed[attempt.task_id].add(attempt.outcome == "resolved")
    same = [seen for task, seen in passed.items() if task not in proposed and len(seen) == 1]
    return sum(True in seen for seen in same), sum(False in seen for seen in same)


_SEVERAL = 3
"""Failed screens, without an accept, after which fewer attempts are worth a thought."""


def advise(panel: Panel | None, results: Sequence[ProposalResult]) -> str:
    """Return what helps where no panel task retrieves what is proposed, or nothing passes its screen; else nothing."""
    wanted = [row for row in results if row.proposal.items]
    missed, failed = (
        sum(row.aside == reason.removeprefix("not judged: ") for row in wanted) for reason in (UNREACHED, FAILED_AGAIN)
    )
    if panel is None or not missed:
        if failed < _SEVERAL or any(row.outcome == "accept" for row in wanted):
            return ""
        return (
            f"{failed} of {plural(len(wanted), 'proposal')} failed again at their own task, and none was accepted. "
            "Where there are few tasks to learn from, fewer attempts there (`-c screen=N`; 0: none) let more of them "
            "to the gate"
        )
    return (
        f"{missed} of {plural(len(wanted), 'proposal')} could not be judged: none of the "
        f"{plural(len(panel.tasks), 'panel task')} retrieves its notes. A larger panel "
        "reaches more, where the next task set has the tasks for it (valve split, option --panel). Else a new bank "
        "with `-c retrieval=paper` gives each task the best notes, whether they fit or not; `valve try FILE` measures "
        "one text"
    )


def why_nothing(proposal: Proposal) -> str:
    """Return why a proposal has nothing to judge, or what was left out of it; empty if all of it is judged."""
    parts = [proposal.reason] if proposal.empty and proposal.reason else []
    parts += [f"{w.kind} {w.name} withheld: {w.why}" for w in proposal.withheld]
    parts += [f"{plural(len(proposal.suppressed), 'near-duplicate')} left out"] if proposal.suppressed else []
    parts += [f"support for {plural(len(proposal.merges), 'known note')}"] if proposal.merges else []
    return "; ".join(parts)


def verdict_lines(entries: Iterable[Entry]) -> str:
    """Return what became of the latest 30 proposals, one a line with its notes; empty if there was none. Pure."""
    entries = list(entries)
    rows = [row for row in proposal_results(entries) if row.proposal.items]
    lines = []
    for row in rows[-30:]:
        notes = "; ".join(f"{i.kind} {i.name}: {i.text}" for i in row.proposal.items)
        became = f"not judged: {row.aside}" if row.aside else "taken without a gate" if row.taken else "never judged"
        if not row.aside and row.verdict and row.verdict.decision != "indecisive":
            # No number: certificates count what a proposer may know as verdicts alone.
            became = f"{row.verdict.decision}ed"
        lines.append(f"- {became}: {' '.join(notes.split())[:600]}")
    return "\n".join(lines)


def measured_anew(current: Sequence[PanelOutcome], baseline: Baseline) -> tuple[PanelOutcome, ...]:
    """Return the bank's outcomes after a baseline, which may measure some tasks only."""
    anew = {o.task_id for o in baseline.result.outcomes}
    return (*(o for o in current if o.task_id not in anew), *baseline.result.outcomes)


def bank_facts(store: BankStore) -> dict[str, Any]:
    """Return what a bank's proposals came to, as plain data."""
    gates = gate_savings(store.entries(), store.local.read_telemetry("gates"))
    fallen = fallen_by_accept(store.entries())
    return {
        "bank": str(store.dir),
        "repo": store.bank.repo,
        "version": store.bank.version,
        "principles": len(store.bank.principles),
        "skills": len(store.bank.skills),
        "queries": store.queries_used(),
        "gated": any(isinstance(entry, EpochOpened) for entry in store.entries()),
        "gate_rollouts": total_savings(list(gates.values())).facts(),
        "panel_scores": [plain(score) for score in version_scores(store.entries())],
        "proposals": [
            {
                "task_id": row.task_id,
                "passed": row.passed,
                "attempts": row.attempts,
                "proposal_id": row.proposal.id,
                "items": [f"{i.kind}: {i.name}" for i in row.proposal.items],
                "removes": [f"{kind}: {name}" for kind, name in row.proposal.removed],
                "outcome": row.outcome,
                "reason": row.aside or row.proposal.reason,
                "worse": fallen.get(row.proposal.id, ()),
                "version": row.version,
                "gate_rollouts": gates[row.proposal.id].facts() if row.proposal.id in gates else None,
            }
            for row in proposal_results(store.entries())
        ],
    }


class GateTelemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rollouts that one gate ran on this machine, also after its verdict was certain. Informational only."""

    proposal_id: str
    confirming: bool = False
    ran: Count
    cut: Count = 0
    """Rollouts that were started and stopped early; not part of `ran`."""
    cost_usd: float
    cut_usd: float = 0.0
    """Cost of the stopped rollouts; older versions did not record it."""


class Savings(NamedTuple):
    """Rollouts saved by one or more gates."""

    ran: int
    """Rollouts that ran."""
    of: int
    """Rollouts of the full panel, without reused outcomes."""
    usd: float
    """Estimated cost of the saved rollouts minus the cost of stopped ones; 0 if no cost is known."""
    cut: int = 0
    """Saved rollouts that had been started and were stopped early."""

    @property
    def rollouts(self) -> int:
        """Number of saved rollouts."""
        return self.of - self.ran

    def facts(self) -> dict[str, Any]:
        """Return the numbers as plain data for JSON output."""
        return {"ran": self.ran, "saved": self.rollouts, "saved_usd": self.usd, "cut_short": self.cut}

    def __str__(self) -> str:
        money = f", about ${self.usd:.2f}" if self.usd >= 0.005 else ""
        cut = f", {self.cut} of them cut short" if self.cut else ""
        return f"{self.rollouts} of {plural(self.of, 'rollout')} saved{money}{cut}"


def gate_savings(entries: Iterable[Entry], telemetry: Iterable[Mapping[str, Any]]) -> dict[str, Savings]:
    """Return, by proposal id, the savings of its gate, for each accepted or rejected proposal.

    Args:
        telemetry: records of the log "gates"; without them only the ledger's rollouts count as run.
    """
    known: dict[tuple[str, bool], GateTelemetry] = {}
    for record in telemetry:
        with suppress(RecordError):
            stage = convert(dict(record), GateTelemetry, where="telemetry")
            known[stage.proposal_id, stage.confirming] = stage
    verdicts = [e.verdict for e in entries if isinstance(e, Judged) and e.verdict.decision != "indecisive"]
    found = {}
    for v in verdicts:
        stages = [known[v.proposal_id, c] for c in (False, True) if (v.proposal_id, c) in known]
        of = (v.n_tasks * v.rollouts - len(v.reused)) * (2 if v.confirming else 1)
        ran = min(of, max(v.ran, sum(stage.ran for stage in stages)))
        cost = sum(stage.cost_usd for stage in stages)
        cut = min(of - ran, sum(stage.cut for stage in stages))
        usd = cost / ran * (of - ran) - sum(stage.cut_usd for stage in stages) if ran else 0.0
        found[v.proposal_id] = Savings(ran, of, max(0.0, usd), cut)
    return found


def total_savings(gates: Sequence[Savings]) -> Savings:
    """Return the sum over all gates."""
    return Savings(
        sum(g.ran for g in gates), sum(g.of for g in gates), sum(g.usd for g in gates), sum(g.cut for g in gates)
    )


def count_attempts(attempts: Iterable[Attempt], outline: Outline | None = None) -> dict[str, Any]:
    """Count recorded attempts, graded attempts and mixed groups (same task, base tree and context).

    Args:
        outline: of the ledger. A kind that is in the ledger but has no attempt here is None (unknown), not 0.

    Returns:
        `recorded`, `graded`, `mixed_groups` (of live attempts and the stream) and `suspicious` in total, None if all
        attempts are on another machine; then a dict with the first three for each kind.
    """
    kinds: dict[str, list[Attempt]] = {kind: [] for kind in _KINDS.values()}
    suspicious = 0
    for attempt in attempts:
        suspicious += attempt.suspicious
        kinds[_KINDS[attempt.source]].append(attempt)
    named = set[str]()
    if outline:
        named |= {"live" if is_live(task) else "stream" for task in outline.source_tasks}
        named |= {"panel"} if outline.types & {"baseline", "judged", "remeasured", "left_out"} else set()
        named |= {"holdout"} if "evaluated" in outline.types else set()
    found = {kind: _count_graded(kept) if kept or kind not in named else None for kind, kept in kinds.items()}
    here = [one for one in found.values() if one is not None and one["recorded"]]
    if not here and named:
        return {"recorded": None, "graded": None, "mixed_groups": None, "suspicious": None, **found}
    return {
        "recorded": sum(one["recorded"] for one in here),
        "graded": sum(one["graded"] for one in here),
        "mixed_groups": sum(one["mixed_groups"] for kind in ("live", "stream") if (one := found[kind])),
        "suspicious": suspicious,
        **found,
    }


def attempts_in_words(counts: dict[str, Any]) -> str:
    """Return the result of `count_attempts` as one line of text."""
    live, stream = counts["live"], counts["stream"]
    parts = []
    if live and (live["recorded"] or counts["recorded"]):
        graded = f"{live['graded']} graded{_mixed(live)}"
        parts.append(f"{live['recorded']} of your own ({graded})" if live["recorded"] else "none of your own")
    if stream and stream["recorded"]:
        parts.append(f"{stream['recorded']} of the stream ({stream['graded']} graded{_mixed(stream)})")
    for kind in ("panel", "holdout"):
        if counts[kind] and counts[kind]["recorded"]:
            parts.append(plural(counts[kind]["recorded"], f"{kind} rollout"))
    if missing := [kind for kind in _KINDS.values() if counts[kind] is None]:
        parts.append(f"{', '.join(missing)}: not on this machine")
    if counts["suspicious"]:
        parts.append(f"{counts['suspicious']} suspicious, which `valve attempts list --all` marks")
    return "; ".join(parts) or "none recorded on this machine"


def _mixed(counts: Mapping[str, int]) -> str:
    number = counts["mixed_groups"]
    return f"; some passed and some failed at {plural(number, 'task')}" if number else ""


def _count_graded(attempts: Sequence[Attempt]) -> dict[str, int]:
    groups: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    for a in attempts:
        if a.outcome in ("resolved", "unresolved"):
            groups[a.task_id, a.task_text, a.base_tree, a.context_hash].append(a.outcome == "resolved")
    mixed = [group for group, passed in groups.items() if any(passed) and not all(passed)]
    learned = bool(attempts) and attempts[0].source == "evolve"  # a screen is at the same task, with another context
    return {
        "recorded": len(attempts),
        "graded": sum(map(len, groups.values())),
        "mixed_groups": len({group[:-1] if learned else group for group in mixed}),
    }
