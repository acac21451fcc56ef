"""Does a text help? Paired rollouts with and without it, until that is clear. Nothing is learned.

Each pair is one rollout on either side at a task drawn at random, with replacement. Outcomes are used in the order in
which the pairs were drawn, so neither the number of workers nor an interruption changes the answer. Rollouts are kept
per repository: the same command continues, and another text is compared with the same rollouts without one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from valve_plugin import config, paths, plugins
from valve_plugin.bank.local import LocalStore
from valve_plugin.codec import decode
from valve_plugin.config import SCRIPTED_MODEL, Settings
from valve_plugin.errors import BudgetError, ConfigError, InfrastructureError, TaskError, ValveError
from valve_plugin.events import AgentsLoading, AttemptFinished, Observe, TrialAdvanced
from valve_plugin.evolve.budget import rollout_cost
from valve_plugin.evolve.open import Place, Say, make_ready, require_able
from valve_plugin.gate.panel_run import rollout_facts, run_durably
from valve_plugin.gate.plan import PlannedRollout
from valve_plugin.records import Attempt, Context, Record, Task
from valve_plugin.rollouts.attempt import rollout_key
from valve_plugin.rollouts.retry import Guard, RunAttempt, limits_of
from valve_plugin.rollouts.workers import Workers
from valve_plugin.tasks.task_set import TaskSet, load
from valve_plugin.theory import confidence_sequence as sequence
from valve_plugin.theory.budget import RolloutCost
from valve_plugin.theory.confidence_sequence import Answer, Interval, PairCounts

ANSWERS = "answers"
"""The log of what trials in a repository came to."""
_SEED_ORDINALS = 1000
"""Ordinals of one seed: another seed draws other pairs, of fresh rollouts."""


class Pair(NamedTuple):
    """A task and the ordinal of its rollouts on both sides."""

    task: Task
    ordinal: int


class Sides(NamedTuple):
    """What is compared."""

    without: Context
    with_text: Context


class Means(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Means over the rollouts of one side."""

    passed: float
    """Share of resolved rollouts."""
    steps: float
    seconds: float
    usd: float | None
    """None: not counted."""
    tokens: float | None
    """Read and written, of all model calls of a rollout; None: the trajectories do not say."""


class TaskResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pairs of one task, and the resolved rollouts on both sides."""

    task_id: str
    pairs: int
    without: int
    with_text: int


class TrialResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a trial found so far."""

    answer: Answer
    counts: PairCounts
    interval: Interval
    """Of the difference on these tasks."""
    alike: Interval
    """Of the difference on tasks like these, if these are a random sample of them: from the first pair of each task."""
    tasks: int
    """Tasks that pairs are drawn from."""
    sealed: int = 0
    """Tasks of the holdout, from which none is drawn."""
    planned: int
    """Pairs at most."""
    needed: int | None
    """Pairs, those so far included, after which an answer is likely; None: unknown."""
    without: Means | None
    with_text: Means | None
    by_task: tuple[TaskResult, ...]
    """Tasks that were drawn, those that gained most first."""
    course: tuple[tuple[int, float, float, float], ...] = ()
    """(pairs, difference, low, high) on the way, at most 100 times."""
    stopped: str = ""
    """Why a budget stopped it; empty: none did."""
    lost: tuple[str, ...] = ()
    """Why pairs are left out that host or provider lost; the same trial tries them again."""


def usable_tasks(taskset: TaskSet) -> list[Task]:
    """Return the tasks that a trial draws from: all but the sealed holdout, in the order of their ids.

    Raises:
        TaskError: there is none.
    """
    sealed = {t.instance_id for t in taskset.split.holdout.tasks} if taskset.split else set()
    found = sorted((t for t in taskset.tasks if t.instance_id not in sealed), key=lambda t: t.instance_id)
    if not found:
        raise TaskError(f"{taskset.repository.name}: all tasks of the set are its holdout, for `valve eval` alone")
    return found


def draw_pairs(tasks: Sequence[Task], seed: int) -> Iterator[Pair]:
    """Yield pairs without end: each draws one of the tasks, with replacement."""
    rng = random.Random(f"try {seed}")  # noqa: S311 (a sample, no secret)
    first = _SEED_ORDINALS * (seed % 1_000_000)
    drawn: Counter[str] = Counter()
    while True:
        task = rng.choice(tasks)
        yield Pair(task, first + drawn[task.instance_id])
        drawn[task.instance_id] += 1


@contextmanager
def open_trial(
    tasks: Path,
    given: Mapping[str, Any],
    sides: Sides,
    *,
    pairs: int | None,
    negligible: float,
    observer: object = None,
    scripted: Callable[[TaskSet, Settings], AbstractContextManager[Settings]] | None = None,
    say: Say = lambda text: None,
    stages: AbstractContextManager[Say] | None = None,
) -> Iterator[Trial]:
    """Open a trial; what is not possible is refused before anything runs.

    See `Trial` and `open_run` for the arguments; without `pairs` there are three for each task.

    Raises:
        ConfigError: a setting or a text that does not fit.
        TaskError: tasks that cannot be used.
    """
    taskset = load(tasks)
    settings = config.load(None, given)
    require_able(taskset, replace(settings, model=SCRIPTED_MODEL) if scripted else settings)
    for context in sides:
        if (size := len(context.text.encode())) > settings.context_bytes:
            raise ConfigError(
                f"the text has {size:,} bytes, more than context_bytes ({settings.context_bytes:,}) allows; shorten "
                "it, or raise that with -c"
            )
    drawn_from = usable_tasks(taskset)
    sealed = len(taskset.tasks) - len(drawn_from)
    local = LocalStore(paths.trials_dir(taskset.repository.name))
    with ExitStack() as stack:
        if scripted:
            settings = stack.enter_context(scripted(taskset, settings))
        place = Place(local, local.dir, "remove that folder, with the rollouts of all trials in it")
        refused = make_ready(taskset, settings, place, scripted=scripted is not None, say=say, stages=stages)
        drawn_from = [task for task in drawn_from if task.instance_id not in refused]
        manager = plugins.load(settings.plugins)
        if observer is not None:
            manager.register(observer)
        yield Trial(
            manager.hook.valve_attempt, local, settings, drawn_from, sides, pairs or 3 * len(drawn_from), negligible,
            partial(plugins.send, manager.hook), sealed,
        )  # fmt: skip


class Trial:
    """One comparison of two texts, or of a text and none."""

    def __init__(
        self, attempt: RunAttempt, local: LocalStore, settings: Settings, tasks: Sequence[Task], sides: Sides,
        pairs: int, negligible: float, observe: Observe, sealed: int = 0,
    ) -> None:  # fmt: skip
        """Draw the pairs, so many at most.

        Of the settings, `delta` is the probability that the answer is wrong, at most. Differences up to `negligible`,
        in rate units, do not matter. `sealed` is the number of tasks that are left out, because they are the holdout.
        """
        self.sealed = sealed
        self._observe, self._attempt = observe, attempt
        self.local, self.settings, self.sides = local, settings, sides
        self.tasks, self.negligible, self.error = tasks, negligible, float(settings.delta)
        self.pairs = list(islice(draw_pairs(tasks, settings.seed), pairs))
        self.known = list[tuple[Attempt, Attempt]]()
        """The attempts of the first pairs, without and with the text."""
        self.counts = PairCounts()
        self.lost = list[str]()
        """Why pairs were lost in this run, in spite of further tries; another run tries them again."""
        self._read_back()

    @property
    def answer(self) -> Answer:
        """What the pairs so far say."""
        return sequence.answer(self.counts, self.negligible, self.error)

    @property
    def missing(self) -> int:
        """Rollouts that are left to run, at most; 0 where the answer is clear."""
        if self.answer != "unclear":
            return 0
        cells = (cell for pair in self.pairs[len(self.known) :] for cell in self._cells(pair))
        return sum(self._finished(cell) is None for cell in cells)

    def run(self) -> TrialResult:
        """Run pairs until the answer is clear, the last one is done or a budget is used up; return what was found.

        Raises:
            InfrastructureError: host or provider fail again and again; the same trial continues from there.
        """
        stopped = ""
        if self.answer == "unclear" and len(self.known) < len(self.pairs):
            self._observe(AgentsLoading())
            try:
                self._run()
            except BudgetError as e:
                stopped = str(e)
            if self.lost and not self.known:
                raise InfrastructureError(f"every pair was lost: {self.lost[0]}")
        return self.result(stopped)

    def _run(self) -> None:
        usd_each = self.cost().usd or 0.0 if self.settings.budget_usd else 0.0
        guard = Guard(self._attempt, limits_of(self.settings), observe=self._observe, usd_each=usd_each)
        run = partial(run_durably, guard, self.local, self.settings)
        with Workers(self.settings.workers) as executor:
            left = self.pairs[len(self.known) :]
            jobs = [[executor.submit(partial(run, cell, "eval")) for cell in self._cells(pair)] for pair in left]
            try:
                for pair in jobs:
                    without, with_text = [self._result(job, guard) for job in pair]
                    if lost := [a.reason for a in (without, with_text) if a.outcome == "errored"]:
                        self.lost.append(lost[0])
                        continue
                    self._add(without, with_text)
                    at = sequence.interval(self.counts, self.error)
                    self._observe(
                        TrialAdvanced(
                            done=len(self.known),
                            of=len(self.pairs),
                            better=int(self.counts.better),
                            worse=int(self.counts.worse),
                            low=at.low,
                            high=at.high,
                        )
                    )
                    if self.answer != "unclear":
                        break
            except BudgetError:
                wait([job for pair in jobs for job in pair])  # what still runs is paid for, and counts later
                raise
            executor.kill()

    def _result(self, job: Future[Attempt], guard: Guard) -> Attempt:
        done = job.result()
        guard.check()
        if guard.ran(done):
            self._observe(AttemptFinished(**rollout_facts(done)))
        return done

    def _read_back(self) -> None:
        """Take the finished pairs from the journal, up to the first that is missing or to the answer."""
        for pair in self.pairs:
            without, with_text = (self._finished(cell) for cell in self._cells(pair))
            if without is None or with_text is None or self.answer != "unclear":
                return
            self._add(without, with_text)

    def _add(self, without: Attempt, with_text: Attempt) -> None:
        self.known.append((without, with_text))
        self.counts = self.counts.plus(_difference(without, with_text))

    def _cells(self, pair: Pair) -> list[PlannedRollout]:
        return [PlannedRollout(pair.task, context, pair.ordinal) for context in self.sides]

    def _finished(self, cell: PlannedRollout) -> Attempt | None:
        return self.local.journal_get(rollout_key(self.settings, cell.task, cell.context, cell.ordinal))

    def cost(self) -> RolloutCost:
        """Return what a rollout costs: the mean of recorded ones, else the most by the model's price."""
        priced = self.settings.plugins == ("valve",) and self.settings.model != SCRIPTED_MODEL
        return rollout_cost(self.local, self.settings, by_price=priced)

    def result(self, stopped: str = "") -> TrialResult:
        """Return what was found so far."""
        first: dict[str, int] = {}
        for without, with_text in self.known:
            first.setdefault(without.task_id, _difference(without, with_text))
        firsts = PairCounts()
        for difference in first.values():
            firsts = firsts.plus(difference)
        needed = sequence.pairs_needed(self.counts, self.negligible, self.error) if self.answer == "unclear" else None
        return TrialResult(
            answer=self.answer,
            counts=self.counts,
            interval=sequence.interval(self.counts, self.error),
            alike=sequence.interval(firsts, self.error),
            tasks=len(self.tasks),
            sealed=self.sealed,
            planned=len(self.pairs),
            needed=needed,
            without=_means(self.local, [pair[0] for pair in self.known]),
            with_text=_means(self.local, [pair[1] for pair in self.known]),
            by_task=_by_task(self.known),
            course=self._course(),
            stopped=stopped,
            lost=tuple(self.lost),
        )

    def _course(self) -> tuple[tuple[int, float, float, float], ...]:
        differences = (_difference(*pair) for pair in self.known)
        counts = list(accumulate(differences, PairCounts.plus, initial=PairCounts()))
        step = -(-len(counts) // 100)
        shown = counts[::-1][::step][::-1]
        return tuple((int(c.total), c.difference, *sequence.interval(c, self.error)) for c in shown)


def _difference(without: Attempt, with_text: Attempt) -> int:
    return (with_text.outcome == "resolved") - (without.outcome == "resolved")


def _by_task(known: Iterable[tuple[Attempt, Attempt]]) -> tuple[TaskResult, ...]:
    pairs, without, with_text = Counter[str](), Counter[str](), Counter[str]()
    for bare, told in known:
        pairs[bare.task_id] += 1
        without[bare.task_id] += bare.outcome == "resolved"
        with_text[bare.task_id] += told.outcome == "resolved"
    found = (TaskResult(task_id=t, pairs=n, without=without[t], with_text=with_text[t]) for t, n in pairs.items())
    return tuple(sorted(found, key=lambda t: ((t.without - t.with_text) / t.pairs, t.task_id)))


def _means(local: LocalStore, attempts: Sequence[Attempt]) -> Means | None:
    if not attempts:
        return None
    number, usd = len(attempts), sum(a.cost_usd for a in attempts)
    tokens = [found for a in attempts if (found := _tokens(local, a)) is not None]
    return Means(
        passed=sum(a.outcome == "resolved" for a in attempts) / number,
        steps=sum(a.steps for a in attempts) / number,
        seconds=sum(a.seconds for a in attempts) / number,
        usd=usd / number if usd else None,
        tokens=sum(tokens) / len(tokens) if tokens else None,
    )


def _tokens(local: LocalStore, attempt: Attempt) -> int | None:
    """Return the tokens that a rollout's model calls read and wrote; None if its trajectory does not say."""
    with suppress(ValveError):
        found = decode(local.trajectory(attempt), dict[str, Any], where="trajectory")
        responses = [(message.get("extra") or {}).get("response") for message in found.get("messages", [])]
        usages = [response.get("usage") for response in responses if isinstance(response, Mapping)]
        usages += found.get("info", {}).get("calls", [])  # of agents behind the gateway
        if counted := [usage for usage in usages if isinstance(usage, Mapping)]:
            return sum(int(u.get("prompt_tokens") or 0) + int(u.get("completion_tokens") or 0) for u in counted)
    return None
