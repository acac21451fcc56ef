"""Runs inside the sandbox, alone: pytest over the hidden tests. It only reports what happens; it judges nothing.

The tested code runs in this process, so nothing here is safe from it: other runs show whether it forged what is
reported here (`other_inputs.py`, `program.py`).

A script of the standard library and pytest only, with the two beside it; it never imports the package it belongs to.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.machinery
import importlib.util
import io
import json
import logging
import os
import re
import sys
import tempfile
import threading
import types
import unittest
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from _pytest.runner import runtestprotocol
from _pytest.skipping import evaluate_xfail_marks

if TYPE_CHECKING:
    from valve_plugin.tasks.grading import answers, signed, words
else:
    import answers  # beside this file
    import signed
    import words

    del sys.modules["answers"], sys.modules["signed"], sys.modules["words"]

RERUNNERS = frozenset({"rerunfailures", "flaky"})
"""Plugins that run a failed test again."""
LONGEST = 300
"""Characters of a name that are printed as progress: the output is limited, and verdicts need the space."""


def below(kind: Any) -> Iterator[Any]:
    """Yield the classes that are made from a class."""
    for one in type.__subclasses__(kind):
        yield from (one, *below(one))


LEFT = words.room()
"""How many calls a script has left."""

# Bound now, because tests may replace them in their modules.
write, modules = os.write, sys.modules
_HOOKS = sys.unraisablehook, threading.excepthook
_FILTERS = list(warnings.filters)
_WARNINGS: dict[str, Any] = {
    name: vars(warnings)[name] for name in ("showwarning", "_showwarnmsg_impl") if name in vars(warnings)
}
"""How Python starts; pytest changes these."""
_THEIRS = [
    kind for kind in (*below(io.TextIOWrapper), *below(logging.Handler)) if kind.__module__.startswith("_pytest.")
]
"""Streams and handlers of pytest, which tested code may reach."""


class Progress:
    """The pytest plugin for `watch.py`. Its lines are not signed, and no verdict depends on them."""

    def __init__(self) -> None:
        self._out = os.dup(1)

    def pytest_collectstart(self, collector: Any) -> None:
        """Say which file is read."""
        if isinstance(collector, pytest.File):
            self._say("collect", signed.quote(collector.nodeid[:LONGEST]))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: Any) -> None:
        """Say how many tests there are."""
        self._say("tests", str(len(session.items)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test begins."""
        self._say("test", signed.quote(nodeid[:LONGEST]))

    def pytest_runtest_logfinish(self) -> None:
        """Say that it has ended."""
        self._say("ended", "true")

    def _say(self, name: str, value: str) -> None:
        with suppress(OSError):  # the reader is gone
            write(self._out, f'\n@valve-now {{"{name}":{value}}}\n'.encode("ascii"))


class Reporter:
    """The pytest plugin: reports each test's phases."""

    def __init__(self, plan: dict[str, Any], report: signed.Report) -> None:
        self._record, self._explain, self._plan = report.record, report.explain, plan
        self._packages = set(plan["packages"]) - sys.stdlib_module_names - {"_pytest", "pytest", "pluggy"}
        self._hidden = frozenset(plan["hidden"])
        self._inside = False
        self.look: Callable[[], object] = dict

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: Any) -> Iterator[None]:
        """Put the tree on the import path before code of it is loaded."""
        names = {name for name, _ in early_config.pluginmanager.list_name_plugin()}
        shadows = [name for name in self._plan["new"] if importlib.util.find_spec(name)]
        self._record(event="start", reruns=bool(names & RERUNNERS), shadows=shadows)
        if shadows:
            os._exit(0)
        # The tree comes first, also before packages of the same name that pytest needs (Pygments). A planted pytest.py
        # has no effect: pytest is already imported.
        sys.path_hooks.insert(0, functools.partial(source_finder, self._plan["root"]))
        sys.path_importer_cache.clear()
        sys.path[:0] = self._plan["paths"]
        for name in [name for name in modules if name.partition(".")[0] in self._packages]:
            del modules[name]
        yield

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
        self.look()
        raised |= call.excinfo is not None  # failures of unittest appear only now
        outcome = report.outcome
        if self._inside:  # of a `subTest`, while its test is still running
            if outcome == "failed":
                self._record(test=item.nodeid, when="part", outcome="failed", raised=True)
            return
        if outcome == "skipped" and hasattr(report, "wasxfail"):
            outcome = "xfailed" if declared(item) else "failed"
        self._record(test=item.nodeid, when=call.when, outcome=outcome, raised=raised)
        if outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            place = f"{getattr(crash, 'path', '')}:{getattr(crash, 'lineno', 0)}"
            frames = call.excinfo.traceback if call.excinfo else ()
            inside = [f"{one.path}:{one.lineno + 1}" for one in frames if str(one.path) in self._hidden]
            self._explain(item.nodeid, getattr(crash, "message", ""), place, "".join(inside[-1:]))

    def pytest_collectreport(self, report: Any) -> None:
        """Tell why a file could not be collected: none of its tests will run."""
        if report.failed:
            why = str(report.longrepr).strip().rpartition("\n")[2].removeprefix("E").strip()
            self._explain(report.nodeid, why, "")


class Asker(Reporter):
    """The pytest plugin that runs some tests with other inputs, and reports what they see in the place of verdicts."""

    def __init__(self, plan: dict[str, Any], report: signed.Report) -> None:
        super().__init__(plan, report)
        self._caller = words.Caller({*re.findall(r"\w+", " ".join([*plan["hidden"], *plan["packages"]]))}, LEFT)
        self._answers = words.script(answers.__file__, self._caller.path)
        self._caller.modules.append((self._answers, ()))
        self._ask, self._end = self._answers.Answers(report, plan["variants"], self._caller), ""
        SourceLoader.hidden, SourceLoader.asked, SourceLoader.caller = self._hidden, self._ask.names(), self._caller

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Leave out other tests; what these give to tested code has no names of tests."""
        items[:] = [item for item in items if item.nodeid in self._plan["asked"]]
        for module in {id(one): one for one in modules.values()}.values():  # what is loaded of the tests
            file = str(getattr(module, "__file__", None))
            if file in self._hidden:
                names = SourceLoader.names.get(file, {})  # none where pytest loads files in its own way
                vars(module).update({names.get(name, name): what for name, what in self._ask.names().items()})
                self._caller.modules.append((module, words.ABOUT[1:]))
        for kind in _THEIRS:
            kind.__module__, kind.__name__ = kind.__base__.__module__, kind.__base__.__name__
        folders = getattr(config, "_tmp_path_factory", None)
        if folders:
            make = folders.mktemp
            folders.mktemp = lambda name, *given, **named: make(name.removeprefix("test_"), *given, **named)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
        """Run a test several times."""

        runtest = item.runtest

        def called() -> None:
            given = getattr(item, "funcargs", {})
            for name in item.callspec.params if hasattr(item, "callspec") else ():
                if name in given:  # what a fixture makes of its parameter, too
                    given[name] = self._ask.vary(name, given[name])
            with bare(getattr(item, "fixturenames", ())), self._answers.uncounted():
                sys.argv[:] = [self._caller.path]
                runtest()

        begun: list[int] = []
        self._caller.modules.sort(key=lambda one: one[0] is getattr(item, "module", None))  # this is found by its name

        def run(variant: int) -> str:
            self._end = ""
            if begun and hasattr(item, "_initrequest"):
                item._initrequest()
            begun.append(variant)
            runtestprotocol(item, log=False, nextitem=nextitem)
            return self._end

        item.runtest = called
        self._ask.runs(item.nodeid, run)
        return True

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Keep how the test ends."""
        del item
        yield
        if call.excinfo is not None:
            self._end = f"{call.when} {call.excinfo.type.__qualname__}"


@contextmanager
def bare(fixtures: Collection[str]) -> Iterator[None]:
    """Take away what pytest puts around a test, so that code which asks whether a test runs finds less."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    sys.unraisablehook, threading.excepthook = _HOOKS
    sys.breakpointhook = sys.__breakpointhook__
    faulthandler.disable()
    root = logging.getLogger()
    theirs = [one for one in root.handlers if type(one) in _THEIRS and "caplog" not in fixtures]
    root.handlers[:] = [one for one in root.handlers if one not in theirs]
    with warnings.catch_warnings():
        if "recwarn" not in fixtures:
            vars(warnings).update(_WARNINGS)
            warnings.filters[:] = _FILTERS  # type: ignore[index]
        try:
            yield
        finally:
            root.handlers += theirs


class SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads modules of the tree from their source: bytecode in the tree is not read."""

    hidden: Collection[str] = ()
    asked: Collection[str] = ()
    """What tests ask of their grader; it has other names in each process, and so has what their functions hold."""
    names: ClassVar[dict[str, Any]] = {}
    caller: words.Caller | None = None

    def exec_module(self, module: types.ModuleType) -> None:
        """Run a module: of tests, as one that does not look like that."""
        code, file = self.get_code(self.name), module.__file__
        if not self.caller or file not in self.hidden:
            super().exec_module(module)
            return
        text = str(self.get_source(self.name))
        about = dict(self.caller.about(words.kind_of(text)))
        if re.search(r"^ *from +\.", text, re.MULTILINE):  # what is near is found by these
            about.update(__package__=module.__package__, __spec__=module.__spec__)
        own, name = {one: vars(module).get(one) for one in words.ABOUT[1:]}, about["__name__"]
        before, modules[name] = modules.get(name), module
        vars(module).update({one: what for one, what in about.items() if one == "__name__" or one not in text})
        try:
            exec(code, vars(module))  # noqa: S102
        finally:
            vars(module).update(own)
            modules[name] = before or module

    def get_code(self, fullname: str) -> Any:
        """Return the code of a module."""
        path = self.get_filename(fullname)
        if path in self.hidden:
            text = importlib.util.decode_source(self.get_data(path))
            code, self.names[path] = words.compiled(text, path, self.asked, pytest=True)
            return code
        return self.source_to_code(self.get_data(path), path)


def source_finder(root: str, path: str) -> Any:
    """Return the finder of a directory of the tree (a path hook)."""
    place = os.path.abspath(path or os.getcwd())
    if (place != root and not place.startswith(root + os.sep)) or not os.path.isdir(place):
        raise ImportError("not in the tree")
    native = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    return importlib.machinery.FileFinder(path, native, (SourceLoader, importlib.machinery.SOURCE_SUFFIXES))


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
    if importlib.util.find_spec("pytest_cov"):
        plan["arguments"].append("--no-cov")  # a tracer may change the behaviour of the code
    if importlib.util.find_spec("_hypothesis_pytestplugin"):
        # Independent of chance and of the machine's load; the project's own settings override this.
        plan["arguments"].append("--hypothesis-seed=0")
        hypothesis: Any = importlib.import_module("hypothesis")
        slow = [hypothesis.HealthCheck.too_slow]
        hypothesis.settings.register_profile("valve", deadline=None, suppress_health_check=slow)
        hypothesis.settings.load_profile("valve")
    report = signed.Report(bytes.fromhex(plan.pop("key")))
    if plan["asked"]:
        plan["arguments"] += ["--capture=no", f"--basetemp={tempfile.gettempdir()}/{words.shuffled(words.WORDS)[0]}"]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # much output would leave no room for records
        os.closerange(3, 50)
    reporter = Asker(plan, report) if plan["asked"] else Reporter(plan, report)
    if not plan["asked"]:  # else code that finds the hook would know that it is asked
        reporter.look = answers.watch(plan["root"], report, (unittest.TestCase, pytest.Function, pytest.Item))
    plugins: list[object] = [reporter]
    if plan["progress"]:  # somebody follows this run
        plugins.append(Progress())
    pytest.main(plan["arguments"], plugins=plugins)
    report.record(event="end")
    os._exit(0)


if __name__ == "__main__":
    main()
