"""The rows of `valve doctor` about what lies on disk: bank, task set, user data."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.cli.doctor_rows import Found, Place, row, set_aside
from valve_plugin.cli.output import plural

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore

_LEAST_BYTES = 2 * 1024**3
"""What one rollout may fill."""


@row("bank")
def _bank(place: Place) -> Found:
    from valve_plugin.bank.paths import local_dir
    from valve_plugin.cli.init import making

    if place.trouble:
        return Found("failed", place.trouble, set_aside(place))
    if not (place.bank / "ledger.jsonl").exists():
        return Found("missing", f"none yet; it would be created in {place.bank}", making(place.bank, place.here))
    return Found("ok", f"{place.bank}; this machine's part is in {local_dir(place.bank)}")


@row("bank integrity")
def _integrity(place: Place) -> Found:
    from valve_plugin import config
    from valve_plugin.bank import ledger
    from valve_plugin.bank.verify import verify
    from valve_plugin.errors import BankNotFoundError

    try:
        findings = verify(place.bank)
    except BankNotFoundError:
        return Found("ok", "no bank, nothing to verify")
    # Settings that cannot be read are the row before.
    errors = [finding for finding in findings if finding.level == "error" and finding.file != config.FILE_NAME]
    if not errors:
        warnings = [finding.message for finding in findings if finding.level == "warning"]
        return Found("ok", "; ".join(warnings) or "all verified")
    worst = min(errors, key=lambda finding: finding.file != ledger.FILE_NAME)  # the rest follows from it
    where = " ".join(filter(None, [worst.file, worst.place]))
    detail = f"{plural(len(errors), 'error')}: {where}: {worst.message}"
    if not any(finding.file == ledger.FILE_NAME or finding.place == "ledger" for finding in errors):
        return Found("failed", detail, _remade(place))
    path = place.bank / ledger.FILE_NAME
    if _committed(place.bank):
        older = f"git -C {shlex.quote(str(place.bank))} log --oneline -- {ledger.FILE_NAME}"
        return Found("failed", f"{detail}; git has older copies", older)
    return Found("failed", f"{detail}; this takes a backup of {path}: git does not hold this directory as it is")


def _remade(place: Place) -> str:
    """Return the command that makes what is made from the ledger again; it touches nothing else."""
    from valve_plugin.bank.cache import BANK_FILE
    from valve_plugin.errors import BankError

    again = f"valve bank verify --repair --bank {shlex.quote(str(place.bank))}"
    try:
        _open(place)
    except BankError:  # as of another version: it has to be out of the way first
        path = shlex.quote(str(place.bank / BANK_FILE))
        return f"mv {path} {path}.set-aside && {again}"
    return again


def _committed(directory: Path) -> bool:
    """Whether git has every byte of a directory, so that nothing is lost by taking an older copy."""
    git = ["git", "-C", str(directory)]
    try:
        held = subprocess.run([*git, "ls-files", "--error-unmatch", "ledger.jsonl"], capture_output=True, timeout=30)
        changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return held.returncode == 0 and changed.returncode == 0 and not changed.stdout


@row("task set")
def _tasks(place: Place) -> Found:
    from valve_plugin.errors import BankError, TaskError
    from valve_plugin.tasks import folder
    from valve_plugin.tasks.load import load

    store = None
    with suppress(BankError):  # another row says so
        store = _open(place)
    last = place.settings.tasks or (store.local.recall("tasks") if store else "")
    own = folder.default(store.bank.repo if store else place.here.name)
    given = last or (str(own) if (own / "tasks.jsonl").exists() else "")
    if not given:
        return Found("missing", "none for this repository; `valve evolve` needs one", "valve tasks mine")
    try:
        found = load(folder.find(given))
    except TaskError as e:
        return Found("failed", str(e), f"mv {shlex.quote(given)} {shlex.quote(given)}.set-aside && valve tasks mine")
    return Found("ok", f"{plural(len(found.tasks), 'task')} in {given}")


@row("user data")
def _data(place: Place) -> Found:
    from valve_plugin.bank.paths import data_dir

    where = data_dir()
    above = next(folder for folder in (where, *where.parents) if folder.exists())
    root = next((folder for folder in (where, *where.parents) if (folder / ".git").exists()), None)
    if root is not None:
        text = f"{where} is inside the repository {root}, where an agent can read it: tasks hold the fixes"
        return Found("failed", text, "unset VALVE_DATA")
    try:
        probe = above / ".valve-doctor"
        probe.touch()
        probe.unlink()
    except OSError as e:
        return Found("failed", f"{where} cannot be written: {e.strerror}", "export VALVE_DATA=$HOME/.valve-data")
    return Found("ok", str(where))


@row("disk")
def _disk(place: Place) -> Found:
    from valve_plugin.bank.paths import data_dir

    where = data_dir()
    free = shutil.disk_usage(next(folder for folder in (where, *where.parents) if folder.exists())).free
    text = f"{free / 1024**3:.0f} GiB free"
    if free < _LEAST_BYTES:
        return Found("failed", f"{text}; one rollout may fill {_LEAST_BYTES / 1024**3:.0f}", "export VALVE_DATA=DIR")
    return Found("ok", text)


def _open(place: Place) -> BankStore | None:
    from valve_plugin.bank.store import BankStore

    return BankStore.open(place.bank) if Path(place.bank / "ledger.jsonl").exists() else None
