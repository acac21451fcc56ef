"""Does a method that answers about its object look at it? One that always says yes passes each assertion. Pure.

A comparison is believed only in the shapes that people write: something of the object equals the same of the argument,
such answers joined by `and`, a yes after a difference has returned no. Whatever else gives a yes is not believed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

Function = ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef
Definitions = Mapping[str, Sequence[Function | ast.ClassDef]]
"""What a file defines, by name; several may have one."""

EQUALITY = frozenset({"__eq__", "__ne__", "__req__"})
COMPARISONS = EQUALITY | {"__lt__", "__le__", "__gt__", "__ge__", "__contains__"}
ARITHMETIC = frozenset(
    f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
)
ANSWERS = frozenset(
    {"__bool__", "__len__", "__hash__", "__getattr__", "__getattribute__"}
    | {"__instancecheck__", "__subclasscheck__", "__subclasshook__"}
)
_HARMLESS = frozenset({"override", "no_type_check", "final", "abstractmethod"})
"""Decorators that change no answer."""
_BASES = frozenset({"object", "type", "str", "int", "float", "tuple", "list", "dict", "set", "frozenset", "bytes"})
_ITERATES = frozenset({"list", "tuple", "set", "frozenset", "sorted", "zip", "all", "any"})
_MOST_CALLS = 4  # functions that call each other


def answers(node: Function, name: str, owner: str, functions: Definitions, foreign: Iterable[str]) -> bool:
    """Whether the answer of a special method depends on what it is asked about.

    Args:
        functions: those of its file, and its classes.
        foreign: names that the file imports from elsewhere.
    """
    if isinstance(node, ast.AsyncFunctionDef) and name in COMPARISONS | ANSWERS | ARITHMETIC:
        return False  # a coroutine is true
    given = list(_returned(node))
    constant = bool(given) and all(isinstance(value, ast.Constant) for value in given)
    if name in EQUALITY:
        return _Comparison(node, name == "__ne__", owner, functions, foreign).honest()
    if name in COMPARISONS:
        return any(map(_Comparison(node, False, owner, functions, foreign).meets, ast.walk(node))) or (
            constant and not any(map(_is_true, given))
        )
    if name in {"__getattr__", "__getattribute__"}:
        first = _arguments(node)[:1]
        return not given or not all(
            isinstance(v, ast.Constant | ast.Lambda) or (isinstance(v, ast.Name) and v.id in first) for v in given
        )
    if name in ANSWERS - {"__len__", "__hash__"}:
        return not (constant and all(map(_is_true, given)))
    return not (constant and name in ARITHMETIC)


class _Comparison:
    """One method or function that compares its first argument with its second."""

    def __init__(
        self,
        node: Function,
        unequal: bool,
        owner: str,
        functions: Definitions,
        foreign: Iterable[str],
        depth: int = 0,
    ) -> None:
        self._node, self._unequal, self._owner, self._depth = node, unequal, owner, depth
        self._functions, self._foreign = functions, frozenset(foreign)
        names = _arguments(node)
        self._mine, self._theirs = (_flow(node, name) for name in names[:2]) if len(names) > 1 else (set(), set())
        self._values: dict[str, list[ast.expr]] = {}
        for part in ast.walk(node):
            if isinstance(part, ast.Assign | ast.NamedExpr):
                for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                    if isinstance(target, ast.Name):
                        self._values.setdefault(target.id, []).append(part.value)

    def honest(self) -> bool:
        """Whether it says that two are equal only where it found something equal."""
        node = self._node
        if isinstance(node, ast.Lambda):
            return not node.args.defaults and self._tells(node.body, not self._unequal)
        changes = any(
            isinstance(part, ast.Yield | ast.YieldFrom)
            or (isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load) and self._has(part, self._mine))
            for part in ast.walk(node)
        )
        decorated = any(getattr(d, "attr", getattr(d, "id", "")) not in _HARMLESS for d in node.decorator_list)
        if changes or decorated or node.args.defaults or isinstance(node, ast.AsyncFunctionDef):
            return False
        return self._block(node.body, False) is not None

    def _block(self, lines: Sequence[ast.stmt], equal: bool) -> bool | None:
        """Return whether something was found equal by the end; None if a yes comes from nothing."""
        for line in lines:
            found: bool | None = equal
            if isinstance(line, ast.Return):
                says = line.value is None or self._tells(line.value, not self._unequal)
                found = equal if says or (equal and isinstance(line.value, ast.Constant)) else None
            elif isinstance(line, ast.If):
                found = self._condition(line, equal)
            elif isinstance(line, ast.For | ast.While | ast.With):
                found = self._block(line.body, equal)
                once = (
                    isinstance(line, ast.For)
                    and _is_whole(line.iter)
                    and self._has(line.iter, self._mine | self._theirs)
                )
                found = found if found is None or once else equal
                found = None if self._block(getattr(line, "orelse", []), bool(found)) is None else found
            elif isinstance(line, ast.Try):
                found = self._block([*line.body, *line.orelse], equal)
                blocks = [self._block(handler.body, equal) for handler in line.handlers]
                leaves = any(isinstance(part, ast.Return) for end in line.finalbody for part in ast.walk(end))
                stays = [
                    block for block, handler in zip(blocks, line.handlers, strict=True) if not _leaves(handler.body)
                ]
                found = None if found is None or None in blocks or leaves else found and all(stays)
            elif isinstance(line, ast.Match):
                found = None if None in [self._block(case.body, equal) for case in line.cases] else equal
            if found is None:
                return None
            equal = found
        return equal

    def _condition(self, line: ast.If, equal: bool) -> bool | None:
        same, differs = (self._tells(line.test, yes) for yes in (True, False))
        body, other = self._block(line.body, equal or same), self._block(line.orelse, equal or differs)
        if body is None or other is None:
            return None
        return equal or (_leaves(line.body) and differs) or (body and other)

    def _tells(self, node: ast.expr, yes: bool) -> bool:
        """Whether an expression is true (false, where `yes` is not) only if something is equal."""
        match node:
            case ast.Constant(value=value):
                return bool(value) is not yes
            case ast.Name(id="NotImplemented"):
                return True
            case ast.Name(id=name) if name in self._values:
                values = self._values.pop(name)  # not again while it is looked at
                told = all(self._tells(value, yes) for value in values)
                self._values[name] = values
                return told
            case ast.NamedExpr(value=value):
                return self._tells(value, yes)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return self._tells(inner, not yes)
            case ast.BoolOp(op=op, values=values):
                return (any if isinstance(op, ast.And) is yes else all)(self._tells(v, yes) for v in values)
            case ast.IfExp(test=test, body=body, orelse=other):
                return (self._tells(body, yes) or self._tells(test, True)) and (
                    self._tells(other, yes) or self._tells(test, False)
                )
            case ast.Compare():
                return self._compare(node, yes)
            case ast.Call():
                return self._call(node, yes)
        return False

    def _compare(self, node: ast.Compare, yes: bool) -> bool:
        wanted: tuple[type[ast.cmpop], ...] = (ast.Eq, ast.Is) if yes else (ast.NotEq, ast.IsNot)
        pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
        met = [isinstance(op, wanted) and self._meet(one, other) for one, op, other in pairs]
        if getattr(node.comparators[0], "id", "") == "NotImplemented":
            return True  # then that is the answer
        if isinstance(node.left, ast.Call) and isinstance(node.comparators[0], ast.Constant):
            return isinstance(node.ops[0], wanted) and self._call(node.left, yes)  # as in `cmp(self, other) == 0`
        return any(met) if yes else met == [True]

    def _call(self, node: ast.Call, yes: bool) -> bool:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        held = node.func.value if isinstance(node.func, ast.Attribute) else None
        first = node.args[0] if node.args else None
        if name in {"isinstance", "issubclass"} and len(node.args) == 2:
            kind = node.args[1]
            own = self._has(kind, self._mine) and not self._has(kind, self._mine, beyond_type=True)
            return yes and (getattr(kind, "id", "") == self._owner or (own and not isinstance(kind, ast.Tuple)))
        if first is not None and held is None and name in {"all", "any", "bool"}:
            inner = first.elt if isinstance(first, ast.GeneratorExp | ast.ListComp) else first
            return (name == "bool" or (name == "all") is yes) and self._tells(inner, yes)
        if name == "all" and held is not None and not node.args:
            return yes and self._tells(held, yes)
        if _is_base(held):
            return any(self._has(side, self._theirs) for side in node.args)
        bare = held is None or (isinstance(held, ast.Name) and held.id in self._mine)
        if bare and name == "__eq__":
            return yes and self.meets(node)
        if bare and name in self._functions:
            rest = (self._owner, self._functions, self._foreign, self._depth + 1)
            within = self._depth < _MOST_CALLS and self.meets(node)
            return within and all(
                not isinstance(one, ast.ClassDef) and _Comparison(one, not yes, *rest).honest()
                for one in self._functions[name]
            )
        known = _root(node.func) in self._foreign | self._mine if held is not None else name in self._foreign
        return known and (held is None or not bare) and self.meets(node)

    def meets(self, part: ast.AST) -> bool:
        """Whether an expression has something of the object and something of the argument, apart."""
        sides: list[ast.AST] = []
        if isinstance(part, ast.Compare):
            sides = [part.left, *part.comparators]
        elif isinstance(part, ast.Call):
            sides = [getattr(part.func, "value", part.func), *part.args, *(k.value for k in part.keywords)]
            if _is_base(getattr(part.func, "value", None)) and any(self._has(side, self._theirs) for side in part.args):
                return True
        return any(self._meet(one, other) for one in sides for other in sides)

    def _meet(self, one: ast.AST, other: ast.AST) -> bool:
        if not all(_is_whole(side) and self._is_plain(side) for side in (one, other)):
            return False
        sides = [
            (self._has(s, self._mine), self._has(s, self._theirs), self._has(s, self._mine, True)) for s in (one, other)
        ]
        return any(
            mine and not wrong and theirs and not (both and inside)
            for (mine, wrong, _), (both, theirs, inside) in (sides, sides[::-1])
        )

    def _is_plain(self, side: ast.AST) -> bool:
        """Whether nothing in it is made by a class, or by a function that drops what it is given."""
        for part in ast.walk(side):
            name = part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
            for made in {name, f"__{name}__", "__iter__" if name in _ITERATES else ""} - COMPARISONS:
                if not all(map(_keeps, self._functions.get(made, ()))):
                    return False
            if isinstance(part, ast.Call) and (
                isinstance(part.func, ast.Call) or getattr(part.func, "attr", "") == "__class__"
            ):
                return False
        return True

    def _has(self, node: ast.AST, names: set[str], beyond_type: bool = False) -> bool:
        """Whether an expression has one of these names; not counting `type(self)` and `self.__class__`, if asked."""
        if beyond_type and (
            (isinstance(node, ast.Attribute) and node.attr == "__class__")
            or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type")
        ):
            return False
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Subscript):  # which part it is says nothing
            return self._has(node.value, names, beyond_type)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" and node.args:
            return any(self._has(part, names, beyond_type) for part in (node.args[0], *node.args[2:]))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return any(self._has(one.iter, names, beyond_type) for one in node.generators)
        return any(self._has(child, names, beyond_type) for child in ast.iter_child_nodes(node))


def _flow(node: ast.AST, name: str) -> set[str]:
    """Return the names that an argument's value flows into."""
    names = {name}
    for _ in range(3):
        for part in ast.walk(node):
            for target, value in _bindings(part):
                if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(value)):
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def _bindings(part: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what is bound to what; pairs one by one."""
    targets: Sequence[ast.AST] = []
    if isinstance(part, ast.Assign):
        targets, value = part.targets, part.value
    elif isinstance(part, ast.NamedExpr | ast.AugAssign):
        targets, value = [part.target], part.value
    elif isinstance(part, ast.For | ast.comprehension):
        targets, value = [part.target], part.iter
    for target in targets:
        values = value.args if isinstance(value, ast.Call) else getattr(value, "elts", [])
        zipped = not isinstance(value, ast.Call) or getattr(value.func, "id", "") in {"zip", "zip_longest"}
        parts = getattr(target, "elts", [])
        if zipped and len(parts) == len(values) > 1:
            yield from zip(parts, values, strict=True)
        elif not isinstance(part, ast.comprehension):
            yield target, value


def _keeps(node: Function | ast.ClassDef) -> bool:
    """Whether a function returns nothing but what it makes of an argument."""
    if isinstance(node, ast.ClassDef):
        return False
    names = set[str]().union(*(_flow(node, name) for name in _arguments(node)))
    given = list(_returned(node))
    return bool(given) and all(
        _is_whole(value)
        and any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(value))
        and not any(
            isinstance(part, ast.BoolOp | ast.IfExp)
            and any(isinstance(p, ast.Constant) for p in ast.iter_child_nodes(part))
            for part in ast.walk(value)
        )
        for value in given
    )


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return isinstance(block[-1], ast.Return | ast.Raise | ast.Continue)


def _is_whole(node: ast.AST) -> bool:
    """Whether nothing of a value is computed away or cut off before it is compared."""
    return not any(isinstance(part, ast.BinOp | ast.Slice) for part in ast.walk(node))


def _is_base(node: ast.AST | None) -> bool:
    """Whether this is `super()` or a builtin class."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in _BASES


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _arguments(node: Function) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]


def _returned(node: Function) -> Iterator[ast.expr]:
    if isinstance(node, ast.Lambda):
        yield node.body
    else:
        ends = (part for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield | ast.YieldFrom))
        yield from (part.value for part in ends if part.value is not None)
