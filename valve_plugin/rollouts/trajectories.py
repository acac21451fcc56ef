"""Trajectories of finished rollouts, redacted and compressed in user data, until a bank's local store takes them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from valve_plugin.bank.files import make_dir, write_atomic
from valve_plugin.bank.packed import pack, unpack
from valve_plugin.bank.paths import data_dir
from valve_plugin.codec import digest_bytes
from valve_plugin.errors import BankNotFoundError
from valve_plugin.records import Attempt

_MOST = 4000
"""Files kept; beyond it the oldest half goes, since a bank that wanted them has its copy."""


def keep(rollout_id: str, trajectory: bytes) -> str:
    """Store a trajectory atomically; return its file name, which names the content too: ids recur across banks."""
    if not trajectory:
        return ""
    name = f"{rollout_id}-{digest_bytes(trajectory)[:12]}.json.gz"
    folder = _folder()
    make_dir(folder, mode=0o700)
    write_atomic(folder / name, pack(trajectory))
    _forget_oldest(folder)
    return name


def read(attempt: Attempt) -> bytes:
    """Return the trajectory of an attempt that a rollout returned: JSON in mini's own format.

    Raises:
        BankNotFoundError: it has none, or it is gone.
        BankError: the file is damaged.
    """
    name = attempt.trajectory
    if not name or name != Path(name).name:
        raise BankNotFoundError(f"attempt {attempt.id} has no trajectory (it names {name!r})")
    return unpack(_folder() / name, "trajectory")


def _folder() -> Path:
    return data_dir() / "rollouts"


def _forget_oldest(folder: Path) -> None:
    with os.scandir(folder) as entries:
        kept = [entry for entry in entries if entry.name.endswith(".json.gz")]
    if len(kept) <= _MOST:
        return
    with suppress(FileNotFoundError):  # another process forgets at the same time
        for entry in sorted(kept, key=lambda e: e.stat().st_mtime)[: _MOST // 2]:
            os.unlink(entry.path)
