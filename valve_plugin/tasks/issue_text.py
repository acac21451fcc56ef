"""Issue texts from failing tests: the test's code and its error, but not the cause."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import git
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import open_commit
from valve_plugin.tasks.syntax import parse, patch_changes
from valve_plugin.words import plural

NAMES_FIX = "every issue text would name the fix"
NO_ERROR_SHOWN = "no failing test says by itself what is wrong"
ONLY_IMPORT = "only breaks the import of a test file"

_MAX_CODE_LINES = 45
_MAX_ERROR_LINES = 14
_FIRST_LINES = 3  # kept of a longer error, with its last lines: the difference of the compared values is at the end
_MAX_LINE = 400
_MAX_OUTPUT_LINES = 10
_MAX_SETUP_LINES = 20
_MAX_VALUES = 6
_MAX_RUNS = 5  # tests run to find one that an issue can be written from
_CAPTURED = re.compile(r"^-+ Captured .* -+$", re.MULTILINE)
_CHAINED = re.compile(
    r"^(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):$",
    re.MULTILINE,
)
_NAMED = re.compile(r"[A-Za-z_][\w.]*: ")
_VARYING = (
    (re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\b0x[0-9a-fA-F]{12,}"), lambda m: "at 0x…" if m[0][0] == "a" else "0x…"),
    (re.compile(r"/tmp/pytest-of-[^/\s]+/pytest-\d+"), lambda _: "/tmp/…"),  # noqa: S108
    (re.compile(r"\btmp[a-z0-9_]{8}(?![a-z0-9_])"), lambda _: "tmp…"),
    (re.compile(r"\b\d+\.\d{3,} ?(?=(?:s|sec|secs|seconds|ms|us|µs|ns)\b)"), lambda _: "… "),
    (re.compile(r"\b1\d{9}\.\d{3,}"), lambda _: "…"),  # seconds since 1970
)
"""Patterns of text that varies from run to run, with their replacements."""
# Hypothesis is set up as in a graded run (`harness.py`), so that failures are reproducible.
_PYTEST = """import importlib.util, sys, pytest
if importlib.util.find_spec("_hypothesis_pytestplugin"):
    from hypothesis import HealthCheck, settings
    settings.register_profile("valve", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("valve")
    sys.argv.append("--hypothesis-seed=0")
sys.exit(pytest.main(sys.argv[1:]))"""
_SHOW = ("-c", _PYTEST, "-q", "--tb=short", "-l", "--color=no", "-p", "no:cacheprovider", "-rf")
_NOT_IMPORTED = re.compile(r"^(?:_+ ERROR collecting .* _+|ImportError while loading conftest .*)$", re.MULTILINE)
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)


class FailedTest(NamedTuple):
    """One failing test: its code and error."""

    test: str
    code: str
    title: str
    """The line with type and message of the last exception."""
    error: Sequence[str]
    setup: Sequence[str] = ()
    """Import and constant statements of the test's file that the code uses."""
    output: Sequence[str] = ()
    """The last lines that the test printed or logged."""


def write_issue(
    prepared: PreparedRepository,
    bug: str,
    patch: str,
    failing: Sequence[str],
    sandbox: Sandbox,
) -> tuple[str, str]:
    """Return (the text of an issue, an empty string), or (an empty string, the reason why there is none).

    The shortest tests are tried first. A test whose file cannot be imported is not used, because the test itself does
    not fail.
    """
    kind, _, where = prepared.repository.source.partition(":")
    version = where.replace("==", " ") if kind == "pypi" else "an earlier commit"
    broken, silent, leaking, runs, last = set[str](), False, False, 0, ""
    for test in sorted(failing, key=lambda t: (len(t), t)):
        path = test.split("::")[0]
        if runs == _MAX_RUNS or path in broken:
            continue
        runs += 1
        output = pytest_output(prepared, bug, [test], sandbox)
        if _NOT_IMPORTED.search(output):
            broken.add(path)
            last = headline(output)
            continue
        source = git("cat-file", "blob", f"{bug}:{path}", git_dir=prepared.store).decode("utf-8", "replace")
        if not (failure := describe_failure(test, source, output)):
            silent = True
        elif text := compose(failure, [other for other in failing if other != test], version, patch):
            return text, ""
        else:
            leaking = True
    return "", NAMES_FIX if leaking else NO_ERROR_SHOWN if silent else f"{ONLY_IMPORT}: {last}"


def pytest_output(prepared: PreparedRepository, bug: str, paths: Sequence[str], sandbox: Sandbox) -> str:
    """Return pytest's output for these tests or files alone, also if a limit ended the run."""
    with open_commit(prepared, bug) as workspace:
        command = [str(prepared.python), *_SHOW, *prepared.repository.pytest_args, *paths]
        output = sandbox.run(command, workspace).output.decode("utf-8", "replace")
        return output.replace(str(workspace.path), "/testbed").replace(str(workspace.tmp), "/tmp")  # noqa: S108


def describe_failure(test: str, source: str, output: str) -> FailedTest | None:
    """Return the code and error of a failing test, or None if its output has no error."""
    if not (error := error_lines(output)):
        return None
    title = headline(output).removeprefix("AssertionError: ")[:110]
    if error[-1].strip() == "AssertionError" and (seen := _failed_statement(output, test)):
        title, error = seen[0][:110], [*seen, *error]
    return FailedTest(
        test=test,
        code=code_of_test(source, test),
        title=title,
        error=error,
        setup=setup_of_test(source, test),
        output=_printed(output),
    )


def _failed_statement(output: str, test: str) -> list[str]:
    """Return the statement that failed and the values in it, if the failure says neither and is in a test's file."""
    frames = re.split(r"^(\S+\.py):\d+: in .*$", _CAPTURED.split(output)[0], flags=re.MULTILINE)[1:]
    own = test.partition("::")[0]
    beside = own.rpartition("/")[0] + "/"
    for path, text in reversed(list(zip(frames[::2], frames[1::2], strict=True))):
        if path == own or (beside != "/" and path.removeprefix("/testbed/").startswith(beside)):
            before, _, after = text.partition("\nE ")
            statement = [line.strip() for line in before.splitlines() if line.strip(" ^~")][:3]
            words = set(re.findall(r"[A-Za-z_]\w*", " ".join(statement)))
            values = [found for found in re.finditer(r"^ *(\w+) += .*$", after, re.MULTILINE) if found[1] in words]
            kept = [mask_varying_text(" ".join(one[0].split()))[:_MAX_LINE] for one in values[:_MAX_VALUES]]
            return [*statement, *(f"  with {line}" for line in kept)]
    return []


def _printed(output: str) -> tuple[str, ...]:
    """Return the last lines of what the test printed and logged."""
    parts = re.split(r"^-+ Captured (stdout|stderr|log) (\w+) -+$", output, flags=re.MULTILINE)[1:]
    texts = [text for phase, text in zip(parts[1::3], parts[2::3], strict=True) if phase == "call"]
    lines = mask_varying_text(_SUMMARY.split("\n".join(texts))[0]).splitlines()
    return tuple(line.rstrip()[:_MAX_LINE] for line in lines if line.strip())[-_MAX_OUTPUT_LINES:]


def compose(failure: FailedTest, others: Sequence[str], version: str, patch: str) -> str:
    """Return the text of an issue about a failing test, or an empty string if it would reveal the fix.

    Args:
        version: the release with which the tests passed, like `deepdiff 8.2.0`.
    """
    setup = [statement for statement in failure.setup if not leaks(statement, patch)]
    output = "\n".join(failure.output)
    base, case = _split_id(failure.test)
    subject = " ".join(base.removeprefix("test_").replace("_", " ").split()) or base
    if case:
        subject += f" ({case})"
    code = "\n".join([*setup, *([""] if setup else []), failure.code])
    parts = [
        f"{subject}: {failure.title}",
        f"With {version} the following worked; in this checkout it does not.",
        f"```python\n{code}\n```",
        "It ends with\n\n```\n" + "\n".join(failure.error) + "\n```",
    ]
    if output and not leaks(output, patch):
        parts.append(f"It prints\n\n```\n{output}\n```")
    if others:
        names = [name for name in dict.fromkeys(_split_id(other)[0] for other in others) if name != base]
        listed = ", ".join(f"`{name}`" for name in names[:6])
        more = f" and {len(names) - 6} more checks." if len(names) > 6 else "."
        parts.append(
            f"Probably the same cause: {listed}{more}"
            if names
            else f"The same check fails for {plural(len(others), 'more input')}."
        )
    parts.append(
        "Please find the cause in the source and fix it; the tests that fail are not in this checkout. All other "
        "behaviour must stay as it is."
    )
    text = "\n\n".join(parts) + "\n"
    return "" if leaks(text, patch) else text


def error_lines(output: str) -> list[str]:
    """Return the lines of the exceptions in pytest's output, without stack frames; long ones are shortened."""
    groups = _errors(output)
    lines = [line for group in groups for line in group]
    if len(lines) > _MAX_ERROR_LINES:
        lines = [line for line in groups[-1] if line.strip(" ^~")]
    if len(lines) > _MAX_ERROR_LINES:
        last = _MAX_ERROR_LINES - _FIRST_LINES - 1
        lines = [*lines[:_FIRST_LINES], "…", *lines[-last:]]
    return lines


def headline(output: str) -> str:
    """Return the last exception's "Type: message" (or the failed assertion), or an empty string if there is none."""
    lines = [line for group in _errors(output)[-1:] for line in group if line.strip()]
    if not lines or not lines[0].startswith(" "):  # usual; only a SyntaxError comes after its source line
        return lines[0] if lines else ""
    named = [line for line in lines if _NAMED.match(line)]
    return [lines[0].strip(), *named][-1]


def mask_varying_text(text: str) -> str:
    """Return a text with placeholders for what varies from run to run: addresses, temporary paths, times."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def code_of_test(source: str, test: str) -> str:
    """Return the dedented code of a test function without its class, or a comment if there is no such function."""
    name, tree = _split_id(test)[0], parse(source)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            lines = textwrap.dedent("\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])).splitlines()
            more = ["    ..."] if len(lines) > _MAX_CODE_LINES else []
            return "\n".join(lines[:_MAX_CODE_LINES] + more)
    return f"# {name}: a test that is made from data"


def setup_of_test(source: str, test: str) -> tuple[str, ...]:
    """Return the imports and constants at the top level of a test's file that the test uses, as they are written."""
    tree = parse(source)
    functions = [node for node in ast.walk(tree) if getattr(node, "name", "") == _split_id(test)[0]] if tree else []
    wanted, found = _names(functions[0]) if functions else set[str](), dict[int, str]()
    for node in reversed(tree.body if tree else []):  # what a constant uses stands before it
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            gives = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            gives = {
                name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
        else:
            continue
        if wanted & gives:
            wanted |= _names(node)
            found[node.lineno] = ast.get_source_segment(source, node) or ""
    statements = [found[number] for number in sorted(found)]
    return tuple(one for one in statements if one.count("\n") < _MAX_SETUP_LINES)[:_MAX_SETUP_LINES]


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def leaks(text: str, patch: str) -> list[str]:
    """Return the parts of an issue text that reveal the fix: names of changed files, and changed lines."""
    telling = set[str]()
    for change in patch_changes(patch):
        line, path = change.text[1:].strip(), PurePosixPath(change.path)
        telling |= {change.path, ".".join(path.with_suffix("").parts)} | ({line} if len(line) >= 20 else set())
    return sorted(word for word in telling if word in text)


def _errors(output: str) -> list[list[str]]:
    """Return the lines of each exception of a chain, in the order of the output."""
    groups = []
    for part in _CHAINED.split(_CAPTURED.split(output)[0]):
        lines = [line[1:].strip("\n") for line in part.splitlines() if re.match(r"E(\s|$)", line)]
        cut = [textwrap.shorten(line, _MAX_LINE, placeholder=" …") if len(line) > _MAX_LINE else line for line in lines]
        group = textwrap.dedent(mask_varying_text("\n".join(cut))).splitlines()
        groups += [group] if any(map(str.strip, group)) else []
    return groups


def _split_id(test: str) -> tuple[str, str]:
    """Return (name of the function, case in its brackets) of a test's id; both may hold anything but the case `::`."""
    name, _, case = test.partition("::")[2].partition("[")
    return (name or test).split("::")[-1], case.removesuffix("]")
