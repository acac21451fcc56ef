"""Runs inside the sandbox, alone: pytest over the hidden tests. It only reports what happens; it judges nothing.

The tested code runs in this process, so nothing here is safe from it. It is kept away by the inspection of the patch
(`inspect_patch.py`); what it does all the same shows itself in what is reported here, which the process outside
compares with the report of the fix that the task is known by (`differences.py`).

A script of the standard library and pytest only, with `values.py`; it never imports the package it belongs to.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import json
import json.encoder
import os
import pkgutil
import re
import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import is_
from typing import TYPE_CHECKING, Any

import _pytest
import pytest
from _pytest.skipping import evaluate_xfail_marks

if TYPE_CHECKING:
    from valve_plugin.tasks.grading import values
else:
    import values  # beside this file

    del sys.modules["values"]

MACHINERY = ("_pytest", "pytest", "pluggy", "unittest", "builtins")
NEAREST = frozenset(
    {"builtins", "unittest.case.TestCase", "_pytest.unittest.TestCaseFunction", "_pytest.python.Function"}
    | {"_pytest.runner", "pluggy._hooks.HookCaller"}
)
"""Modules and classes of it by which tests run: they are looked at with each test, as the tests' own names are."""
RUNNING = re.compile("pytest_(runtest|pyfunc|pycollect|fixture|generate|make)")
"""Names of the hooks that create and run tests."""
RERUNNERS = frozenset({"rerunfailures", "flaky"})
"""Plugins that run a failed test again."""
READS = frozenset({"sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents"})
CHANGES = frozenset(
    {"sys.addaudithook", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback", "code.__new__"}
    | {"function.__new__", "ctypes.dlopen", "os.kill", "os.killpg", "signal.pthread_kill", "os.fork", "os.exec"}
    | {"os.posix_spawn", "os.system", "subprocess.Popen", "os.listdir", "os.scandir", "os.link", "os.symlink"}
)
"""Events that are reported with the file of the code that caused them."""
FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
"""Attributes that lead to the frames of whoever is running."""
RUNS = frozenset({"compile", "exec"})
"""Reported where code of the tree itself, of text, or of Python's library for the tree does so."""
WATCHED = READS | CHANGES | RUNS | {"open", "object.__setattr__", "object.__getattr__"}
OPENED = "open of what tells about the process"
NEAR = frozenset({"inspect", "string"})
"""Modules of the standard library that look at frames, or at attributes, for whoever calls them."""
MAKES = frozenset({"ast", "collections", "dataclasses", "gettext"})
"""Modules of the standard library that make code, or look at it, of texts of their own."""
EVALUATES = frozenset({"typing", "inspect"})
"""Modules of the standard library that evaluate texts: one that calls something is no annotation."""
LOADING = "<frozen importlib"
TELLING = ("/proc/", "/sys/", "/dev/fd/")
LONGEST = 300
"""Characters of a name that are printed as progress: the output is limited, and verdicts need the space."""
SIGNALS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2)

# Bound now, because tests may replace them in their modules.
abspath, write, get_frame = os.path.abspath, os.write, sys._getframe
quote_ascii = json.encoder.encode_basestring_ascii
get_thread, MAIN = threading.get_ident, threading.get_ident()
get_profile, get_trace, modules = sys.getprofile, sys.gettrace, sys.modules
monitoring: Any = getattr(sys, "monitoring", None)  # since Python 3.12


class Space:
    """What the names of a module or class stood for.

    Args:
        functions: only what can be called matters.
        grows: new names do not matter.
    """

    def __init__(self, owner: str, held: dict[str, Any], *, functions: bool, grows: bool) -> None:
        self._owner, self._held = owner, held
        self._every = None if grows else {*held, "__warningregistry__"}  # of a test that was warned
        self._kept = {n: v for n, v in held.items() if not functions or hasattr(v, "__get__") or callable(v)}
        self._names, self._values = list(held), list(held.values())

    def changes(self) -> Iterator[str]:
        """Yield what was added or replaced since the last time."""
        names, values = list(self._held), list(self._held.values())
        if len(names) == len(self._names) and all(map(is_, names, self._names)) and all(map(is_, values, self._values)):
            return
        self._names, self._values = names, values
        if self._every is not None:
            yield from (f"{self._owner}.{name} was added" for name in sorted({*names} - self._every))
        for name, value in self._kept.items():
            if self._held.get(name) is not value:
                yield f"{self._owner}.{name} was replaced"


class Report:
    """Writes records to the original output. A signature covers all records so far, so output cannot pass for one."""

    def __init__(self, key: bytes) -> None:
        self._chain, self._fd, self._lock = hashlib.blake2b(key=key), os.dup(1), threading.Lock()

    def record(self, **members: Any) -> None:
        """Write one record; only strings, lists of them and booleans."""
        with self._lock:
            self._write(members)

    def try_record(self, **members: Any) -> bool:
        """Write one record, unless another is being written: by another thread, or by whom this one interrupts."""
        free = self._lock.acquire(blocking=False)
        if free:
            self._write(members)
            self._lock.release()
        return free

    def _write(self, members: dict[str, Any]) -> None:
        body = ("{" + ",".join(f"{quote(name)}:{encoded(value)}" for name, value in members.items()) + "}").encode()
        self._chain.update(body + b"\n")
        write(self._fd, b"\n@valve " + self._chain.copy().hexdigest().encode() + b" " + body + b"\n")

    def explain(self, test: str, message: str, place: str) -> None:
        """Write why a test failed, for people and models to read; unsigned, because no verdict depends on it."""
        values = {"test": str(test)[:500], "message": str(message)[:1000], "place": str(place)[:500]}
        body = ",".join(f'"{name}":{quote(value)}' for name, value in values.items())
        write(self._fd, f"\n@reason {{{body}}}\n".encode())


def quote(text: str) -> str:
    """Return a text as JSON; half characters, which no reader takes, by their numbers."""
    return quote_ascii(text.encode("utf-8", "backslashreplace").decode())


def encoded(value: Any) -> str:
    """Return a value as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{','.join(map(quote, value))}]" if isinstance(value, list) else quote(value)


class Progress:
    """The pytest plugin for `watch.py`. Its lines are not signed, and no verdict depends on them."""

    def __init__(self) -> None:
        self._out = os.dup(1)

    def pytest_collectstart(self, collector: Any) -> None:
        """Say which file is read."""
        if isinstance(collector, pytest.File):
            self._say("collect", quote(collector.nodeid[:LONGEST]))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: Any) -> None:
        """Say how many tests there are."""
        self._say("tests", str(len(session.items)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test begins."""
        self._say("test", quote(nodeid[:LONGEST]))

    def pytest_runtest_logfinish(self) -> None:
        """Say that it has ended."""
        self._say("ended", "true")

    def _say(self, name: str, value: str) -> None:
        with suppress(OSError):  # the reader is gone
            write(self._out, f'\n@valve-now {{"{name}":{value}}}\n'.encode("ascii"))


class Reporter:
    """The pytest plugin: reports each test's phases, what it compares, and what changed meanwhile."""

    def __init__(self, plan: dict[str, Any], report: Report) -> None:
        self._record, self._try_record, self._explain = report.record, report.try_record, report.explain
        self._plan = plan
        self._tests = frozenset(plan["hidden"])
        self._looks = values.Values(plan["root"], [*plan["packages"], *plan["new"]])
        self._fixed = frozenset(plan["fixed"]) - {"__init__.py"}
        self._root = plan["root"] + os.sep
        self._packages = set(plan["packages"]) - sys.stdlib_module_names - {"_pytest", "pytest", "pluggy"}
        self._spaces: list[Space] = []
        self._nearest: dict[str, list[Space]] = {"": []}
        self._sizes: dict[str, Any] = {}
        self._codes: dict[str, types.CodeType | None] = {}
        self._used = {path: set[str]() for path in self._tests}
        self._reported: set[str] = set()
        self._found: dict[str, None] = {}
        self._hooks: dict[str, Any] = {}
        self._implementations: dict[str, list[Any]] = {}
        self._raw: list[Any] = []
        self._digests: dict[int, str] = {}
        self._inside = self._busy = False

    # Before code of the tree is loaded

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: Any) -> Iterator[None]:
        """Note the state of the machinery; then put the tree on the import path."""
        plugins = early_config.pluginmanager
        names = {name for name, _ in plugins.list_name_plugin()}
        shadows = [name for name in self._plan["new"] if importlib.util.find_spec(name)]
        self._record(event="start", reruns=bool(names & RERUNNERS), shadows=shadows)
        if shadows:
            os._exit(0)
        self._hooks = {name: caller for name, caller in vars(plugins.hook).items() if RUNNING.match(name)}
        for name, module in list(modules.items()):
            if name.split(".")[0] in MACHINERY:
                self._note_module(module, functions=True)
            elif name.split(".")[0] in sys.stdlib_module_names and isinstance(module, types.ModuleType):
                self._note_module(module, functions=True, grows=True)
        # The tree comes first, also before packages of the same name that pytest needs (Pygments). A planted pytest.py
        # has no effect: all of pytest is already imported.
        loader = source_loader(self._plan["root"], frozenset(self._plan["changed"]), self._looks, self._used)
        sys.path_hooks.insert(0, functools.partial(source_finder, self._plan["root"], loader))
        sys.path_importer_cache.clear()
        sys.path[:0] = self._plan["paths"]
        self._changes()  # what is so from the start is no change
        self._found.clear()
        sys.addaudithook(self._audit)
        for name in [name for name in modules if name.partition(".")[0] in self._packages]:
            del modules[name]
        yield

    def _note_module(self, module: types.ModuleType, *, functions: bool, grows: bool = False) -> None:
        """Note what the names of a module, and of its classes, stand for.

        Args:
            functions: only names of what can be called.
            grows: new names are none of ours.
        """
        inside = vars(module).values() if module.__name__ != "builtins" else ()
        classes = [one for one in inside if isinstance(one, type) and one.__module__ == module.__name__]
        spaces = [(module.__name__, vars(module))]
        spaces += [(f"{one.__module__}.{one.__qualname__}", gc.get_referents(one.__dict__)[0]) for one in classes]
        for owner, held in spaces:
            space = Space(owner, held, functions=functions or held is not vars(module), grows=grows)
            self._spaces.append(space)
            if owner in NEAREST or not functions:
                self._nearest.setdefault("" if functions else str(module.__file__), []).append(space)

    # While tests run

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: Any) -> None:
        """Report the code of each test and of its file, and note what their names stand for."""
        for item in session.items:
            function = innermost(getattr(item, "obj", None))
            self._codes[item.nodeid] = function.__code__ if type(function) is types.FunctionType else None
        tested = [one for name, one in list(modules.items()) if name.partition(".")[0] in self._packages]
        spaces = {id(one): values.space_of(one) for one in tested if isinstance(one, types.ModuleType)}
        known = spaces.keys() | {id(value) for space in spaces.values() for value in space.values()}
        for module in list(modules.values()):
            if isinstance(module, types.ModuleType) and getattr(module, "__file__", None) in self._tests:
                path = str(module.__file__)
                used = self._used[path]
                own = {name: one for name, one in vars(module).items() if name in used and id(one) in known}
                own |= {name: modules[name] for name in used if id(modules.get(name)) in spaces}
                names = self._meanings(own, used, spaces)
                self._record(event="module", test=path[len(self._root) :], code=module_digest(module), names=names)
                self._note_module(module, functions=False)

    def _meanings(self, own: dict[str, Any], used: set[str], spaces: dict[int, dict[str, Any]]) -> list[str]:
        """Return the names of the tested code that a test file uses, each with what it stands for.

        Args:
            own: what it imports of the tested code.
            used: names in its code.
            spaces: what modules of the tested code hold, by their ids.
        """
        self._looks.clear()
        seen, found, left = set[int](), list[str](), [("", own)]
        while left:
            prefix, space = left.pop()
            for name in sorted(used & space.keys()):
                value = space[name]
                if id(value) in spaces:
                    if id(value) not in seen:
                        seen.add(id(value))
                        left.append((f"{prefix}{name}.", spaces[id(value)]))
                elif not name.startswith("__") and (told := meaning(value, self._looks)):
                    found.append(f"{prefix}{name}\t{told}")
        return found

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        """Look at all names at the end of each file: they are too many to look at after each test."""
        yield
        if nextitem is None or nextitem.path != item.path:
            self._names_changed(self._spaces)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        """Begin with what a test compares."""
        self._looks.clear()
        self._replaced(item)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Tell the parts of a test from the whole."""
        self._inside = True
        yield
        self._inside = False

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Report pytest's outcome of a phase, and whether that phase raised."""
        raised = call.excinfo is not None
        result: Any = yield
        report = result.get_result()
        raised |= call.excinfo is not None  # failures of unittest appear only now
        outcome = report.outcome
        if self._inside:  # of a `subTest`, while its test is still running
            if outcome == "failed":
                self._record(test=item.nodeid, when="part", outcome="failed", raised=True)
            return
        if outcome == "skipped" and hasattr(report, "wasxfail"):
            outcome = "xfailed" if declared(item) else "failed"
        more: dict[str, Any] = {}
        if call.when == "setup":  # what an earlier test left for this one is there by now
            self._names_changed(self._nearest[""])
            self._names_changed(self._nearest.get(str(item.path), ()))
            more["code"] = self._origin(item)
        else:
            more["values"] = self._looks.taken(item.nodeid.partition("::")[0])
        if call.when == "call":
            self._changes(item)
        if call.when != "teardown":
            more["seen"] = self._new()
        self._record(test=item.nodeid, when=call.when, outcome=outcome, raised=raised, **more)
        if outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            place = f"{getattr(crash, 'path', '')}:{getattr(crash, 'lineno', 0)}"
            self._explain(item.nodeid, getattr(crash, "message", ""), place)

    def pytest_collectreport(self, report: Any) -> None:
        """Tell why a file could not be collected: none of its tests will run."""
        if report.failed:
            why = str(report.longrepr).strip().rpartition("\n")[2].removeprefix("E").strip()
            self._explain(report.nodeid, why, "")

    def _origin(self, item: Any) -> str:
        """Return a digest of the code of a test."""
        code = self._codes.get(item.nodeid)
        if code is None:
            return "data"
        if id(code) not in self._digests:  # parametrized tests share it
            self._digests[id(code)] = code_digest(code)
        return self._digests[id(code)]

    # What was changed

    def _new(self) -> list[str]:
        """Return what was found since the last record."""
        new = [what for what in self._found if what not in self._reported]
        self._reported.update(new)
        self._found.clear()
        return new

    def _say(self, what: str) -> None:
        if what not in self._reported:
            self._found[what] = None

    def _changes(self, item: Any = None) -> None:
        """Find what is different now in the hooks, the interpreter, and the objects of a test."""
        now = raw_state()  # names are made only where something changed, as all this is per test
        if len(now) != len(self._raw) or not all(map(is_, now, self._raw)):
            self._raw = now
            for what, name in interpreter_state():
                if name != self._sizes.setdefault(what, name):
                    self._say(f"{what} changed to {name}")
        for name, caller in self._hooks.items():
            if (held := caller._hookimpls) != self._implementations.get(name):
                self._implementations[name] = list(held)
                for one in held:
                    plugin, function = one.plugin_name, one.function
                    owner = kind(one.plugin) if plugin.isdigit() else plugin.replace(self._root, "")
                    called = str(getattr(function, "__qualname__", type(function).__qualname__))
                    what = f"{name} has the implementation {called} of {owner}"
                    if what not in self._sizes:
                        self._sizes[what] = True
                        self._say(what)
        self._replaced(item)
        self._replaced(getattr(getattr(item, "obj", None), "__self__", None))

    def _names_changed(self, spaces: Iterable[Space]) -> None:
        """Find names of modules and classes that stand for something else now."""
        for space in spaces:
            for what in space.changes():
                self._say(what)

    def _replaced(self, thing: Any) -> None:
        """Find methods that were replaced on one object."""
        cls = type(thing)
        for name in getattr(thing, "__dict__", ()):
            if isinstance(getattr(cls, name, None), types.FunctionType):
                self._say(f"{cls.__module__}.{cls.__qualname__}.{name} was replaced on an object")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook: note the few events that matter, with the file of the code that caused them."""
        if event not in WATCHED or self._busy:
            return
        self._busy = True
        self._event(event, arguments, get_frame(1))
        self._busy = False

    def _event(self, event: str, arguments: tuple[Any, ...], first: types.FrameType) -> None:
        if event in CHANGES or event in READS:
            self._by(event, first, "near" if event == "sys._getframe" else "")
        elif event in RUNS:
            name = top_module(first)
            plain = name in MAKES or name not in sys.stdlib_module_names
            plain |= name in EVALUATES and not calls(arguments[0])
            self._by(event, first, "direct" if plain else "")
        elif event == "open":
            path = whole_path(arguments[0])
            name = path.rpartition("/")[2]
            if path.startswith(TELLING) or name in self._fixed:
                self._by(OPENED if path.startswith(TELLING) else f"open of {name}", first, "any")
        elif event == "object.__setattr__" and arguments[1] == "__code__":
            self._by("change of a function's code", first)
        elif event == "object.__getattr__" and arguments[1] in FRAMES:
            self._by("sys._getframe", first, "near")

    def _by(self, what: str, first: types.FrameType, reach: str = "") -> None:
        """Report an event at once if code of the tree that is not a test caused it: no later code can unsay it.

        So is one with no code of the tree behind it, or a test, with the file that is nearest: a function of C may be
        called by whatever runs. Tests do the same with the fix.

        Args:
            first: the innermost frame.
            reach: see `_cause`.
        """
        frame = self._cause(first, reach)
        if frame is None and reach != "direct":
            apart = get_thread() != MAIN or (reach == "" and LOADING not in first.f_code.co_filename)
            apart |= reach == "near" and top_module(first) not in sys.stdlib_module_names
            known = f"{what} by {first.f_code.co_filename}" in self._reported
            frame = first if apart and not known and self._cause(first, "any") is None else None
        place = frame.f_code.co_filename if frame is not None else ""
        if frame is not None and (reach == "" or frame is first or place not in self._tests):
            # Of the tested code matters what it opens, and not in which file.
            tested = reach == "any" and place.startswith(self._root) and place not in self._tests
            what += "" if tested else f" by {place.replace(self._root, '', 1)}"
            if what not in self._reported:
                self._say(what)
                if self._try_record(event="seen", seen=[what]):
                    self._reported.add(what)

    def _cause(self, first: types.FrameType, reach: str) -> types.FrameType | None:
        """Return the innermost frame of code of the tree that caused an event; None if other code did.

        Args:
            reach: what may be between: "any" code, "near": a module that does it for whoever calls it, "direct":
                nothing; else all but the import system. Code that is made of text may always.
        """
        text = is_text(first)
        frame: types.FrameType | None = first
        while frame is not None and not (name := frame.f_code.co_filename).startswith(self._root):
            goes_on = text or reach == "any" or (reach == "" and LOADING not in name)
            goes_on |= reach == "near" and frame.f_globals.get("__name__") in NEAR
            frame = frame.f_back if goes_on or is_text(frame) else None
        return frame

    def end(self) -> None:
        """Report the end."""
        self._names_changed(self._spaces)
        self._changes()
        self._record(event="end", seen=self._new())


def top_module(frame: types.FrameType) -> str:
    """Return the top name of the module that the code of a frame says it is of."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def is_text(frame: types.FrameType) -> bool:
    """Whether the code of a frame was made of text: it can say that it is of any module."""
    return not frame.f_code.co_filename.startswith(("/", "<frozen"))


def calls(source: Any) -> bool:
    """Whether the text that is compiled may call something."""
    return (
        b"(" in bytes(source)
        if isinstance(source, bytes)
        else isinstance(source, str) and str.__contains__(source, "(")
    )


def whole_path(path: Any) -> str:
    """Return a path from the root; of it a subclass of str may say anything."""
    text = str.__add__("", os.fsdecode(path) if isinstance(path, bytes) else path if isinstance(path, str) else "")
    with suppress(OSError):  # the working directory is gone
        return abspath(text) if text else ""
    return text


def raw_state() -> list[Any]:
    """Return what `interpreter_state` describes, as it is."""
    state: list[Any] = [
        get_trace(),
        get_profile(),
        len(gc.callbacks),
        len(sys.path_hooks),
        sys.modules is modules,
        *sys.meta_path,
    ]
    state += map(signal.getsignal, SIGNALS)
    return [*state, *map(monitoring.get_tool, range(6))] if monitoring else state


def interpreter_state() -> list[tuple[str, str]]:
    """Return the settings of the interpreter by which code runs beside the tests."""
    state = [("the trace function", kind(get_trace())), ("the profile function", kind(get_profile()))]
    state += [("import hooks", " ".join(map(kind, sys.meta_path))), ("callbacks of gc", str(len(gc.callbacks)))]
    state += [("path hooks", str(len(sys.path_hooks))), ("sys.modules", str(sys.modules is modules))]
    state += [(f"the handler of {number.name}", kind(signal.getsignal(number))) for number in SIGNALS]
    if monitoring:
        state += [("monitoring", " ".join(str(monitoring.get_tool(number)) for number in range(6)))]
    return state


def kind(thing: object) -> str:
    """Return the name of an object or of its class, which is the same in each run."""
    held = thing if isinstance(thing, type) else type(thing)
    return getattr(thing, "__qualname__", None) or held.__qualname__


def innermost(function: Any) -> Any:
    """Return the function that decorators wrapped."""
    for _ in range(100):
        if isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.FunctionType) and "hypothesis" in vars(function):
            function = getattr(function.hypothesis, "inner_test", None)  # type: ignore[attr-defined]
        elif isinstance(function, types.FunctionType) and "__wrapped__" in vars(function):
            function = vars(function)["__wrapped__"]
        else:
            break
    return function


def code_digest(code: types.CodeType) -> str:
    """Return a digest of what a code object does, without line numbers."""
    return hashlib.blake2b(described(code).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def described(value: Any) -> str:
    """Return a constant as text that is the same in each run."""
    if isinstance(value, types.CodeType):
        names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_flags)
        return f"code({value.co_code.hex()}{names!r}{''.join(map(described, value.co_consts))})"
    if isinstance(value, tuple):
        return f"({','.join(map(described, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(described, value)))}}}"
    return f"{type(value).__name__}:{'' if isinstance(value, types.MethodType) else repr(value)};"


def module_digest(module: types.ModuleType) -> str:
    """Return a digest of the functions that a test file defines, and its classes."""
    found = []
    classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    for space in (module, *classes):
        for name, value in sorted(vars(space).items()):
            if isinstance(value, (classmethod, staticmethod)):
                value = value.__func__
            elif type(value).__module__.startswith("_pytest."):  # a fixture
                value = getattr(value, "__wrapped__", None)
            if isinstance(value, types.FunctionType) and value.__code__.co_filename == module.__file__:
                found.append(name + code_digest(value.__code__))
    return hashlib.blake2b("".join(found).encode(), digest_size=8).hexdigest()


def names_in(code: types.CodeType) -> set[str]:
    """Return all names that code uses, but for its own variables."""
    inside = [names_in(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*inside)


def meaning(value: Any, looks: Any) -> str:
    """Return what a name stands for that does not vary: a class with its bases and its own class, or a plain value.

    A class that was there before the tested code has a `*`. Functions, and all else, have no meaning.
    """
    cls = type(value)
    if values.is_below(cls, type):
        chains = (values.mro_of(one) for one in (value, cls))
        names = (",".join(values.label(one) + "*" * values.is_known(one) for one in chain) for chain in chains)
        return f"class {' of '.join(names)}"
    if not any(id(base) in values.VALUED for base in values.mro_of(cls)):
        return ""
    found, digest = looks.look(value)
    return ",".join(sorted({kind.name for kind in found.values()})) or digest


def source_loader(root: str, tests: frozenset[str], looks: Any, used: dict[str, set[str]]) -> Any:
    """Return the loader of modules of the tree, from their source: bytecode in the tree is not read.

    Test files are changed, so that what they compare passes through `looks`; the names they use are put in `used`.
    """

    class SourceLoader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            path = self.get_filename(fullname)
            data = self.get_data(path)
            code = None
            if path in tests:
                with suppress(RecursionError):  # nested too deeply to be changed
                    code = values.compiled(data, path, path[len(root) + 1 :], looks)
            code = code or self.source_to_code(data, path)
            if path in used:
                used[path] |= names_in(code)
            return code

    return SourceLoader


def source_finder(root: str, loader: Any, path: str) -> Any:
    """Return the finder of a directory of the tree (a path hook)."""
    place = os.path.abspath(path or os.getcwd())
    if (place != root and not place.startswith(root + os.sep)) or not os.path.isdir(place):
        raise ImportError("not in the tree")
    native = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    return importlib.machinery.FileFinder(path, native, (loader, importlib.machinery.SOURCE_SUFFIXES))


def hide_test(_: object, when: str | None) -> None:
    """Tell the environment that a test runs, and not which."""
    if when:
        os.environ["PYTEST_CURRENT_TEST"] = f"test ({when})"
    else:
        os.environ.pop("PYTEST_CURRENT_TEST", None)


def declared(item: Any) -> bool:
    """Whether the test itself is marked as expected to fail; an xfail raised by tested code does not count."""
    return evaluate_xfail_marks(item) is not None or hasattr(item.obj, "__unittest_expecting_failure__")


def main() -> None:
    """Read the plan from standard input, run the tests, and exit without running any more tested code."""
    plan = json.loads(sys.stdin.buffer.read())
    modules["__main__"] = types.ModuleType("__main__")  # no code finds this module by its name
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[:] = ["pytest"]
    # Not with -I: that also drops PYTHONHASHSEED, so the order of sets would differ in each run.
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    os.environ["PYTHONPATH"] = os.pathsep.join(plan["paths"])  # for processes that tests start
    for module in pkgutil.walk_packages(_pytest.__path__, "_pytest."):
        with suppress(ImportError):  # parts of pytest for what is not installed
            importlib.import_module(module.name)  # all that pytest can need later is loaded now
    vars(_pytest.runner)["_update_current_test_var"] = hide_test
    if importlib.util.find_spec("pytest_cov"):
        plan["arguments"].append("--no-cov")  # a tracer may change the behaviour of the code
    if importlib.util.find_spec("_hypothesis_pytestplugin"):
        # Independent of chance and of the machine's load; the project's own settings override this.
        plan["arguments"].append("--hypothesis-seed=0")
        hypothesis: Any = importlib.import_module("hypothesis")
        slow = [hypothesis.HealthCheck.too_slow]
        hypothesis.settings.register_profile("valve", deadline=None, suppress_health_check=slow)
        hypothesis.settings.load_profile("valve")
    reporter = Reporter(plan, Report(bytes.fromhex(plan.pop("key"))))
    plugins: list[object] = [reporter]
    if plan["progress"]:  # somebody follows this run
        plugins.append(Progress())
    pytest.main(plan["arguments"], plugins=plugins)
    reporter.end()
    os._exit(0)


if __name__ == "__main__":
    main()
