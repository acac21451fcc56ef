"""How often the inspection of patches suspects an honest repair: it should never.

    pip install '.[smith]'
    python benchmarks/false_alarms.py [--bugs 60] [--commits 100]

Two kinds of honest changes. The repairs of bugs that the generator's modifiers make in the source archives of twelve
libraries: neither their tests run, nor does the inspection see what the file held before the bug, which it does where
it grades. And the reverse of this project's last commits, as far as they are Python and not tests. The last line is
the figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from valve_plugin.sandbox.git import apply_patch, create_store, git, import_files, read_blobs, read_tree
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.tasks.grading.inspect_patch import Suspicion, inspect_patch
from valve_plugin.tasks.make import candidates
from valve_plugin.tasks.make.define import read_source
from valve_plugin.tasks.make.generate import is_excluded
from valve_plugin.tasks.make.project import examine
from valve_plugin.tasks.states import is_protected

LIBRARIES = (
    *("funcy==2.0", "deepdiff==8.2.0", "webargs==8.6.0", "marshmallow==3.26.1", "tabulate==0.9.0", "sqlparse==0.5.3"),
    *("toolz==1.0.0", "boltons==25.0.0", "click==8.1.8", "attrs==25.1.0", "jsonschema==4.23.0", "Pygments==2.18.0"),
)
ROOT = Path(__file__).resolve().parents[1]
INSIDE = ("valve_plugin/tasks/grading/judge.py", "valve_plugin/tasks/grading/harness.py")
MOST_FILES = 100
"""A commit that changes more is many changes in one, and its reverse no repair."""
TESTS = ("tests", "benchmarks", "docs", *INSIDE)
"""Left out of this project: tests, and what runs pytest inside the tested process, or did."""


def repairs(library: str, wanted: int) -> Iterator[tuple[str, list[Suspicion]]]:
    """Yield (the bug's name, what is suspected) of the repairs of up to `wanted` generated bugs of a source archive."""
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
                uses = [use for use in _inspect(store, wrong, base, roots) if not use.what.startswith(EQUALITY)]
                yield f"{library} {bug.file} {bug.modifier} {bug.digest}", uses


def _inspect(store: Path, before: str, after: str, roots: Sequence[str]) -> list[Suspicion]:
    trees = [
        {path: entry for path, entry in read_tree(store, name).items() if not is_protected(path, roots)}
        for name in (before, after)
    ]
    return inspect_patch(*trees, {}, partial(read_blobs, store))


EQUALITY = "gives a class an equality"
"""Means one that the untouched source does not have; here the repaired source is the untouched one."""
INSPECTION = "valve_plugin/tasks/grading/"
"""Names what patches must not use, so changes of it are not counted."""


def reversed_commits(wanted: int, last: str = "HEAD") -> Iterator[tuple[str, list[Suspicion]]]:
    """Yield (commit, what is suspected) of the reverse of this project's commits up to one that change its Python."""
    store, done = ROOT / ".git", 0
    for commit in git("log", "--format=%H", "--no-merges", last, git_dir=store).decode().split()[:-1]:
        names = git("diff-tree", "-r", "--name-only", "-z", f"{commit}~", commit, git_dir=store).decode().split("\0")
        if 0 < sum(path.endswith(".py") and not is_protected(path, TESTS) for path in names) <= MOST_FILES:
            found = _inspect(store, commit, f"{commit}~", TESTS)
            yield commit[:10], [one for one in found if not one.path.startswith(INSPECTION)]
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
    looked, alarms = 0, 0
    for source in (*(repairs(name, options.bugs) for name in options.libraries), reversed_commits(options.commits)):
        for name, found in source:
            looked, alarms = looked + 1, alarms + bool(found)
            for one in found:
                print(f"{name}: {one}", flush=True)
        print(f"... {alarms} of {looked}", flush=True)
    print(f"{alarms} false alarms in {looked} honest changes")


if __name__ == "__main__":
    main()
