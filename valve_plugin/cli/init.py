"""`valve init`: inspect the repository, print what was found and how, and create its bank."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from valve_plugin.bank import identity
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import Checkout, find
from valve_plugin.cli import output
from valve_plugin.cli.options import Commands, Json, argument, flag, new_bank_dir, option, remember_bank
from valve_plugin.config import FILE_NAME, load
from valve_plugin.errors import BankError, ConfigError, ValveError
from valve_plugin.extras import own_command, runnable
from valve_plugin.files import read_text
from valve_plugin.words import plural, quote

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_METADATA = ("pyproject.toml", "setup.cfg", "setup.py", "PKG-INFO")
_MAX_BYTES = 500_000
_PYTEST, _UNITTEST = "python -m pytest", "python -m unittest"
_LOOK_FOR_PYTEST = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pytest') is None)"
_TESTS = (
    ("pyproject.toml", r"\[tool\.pytest", _PYTEST),
    ("pytest.ini", "", _PYTEST),
    ("tox.ini", r"\[pytest\]", _PYTEST),
    ("setup.cfg", r"\[tool:pytest\]", _PYTEST),
    ("tests/conftest.py", "", _PYTEST),
    ("tests/test_*.py", "", _PYTEST),
    ("test/test_*.py", "", _PYTEST),
    ("test_*.py", "", _PYTEST),
    ("tox.ini", "", "tox"),
    ("noxfile.py", "", "nox"),
    ("package.json", r'"test"\s*:\s*"(?!echo .{,2}Error: no test specified)', "npm test"),
    ("go.mod", "", "go test ./..."),
    ("Cargo.toml", "", "cargo test"),
    ("pom.xml", "", "mvn test"),
    ("gradlew", "", "./gradlew test"),
    ("build.gradle", "", "gradle test"),
    (".rspec", "", "bundle exec rspec"),
    ("Rakefile", "", "bundle exec rake test"),
    ("phpunit.xml*", "", "vendor/bin/phpunit"),
    ("mix.exs", "", "mix test"),
    ("Package.swift", "", "swift test"),
    ("[Mm]akefile", r"^test\s*:(?!=)", "make test"),
    ("[Mm]akefile", r"^check\s*:(?!=)", "make check"),
)
"""The file that shows how tests are run, what it must contain (a regular expression), and the test command; by rank."""


class Detected(NamedTuple):
    """What was found in the repository, and how; empty: nothing was found."""

    value: str
    how: str


commands = Commands()


@commands.add(
    "init",
    "valve init                                # <repo>/.valve, to be committed and shared",
    "valve init --private                      # in user data: the repository stays as it is",
    "valve init --test-command 'tox -e py312'  # where the guess is wrong",
)
def init(
    folder: Annotated[Path, argument("FOLDER", "Anywhere in the repository.", exists=True, file_okay=False)] = Path(),
    bank: Annotated[str, option("--bank", "DIR", "Create the bank here.", callback=remember_bank)] = "",
    private: Annotated[bool, flag("--private", "Create the bank in user data, not in the tree.")] = False,
    repo: Annotated[str, option("--repo", "NAME", "owner/name, where it is not as found.")] = "",
    test_command: Annotated[str, option("--test-command", "COMMAND", "How to run the tests, if not as found.")] = "",
    json: Json = False,
) -> None:
    """Create the bank of this repository.

    Finds the repository's name and test command, prints how each was found, and writes them to valve.toml in the new
    bank. An existing bank is not changed.
    """
    if bank and private:
        raise ConfigError("--bank and --private both say where the bank goes; give one of them")
    if repo and not _NAME.fullmatch(repo):
        raise ConfigError(f"--repo {repo!r}: expected owner/name of letters, digits, dots, dashes and underscores")
    here = find(folder)
    directory = new_bank_dir(bank, here, private=private)
    if not here.git and here.folder in (Path.home().resolve(), Path(here.folder.anchor)):
        raise ConfigError(f"{here.folder} is not a repository; name one, as in `valve init FOLDER`")
    tests = Detected(test_command, "--test-command") if test_command else detect_tests(here.folder)
    name = Detected(repo, "--repo") if repo else detect_name(here)
    found = {"repo": name, "test_command": tests}
    created = _create(directory, here, {name: one.value for name, one in found.items() if one.value})
    if not created:
        found = {setting: _kept(directory, setting, asked) for setting, asked in found.items()}
    if json:
        facts = {name: one._asdict() for name, one in found.items()}
        output.emit_json({"bank": str(directory), "created": created, "folder": str(here.folder), "found": facts})
        return
    kind = "folder without git" if not here.git else f"package folder of {here.root}" if here.package else "git"
    rows = [("folder", str(here.folder), kind)]
    rows += [(name.replace("_", " "), one.value or "not found", one.how) for name, one in found.items()]
    if created and tests.value:
        rows[-1] = ("test command", tests.value, f"{tests.how}; not run yet")
    rows += [("bank", str(directory), "created" if created else "there already; nothing was changed")]
    for label, value, how in rows:
        output.say(f"{label:13} {value}  ({how})")
    if created and here.git and directory == new_bank_dir("", here) and directory.is_relative_to(here.root):
        output.say("Commit it to share it with everyone who works here.")
    runs_tests = bool(found["test_command"].value)
    if not runs_tests:
        output.say(f"To have attempts graded, set {line_to_set(directory, _PYTEST)}, or how else the tests are run.")
    then = "runs the tests once, too" if runs_tests else "names what is missing"
    output.say(f"next: {output.for_bank(runnable('valve doctor'))}  # {then}")


def line_to_set(bank: Path, command: str, name: str = "test_command") -> str:
    """Return the line of a bank's settings that sets the test command, and where it goes."""

    return f"the line in {bank / FILE_NAME}: `{name} = {dumps(command)}`"


def _kept(directory: Path, setting: str, asked: Detected) -> Detected:
    """Return the setting that a bank has already, and how to have the one that was asked for."""
    value = str(getattr(load(directory), setting) or "")
    if asked.value == value:
        return asked
    if asked.how.startswith("--") or not value:
        return Detected(value, f"kept; for {asked.value}, edit {directory / FILE_NAME}")
    return Detected(value, f"kept from {FILE_NAME}")


def init_command(directory: Path, here: Checkout) -> str:
    """Return the command that makes a bank in a directory."""
    usual = directory == new_bank_dir("", here)
    return own_command("valve", "init", *([] if usual else ["--bank", str(directory)]))


def _create(directory: Path, here: Checkout, settings: dict[str, Any]) -> bool:
    """Create the bank; False when there is one already.

    Raises:
        BankError: something else is in the way.
        ConfigError: the bank that is there is of another repository, or settings that are there cannot be used.
    """
    load(directory)  # settings that cannot be used raise
    repo = settings["repo"]
    # Hidden files and settings may be there: prepared by a person, or left by a kill.
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    taken = any(not name.startswith(".") and name != "valve.toml" for name in names) or directory.is_file()
    if taken and "ledger.jsonl" not in names and "bank.json" not in names:
        raise BankError(f"{directory}: exists and is not a bank; move it away, or name another with --bank DIR")
    store, created = BankStore.open_or_create(directory, repo, settings)  # a damaged one raises
    theirs = store.bank.repo
    if repo != theirs:
        if identity.is_foreign(theirs, directory, here):
            raise ConfigError(
                f"{identity.describe_mismatch(theirs, directory, here.name)}; name a bank of this repository with "
                f"--bank DIR, or, if {here.folder} is {theirs} under another name, give --repo {quote(theirs)}"
            )
        return False
    for warning in store.warnings if created else ():
        output.warn(warning)
    local = BankStore.open(directory).local  # which takes over what a bank that is gone has left
    if created and (left := len(local.attempts())):
        what = f"{plural(left, 'attempt')} of an earlier bank of {repo}, which is gone, came to this one"
        output.warn(f"{what}; to begin without, delete {local.dir}")
    if not identity.is_own(repo, directory, here):  # where the names alone do not show that the bank belongs here
        identity.remember_folder(directory, here)
    return created


def detect_name(here: Checkout) -> Detected:
    """Return the repository's name: from its remote, otherwise from its metadata, otherwise from its folder."""
    from valve_plugin.tasks.make.project import examine

    if not (here.named_by.startswith("git remote") or here.package):
        files = {name: read_text(here.folder / name, _MAX_BYTES).encode() for name in _METADATA}
        if _PACKAGE_NAME.fullmatch(package := examine(files).name):
            return Detected(package, f"the project's metadata; {here.named_by.replace('name of ', '', 1)}: {here.name}")
    return Detected(here.name, here.named_by)


def detect_tests(folder: Path) -> Detected:
    """Return the command that runs the tests, by the files that are there."""
    for pattern, text, command in _TESTS:
        found = sorted(folder.glob(pattern))
        for path in found:
            if not text or re.search(text, read_text(path, _MAX_BYTES), re.MULTILINE):
                where = path.relative_to(folder).as_posix()
                return _by_files(folder, found, where) if path.match("test_*.py") else Detected(command, where)
    return _detect_deeper(folder)


def _detect_deeper(folder: Path) -> Detected:
    """Return how the tests are run that `valve tasks generate` would find, which may lie anywhere."""
    from valve_plugin.tasks.make.define import read_source
    from valve_plugin.tasks.make.project import examine

    try:
        contents = {path: content for path, _, content in read_source(str(folder))}
    except ValveError:  # too large, or git fails
        contents = {}
    if roots := examine(contents).test_roots:
        tests = [folder / path for path in sorted(contents) if path.startswith(roots)]
        return _by_files(folder, tests, roots[0])
    return Detected("", "nothing here says how tests are run")


def _by_files(folder: Path, tests: Sequence[Path], where: str) -> Detected:
    """Return the command for these test files: unittest's where they need no more and pytest is not installed."""
    texts = [read_text(path, _MAX_BYTES) for path in tests if path.match("test*.py")]
    plain = any(re.search(r"^(import|from) unittest\b", text, re.MULTILINE) for text in texts)
    if not plain or any("pytest" in text for text in texts) or _has_pytest():
        return Detected(_PYTEST, where)
    inside = tests[0].parent
    found = inside == folder or (inside / "__init__.py").exists()  # by unittest itself
    command = _UNITTEST if found else f"{_UNITTEST} discover {quote(inside.relative_to(folder).as_posix())}"
    return Detected(command, f"{where}; pytest is not installed")


def _has_pytest() -> bool:
    """Whether the `python` of this shell, which will run the command, has pytest; nothing of the folder is imported."""
    python = shutil.which("python")
    look = [python or "", "-I", "-c", _LOOK_FOR_PYTEST]
    return python is not None and subprocess.run(look, capture_output=True, check=False).returncode == 0
