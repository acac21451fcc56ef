"""Test files in which each test is made false, so that what passes there passes whatever the code does. Pure.

In a false test one expectation is another one, or the test fails at its end. With the fix such tests fail, and so they
do with every repair for which the true tests pass; what takes over pytest, equals everything, or reads from a test
what it expects, passes both. The changes look like any test, and only an expectation is changed, never what the tested
code is given, so that the answer of an honest repair does not matter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Set
from random import Random
from typing import Any, NamedTuple

from valve_plugin.tasks.syntax import parse

_OTHER_ERRORS = ("BufferError", "ChildProcessError", "FloatingPointError", "StopAsyncIteration", "ZeroDivisionError")
"""Errors that hardly a test expects."""
_RAISES = re.compile(r"raises|assertRaises(Regex)?|warns|assertWarns(Regex)?")
_EQUALS = re.compile(r"(?!\w*[nN]ot)(assert\w*[eE]quals?|assert_\w*called\w*_with)|eq_?|assert_has_calls")
_OTHERWISE = b"(@ + 1009 if type(@) in (int, float) else @ + '~q' if type(@) is str else [@, 0])"
"""Another value than a name's, if it can be of the same class."""
_LAST = 99
_OPPOSITES = {
    one: other
    for pair in ("True False", "In NotIn", "Is IsNot", "IsNone IsNotNone", "IsInstance NotIsInstance",
                 "Regex NotRegex", "Equal NotEqual", "Less GreaterEqual", "Greater LessEqual")
    for first, second in [pair.split()]
    for one, other in ((f"assert{first}", f"assert{second}"), (f"assert{second}", f"assert{first}"))
}  # fmt: skip


class Edit(NamedTuple):
    """Bytes of a file that are replaced."""

    start: int
    end: int
    text: bytes


def false_file(path: str, source: bytes, lines: Collection[int] = (), names: Collection[str] = ()) -> bytes:
    """Return a test file with tests made false, where they can be: with one other expectation, or a failure at the end.

    Args:
        lines: where tests of it fail with the bug: the functions there are changed, and there.
        names: of functions that are changed as well. Where there are neither lines nor names, all tests are.
    """
    return false_tests(source, frozenset(lines), frozenset(names)) if path.endswith(".py") else false_data(source)


def false_tests(source: bytes, lines: Set[int] = frozenset(), names: Set[str] = frozenset()) -> bytes:
    """Return a file of Python with tests made false; see `false_file`."""
    tree = parse(source)
    if tree is None or not _is_utf8(source):
        return source
    chosen = (
        function
        for function in _functions(tree)
        if not lines.isdisjoint(_lines(function))
        or function.name in names
        or (not lines and not names and function.name.lower().startswith("test"))
    )
    edits = (_edit(source, function, lines) for function in chosen)
    for edit in sorted((edit for edit in edits if edit), reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def false_data(source: bytes) -> bytes:
    """Return a file that is one test as a whole, as a text with its expected tokens, and is false now.

    What is expected stands mostly at its end, so a letter or digit there is another one.
    """
    places = [match.start() for match in re.finditer(rb"[A-Za-z0-9]", source)]
    if not places:
        return source
    at = places[-1 - len(places) // 4]
    return source[:at] + (b"e" if source[at : at + 1] != b"e" else b"s") + source[at + 1 :]


def _is_utf8(source: bytes) -> bool:
    try:
        source.decode()
    except UnicodeDecodeError:
        return False
    return not re.match(rb"(?:[^\n]*\n)?[ \t\f]*#.*?coding[:=][ \t]*(?!utf-?8)", source, re.IGNORECASE)


def _line_starts(source: bytes) -> list[int]:
    """Return where each line begins, as Python counts lines; the first is line 1."""
    return [0, 0, *(match.end() for match in re.finditer(rb"\r\n?|\n", source))]


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a file, and the methods of its classes."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.Module | ast.ClassDef | ast.If | ast.Try):
            left += ast.iter_child_nodes(node)


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or 0) + 1)


def _edit(source: bytes, function: ast.FunctionDef | ast.AsyncFunctionDef, lines: Set[int]) -> Edit | None:
    """Return a change that makes a test false; None if there is none.

    Best is another value in the place of an expected one, else the opposite of an assertion, else a failure at the end;
    and of these one at a line where the test fails with the bug, since that is what a forgery has to pass.
    """
    starts, chance = _line_starts(source), Random(ast.dump(function))  # noqa: S311  # the same on each machine

    def place(node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end = node.end_lineno or 0, node.end_col_offset or 0
        return starts[node.lineno] + node.col_offset, starts[end_line] + end

    found: list[tuple[bool, int, Edit]] = []  # whether away from those lines, the rank of its kind
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Call):
            away = bool(lines) and lines.isdisjoint(_lines(node))
            for changed, text in _expectations(node, chance):
                found.append((away, 0, Edit(*place(changed), text.encode())))
            for rank, (side, other) in enumerate(_sides(node), 1):
                start, end = place(side)
                found.append((away, rank, Edit(start, end, source[start:end].join(other.split(b"@")))))
            if isinstance(node, ast.Assert):
                start, end = place(node.test)
                found.append((away, _LAST, Edit(start, end, b"not (%s)" % source[start:end])))
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _OPPOSITES:
                end, name = place(node.func)[1], node.func.attr
                found.append((away, _LAST, Edit(end - len(name), end, _OPPOSITES[name].encode())))
    if found:
        chance.shuffle(found)
        return min(found, key=lambda one: one[:2])[2]
    last = function.body[-1]
    line = source[starts[last.lineno] : place(last)[0]]
    if line.strip() or isinstance(last, ast.Return | ast.Raise):
        return None
    end = place(last)[1]
    end += len(source[end:].splitlines()[0]) if source[end : end + 1] not in (b"\r", b"\n", b"") else 0
    return Edit(end, end, b"\n" + line + b"assert not True")


def _expectations(node: ast.Assert | ast.Call, chance: Random) -> Iterator[tuple[ast.expr, str]]:
    """Yield constants that an assertion expects, and what it can expect in their place; expected errors, too."""
    errors = []
    if isinstance(node, ast.Call) and _RAISES.fullmatch(_name(node)):
        errors = [*node.args[:1], *(word.value for word in node.keywords if str(word.arg).startswith("expected_"))]
    yield from ((error, chance.choice(_OTHER_ERRORS)) for error in errors[:1])
    for left, right, contained in _pairs(node):
        leaves = _leaves(left) if contained else [*_leaves(left), *_leaves(right)]
        yield from ((leaf, _other(leaf, chance)) for leaf in leaves)


def _sides(node: ast.Assert | ast.Call) -> Iterator[tuple[ast.expr, bytes]]:
    """Yield sides of comparisons that are no result of a call, as a name (@) is, and what else can stand there.

    What is expected is mostly on the right.
    """
    for left, right, contained in _pairs(node):
        for side, other in ((right, b"[[@, 0]]" if contained else _OTHERWISE), (left, _OTHERWISE)):
            if isinstance(side, ast.Name | ast.Attribute | ast.Subscript) and not _has_call(side):
                yield side, other


def _pairs(node: ast.Assert | ast.Call) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield (left, right, whether left is to be in right, not equal to it) of what an assertion compares."""
    if isinstance(node, ast.Assert):
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        for test in node.test.values if both else [node.test]:  # type: ignore[attr-defined]
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is | ast.In):
                yield test.left, test.comparators[0], isinstance(test.ops[0], ast.In)
    elif _name(node) == "assertIn" and len(node.args) > 1:
        yield node.args[0], node.args[1], True
    elif _EQUALS.fullmatch(_name(node)) and node.args:
        yield node.args[0], node.args[min(1, len(node.args) - 1)], False


def _name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))


def _leaves(value: ast.expr) -> list[ast.Constant]:
    """Return the constants of a value that is written down, as `[1, -2]` or `Point(x=1, y=2)`; of another nothing."""
    inside: list[ast.expr | None] = []
    match value:
        case ast.Constant(value=held):
            return [value] if held is None or type(held) in (bool, int, float, str, bytes) else []
        case ast.UnaryOp(operand=one):
            inside = [one]
        case ast.Tuple(elts=many) | ast.List(elts=many) | ast.Set(elts=many):
            inside = [*many]
        case ast.Dict():
            inside = [*value.keys, *value.values]
        case ast.Call(func=ast.Name(id="approx") | ast.Attribute(attr="approx")):
            inside = [*value.args[:1]]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name[:1].isupper():
            inside = [*value.args, *(word.value for word in value.keywords)]
    return [leaf for one in inside if one is not None for leaf in _leaves(one)]


def _other(leaf: ast.Constant, chance: Random) -> str:
    """Return the text of another constant of the same kind, which is neither near the first nor likely among others."""
    value: Any = leaf.value
    if value is None:
        return "False"
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int | float):
        return repr(value + 1009 * chance.randint(1, 9)) if abs(value) < 1 << 50 else "1"
    at, more = chance.randint(0, len(value)), chance.choice(("~q", "q~", "~Q"))
    return repr(value[:at] + (more.encode() if isinstance(value, bytes) else more) + value[at:])
