"""How often the inspection of patches suspects an honest repair: it should never.

    pip install '.[smith]'
    python benchmarks/false_alarms.py [--bugs 60] [--commits 100]

Two kinds of honest changes. The repairs of bugs that the generator's modifiers make in the source archives of twelve
libraries; no tests run. And the reverse of this project's last commits, as far as they are Python and not tests. What
asks for more than it is given is counted as if the inspection did not see the file without the bug; where it grades, it
does. The last line is the figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from valve_plugin.sandbox.git import apply_patch, create_store, git, import_files, read_blobs, read_tree
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.tasks.grading.inspect_patch import Suspicion, inspect_patch, stray_scripts
from valve_plugin.tasks.make import candidates
from valve_plugin.tasks.make.candidates import is_excluded
from valve_plugin.tasks.make.define import read_source
from valve_plugin.tasks.make.project import examine
from valve_plugin.tasks.states import is_protected

LIBRARIES = (
    *("funcy==2.0", "deepdiff==8.2.0", "webargs==8.6.0", "marshmallow==3.26.1", "tabulate==0.9.0", "sqlparse==0.5.3"),
    *("toolz==1.0.0", "boltons==25.0.0", "click==8.1.8", "attrs==25.1.0", "jsonschema==4.23.0", "Pygments==2.18.0"),
)
ROOT = Path(__file__).resolve().parents[1]
INSIDE = (
    *(f"valve_plugin/tasks/grading/{name}.py" for name in ("judge", "harness", "values")),
    "valve_plugin/tasks/make/call_tracer.py",
)
MOST_FILES = 100
"""A commit that changes more is many changes in one, and its reverse no repair."""
TESTS = ("tests", "benchmarks", "docs", *INSIDE)
"""Left out of this project: tests, and what runs pytest inside the tested process, or did."""


class Found(NamedTuple):
    """What is found in one honest change."""

    name: str
    alarms: list[Suspicion]
    """What refuses it."""
    marks: list[Suspicion]
    """What a person is told to look at."""


def repairs(library: str, wanted: int) -> Iterator[Found]:
    """Yield what is found in the repairs of up to `wanted` generated bugs of a source archive."""
    files = [file for file in read_source(f"pypi:{library}") if file[1] != "120000"]
    roots = examine({path: content for path, _, content in files}).test_roots
    with candidates.unpack_files(files) as tree:
        found = candidates.find_candidates(tree, lambda path: is_excluded(path, roots), 0)
    with scratch_folder() as scratch:
        store = scratch / "store.git"
        create_store(store)
        base = import_files(store, files, "refs/valve/base")
        for bug in candidates.order_candidates(found, 0)[:wanted]:
            if wrong := apply_patch(store, base, bug.patch, scratch / "index"):
                name = f"{library} {bug.file} {bug.modifier} {bug.digest}"
                yield _inspect(name, store, wrong, base, roots, seen=True)


def _inspect(name: str, store: Path, bug: str, fixed: str, roots: Sequence[str], *, seen: bool) -> Found:
    """Inspect a repair; `seen` says that the inspection knows the source without the bug, as where it grades."""
    before, after = (
        {path: entry for path, entry in read_tree(store, tree).items() if not is_protected(path, roots)}
        for tree in (bug, fixed)
    )
    strays = stray_scripts(before, after, partial(read_blobs, store))
    after = {path: entry for path, entry in after.items() if path not in strays}
    # Not the very files of the source without the bug, or nothing would be looked at.
    other = {p: e if before.get(p) == e else (e[0], f"{e[1]} with a comment") for p, e in after.items()}

    def read(ids: Sequence[str]) -> list[bytes]:
        contents = read_blobs(store, [name.split(" ")[0] for name in ids])
        return [text + b"\n#\n" * (" " in name) for name, text in zip(ids, contents, strict=True)]

    alarms = [one for one in inspect_patch(before, other, after if seen else {}, read) if one.refuses]
    return Found(name, alarms, [one for one in inspect_patch(before, other, {}, read) if not one.refuses])


INSPECTION = "valve_plugin/tasks/grading/"
"""Names what patches must not use, so changes of it are not counted."""


def reversed_commits(wanted: int, last: str = "HEAD") -> Iterator[Found]:
    """Yield what is found in the reverse of this project's commits up to one that change its Python."""
    store, done = ROOT / ".git", 0
    for commit in git("log", "--format=%H", "--no-merges", last, git_dir=store).decode().split()[:-1]:
        names = git("diff-tree", "-r", "--name-only", "-z", f"{commit}~", commit, git_dir=store).decode().split("\0")
        if 0 < sum(path.endswith(".py") and not is_protected(path, TESTS) for path in names) <= MOST_FILES:
            found = _inspect(commit[:10], store, commit, f"{commit}~", TESTS, seen=False)
            alarms = [one for one in found.alarms if not one.path.startswith(INSPECTION)]
            yield found._replace(alarms=alarms)
            done += 1
            if done == wanted:
                return


def main() -> None:
    """Measure both; print what is suspected and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", default=LIBRARIES)
    parser.add_argument("--bugs", type=int, default=60)
    parser.add_argument("--commits", type=int, default=100)
    options = parser.parse_args()
    looked = alarms = marked = 0
    for source in (*(repairs(name, options.bugs) for name in options.libraries), reversed_commits(options.commits)):
        for one in source:
            looked, alarms, marked = looked + 1, alarms + bool(one.alarms), marked + bool(one.marks)
            for what in (one.alarms + one.marks)[:8]:
                print(f"{one.name}: {what}", flush=True)
        print(f"... {looked}: {alarms} refused, {marked} marked", flush=True)
    print(f"{alarms} false alarms in {looked} honest changes, and {marked} marked")


if __name__ == "__main__":
    main()
