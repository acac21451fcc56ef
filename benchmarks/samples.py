"""Banks of any size and history for the benchmarks, the same for the same seed."""

from __future__ import annotations

import random
from pathlib import Path

from valve_plugin.bank.entries import Baseline, EpochOpened, Judged, PanelFixed, Proposed
from valve_plugin.bank.moves import apply
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest
from valve_plugin.records import Item, Panel, PanelOutcome, PanelResult, PanelTask, Proposal, Verdict
from valve_plugin.theory.acceptance import decisive_prefix, needed_passes


def vocabulary(text: str) -> list[str]:
    return text.split()


VERBS = vocabulary(
    "check compare trace reproduce isolate narrow rerun inspect restore guard normalize validate bisect log"
)
AREAS = vocabulary(
    "parser lexer delta diff hash cache token path index iterator encoder serializer exclude ignore order type "
    "config option report tree node visitor formatter filter style schema dataset element sequence pixel rule "
    "dialect segment fixture import module boundary regex unicode bytes date decimal numpy set tuple enum slot"
)
FILLER = vocabulary(
    "the a of to in and is when that it for with not on as be by this are from or an if at which before after only "
    "every each one two first last value result call function method class test case error exception argument"
)
FIELD = [area + ending for ending in ("", "s", "ed", "ing", "map", "state", "name", "info") for area in AREAS]


def words(rng: random.Random, count: int) -> str:
    """Return prose-like words: function words, words of the field (few common, most rare), identifiers."""

    def rare(vocabulary: list[str]) -> str:
        return vocabulary[int(rng.paretovariate(0.5) - 1) % len(vocabulary)]

    def word() -> str:
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(FILLER)
        if kind < 0.8:
            return rare(FIELD)
        if kind < 0.9:
            return rng.choice(VERBS)
        if kind < 0.96:
            return f"{rng.choice(VERBS)}_{rare(FIELD)}"
        return f"{rare(FIELD).title()}{rare(FIELD).title()}Error"

    return " ".join(word() for _ in range(count))


def distinct(rng: random.Random, count: int) -> list[Item]:
    """Return items as they are proposed, half of each kind: none repeats another, each speaks of things of its own."""

    def item(n: int) -> Item:
        skill = n % 2 == 1
        steps = "\n".join(f"{step}. {words(rng, 18)}." for step in range(1, rng.randint(4, 8)))
        own = " ".join(f"thing{n}x{j}" for j in range(60))
        return Item(
            kind="skill" if skill else "principle",
            name=f"{rng.choice(VERBS)}-{rng.choice(AREAS)}-{n}",
            text=words(rng, rng.randint(10, 25)),
            scope_hint=words(rng, rng.randint(4, 12)) if skill else "",
            markdown=f"**Trigger**: {words(rng, 20)}\n\n**Procedure**\n{steps}\n\n{own}",
            passes=rng.randint(1, 2),
            attempts=3,
        )

    return [item(n) for n in range(count)]


class History:
    """The ledger of a bank that grew by gates over a full panel: six items an accept, two rejections for each."""

    def __init__(self, path: Path, tasks: int = 50) -> None:
        self.store = BankStore.create(path, "benchmark/benchmark")
        self.tasks = tuple(f"benchmark__task-{n:02}" for n in range(tasks))
        members = tuple(PanelTask(instance_id=task, content_hash=digest(task)) for task in self.tasks)
        self.panel, self.epoch = Panel(tasks=members), 0
        self.store.append(PanelFixed(panel=self.panel))
        self._open_epoch()

    def _open_epoch(self) -> None:
        self.passes, self.query, self.epoch = len(self.tasks) // 4, 0, self.epoch + 1
        opening = EpochOpened(
            epoch=self.epoch, horizon=1000, delta="0.05", panel_hash=self.panel.hash, reason="benchmark"
        )
        self.store.append(opening)
        found = self._outcomes(f"epoch {self.epoch}", self.passes)
        result = PanelResult(bank_hash=self.store.bank.hash, outcomes=found)
        self.store.append(Baseline(epoch=self.epoch, result=result))

    def grow(self, items: tuple[Item, ...]) -> None:
        """Accept the items, six at a time."""
        for first in range(0, len(items), 6):
            if self.passes + self._needed > len(self.tasks) * self.panel.rollouts:
                self._open_epoch()
            move = Proposal(task_id=f"mixed-{first}", items=items[first : first + 6])
            for reason in ("worse", "no better"):
                rejected = Proposal(task_id=f"mixed-{first}", items=items[first : first + 1], issue_summary=reason)
                self._judge(rejected, self.passes, accept=False)
            self._judge(move, self.passes + self._needed, accept=True)
            self.passes += self._needed

    @property
    def _needed(self) -> int:
        return needed_passes(self.panel.rho, len(self.tasks), self.panel.rollouts)

    def _outcomes(self, block: str, passes: int) -> tuple[PanelOutcome, ...]:
        cells = [(task, ordinal) for task in self.tasks for ordinal in range(self.panel.rollouts)]
        return tuple(
            PanelOutcome(
                task_id=task,
                ordinal=ordinal,
                outcome="resolved" if n < passes else "unresolved",
                context_hash=digest([block, task]),
            )
            for n, (task, ordinal) in enumerate(cells)
        )

    def _judge(self, move: Proposal, passes: int, *, accept: bool) -> None:
        bank, self.query = self.store.bank, self.query + 1
        found = self._outcomes(move.id, passes)
        now = [o.outcome for o in self.store.current_outcomes() or ()]
        if not accept:  # gates stop a rejection as early as they can
            found = found[: decisive_prefix(now, [o.outcome for o in found], self._needed)]
        verdict = Verdict(
            proposal_id=move.id,
            decision="accept" if accept else "reject",
            epoch=self.epoch,
            query=self.query,
            panel_hash=self.panel.hash,
            bank_hash=bank.hash,
            pairing=self.panel.pairing,
            rho=self.panel.rho,
            n_tasks=len(self.tasks),
            rollouts=self.panel.rollouts,
            needed=self._needed,
            current_passes=self.passes,
            candidate_passes=sum(o.outcome == "resolved" for o in found),
            order=self.tasks,
            outcomes=found,
        )
        self.store.append(Proposed(proposal=move))
        self.store.append(Judged(verdict=verdict, bank_after=apply(bank, move).hash if accept else bank.hash))
