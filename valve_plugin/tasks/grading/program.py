"""Runs inside the sandbox, alone: test functions as an ordinary program would run them, without pytest.

A repair does the same wherever its code runs, so a test that passes here with the fix passes here with the repair, too.
Code that finds out whether it is under test finds nothing here: neither pytest nor its environment, streams, handlers
and filters, nor functions and files that are named like tests.

Each runs as it is, and then with other inputs (`answers.py`). Functions run that need no fixtures, with what
`parametrize` gives them, and methods of `TestCase`. A script of the standard library only, for the Python of the test
environment.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valve_plugin.tasks.grading import answers, words

_TOOLS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "unittest", "py"})
"""Modules that a program does not load."""
_SET_UP = frozenset(
    {"setup", "teardown", "setup_method", "teardown_method", "setup_class", "teardown_class", "setup_module"}
    | {"teardown_module", "setup_function", "teardown_function", "setUpModule", "tearDownModule"}
)
"""What pytest calls around tests; where there is any, a fixture that each test gets, or Hypothesis, none runs here."""
_STANDS_IN = frozenset({"mark", "raises", "param"})
"""What most tests use of pytest. Where they use no more it is not loaded, as that takes longer than all else here."""
_leave = os._exit


class Mark:
    """Decorates as `pytest.mark` does."""

    def __init__(self, name: str = "", *args: Any, **kwargs: Any) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs

    def __getattr__(self, name: str) -> Mark:
        if name.startswith("_"):
            raise AttributeError(name)
        return Mark(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate what is given, or take what the mark is given."""
        if kwargs or len(args) != 1 or not callable(args[0]):
            return Mark(self.name, *args, **kwargs)
        args[0].pytestmark = [*vars(args[0]).get("pytestmark", ()), self]
        return args[0]


class Raises:
    """Expects an error as `pytest.raises` does."""

    def __init__(self, kind: Any, *call: Any, match: Any = None, **named: Any) -> None:
        self._kind, self._match = kind, match
        if call:
            with self:
                call[0](*call[1:], **named)

    def __enter__(self) -> Raises:
        return self

    def __exit__(self, kind: Any, value: Any, _: object) -> bool:
        if kind is None:
            raise AssertionError("nothing was raised")
        if not issubclass(kind, self._kind):
            return False
        self.type, self.value = kind, value
        return not self._match or self.match(self._match)

    def match(self, pattern: Any) -> bool:
        """Whether the text of the error fits; else an assertion fails."""
        if not re.search(pattern, str(self.value)):
            raise AssertionError("another text")
        return True


class Param:
    """A set of values as `pytest.param` gives it."""

    def __init__(self, *values: Any, **_: Any) -> None:
        self.values = values


class StandIn(types.ModuleType):
    """What most tests use of pytest; the rest of it is loaded where it is asked for."""

    mark, raises, param = Mark(), Raises, Param

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if sys.modules.get("pytest") is self:
            del sys.modules["pytest"]
        return getattr(importlib.import_module("pytest"), name)


def load(
    root: str, path: str, source: str, packages: list[str], more: dict[str, Any], of: tuple[Any, words.Caller]
) -> tuple[types.ModuleType, Any, words.Names]:
    """Return (a test file as a module that does not look like one, `unittest.TestCase` if it uses that, other names).

    The tested code is loaded before the tools of tests are, and these are gone when it runs.

    Args:
        more: what the file calls besides, by name.
        of: the module `words`, and where tests are called from.
    """
    tree = ast.parse(source)
    folder = above = os.path.dirname(path)
    inside: list[str] = []
    while os.path.exists(os.path.join(root, folder, "__init__.py")):
        folder, _, name = folder.rpartition("/")
        inside.insert(0, name)
    place = os.path.join(root, folder)
    sys.path.insert(0, place)
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            if name.partition(".")[0] in packages:
                with suppress(Exception):
                    importlib.import_module(name)
    conftests = [os.path.join(root, *above.split("/")[:n], "conftest.py") for n in range(above.count("/") + 2)]
    around = source + "".join(text_of(conftest) for conftest in conftests)
    if any(word in around for word in ("autouse", "usefixtures", "hypothesis")):
        raise LookupError("something else than its tests is to run")
    (made, caller), module = of, types.ModuleType("__main__")
    own = {"__file__": os.path.join(root, path), "__package__": ".".join(inside), "__spec__": None}
    near, later = imports_near(tree)
    keeps = {one for one in own if one in source} | ({"__package__", "__spec__"} if later else set())
    caller.modules.append((module, keeps))
    caller.turn(made.kind_of(source))
    vars(module).update({one: what for one, what in own.items() if one in keeps or (near and one != "__file__")})
    known = set(map(id, below(object)))
    if used_of_pytest(tree) <= _STANDS_IN and "pytest" not in sys.modules:
        sys.modules["pytest"] = StandIn("pytest")
    code, names = made.compiled(source, caller.path, more, pytest=False)
    exec(code, vars(module))  # noqa: S102
    vars(module).update({names[name]: what for name, what in more.items()})
    sys.path.remove(place)
    case = getattr(sys.modules.get("unittest"), "TestCase", ())
    hide(_TOOLS.difference(packages), known, module.__name__)
    return module, case, names


def imports_near(tree: ast.AST) -> tuple[bool, bool]:
    """Return whether a file imports what is near it, and whether it does so when its functions run."""
    functions = [one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    near = (any(getattr(one, "level", 0) for of in all_of for one in ast.walk(of)) for all_of in ([tree], functions))
    return next(near), next(near)


def used_of_pytest(tree: ast.AST) -> set[str]:
    """Return the names of pytest that a file uses; "" where it has another name there."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "pytest":
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "pytest":
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.Import) and any(one.name == "pytest" and one.asname for one in node.names):
            found.add("")
    return found


def below(kind: Any) -> Iterator[Any]:
    """Yield the classes that are made from a class."""
    for one in type.__subclasses__(kind):
        yield from (one, *below(one))


def hide(tools: frozenset[str], known: set[int], name_of_all: str) -> None:
    """Leave no trace of tools that were loaded: no module, no distribution, no class but those known before.

    Args:
        name_of_all: the module that their classes are of.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] in tools]:
        del sys.modules[name]
    for kind in below(object):
        if id(kind) not in known and kind.__module__.partition(".")[0] in tools:
            kind.__module__ = name_of_all
    finder = importlib.machinery.PathFinder
    found, find = finder.find_distributions, finder.find_spec

    def others(*given: Any) -> Iterator[Any]:
        return (one for one in found(*given) if one.metadata["Name"].lower() not in tools)

    def find_spec(name: str, *given: Any, **named: Any) -> Any:
        return None if name.partition(".")[0] in tools - {"unittest"} else find(name, *given, **named)

    finder.find_distributions = staticmethod(others)  # type: ignore[method-assign,assignment]
    finder.find_spec = staticmethod(find_spec)  # type: ignore[method-assign,assignment]


def text_of(path: str) -> str:
    """Return what a file holds; nothing where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def calls(module: types.ModuleType, case: Any, name: str, vary: Any, names: words.Names) -> list[Any]:
    """Return what to call for a test (`Class.test`): once for each of its parameters, as `vary` gives them."""
    *above, last = (names.get(one, one) for one in name.split("."))
    owner: Any = module
    for one in above:
        owner = getattr(owner, one)
    if not _SET_UP.isdisjoint(dir(owner)) or not _SET_UP.isdisjoint(vars(module)):
        raise LookupError("something is to run around it")
    if isinstance(owner, type) and issubclass(owner, case):
        return [lambda: run_case(owner(last))]
    marks = list(getattr(getattr(owner, last), "pytestmark", ())) + list(getattr(owner, "pytestmark", ()))
    given: list[dict[str, Any]] = [{}]
    for mark in marks:
        if mark.name == "parametrize":
            given = [{**one, **more} for one in given for more in parameters(*mark.args, **mark.kwargs)]

    def call(arguments: dict[str, Any]) -> None:
        this = owner() if isinstance(owner, type) else owner
        function = getattr(this, last)
        has = inspect.signature(function).parameters
        varied = {name if name in has else names[name]: vary(name, value) for name, value in arguments.items()}
        answer = function(**varied)
        if inspect.iscoroutine(answer):
            importlib.import_module("asyncio").run(answer)

    return [lambda one=one: call(one) for one in given]


def parameters(names: Any, values: Any, **_: Any) -> list[dict[str, Any]]:
    """Return the arguments of each set of a `parametrize`."""
    text = isinstance(names, str)
    names = [one.strip() for one in names.split(",") if one.strip()] if text else list(names)
    alone = text and len(names) == 1
    sets = (one.values if is_set(one) else (one,) if alone else one for one in values)
    return [dict(zip(names, one)) for one in sets]  # noqa: B905  # for Python 3.9


def is_set(value: Any) -> bool:
    """Whether a value is a set of parameters."""
    return isinstance(value, Param) or type(value).__name__ == "ParameterSet"


def run_case(case: Any) -> None:
    """Run a test of `unittest`.

    Raises:
        RuntimeError: it did not pass.
    """
    type(case).setUpClass()
    try:
        result = case.defaultTestResult()
        case.run(result)
    finally:
        type(case).tearDownClass()
    if not result.testsRun or not result.wasSuccessful() or result.skipped:
        raise RuntimeError("did not pass")


def outcomes(
    plan: dict[str, Any], path: str, source: str, ask: answers.Answers, of: tuple[Any, words.Caller]
) -> Iterator[tuple[str, str]]:
    """Yield the outcomes of tests of a file; none if it cannot be loaded."""
    try:
        module, case, names = load(plan["root"], path, source, plan["packages"], ask.names(), of)
    except BaseException:  # noqa: BLE001  # tested code may raise anything
        return
    for test in plan["tests"]:
        name = test.partition("::")[2].replace("::", ".")
        if test.partition("::")[0] == path:
            try:
                each = enumerate(calls(module, case, name, ask.vary, names))
                ends = [ask.runs(f"{test}#{n}", functools.partial(end_of, ask, call))[0] for n, call in each]
            except BaseException:  # noqa: BLE001
                ends = ["none"]
            yield test, "failed" if any(ends) else "passed"


def end_of(ask: answers.Answers, call: Any, _: int) -> str:
    """Return what a call raises, or "" if nothing."""
    re.purge()  # our patterns tell nothing
    try:
        with ask.uncounted():
            call()
    except BaseException as e:
        if isinstance(e, ask.late):
            raise
        return type(e).__qualname__
    return ""


def main(plan: dict[str, Any], made: Any, left: int) -> None:
    """Run the tests, and exit without running any more tested code.

    Args:
        made: the module `words`.
        left: how many calls a script has left.
    """
    caller = made.Caller({*re.findall(r"\w+", " ".join([*plan["hidden"], *plan["packages"]]))}, left)
    asker, writer = (made.script(path, caller.path) for path in plan["beside"][:2])
    caller.modules.append((asker, ()))
    report = writer.Report(bytes.fromhex(plan.pop("key")))
    made.write(__file__)
    with suppress(OSError):
        os.chdir(os.path.expanduser("~"))  # a program does not run where its tests are
        out = os.open(f"{made.shuffled(made.WORDS)[0]}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)  # much output would leave no room for records
        os.close(out)
    sys.path[:] = [*plan["paths"], *(path for path in sys.path if path != os.path.dirname(__file__))]
    started = vars(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"]).update({name: value for name, value in started.items() if name.startswith("__")})
    vars(sys.modules["__main__"]).update(sys=sys, os=os, json=json)  # a script has names
    for name in ("PYTHONPATH", "PYTHONHASHSEED"):  # it has its effect
        os.environ.pop(name, None)
    report.record(event="start", reruns=False, shadows=[])
    finder, finders = importlib.machinery.PathFinder, list(sys.meta_path)
    find = finder.find_spec
    ask = asker.Answers(report, plan["variants"], caller)
    for path, source in plan["files"].items():
        sys.meta_path[:], finder.find_spec = finders, find  # type: ignore[method-assign]
        for test, outcome in outcomes(plan, path, source, ask, (made, caller)):
            for when in ("setup", "call", "teardown"):
                report.record(test=test, when=when, outcome=outcome, raised=outcome != "passed")
    report.record(event="end")
    sys.stdout.flush()
    _leave(0)


if __name__ == "__main__":  # it starts again, without names of its own
    _plan, _made = json.loads(sys.stdin.buffer.read()), types.ModuleType("words")
    exec(compile(text_of(_plan["beside"][2]), "words.py", "exec"), vars(_made))  # noqa: S102
    _made.script(__file__, __file__).main(_plan, _made, _made.room())
