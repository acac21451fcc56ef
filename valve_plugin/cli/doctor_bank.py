"""The rows of `valve doctor` about what lies on disk: bank, task set, user data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from valve_plugin.bank.checkout import find
from valve_plugin.bank.directory import FILES
from valve_plugin.bank.paths import data_dir
from valve_plugin.cli.doctor_rows import Found, Place, row
from valve_plugin.cli.doctor_tasks import look_at_tasks
from valve_plugin.cli.installs import as_root, aside, ours
from valve_plugin.cli.output import plural
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.shell_words import join, quote

_LEAST_BYTES = 2 * 1024**3
"""What one rollout may fill."""
_QUIET = ("--no-pager", "-c", "log.showSignature=false", "-c", "core.fsmonitor=false")
"""A person pastes the command, and the repository's configuration may name programs: pager, gpg, and what fetches."""


@row("bank")
def _bank(place: Place) -> Found:
    from valve_plugin.bank.paths import local_dir
    from valve_plugin.cli.init import making

    if os.path.lexists(place.bank) and not _is_folder(place.bank):
        return Found("failed", f"{place.bank} is no folder that can be opened", aside(str(place.bank)))
    if closed := _closed(place.bank, os.R_OK):
        return Found("failed", f"{place.bank} cannot be read by this user", closed)
    if place.trouble:
        return Found("failed", place.trouble, aside(str(place.bank / "valve.toml")))
    if not (place.bank / "ledger.jsonl").exists():
        return Found("missing", f"none yet; it would be created in {place.bank}", making(place.bank, place.here))
    if closed := _closed(place.bank, os.W_OK):
        return Found("missing", f"{place.bank} can be read, and not be written by this user", closed)
    return Found("ok", f"{place.bank}; this machine's part is in {local_dir(place.bank)}")


def _is_folder(path: Path) -> bool:
    """Whether it is a folder; a link has to lead to one this user can open: what it leads to is not ours to change."""
    try:
        return path.is_dir() and (not path.is_symlink() or os.access(path, os.R_OK | os.X_OK))
    except OSError:
        return False


def _closed(folder: Path, how: int) -> str:
    """Return the command that gives this user a folder's files; empty where it has them, or nobody can."""
    if not folder.exists():
        return ""
    inside = [folder / name for name in FILES] if os.access(folder, os.X_OK) else []
    there = [folder, *(path for path in inside if path.exists())]
    open_ = os.access(folder, how | os.X_OK) and all(os.access(path, how) for path in there)
    if open_ or os.statvfs(folder).f_flag & os.ST_RDONLY:
        return ""
    quoted = quote(str(folder))
    if all(path.stat().st_uid == os.geteuid() for path in there):
        return f"chmod -R u+rwX {quoted}"
    return as_root(f"chown -R {os.geteuid()} {quoted}") + f" && chmod -R u+rwX {quoted}"


@row("bank integrity")
def _integrity(place: Place) -> Found:
    from valve_plugin import config
    from valve_plugin.bank import ledger
    from valve_plugin.bank.verify import verify
    from valve_plugin.errors import BankNotFoundError

    if _closed(place.bank, os.R_OK):
        return Found("missing", "not known while the bank cannot be read, see there")
    try:
        findings = verify(place.bank)
    except BankNotFoundError:
        return Found("ok", "no bank, nothing to verify")
    # Settings that cannot be read are the row before.
    errors = [finding for finding in findings if finding.level == "error" and finding.file != config.FILE_NAME]
    if not errors:
        warnings = [finding.message for finding in findings if finding.level == "warning"]
        return Found("ok", "; ".join(warnings) or "all verified")
    of_ledger = [f for f in errors if f.file == ledger.FILE_NAME or f.place == "ledger"]
    worst = (of_ledger or errors)[0]  # the rest follows from it
    where = " ".join(filter(None, [worst.file, worst.place]))
    detail = f"{plural(len(errors), 'error')}: {where}: {worst.message}"
    if not of_ledger:
        return Found("failed", detail, ours("valve", "bank", "verify", "--repair", "--bank", str(place.bank)))
    path = place.bank / ledger.FILE_NAME
    root = find(place.bank.parent).root  # never from inside the bank: a repository may be planted there
    if _committed(place.bank.resolve(), root):
        inside = (place.bank.resolve() / ledger.FILE_NAME).relative_to(root)
        older = join(["git", *_QUIET, "-C", str(root), "log", "--oneline", "--", str(inside)])
        return Found("failed", f"{detail}; git has older copies", f"GIT_ALLOW_PROTOCOL=none {older}")
    return Found("failed", f"{detail}; this takes a backup of {path}: git does not hold this directory as it is")


def _committed(directory: Path, root: Path) -> bool:
    """Whether git has every byte of a bank, so that nothing is lost by taking an older copy.

    Bytes are compared, and git's status is not asked: that runs filters and watchers which a repository configures.
    What is not a regular file is never opened, and no object of git's is unpacked: either may have no end.
    """
    from valve_plugin.bank.ledger import MAX_BYTES
    from valve_plugin.reading import regular
    from valve_plugin.tasks import history
    from valve_plugin.tasks.git import blob_id, git
    from valve_plugin.tasks.history import ANSWERS

    try:
        repository = history.git_dir(root)
        for path in (directory / name for name in FILES if not name.startswith(".")):
            if os.path.lexists(path):
                name = f"HEAD:{path.relative_to(root).as_posix()}"
                kept = git("rev-parse", "--verify", name, git_dir=repository, seconds=ANSWERS).decode().strip()
                git("cat-file", "-e", kept, git_dir=repository, seconds=ANSWERS)
                if path.is_symlink() or blob_id(regular(path, MAX_BYTES), kept) != kept:
                    return False
    except (InfrastructureError, TaskError, OSError, ValueError):
        return False
    return True


row("task set")(look_at_tasks)


@row("user data")
def _data(place: Place) -> Found:
    where = data_dir()
    if root := _repository(where):
        text = f"{where} is inside the repository {root}, where an agent can read it: tasks hold the fixes"
        return Found("failed", text, _elsewhere())
    if why := unusable(where):
        opened = _closed(where, os.W_OK) if where.is_dir() else ""
        return Found("failed", f"{where} cannot be written: {why}", opened or _elsewhere())
    return Found("ok", str(where))


def unusable(where: Path) -> str:
    """Return why nothing can be kept there; empty where it can."""
    above = _nearest(where)
    if not above.is_dir():
        return f"{above} is no folder"
    try:
        probe = above / ".valve-doctor"
        probe.touch()
        probe.unlink()
    except OSError as e:
        return str(e.strerror)
    return ""


@row("disk")
def _disk(place: Place) -> Found:
    free = _free(data_dir())
    text = f"{free / 1024**3:.0f} GiB free"
    if free < _LEAST_BYTES:
        needed = f"{_LEAST_BYTES / 1024**3:.0f}"
        return Found("failed", f"{text} where {data_dir()} is; one rollout may fill {needed}", _elsewhere())
    return Found("ok", text)


def _elsewhere() -> str:
    """Return the command that has user data in a place that is large enough, no repository, and writable."""
    import psutil

    places = {"export VALVE_DATA=$HOME/.valve-data": Path.home() / ".valve-data"}
    if "VALVE_DATA" in os.environ:
        places = {"unset VALVE_DATA": data_dir({})} | places
    for part in sorted(psutil.disk_partitions(), key=lambda part: len(part.mountpoint)):
        path = Path(part.mountpoint) / "valve-data"
        places[f"export VALVE_DATA={quote(str(path))}"] = path
    return next((command for command, path in places.items() if _serves(path)), "")


def _serves(path: Path) -> bool:
    return os.access(_nearest(path), os.W_OK) and _free(path) >= _LEAST_BYTES and not _repository(path)


def _nearest(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _repository(path: Path) -> Path | None:
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)


def _free(path: Path) -> int:
    return shutil.disk_usage(_nearest(path)).free
