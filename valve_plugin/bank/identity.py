"""Tell by names whether a bank belongs to the current repository. Clones, forks and archives have other names.

A false warning in every run is worse than a missed one. So a bank is foreign only if the repository has a name of its
own (from a remote or a project file) and none of its names matches the bank's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from glob import escape
from pathlib import Path

from valve_plugin import config
from valve_plugin.bank.local import local_store
from valve_plugin.checkout import PROJECT_FILES, Checkout, remote_names
from valve_plugin.errors import ConfigError, InfrastructureError
from valve_plugin.files import read_text
from valve_plugin.paths import BANK_NAME, locate, private_dir

_PROJECT_NAME = re.compile(
    r"""(?:^|[({,])\s*"?name"?\s*[=:]\s*["'](?P<quoted>[\w@./-]+)["']"""  # TOML, JSON, the call of setup()
    r"""|^(?:name\s*=\s*|module\s+|project\(\s*)(?P<bare>[\w./-]+)""",  # INI, Go, CMake
    re.MULTILINE,
)
_FOLDERS = "folders"


def find_bank(explicit: str, here: Checkout, repo: str = "") -> Path:
    """Return the bank directory that applies in a checkout, see `paths.locate`; it need not exist.

    Args:
        explicit: a `--bank` or `valve.bank` setting; empty if none was given.
        repo: the repository that the bank is about, if that may be another one than `here`.
    """
    usual = locate(explicit, here.folder, repo or here.name)
    if usual != private_dir(here.folder, repo or here.name):
        return usual
    own = _private_bank(here)
    another = repo and (usual.exists() or not is_same_name(repo, _repo_of(own) or here.name))
    return usual if another else own


def _private_bank(here: Checkout) -> Path:
    """Return where the private bank of a checkout is or would be.

    Without a remote, a repository is called like its folder, which may be renamed. So the bank's name also holds the
    first commit, and that is what it is found by. A bank from before the first commit is found by the name.
    """
    from valve_plugin.sandbox.git import git_line, trust_checkout  # not needed for a bank inside the repository

    usual = private_dir(here.folder, here.name)
    if remote_names(here.root) or not here.git:
        return usual
    words = ["rev-list", "--first-parent", "--max-parents=0", "HEAD"]
    try:
        first = git_line(*words, cwd=here.root, env=trust_checkout(here.root))[:12]
    except InfrastructureError:  # git cannot read it
        return usual
    if not first:
        return usual
    place = private_dir(here.folder, f"{here.name.removesuffix(f'/{here.package}')}-{first}/{here.package}")
    ending = place.name[place.name.rindex(f"-{first}") :]
    found = min(place.parent.glob(f"*{escape(ending)}"), default=None)
    return found or (usual if usual.exists() else place)


def _repo_of(bank: Path) -> str:
    try:
        return config.load(bank).repo
    except ConfigError:
        return ""


def is_foreign(repo: str, bank: Path, here: Checkout) -> bool:
    """Return True if a bank certainly belongs to another repository."""
    own = own_names(here)
    return bool(repo and own) and not _is_of(repo, bank, here, own)


def is_own(repo: str, bank: Path, here: Checkout) -> bool:
    """Return True if a bank certainly belongs to the current repository. Both this and `is_foreign` may be False."""
    return _is_of(repo, bank, here, own_names(here))


def describe_mismatch(repo: str, bank: Path, other: str, what: str = "you are in") -> str:
    """Return a clause: the bank belongs to one repository, and `what` to another."""
    return f"{bank} is the bank of {repo}, {what} {other}"


def remember_folder(bank: Path, here: Checkout) -> None:
    """Remember on this machine that the user assigned this bank to the current repository, whatever the names are."""
    folders = [folder for folder in _remembered_folders(bank) if folder != str(here.root)]
    local_store(bank).remember(_FOLDERS, "\n".join([*folders[-20:], str(here.root)]))


def _remembered_folders(bank: Path) -> list[str]:
    return local_store(bank).recall(_FOLDERS).splitlines()


def _is_of(repo: str, bank: Path, here: Checkout, own: Iterable[str]) -> bool:
    place = bank.resolve()
    usual = place.name == BANK_NAME and place.is_relative_to(here.root)
    if usual or bank == find_bank("", here) or str(here.root) in _remembered_folders(bank):
        return True
    whole = here.name.removesuffix(f"/{here.package}")
    called_so = any(is_same_name(repo, name) for name in (here.name, whole, *own))
    if called_so or _path(repo)[: len(_path(whole))] == _path(whole):
        return True
    called = f"-{_plain(repo)}-"
    return any(called in f"-{_plain(name)}-" for name in (here.folder.name, here.root.name, *own))


def own_names(here: Checkout) -> list[str]:
    """Return the repository's own names, from remotes and project files. The name of its folder does not count."""
    remotes = [name for name in remote_names(here.root) if "/" in name]  # others are folders of local clones
    files = {folder / name: None for folder in (here.folder, here.root) for name in PROJECT_FILES}
    found = [match for path in files for match in _PROJECT_NAME.finditer(read_text(path, 100_000))]
    return remotes + [match["quoted"] or match["bare"] for match in found]


def is_same_name(one: str, other: str) -> bool:
    """Whether two names may be of one repository: a fork has another owner. Pure."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.rpartition("/")[2].lower()).strip("-")


def _path(name: str) -> list[str]:
    """Return the parts of a name without its owner."""
    parts = name.lower().split("/")
    return parts[1:] or parts
