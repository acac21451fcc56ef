"""What this machine keeps for a bank but never shares: attempts, journal, queue, usage counts, telemetry.

Every record is a file of its own, or one line of a log, so any number of processes may write at once
without a lock, and whatever kills one of them spoils nothing that was acknowledged.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from valve_plugin.bank import files
from valve_plugin.bank.lock import locked
from valve_plugin.bank.packed import pack, unpack
from valve_plugin.codec import canonical, decode, digest, digest_bytes
from valve_plugin.errors import BankBusyError, BankError, BankNotFoundError, RecordError
from valve_plugin.records import Attempt, Context, Kind, Record, Withheld

_MAX_BYTES = 1 << 28
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

USAGE_BYTES = 1 << 20
"""A log of uses that is larger is folded up."""

_WRITTEN_SECONDS = 60
"""Whoever opened a log writes his line within this time."""

T = TypeVar("T")


class _Folded(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many lines of a log of uses in one."""

    folded: list[tuple[Kind, str, int]]


_USES: Any = tuple[tuple[Kind, str], ...] | _Folded  # Any: a union is no type to the checker


class LocalStore:
    """Nothing is created before the first write."""

    def __init__(self, path: Path) -> None:
        self.dir = path
        self.warnings: list[str] = []
        """Files that could not be read and were passed over, one line each."""

    @property
    def here(self) -> bool:
        """Whether this machine (this user's data) has anything of the bank at all."""
        return self.dir.is_dir()

    def start_over(self) -> Path | None:
        """Move away what another bank left here; returns where to, or None when there is nothing.

        Its journal would answer for the new bank's rollouts, and its queue would be judged into it.
        """
        if not self.dir.exists() or not any(self.dir.iterdir()):
            return None
        for number in count(1):
            aside = self.dir.with_name(f"{self.dir.name}.before-{number}")
            with suppress(FileExistsError):
                aside.mkdir(mode=0o700)  # whoever makes it has the name
                break
        self.dir.rename(aside)  # onto an empty directory, which POSIX allows
        return aside

    def add_attempt(self, attempt: Attempt, trajectory: bytes | None = None) -> Attempt:
        """Keep an attempt, and its trajectory if there is one; returns it with the trajectory's file name.

        Both are on disk when this returns. An attempt already kept under the same id stays: a different
        one gets a file beside it.
        """
        _checked(attempt)
        folder = self._folder("attempts", _safe(attempt.task_id))
        stem = _safe(attempt.id)
        if trajectory is not None:
            name = f"{stem}-{digest_bytes(trajectory)[:12]}.traj.json.gz"
            files.write_atomic(self._folder("trajectories") / name, pack(trajectory))
            attempt = replace(attempt, trajectory=name)
        data = canonical(attempt)
        path = folder / f"{stem}.json"
        if not files.write_new(path, data) and files.read_limited(path, _MAX_BYTES, "attempt") != data:
            files.write_new(folder / f"{stem}~{digest_bytes(data)[:12]}.json", data)
        return attempt

    def attempts(self, task_id: str | None = None) -> list[Attempt]:
        """Return the attempts kept, of all tasks or one, oldest first."""
        pattern = f"{_safe(task_id)}/*.json" if task_id is not None else "*/*.json"
        paths = sorted((self.dir / "attempts").glob(pattern))
        found = [a for a in (self._read(path, Attempt) for path in paths) if a is not None]
        return sorted(found, key=lambda a: (a.recorded_at, a.id))

    def trajectory(self, attempt: Attempt) -> bytes:
        """Return the trajectory kept with an attempt.

        Raises:
            BankNotFoundError: it has none, or the file is gone.
            BankError: the file is damaged.
        """
        name = attempt.trajectory
        if not name or name != Path(name).name:
            raise BankNotFoundError(f"attempt {attempt.id} has no trajectory here (it names {name!r})")
        return unpack(self.dir / "trajectories" / name, "trajectory")

    def unpacked(self, attempt: Attempt) -> Path:
        """Return the path of an attempt's trajectory as a file that mini reads, made when first asked for.

        Raises:
            BankNotFoundError: it has none, or the file is gone.
            BankError: the file is damaged.
        """
        data = self.trajectory(attempt)
        stem = attempt.trajectory.removesuffix(".gz").removesuffix(".traj.json")
        path = self._folder("unpacked") / f"{stem}.traj.json"
        if not path.exists():
            files.write_atomic(path, data)
        return path

    def journal_get(self, key: str) -> Attempt | None:
        """Return the finished rollout with that key, or None (also when its file is damaged: then it runs again)."""
        return self._read(self._journal(key), Attempt)

    def journal_put(self, key: str, attempt: Attempt) -> None:
        """Keep a finished rollout under what determines it, durably; it is never run again."""
        data = _checked(attempt)
        path = self._journal(key)
        self._folder("journal", path.parent.name)
        files.write_atomic(path, data)

    def queue_push(self, job: Mapping[str, Any]) -> str:
        """Append a job to the queue, durably; returns its id."""
        data = canonical(dict(job))
        folder = self._folder("queue")
        number = max((int(p.stem) for p in self._jobs()), default=0) + 1
        while not files.write_new(folder / f"{number:08d}.json", data):  # another process took the number
            number += 1
        return f"{number:08d}"

    def queue(self) -> list[dict[str, Any]]:
        """Return the jobs waiting, first in first out, each with its `id`."""
        jobs = [(path.stem, self._read(path, dict[str, Any])) for path in self._jobs()]
        return [{**job, "id": id_} for id_, job in jobs if job is not None]

    def queue_done(self, job_id: str) -> None:
        """Take a job out of the queue; fine when it is not there."""
        if not any(path.stem == job_id for path in self._jobs()):
            return
        # Emptied rather than deleted, so that its number is not given again while it is the highest.
        files.write_atomic(self.dir / "queue" / f"{job_id}.json", b"")
        for path in self._jobs()[:-1]:
            with suppress(FileNotFoundError):
                if not path.stat().st_size:
                    path.unlink()

    def set_aside(self, withheld: Withheld) -> None:
        """Keep an item that was quarantined, for a person to look at."""
        files.write_new(self._folder("quarantine") / f"{_safe(withheld.content_hash)}.json", canonical(withheld))

    def quarantine(self) -> list[Withheld]:
        """Return the items set aside, in no particular order."""
        paths = sorted((self.dir / "quarantine").glob("*.json"))
        return [w for w in (self._read(path, Withheld) for path in paths) if w is not None]

    def settle(self, content_hash: str) -> None:
        """Take an item out of the quarantine: a person has decided about it, and it is not set aside again."""
        files.write_atomic(self._folder("quarantine") / f"{_safe(content_hash)}.json", b"")

    def remember(self, name: str, value: str) -> None:
        """Keep one short text for the next command on this machine."""
        files.write_atomic(self._folder("notes") / _safe(name), value.encode())

    def recall(self, name: str) -> str:
        """Return what was last remembered under a name; empty when nothing was."""
        try:
            return files.read_limited(self.dir / "notes" / _safe(name), 10_000, "note").decode("utf-8", "replace")
        except BankNotFoundError:
            return ""

    def count_use(self, context: Context) -> None:
        """Count one injection of each of the context's items."""
        log = self._folder() / "usage.jsonl"
        files.append_shared(log, canonical(context.items))
        with suppress(FileNotFoundError, BankBusyError):  # another process does it, or has just done it
            if log.stat().st_size > USAGE_BYTES:
                with locked(self.dir / "usage.lock", 0, "another process folds the log up"):
                    self._fold_usage(log)

    def usage(self) -> dict[tuple[Kind, str], int]:
        """Return how often each (kind, name) was injected on this machine."""
        counts: Counter[tuple[Kind, str]] = Counter()
        for log in self.dir.glob("usage*.jsonl"):
            counts.update(self._counted(log))
        return dict(counts)

    def _counted(self, log: Path) -> Counter[tuple[Kind, str]]:
        counts: Counter[tuple[Kind, str]] = Counter()
        for line in self._log(log, _USES):
            counts.update({(kind, name): n for kind, name, n in line.folded} if isinstance(line, _Folded) else line)
        return counts

    def _fold_usage(self, log: Path) -> None:
        """Begin a new log, and make one line of each that nobody can still be writing to."""
        older = sorted(self.dir.glob("usage-*.jsonl"))
        if log.stat().st_size > USAGE_BYTES:
            log.rename(self.dir / f"usage-{len(older) + 1:06d}.jsonl")
        for path in older:
            state = path.stat()
            if state.st_size > USAGE_BYTES and time.time() - state.st_mtime > _WRITTEN_SECONDS:
                line = _Folded(folded=[(kind, name, n) for (kind, name), n in sorted(self._counted(path).items())])
                files.write_atomic(path, canonical(line) + b"\n")

    def telemetry(self, name: str, data: Mapping[str, Any]) -> None:
        """Note times, costs and the like: never read by anything that decides."""
        line = canonical({"at": time.time(), "name": name, "data": dict(data)})
        self._folder("telemetry")
        files.append_shared(self.telemetry_path(name), line)

    def told(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield what was noted under a name, oldest first; lines that cannot be read are passed over with a warning."""
        yield from (data for _, data in self.timed(name))

    def timed(self, name: str) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield what `told` does, each with when it was noted, in seconds since the epoch; 0 when unknown."""
        for noted in self._log(self.telemetry_path(name), dict[str, Any]):
            if isinstance(noted.get("data"), dict):
                at = noted.get("at")
                yield float(at) if isinstance(at, int | float) else 0.0, noted["data"]

    def telemetry_path(self, name: str) -> Path:
        """Return the file of what is noted under a name: JSON lines with `at`, `name` and `data`."""
        return self.dir / "telemetry" / f"{_safe(name)}.jsonl"

    def forget(self, name: str) -> None:
        """Remove what was noted under a name; fine when nothing was."""
        with suppress(OSError):
            self.telemetry_path(name).unlink()

    def _folder(self, *names: str) -> Path:
        path = self.dir.joinpath(*names)
        if not path.is_dir():
            files.make_dir(self.dir, mode=0o700)  # trajectories quote the person's code
            files.make_dir(path)
        return path

    def _journal(self, key: str) -> Path:
        name = _safe(key)
        return self.dir / "journal" / name[:2] / f"{name}.json"

    def _jobs(self) -> list[Path]:
        """Files of the queue in order, emptied ones included."""
        return sorted(p for p in (self.dir / "queue").glob("*.json") if p.stem.isdecimal())

    def _read(self, path: Path, type_: type[T]) -> T | None:
        """Read one record; None when there is none, or, with a warning, when it cannot be read."""
        try:
            data = files.read_limited(path, _MAX_BYTES, "record")
            return decode(data, type_, where=str(path)) if data else None
        except BankNotFoundError:
            return None
        except (BankError, RecordError) as e:
            self.warnings.append(f"{e}; passed over: delete the file")
            return None

    def _log(self, path: Path, type_: type[T]) -> Iterator[T]:
        """Read the lines of a shared log; a line torn by a kill is passed over with a warning."""
        try:
            data = files.read_limited(path, _MAX_BYTES, "log")
        except BankNotFoundError:
            return
        for number, line in enumerate(data.split(b"\n"), start=1):
            if not line:
                continue
            try:
                yield decode(line, type_, where=f"{path}: line {number}")
            except RecordError as e:
                self.warnings.append(f"{e}; passed over")


def _safe(name: str) -> str:
    """A file name for an id: the id itself where that is safe, else its hash."""
    return name if _SAFE.match(name) else digest(name)


def _checked(attempt: Attempt) -> bytes:
    """An attempt's bytes, if they can be read back: records do not check themselves when they are made."""
    data = canonical(attempt)
    decode(data, Attempt, where=f"attempt {attempt.id}")
    return data
