"""Issue texts by a model: taken when they say nothing about the fix, paid for once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rollouts import calc
from valve_plugin.tasks.issue_model import rewrite
from valve_plugin.tasks.load import Row


def row(name: str) -> Row:
    changes = {k.lower(): v for k, v in calc.row(instance_id=name, problem_statement=f"{name} fails").items()}
    return Row(**changes)  # type: ignore[arg-type]


def test_answers_are_checked_and_kept(tmp_path: Path) -> None:
    answers = {"good": "# Clamping is off\n", "tells": "look into calc/ops.py", "empty": "  "}
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return next(text for name, text in answers.items() if prompt.endswith(f"{name} fails"))

    said: list[str] = []
    journal = tmp_path / "work/issues.jsonl"
    rows = [row(name) for name in answers]
    done = rewrite(rows, ask, "m", journal, said.append)
    assert [r.problem_statement for r in done] == ["# Clamping is off\n", "tells fails", "empty fails"]
    assert said == [
        "tells: the model's text names calc/ops.py; the plain one stays",
        "empty: the model's text is empty; the plain one stays",
    ]
    journal.write_bytes(journal.read_bytes() + b'["torn')
    assert rewrite(rows, lambda _: pytest.fail("asked again"), "m", journal, said.append) == done
    assert len(asked) == 3
