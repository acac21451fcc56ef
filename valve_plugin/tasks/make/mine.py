"""Candidate bugs from the git history: fixes (commits that change source and tests) are reverted in today's source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.sandbox.git import NO_PROGRAMS, Commit, create_store, diff_trees, git, read_log
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.tasks.issue_text import leaks
from valve_plugin.tasks.make.candidates import Candidate
from valve_plugin.tasks.make.generate import is_excluded
from valve_plugin.tasks.states import is_protected
from valve_plugin.tasks.task_set import SmithRow

MODIFIER = "commit"
MAX_FILES = 8
"""A commit that changes more source files is not a single fix."""
_TRAILER = re.compile(r"^(signed-off-by|co-authored-by|reviewed-by|change-id|cc|git-svn-id)\b.*$", re.IGNORECASE)
_KIND = re.compile(r"^(fix|feat|bug|bugfix|refactor|chore|perf)(\([^)]*\))?!?:\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\((#|gh-)\d+\)")
_LEAST_WORDS = 4


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
