"""SIMULATION: VALVE's gate, GEPA and SkillOpt learn in one made-up world, from the same proposals and rollouts.

A world has 100 tasks to learn from, 50 of a panel and 400 that nobody sees. A task's chance to pass is a logit. Lessons
move the logits of one family of tasks; most do nothing, some harm. In a family the best lesson counts in full, the
others in part. Whoever asks "the model" about a task gets one lesson for its family. The gain is the mean change of the
unseen tasks' chances, without noise. The world's parameters were drawn once from `RANGES`.

VALVE gives a task at most ten lessons, which retrieval finds: not all of its family, and some others. GEPA and SkillOpt
are their real packages (`pip install 'valve-plugin[bench]'`); all tasks read their whole document, so it misses none.
VALVE goes over the stream again and again here; its rollouts are those of one worker.

    python benchmarks/peers.py --seeds 20 --out peers.jsonl    # goes on where it stopped; prints the table
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import copy
from functools import cache, cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from valve_plugin.config import Settings
from valve_plugin.theory import gate_rule

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
STREAM, PANEL, HOLDOUT = slice(0, 100), slice(100, 150), slice(150, 550)
TASKS = 550
ROLLOUTS, WORKERS = 3, 32
MOST = 10
"""Lessons that a task retrieves, at most: five of a kind."""
SCREEN = Settings().screen
BUDGETS = (3_000, 6_000, 12_000)
BASES = (0.64, 0.75, 0.85)

RANGES = {
    "spread": (2.5, 3.5),  # standard deviation of the tasks' logits
    "families": (6, 12),
    "without": (0.10, 0.25),  # share of tasks without a family
    "teaches": (0.15, 0.30),  # share of lessons that help
    "harms": (0.05, 0.12),  # share that harm
    "gain_low": (0.3, 0.7), "gain_high": (2.0, 4.0),  # a helpful lesson's effect in logits is between these two
    "harm_low": (0.1, 0.3), "harm_high": (0.6, 1.2),
    "others": (0.1, 0.4),  # what a family's further helpful lessons count
    "missed": (0.05, 0.20),  # share of the family's tasks for which retrieval misses a lesson
    "stray": (0.05, 0.15),  # share of the other tasks that get it nevertheless
}  # fmt: skip
_drawn = np.random.default_rng(19)
DRAWN = {name: float(_drawn.uniform(low, high)) for name, (low, high) in RANGES.items()}
WORLDS: dict[str, dict[str, float]] = {
    "drawn": DRAWN,
    "misses": DRAWN | {"missed": 0.5, "stray": 0.25},
    "interferes": DRAWN | {"clash": 0.1, "cost": 0.3},  # one pair of lessons in ten costs so many logits where both are
}


class Lesson(NamedTuple):
    """What a model may say about a family of tasks."""

    number: int
    family: Bools
    """The tasks it is about."""
    effect: float
    """What it adds to their logits."""
    found: Bools
    """The tasks for which retrieval finds it."""
    rank: float
    """Those of the least rank come first."""


class World:
    """Tasks, and what lessons do to them."""

    def __init__(self, kind: str, base: float, seed: int) -> None:
        self.p = WORLDS[kind]
        self.rng = np.random.default_rng([seed, round(100 * base), *kind.encode()])
        logits = self.rng.normal(0.0, self.p["spread"], TASKS)
        low, high = -10.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _sigmoid(logits + middle).mean() < base else (low, middle)
        self.logits, self.families = logits + low, round(self.p["families"])
        weights = 1 / np.arange(1, self.families + 1) ** 0.7
        drawn = self.rng.choice(self.families, TASKS, p=weights / weights.sum())
        self.family = np.where(self.rng.random(TASKS) < self.p["without"], -1, drawn)
        self.lessons: list[Lesson] = []
        self._seed = seed

    def clashes(self, number: NDArray[np.int_], others: NDArray[np.int_]) -> Bools:
        """Return which lessons clash with one, task by task; -1 is no lesson."""
        a, b = np.minimum(number, others), np.maximum(number, others)
        drawn = (a * 7919 + b * 104729 + a * b * 31 + self._seed * 15485863) % 1009 / 1009
        clash: Bools = (a >= 0) & (drawn < self.p["clash"])
        return clash

    def propose(self, task: int) -> Lesson:
        """Return a new lesson about the family of a task."""
        p, known = self.p, int(self.family[task])
        family = self.family == (known if known >= 0 else int(self.rng.integers(self.families)))
        kind, size = self.rng.random(), 0.0
        if kind < p["teaches"] and known >= 0:
            size = self.rng.uniform(p["gain_low"], p["gain_high"])
        elif p["teaches"] <= kind < p["teaches"] + p["harms"]:
            size = -self.rng.uniform(p["harm_low"], p["harm_high"])
        found = np.where(family, self.rng.random(TASKS) >= p["missed"], self.rng.random(TASKS) < p["stray"])
        self.lessons.append(Lesson(len(self.lessons), family, size, found, self.rng.random()))
        return self.lessons[-1]


class Bank:
    """Lessons, and every task's chance to pass with them: with those that it retrieves, or with all in one document."""

    def __init__(self, world: World, *, retrieved: bool) -> None:
        self.world, self.retrieved, self.lessons = world, retrieved, list[Lesson]()
        rows = MOST if retrieved else 0
        self._number, self._effect = np.full((rows, TASKS), -1), np.zeros((rows, TASKS))
        """What each task (column) gets, in any order; -1: nothing."""
        self._rank = np.full((rows, TASKS), np.inf)
        self.changed = np.zeros(TASKS, dtype=bool)
        """The tasks whose context the last lesson changed."""

    def plus(self, *lessons: Lesson) -> Bank:
        """Return the bank with more lessons."""
        new = copy(self)
        new._number, new._effect, new._rank = self._number.copy(), self._effect.copy(), self._rank.copy()
        new.lessons = [*self.lessons, *lessons]
        new.__dict__.pop("rates", None)
        for lesson in lessons:
            new._give(lesson)
        return new

    def _give(self, lesson: Lesson) -> None:
        if self.retrieved:
            rank = lesson.rank - lesson.family  # those about a task's family come first
            last = self._rank.argmax(axis=0)
            self.changed = lesson.found & (rank < self._rank.max(axis=0))
        else:
            self._number, self._effect, self._rank = (np.pad(x, ((0, 1), (0, 0))) for x in self._arrays)
            rank, last = np.zeros(TASKS), np.full(TASKS, len(self._number) - 1)
            self.changed = np.ones(TASKS, dtype=bool)
        cells = last[self.changed], np.flatnonzero(self.changed)
        for array, value in zip(self._arrays, (lesson.number, lesson.effect * lesson.family, rank), strict=True):
            array[cells] = np.broadcast_to(value, TASKS)[self.changed]

    def chance(self, task: int, lesson: Lesson) -> float:
        """Return a task's chance to pass if it gets one more lesson, whether retrieval finds that or not."""
        wider, found = copy(self), lesson.found.copy()
        pads = zip(self._arrays, (-1, 0, np.inf), strict=True)
        wider._number, wider._effect, wider._rank = (
            np.pad(x, ((0, 1), (0, 0)), constant_values=empty) for x, empty in pads
        )
        found[task] = True
        return float(wider.plus(lesson._replace(found=found)).rates[task])

    @property
    def _arrays(self) -> tuple[Any, Any, Any]:
        return self._number, self._effect, self._rank

    @cached_property
    def rates(self) -> Floats:
        """Every task's chance to pass."""
        helpful = np.maximum(self._effect, 0)
        best = helpful.max(axis=0, initial=0)
        total = best + self.world.p["others"] * (helpful.sum(axis=0) - best) + np.minimum(self._effect, 0).sum(axis=0)
        if "clash" in self.world.p:
            numbers = self._number if self.retrieved else self._number[:, :1]
            for i in range(len(numbers)):
                total -= self.world.p["cost"] * self.world.clashes(numbers[i], numbers[:i]).sum(axis=0)
        return _sigmoid(self.world.logits + total)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


class State(NamedTuple):
    """What a learner would deploy from some point of its run on."""

    rollouts: int
    """Spent so far."""
    waves: int
    """Rounds of up to 32 rollouts at the same time, one after the other."""
    gain: float
    """Points over nothing learned, on the unseen tasks."""
    useless: int
    harmful: int
    lessons: int


class Work:
    """A learner's account: what it spent, and what it would deploy."""

    def __init__(self, world: World, *, retrieved: bool) -> None:
        self.world = world
        self.rollouts = self.waves = 0
        self.start = _sigmoid(world.logits)[HOLDOUT].mean()
        self.states: list[State] = []
        self.deploy(Bank(world, retrieved=retrieved))

    def spend(self, rollouts: int) -> None:
        """Count rollouts that may run at the same time."""
        self.rollouts, self.waves = self.rollouts + rollouts, self.waves + math.ceil(rollouts / WORKERS)

    def deploy(self, bank: Bank, at: tuple[int, int] | None = None) -> None:
        """Note what is deployed from now on, or since `at` (rollouts, waves)."""
        rollouts, waves = at or (self.rollouts, self.waves)
        useless, harmful = sum(not x.effect for x in bank.lessons), sum(x.effect < 0 for x in bank.lessons)
        gain = 100 * float(bank.rates[HOLDOUT].mean() - self.start)
        self.states.append(State(rollouts, waves, gain, useless, harmful, len(bank.lessons)))


# ---- VALVE


Judge = Callable[["Work", Floats, Floats, Bools], bool]
"""Whether a lesson is accepted, from the panel's chances without it and with it, and the tasks that retrieve it."""


def valve(world: World, budget: int, judge: Judge, screen: int = 0) -> Work:
    """Three attempts at each task of the stream; a lesson where they are mixed; its screen; the gate."""
    work, bank, order = Work(world, retrieved=True), Bank(world, retrieved=True), list[int]()
    while work.rollouts < budget:
        order = order or world.rng.permutation(STREAM.stop).tolist()
        task = order.pop()
        work.spend(ROLLOUTS)
        if 0 < world.rng.binomial(ROLLOUTS, bank.rates[task]) < ROLLOUTS:
            lesson = world.propose(task)
            after = bank.plus(lesson)
            if not passes(work, after.rates[task] if after.changed[task] else bank.chance(task, lesson), screen):
                continue
            if judge(work, bank.rates[PANEL], after.rates[PANEL], after.changed[PANEL]):
                bank = after
                work.deploy(bank)
    return work


def passes(work: Work, chance: float, tries: int) -> bool:
    """Attempt a lesson's own task with it, as by one worker: up to the first failure."""
    for _ in range(tries):
        work.spend(1)
        if work.world.rng.random() >= chance:
            return False
    return True


class Gate:
    """The gate with its early stop: the paper's, or the fresh protocol's."""

    def __init__(self, *, fresh: bool) -> None:
        self.fresh, protocol = fresh, "fresh" if fresh else "paper"
        n_tasks = PANEL.stop - PANEL.start
        self.needed = gate_rule.needed_passes(
            gate_rule.margin(Settings().rho, n_tasks, ROLLOUTS, protocol), n_tasks, ROLLOUTS
        )
        self.passes = np.full(n_tasks, -1)
        """Of each panel task under the current bank; -1: not measured."""
        self.served = np.zeros_like(self.passes)

    def __call__(self, work: Work, before: Floats, after: Floats, found: Bools) -> bool:
        """Judge one lesson."""
        rng, lacking = work.world.rng, self.passes < 0
        if lacking.any():
            self.passes[lacking], self.served[lacking] = rng.binomial(ROLLOUTS, before[lacking]), 0
            work.spend(ROLLOUTS * int(lacking.sum()))
        tasks = np.flatnonzero(found) if self.fresh else np.arange(len(before))
        tasks = tasks[np.argsort(self.passes[tasks], kind="stable")]
        passed = rng.random((len(tasks), ROLLOUTS)) < after[tasks][:, None]
        current = [_outcome(j < n) for n in self.passes[tasks] for j in range(ROLLOUTS)]
        candidate = [_outcome(p) for p in passed.ravel()]
        work.spend(gate_rule.decisive_prefix(current, candidate, self.needed) or 0)
        accepted = gate_rule.decide(current, candidate, self.needed) == "accept"
        self.served[tasks] += 1
        if accepted:
            self.passes[tasks] = -1 if self.fresh else passed.sum(axis=1)
        elif self.fresh:
            self.passes[self.served >= gate_rule.FRESH_QUERIES] = -1
        return accepted


def _outcome(passed: bool) -> Any:
    return "resolved" if passed else "unresolved"


# ---- GEPA


def _document(world: World, text: str) -> Bank:
    """Return the lessons of a document."""
    named = [world.lessons[int(number)] for number in re.findall(r"lesson (\d+)", text)]
    return Bank(world, retrieved=False).plus(*named)


def gepa(world: World, budget: int) -> Work:
    """`optimize_anything` with its defaults: minibatches of three, the panel as validation set."""
    from gepa import optimize_anything as package

    work, known = Work(world, retrieved=False), cache(partial(_document, world))
    at: list[tuple[int, int]] = []

    def evaluate(pairs: Sequence[tuple[dict[str, str], int]], *_: Any, **__: Any) -> list[tuple[float, dict[str, Any]]]:
        work.spend(len(pairs))
        at.append((work.rollouts, work.waves))
        passed = [bool(world.rng.random() < known(notes["notes"]).rates[task]) for notes, task in pairs]
        return [(float(p), {"task": task, "passed": p}) for p, (_, task) in zip(passed, pairs, strict=True)]

    def reflect(candidate: dict[str, str], shown: Any, components: list[str]) -> dict[str, str]:
        rows = [json.dumps(row, default=str) for row in shown["notes"]]
        failed = [row for row in rows if '"passed": false' in row.lower()] or rows
        chosen = failed[int(world.rng.integers(len(failed)))]
        found = re.search(r'"task": "?(\d+)', chosen)
        assert found, chosen
        return {"notes": f"{candidate['notes']}\nlesson {world.propose(int(found[1])).number}"}

    config = package.GEPAConfig(
        engine=package.EngineConfig(max_metric_calls=budget, parallel=False, max_workers=1, seed=0),
        reflection=package.ReflectionConfig(reflection_lm=None, custom_candidate_proposer=reflect),
    )
    result = package.optimize_anything(
        {"notes": "Notes."}, batch_evaluator=evaluate, dataset=list(range(STREAM.stop)),
        valset=list(range(PANEL.start, PANEL.stop)), objective="Notes that help an agent.", config=config,
    )  # fmt: skip
    best = -1.0
    for candidate, score, calls in zip(
        result.candidates, result.val_aggregate_scores, result.discovery_eval_counts, strict=True
    ):
        if score > best:
            best = score
            work.deploy(known(candidate["notes"]), next((a for a in at if a[0] >= calls), at[-1]))
    return work


# ---- SkillOpt


def skillopt(world: World, budget: int) -> Work:
    """`ReflACTTrainer` as `valve experiment` configures it: batches of 4 tasks x 3, the panel x 3 as selection set."""
    from skillopt.engine.trainer import ReflACTTrainer

    from valve_plugin.config import Settings
    from valve_plugin.lab.conditions.skillopt import settings_of
    from valve_plugin.lab.conditions.skillopt_adapter import supply_prompts

    supply_prompts()
    steps = budget // 130  # a step that proposes nothing costs 12 rollouts, all others 162
    with _model(world) as address, tempfile.TemporaryDirectory() as folder:
        given = Settings(model="openai/world", model_kwargs={"api_base": address, "api_key": "none"})
        cfg = settings_of(given, 4 * steps, PANEL.stop - PANEL.start, Path(folder))
        adapter = _adapter(world, cfg, budget)
        with suppress(_SpentError):
            ReflACTTrainer(cfg, adapter).train()
        found = sorted(Path(folder, "skills").glob("skill_v*.md"))
        before = ""
        for file in found:
            step, text = int(re.findall(r"\d+", file.name)[-1]), file.read_text("utf-8")
            if text != before and 0 < step <= len(adapter.at):
                adapter.work.deploy(_document(world, text), adapter.at[step - 1])
            before = text
    work: Work = adapter.work
    return work


class _SpentError(BaseException):
    """The budget is used up; the trainer has no limit of its own."""


def _adapter(world: World, cfg: dict[str, Any], budget: int) -> Any:
    from skillopt.datasets.base import BatchSpec

    from valve_plugin.lab.conditions.skillopt_adapter import Adapter, TaskLoader

    class Loader(TaskLoader):
        def plan_train_epoch(self, *, batch_size: int, seed: int, **about: Any) -> list[Any]:
            stream = list[int]()
            while len(stream) < cfg["train_size"]:
                stream += world.rng.permutation(STREAM.stop).tolist()
            parts = [stream[i : i + batch_size] for i in range(0, cfg["train_size"], batch_size)]
            return [BatchSpec("train", "train", n, len(p), payload=p) for n, p in enumerate(parts, 1)]

    class OfWorld(Adapter):
        def __init__(self) -> None:
            for name in ("analyst_workers", "failure_only", "minibatch_size", "edit_budget"):
                setattr(self, name, cfg[name])
            self.loader = Loader(range(cfg["train_size"]), range(PANEL.start, PANEL.stop))
            self.work, self.at = Work(world, retrieved=False), list[tuple[int, int]]()

        def rollout(self, env_manager: Any, skill_content: str, out_dir: str, **about: Any) -> list[dict[str, Any]]:
            phase, tasks = env_manager
            if phase == "train":
                if self.work.rollouts >= budget:
                    raise _SpentError
                self.at.append((self.work.rollouts, self.work.waves))
            rates, rows = _document(world, skill_content).rates, []
            self.work.spend(ROLLOUTS * len(tasks))
            self.at[-1:] = [(self.work.rollouts, self.work.waves)] * bool(self.at)  # the step ends with what it ran
            for task in tasks:
                for n, passed in enumerate(world.rng.random(ROLLOUTS) < rates[task]):
                    rows.append(_row(f"{task}-{n}", bool(passed), Path(out_dir)))
            return rows

    return OfWorld()


def _row(name: str, passed: bool, out: Path) -> dict[str, Any]:
    """One rollout as the package reads it, with the trajectory that it looks for."""
    place = out / "predictions" / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "conversation.json").write_text('[{"role": "agent", "content": "tried"}]', encoding="utf-8")
    return {
        "id": name, "hard": int(passed), "soft": float(passed), "task_type": "bug", "task_description": "a bug",
        "fail_reason": "" if passed else "tests fail", "n_turns": 1,
    }  # fmt: skip


@contextmanager
def _model(world: World) -> Iterator[str]:
    """Serve a model: one lesson for each analysis; other questions get the package's own fallback (all, in order)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
            tasks = re.findall(r"### Trajectory \d+ \(id=(\d+)-", asked)
            content = "none"
            if tasks:
                lesson = world.propose(int(tasks[int(world.rng.integers(len(tasks)))]))
                edit = {"op": "append", "target": "", "content": f"lesson {lesson.number}"}
                content = json.dumps({"failure_summary": [], "patch": {"reasoning": "", "edits": [edit]}})
            message = {"role": "assistant", "content": content}
            body = {"id": "x", "object": "chat.completion", "created": 0, "model": "world", "choices": [
                {"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip
            raw = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


LEARNERS: dict[str, Callable[[World, int], Work]] = {
    "VALVE paper": lambda world, budget: valve(world, budget, Gate(fresh=False)),
    "VALVE fresh": lambda world, budget: valve(world, budget, Gate(fresh=True), SCREEN),
    "ungated": lambda world, budget: valve(world, budget, lambda *about: True),
    "GEPA": gepa,
    "SkillOpt": skillopt,
}


# ---- results


def summary(states: Sequence[State], budget: int) -> dict[str, float]:
    """Return what a run came to within a budget."""
    within = [s for s in states if s.rollouts <= budget]
    last, gains = within[-1], np.array([s.gain for s in within])
    reached = {f"to +{t}": next((s.rollouts for s in within if s.gain >= t), math.inf) for t in (5, 10)}
    fall = float((np.maximum.accumulate(gains) - gains).max())
    return {
        "gain": last.gain, "peak": float(gains.max()), "drawdown": float(gains.max()) - last.gain, "largest fall": fall,
        "lessons": last.lessons, "useless": last.useless, "harmful": last.harmful, **reached,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]], budget: int) -> Iterator[str]:
    """Yield the lines of one budget: means and medians (of the rollouts to a gain), with their 95 % intervals."""
    names = ("gain", "peak", "drawdown", "largest fall", "lessons", "useless", "harmful")
    heads = ["fresh ahead", "to +5", "to +10", "waves"]
    yield f"{'world':10} {'base':>4} {'learner':12} {'n':>2} {' '.join(f'{h:>12}' for h in names)} " + _columns(heads)
    cells: dict[tuple[str, float, str], dict[int, dict[str, float]]] = {}
    for r in rows:
        found = summary([State(*s) for s in r["states"]], budget) | {"waves": _waves(r, budget)}
        cells.setdefault((r["world"], r["base"], r["learner"]), {})[r["seed"]] = found
    for cell in sorted(cells, key=_place):
        runs, ours = cells[cell], cells.get((*cell[:2], "VALVE fresh"), {})
        ahead = [ours[seed]["gain"] - runs[seed]["gain"] for seed in sorted(runs.keys() & ours.keys())]
        means = [_mean([run[name] for run in runs.values()]) for name in names]
        more = [_median([run[name] for run in runs.values()]) for name in ("to +5", "to +10")]
        more = [_mean(ahead) if ahead else "", *more, _mean([run["waves"] for run in runs.values()], 0)]
        line = f"{cell[0]:10} {cell[1]:4.2f} {cell[2]:12} {len(runs):2} {' '.join(f'{m:>12}' for m in means)}"
        yield f"{line} {_columns(more)}"


def _columns(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>20}" for cell in cells)


def _place(cell: tuple[str, float, str]) -> tuple[int, float, int]:
    return list(WORLDS).index(cell[0]), cell[1], list(LEARNERS).index(cell[2])


def _waves(run: dict[str, Any], budget: int) -> float:
    """Waves for a budget, in proportion to the whole run's."""
    return float(run["waves"]) * budget / run["rollouts"]


def _mean(values: Sequence[float], digits: int = 1) -> str:
    half = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{np.mean(values):.{digits}f} ± {half:.{digits}f}"


def _median(values: Sequence[float]) -> str:
    """Return the median, and between which of the ordered values it is with probability 0.95."""
    ordered, n = sorted(values), len(values)
    rank = next(k for k in range(n) if sum(math.comb(n, i) for i in range(k + 1)) > 0.025 * 2**n)
    low, high = ordered[max(rank - 1, 0)], ordered[n - max(rank, 1)]
    middle, low, high = (f"{v:.0f}" if v < math.inf else "never" for v in (float(np.median(ordered)), low, high))
    return f"{middle} ({low} to {high})"


def run(world: str, base: float, learner: str, seed: int, budget: int) -> dict[str, Any]:
    """Return one run as a row of the results."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        work = LEARNERS[learner](World(world, base, seed), budget)
    return {
        "world": world, "base": base, "learner": learner, "seed": seed, "budget": budget,
        "rollouts": work.rollouts, "waves": work.waves, "states": work.states,
    }  # fmt: skip


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=max(BUDGETS), help="rollouts of each run")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"), help="results, one line a run")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    known = {(r["world"], r["base"], r["learner"], r["seed"], r["budget"]) for r in rows}
    todo = [
        (world, base, learner, seed, args.budget)
        for seed in range(args.seeds) for world in args.worlds for base in BASES for learner in args.learners
    ]  # fmt: skip
    for cell in todo:
        if cell not in known:
            rows.append(run(*cell))
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print("SIMULATION. Drawn parameters: " + ", ".join(f"{name} {value:.3g}" for name, value in DRAWN.items()))
    for budget in [b for b in BUDGETS if b <= args.budget] or [args.budget]:
        print(f"\n{budget:,} rollouts; means with 95 % intervals of the mean\n")
        wanted = [r for r in rows if r["budget"] == args.budget and r["seed"] < args.seeds]
        print("\n".join(table(wanted, budget)))


if __name__ == "__main__":
    main()
