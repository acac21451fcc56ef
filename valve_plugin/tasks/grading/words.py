"""Runs inside the sandbox: what code sees of its callers is as in many programs, and never the same twice.

Functions of C, as `vars` or `warnings.warn`, look at the frame that calls them, and no hook is told. So names, lines
and files of what stands above tested code are made at random. A script of the standard library only.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Collection
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from typing import Any

WORDS = re.findall(
    r"\w+",
    """
    value item key unit data name result helper main app load read build save write count total index order node parent
    child line page user group record entry field row column source target report config options client server session
    request response message event handler worker task job batch cache store model view form table chart render update
    merge split convert fetch prepare collect current
    """,
)
"""Names that many programs have."""
KINDS = 3
"""Kinds of modules from which code is called: a script, a module, and a module of a package."""
ABOUT = ("__name__", "__package__", "__spec__", "__loader__", "__file__", "__cached__")
_LOOKS = frozenset({"locals", "vars", "dir", "eval", "exec", "globals"})
"""Functions by which code sees its own names."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MOST_LINES = 400
_VALUES = ("None", "True", "0", "12", "2.5", "'a'", "''", "[]", "{}", "(1, 'b')", "len", "str")


def shuffled(some: Any) -> list[Any]:
    """Return some things in a random order; without `random`, which code could set."""
    return sorted(some, key=lambda _: os.urandom(8))


def chance(below: int) -> int:
    """Return a random number."""
    return int.from_bytes(os.urandom(4), "big") % below


def room(calls: int = 0) -> int:
    """Return how many calls are left below the limit of recursion."""
    try:
        return room(calls + 1)
    except RecursionError:
        return calls


class Names(dict[str, str]):
    """Other names: for each one that is asked for, a word that nothing else is called."""

    def __init__(self, used: Collection[str] = ()) -> None:
        super().__init__()
        words = shuffled(WORDS)
        pairs = (f"{one}_{two}" for one in words for two in words)
        self._left = (one for some in (words, pairs) for one in some if one not in used and not hasattr(builtins, one))

    def __missing__(self, name: str) -> str:
        """Give it one."""
        self[name] = next(self._left)
        return self[name]


class Renamed(ast.NodeTransformer):
    """Gives functions and classes that are named like tests other names, and what a file asks of its grader."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_FunctionDef(self, node: Any) -> Any:
        """Rename one."""
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Follow where a function is called."""
        node.attr = self._names.get(node.attr, node.attr) if node.attr.startswith("test_") else node.attr
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        """Follow where a function is called."""
        node.id = self._names.get(node.id, node.id)
        return node


def identifiers(tree: ast.AST) -> set[str]:
    """Return all that is a name in a file."""
    fields = ("id", "attr", "arg", "name", "asname", "module", "rest")
    found = {str(getattr(node, one, "")).partition(".")[0] for node in ast.walk(tree) for one in fields}
    return found.union(*(one.names for one in ast.walk(tree) if isinstance(one, (ast.Global, ast.Nonlocal))))


def compiled(source: str, path: str, asked: Collection[str], *, pytest: bool) -> tuple[types.CodeType, Names]:
    """Return (a test file's code with other names, these by those that they replace).

    Args:
        asked: what it calls of its grader.
        pytest: whether pytest finds tests, and what they are given, by their names.
    """
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    used = identifiers(tree)
    names = Names(used.union(map(str.lower, used)))  # classes get words in capitals
    words = {str(one.arg) for one in nodes if isinstance(one, ast.keyword)}
    keeps = words.union(one.arg for one in nodes if isinstance(one, ast.arg))
    for one in [] if pytest else nodes:
        if isinstance(one, _FUNCTIONS) and one.name.startswith("test_") and one.name not in keeps:
            names[one.name] = names[one.name]
    for one in [] if pytest else tree.body:
        if isinstance(one, ast.ClassDef) and "test" in one.name.lower():
            names[one.name] = names[one.name].title()
    named = {**names, **{one: names[one] for one in asked}}
    called = {id(one.func) for one in nodes if isinstance(one, ast.Call)}
    passed = {one.id for one in nodes if isinstance(one, ast.Name) and id(one) not in called}
    defined = [one.name for one in nodes if isinstance(one, _FUNCTIONS)]
    passed |= {one for one in defined if defined.count(one) > 1}
    helpers = {one.name for one in tree.body if isinstance(one, _FUNCTIONS) and not one.decorator_list} - passed
    marked = re.compile("'(mark|patch)'")  # other decorators may look at parameters
    tests = {
        named[one.name]
        for one in nodes
        if isinstance(one, _FUNCTIONS)
        and one.name in named
        and all(marked.search(ast.dump(d)) for d in one.decorator_list)
    }
    free = set() if pytest else tests | helpers
    code = compile(Renamed(named).visit(tree), path, "exec", dont_inherit=True)
    return nameless(code, names, words, free), names


def outside(name: Any) -> Any:
    """Return the name that something would have outside of functions, as most have; anything else as it is."""
    return name.rpartition("<locals>.")[2] if isinstance(name, str) and ".<locals>." in name else name


def nameless(code: Any, names: Names, keeps: Collection[str], free: Collection[str] | None = None) -> Any:
    """Return code in which what functions hold has other names.

    Args:
        keeps: names that stay.
        free: functions whose parameters get other names, too; None where functions themselves get them.
    """
    function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # else it is a module or a class, which has its names
    inside = tuple(
        nameless(one, names, keeps, () if function and free is not None else free)
        if isinstance(one, types.CodeType)
        else outside(one)
        for one in code.co_consts
    )
    if hasattr(code, "co_qualname"):  # before, it is among the constants of the code around it
        code = code.replace(co_qualname=outside(code.co_qualname))
    if not function or (free is not None and not _LOOKS.isdisjoint(code.co_names)):
        return code.replace(co_consts=inside)
    more_named = bool(code.co_flags & inspect.CO_VARKEYWORDS)  # which may have any names
    more_placed = bool(code.co_flags & inspect.CO_VARARGS)
    given = code.co_argcount + code.co_kwonlyargcount + more_placed + more_named
    ours = free is None or code.co_varnames[:1] == ("place",)
    by_place = code.co_argcount if ours and more_named else code.co_posonlyargcount
    ours |= code.co_name in (free or ()) and not more_named
    stay = {*keeps, *(() if ours else code.co_varnames[:given])}

    def others(held: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one if one in stay or one[:2] == "__" or one[:1] == "." else names[one] for one in held)

    more: dict[str, Any] = {one: others(getattr(code, one)) for one in ("co_varnames", "co_cellvars", "co_freevars")}
    if free is None:
        called = code.co_name if code.co_name[:1] == "<" else names[code.co_name + "()"]
        more |= {one: called for one in ("co_name", "co_qualname") if hasattr(code, one)}
    return code.replace(co_consts=inside, co_posonlyargcount=by_place, **more)


def script(path: str, shown: str) -> Any:
    """Return a script as a module that has no name and no line of its own."""
    with open(path, encoding="utf-8") as file:
        code = compile("\n" * chance(200) + file.read(), shown, "exec", dont_inherit=True)
    names = Names()
    module = types.ModuleType("")
    module.__file__ = shown
    exec(nameless(code, names, {"match"}), vars(module))  # noqa: S102
    module.__name__ = "__main__"
    for one in vars(module).values():
        if isinstance(one, type) and not one.__module__:
            one.__module__ = "__main__"
            one.__name__ = one.__qualname__ = names[one.__name__ + "()"].title()
    return module


def write(path: str) -> None:
    """Write an ordinary script, which code finds where it looks at the file of a caller."""
    lines = (f"{name} = {chance(99)}\n" for name in shuffled(WORDS * 8))
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.remove(path)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(list(lines)[: _MOST_LINES - chance(50)])


def kind_of(source: str) -> int:
    """Return the kind of module as which a file is loaded: the same with the fix and with a patch."""
    return len(source) % KINDS or int("__main__" in source)


class Caller:
    """The module from which code is called: of each kind in turn."""

    def __init__(self, taken: Collection[str], left: int) -> None:
        """Choose names that no module has, as code may import one.

        Args:
            taken: names of modules that cannot be found yet.
            left: how many calls a script has left.
        """
        self.left, self.room = left, room
        free = (one for one in shuffled(WORDS) if one not in taken and not importlib.util.find_spec(one))
        folder, self._package, self._name = (next(free) for _ in range(3))
        self.path = os.path.join(os.path.expanduser("~"), folder, self._package, f"{self._name}.py")
        self.modules: list[tuple[types.ModuleType, Collection[str]]] = []
        """With the names that each keeps; the last one is found by its name."""
        self._main = sys.modules["__main__"]
        self._gets, self._calls, function, *more = shuffled(WORDS)
        self._more = {one: chance(99) for one in more[: chance(12)]}
        line, away = f"{self._gets} = {self._calls}()", "\n" * chance(99)
        made = "".join(f"    {one} = {_VALUES[chance(len(_VALUES))]}\n" for one in more[: chance(8)])
        inside = f"def {function}():\n    global {self._gets}\n{made}    {line}\n\n\n{function}()"
        self._lines = [compile(away + one, self.path, "exec", dont_inherit=True) for one in (line, inside)]
        sys.modules[self._package] = types.ModuleType(self._package)
        vars(sys.modules[self._package]).update(__path__=[os.path.dirname(self.path)])
        write(self.path)

    @functools.cache  # noqa: B019  # it lasts as long as the process
    def about(self, kind: int) -> dict[str, Any]:
        """Return what a module of a kind says about itself."""
        name = ("__main__", self._name, f"{self._package}.{self._name}")[kind]
        about: dict[str, Any] = dict.fromkeys(ABOUT)
        about.update(__name__=name, __file__=self.path, __loader__=SourceFileLoader(name, self.path))
        if kind:
            spec: Any = importlib.util.spec_from_file_location(name, self.path)
            about = {one: getattr(importlib.util.module_from_spec(spec), one, None) for one in ABOUT}
        return about

    def turn(self, kind: int) -> Any:
        """Let all code be called from a module of a kind.

        Returns:
            (Lines that call, outside of functions or in one; all names there; what gets the answer; what they call.)
        """
        about, sys.modules["__main__"] = self.about(kind), self._main
        name = about["__name__"]
        for module, keeps in self.modules:
            old = module.__name__
            vars(module).update({one: what for one, what in about.items() if one not in keeps})
            for one in list(vars(module).values()):
                if isinstance(one, (type, types.FunctionType)) and one.__module__ == old:
                    with suppress(Exception):  # its class may not let it
                        one.__module__ = name
            sys.modules[name] = module
        return self._lines[kind > 0], {**self._more, **about, "__doc__": None}, self._gets, self._calls
