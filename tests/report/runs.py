"""Banks with long histories, made in a second: for the report's tests, never for a claim."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

from msgspec.structs import asdict, replace

from tests.bank.build import decided
from valve_plugin.bank.entries import AttemptNote, Baseline, EpochOpened, Evaluated, PanelFixed, Proposed, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, digest
from valve_plugin.records import (
    Attempt,
    Item,
    Kind,
    Outcome,
    Panel,
    PanelOutcome,
    PanelResult,
    PanelTask,
    Proposal,
    Suppressed,
    Withheld,
)
from valve_plugin.theory import gate_rule

REPO = "owner/library"


def _again(like: Item, *, older: bool) -> Suppressed:
    if older:
        return Suppressed(kind="skill", name="again", duplicate_of=like.name, similarity=0.5)
    item = replace(like, name="again", markdown=f"{like.markdown}\n\nAnd once more.")
    return Suppressed(kind="skill", name="again", duplicate_of=like.name, similarity=0.5, item=item)


class Maker:
    """Appends a plausible run to an empty bank; `text` supplies every text a model or a repository could."""

    def __init__(self, path: Path, panel_size: int, seed: int = 0, text: str = "", *, panel_kept: bool = False) -> None:
        self.random = Random(seed)
        self.text = text
        self.panel_kept = panel_kept
        self.older = False
        """Write what an older release did: a duplicate without what it said."""
        self.store = BankStore.create(path, REPO)
        tasks = [f"owner__library.0123abcd.panel_{n}{text[:200]}" for n in range(panel_size)]
        self.rates = {task: self.random.random() for task in tasks}
        self.panel = Panel(tasks=tuple(PanelTask(instance_id=t, content_hash=digest(t)) for t in tasks))
        self.store.append(PanelFixed(panel=self.panel))
        opened = EpochOpened(epoch=1, horizon=200, delta="0.05", panel_hash=self.panel.hash, reason=text[:100])
        self.store.append(opened)
        self.store.append(Baseline(epoch=1, result=PanelResult(bank_hash=self.store.bank.hash, outcomes=self._ran({}))))

    def stream(self, tasks: int, mixed_each: int) -> None:
        """Attempt so many stream tasks; every `mixed_each`-th is mixed and its proposal judged."""
        for number in range(tasks):
            task = f"owner__library.0123abcd.stream_{number}{self.text[:200]}"
            mixed = number % mixed_each == 0
            outcomes: list[Outcome] = ["resolved", "unresolved", "resolved"]
            if not mixed:
                outcomes = ["resolved"] * 3 if self.random.random() < 0.6 else ["unresolved"] * 3
            notes = [self._attempt(task, n, o, number) for n, o in enumerate(outcomes)]
            if mixed:
                self._judge(self._propose(task, notes, number))

    def evaluate(self, version: int, passed: int, tasks: int = 10) -> None:
        """Read the holdout with one version: the first `passed` of three rollouts a task resolve."""
        ids = [f"owner__library.0123abcd.held_{n}{self.text[:200]}" for n in range(tasks)]
        cells = [(task, n) for task in ids for n in range(3)]
        outcomes = tuple(
            PanelOutcome(
                task_id=task,
                ordinal=n,
                outcome="resolved" if place < passed else "unresolved",
                context_hash=digest(["held", version]),
            )
            for place, (task, n) in enumerate(cells)
        )
        frozen = self.store.at(version)
        self.store.append(
            Evaluated(
                holdout=tuple(PanelTask(instance_id=t, content_hash=digest(t)) for t in ids),
                rollouts=3,
                version=version,
                bank_hash=frozen.hash,
                solver=digest("solver"),
                outcomes=outcomes,
            )
        )

    def measure(self) -> None:
        """Measure the bank on the panel once more (A/A), its rollouts kept."""
        fresh = tuple(replace(o, ordinal=o.ordinal + 1_000) for o in self._ran({}, digest("again")))
        for o in fresh:
            self._panel_attempt(o)
        self.store.append(Remeasured(epoch=1, result=PanelResult(bank_hash=self.store.bank.hash, outcomes=fresh)))

    def fail(self, task: str, times: int) -> None:
        """Attempts that the provider failed."""
        for n in range(times):
            self.keep(
                Attempt(id=f"lost-{n}", task_id=task, ordinal=n, source="evolve", outcome="errored", reason="503")
            )

    def _panel_attempt(self, o: PanelOutcome) -> None:
        id_ = digest([o.task_id, o.ordinal, o.context_hash])[:16]
        self.keep(Attempt(id=id_, source="panel", seconds=30.0, **asdict(o)))

    def _attempt(self, task: str, ordinal: int, outcome: Outcome, number: int) -> AttemptNote:
        context = digest(["block", self.store.bank.version])
        attempt = Attempt(
            id=digest([task, ordinal])[:16],
            task_id=task,
            ordinal=ordinal,
            source="evolve",
            outcome=outcome,
            reason="" if outcome == "resolved" else f"2 of 3 hidden tests fail {self.text}",
            patch=f"--- a/module.py\n+++ b/module.py\n@@ -1 +1 @@\n-old {number}\n+new {self.text}\n",
            exit_status="Submitted",
            steps=7,
            seconds=30.0,
            recorded_at=1_700_000_000.0 + 60 * number + ordinal,
            model=f"openai/some-model{self.text}",
            context_hash=context,
        )
        self.keep(attempt)
        return AttemptNote(
            task_id=task, ordinal=ordinal, outcome=outcome, context_hash=context, patch_hash=digest(task)
        )

    def keep(self, attempt: Attempt) -> None:
        """As `LocalStore.add_attempt` does, without waiting for the disk."""
        turns = [
            {"role": "assistant", "content": f"{thought} {self.text}", "extra": {"actions": [{"command": command}]}}
            for thought, command in (("look first", "ls"), ("then edit", f"edit {attempt.outcome} {self.text}"))
        ]
        folder = self.store.local.dir
        (folder / "attempts" / "t").mkdir(parents=True, exist_ok=True)
        (folder / "trajectories").mkdir(exist_ok=True)
        name = f"{attempt.id}.traj.json.gz"
        (folder / "trajectories" / name).write_bytes(gzip.compress(json.dumps({"messages": turns}).encode(), 1))
        (folder / "attempts" / "t" / f"{attempt.id}.json").write_bytes(canonical(replace(attempt, trajectory=name)))

    def _propose(self, task: str, notes: list[AttemptNote], number: int) -> Proposal:
        kinds: tuple[Kind, ...] = ("principle", "skill", "skill", "skill", "principle")
        items = tuple(
            Item(
                kind=kind,
                name=f"item-{number}-{n}",
                text=f"Look at the callers before the callee {number} {n} {self.text}"[:600],
                markdown=f"**Statement:** look.\n\n1. Read `callers`.\n2. Change one.\n\n{self.text}",
                scope_hint="parsers" if kind == "skill" else "",
                source_tasks=(task,),
                passes=2,
                attempts=3,
            )
            for n, kind in enumerate(kinds)
        )
        proposal = Proposal(
            task_id=task,
            items=items,
            suppressed=(_again(items[1], older=self.older),) if number else (),
            withheld=(Withheld(kind="skill", name="skip-tests", why=f"turns the agent against its tests {self.text}"),),
            model=f"openai/some-model{self.text}",
        )
        self.store.append(Proposed(proposal=proposal, attempts=tuple(notes)))
        return proposal

    def _judge(self, proposal: Proposal) -> None:
        now = self.store.current_outcomes()
        assert now is not None
        current = [o.outcome for o in now]
        needed = gate_rule.needed_passes(self.panel.rho, len(self.panel.tasks), self.panel.rollouts)
        ran = self._ran({t.instance_id: self.random.uniform(-0.05, 0.12) for t in self.panel.tasks}, digest(proposal))
        length = gate_rule.decisive_prefix(current, [o.outcome for o in ran], needed)
        assert length is not None
        outcomes = ran[:length]
        if self.panel_kept:
            for o in outcomes:
                self._panel_attempt(o)
        accept = gate_rule.decide(current, [o.outcome for o in outcomes], needed) == "accept"
        counts = {
            "query": self.store.queries_used() + 1,
            "current_passes": gate_rule.count_passes(current),
            "deployed": len(self.panel.tasks) if accept else 0,
        }
        self.store.append(decided(self.panel, self.store.bank, proposal, outcomes, accept=accept, **counts))

    def _ran(self, gains: dict[str, float], context: str = "") -> tuple[PanelOutcome, ...]:
        return tuple(
            PanelOutcome(
                task_id=t.instance_id,
                ordinal=n,
                outcome="resolved"
                if self.random.random() < self.rates[t.instance_id] + gains.get(t.instance_id, 0)
                else "unresolved",
                context_hash=context or digest("no block"),
            )
            for t in self.panel.tasks
            for n in range(self.panel.rollouts)
        )
