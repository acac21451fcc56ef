"""Parsing from several threads."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest

from valve_plugin.tasks.syntax import parsed


@pytest.mark.parametrize("source", ["def f(:", b"\xff\xfe", "a\0b", "(" * 5000 + ")" * 5000])
def test_what_is_not_python_has_no_tree(source: str | bytes) -> None:
    assert parsed(source) is None


def test_threads_may_parse_at_once() -> None:
    source = "\n".join(f"def f{n}(a):\n    return [x for x in (a + {n}) if ((((x)))) > {n}]" for n in range(200))
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(parsed, [source] * 64))
    assert {ast.dump(tree) for tree in trees if tree} == {ast.dump(ast.parse(source))}
