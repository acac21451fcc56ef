"""Candidate bugs from SWE-smith's procedural modifiers (extra `smith`), in an order that spreads them out."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from valve_plugin.errors import ConfigError
from valve_plugin.extras import install
from valve_plugin.records import Record
from valve_plugin.rollouts.foreign import walk
from valve_plugin.rollouts.processes import end_with

# Reordering the methods of a class: whole suites were run for hundreds of these and not one failed.
FRUITLESS = ("func_pm_class_shuffle_funcs",)


class Candidate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One possible bug, not yet tried."""

    modifier: str
    """SWE-smith's name of the change, like func_pm_ctrl_invert_if."""
    file: str
    digest: str
    """SWE-smith's hash of the rewritten code; together with the modifier it ends the instance id."""
    patch: str


def candidates(
    root: Path,
    skip: Callable[[str], bool],
    seed: int,
    workers: int = 1,
    told: Callable[[float], None] = lambda _: None,
) -> list[Candidate]:
    """Return every bug the modifiers can make in the Python files of a source tree, each once, in a fixed order.

    Each (file, line, modifier) draws from its own generator, so the result depends neither on the order of files
    nor on what else is in the tree, nor on `workers`.

    Args:
        skip: true for relative paths to leave alone (tests, packaging).
        workers: processes that look through files.
        told: called with the share of the files that were looked through, by their sizes, in (0, 1].

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        import swesmith.bug_gen.adapters
        import swesmith.bug_gen.procedural.python  # noqa: F401 (slow: once, before processes are forked)
    except ImportError as e:
        raise ConfigError(f"SWE-smith is not installed ({e}); run: {install('smith')}") from e
    found = [folder.path(name) for folder in walk(root.resolve()) for name in folder.others if name.endswith(".py")]
    names = sorted(found, key=lambda path: path.split("/"))
    look = partial(_in_file, root, seed)
    kept = [name for name in names if not skip(name)]
    by_patch: dict[str, Candidate] = {}
    done = list(accumulate((root / name).lstat().st_size + 1 for name in kept))
    with multiprocessing.get_context("fork").Pool(workers, end_with, (os.getpid(),)) as pool:
        for so_far, of_file in zip(done, pool.imap(look, kept), strict=True):
            told(so_far / done[-1])
            for made in of_file:
                by_patch.setdefault(made.patch, made)
    return list(by_patch.values())


def _in_file(root: Path, seed: int, name: str) -> list[Candidate]:
    from swesmith.bug_gen.adapters import get_entities_from_file
    from swesmith.bug_gen.procedural.python import MODIFIERS_PYTHON
    from swesmith.bug_gen.utils import generate_patch_fast

    found = []
    entities: list[Any] = []
    get_entities_from_file[".py"](entities, str(root / name), -1)
    for entity in entities:
        for modifier in MODIFIERS_PYTHON:
            if modifier.name in FRUITLESS or not modifier.can_change(entity):
                continue
            modifier.rand = random.Random(f"{seed}:{name}:{entity.line_start}:{modifier.name}")  # noqa: S311
            bug = modifier.modify(entity)
            patch = bug and generate_patch_fast(entity, bug, str(root))
            if patch:
                found.append(Candidate(modifier=modifier.name, file=name, digest=bug.get_hash(), patch=patch))
    return found


def spread(found: Iterable[Candidate], seed: int) -> list[Candidate]:
    """Return the candidates so that every prefix is as diverse over files and modifiers as it can be.

    Greedy: next comes one whose (file, modifier) pair, then file and modifier, were taken least often; ties by a
    shuffle with `seed`. Pure.
    """
    left = sorted(found, key=lambda c: (c.file, c.modifier, c.digest, c.patch))
    random.Random(seed).shuffle(left)  # noqa: S311
    pairs: dict[tuple[str, str], deque[tuple[int, Candidate]]] = {}
    for place, candidate in enumerate(left):
        pairs.setdefault((candidate.file, candidate.modifier), deque()).append((place, candidate))
    files: Counter[str] = Counter()
    modifiers: Counter[str] = Counter()
    ordered = []
    while pairs:
        waiting = set(pairs)  # each pair has its turn before one has another: to look at pairs alone is what is fast
        while waiting:
            best = min(waiting, key=lambda pair: (files[pair[0]] + modifiers[pair[1]], pairs[pair][0][0]))
            waiting.remove(best)
            ordered.append(pairs[best].popleft()[1])
            files[best[0]] += 1
            modifiers[best[1]] += 1
        pairs = {pair: queue for pair, queue in pairs.items() if queue}
    return ordered
