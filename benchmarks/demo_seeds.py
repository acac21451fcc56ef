"""What `valve demo` shows for other seeds: how often it has an accept and a rejection, and what the gate is worth.

A SIMULATION of the SIMULATION: agents do not run and nothing is graded, an attempt is resolved where the scripted
model draws the right edit. Extraction, retrieval, panel and gate are the demo's own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from valve_plugin import plugins
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest_bytes
from valve_plugin.config import SCRIPTED_MODEL, resolve
from valve_plugin.evidence.summary import proposal_results
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.open import fix_panel
from valve_plugin.evolve.steps import Steps, Ungated
from valve_plugin.extract import reflect
from valve_plugin.gate import judge, panel, plan
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab import demo
from valve_plugin.lab.simulation import parameters
from valve_plugin.lab.simulation.draw import Draw
from valve_plugin.lab.simulation.server import ScriptedModel
from valve_plugin.lab.simulation.solver import success_chance
from valve_plugin.records import Attempt
from valve_plugin.tasks.task_set import TaskSet, load

SYSTEM = "You are a helpful assistant that can interact with a computer."


class Drawn:
    """A plugin whose attempts are the scripted model's draws."""

    def __init__(self, simulation: ScriptedModel) -> None:
        self.simulation = simulation

    @hookimpl
    def valve_attempt(self, settings: Any, task: Any, context: Any, ordinal: int, source: Any) -> Attempt:
        system = f"{SYSTEM}\n\n{context.text}" if context.text else SYSTEM
        chance = success_chance(self.simulation.parameters, self.simulation.lessons, task.instance_id, system)
        key = (self.simulation.seed, task.instance_id, ordinal, "solver", digest_bytes(system.encode()))
        return Attempt(
            id=f"{task.instance_id[-8:]}-{ordinal}-{context.hash[:8]}",
            task_id=task.instance_id,
            ordinal=ordinal,
            source=source,
            outcome="resolved" if Draw(*key).chance(chance, "solved") else "unresolved",
            context_hash=context.hash,
            context_items=context.items,
        )


class Seen(NamedTuple):
    """One seed."""

    accepts: int
    rejects: int
    taken: int
    gated: float
    ungated: float


def look(taskset: TaskSet, sizes: Mapping[str, object], limit: int, seed: int) -> Seen:
    """Run both conditions with one seed."""
    given = {
        **sizes,
        "seed": seed,
        "embedding": "hashing",
        "review": "off",
        "model": SCRIPTED_MODEL,
        "tasks": str(demo.example(demo.EXAMPLE)),
    }
    settings = resolve(given, where="the benchmark")
    simulation = ScriptedModel(taskset.tasks, seed, parameters.defaults())
    shares, outcomes = [], []
    for steps in (Steps, Ungated):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_DATA_HOME"] = folder
            store = BankStore.create(Path(folder) / "bank", taskset.repository.name)
            manager = plugins.load(["valve"])
            manager.register(Drawn(simulation))
            stream = fix_panel(store, settings, taskset, gated=steps is Steps)[:limit]
            with in_process(simulation, taskset, manager.hook.valve_attempt):
                evolve(steps(manager, store, settings), stream)
            attempts = [a.outcome == "resolved" for a in store.local.attempts() if a.source == "evolve"]
            shares.append(sum(attempts) / len(attempts))
            outcomes += [row.outcome for row in proposal_results(store.entries())]
    counts = [outcomes.count(word) for word in ("accept", "reject", "taken")]
    return Seen(*counts, *shares)


@contextmanager
def in_process(simulation: ScriptedModel, taskset: TaskSet, attempt: Any) -> Iterator[None]:
    """Ask the model, and run the panel, without leaving this process."""

    def asked(settings: Any, model: str, messages: Any, schema: str) -> str:
        return str(simulation.reply({"messages": messages})["choices"][0]["message"]["content"])

    def streamed(
        settings: Any, bank_dir: Path, proposal: Any, *, confirm: bool = False, **_: Any
    ) -> Iterator[panel.PanelLine]:
        store = BankStore.open(bank_dir)
        fixed = plan.fixed_panel(store)
        settings = plan.panel_settings(settings, fixed)
        members, retrieve = plan.panel_tasks(fixed, taskset.tasks), plugins.load(["valve"]).hook.valve_retrieve
        planned = plan.panel_plan(settings, store, members, proposal, retrieve, confirm=confirm)
        lines: list[panel.Line] = []
        panel.run_panel(attempt, store.local, settings, planned, lines.append)
        yield from (line for line in lines if isinstance(line, panel.PanelLine))

    before = reflect.ask, judge.panel_process
    reflect.ask, judge.panel_process = asked, streamed
    try:
        yield
    finally:
        reflect.ask, judge.panel_process = before


def main() -> None:
    """Look at many seeds; the figures come last."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=50)
    options.add_argument("--fast", action="store_true", help="only the short demo")
    given = options.parse_args()
    seeds = range(given.seeds)
    taskset = load(demo.example(demo.EXAMPLE))
    kinds = [("full", demo.FULL, demo.FULL_TASKS), ("--fast", demo.FAST, demo.FAST_TASKS)]
    for name, sizes, limit in kinds[given.fast :]:
        seen = [look(taskset, sizes, limit, seed) for seed in seeds]
        both = sum(bool(s.accepts and s.rejects) for s in seen)
        gap = sorted(100 * (s.gated - s.ungated) for s in seen)
        print(f"{name}: first seeds {[(s.accepts, s.rejects) for s in seen[:10]]} (accepts, rejections)")
        print(f"{name}: an accept and a rejection with {both} of {len(seen)} seeds; mean", end=" ")
        print(", ".join(f"{sum(getattr(s, field) for s in seen) / len(seen):.2f} {field}" for field in Seen._fields))
        print(f"{name}: gated minus ungated passes of the stream, points: median {gap[len(gap) // 2]:.1f}, "
              f"from {gap[0]:.1f} to {gap[-1]:.1f}; gated ahead with {sum(g > 0 for g in gap)} seeds")  # fmt: skip


if __name__ == "__main__":
    main()
