"""Tests that get other inputs and show what they see, and what that says of a patch. Pure.

A patch that makes tests pass without a repair knows, at most, the answers that they expect. So the tests that fail with
the bug run with other inputs, too: what they then see with the patch is compared with what they see with the fix. No
expectation decides there, and nothing has to be kept from the patch: to give the fix's answers it must compute them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from valve_plugin.tasks.grading.answers import CALLED, GIVEN, NOTHING, PLAIN, digest
from valve_plugin.tasks.syntax import parse

Seen = Mapping[str, Mapping[str, str]]
"""What tests saw: by test, and by run, place and how many times that place was reached before, the value's digest."""
_VARIED = (bool, int, float, str, bytes)
_FEW, _SOME, _MANY = 3, 5, 10
"""Values that it takes to refuse a patch; where its tests ask for a part only; there, where it gives some of them."""
_FAILS = digest("fails")
_END = "0 end 0"
_SAYS_NOTHING = frozenset({digest(""), digest(GIVEN) + PLAIN, digest(NOTHING)})
"""Notes that are no evidence: a good end, a call of Python's own, what the test gave, an object by itself."""
_EXPECTS = frozenset({"raises", "warns", "assertRaises", "assertWarns"})
"""Calls that say which error or warning a test expects."""
_NOT_SEEN = _EXPECTS | {"super", "eval", "exec", "locals", "globals", "vars", "dir"}
"""Calls whose value says nothing, or that must stay where they are."""
_READS = frozenset({"read", "read_text", "read_bytes", "readline", "readlines", "load", "loads"})
"""Calls that give what a test has in a file."""
_UNTIL_IT_RUNS = """\
_vary = _seen = _side = lambda place, value: value
_call = lambda place, function, *given, **named: function(*given, **named)
_checks = lambda place, check: check()
def _holds(place, value): assert value
"""
"""What the names mean while a file is loaded."""
_WAITS = frozenset({"sleep", "wait", "wait_for"})
"""Calls that are left as they are, as others would wait for long."""
_HOLDS_DATA = (ast.Assign, ast.AnnAssign)
"""Statements that give names to a test's data."""
_EQUAL = frozenset({"assertEqual", "assertIs", "assertListEqual", "assertDictEqual", "assertMultiLineEqual", "eq_"})
"""Calls that assert that their first two values are equal."""
_EQUALS = "="
"""Ends the number of a place with two sides that must be equal; then comes which of them it is."""
_STAYS = (ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom)
"""What means something else in a function of its own."""


def asking(source: bytes) -> str | None:
    """Return a test file that asks for its inputs and shows what it sees (`answers.py`); None if it is not Python."""
    tree = parse(source)
    if tree is None:
        return None
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    tested = _from_elsewhere(tree)
    data = [one for body in bodies for one in body if isinstance(one, _HOLDS_DATA) and not _is_answer(one, tested)]
    parts = [part for node in data for part in ast.walk(node)]
    names = {one.id for one in parts if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    imported = [one for node in tree.body if isinstance(node, ast.ImportFrom) for one in node.names]
    names |= {one.asname or one.name for one in imported if one.name.isupper()}
    try:
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        tree = _Asking(names, own).visit(tree)
        start = sum(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body)
        start += ast.get_docstring(tree, clean=False) is not None
        tree.body[start:start] = ast.parse(_UNTIL_IT_RUNS).body
        return ast.unparse(ast.fix_missing_locations(tree))
    except (RecursionError, ValueError):
        return None


def _from_elsewhere(tree: ast.Module) -> set[str]:
    """Return the names that a file has of code that is neither its own nor Python's."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            of = [getattr(node, "module", None) or one.name for one in node.names]
            names = [one.asname or one.name.partition(".")[0] for one in node.names]
            own = sys.stdlib_module_names | {"pytest"}
            found |= {name for name, module in zip(names, of, strict=True) if module.partition(".")[0] not in own}
    return found


def _is_answer(node: ast.AST, tested: set[str]) -> bool:
    """Whether what gets a name is an answer of tested code: to change it asks for nothing."""
    calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(isinstance(one, ast.Name) and one.id in tested for func in calls for one in ast.walk(func))


class _Asking(ast.NodeTransformer):
    """Changes the bodies of functions; the rest of a file stays, so that tests keep their names."""

    def __init__(self, names: set[str], own: set[str]) -> None:
        self._names, self._own, self._place, self._inside = names, own, 0, False

    def _call(self, name: str, *given: ast.expr) -> ast.Call:
        self._place += 1
        return ast.Call(ast.Name(name, ast.Load()), [ast.Constant(str(self._place)), *given], [])

    def _side(self, node: ast.expr) -> ast.expr:
        return node if isinstance(node, ast.Starred | ast.GeneratorExp) else self._call("_side", node)

    def _equals(self, *sides: ast.expr) -> list[ast.expr]:
        """Show two sides that must be equal; one that is made of constants alone is the test's own."""
        self._place += 1
        shown: list[ast.expr] = []
        for nth, node in enumerate(sides):
            own = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} <= {"_vary"}
            place = ast.Constant(f"{self._place}{_EQUALS}{nth}")
            shown.append(node if own else ast.Call(ast.Name("_side", ast.Load()), [place, node], []))
        return shown

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Change what a function does."""
        outside, self._inside = self._inside, True
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        node.body = [*node.body[:is_text], *(self.visit(one) for one in node.body[is_text:])]
        self._inside = outside
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Ask for a value that is written down."""
        return self._call("_vary", node) if self._inside and type(node.value) in _VARIED else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Ask for a value that the file holds."""
        asks = self._inside and isinstance(node.ctx, ast.Load) and node.id in self._names
        return self._call("_vary", node) if asks else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Ask for a value that a class of the file holds."""
        own = getattr(node.value, "id", "") in ("self", "cls") and node.attr in self._names
        self.generic_visit(node)
        return self._call("_vary", node) if self._inside and own and isinstance(node.ctx, ast.Load) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Leave the constants of a text with values."""
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave annotations."""
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Leave patterns."""
        node.body = [self.visit(one) for one in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Show what a call gives."""
        if _called(node) in _WAITS:
            return node
        self.generic_visit(node)
        if self._inside and _called(node) in _EXPECTS:
            first, *called = node.args or [ast.Constant(None)]
            made = self._call("_call", *called)  # where it gets what to call
            node.args = node.args and [self._side(first), *((made.func, *made.args) if called else ())]
        if not self._inside or _called(node) in _NOT_SEEN or _called(node) in self._own:  # shows itself what it sees
            return node
        made = self._call("_call", node.func, *node.args)
        made.keywords = node.keywords
        return self._call("_vary", made) if _called(node) in _READS else made

    def visit_Await(self, node: ast.Await) -> ast.AST:
        """Show what is waited for."""
        self.generic_visit(node)
        return self._call("_seen", node) if self._inside else node

    def visit_With(self, node: ast.With | ast.AsyncWith) -> ast.AST:
        """Show what is raised where an error is expected."""
        self.generic_visit(node)
        if self._inside:
            names = [one.optional_vars for one in node.items if isinstance(one.optional_vars, ast.Name)]
            given = [ast.Expr(self._call("_seen", ast.Name(name.id, ast.Load()))) for name in names]
            shown = ast.Expr(self._call("_seen", ast.Name("_raised", ast.Load())))
            handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), "_raised", [shown, ast.Raise()])
            node.body = [ast.Try([*given, *node.body], [handler], [], [])]
        return node

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Show what an assertion compares."""
        if not self._inside:
            return node
        return ast.Expr(self._call("_holds", self._compared(self.visit(node.test))))

    def _compared(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.BoolOp():
                node.values = [self._compared(one) for one in node.values]
            case ast.UnaryOp(op=ast.Not()):
                node.operand = self._compared(node.operand)
            case ast.Compare(ops=[ast.Eq() | ast.Is()]):
                node.left, *node.comparators = self._equals(node.left, *node.comparators)
            case ast.Compare():
                node.left, node.comparators = self._side(node.left), [self._side(one) for one in node.comparators]
            case ast.Call(func=ast.Name(id="_call"), args=[place, function, *given]):
                node.args = [place, function, *(self._side(one) for one in given)]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Show what a call compares that asserts, and let it fail."""
        call = node.value
        if not (self._inside and isinstance(call, ast.Call) and _asserts(call)):
            return self.generic_visit(node)
        self.generic_visit(call)
        same = _called(call) in _EQUAL and not any(isinstance(one, ast.Starred) for one in call.args)
        call.args = [*self._equals(*call.args[: 2 * same]), *(self._side(one) for one in call.args[2 * same :])]
        for word in call.keywords:
            word.value = self._side(word.value) if word.arg else word.value
        if isinstance(call.func, ast.Attribute) and not isinstance(call.func.value, ast.Constant):
            call.func.value = self._side(call.func.value) if _called(call).startswith("assert_") else call.func.value
        if any(isinstance(one, _STAYS) or getattr(one, "is_async", 0) for one in ast.walk(call)):
            return node
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.Expr(self._call("_checks", ast.Lambda(nothing, call)))


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _asserts(node: ast.Call) -> bool:
    name = _called(node)
    return (name.startswith("assert") and name not in _NOT_SEEN) or name in ("eq_", "ok_")


class Agreement(NamedTuple):
    """How often a patch answers as the fix does: (answers, those of them that the patch gives, too)."""

    changed: tuple[int, int]
    """Answers to other inputs only, and the bug gives others."""
    kept: tuple[int, int]
    """Answers to other inputs only, and the bug gives the same."""
    own_changed: tuple[int, int]
    """Answers that a test gets to its own inputs, too, and the bug gives others."""
    free: int = 0
    """Places where a test passes though it sees something else than with the fix."""
    too_slow: int = 0
    """Tests that have half as many runs as with the fix, or fewer."""
    shown: bool = True
    """Whether the tests show anything but how they end."""
    given: tuple[int, int] = (0, 0)
    """Other inputs that calls get with the fix and with the bug, and how many of them they get with the patch."""
    compared: tuple[int, int] = (0, 0)
    """Values that the fix gives each time, and how many of them are compared with the patch's."""
    ends: int = 0
    """Tests that end otherwise than with the fix, with their own inputs."""
    equal_after: tuple[int, int] = (0, 0)
    """Answers at places that are not reached with the bug, as it raises before, and that must be equal to something."""
    after: tuple[int, int] = (0, 0)
    """All answers at such places."""

    @property
    def forged(self) -> str:
        """Why the patch makes tests pass without a repair; "" if it may be one.

        A repair may answer some inputs otherwise than the fix does; a forgery has some answers by chance.
        """
        if self.ends:
            return f"{self.ends} of its tests end otherwise than with the known fix where they run again"
        counted = (self.changed, self.kept, self.equal_after, self.after, self.given)
        for (of, same), do in zip(counted, ("see", "see", "see", "see", "give"), strict=True):
            if of >= ((_MANY if same else _SOME) if self.free else _FEW) and 5 * same < of:
                return f"with other inputs, {same} of {of} values that its tests {do} are those of the known fix"
        return ""

    @property
    def look_beside(self) -> str:
        """What a person should look at if these tests passed with the bug."""
        of, same = self.kept
        if of < _FEW or 3 * same > 2 * of:
            return ""
        return f"what other tests see: {same} of {of} values that the bug leaves right are those of the known fix"

    @property
    def look(self) -> str:
        """What a person should look at; "" if nothing."""
        if self.too_slow:
            return f"how long it takes: {self.too_slow} of its tests had little time for other inputs"
        if not self.shown or self.changed[0] < _FEW:
            return "its code: with other inputs its tests hardly show the bug, so it may know the expected answers only"
        if 2 * self.compared[1] < self.compared[0]:
            return f"what its tests see: only {self.compared[1]} of {self.compared[0]} values could be compared"
        # Of two possible answers, half are right by chance.
        seen = (self.changed, self.equal_after, self.after, self.kept, self.own_changed)
        counted = zip(seen, (4 / 5, 4 / 5, 4 / 5, 1 / 3, 1 / 2), strict=True)
        few = ((of, same) for (of, same), part in counted if of and same <= part * of)
        return next((f"what its tests see: {same} of {of} values are those of the known fix" for of, same in few), "")


def agreement(patch: Seen, fix: Seen, again: Seen, bug: Seen) -> Agreement:
    """Compare a patch's answers with the fix's; those that vary by themselves do not count.

    Args:
        again: what a second run with the fix saw.
    """
    counts = {kind: [0, 0] for kind in ("changed", "after", "kept", "own changed", "own kept", "equal after")}
    all_free = slow = stable = due = got = ends = 0
    for test, seen in fix.items():
        ours, second, wrong = patch.get(test, {}), again.get(test, {}), bug.get(test, {})
        free, own = _free(ours, seen), {_answer(key, value) for key, value in seen.items() if key.startswith("0 ")}
        asked = {_place(one) for one in _given(ours)}
        known = {one for one in _given(wrong) if _place(one) in asked}
        reached, given = {_place(key) for key in ours}, known | _given(ours)
        known_to_bug = _reached(seen, wrong)
        asked_anew = {_place(key)[0] for key in seen if key.partition(" ")[2].startswith(CALLED)} | {"0"}
        runs = _runs(ours)
        both = _given(seen) & _given(second) & known
        others = {one for one in both - _own(both) if int(_place(one)[0]) < runs}
        due, got = due + len(others), got + len(others & _given(ours))
        all_free += len(free)
        ends += bool(ours) and seen.get(_END) == second.get(_END) != ours.get(_END)
        slow += 2 * runs < min(_runs(seen), _runs(second))
        for key, value in seen.items():
            reached_by_bug = _once(key) in known_to_bug
            fails_after = value == _FAILS and not reached_by_bug  # what is expected is another value, too
            # Where nothing of the tested code is called again, all is made from its answers to the test's own inputs.
            silent = value in _SAYS_NOTHING or fails_after or _place(key)[0] not in asked_anew
            if silent or not _same(second.get(key), value):
                continue
            stable += 1
            # Where a call gets what an earlier one gave, its inputs may be others. A slow repair has no time for all.
            compared = "(" not in key or key.partition(")")[0] in given or _place(key) not in reached
            compared &= not runs or int(_place(key)[0]) < runs
            if compared and _place(key)[1] not in free:
                as_before = _same(wrong.get(key), value)
                if _answer(key, value) in own:
                    kind = "own kept" if as_before else "own changed"
                else:  # what comes after an error that the bug raises is mostly the test's own
                    kind = "kept" if as_before else "changed" if reached_by_bug else "after"
                for one in (kind, "equal after") if kind == "after" and _EQUALS in key else (kind,):
                    counts[one][0] += 1
                    counts[one][1] += _same(ours.get(key), value)
    changed, after, kept, own_changed, _, equal_after = ((of, same) for of, same in counts.values())
    if changed[0] < _FEW and not all_free:
        changed = changed[0] + after[0], changed[1] + after[1]
    compared_all = sum(of for of, _ in counts.values()) - equal_after[0]
    shown = any(_place(key)[1] not in ("end", CALLED) for seen in fix.values() for key in seen)
    asked_for, all_seen = (due, got), (stable, compared_all)
    return Agreement(changed, kept, own_changed, all_free, slow, shown, asked_for, all_seen, ends, equal_after, after)


def function_of(test: str) -> str:
    """Return the id of a test's function: without its parameters, or the number of their set."""
    return test.partition("#")[0].partition("[")[0]


def most_alike(files: Mapping[str, str], tests: Set[str], others: Sequence[str]) -> list[str]:
    """Return other tests, first those that use most of what some tests use.

    Args:
        files: the source of test files, by path.
    """
    used: dict[str, set[str]] = {}
    for path, source in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                words = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}
                used[f"{path}::{node.name}"] = words

    def words_of(test: str) -> set[str]:
        path, *_, name = function_of(test).split("::")
        return used.get(f"{path}::{name}", set())

    wanted = set[str]().union(*map(words_of, tests))
    return sorted(others, key=lambda test: -len(wanted & words_of(test)) / (len(words_of(test)) or 1))


def _given(notes: Mapping[str, str]) -> set[str]:
    """Return what calls are given, as the starts of their notes: run, place, inputs."""
    return {key.partition(")")[0] for key in notes if "(" in key}


def _reached(seen: Mapping[str, str], wrong: Mapping[str, str]) -> set[str]:
    """Return what of the places, each time they are reached, the bug reaches as often."""
    before, nth, found = Counter(map(_place, set(map(_once, wrong)))), Counter[tuple[str, str]](), set[str]()
    for one in dict.fromkeys(map(_once, seen)):
        nth[_place(one)] += 1
        found |= {one} if nth[_place(one)] <= before[_place(one)] else set()
    return found


def _once(key: str) -> str:
    """Return what the notes of one value and of its parts have in common."""
    run, place, nth = key.split(" ")
    return f"{run} {place.partition('.')[0]} {nth}"


def _own(given: set[str]) -> set[str]:
    """Return those that a test gives with its own inputs, too."""
    return {one for one in given if f"0 {one.partition(' ')[2]}" in given}


def _runs(notes: Mapping[str, str]) -> int:
    """Return how many runs a test had, one after the other; a test that says otherwise had none."""
    runs = {_place(key)[0] for key in notes}
    return len(runs) if runs == set(map(str, range(len(runs)))) else 0


def _free(ours: Mapping[str, str], seen: Mapping[str, str]) -> set[str]:
    """Return the places where a test passes though it sees something else than with the fix: it asks for a part only.

    Nothing is free where it fails, where a value is of a class that may say what it equals, or where it must equal what
    the test itself gave.
    """
    first, fixed = _first(ours), _first(seen)
    if any(_FAILS in values for values in first.values()) or first.get("end") != fixed.get("end"):
        return set()
    return {
        place
        for place, values in first.items()
        if all(value.endswith(PLAIN) for value in values) and not all(map(_same, values, fixed.get(place, values)))
        if not _must_equal_own(place, first, fixed)
    }


def _must_equal_own(place: str, first: Mapping[str, list[str]], fixed: Mapping[str, list[str]]) -> bool:
    """Whether the other side of an equality is the test's own, or as with the fix, and no class says what it equals."""
    at, equals, side = place.partition(_EQUALS)
    mate = f"{at}{equals}{'0' if side == '1' else '1'}"
    others = fixed.get(mate, [])
    same = first.get(mate) == others and all(one.endswith(PLAIN) for one in others)
    return bool(equals) and (same or all(one in _SAYS_NOTHING for one in others))


def _first(notes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return what a test saw with its own inputs, by place."""
    found: dict[str, list[str]] = {}
    for key, value in sorted(notes.items()):
        if key.startswith("0 "):
            found.setdefault(_place(key)[1], []).append(value)
    return found


def _same(one: str | None, two: str) -> bool:
    return one is not None and one.removesuffix(PLAIN) == two.removesuffix(PLAIN)


def _place(key: str) -> tuple[str, str]:
    """Return (run, number of the place) of a note."""
    run, place = key.split(" ")[:2]
    return run, place.partition("(")[0].partition(".")[0]


def _answer(key: str, value: str) -> str:
    """Return what notes for the same inputs have in common: place and inputs; the value, where these are unknown."""
    place = key.split(" ")[1]
    return place if "(" in place else f"{place} {value.removesuffix(PLAIN)}"
