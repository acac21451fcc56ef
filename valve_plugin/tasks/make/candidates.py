"""Candidate bugs: from SWE-smith's procedural modifiers (extra `smith`), or from fixes in a git history."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from valve_plugin.errors import ConfigError, InfrastructureError, TaskError
from valve_plugin.extras import install_command
from valve_plugin.records import Record
from valve_plugin.sandbox.git import NO_PROGRAMS, Commit, File, create_store, diff_trees, git, read_log
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.supervisor import exit_with_parent
from valve_plugin.sandbox.trees import walk
from valve_plugin.tasks.issue_text import leaks
from valve_plugin.tasks.states import is_protected
from valve_plugin.tasks.syntax import patch_changes
from valve_plugin.tasks.task_set import SmithRow

UNUSED_MODIFIERS = ("func_pm_class_shuffle_funcs",)
"""Modifiers that are not used. This one reorders methods: none of hundreds of its bugs made a test fail."""


_NOT_SOURCE = ("docs/", "setup.py", "examples/", "benchmarks/")
MODIFIER = "commit"
MAX_FILES = 8
"""A commit that changes more source files is not a single fix."""
_TRAILER = re.compile(r"^(signed-off-by|co-authored-by|reviewed-by|change-id|cc|git-svn-id)\b.*$", re.IGNORECASE)
_KIND = re.compile(r"^(fix|feat|bug|bugfix|refactor|chore|perf)(\([^)]*\))?!?:\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\((#|gh-)\d+\)")
_LEAST_WORDS = 4


class Candidate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One possible bug, not yet tried."""

    modifier: str
    """SWE-smith's name of the change, like func_pm_ctrl_invert_if."""
    file: str
    digest: str
    """SWE-smith's hash of the rewritten code; modifier and digest end the instance id."""
    patch: str


def is_excluded(path: str, test_roots: Sequence[str]) -> bool:
    """Whether a file gets no bugs, because it is a test, documentation or packaging."""
    return is_protected(path, test_roots) or path.startswith(_NOT_SOURCE)


def load_modifiers() -> None:
    """Import the modifiers, which is slow: once, before processes are forked.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        import swesmith.bug_gen.adapters
        import swesmith.bug_gen.procedural.python  # noqa: F401
    except ImportError as e:
        raise ConfigError(f"{e}; the extra `smith`, 0.9 GB, is needed: {install_command('smith')}") from e


def find_candidates(
    root: Path,
    skip: Callable[[str], bool],
    seed: int,
    workers: int = 1,
) -> list[Candidate]:
    """Return all bugs that the modifiers can make in the Python files of a source tree, in a fixed order.

    Each (file, line, modifier) has its own random generator. So the result does not depend on the order of files, on
    other files of the tree, or on `workers`.

    Raises:
        ConfigError: the extra is not installed.
    """
    load_modifiers()
    found = [folder.path(name) for folder in walk(root.resolve()) for name in folder.others if name.endswith(".py")]
    names = [name for name in sorted(found, key=lambda path: path.split("/")) if not skip(name)]
    by_patch: dict[str, Candidate] = {}
    with multiprocessing.get_context("fork").Pool(workers, _begin, (os.getpid(),)) as pool:
        for of_file in pool.imap(partial(_in_file, root, seed), names):
            for candidate in of_file:
                by_patch.setdefault(candidate.patch, candidate)
        pool.close()  # they end by themselves; a signal could meet a handler that this process had
        pool.join()
    return list(by_patch.values())


def _begin(parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a pool ends them after an error
    exit_with_parent(parent)


def _in_file(root: Path, seed: int, name: str) -> list[Candidate]:
    from swesmith.bug_gen.adapters import get_entities_from_file
    from swesmith.bug_gen.procedural.python import MODIFIERS_PYTHON
    from swesmith.bug_gen.utils import generate_patch_fast

    found = []
    entities: list[Any] = []
    get_entities_from_file[".py"](entities, str(root / name), -1)
    for entity in entities:
        for modifier in MODIFIERS_PYTHON:
            if modifier.name in UNUSED_MODIFIERS or not modifier.can_change(entity):
                continue
            modifier.rand = random.Random(f"{seed}:{name}:{entity.line_start}:{modifier.name}")  # noqa: S311
            bug = modifier.modify(entity)
            patch = bug and generate_patch_fast(entity, bug, str(root))
            if patch:
                found.append(Candidate(modifier=modifier.name, file=name, digest=bug.get_hash(), patch=patch))
    return found


@contextmanager
def unpack_files(files: Sequence[File]) -> Iterator[Path]:
    """Yield a temporary directory with the files, without links."""
    with scratch_folder() as root:
        for path, mode, content in files:
            if mode != "120000":
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(content)
        yield root


def order_candidates(found: Iterable[Candidate], seed: int) -> list[Candidate]:
    """Return the candidates in an order whose prefixes are as diverse in places, files and modifiers as possible. Pure.

    Of those that change the same lines, one comes before a second of any. Then the next candidate is one whose (file,
    modifier) pair, then whose file and modifier, occurred least often. Ties are broken by a shuffle with `seed`.
    """
    left = sorted(found, key=lambda c: (c.file, c.modifier, c.digest, c.patch))
    random.Random(seed).shuffle(left)  # noqa: S311
    places, pairs, files, modifiers = Counter[object](), Counter[object](), Counter[str](), Counter[str]()
    ranks = []
    for candidate in left:
        place, pair = changed_places(candidate.patch), (candidate.file, candidate.modifier)
        ranks.append((places[place], pairs[pair]))
        places[place] += 1
        pairs[pair] += 1
    ordered = []
    for _, group in groupby(sorted(zip(ranks, range(len(left)), strict=True)), key=lambda one: one[0]):
        waiting = [left[number] for _, number in group]
        while waiting:
            best = min(waiting, key=lambda c: files[c.file] + modifiers[c.modifier])
            waiting.remove(best)
            ordered.append(best)
            files[best.file] += 1
            modifiers[best.modifier] += 1
    return ordered


def changed_places(patch: str) -> frozenset[tuple[str, int]]:
    """Return (file, line) of each line that a patch removes; if it only adds lines, of the lines before these."""
    changes = list(patch_changes(patch))
    removed = frozenset((change.path, change.line) for change in changes if change.text[0] == "-")
    return removed or frozenset((change.path, change.line) for change in changes)


class Fixes(NamedTuple):
    """The fixes found in a history."""

    candidates: list[Candidate]
    messages: dict[str, str]
    """Commit message by the candidate's digest."""
    looked_at: int
    """Number of commits without merges."""
    first: int
    """Number of these without a parent; they cannot be reverted."""
    gone: int
    """Number of fixes that cannot be reverted, because later commits changed the same places."""


def find_fixes(repository: Path, head: str, test_roots: Sequence[str], most: int) -> Fixes:
    """Find fixes in the last `most` commits up to `head`, newest first.

    Only the source change is reverted; the tests stay as they are today. The tests that then fail show what the commit
    fixed, in source that today's environment can run.
    """
    commits = read_log(repository, head, most)
    candidates, messages, gone = [], {}, 0
    later = [commit for commit in commits if commit.parent]
    for commit, paths in _fixes(later, test_roots):
        patch = revert(repository, head, commit, paths)
        if not patch and len(paths) > 1:  # try without files that change often, like one with a version number
            paths = [path for path in paths if revert(repository, head, commit, [path])]
            patch = revert(repository, head, commit, paths) if paths else ""
        if not patch:
            gone += 1
            continue
        made = Candidate(modifier=MODIFIER, file=paths[0], digest=commit.id[:12], patch=patch)
        candidates.append(made)
        messages[made.digest] = commit.message
    return Fixes(candidates, messages, len(commits), len(commits) - len(later), gone)


def revert(repository: Path, head: str, commit: Commit, paths: Sequence[str]) -> str:
    """Return the patch that reverts a commit's changes of these files in `head`, or "" if that is not possible."""
    objects = git("rev-parse", "--git-path", "objects", git_dir=repository, cwd=repository).decode().strip()
    undo = ["diff-tree", "-p", "-r", "--binary", "--full-index", "--no-renames", *NO_PROGRAMS]
    undo += [commit.id, commit.parent, "--", *paths]
    with scratch_folder() as scratch:
        store = scratch / "store"  # own configuration: a merge runs drivers that it names
        create_store(store)
        env = {
            "GIT_INDEX_FILE": f"{scratch}/index",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((repository / objects).resolve()),
        }
        try:
            git("read-tree", head, git_dir=store, env=env)
            change = git(*undo, git_dir=store, env=env)
            git("apply", "--cached", "--3way", "--whitespace=nowarn", git_dir=store, env=env, cwd=scratch, data=change)
            tree = git("write-tree", git_dir=store, env=env).decode().strip()
            return diff_trees(store, head, tree, env=env)
        except (InfrastructureError, TaskError, UnicodeDecodeError):
            return ""


def add_messages(rows: Iterable[SmithRow], messages: dict[str, str]) -> list[SmithRow]:
    """Return the rows with the commit message at the start of the issue, unless it reveals the fix."""
    done = []
    for row in rows:
        text = plain_message(messages.get(row.instance_id.rpartition("__")[2], ""))
        if text and not leaks(text, row.patch):
            row = replace(row, problem_statement=f"{text}\n\n{row.problem_statement}")
        done.append(row)
    return done


def plain_message(message: str) -> str:
    """Return a commit message without trailers, prefix and numbers, or "" if too few words are left. Pure."""
    lines = [line for line in message.splitlines() if not _TRAILER.match(line)]
    text = _NUMBER.sub("", _KIND.sub("", "\n".join(lines).strip())).strip()
    return text if len(text.split()) >= _LEAST_WORDS else ""


def _fixes(commits: Iterable[Commit], test_roots: Sequence[str]) -> Iterator[tuple[Commit, list[str]]]:
    """Yield (commit, changed source files) for each commit that changes both source and tests."""
    for commit in commits:
        python = [path for path in commit.paths if path.endswith(".py")]
        source = [path for path in python if not is_excluded(path, test_roots)]
        if 0 < len(source) <= MAX_FILES and any(is_protected(path, test_roots) for path in python):
            yield commit, source
