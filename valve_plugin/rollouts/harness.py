"""Runs inside the sandbox, alone: pytest over the hidden tests, each verdict signed by the judge as it is reached.

A script of the standard library and pytest only; it never imports the package it belongs to.
"""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import _pytest
import pytest
from _pytest.skipping import evaluate_xfail_marks


class Reporter:
    """The pytest plugin that tells the judge what happens; it holds nothing that a verdict depends on.

    `sys.audit("valve")` is how: the judge takes what it needs from the locals of whoever calls that here.
    """

    def __init__(self, paths: list[str], packages: list[str]) -> None:
        self._paths = paths
        self._packages = set(packages) - sys.stdlib_module_names - {"_pytest", "pytest", "pluggy"}

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: Any) -> Iterator[None]:
        """The environment's plugins are loaded, nothing of the tree is: from here on, newcomers are not trusted."""
        sys.audit("valve")
        # The tree comes first, also before packages of its own name that pytest brought along (Pygments). A planted
        # pytest.py shadows nothing: all of pytest is imported by now.
        sys.path[:0] = self._paths
        for name in [name for name in sys.modules if name.partition(".")[0] in self._packages]:
            del sys.modules[name]
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: Any) -> None:
        """Fix which object is which test."""
        tests = [(item, item.nodeid, _function(item)) for item in session.items]  # noqa: F841 (for the judge)
        sys.audit("valve")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Tell pytest's outcome of a phase and, beside it, whether that phase raised."""
        raised = call.excinfo is not None
        result: Any = yield
        report, function, when = result.get_result(), _function(item), call.when  # noqa: F841
        raised |= call.excinfo is not None  # unittest's failures are put there only now
        outcome = report.outcome
        if outcome == "skipped" and hasattr(report, "wasxfail"):
            outcome = "xfailed" if _declared(item) else "failed"
        sys.audit("valve")


def _function(item: Any) -> Any:
    """Return the function of a test item, the same object each time; None for items made from data."""
    method = getattr(item, "obj", None)
    return getattr(method, "__func__", method)


def _declared(item: Any) -> bool:
    """True when the test itself is marked as failing; an xfail raised by tested code does not count."""
    return evaluate_xfail_marks(item) is not None or hasattr(item.obj, "__unittest_expecting_failure__")


def main() -> None:
    """Read the plan from standard input, run, and leave without giving the tested code a last word."""
    plan = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Not by -I: that would drop PYTHONHASHSEED as well, and sets would have another order in each run.
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    os.environ["PYTHONPATH"] = os.pathsep.join(plan["paths"])  # for processes that tests start
    for module in pkgutil.walk_packages(_pytest.__path__, "_pytest."):
        with suppress(ImportError):  # parts of pytest for what is not installed
            importlib.import_module(module.name)  # whatever pytest could still need is now here, and trusted
    _appoint(plan.pop("judge"), bytes.fromhex(plan.pop("key")), plan["hidden"])
    if importlib.util.find_spec("pytest_cov"):
        plan["arguments"].append("--no-cov")  # measuring is not grading, and a tracer may change what it watches
    if importlib.util.find_spec("pytest_mock"):  # else it replaces methods of unittest.mock, for shorter tracebacks
        plan["arguments"] += ["-o", "mock_traceback_monkeypatch=false"]
    if importlib.util.find_spec("_hypothesis_pytestplugin"):
        plan["arguments"].append("--hypothesis-seed=0")
        _settle_hypothesis()
    plugins: list[object] = [Reporter(plan["paths"], plan["packages"])]
    if plan["now"]:  # somebody follows this run
        namespace: dict[str, Any] = {"__name__": "now"}
        exec(compile(plan["now"], "now", "exec", dont_inherit=True), namespace)  # noqa: S102
        plugins.append(namespace["Now"]())
    pytest.main(plan["arguments"], plugins=plugins)
    sys.audit("valve")
    os._exit(0)


def _settle_hypothesis() -> None:
    """Let neither chance nor a busy machine decide a verdict; what the project itself sets comes later, and holds."""
    hypothesis: Any = importlib.import_module("hypothesis")
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("valve", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("valve")


def _appoint(judge: str, key: bytes, hidden: list[str]) -> None:
    """Run the judge's source in a namespace that only its own functions know, and make it the audit hook.

    Its builtins are a copy: what tested code puts in their place must not run with the judge on its stack.
    """
    namespace: dict[str, Any] = {"__name__": "judge", "__builtins__": dict(vars(builtins))}
    exec(compile(judge, "judge", "exec", dont_inherit=True), namespace)  # noqa: S102
    namespace["start"](key, os.dup(1), hidden, globals())
    sys.addaudithook(namespace["hook"])


if __name__ == "__main__":
    main()
