"""`valve init`: inspect the repository, print what was found and how, and create its bank."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from valve_plugin.cli import output
from valve_plugin.cli.options import Commands, Json, argument, flag, new_bank_dir, option
from valve_plugin.errors import BankError, BankNotFoundError, ConfigError
from valve_plugin.extras import own_command, runnable
from valve_plugin.files import read_text
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.checkout import Checkout

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SKIPPED = {"node_modules", "vendor", "third_party", "venv", "site-packages", "build", "dist", "target", "__pycache__"}
"""Folders with code of others, or made by a build."""
_METADATA = ("pyproject.toml", "setup.cfg", "setup.py", "PKG-INFO")
_MAX_FILES, _MAX_BYTES = 20_000, 500_000
_SUFFIXES = {
    "Python": ".py",
    "JavaScript": ".js .jsx .mjs",
    "TypeScript": ".ts .tsx",
    "Go": ".go",
    "Rust": ".rs",
    "Java": ".java",
    "Kotlin": ".kt",
    "Ruby": ".rb",
    "PHP": ".php",
    "Elixir": ".ex .exs",
    "Swift": ".swift",
    "C#": ".cs",
    "C": ".c",
    "C++": ".cc .cpp",
}
LANGUAGES = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
"""Language of each suffix."""
_PYTEST = "python -m pytest"
_TESTS = (
    ("Python", "pyproject.toml", r"\[tool\.pytest", _PYTEST),
    ("Python", "pytest.ini", "", _PYTEST),
    ("Python", "tox.ini", r"\[pytest\]", _PYTEST),
    ("Python", "setup.cfg", r"\[tool:pytest\]", _PYTEST),
    ("Python", "tests/conftest.py", "", _PYTEST),
    ("Python", "tests/test_*.py", "", _PYTEST),
    ("Python", "test/test_*.py", "", _PYTEST),
    ("Python", "test_*.py", "", _PYTEST),
    ("Python", "tox.ini", "", "tox"),
    ("Python", "noxfile.py", "", "nox"),
    ("JavaScript TypeScript", "package.json", r'"test"\s*:\s*"(?!echo .{,2}Error: no test specified)', "npm test"),
    ("Go", "go.mod", "", "go test ./..."),
    ("Rust", "Cargo.toml", "", "cargo test"),
    ("Java Kotlin", "pom.xml", "", "mvn test"),
    ("Java Kotlin", "gradlew", "", "./gradlew test"),
    ("Java Kotlin", "build.gradle", "", "gradle test"),
    ("Ruby", ".rspec", "", "bundle exec rspec"),
    ("Ruby", "Rakefile", "", "bundle exec rake test"),
    ("PHP", "phpunit.xml*", "", "vendor/bin/phpunit"),
    ("Elixir", "mix.exs", "", "mix test"),
    ("Swift", "Package.swift", "", "swift test"),
    ("", "[Mm]akefile", r"^test\s*:(?!=)", "make test"),
    ("", "[Mm]akefile", r"^check\s*:(?!=)", "make check"),
)
"""Languages, the file that shows how tests are run, what it must contain (a regular expression), the test command."""


class Detected(NamedTuple):
    """What was found in the repository, and how; empty: nothing was found."""

    value: str
    how: str


commands = Commands()


@commands.add(
    "init",
    "valve init                                # <repo>/.valve, to be committed and shared",
    "valve init --private                      # in user data: the repository stays as it is",
    "valve init packages/api                   # one package folder of a monorepo",
    "valve init --test-command 'tox -e py312'  # where the guess is wrong",
)
def init(
    folder: Annotated[Path, argument("FOLDER", "Anywhere in the repository.", exists=True, file_okay=False)] = Path(),
    bank: Annotated[str, option("--bank", "DIR", "Create the bank here.")] = "",
    private: Annotated[bool, flag("--private", "Create the bank in user data, not in the tree.")] = False,
    repo: Annotated[str, option("--repo", "NAME", "owner/name, where it is not as found.")] = "",
    test_command: Annotated[str, option("--test-command", "COMMAND", "How to run the tests, if not as found.")] = "",
    force: Annotated[bool, flag("--force", "Also in your home directory.")] = False,
    json: Json = False,
) -> None:
    """Create the bank of this repository.

    Finds the repository's name, language and test command, prints how each was found, and writes them to valve.toml
    in the new bank. An existing bank is not changed, except that --test-command is added where it has none.
    """
    from valve_plugin.checkout import find

    if bank and private:
        raise ConfigError("--bank and --private both say where the bank goes; give one of them")
    if repo and not _NAME.fullmatch(repo):
        raise ConfigError(f"--repo {repo!r}: expected owner/name of letters, digits, dots, dashes and underscores")
    here = find(folder)
    directory = new_bank_dir(bank, here, private=private)
    if not (here.git or force) and here.folder in (Path.home().resolve(), Path(here.folder.anchor)):
        raise ConfigError(
            f"{here.folder} is your home directory or the root of all files, not a repository: `cd` to one, or name "
            "it, as in `valve init FOLDER`; --force makes a bank here anyway"
        )
    language = detect_language(here.folder)
    tests = Detected(test_command, "--test-command") if test_command else detect_tests(here.folder, language.value)
    name = Detected(repo, "--repo") if repo else detect_name(here)
    found = {"repo": name, "language": language, "test_command": tests}
    created = _create(directory, here, {name: one.value for name, one in found.items() if one.value})
    added = not created and bool(test_command) and _add_test_command(directory, test_command)
    if json:
        facts = {name: one._asdict() for name, one in found.items()}
        place = {"bank": str(directory), "created": created, "folder": str(here.folder)}
        output.emit_json({**place, "found": facts, "test_command_added": added})
    else:
        _report(here, directory, created, found, added)


def init_command(directory: Path, here: Checkout, *words: str) -> str:
    """Return the command that makes a bank in a directory, with more words."""
    usual = directory == new_bank_dir("", here)
    return own_command("valve", "init", *([] if usual else ["--bank", str(directory)]), *words)


def _create(directory: Path, here: Checkout, settings: dict[str, Any]) -> bool:
    """Create the bank; False when there is one already.

    Raises:
        BankError: something else is in the way.
        ConfigError: the bank that is there is of another repository.
    """
    from valve_plugin.bank import identity
    from valve_plugin.bank.store import BankStore

    repo = settings["repo"]
    # Hidden files and settings may be there: prepared by a person, or left by a kill.
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    taken = any(not name.startswith(".") and name != "valve.toml" for name in names) or directory.is_file()
    try:
        store, created = BankStore.open(directory), False  # a damaged one raises
    except BankNotFoundError as e:
        if taken:  # as it was before: meanwhile another process may be creating the bank
            raise BankError(
                f"{directory}: exists and is not a bank; move it away, or name another with --bank DIR"
            ) from e
        store, created = BankStore.open_or_create(directory, repo, settings)
    theirs = store.bank.repo
    if repo != theirs:
        if identity.is_foreign(theirs, directory, here):
            raise ConfigError(
                f"{identity.describe_mismatch(theirs, directory, here.name)}; name a bank of this repository with "
                f"--bank DIR, or, if {here.folder} is {theirs} under another name, give --repo {quote(theirs)}"
            )
        return False
    for warning in store.warnings if created else ():
        output.note(f"valve: {warning}", style="yellow")
    if not identity.is_own(repo, directory, here):  # where the names alone do not show that the bank belongs here
        identity.remember_folder(directory, here)
    return created


def _add_test_command(directory: Path, test_command: str) -> bool:
    """Write a test command into the settings of a bank that has none; False when it is there already.

    Raises:
        ConfigError: the settings cannot be read, or name another one.
        BankError: they are no regular file, or cannot be written.
    """
    from valve_plugin import config, files

    path = directory / config.FILE_NAME
    with files.hold_lock(directory / ".lock", 30.0, f"{directory}: another process keeps the lock"):
        known = config.load(directory).test_command
        if known == test_command:
            return False
        if known:
            raise ConfigError(f"{path}: test_command is {known!r} already; edit it there to have another")
        there = files.read_limited(path, config.MAX_BYTES, config.FILE_NAME) if os.path.lexists(path) else b""
        setting = config.to_toml({"test_command": test_command}).encode()
        files.write_atomic(path, setting + there)  # at the top: at the end it could land in a table
    return True


def _report(here: Checkout, directory: Path, created: bool, found: dict[str, Detected], added: bool) -> None:
    kind = "folder without git" if not here.git else f"package folder of {here.root}" if here.package else "git"
    rows = [("folder", str(here.folder), kind)]
    rows += [(name.replace("_", " "), one.value or "not found", one.how) for name, one in found.items()]
    for name, value, how in rows:
        output.say(f"{name:13} {value}  ({how})")
    if not created:
        changed = "its settings name the test command now" if added else "nothing was changed"
        output.say(f"{'bank':13} {directory}  (there already; {changed})")
        output.say(f"next: {runnable('valve')}")
        return
    output.say(f"{'bank':13} {directory}  (created)", style="green")
    if here.git and directory.is_relative_to(here.root):
        output.say("Commit it to share it with everyone who works here.")
    output.say(f"next: {runnable('valve')}   (where this repository stands, and what to run next)")


def detect_name(here: Checkout) -> Detected:
    """Return the repository's name: from its remote, otherwise from its metadata, otherwise from its folder."""
    from valve_plugin.tasks.make.project import examine

    if not (here.named_by.startswith("git remote") or here.package):
        files = {name: read_text(here.folder / name, _MAX_BYTES).encode() for name in _METADATA}
        if _PACKAGE_NAME.fullmatch(package := examine(files).name):
            return Detected(package, f"the project's metadata; {here.named_by.replace('name of ', '', 1)}: {here.name}")
    return Detected(here.name, here.named_by)


def detect_language(folder: Path) -> Detected:
    """Return the language most source files are written in; at most 20,000 files are looked at."""
    counts = Counter(LANGUAGES[path.suffix] for path in _files(folder) if path.suffix in LANGUAGES)
    if not counts:
        return Detected("", "no source file of a known language")
    name, n = min(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return Detected(name, f"{n} of {counts.total()} source files")


def detect_tests(folder: Path, main_language: str) -> Detected:
    """Return the command that runs the tests: by files of the main language, then of the others, then by make."""
    for _, pattern, text, command in sorted(_TESTS, key=lambda rule: main_language not in rule[0].split()):
        for path in sorted(folder.glob(pattern)):
            if not text or re.search(text, read_text(path, _MAX_BYTES), re.MULTILINE):
                return Detected(command, path.relative_to(folder).as_posix())
    return Detected("", "nothing here says how tests are run; set test_command in valve.toml")


def _files(folder: Path) -> Iterator[Path]:
    from valve_plugin.sandbox.trees import walk

    seen = 0
    for found in walk(folder.resolve(), skip=True):
        for name in [n for n in found.folders if n in _SKIPPED or n.startswith(".")]:
            found.folders.remove(name)
        for name in found.others:
            seen += 1
            if seen > _MAX_FILES:
                return
            yield folder / found.path(name)
