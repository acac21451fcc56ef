"""Data of a bank that stays on this machine: attempts, journal, queue, withheld items, usage counts, telemetry.

Every record is a file of its own or one line of a log. So many processes can write at once without a lock, and a kill
never damages a record whose write has returned.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from valve_plugin import files
from valve_plugin.bank import ledger
from valve_plugin.codec import canonical, decode, digest, digest_bytes
from valve_plugin.errors import BankError, BankNotFoundError, RecordError
from valve_plugin.files import pack, unpack
from valve_plugin.paths import local_dir
from valve_plugin.records import Attempt, Context, Kind, Withheld

_MAX_BYTES = 1 << 28
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

_BANK = "bank"
_USED, _UNUSED = "attempts", "unused"
"""Folders of attempts that the run asked for, and of those that it did not ask for yet."""
_START_BYTES = 1 << 16

_USES: Any = tuple[tuple[Kind, str], ...] | dict[Literal["folded"], list[tuple[Kind, str, int]]]

T = TypeVar("T")


class LocalStore:
    """The local data of one bank. Nothing is created before the first write."""

    def __init__(self, path: Path, bank: Path | None = None) -> None:
        self.dir, self._bank = path, bank
        self._closed = set[Path]()
        self.warnings: list[str] = []
        """Files that could not be read and were skipped, one line each."""

    @property
    def exists(self) -> bool:
        """Whether there is local data of the bank on this machine."""
        return self.dir.is_dir()

    def move_away(self) -> Path | None:
        """Rename the folder of an earlier bank, so that a new bank does not use its journal and queue.

        Returns:
            The new path, or None if there is nothing to move.
        """
        if not self.dir.exists() or not any(self.dir.iterdir()):
            return None
        aside = self.dir.with_name(f"{self.dir.name}.before-{time.time_ns()}")
        self.dir.rename(aside)
        return aside

    def add_attempt(self, attempt: Attempt, trajectory: bytes | None = None, *, early: bool = False) -> Attempt:
        """Store an attempt and its trajectory, if any; return the attempt with the trajectory's file name.

        Both are on disk when this returns. A stored attempt is never overwritten: a different attempt with the same id
        gets another file.

        Args:
            early: it was made before anybody asked for it, so it is unused until `use` says otherwise.
        """
        _encode_attempt(attempt)
        stem = _file_name(attempt.id)
        if trajectory is not None:
            name = f"{stem}-{digest_bytes(trajectory)[:12]}.traj.json.gz"
            files.write_atomic(self._folder("trajectories") / name, pack(trajectory))
            attempt = replace(attempt, trajectory=name)
        folder = self._folder(_UNUSED if early else _USED, _file_name(attempt.task_id))
        data = canonical(attempt)
        path = folder / f"{stem}.json"
        if not files.write_new(path, data) and files.read_limited(path, _MAX_BYTES, "attempt") != data:
            files.write_new(folder / f"{stem}~{digest_bytes(data)[:12]}.json", data)
        return attempt

    def use(self, attempt: Attempt) -> None:
        """Count a finished attempt from now on: the run asked for it, whoever made it."""
        task, stem = _file_name(attempt.task_id), _file_name(attempt.id)
        early = [p for p in (self.dir / _UNUSED / task).glob(f"{stem}*.json") if self._read(p, Attempt) == attempt]
        if early or not (self.dir / _USED / task / f"{stem}.json").exists():
            self.add_attempt(attempt)
        for path in early:
            path.unlink(missing_ok=True)

    def attempts(self, task_id: str | None = None) -> list[Attempt]:
        """Return the stored attempts of all tasks or of one, oldest first, without unused ones."""
        return self._attempts(_USED, task_id)

    def unused(self, task_id: str | None = None) -> list[Attempt]:
        """Return the attempts that idle workers made and nobody asked for, oldest first: no results, but paid."""
        used = {a.id for a in self.attempts(task_id) if a.outcome != "errored"}
        return [a for a in self._attempts(_UNUSED, task_id) if a.outcome == "errored" or a.id not in used]

    def _attempts(self, folder: str, task_id: str | None) -> list[Attempt]:
        pattern = f"{_file_name(task_id)}/*.json" if task_id is not None else "*/*.json"
        paths = sorted((self.dir / folder).glob(pattern))
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

    def trajectory_file(self, attempt: Attempt) -> Path:
        """Return the path of an attempt's trajectory, unpacked so that mini can read it; created on first use.

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
        """Return the finished rollout with that key, or None, also if its file is damaged: it runs again."""
        return self._read(self._journal(key), Attempt)

    def journal_put(self, key: str, attempt: Attempt) -> None:
        """Store a finished rollout durably under its key, so that it never runs again."""
        data = _encode_attempt(attempt)
        path = self._journal(key)
        self._folder("journal", path.parent.name)
        files.write_atomic(path, data)

    def extraction_get(self, key: str, type_: type[T]) -> T | None:
        """Return the result of the extraction with that key, or None, also if its file is damaged: it is made again."""
        return self._read(self.dir / "extractions" / f"{_file_name(key)}.json", type_)

    def extraction_put(self, key: str, result: object) -> None:
        """Store the result of an extraction durably under its key, so that its model calls are never repeated."""
        files.write_atomic(self._folder("extractions") / f"{_file_name(key)}.json", canonical(result))

    def queue_push(self, job: Mapping[str, Any]) -> str:
        """Append a job to the queue, durably; return its id."""
        data = canonical(dict(job))
        folder = self._folder("queue")
        number = max((int(p.stem) for p in self._jobs()), default=0) + 1
        while not files.write_new(folder / f"{number:08d}.json", data):  # another process took the number
            number += 1
        return f"{number:08d}"

    def queue(self) -> list[dict[str, Any]]:
        """Return the waiting jobs, first in first out, each with its `id`."""
        jobs = [(path.stem, self._read(path, dict[str, Any])) for path in self._jobs()]
        return [{**job, "id": id_} for id_, job in jobs if job is not None]

    def queue_done(self, job_id: str) -> None:
        """Remove a job from the queue, if it is there."""
        if not any(path.stem == job_id for path in self._jobs()):
            return
        # The file is emptied, not deleted, so that the highest number is not used again.
        files.write_atomic(self.dir / "queue" / f"{job_id}.json", b"")
        for path in self._jobs()[:-1]:
            with suppress(FileNotFoundError):
                if not path.stat().st_size:
                    path.unlink()

    def keep_answers(self, proposal_id: str, answers: Sequence[Mapping[str, str]]) -> None:
        """Store what the model wrote for a proposal, in order; nothing for none."""
        if answers:
            self._folder("answers")
            files.write_atomic(self._answers_path(proposal_id), canonical([dict(a) for a in answers]))

    def answers(self, proposal_id: str) -> list[dict[str, str]]:
        """Return what the model wrote for a proposal, as `for`, `model` and `answer`; empty if that is not here."""
        return self._read(self._answers_path(proposal_id), list[dict[str, str]]) or []

    def add_withheld(self, withheld: Withheld) -> None:
        """Store a withheld item for a person's review, unless a person has already decided about it."""
        files.write_new(self._withheld_path(withheld.content_hash), canonical(withheld))

    def withheld(self) -> list[Withheld]:
        """Return the withheld items that wait for a person, in no particular order."""
        paths = sorted((self.dir / "quarantine").glob("*.json"))
        return [w for w in (self._read(path, Withheld) for path in paths) if w is not None]

    def settle_withheld(self, content_hash: str) -> None:
        """Mark a withheld item as decided by a person, so that it is not stored again."""
        files.write_atomic(self._withheld_path(content_hash), b"")

    def remember(self, name: str, value: str) -> None:
        """Store a short text under a name, for later commands on this machine."""
        files.write_atomic(self._folder("notes") / _file_name(name), value.encode())

    def recall(self, name: str) -> str:
        """Return the text stored under a name, or an empty string."""
        try:
            return files.read_limited(self.dir / "notes" / _file_name(name), 10_000, "note").decode("utf-8", "replace")
        except BankNotFoundError:
            return ""

    def remember_bank(self) -> None:
        """Note where the bank is and how its ledger begins, so that `local_store` knows it again elsewhere."""
        if self._bank is not None and (start := _first_entries(self._bank)):
            note = "\n".join([*start, str(self._bank.resolve())])
            if self.recall(_BANK) != note:
                self.remember(_BANK, note)

    def count_use(self, context: Context) -> None:
        """Count one injection of each of the context's items."""
        files.append_shared(self._folder() / "usage.jsonl", canonical(context.items))

    def usage(self) -> dict[tuple[Kind, str], int]:
        """Return how often each (kind, name) was injected on this machine."""
        counts: Counter[tuple[Kind, str]] = Counter()
        for log in self.dir.glob("usage*.jsonl"):
            for line in self._log(log, _USES):  # earlier versions folded long logs up
                counts.update({(k, name): n for k, name, n in line["folded"]} if isinstance(line, dict) else line)
        return dict(counts)

    def write_telemetry(self, name: str, data: Mapping[str, Any]) -> None:
        """Append times, costs and the like to the log of that name. No decision uses them."""
        line = canonical({"at": time.time(), "name": name, "data": dict(data)})
        self._folder("telemetry")
        files.append_shared(self.telemetry_path(name), line)

    def read_telemetry(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the data of a log, oldest first; an unreadable line is skipped with a warning."""
        yield from (data for _, data in self.read_timed_telemetry(name))

    def read_timed_telemetry(self, name: str) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield (time, data) of a log, oldest first; the time is in seconds since the epoch, 0 if unknown."""
        for line in self._log(self.telemetry_path(name), dict[str, Any]):
            if isinstance(line.get("data"), dict):
                at = line.get("at")
                yield float(at) if isinstance(at, int | float) else 0.0, line["data"]

    def telemetry_path(self, name: str) -> Path:
        """Return the file of a log: JSON lines with `at`, `name` and `data`."""
        return self.dir / "telemetry" / f"{_file_name(name)}.jsonl"

    def clear_telemetry(self, name: str) -> None:
        """Remove a log, if there is one."""
        with suppress(OSError):
            self.telemetry_path(name).unlink()

    def _folder(self, *names: str) -> Path:
        path, new = self.dir.joinpath(*names), not self.dir.is_dir()
        if new or path not in self._closed:  # also one that was there, and open to others, as in a copy
            self._closed.add(path)
            folder = self.dir.parent  # trajectories quote the person's code
            for name in (self.dir.name, *names, ""):
                files.make_private_dir(folder)
                folder /= name
            if new:
                self.remember_bank()
        elif not path.is_dir():
            files.make_private_dir(path)
        return path

    def _withheld_path(self, content_hash: str) -> Path:
        return self._folder("quarantine") / f"{_file_name(content_hash)}.json"

    def _answers_path(self, proposal_id: str) -> Path:
        return self.dir / "answers" / f"{_file_name(proposal_id)}.json"

    def _journal(self, key: str) -> Path:
        name = _file_name(key)
        return self.dir / "journal" / name[:2] / f"{name}.json"

    def _jobs(self) -> list[Path]:
        """Files of the queue in order, emptied ones included."""
        return sorted(p for p in (self.dir / "queue").glob("*.json") if p.stem.isdecimal())

    def _read(self, path: Path, type_: type[T]) -> T | None:
        """Return one record; None if there is none, or, with a warning, if it cannot be read."""
        try:
            data = files.read_limited(path, _MAX_BYTES, "record")
            return decode(data, type_, where=str(path)) if data else None
        except BankNotFoundError:
            return None
        except (BankError, RecordError) as e:
            self.warnings.append(f"{e}; skipped; delete the file")
            return None

    def _log(self, path: Path, type_: type[T]) -> Iterator[T]:
        """Yield the lines of a shared log; an incomplete line is skipped with a warning."""
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
                self.warnings.append(f"{e}; skipped")


def _file_name(name: str) -> str:
    """Return a file name for an id: the id itself if it is safe, else its hash."""
    return name if _SAFE.match(name) else digest(name)


def _encode_attempt(attempt: Attempt) -> bytes:
    """Return an attempt's bytes after checking that they can be decoded: a new record is not checked otherwise."""
    data = canonical(attempt)
    decode(data, Attempt, where=f"attempt {attempt.id}")
    return data


def local_store(bank: Path) -> LocalStore:
    """Return the local data of the bank in a directory.

    If the directory was moved or renamed, its local data is moved, too: that of a bank which begins with the same
    entries and is no longer where it was. A copy or another clone has local data of its own.
    """
    store = LocalStore(local_dir(bank), bank)
    with suppress(OSError):  # user data that cannot be written: whoever writes next says so
        if not store.exists and (start := _first_entries(bank)):
            left = [path for path in store.dir.parent.glob("*/notes") if _is_left(LocalStore(path.parent), start)]
            if len(left) == 1:
                left[0].parent.rename(store.dir)
        if store.exists:
            store.remember_bank()
    return store


def former_bank(folder: Path) -> tuple[Path, bool] | None:
    """Return where the bank of a folder of local data is, and whether it still is there; None if that is not known."""
    *before, where = LocalStore(folder).recall(_BANK).split("\n")
    return (Path(where), _first_entries(Path(where))[: len(before)] == before) if before else None


def take_over(bank: Path, former: Path) -> None:
    """Give a bank the runs of the bank that was at another path.

    Raises:
        BankError: there are none, or the other bank is still there, or this one has runs.
    """
    here, there = local_dir(bank), local_dir(former)
    if not there.is_dir():
        raise BankNotFoundError(f"{former}: no run on this machine is of a bank there; `valve clean` lists lost ones")
    if (former / ledger.FILE_NAME).exists() or here.exists():
        busy = former if (former / ledger.FILE_NAME).exists() else here
        raise BankError(f"{former}: its runs cannot move, because {busy} is there; move that away first")
    there.rename(here)
    LocalStore(here, bank).remember_bank()


def _is_left(other: LocalStore, start: list[str]) -> bool:
    """Whether local data is of a bank that began with these entries, perhaps with fewer, and is gone."""
    *before, where = other.recall(_BANK).split("\n")
    there = _first_entries(Path(where))[: len(before)] if before else before
    return before == start[: len(before)] != there


def _first_entries(bank: Path) -> list[str]:
    """Return digests of the first two lines of a bank's ledger, which never change; fewer if there are fewer."""
    try:
        start = files.read_regular(bank / ledger.FILE_NAME, _START_BYTES, start_only=True)
    except OSError:
        return []
    first, end, rest = start.partition(b"\n")
    second = rest if len(start) == _START_BYTES else rest.rpartition(b"\n")[0]
    lines = [first, second.split(b"\n")[0][:4096]] if second else [first] if end else []
    return [digest_bytes(line) for line in lines]
