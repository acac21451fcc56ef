"""`valve init`: look at the repository, say what was found and how, create its bank."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import Json, examples
from valve_plugin.errors import BankError, BankNotFoundError, ConfigError
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.bank.checkout import Checkout
    from valve_plugin.bank.store import BankStore
    from valve_plugin.cli.detect import Finding

_EXAMPLES = examples(
    "valve init                                # <repo>/.valve, to be committed and shared",
    "valve init --private                      # in user data: the repository stays as it is",
    "valve init packages/api                   # one package folder of a monorepo",
    "valve init --test-command 'tox -e py312'  # where the guess is wrong",
)

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)


def register(app: typer.Typer) -> None:
    """Add `valve init`."""
    app.command("init", epilog=_EXAMPLES)(init)


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Anywhere in the repository.", exists=True, file_okay=False)
    ] = Path(),
    bank: Annotated[str, typer.Option("--bank", metavar="DIR", help="Create the bank here.")] = "",
    private: Annotated[bool, typer.Option("--private", help="Create the bank in user data, not in the tree.")] = False,
    repo: Annotated[str, typer.Option("--repo", metavar="NAME", help="owner/name, where it is not as found.")] = "",
    test_command: Annotated[
        str, typer.Option("--test-command", metavar="COMMAND", help="How the tests are run, where it is not as found.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Also in your home directory.")] = False,
    json: Json = False,
) -> None:
    """Create the bank of this repository.

    Looks for the repository's name, language and test command, says how each was found, and writes them to
    valve.toml in the new bank. An existing bank is never changed, but for a --test-command where it has none.
    """
    from valve_plugin.bank.checkout import find

    if bank and private:
        raise ConfigError("--bank and --private both say where the bank goes; give one of them")
    if repo and not _NAME.fullmatch(repo):
        raise ConfigError(f"--repo {repo!r}: expected owner/name of letters, digits, dots, dashes and underscores")
    here = find(folder)
    directory = target(bank, private=private, here=here)
    _require_repository(here, force, directory)
    found = _look(here, repo, test_command)
    created = _create(directory, here, {name: finding.value for name, finding in found.items() if finding.value})
    added = not created and bool(test_command) and _add(directory, test_command)
    if json:
        facts = {name: asdict(finding) for name, finding in found.items()}
        told = {"bank": str(directory), "created": created, "folder": str(here.folder), "found": facts}
        output.emit_json(told | {"test_command_added": added})
    else:
        _report(here, directory, created, found, added)
        if private and not created and directory.is_relative_to(here.root if here.git else here.folder):
            output.note(
                f"valve: it is not private: it lies in the tree, and --private only says where a new bank goes; move "
                f"{directory} away to make one in user data",
                style="yellow",
            )


def _require_repository(here: Checkout, force: bool, directory: Path) -> None:
    """Refuse (ConfigError) what is hardly meant, and remark on an empty folder."""
    if here.git or force:
        return
    if here.folder in (Path.home().resolve(), Path(here.folder.anchor)):
        raise ConfigError(
            f"{here.folder} is your home directory or the root of all files, and no repository: `cd` to one, or name "
            "it, as in `valve init FOLDER`; --force makes a bank here all the same"
        )
    if not any(here.folder.iterdir()):
        output.note(
            f"valve: {here.folder} is empty and no repository; is this the folder you meant? If not, "
            f"remove {directory}",
            style="yellow",
        )


def _look(here: Checkout, repo: str, test_command: str) -> dict[str, Finding]:
    from valve_plugin.cli.detect import Finding, language, name, tests

    main_language = language(here.folder)
    return {
        "repo": Finding(value=repo, how="--repo") if repo else name(here),
        "language": main_language,
        "test_command": (
            Finding(value=test_command, how="--test-command")
            if test_command
            else tests(here.folder, main_language.value)
        ),
    }


def target(bank: str, *, private: bool, here: Checkout) -> Path:
    """Return where a new bank goes: where every command will look for it, `.valve` unless it is to be private."""
    from valve_plugin.bank.paths import BANK_NAME, locate

    elsewhere = bank or private or os.environ.get("VALVE_BANK")
    return locate(bank, here.folder, here.name) if elsewhere else here.folder / BANK_NAME


def making(directory: Path, here: Checkout, *words: str) -> str:
    """Return the command that makes a bank in a directory, with more words."""
    from valve_plugin.cli.installs import ours

    usual = directory == target("", private=False, here=here)
    return ours("valve", "init", *([] if usual else ["--bank", str(directory)]), *words)


def _create(directory: Path, here: Checkout, settings: dict[str, Any]) -> bool:
    """Create the bank; False when there is one already.

    Raises:
        BankError: something else is in the way.
        ConfigError: the bank that is there is of another repository.
    """
    from valve_plugin.bank.store import BankStore

    try:
        there = BankStore.open(directory)  # a damaged one raises
    except BankNotFoundError:
        pass
    else:
        _require_ours(there, here, settings["repo"])
        return False
    if directory.exists() and not _free(directory):
        raise BankError(f"{directory}: exists and is not a bank; move it away, or name another with --bank DIR")
    for warning in BankStore.create(directory, settings["repo"], settings).warnings:
        output.note(f"valve: {warning}", style="yellow")
    _settle(directory, here, settings["repo"])
    return True


def _require_ours(store: BankStore, here: Checkout, repo: str) -> None:
    """Refuse (ConfigError) the bank of another repository, unless --repo says that this is the one."""
    from valve_plugin.bank.belonging import differs, foreign

    if repo == store.bank.repo:
        _settle(store.dir, here, repo)
    elif foreign(store.bank.repo, store.dir, here):
        raise ConfigError(
            f"{differs(store.bank.repo, store.dir, here.name)}; name a bank of this repository with --bank DIR, or, "
            f"where {here.folder} is {store.bank.repo} under another name, say so with --repo {quote(store.bank.repo)}"
        )


def _settle(directory: Path, here: Checkout, repo: str) -> None:
    """Remember whose bank this is where the names alone would say another's."""
    from valve_plugin.bank.belonging import belongs, settle

    if not belongs(repo, directory, here):
        settle(directory, here)


def _add(directory: Path, test_command: str) -> bool:
    """Write a test command into the settings of a bank that has none; False when it is there already.

    Raises:
        ConfigError: the settings cannot be read, or name another one.
        BankError: they are no regular file, or cannot be written.
    """
    from valve_plugin import config
    from valve_plugin.bank import files

    path = directory / config.FILE_NAME
    config.load(directory)
    known = config.read_file(path).get("test_command")
    if known == test_command:
        return False
    if known is not None:
        raise ConfigError(f"{path}: test_command is {known!r} already; edit it there to have another")
    try:
        there = files.read_limited(path, config.MAX_BYTES, config.FILE_NAME)
    except BankNotFoundError:
        there = b""
    setting = config.to_toml({"test_command": test_command}).encode()
    files.write_atomic(path, setting + there)  # at the top: at the end it could land in a table
    return True


def _free(directory: Path) -> bool:
    """Whether nothing is in it but hidden files and settings, as somebody prepared them or a kill left them."""
    return directory.is_dir() and all(p.name.startswith(".") or p.name == "valve.toml" for p in directory.iterdir())


def _report(here: Checkout, directory: Path, created: bool, found: dict[str, Finding], added: bool) -> None:
    kind = "folder without git" if not here.git else f"package folder of {here.root}" if here.package else "git"
    rows = [("folder", str(here.folder), kind)]
    rows += [(name.replace("_", " "), finding.value or "not found", finding.how) for name, finding in found.items()]
    for name, value, how in rows:
        output.say(f"{name:13} {value}  ({how})")
    if not created:
        changed = "its settings name the test command now" if added else "nothing was changed"
        output.say(f"{'bank':13} {directory}  (there already; {changed})")
        output.say("next: valve")
        return
    output.say(f"{'bank':13} {directory}  (created)", style="green")
    if here.git and directory.is_relative_to(here.root):
        output.say("It is made for git: commit it and everyone who works here shares it.")
    output.say("next: mini --plugin valve -t 'what to do'   (valve shows where it stands)")
