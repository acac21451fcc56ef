"""A repository tasks are about: where its source comes from, and the store and environment made from it once."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from filelock import FileLock
from msgspec import Meta
from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.bank.files import read_limited, write_atomic
from valve_plugin.bank.paths import data_dir
from valve_plugin.config import Settings
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.records import Positive, Record
from valve_plugin.tasks import environment, image, source
from valve_plugin.tasks.git import create_store, import_files
from valve_plugin.tasks.image import SMITH_ENVIRONMENT, SOURCE, Image
from valve_plugin.words import plural

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

FILE_NAME = "repository.toml"
BASE_REF = "refs/valve/base"
LEAVES_OUT = "--ignore-glob="
"""Of pytest: how files are left out that end the process. What users leave out is `--ignore=`."""
_MAX_BYTES = 1_000_000

_here: dict[Path, Prepared] = {}
"""What this process prepared last under each name: another command may prepare other source under the same name at any
time, and a run stays with its own."""

RelativePath = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^(\.|[A-Za-z0-9_][A-Za-z0-9_./-]*)$(?!\n)")]


class Repository(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `repository.toml` says."""

    name: Annotated[
        str, Meta(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?$(?!\n)")
    ]
    """What the rows call it in `repo`, usually owner/name."""
    source: Annotated[
        str, Meta(pattern=r"^(pypi:[A-Za-z0-9][A-Za-z0-9_.-]*==[A-Za-z0-9_.!+-]+|path:.+|image:\S+)$(?!\n)")
    ]
    """`pypi:NAME==VERSION` (its source archive), `path:DIRECTORY`, relative to repository.toml, or `image:NAME` (the
    /testbed of a container image, which is then also where tests run)."""
    sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")] = ""
    """Of the source archive; empty: not checked."""
    python: Annotated[str, Meta(pattern=r"^(3\.\d+(-3\.\d+)?)?$(?!\n)")] = ""
    """Versions the requirements install on, like `3.10-3.13`; empty: any."""
    requirements: tuple[Annotated[str, Meta(min_length=1, pattern=r"^[^-\s]")], ...] = ()
    """What the tests need, pinned; the repository itself is never installed, it is put on the import path."""
    environment: str = ""
    """An existing virtual environment to test in, instead of one made from `requirements`."""
    image_environment: Annotated[str, Meta(pattern=r"^/")] = SMITH_ENVIRONMENT
    """Inside container images: the environment whose bin/python runs the tests."""
    source_roots: tuple[RelativePath, ...] = (".",)
    """Directories that go on the import path."""
    test_roots: tuple[RelativePath, ...] = ("tests",)
    """Files and directories that hold the tests: what a whole run is given, and what no patch may touch."""
    pytest_args: tuple[str, ...] = ()
    suite: Annotated[str, Meta(max_length=100)] = ""
    """File with one test id a line, beside repository.toml: what rows without PASS_TO_PASS must keep passing."""
    flaky: tuple[str, ...] = ()
    """Tests known to vary, kept out of the suite when tasks are generated."""
    cpu_seconds: Positive = 120
    """CPU limit of one whole test run."""

    @property
    def whole(self) -> tuple[str, ...]:
        """What a run of the whole suite is given: the test roots, without files that `dying` left out.

        pytest runs a file that it is given by name also where it is told to ignore it.
        """
        kept = tuple(r for r in self.test_roots if LEAVES_OUT + glob.escape(r) not in self.pytest_args)
        return kept or self.test_roots

    @property
    def slug(self) -> str:
        """The name as one path component."""
        return self.name.replace("/", "__")


class Prepared(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A repository ready for rollouts."""

    repository: Repository
    folder: str
    """Where everything below was made."""
    base: str
    """Commit id of the untouched source."""
    base_python: str = ""
    """Version of the interpreter, like 3.11.7."""
    image: Image | None = None
    """The container image that rollouts run in; None: the environment made here."""

    @property
    def name(self) -> str:
        """The repository's name."""
        return self.repository.name

    @property
    def store(self) -> Path:
        """Bare git repository that holds the base commit."""
        return Path(self.folder) / "store.git"

    @property
    def venv(self) -> Path:
        """The test environment; with an image, a place inside it."""
        if self.image:
            return Path(self.image.environment)
        return Path(self.repository.environment or f"{self.folder}/venv")

    @property
    def python(self) -> Path:
        """The test environment's interpreter; a symbolic link that must not be resolved."""
        return self.venv / "bin" / "python"

    @property
    def digest(self) -> str:
        """What test outcomes depend on besides task and patch: definition, source and interpreter."""
        return codec.digest([self.repository, self.base, self.base_python, self.image])

    @property
    def usable(self) -> bool:
        """True when its test environment is (still) here, or in an image."""
        return self.repository.source.startswith(SOURCE) or self.python.exists()


def read(path: Path) -> Repository:
    """Read a repository.toml; a relative `path:` source becomes absolute.

    Raises:
        TaskError: missing, too large, not UTF-8, not TOML, unknown or malformed keys.
    """
    try:
        raw = tomllib.loads(read_limited(path, _MAX_BYTES, "repository").decode("utf-8"))
        repository = codec.convert(raw, Repository, where=str(path))
    except FileNotFoundError as e:
        raise TaskError(f"{path}: no such file; a task directory holds {FILE_NAME} and tasks.jsonl") from e
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecordError, RecursionError) as e:
        raise TaskError(f"{path}: {e}") from e
    if repository.source.startswith("path:"):
        folder = (path.parent / repository.source.removeprefix("path:")).resolve()
        repository = replace(repository, source=f"path:{folder}")
    if repository.environment:
        repository = replace(repository, environment=str(path.parent.absolute() / repository.environment))
    if any(".." in Path(p).parts for p in (*repository.source_roots, *repository.test_roots, repository.suite)):
        raise TaskError(f"{path}: source_roots, test_roots and suite must stay inside the directory, without '..'")
    return repository


def prepare(repository: Repository, progress: Callable[[str], None] | None = None) -> Prepared:
    """Fetch the source, store it, and make the test environment. Idempotent; resumes after a kill.

    Steps that were finished are kept; concurrent callers wait for the first. From here on `prepared` returns this one
    in this process.

    Raises:
        TaskError: the source does not exist or is not what sha256 says, or no usable Python.
        InfrastructureError: the package index or git failed.
    """
    say = progress or (lambda _: None)
    home = _home(repository.name)
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / "lock"):
        done = _read_prepared(home)
        if done and done.repository == repository and done.usable:
            _here[home] = done
            return done
        place = home / _key(repository)
        place.mkdir(exist_ok=True)
        in_image = repository.source.startswith(SOURCE)
        test_python = None if in_image else _environment(place / "venv", repository, say)
        base = _store(place / "store.git", repository, test_python, say)
        result = Prepared(
            repository=repository,
            folder=str(place),
            base=base,
            base_python=environment.version(test_python) if test_python else "",
        )
        write_atomic(home / "prepared.json", codec.pretty(result))
        _here[home] = result
        return result


def prepared(name: str) -> Prepared:
    """Return what `prepare` made for the repository that rows call `name`: in this process, or else on this machine.

    Raises:
        TaskError: it was not prepared on this machine; says how.
    """
    home = _home(name)
    found = _here.get(home) or _read_prepared(home)
    if found is None or not found.usable:
        raise TaskError(
            f"repository {name!r} is not prepared on this machine; `valve evolve DIRECTORY` does that for its task "
            f"directory, or call valve_plugin.tasks.repository.prepare(read(Path('DIRECTORY/{FILE_NAME}')))"
        )
    return found


def _home(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?", name):
        raise TaskError(f"repository name {name!r} is not of the form owner/name")
    return data_dir() / "repos" / name.replace("/", "__")


def _key(repository: Repository) -> str:
    """Return what store and environment are made from, as a folder name; how tests are run is no part of it."""
    made_from = [
        repository.source,
        repository.sha256,
        repository.python,
        repository.requirements,
        repository.environment,
    ]
    return codec.digest(made_from)[:12]


def _read_prepared(home: Path) -> Prepared | None:
    path = home / "prepared.json"
    try:
        return codec.decode(path.read_bytes(), Prepared, where=str(path))
    except (OSError, RecordError):
        return None  # absent or of another version: prepared anew


def _environment(venv: Path, repository: Repository, say: Callable[[str], None]) -> Path:
    if not repository.environment:
        python = environment.find_python(repository.python)
        return environment.create(venv, python, repository.requirements, say)
    python = Path(repository.environment) / "bin" / "python"
    if repository.requirements or not (python.exists() and (python.parent.parent / "pyvenv.cfg").exists()):
        raise TaskError(
            f"environment {repository.environment!r} must be an existing virtual environment, without requirements"
        )
    return python


def _store(path: Path, repository: Repository, python: Path | None, say: Callable[[str], None]) -> str:
    commit = path / "valve-base"
    if commit.exists():
        return commit.read_text().strip()
    kind, _, where = repository.source.partition(":")
    if python is None:
        _, files = image.files(where, Settings(), say)
    elif kind == "pypi":
        say(f"downloading the source archive of {where}")
        archive = source.download(python, where, path.parent / "archive")
        files = source.from_archive(archive, repository.sha256)
    else:
        files = source.from_directory(Path(where))
    say(f"storing {plural(len(files), 'file')}")
    if not path.exists():
        create_store(path)
    base = import_files(path, files, BASE_REF)
    write_atomic(commit, base.encode() + b"\n")
    return base


def interpreter_prefix(prepared: Prepared) -> Path:
    """Return the installation the test environment borrows its standard library from."""
    return environment.base_prefix(prepared.venv)
