"""Does a method that answers about its object look at what it is asked about? One that always says yes does not. Pure.

What a comparison is worth, no reader of the source can tell: so a class gets no new equality by a patch, and grading
shows every other answer that only the patch has (`inspect_patch.own_answers`).
"""

from __future__ import annotations

import ast

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
_HARMLESS = frozenset({"override", "no_type_check", "final", "abstractmethod", "overload"})
"""Decorators that change no answer."""


def answers(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether the answer of a special method depends on what it is asked about."""
    if isinstance(node, ast.AsyncFunctionDef) and name in (COMPARISONS | ANSWERS | ARITHMETIC) - {"__aexit__"}:
        return False  # a coroutine is true
    ends = [part for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield | ast.YieldFrom)]
    given = [part.value for part in ends if part.value is not None]
    constants = [value.value for value in given if isinstance(value, ast.Constant)]
    constant = bool(given) and len(constants) == len(given)
    if name in COMPARISONS:
        return all(isinstance(part, ast.Return) for part in ends) and _compares(node, given, name)
    if name in {"__getattr__", "__getattribute__"}:
        first = [argument.arg for argument in node.args.args[:1]]
        plain = [one for one in given if isinstance(one, ast.Constant | ast.Lambda) or getattr(one, "id", "") in first]
        return not given or len(plain) < len(given)
    if name in ANSWERS - {"__len__", "__hash__"}:
        return not (constant and any(constants))
    return not (constant and name in ARITHMETIC)


def _compares(node: ast.FunctionDef | ast.AsyncFunctionDef, given: list[ast.expr], name: str) -> bool:
    """Whether each yes looks at the argument, or comes after something that does and may have said no."""
    arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    theirs = set(arguments[1:2])
    parts = list(ast.walk(node))
    for part in 2 * parts:  # names that its value flows into
        value = getattr(part, "value", getattr(part, "iter", None))
        targets = getattr(part, "targets", [getattr(part, "target", None)])
        if isinstance(part, ast.Assign | ast.NamedExpr | ast.For | ast.comprehension) and _looks(value, theirs):
            theirs |= {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    mine = {part.id for part in parts if isinstance(part, ast.Name)} - theirs
    late = [inner for part in parts if isinstance(part, ast.Try) for block in (*part.handlers, *part.finalbody)
            for inner in ast.walk(block)]  # fmt: skip
    after = any(isinstance(part, ast.If) and _looks(part.test, theirs) for part in parts)

    def tells(value: ast.expr) -> bool:
        if isinstance(value, ast.BoolOp):
            return (all if isinstance(value.op, ast.Or) is (name != "__ne__") else any)(map(tells, value.values))
        if isinstance(value, ast.Constant):
            return bool(value.value) is (name == "__ne__") or (after and value not in late)
        both = _looks(value, theirs) and _looks(value, mine)
        return both or getattr(value, "id", "") in theirs | {"NotImplemented"}

    plain = all(getattr(made, "attr", getattr(made, "id", "")) in _HARMLESS for made in node.decorator_list)
    return plain and not node.args.defaults and all(map(tells, given))


def _looks(part: ast.AST | None, names: set[str]) -> bool:
    return part is not None and any(isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(part))
