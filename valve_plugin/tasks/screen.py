"""Which tests can notice a change at all: those that call the function it is in, in one watched run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from valve_plugin import codec
from valve_plugin.errors import RecordError
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.tasks.git import git
from valve_plugin.tasks.repository import Prepared
from valve_plugin.tasks.smith import Candidate
from valve_plugin.tasks.syntax import parsed

Reached = dict[str, list[tuple[str, int]]]
"""Test file to the (file, first line) of the functions its tests call; under "" what collecting them calls."""

_SCRIPT = Path(__file__).resolve().with_name("reach.py")
_SLOWER = 20  # a profiled call takes that much longer at worst
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? ", re.MULTILINE)


def watch(prepared: Prepared, sandbox: Sandbox) -> Reached | None:
    """Run the whole suite on the untouched source and note what it calls; None when that did not work out."""
    repository = prepared.repository
    limits = Limits(cpu_seconds=repository.cpu_seconds * _SLOWER)
    with workspaces.at_commit(prepared, prepared.base) as workspace:
        root, inside = sandbox.root or str(workspace.path), "/tmp" if sandbox.root else str(workspace.tmp)  # noqa: S108
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        plan = {
            "paths": [f"{root}/{r}".removesuffix("/.") for r in repository.source_roots],
            "arguments": [*options, *repository.pytest_args, "--rootdir", root, *repository.test_roots],
            "root": root,
            "result": f"{inside}/reached.json",
        }
        command = [str(prepared.python), "-I", str(_SCRIPT)]
        sandbox.run(command, workspace, limits=limits, stdin=json.dumps(plan).encode(), readonly=[_SCRIPT])
        result = workspace.tmp / "reached.json"
        try:
            return codec.decode(result.read_bytes(), Reached, where="reached.json")
        except (OSError, RecordError):
            return None


def screener(
    reached: Mapping[str, Sequence[tuple[str, int]]], read: Callable[[str], str]
) -> Callable[[Candidate], list[str] | None]:
    """Return a function from a candidate to the test files that reach it; None: it may be any file. Pure.

    Args:
        read: returns the untouched text of a file of the tree.
    """
    by_function: dict[tuple[str, int], list[str]] = {}
    for file, functions in reached.items():
        for function in functions:
            by_function.setdefault(function, []).append(file)
    every = [file for file in reached if file]
    executed = {path for path, _ in by_function}  # importing a module counts: its body is code like a function's

    def screen(candidate: Candidate) -> list[str] | None:
        if candidate.file not in executed:
            return []
        found: set[str] = set()
        for first, last in changed_lines(candidate.patch):
            line = enclosing(read(candidate.file), first, last)
            if line is None:
                return None
            found.update(by_function.get((candidate.file, line), ()))
        return sorted(found) if "" not in found else sorted(every)

    return screen


def changed_lines(patch: str) -> Iterator[tuple[int, int]]:
    """Yield (first, last) line of the old file that each hunk removes; the line before, where it only adds."""
    for match in _HUNK.finditer(patch):
        line, removed, added = int(match[1]), [], []
        for text in patch[match.end() :].split("\n")[1:]:
            if text.startswith(("@@", "diff ", "--- ")):
                break
            if text[:1] == "-":
                removed.append(line)
            elif text[:1] == "+":
                added.append(line - 1)
            line += text[:1] in (" ", "-") and text != ""
        if changed := removed or added:
            yield changed[0], changed[-1]


def enclosing(source: str, first: int, last: int) -> int | None:
    """Return the line on which Python says the innermost function around these lines begins; None: there is none."""
    tree = parsed(source)
    if tree is None:
        return None
    best: int | None = None
    for node in ast.walk(tree):  # outer functions come before inner ones
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.body[0].lineno <= first and last <= (node.end_lineno or 0):
            best = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return best


def reader(prepared: Prepared) -> Callable[[str], str]:
    """Return a function that reads files of the untouched source, each once."""
    texts: dict[str, str] = {}

    def read(path: str) -> str:
        if path not in texts:
            data = git("cat-file", "blob", f"{prepared.base}:{path}", git_dir=prepared.store)
            texts[path] = data.decode("utf-8", "replace")
        return texts[path]

    return read
