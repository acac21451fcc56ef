"""One reflection across four finished tasks, when at least one of them is mixed; one validation rollout per task.

All four stay visible to it, and the next four start afresh. Fewer than four at the end of the stream teach nothing.

Source: app:impl-ablations, "Batch extraction".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from valve_plugin.config import Settings
from valve_plugin.evolve.group import mixed
from valve_plugin.evolve.steps import Steps
from valve_plugin.experiment.conditions import Condition
from valve_plugin.extract.digest import readable
from valve_plugin.extract.reflect import ISSUE_LIMIT, Style, fill, known, prompt, reflect
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Proposal

SIZE = 4
PROMPTS = "batch-1"


class Batches(Steps):
    """Buffers finished tasks. A proposal is recorded with all four, so a resumed run starts behind them."""

    _buffer: tuple[Attempt, ...] = ()

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return all attempts of four tasks, if one of the four is mixed."""
        self._buffer = (*self._buffer, *attempts)
        tasks = [list(group) for _, group in groupby(self._buffer, key=lambda a: a.task_id)]
        if len(tasks) < SIZE:
            return ()
        batch, self._buffer = self._buffer, ()
        return batch if any(map(mixed, tasks)) else ()


def user(style: Style, bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]) -> str:
    """Return the message with a block per task, each with its issue and its labelled attempts."""
    blocks = []
    pairs = zip(attempts, trajectories, strict=True)
    for number, (_, group) in enumerate(groupby(pairs, key=lambda pair: pair[0].task_id), 1):
        rows = list(group)
        shown = [
            fill(prompt("attempt"), {"NUMBER": str(n), "LABEL": _label(a), "DIGEST": text.strip()})
            for n, (a, text) in enumerate(rows, 1)
        ]
        text = readable(rows[0][0].task_text or issue, ISSUE_LIMIT // SIZE)
        passed = sum(a.outcome == "resolved" for a, _ in rows)
        values = {"NUMBER": str(number), "ISSUE": text, "PASSED": str(passed), "TOTAL": str(len(rows))}
        blocks.append(fill(prompt("task", PROMPTS), {**values, "ATTEMPTS": "".join(shown)}))
    return fill(prompt("user", PROMPTS), {"TASKS": "".join(blocks), "COUNT": str(len(blocks)), "KNOWN": known(bank)})


def _label(attempt: Attempt) -> str:
    return "SUCCESS" if attempt.outcome == "resolved" else "FAILED"


STYLE = Style(PROMPTS, user=user)


class Hooks:
    """Extraction across tasks."""

    @hookimpl
    def valve_extract(
        self,
        settings: Settings,
        bank: Bank,
        issue: str,
        attempts: Sequence[Attempt],
        trajectories: Sequence[str],
        feedback: str,
    ) -> Proposal:
        """Ask what recurs."""
        return reflect(settings, bank, issue, attempts, trajectories, STYLE, feedback)


CONDITION = Condition(
    "batch of four: one cross-task reflection; one validation rollout per task",
    steps=Batches,
    hooks=f"{__name__}:Hooks",
    settings={"rollouts": 1},
)
