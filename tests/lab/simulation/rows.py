"""A tiny repository as text, and SWE-smith rows about it."""

from __future__ import annotations

import difflib
from types import SimpleNamespace
from typing import Any

import pytest

from valve_plugin.lab.simulation.server import ScriptedModel
from valve_plugin.records import Task

FIXED = '''\
def total(prices, tax):
    """Sum of all prices, plus tax."""
    result = 0
    for price in prices:
        result = result + price
    return result + tax


def in_stock(count):
    """True when there is at least one."""
    return count >= 1 and count != 13
'''
BUGGY = FIXED.replace("result + price", "result - price").replace("count >= 1", "count > 1")


def patch(fixed: str, buggy: str, path: str = "shop/cart.py", context: int = 3) -> str:
    """A bug patch as SWE-smith has it: from the fixed file to the buggy one."""
    lines = difflib.unified_diff(
        fixed.splitlines(), buggy.splitlines(), f"a/{path}", f"b/{path}", lineterm="", n=context
    )
    return f"diff --git a/{path} b/{path}\n" + "\n".join(lines) + "\n"


def row(modifier: str = "func_pm_op_change", number: int = 0, fixed: str = FIXED, buggy: str = BUGGY) -> Task:
    """A row whose bug is in shop/cart.py."""
    return Task(
        instance_id=f"acme__shop.0a1b2c3d.{modifier}__{number:08d}",
        repo="acme/shop",
        patch=patch(fixed, buggy, context=5),
        fail_to_pass=("tests/test_cart.py::test_total",),
        problem_statement=f"Totals are wrong, report number {number}.\n\nAdding prices gives a negative number.",
    )


def taskset(*tasks: Task) -> Any:
    """What the server needs of a task set."""
    return SimpleNamespace(tasks=tasks)


def requests(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Have simulated models of this process note every request's body; return where."""
    asked: list[dict[str, Any]] = []
    reply = ScriptedModel.reply

    def noting(self: ScriptedModel, request: dict[str, Any], header: str = "") -> dict[str, Any]:
        asked.append(request)
        return reply(self, request, header)

    monkeypatch.setattr(ScriptedModel, "reply", noting)
    return asked
