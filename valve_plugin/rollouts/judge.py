"""What the test harness's audit hook knows and does. Executed by `harness.py` in a namespace of its own.

Tested code shares the process with its judge. The interpreter keeps audit hooks where no module, frame or object
leads, so the state below cannot be looked up; `gc`, which could find it, is closed to newcomers. Nor can it be
reached from below: while the judge runs it calls nothing but C functions taken before tested code came, and touches
foreign objects only after their exact type is known, so no foreign method ever runs with the judge on its stack.

It is told nothing: `sys.audit("valve")` only makes it look at the caller's frame, which must be one of the harness's
own, and take the values from there. A verdict is signed only if
- everyone on the caller's stack was there before the tree's code, down to the harness's own main module;
- the functions of pytest, pluggy, unittest and the builtins are what they were, but for `FED`;
- no plugin on the hooks that run a test, no trace function, no import hook was planted;
- the test's code is what its file held before tested code ran.

Limits, plainly: native code can still do anything to its own process; a function of pytest that is swapped in and
out again between two looks (there is one a test) is not seen; and a third-party library that tests compare with (an
array library's assert functions) is not watched.
"""

from __future__ import annotations

import gc
import hashlib
import json.encoder
import os
import sys
import types
import warnings
from operator import is_
from typing import Any

MACHINERY = ("_pytest", "pytest", "pluggy", "unittest", "builtins", "__main__")
RUNNING = ("pytest_runtest", "pytest_pyfunc", "pytest_pycollect", "pytest_fixture", "pytest_generate", "pytest_make")
"""Beginnings of the hooks that make and run a test; who implements one could decide what a test does."""
FED = frozenset({"breakpoint", "exit", "help", "input", "open", "print", "quit"})
"""Builtins that tests replace to feed or to watch the code they test; pytest asks none of them for a verdict."""
HIDDEN = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents"})
CONSTANTS = frozenset({int, float, complex, bool, str, bytes, type(None), type(...)})
PREFIXES = (sys.prefix, sys.base_prefix)

# C functions, taken now: tested code may replace them where they come from.
audit_frame, write, quote = sys._getframe, os.write, json.encoder.encode_basestring_ascii
gettrace, getprofile, modules = sys.gettrace, sys.getprofile, sys.modules
instance_dict, mro = type.__dict__["__dict__"].__get__, type.__dict__["__mro__"].__get__  # whatever a metaclass says

warning_settings = vars(warnings)

fd, harness_globals, signature = -1, {}, hashlib.blake2b()  # type: ignore[var-annotated]
sources: set[Any] = set()
trusted: dict[int, types.CodeType] = {}
machinery: dict[str, types.ModuleType] = {}
speakers: dict[int, str] = {}
bindings: list[tuple[dict[str, Any], list[str], list[Any], str]] = []
bound: dict[int, Any] = {}
sizes: list[tuple[Any, int]] = []
installed: dict[str, set[Any]] = {}
hooks: dict[str, Any] = {}
caller_type: type = object
implementation_type: Any = object
runner: Any = None
plumbing: set[int] = set()
tests: dict[int, tuple[Any, str, Any]] = {}
watchers: list[Any] = []


def start(key: bytes, output: int, test_sources: list[str], own_globals: dict[str, Any]) -> None:
    """Take the key, the descriptor records go to, and the files whose code may be a test."""
    global fd, signature, harness_globals
    fd, signature, harness_globals = output, hashlib.blake2b(key=key), own_globals
    for path in test_sources:
        sources.update(codes_of(path))


def hook(event: str, said: tuple[Any, ...]) -> None:
    """Be the audit hook."""
    if event == "valve":
        hear(audit_frame(1))
    elif not trusted:
        return
    elif event in HIDDEN and id(audit_frame(1).f_code) not in trusted:
        raise PermissionError("not available while tests are graded")
    elif event == "object.__setattr__" and id(said[0]) in bound:
        refuse("the code of a function of the test machinery was replaced")


def hear(frame: types.FrameType) -> None:
    """Look at a caller: first to seal, then that all tests are collected, each phase of each test, and the end."""
    said = frame.f_locals
    if not trusted:
        seal(frame, said["early_config"].pluginmanager)
        record('"event":"start"')
        return
    speaker = speakers.get(id(frame.f_code), "")
    if speaker == "pytest_runtest_makereport" and part_of_test(frame):
        report_part(said["item"], said["outcome"])
        return
    if why := stranger(frame):
        refuse(why)
    if speaker == "pytest_collection_finish" and not watchers:
        tests.update((id(item), (item, nodeid, function)) for item, nodeid, function in said["tests"])
        watchers.extend([sys.meta_path, sys.meta_path[0]])
    elif speaker == "pytest_runtest_makereport":
        report(said["item"], said["function"], said["when"], said["outcome"], said["raised"])
    elif speaker == "main":
        if why := altered():
            refuse(why)
        record('"event":"end"')
    else:
        refuse(f"a verdict came by way of {frame.f_code.co_name}")


def report(item: Any, function: Any, when: str, outcome: str, raised: bool) -> None:
    """Sign one phase of one test."""
    known, nodeid, first_function = tests.get(id(item), (None, "", None))
    if known is not item or not type(nodeid) is type(when) is type(outcome) is str:
        refuse("a test was exchanged for another")
    if function is not first_function or not original(function):
        refuse(f"{nodeid} is not the test that its file holds")
    if when == "call" and (why := altered()):  # the costly look is taken once a test
        refuse(why)
    words = f'"test":{quote(nodeid)},"when":{quote(when)},"outcome":{quote(outcome)}'
    record(f'{words},"raised":{"true" if raised is True else "false"}')


def part_of_test(frame: types.FrameType | None) -> bool:
    """True for a report that pytest's runner did not ask for: of a `subTest`, while its test is still running."""
    frame = frame and frame.f_back
    while frame is not None and id(frame.f_globals) in plumbing:
        frame = frame.f_back
    return frame is None or frame.f_code is not runner


def report_part(item: Any, outcome: str) -> None:
    """Sign that a part of a test failed. Whoever says so is believed: it can only make the test's verdict worse."""
    known, nodeid, _ = tests.get(id(item), (None, "", None))
    if known is not item or type(outcome) is not str:
        refuse("a test was exchanged for another")
    if outcome == "failed":
        record(f'"test":{quote(nodeid)},"when":"part","outcome":"failed","raised":true')


def record(members: str) -> None:
    """Write one record; each signature covers all records so far, so none can be added, dropped or moved."""
    body = b"{" + members.encode("ascii") + b"}"
    signature.update(body + b"\n")
    write(fd, b"\n@valve " + signature.copy().hexdigest().encode("ascii") + b" " + body + b"\n")


def refuse(why: str) -> None:
    """Sign that this run is not to be believed, and stop whoever asked."""
    record(f'"tampered":{quote(why)}')
    raise PermissionError(why)


def seal(frame: types.FrameType | None, plugins: Any) -> None:
    """Note who and what is there now, before anything of the tree is."""
    global hooks, caller_type, implementation_type, runner
    hooks = vars(plugins.hook)
    caller_type = type(plugins.hook.pytest_runtest_call)
    implementation_type = type(plugins.hook.pytest_runtest_call.get_hookimpls()[0])
    sizes.extend((space, len(space)) for kind in (caller_type, implementation_type) for space in [instance_dict(kind)])
    own = [*vars(harness_globals["Reporter"]).values(), harness_globals["main"]]
    speakers.update((id(f.__code__), f.__name__) for f in own if type(f) is types.FunctionType)
    machinery.update((name, m) for name, m in modules.items() if name.split(".")[0] in MACHINERY)
    runner = machinery["_pytest.runner"].call_and_report.__code__
    plumbing.update(id(vars(module)) for name, module in machinery.items() if name.split(".")[0] == "pluggy")
    for module in machinery.values():
        bind(vars(module), module.__name__)
        if module.__name__ != "builtins":
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    bind(gc.get_referents(value.__dict__)[0], f"{value.__module__}.{value.__qualname__}")
    codes = [thing.__code__ for thing in gc.get_objects() if type(thing) is types.FunctionType]
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    trusted.update((id(inner), inner) for code in codes for inner in nested(code))


def bind(space: dict[str, Any], owner: str) -> None:
    """Note what the functions, classes and properties in a namespace are."""
    held = {name: value for name, value in space.items() if hasattr(value, "__get__") or callable(value)}
    bindings.append((space, list(held), list(held.values()), owner))
    bound.update((id(value), value) for value in held.values() if type(value) is types.FunctionType)


def stranger(frame: types.FrameType | None) -> str:
    """Return who speaks that should not; empty: everyone on the stack was there before the tree's code."""
    bottom = None
    while frame is not None:
        if id(frame.f_code) not in trusted:
            return f"a verdict came by way of {frame.f_code.co_name}"
        bottom, frame = frame, frame.f_back
    return "" if bottom and bottom.f_globals is harness_globals else "a verdict came from another thread"


def altered() -> str:
    """Return what tested code changed that runs or judges tests; empty: nothing."""
    if name := replaced():
        return f"{name} was replaced"
    if any(len(space) != size for space, size in sizes):
        return "a class of pluggy was added to"
    if sys.modules is not modules or any(modules.get(name) is not module for name, module in machinery.items()):
        return "a module of the test machinery was replaced"
    if gettrace() is not None or getprofile() is not None:
        return "a trace function was planted"
    if watchers and not (sys.meta_path is watchers[0] and watchers[0][0] is watchers[1]):
        return "an import hook was planted"
    for name, caller in hooks.items():
        if name.startswith(RUNNING) and (type(caller) is not caller_type or foreign(caller)):
            return f"a plugin was planted on {name}"
    return ""


def replaced() -> str:
    """Return which function, class or property of the machinery is another one now; empty: none."""
    for space, names, values, owner in bindings:
        if all(map(is_, map(space.get, names), values)):  # nearly always, and this is done once a test
            continue
        for name, value in zip(names, values, strict=True):
            now = space.get(name)
            if now is not value and not (shim(now, owner, name) or fed(now, owner, name)):
                return f"{owner}.{name}"
    return ""


def shim(now: Any, owner: str, name: str) -> bool:
    """True where pytest's own legacypath plugin has put `Class_method` in the place of `Class.method`."""
    expected = f"{owner.rpartition('.')[2]}_{name}"
    return type(now) is types.FunctionType and id(now.__code__) in trusted and now.__name__ == expected


def fed(now: Any, owner: str, name: str) -> bool:
    """True for a builtin that may be replaced, and for an `__import__` that a test file defines, to miss a module."""
    imports = name == "__import__" and type(now) is types.FunctionType and original(now)
    return owner == "builtins" and (name in FED or imports)


def foreign(caller: Any) -> bool:
    """True when a hook has an implementation whose code was not there before and is not of a test file."""
    held = caller._hookimpls
    return type(held) is not list or any(type(i) is not implementation_type or not original(i.function) for i in held)


def original(function: Any) -> bool:
    """True for a function that was there before, or whose code is what a test or an installed file holds."""
    function = unwrapped(function)
    if type(function) is not types.FunctionType:
        return type(function) is not types.MethodType  # data-driven items have no function
    code = function.__code__
    if id(code) in trusted:
        return True
    held = content(code)
    return held in sources or held in codes_of(code.co_filename)


def unwrapped(function: Any) -> Any:
    """Return the innermost function that decorators wrapped."""
    for _ in range(100):
        if type(function) is types.MethodType:
            function = function.__func__
        elif type(function) is not types.FunctionType or type(function.__dict__) is not dict:
            break
        elif "hypothesis" in function.__dict__:  # its wrapper is made by exec
            function = attributes(function.__dict__["hypothesis"]).get("inner_test")
        elif "__wrapped__" in function.__dict__:
            function = function.__dict__["__wrapped__"]
        else:
            break
    return function


def attributes(thing: Any) -> dict[str, Any]:
    """Return what an object's own dictionary holds, whatever its class would say; empty: it has none."""
    for kind in mro(type(thing)):
        found = instance_dict(kind).get("__dict__")
        if found is not None:
            held = found.__get__(thing) if type(found) is types.GetSetDescriptorType else None
            return held if type(held) is dict else {}
    return {}


def codes_of(path: str) -> set[Any]:
    """Return the code of a source file and of all functions in it; of installed files, which nobody can change."""
    if type(path) is not str or (trusted and not path.startswith(PREFIXES)):
        return set()
    if path not in installed:
        try:
            with open(path, "rb") as file:
                whole = compiled(file.read(), path)
            installed[path] = {content(code) for code in nested(whole)}
        except (OSError, SyntaxError, ValueError):  # test data may look like source of another language version
            installed[path] = set()
    return installed[path]


def compiled(source: bytes, path: str) -> types.CodeType:
    """Compile without a word: a warning would run whatever tested code made of the module `warnings`."""
    if modules.get("warnings") is not warnings or type(warnings) is not types.ModuleType:
        raise ValueError("the module warnings was exchanged")
    held = warning_settings["filters"]
    warning_settings["filters"] = [("ignore", None, Warning, None, 0)]
    try:
        return compile(source, path, "exec", dont_inherit=True)
    finally:
        warning_settings["filters"] = held


def content(code: types.CodeType) -> Any:
    """Return what makes two code objects the same, as nested tuples of plain values.

    The objects' own equality would do, were it not for constants of foreign types that code can be given.
    """
    layout = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_firstlineno)
    names = (code.co_filename, code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    table = getattr(code, "co_exceptiontable", b"")  # since Python 3.11
    return layout, plain(names), code.co_code, table, plain(code.co_consts)


def plain(value: Any) -> Any:
    """Return a constant as something that compares by type and value; None stands for all that no source can hold."""
    kind = type(value)
    if kind is types.CodeType:
        return content(value)
    if kind is tuple:
        return tuple(plain(part) for part in value)
    if kind is frozenset:
        return frozenset(plain(part) for part in value)
    return (kind.__name__, repr(value)) if kind in CONSTANTS else None


def nested(code: types.CodeType) -> list[types.CodeType]:
    """Return a code object and all that are defined inside it."""
    return [code, *(c for constant in code.co_consts if type(constant) is types.CodeType for c in nested(constant))]
