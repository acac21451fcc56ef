"""Does a method that answers about its object look at what it is asked about? One that always says yes passes. Pure.

A comparison is believed where something of the object is compared with something of the argument, or is given to a
function together with it. What that comparison is worth, no reader of the source can tell: so a class gets no new
equality by a patch, and grading shows every other answer that only the patch has (`inspect_patch.own_answers`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

Function = ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef

EQUALITY = frozenset({"__eq__", "__ne__", "__req__"})
COMPARISONS = EQUALITY | {"__lt__", "__le__", "__gt__", "__ge__", "__contains__"}
ARITHMETIC = frozenset(
    f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
)
ANSWERS = frozenset(
    {"__bool__", "__len__", "__hash__", "__getattr__", "__getattribute__"}
    | {"__instancecheck__", "__subclasscheck__", "__subclasshook__", "__exit__", "__aexit__"}
)
_HARMLESS = frozenset({"override", "no_type_check", "final", "abstractmethod"})
"""Decorators that change no answer."""


def answers(node: Function, name: str) -> bool:
    """Whether the answer of a special method depends on what it is asked about."""
    if isinstance(node, ast.AsyncFunctionDef) and name in (COMPARISONS | ANSWERS | ARITHMETIC) - {"__aexit__"}:
        return False  # a coroutine is true
    given = list(_returned(node))
    constant = bool(given) and all(isinstance(value, ast.Constant) for value in given)
    if name in COMPARISONS:
        return _compares(node, unequal=name == "__ne__")
    if name in {"__getattr__", "__getattribute__"}:
        first = _arguments(node)[:1]
        return not given or not all(
            isinstance(v, ast.Constant | ast.Lambda) or (isinstance(v, ast.Name) and v.id in first) for v in given
        )
    if name in ANSWERS - {"__len__", "__hash__"}:
        return not (constant and any(value.value for value in given if isinstance(value, ast.Constant)))
    return not (constant and name in ARITHMETIC)


def _compares(node: Function, *, unequal: bool) -> bool:
    """Whether each yes is that of a comparison of both arguments, or comes after one that may have said no."""
    mine, theirs = (_flow(node, name) for name in [*_arguments(node), "", ""][:2])
    parts = list(ast.walk(node))
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    if any(getattr(d, "attr", getattr(d, "id", "")) not in _HARMLESS for d in decorators) or node.args.defaults:
        return False
    if any(isinstance(part, ast.Yield | ast.YieldFrom | ast.Attribute) and _stores(part) for part in parts):
        return False

    def meets(value: ast.AST) -> bool:
        return any(_apart(part, mine, theirs) for part in ast.walk(value))

    after = any(isinstance(part, ast.If) and meets(part.test) for part in parts)
    late = [block for part in parts if isinstance(part, ast.Try) for block in (*part.handlers, *part.finalbody)]
    caught = {value for block in late for value in ast.walk(block)}

    def tells(value: ast.expr) -> bool:
        if isinstance(value, ast.BoolOp):
            return (all if isinstance(value.op, ast.Or) is not unequal else any)(map(tells, value.values))
        if isinstance(value, ast.Constant):
            return bool(value.value) is unequal or (after and value not in caught)
        return meets(value) or getattr(value, "id", "") == "NotImplemented"

    values = {getattr(part.targets[0], "id", ""): part.value for part in parts if isinstance(part, ast.Assign)}
    return all(tells(values.get(getattr(value, "id", ""), value)) for value in _returned(node))


def _stores(part: ast.AST) -> bool:
    return not isinstance(getattr(part, "ctx", None), ast.Load)


def _apart(part: ast.AST, mine: set[str], theirs: set[str]) -> bool:
    """Whether one side of a comparison or call has only names of the object, and another only of the argument."""
    sides: Sequence[ast.AST] = ()
    if isinstance(part, ast.Compare):
        sides = [part.left, *part.comparators]
    elif isinstance(part, ast.Call):
        sides = [getattr(part.func, "value", part.func), *part.args, *(word.value for word in part.keywords)]
    names = [{n.id for n in ast.walk(side) if isinstance(n, ast.Name)} for side in sides]
    has = [(bool(found & (mine | {"super"})), bool(found & theirs)) for found in names]
    return (True, False) in has and (False, True) in has


def _flow(node: ast.AST, name: str) -> set[str]:
    """Return the names that an argument's value flows into."""
    names = {name}
    for _ in range(3):
        for part in ast.walk(node):
            if isinstance(part, ast.Assign | ast.NamedExpr | ast.AugAssign):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                bound = [pair for target in targets for pair in _pairs(target, part.value)]
            elif isinstance(part, ast.For | ast.comprehension):
                bound = _pairs(part.target, part.iter)
            else:
                continue
            for target, value in bound:
                if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(value)):
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def _pairs(target: ast.AST, value: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """Return what is bound to what: in `a, b = x, y` and in a loop over `zip(x, y)`, each to its own."""
    parts: list[ast.AST] = getattr(target, "elts", [])
    values: list[ast.AST] = value.args if isinstance(value, ast.Call) else getattr(value, "elts", [])  # type: ignore[assignment]
    return list(zip(parts, values, strict=True)) if len(parts) == len(values) > 1 else [(target, value)]


def _arguments(node: Function) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]


def _returned(node: Function) -> Iterator[ast.expr]:
    if isinstance(node, ast.Lambda):
        yield node.body
    else:
        ends = (part for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield | ast.YieldFrom))
        yield from (part.value for part in ends if part.value is not None)
