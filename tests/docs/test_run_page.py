"""Runs drawn from what docs/explanation/statistics.md says of them alone come to what `valve plan` prints."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from valve_plugin.evidence.plan import GateTerms, Rates, RunPlan, plan_run
from valve_plugin.theory.estimates import RateSpread
from valve_plugin.theory.power import exact_population

MEAN, NOISE = 0.75, 0.05


@dataclass
class Page:
    """One run, as the page tells it."""

    tasks: int
    rollouts: int
    needed: int
    reach: float
    draw: random.Random
    fresh: bool = True
    spent: int = 0
    accepted: dict[float, int] = field(default_factory=lambda: {0.0: 0, 0.03: 0, -0.03: 0})

    def __post_init__(self) -> None:
        w = NOISE / (MEAN * (1 - MEAN) - NOISE)
        both = range(2 * self.tasks)
        self.rates = [self.draw.betavariate(MEAN * w, (1 - MEAN) * w) for _ in both]
        self.start = self.unseen()
        self.outcomes: dict[int, list[bool]] = {}
        self.reached: dict[int, int] = {}

    def unseen(self) -> float:
        return sum(self.rates[self.tasks :]) / self.tasks

    def rollout(self, rate: float) -> bool:
        self.spent += 1
        return self.draw.random() < rate

    def changed(self, rate: float, effect: float) -> float:
        if effect > 0:
            return rate + (1 - rate) * min(1, effect / (self.reach * (1 - MEAN)))
        return rate * (1 - min(1, -effect / (self.reach * MEAN)))

    def screened(self, effect: float) -> bool:
        (source,) = self.draw.choices(
            range(self.tasks, 2 * self.tasks), [p * (1 - p) for p in self.rates[self.tasks :]]
        )
        chance = self.changed(self.rates[source], effect)
        return all(self.rollout(chance) for _ in range(5))

    def propose(self) -> None:
        u = self.draw.random()
        effect = 0.0 if u < 0.7 else 0.03 if u < 0.9 else -0.03
        if not self.fresh or self.screened(effect):
            self.query(effect)

    def query(self, effect: float) -> None:
        for task in range(self.tasks):
            if task not in self.outcomes:
                self.outcomes[task] = [self.rollout(self.rates[task]) for _ in range(self.rollouts)]
                self.reached[task] = 0
        gets = {t for t in range(2 * self.tasks) if self.draw.random() < self.reach}
        after = [self.changed(p, effect) if t in gets else p for t, p in enumerate(self.rates)]
        ours = sorted((t for t in gets if t < self.tasks), key=lambda t: (sum(self.outcomes[t]), t))
        spare = sum(self.rollouts - sum(self.outcomes[t]) for t in ours) - self.needed
        accept = bool(ours) and spare >= 0
        then: dict[int, list[bool]] = {task: [] for task in ours}
        for task in ours:
            for _ in range(self.rollouts):
                if accept:
                    then[task].append(self.rollout(after[task]))
                    spare -= not then[task][-1]
                    accept = spare >= 0
        if accept:
            self.rates = after
            self.accepted[effect] += 1
        if not self.fresh:
            self.outcomes |= then if accept else {}
            return
        for task in ours:
            self.reached[task] += 1
            if accept or self.reached[task] == 15:
                del self.outcomes[task]


def compare(reach: float, runs: int, *, fresh: bool = True) -> None:
    tasks, needed, proposals = 50, 1 if fresh else 3, 100
    terms = GateTerms(
        horizon=proposals, reach=reach, rho="0.006" if fresh else "0.02", fresh=15 * fresh, screen=5 * fresh
    )
    rates = Rates([exact_population(RateSpread(MEAN, NOISE))] * tasks, "tasks as given")
    printed: RunPlan = plan_run(rates, terms, None, [])
    drawn = []
    for seed in range(runs):
        run = Page(tasks, 3, needed, reach, random.Random(seed), fresh)
        for _ in range(proposals):
            run.propose()
        drawn.append(run)
    gain = sum(run.unseen() - run.start for run in drawn) / runs
    assert gain == pytest.approx(printed.gain, abs=0.01), "within a point"
    for kind in printed.kinds:
        accepted = sum(run.accepted[kind.effect] for run in drawn) / runs
        assert accepted == pytest.approx(kind.accepted, abs=1)
    spent = sum(run.spent for run in drawn) / runs
    assert spent == pytest.approx(printed.rollouts, rel=0.1), "runs differ much, since few proposals pass their screen"


def test_a_run_written_from_the_page_comes_to_what_is_planned() -> None:
    compare(reach=0.3, runs=150)


@pytest.mark.heavy
@pytest.mark.parametrize("fresh", [True, False])
def test_the_run_on_the_page_and_that_of_the_papers_protocol(fresh: bool) -> None:
    compare(reach=1.0, runs=150, fresh=fresh)
