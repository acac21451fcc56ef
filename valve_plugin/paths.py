"""Where banks and this machine's own data live."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

BANK_NAME = ".valve"


def data_dir() -> Path:
    """Return valve's user data directory: $VALVE_DATA, else the platform's; nothing is created."""
    explicit = os.environ.get("VALVE_DATA")
    if explicit:
        return Path(explicit).expanduser().absolute()
    from platformdirs import user_data_dir  # only asked when needed: start-up time

    return Path(user_data_dir("valve", appauthor=False))


def locate(explicit: str, repo_dir: Path, repo: str = "") -> Path:
    """Return the bank directory, the first that applies; it need not exist.

    Args:
        explicit: a `--bank` or `valve.bank` setting; empty when none was given.
        repo_dir: folder of the checkout; `.valve` in it is taken when it exists.
        repo: owner/name, for the place in user data; empty: named after the folder and its path.
    """
    chosen = explicit or os.environ.get("VALVE_BANK", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    own = repo_dir / BANK_NAME
    if own.is_dir():
        return own.absolute()
    return private_dir(repo_dir, repo)


def private_dir(repo_dir: Path, repo: str = "") -> Path:
    """Return where a repository's bank is in user data; it need not exist."""
    return data_dir() / "banks" / (_safe_name(repo) if repo else _unique_folder_name(repo_dir.resolve()))


def scripted_bank_dir(repo: str) -> Path:
    """Return where runs of the scripted model about a repository (owner/name) keep their bank; it need not exist."""
    return data_dir() / "simulations" / _safe_name(repo)


def trials_dir(repo: str) -> Path:
    """Return where the rollouts of `valve try` about a repository (owner/name) are kept; it need not exist."""
    return data_dir() / "trials" / _safe_name(repo)


def local_dir(bank_dir: Path) -> Path:
    """Return where this machine keeps what belongs to a bank but not in git; one per resolved bank path."""
    return data_dir() / "local" / _unique_folder_name(bank_dir.resolve())


def seen_file(bank_dir: Path) -> Path:
    """Return the file that says how a bank came to be used on this machine; it need not exist.

    Not in the local folder: that there is one says that this machine knows of rollouts.
    """
    return data_dir() / "seen" / _unique_folder_name(bank_dir.resolve())


def replayed_file(bank_dir: Path) -> Path:
    """Return the file with the SHA-256 of the ledger that this machine last replayed of a bank; it need not exist."""
    return data_dir() / "replayed" / _unique_folder_name(bank_dir.resolve())


def page_path(bank_dir: Path, other: Path | None = None) -> Path:
    """Return where a bank's report goes unless a place is named; compared with another bank, it has a page of its own.

    Not in the local folder: that there is one says that this machine knows of rollouts.
    """
    name = _unique_folder_name(other.resolve()) if other else "report"
    return data_dir() / "reports" / _unique_folder_name(bank_dir.resolve()) / f"{name}.html"


def _safe_name(repo: str) -> str:
    """owner/name as one safe folder name: owner__name."""
    parts = [re.sub(r"[^A-Za-z0-9._-]", "-", part).lstrip(".") for part in repo.split("/")]
    return "__".join(part for part in parts if part) or "unnamed"


def _unique_folder_name(path: Path) -> str:
    """A readable folder name for a path, unique by its hash."""
    words = [part for part in path.parts[-2:] if part not in ("/", BANK_NAME)]
    return f"{_safe_name('/'.join(words))}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
