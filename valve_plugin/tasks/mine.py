"""Bugs that really happened: commits that changed source and tests together, taken back in today's source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.rollouts.protect import is_protected
from valve_plugin.rollouts.slots import slot
from valve_plugin.rollouts.workspace import tree_diff
from valve_plugin.tasks.generate import skip
from valve_plugin.tasks.git import NO_PROGRAMS, create_store, git
from valve_plugin.tasks.history import Commit, walk
from valve_plugin.tasks.issue_text import leaks
from valve_plugin.tasks.load import Row
from valve_plugin.tasks.smith import Candidate

MODIFIER = "commit"
MAX_FILES = 8
"""Commits that change more source files than this are no single fix."""
_TRAILER = re.compile(r"^(signed-off-by|co-authored-by|reviewed-by|change-id|cc|git-svn-id)\b.*$", re.IGNORECASE)
_KIND = re.compile(r"^(fix|feat|bug|bugfix|refactor|chore|perf)(\([^)]*\))?!?:\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\((#|gh-)\d+\)")
_LEAST_WORDS = 4


class Found(NamedTuple):
    """What a history holds."""

    candidates: list[Candidate]
    messages: dict[str, str]
    """Commit message by the candidate's digest."""
    looked_at: int
    """Commits, merges aside."""
    first: int
    """Of those, the ones with nothing before them: they change nothing that could be taken back."""
    gone: int
    """Commits whose change cannot be taken back any more: later ones changed the same places."""


def find(repository: Path, head: str, test_roots: Sequence[str], most: int) -> Found:
    """Look through the last `most` commits before `head`, newest first.

    The tests stay as they are today, the source change alone is taken back: what then fails is what the commit
    fixed, in source that everybody's environment can still run.

    Args:
        repository: a git directory; nothing is written to it.
    """
    commits = walk(repository, head, most)
    candidates, messages, gone = [], {}, 0
    later = [commit for commit in commits if commit.parent]
    for commit, paths in _fixes(later, test_roots):
        patch = take_back(repository, head, commit, paths)
        if not patch and len(paths) > 1:  # without what keeps changing, like a version number
            paths = [path for path in paths if take_back(repository, head, commit, [path])]
            patch = take_back(repository, head, commit, paths) if paths else ""
        if not patch:
            gone += 1
            continue
        made = Candidate(modifier=MODIFIER, file=paths[0], digest=commit.id[:12], patch=patch)
        candidates.append(made)
        messages[made.digest] = commit.message
    return Found(candidates, messages, len(commits), len(commits) - len(later), gone)


def take_back(repository: Path, head: str, commit: Commit, paths: Sequence[str]) -> str:
    """Return the patch that undoes a commit's changes of these files in `head`; empty: it cannot be done."""
    objects = git("rev-parse", "--git-path", "objects", git_dir=repository, cwd=repository).decode().strip()
    undo = ["diff-tree", "-p", "-r", "--binary", "--full-index", "--no-renames", *NO_PROGRAMS]
    undo += [commit.id, commit.parent, "--", *paths]
    with slot() as (_, scratch):
        store = scratch / "store"  # with a configuration of its own: a merge runs the drivers that it finds named
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
            return tree_diff(store, head, tree, env)
        except (InfrastructureError, TaskError, UnicodeDecodeError):
            return ""


def worded(rows: Iterable[Row], messages: dict[str, str]) -> list[Row]:
    """Return the rows with the commit's message before what its test shows, where it does not give the fix away."""
    done = []
    for row in rows:
        text = plain(messages.get(row.instance_id.rpartition("__")[2], ""))
        if text and not leaks(text, row.patch):
            row = replace(row, problem_statement=f"{text}\n\n{row.problem_statement}")
        done.append(row)
    return done


def plain(message: str) -> str:
    """Return a commit message without its bookkeeping; empty when what is left says too little. Pure."""
    lines = [line for line in message.splitlines() if not _TRAILER.match(line)]
    text = _NUMBER.sub("", _KIND.sub("", "\n".join(lines).strip())).strip()
    return text if len(text.split()) >= _LEAST_WORDS else ""


def _fixes(commits: Iterable[Commit], test_roots: Sequence[str]) -> Iterator[tuple[Commit, list[str]]]:
    """Yield (commit, source files) where source and tests change together."""
    for commit in commits:
        python = [path for path in commit.paths if path.endswith(".py")]
        source = [path for path in python if not skip(path, test_roots)]
        if 0 < len(source) <= MAX_FILES and any(is_protected(path, test_roots) for path in python):
            yield commit, source
