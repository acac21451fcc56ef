"""Full disks, cut files, a second run and jumping clocks against a whole `valve evolve`: the ledger stays the same.

Each test harms runs, starts them again where they stopped, and compares their ledgers with one that nothing happened
to. The agent and the model are hashes (the toy plugin); bank, ledger, journal, panel runs, processes and file systems
are real.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from tests.evolve import library
from tests.evolve.test_ledger import ledger
from valve_plugin.bank.verify import verify
from valve_plugin.paths import local_dir

pytestmark = pytest.mark.heavy
CUTS = ("empty", "one byte", "half", "all but one byte", "before a line end", "after a line end", "in the last line")
"""Classes of byte boundaries at which a file may end."""
FILES = ("ledger.jsonl", "bank.json", "panel.json", "valve.toml", "journal", "attempts", "rollouts.jsonl")


def require_same(bank, whole):
    """A bank that went through something is what one is that did not."""
    assert ledger(bank) == ledger(whole)
    errors = [f.message for f in verify(bank) if f.level == "error"]
    # A run that had nothing left to write leaves a cut cache to the next write, and `verify` says so.
    assert [message for message in errors if "the next write makes it again" not in message] == []


def cut(data, where):
    """Return the data up to a boundary of a class."""
    first, last = data.find(b"\n"), data.rstrip(b"\n").rfind(b"\n")
    return {
        "empty": b"", "one byte": data[:1], "half": data[: len(data) // 2], "all but one byte": data[:-1],
        "before a line end": data[: max(first, 0)], "after a line end": data[: first + 1],
        "in the last line": data[: last + 1 + (len(data) - last) // 2],
    }[where]  # fmt: skip


@pytest.mark.parametrize("where", CUTS)
def test_a_cut_file_gives_the_same_ledger_or_is_refused(evolve, whole, tmp_path, where):
    for file in FILES:
        bank = shutil.copytree(whole, tmp_path / "bank")
        shutil.copytree(local_dir(whole), local_dir(bank), dirs_exist_ok=True)
        every = [p for root in (bank, local_dir(bank)) for p in root.rglob("*") if p.is_file()]
        paths = sorted(p for p in every if file in (*p.parts[-3:], p.name))
        if paths:
            path = random.Random(f"{file} {where}").choice(paths)
            path.write_bytes(cut(path.read_bytes(), where))
            harmed = ledger(bank)
            done = evolve(bank, check=False)
            if done.returncode:
                assert done.returncode in (2, 3), (file, done.stderr)
                assert ledger(bank) == harmed
                assert str(bank) in done.stderr
            else:
                require_same(bank, whole)
        shutil.rmtree(bank)
        shutil.rmtree(local_dir(bank))


@contextmanager
def small_disk(at, kilobytes):
    """Mount a file system of this size on a directory; yields a function that changes its options."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", at], check=True)
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", at], check=True)
    finally:
        subprocess.run(["umount", "-l", at], check=True)


@pytest.mark.parametrize("of", ["bank", "attempts"])
def test_a_full_disk_loses_nothing(evolve, whole, tmp_path, of):
    bank = tmp_path / "full" / "bank"
    local_dir(bank).parent.mkdir(parents=True, exist_ok=True)
    first, second = (12, 24) if of == "bank" else (40, 160)
    full = 0
    with small_disk(bank.parent if of == "bank" else local_dir(bank), first) as remount:
        for kilobytes in (second, 500_000):
            done = evolve(bank, check=False)
            if done.returncode:
                full += 1
                assert done.returncode == 3
                assert "No space left" in done.stderr
            remount(f"size={kilobytes}k")
        evolve(bank)
        require_same(bank, whole)
    assert full, "it was full at least once"


def test_a_read_only_bank_is_said_to_be_one(evolve, whole, tmp_path):
    bank = tmp_path / "ro" / "bank"
    with small_disk(bank.parent, 500_000) as remount:
        evolve(bank, "--limit", "3")
        before = ledger(bank)
        remount("ro")
        done = evolve(bank, check=False)
        assert done.returncode in (2, 3)
        assert "read-only" in done.stderr.lower()
        assert ledger(bank) == before
        remount("rw")
        evolve(bank)
        require_same(bank, whole)


def test_a_second_evolve_on_one_bank_is_refused(evolve, whole, tmp_path, calc, toy):
    bank, hold = tmp_path / "two", tmp_path / "hold"
    command = [sys.executable, "-m", "valve_plugin", "evolve", *library.TOY, str(calc), "--bank", str(bank)]
    path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TOY_HOLD": str(hold)}
    first = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    next(line for line in first.stderr if line.startswith("task "))
    hold.touch()
    second = evolve(bank, check=False)
    hold.unlink()
    assert second.returncode == 3
    assert "is evolving or judging this bank" in second.stderr
    first.communicate()
    require_same(bank, whole)


def test_a_clock_that_jumps_by_years_changes_nothing(evolve, whole, tmp_path):
    """Also back, several times a second while it runs."""
    rng, file, over = random.Random(3), tmp_path / "clock.txt", threading.Event()

    def jump():
        while not over.wait(0.2):
            new = file.with_suffix(".new")
            new.write_text(str(rng.randrange(-10, 10) * 86_400 * 365))
            new.replace(file)

    file.write_text("0")
    thread = threading.Thread(target=jump, daemon=True)
    thread.start()
    try:
        evolve(tmp_path / "bank", "--limit", "4", TOY_CLOCK=str(file))
        evolve(tmp_path / "bank", TOY_CLOCK=str(file))
    finally:
        over.set()
        thread.join()
    require_same(tmp_path / "bank", whole)


def test_with_a_third_of_all_tries_lost_the_ledger_is_the_same(evolve, whole, tmp_path):
    evolve(tmp_path / "bank", "--workers", "3", TOY_LOST="0.3")
    require_same(tmp_path / "bank", whole)
