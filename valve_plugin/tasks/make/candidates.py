"""Candidate bugs from SWE-smith's procedural modifiers (extra `smith`): finding and ordering them."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from valve_plugin.errors import ConfigError
from valve_plugin.extras import install_command
from valve_plugin.records import Record
from valve_plugin.sandbox.git import File
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.supervisor import exit_with_parent
from valve_plugin.sandbox.trees import walk
from valve_plugin.tasks.syntax import patch_changes

UNUSED_MODIFIERS = ("func_pm_class_shuffle_funcs",)
"""Modifiers that are not used. This one reorders methods: none of hundreds of its bugs made a test fail."""


class Candidate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One possible bug, not yet tried."""

    modifier: str
    """SWE-smith's name of the change, like func_pm_ctrl_invert_if."""
    file: str
    digest: str
    """SWE-smith's hash of the rewritten code; modifier and digest end the instance id."""
    patch: str


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
    try:
        import swesmith.bug_gen.adapters
        import swesmith.bug_gen.procedural.python  # noqa: F401 (slow: once, before processes are forked)
    except ImportError as e:
        raise ConfigError(f"SWE-smith is not installed ({e}); run: {install_command('smith')}") from e
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
