"""What SkillOpt's trainer sees of us: an environment of tasks, rolled out by our agent and graded by our tests.

The package is published without its prompt files; the ones here are in our own words and ask for what its code reads.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from skillopt import prompts
from skillopt.datasets.base import BaseDataLoader, BatchSpec
from skillopt.engine.trainer import ReflACTTrainer
from skillopt.envs.base import EnvAdapter

from valve_plugin.bank.store import BankStore
from valve_plugin.codec import plain
from valve_plugin.errors import BankError, InfrastructureError
from valve_plugin.events import AttemptFinished
from valve_plugin.evolve.open import OpenRun
from valve_plugin.evolve.steps import ATTEMPTS
from valve_plugin.extract.digest import digest
from valve_plugin.gate.panel_run import rollout_facts, run_durably
from valve_plugin.gate.plan import PlannedRollout, fixed_panel, panel_tasks
from valve_plugin.plugins import send
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts.retry import Guard, iterate_results, limits_of
from valve_plugin.rollouts.workers import Workers

PROMPTS = ("analyst_error", "analyst_success", "merge_failure", "merge_success", "merge_final", "ranking")
Fields = dict[str, Any]


def train(run: OpenRun, stream: Sequence[Task], cfg: Fields, context_of: Callable[[str], Context]) -> list[Fields]:
    """Run the trainer; return one row per step: what it learned from, what its gate did, and the document after it.

    Args:
        context_of: what a document is injected as.

    Raises:
        InfrastructureError: host or provider failed.
    """
    supply_prompts()
    adapter = Adapter(run, stream, cfg, context_of)
    ReflACTTrainer(cfg, adapter).train()
    return adapter.kept(Path(cfg["out_root"]))


def supply_prompts() -> None:
    """Put our prompt files where the package looks its own up."""
    folder = files(__package__).joinpath("skillopt_prompts")
    for name in PROMPTS:
        path = os.path.join(prompts._PROMPTS_DIR, f"{name}.md")
        prompts._cache.setdefault(path, folder.joinpath(f"{name}.md").read_text("utf-8"))


class TaskLoader(BaseDataLoader):  # type: ignore[misc]  # untyped package
    """Batches of the stream in prepared order; the selection set is the panel."""

    def __init__(self, stream: Sequence[Task], panel: Sequence[Task]) -> None:
        self.stream, self.panel = stream, panel

    def get_train_size(self) -> int:
        """Return how many tasks there are to learn from."""
        return len(self.stream)

    def plan_train_epoch(self, *, batch_size: int, seed: int, **about: Any) -> list[BatchSpec]:
        """Return the stream cut into batches: one pass, in its order."""
        parts = [self.stream[i : i + batch_size] for i in range(0, len(self.stream), batch_size)]
        return [BatchSpec("train", "train", seed + n, len(p), payload=list(p)) for n, p in enumerate(parts, 1)]

    def build_train_batch(self, batch_size: int, seed: int, **about: Any) -> BatchSpec:
        """Return the first batch."""
        return BatchSpec("train", "train", seed, batch_size, payload=list(self.stream[:batch_size]))

    def build_eval_batch(self, env_num: int, split: str, seed: int, **about: Any) -> BatchSpec:
        """Return the whole panel, always."""
        return BatchSpec("eval", split, seed, len(self.panel), payload=list(self.panel))


class Adapter(EnvAdapter):  # type: ignore[misc]  # untyped package
    """Rolls tasks out under the document, as often as the run attempts or judges a task."""

    def __init__(self, run: OpenRun, stream: Sequence[Task], cfg: Fields, context_of: Callable[[str], Context]) -> None:
        self.analyst_workers, self.failure_only = cfg["analyst_workers"], cfg["failure_only"]
        self.minibatch_size, self.edit_budget = cfg["minibatch_size"], cfg["edit_budget"]
        self._opened, self._context_of = run, context_of
        self._guard = Guard(run.manager.hook.valve_attempt, limits_of(run.settings))
        self._used: Counter[tuple[str, str]] = Counter()
        self.repeats = {"train": run.settings.attempts or ATTEMPTS, "eval": run.settings.rollouts}
        self.loader = TaskLoader(stream, panel_tasks(fixed_panel(run.store), run.taskset.tasks))
        self.learned: list[list[Attempt]] = []

    def get_dataloader(self) -> TaskLoader:
        """Return where batches come from."""
        return self.loader

    def build_env_from_batch(self, batch: BatchSpec, **about: Any) -> tuple[str, list[Task]]:
        """Return the phase and its tasks; that is all our rollouts need."""
        return batch.phase, list(batch.payload)

    def build_train_env(self, batch_size: int, seed: int, **about: Any) -> tuple[str, list[Task]]:
        """Return the first batch; the trainer uses the loader instead."""
        return self.build_env_from_batch(self.loader.build_train_batch(batch_size, seed))

    def build_eval_env(self, env_num: int, split: str, seed: int, **about: Any) -> tuple[str, list[Task]]:
        """Return the panel; the trainer uses the loader instead."""
        return self.build_env_from_batch(self.loader.build_eval_batch(env_num, split, seed))

    def rollout(self, env_manager: Any, skill_content: str, out_dir: str, **about: Any) -> list[Fields]:
        """Return one row per attempt.

        Raises:
            InfrastructureError: one errored; the next try goes on from the journal.
            BudgetError: a limit of the settings is reached.
        """
        phase, tasks = env_manager
        attempts = self._run(tasks, self._context_of(skill_content), phase)
        if phase == "train":
            self.learned.append(attempts)
        return [_result(self._opened.store, a, tasks, Path(out_dir)) for a in attempts]

    def _run(self, tasks: Sequence[Task], context: Context, phase: str) -> list[Attempt]:
        """Run attempts through the journal, task by task; no ordinal is used twice for a task under a document."""
        opened, repeats = self._opened, self.repeats[phase]
        planned = []
        for task in tasks:
            first = self._used[task.instance_id, context.hash]
            self._used[task.instance_id, context.hash] += repeats
            planned += [PlannedRollout(task, context, first + n) for n in range(repeats)]
        run_one = partial(run_durably, self._guard, opened.store.local, opened.settings)
        source = "panel" if phase == "eval" else "evolve"
        with Workers(opened.settings.workers) as executor:
            jobs = [executor.submit(partial(run_one, rollout, source)) for rollout in planned]
            attempts = [attempt for _, attempt in iterate_results(jobs)]
        for attempt in attempts:
            send(opened.manager.hook, AttemptFinished(**rollout_facts(attempt)))
        errored = [a for a in attempts if a.outcome == "errored"]
        if errored:
            raise InfrastructureError(f"{len(errored)} rollouts errored ({errored[0].reason}); start again to go on")
        return attempts

    def get_task_types(self) -> list[str]:
        """Return the one there is."""
        return ["bug"]

    def kept(self, out: Path) -> list[Fields]:
        """Return a row per step; see `train`."""
        history = json.loads((out / "history.json").read_text(encoding="utf-8"))
        rows, before = [], ""
        for step, attempts in zip(history, self.learned, strict=True):
            document = (out / "skills" / f"skill_v{step['step']:04d}.md").read_text(encoding="utf-8")
            rows.append(
                {"step": step["step"], "action": step["action"], "changed": document.strip() != before.strip(),
                 "document": document, "attempts": [plain(a) for a in attempts]}
            )  # fmt: skip
            before = document
        return rows


def _result(store: BankStore, attempt: Attempt, tasks: Sequence[Task], out: Path) -> Fields:
    """One attempt as the package reads it, with its trajectory where the package looks for it."""
    name = f"{attempt.task_id}-{attempt.ordinal}"
    solved = attempt.outcome == "resolved"
    issue = next(t.problem_statement for t in tasks if t.instance_id == attempt.task_id)
    try:
        trajectory = store.local.trajectory(attempt)
    except BankError:
        trajectory = b""
    place = out / "predictions" / name
    place.mkdir(parents=True, exist_ok=True)
    conversation = [{"role": "agent", "content": digest(trajectory, attempt)}]
    (place / "conversation.json").write_text(json.dumps(conversation), encoding="utf-8")
    return {
        "id": name, "hard": int(solved), "soft": float(solved), "task_type": "bug", "task_description": issue,
        "fail_reason": "" if solved else attempt.reason or "tests fail", "n_turns": attempt.steps,
    }  # fmt: skip
