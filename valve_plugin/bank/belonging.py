"""Whether a bank is of the repository at hand, told from names alone: they differ between clones, forks and archives.

A wrong remark in every run would cost more than a missed one, so a bank is called foreign only where the repository
says its own name, by a remote or by the project in it, and none of the names it goes by is the bank's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from valve_plugin.bank.checkout import PROJECT_FILES, Checkout, remote_names, text_of
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.paths import BANK_NAME, local_dir, private_dir

_SAID = re.compile(
    r"""(?:^|[({,])\s*"?name"?\s*[=:]\s*["'](?P<quoted>[\w@./-]+)["']"""  # TOML, JSON, the call of setup()
    r"""|^(?:name\s*=\s*|module\s+|project\(\s*)(?P<bare>[\w./-]+)""",  # INI, Go, CMake
    re.MULTILINE,
)
_FOLDERS = "folders"


def foreign(repo: str, bank: Path, here: Checkout) -> bool:
    """Whether a bank is known to be of another repository than the one at hand.

    Args:
        repo: what the bank says it is of.
        bank: its directory.
        here: the repository, or folder, at hand.
    """
    says = _says(here)
    return bool(repo and says) and not _of(repo, bank, here, says)


def belongs(repo: str, bank: Path, here: Checkout) -> bool:
    """Whether a bank is known to be of the repository at hand. Neither this nor `foreign`: no name tells."""
    return _of(repo, bank, here, _says(here))


def differs(repo: str, bank: Path, other: str, what: str = "you are in") -> str:
    """Return the words that a bank is of one repository and something else of another."""
    return f"{bank} is the bank of {repo}, {what} {other}"


def settle(bank: Path, here: Checkout) -> None:
    """Remember, on this machine, that a person said this bank is of the repository at hand, whatever their names."""
    folders = [folder for folder in _settled(bank) if folder != str(here.root)]
    LocalStore(local_dir(bank)).remember(_FOLDERS, "\n".join([*folders[-20:], str(here.root)]))


def _settled(bank: Path) -> list[str]:
    return LocalStore(local_dir(bank)).recall(_FOLDERS).splitlines()


def _of(repo: str, bank: Path, here: Checkout, says: Iterable[str]) -> bool:
    place = bank.resolve()
    usual = place.name == BANK_NAME and place.is_relative_to(here.root)
    if usual or bank == private_dir(here.folder, here.name) or str(here.root) in _settled(bank):
        return True
    whole = here.name.removesuffix(f"/{here.package}")
    if _same(repo, [here.name, whole, *says]) or _path(repo)[: len(_path(whole))] == _path(whole):
        return True
    called = f"-{_plain(repo)}-"
    return any(called in f"-{_plain(name)}-" for name in (here.folder.name, here.root.name, *says))


def _says(here: Checkout) -> list[str]:
    """Return the names the repository itself goes by. A folder's is none: anybody calls a folder anything."""
    remotes = [name for name in remote_names(here.root) if "/" in name]  # else it is the folder of a local clone
    files = {folder / name: None for folder in (here.folder, here.root) for name in PROJECT_FILES}
    found = [match for path in files for match in _SAID.finditer(text_of(path, 100_000))]
    return remotes + [match["quoted"] or match["bare"] for match in found]


def _same(repo: str, names: Iterable[str]) -> bool:
    """A fork has another owner, and a name is written in several ways: the last part counts."""
    return _plain(repo) in {_plain(name) for name in names}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower()).strip("-")


def _path(name: str) -> list[str]:
    """A name without its owner."""
    parts = name.lower().split("/")
    return parts[1:] or parts
