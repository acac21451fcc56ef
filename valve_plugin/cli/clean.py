"""`valve clean` and `valve relink`: what lies on this disk, and runs that lost their bank."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from json import loads
from pathlib import Path
from typing import Annotated, NamedTuple

from valve_plugin.bank.ledger import FILE_NAME
from valve_plugin.bank.local import former_bank, take_over
from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Commands, Json, argument, bank_dir, flag, option
from valve_plugin.errors import ConfigError
from valve_plugin.paths import data_dir
from valve_plugin.sandbox.scratch import in_use

_KINDS = {
    "trajectories": "messages and commands of a bank's attempts; outcomes and patches stay",
    "lost": "attempts of banks that are gone; `valve relink` gives them to a bank that moved",
    "trials": "rollouts of `valve try`; without them a trial begins anew",
    "environments": "sources and test environments of repositories; the next run makes them again",
    "demos": "folders of `valve demo` without --out",
    "caches": "test runs, vectors, files of images and recent trajectories; made again when needed",
}
_CACHES = ("testruns", "vectors", "images", "rollouts")
_DEMO = "valve-demo-"

commands = Commands()


class Found(NamedTuple):
    """One thing on this disk that may be removed."""

    kind: str
    repository: str
    """owner/name, or empty where it belongs to all of them."""
    size: int
    """Bytes."""
    path: Path


@commands.add(
    "clean",
    "valve clean                                  # what lies on this disk; nothing is removed",
    "valve clean trajectories --repo owner/name",
)
def clean(
    kinds: Annotated[list[str] | None, argument("KIND", f"What to remove: {', '.join(_KINDS)}.")] = None,
    repo: Annotated[str, option("--repo", "OWNER/NAME", "Only of this repository.")] = "",
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Show what valve keeps on this disk, and remove what is named.

    Banks, task sets, and the attempts of banks that are here are never removed. At a terminal it asks first; elsewhere
    give --yes.
    """
    from valve_plugin.sandbox.trees import remove_tree

    if unknown := sorted(set(kinds or ()) - _KINDS.keys()):
        raise ConfigError(f"{unknown[0]}: expected {', '.join(_KINDS)}")
    every = [f for f in _inventory() if (not kinds or f.kind in kinds) and (not repo or f.repository == repo)]
    found = sorted((f for f in every if f.size), key=lambda f: (list(_KINDS).index(f.kind), f.repository, f.path))
    total = sum(f.size for f in found)
    if not json:
        rows = ([f.kind, f.repository, _size(f.size), f.path] for f in found)
        output.table(["KIND", "REPOSITORY", "SIZE", "PATH"], rows)
        output.note(f"{_size(total)} in {data_dir()} and {tempfile.gettempdir()}")
    question = f"remove {output.plural(len(found), 'folder')}, {_size(total)}?"
    nobody = "nothing was removed: there is no terminal to ask at; give --yes"
    removed = bool(kinds and found and (yes or output.confirm(question, nobody)))
    if removed:
        if in_use():
            raise ConfigError("nothing was removed: a run of valve is active on this machine; stop it, or wait for it")
        for one in found:
            remove_tree(one.path)
            if one.path.exists():
                raise ConfigError(f"{one.path}: not all of it could be removed; is some of it another user's?")
    if json:
        facts = [{**f._asdict(), "path": str(f.path), "about": _KINDS[f.kind]} for f in found]
        output.emit_json({"found": facts, "bytes": total, "removed": removed})
    elif removed:
        output.say(f"removed {_size(total)}", style="green")
    elif not kinds:
        for kind, about in _KINDS.items():
            output.note(f"valve clean {kind:13} {about}")


def _inventory() -> Iterator[Found]:
    """Yield what may be removed."""
    for folder in sorted((data_dir() / "local").glob("*/")):
        known = former_bank(folder)
        if known and not known[1]:
            yield Found("lost", f"bank was {known[0]}", _bytes(folder), folder)
        elif known:
            with (known[0] / FILE_NAME).open("rb") as ledger:
                repository = str(loads(ledger.readline())["entry"]["repo"])
            for name in ("trajectories", "unpacked"):
                yield Found("trajectories", repository, _bytes(folder / name), folder / name)
    for kind, place in (("trials", "trials"), ("environments", "repos")):
        for folder in sorted((data_dir() / place).glob("*/")):
            yield Found(kind, folder.name.replace("__", "/"), _bytes(folder), folder)
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_DEMO}*/")):
        if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
            yield Found("demos", "", _bytes(folder), folder)
    for path in (data_dir() / name for name in _CACHES):
        yield Found("caches", "", _bytes(path), path)


def _bytes(path: Path) -> int:
    """Return the size of a tree; links are not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size //= 1000
    return f"{size} GB"


@commands.add("relink", "valve relink ~/old/place/.valve")
def relink(
    former: Annotated[Path, argument("FORMER", "Where the bank was.")], bank: BankDir = "", json: Json = False
) -> None:
    """Give a bank that moved the runs it had.

    A bank that was moved finds them by itself, where only one can be meant. This is for the other cases.
    """
    directory = bank_dir(bank)
    place = former.expanduser().absolute()
    take_over(directory, place)
    if json:
        output.emit_json({"bank": str(directory), "former": str(place)})
    else:
        output.say(f"the runs came from {place}", style="green")
