"""Campaigns against a whole `valve evolve`: each trial harms one run in one way, starts it again, and compares ledgers.

Small with fixed seeds in the tests, full in `benchmarks/reliability.py`. The agent and the model are hashes (the toy
plugin of the evolution tests); bank, ledger, journal, panel runs, processes and file systems are real.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.evolve import library as small
from tests.evolve.library import Done
from tests.evolve.test_ledger import ledger
from valve_plugin.bank.verify import verify
from valve_plugin.paths import local_dir

Evolve = Callable[..., Done]
CUTS = ("empty", "one byte", "half", "all but one byte", "before a line end", "after a line end", "in the last line")
"""Classes of byte boundaries at which a file may end."""


class Trial(NamedTuple):
    """One trial."""

    what: str
    held: bool
    how: str


def copy(bank: Path, to: Path) -> Path:
    """Copy a bank with what this machine keeps for it."""
    shutil.copytree(bank, to)
    shutil.copytree(local_dir(bank), local_dir(to), dirs_exist_ok=True)
    return to


def judged(what: str, bank: Path, whole: Path, how: str = "same ledger") -> Trial:
    """Compare a bank that went through something with one that did not."""
    same = ledger(bank) == ledger(whole)
    found = [] if same else ["another ledger"]
    # A run that had nothing left to write leaves a cut cache to the next write, and `verify` says so.
    errors = [f.message for f in verify(bank) if f.level == "error"]
    found += [message for message in errors if "the next write makes it again" not in message]
    return Trial(what, not found, "; ".join(found) or how)


def cut(data: bytes, where: str) -> bytes:
    """Return the data up to a boundary of a class."""
    first, last = data.find(b"\n"), data.rstrip(b"\n").rfind(b"\n")
    return {
        "empty": b"", "one byte": data[:1], "half": data[: len(data) // 2], "all but one byte": data[:-1],
        "before a line end": data[: max(first, 0)], "after a line end": data[: first + 1],
        "in the last line": data[: last + 1 + (len(data) - last) // 2],
    }[where]  # fmt: skip


def truncations(evolve: Evolve, whole: Path, scratch: Path, rng: random.Random, number: int) -> Iterator[Trial]:
    """Cut one file of a finished bank, or of what is kept for it, and evolve again: the same ledger, or a refusal."""
    kinds = [
        "ledger.jsonl",
        "bank.json",
        "panel.json",
        "valve.toml",
        "journal",
        "attempts",
        "rollouts.jsonl",
        "usage.jsonl",
    ]
    cases = [(kind, where) for where in CUTS for kind in kinds]
    rng.shuffle(cases)
    for trial, (kind, where) in enumerate(cases[:number]):
        bank = copy(whole, scratch / f"cut-{trial}")
        paths = sorted(
            p
            for root in (bank, local_dir(bank))
            for p in root.rglob("*")
            if p.is_file() and kind in (*p.parts[-3:], p.name)
        )
        if not paths:
            continue
        path = rng.choice(paths)
        path.write_bytes(cut(path.read_bytes(), where))
        harmed = ledger(bank)
        done = evolve(bank, check=False)
        what = f"{kind} cut: {where}"
        if done.returncode == 0:
            yield judged(what, bank, whole)
        else:
            kept = ledger(bank) == harmed and str(bank) in done.stderr and done.returncode in (2, 3)
            yield Trial(
                what, kept, "refused, nothing written" if kept else f"exit {done.returncode}: {done.stderr[-300:]}"
            )
        shutil.rmtree(bank)
        shutil.rmtree(local_dir(bank))


@contextmanager
def small_disk(at: Path, kilobytes: int) -> Iterator[Callable[[str], None]]:
    """Mount a file system of this size on a directory; yields a function that changes its options. As root."""
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", at], check=True)
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", at], check=True) and None
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def full_disk(evolve: Evolve, whole: Path, scratch: Path, sizes: list[int], *, of: str) -> Iterator[Trial]:
    """Let the disk of a bank (or of its local directory) be full at several moments; free some space and go on."""
    bank = scratch / "full" / "bank"
    local_dir(bank).parent.mkdir(parents=True, exist_ok=True)
    with small_disk(bank.parent if of == "bank" else local_dir(bank), sizes[0]) as remount:
        for kilobytes in [*sizes[1:], 500_000]:
            done = evolve(bank, check=False)
            if done.returncode != 0:
                said = done.returncode == 3 and "No space left" in done.stderr
                yield Trial(
                    f"disk of the {of} full",
                    said,
                    "exit 3, said so" if said else f"exit {done.returncode}: {done.stderr[-300:]}",
                )
            remount(f"size={kilobytes}k")
        evolve(bank)
        yield judged(f"space freed on the disk of the {of}", bank, whole)


def read_only(evolve: Evolve, whole: Path, scratch: Path) -> Iterator[Trial]:
    """Let the bank's file system be read-only; nothing runs, nothing changes, and it goes on when it is not."""
    bank = scratch / "ro" / "bank"
    with small_disk(bank.parent, 500_000) as remount:
        evolve(bank, "--limit", "3")
        before = ledger(bank)
        remount("ro")
        done = evolve(bank, check=False)
        said = done.returncode in (2, 3) and "read-only" in done.stderr.lower() and ledger(bank) == before
        yield Trial(
            "read-only bank", said, "refused, said so" if said else f"exit {done.returncode}: {done.stderr[-300:]}"
        )
        remount("rw")
        evolve(bank)
        yield judged("writable again", bank, whole)


def two_at_once(evolve: Evolve, whole: Path, scratch: Path, calc: Path, path: str) -> Iterator[Trial]:
    """Start a second evolve on the bank of a running one: it is refused, and the first one's ledger is as ever."""
    bank = scratch / "two"
    command = [sys.executable, "-m", "valve_plugin", "evolve", *small.TOY, str(calc), "--bank", str(bank)]
    hold = scratch / "hold"
    first = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, "TOY_HOLD": str(hold)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stderr
    next(line for line in first.stderr if line.startswith("task "))
    hold.touch()
    second = evolve(bank, check=False)
    hold.unlink()
    said = second.returncode == 3 and "is evolving or judging this bank" in second.stderr
    yield Trial(
        "second evolve", said, "exit 3, said so" if said else f"exit {second.returncode}: {second.stderr[-300:]}"
    )
    first.communicate()
    yield judged("first evolve", bank, whole)


def clocks(evolve: Evolve, whole: Path, scratch: Path, rng: random.Random, number: int) -> Iterator[Trial]:
    """Let the wall clock that the program reads jump by years, also back, several times a second while it runs."""
    for trial in range(number):
        bank, file, over = scratch / f"clock-{trial}", scratch / f"clock-{trial}.txt", threading.Event()

        def jump(file: Path = file, over: threading.Event = over) -> None:
            while not over.wait(0.2):
                new = file.with_suffix(".new")
                new.write_text(str(rng.randrange(-10, 10) * 86_400 * 365))
                new.replace(file)

        file.write_text("0")
        thread = threading.Thread(target=jump, daemon=True)
        thread.start()
        try:
            evolve(bank, "--limit", "4", TOY_CLOCK=str(file))
            evolve(bank, TOY_CLOCK=str(file))
        finally:
            over.set()
            thread.join()
        yield judged("clock that jumps by years", bank, whole)
