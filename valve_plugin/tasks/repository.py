"""The repository of a task set: its definition, its source, its git store and its test environment.

A source tree is a list of (path, mode, content), read from a PyPI source archive or from a directory.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from filelock import FileLock
from msgspec import Meta
from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.errors import BankError, InfrastructureError, RecordError, TaskError
from valve_plugin.files import make_private_dir, read_limited, read_regular, write_atomic
from valve_plugin.paths import data_dir
from valve_plugin.records import Positive, Record
from valve_plugin.sandbox import environment
from valve_plugin.sandbox.engine import SMITH_ENVIRONMENT, Image
from valve_plugin.sandbox.environment import pip
from valve_plugin.sandbox.git import MAX_SOURCE_BYTES, File, create_store, git, import_files
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.trees import walk
from valve_plugin.tasks import image
from valve_plugin.tasks.image import IMAGE_PREFIX
from valve_plugin.words import plural

FILE_NAME = "repository.toml"
BASE_REF = "refs/valve/base"
_BASE_FILE = "valve-base"
_MAX_BYTES = 1_000_000
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?$(?!\n)"
_GOT = re.compile(r"Got +([0-9a-f]{64})\b")  # as pip says that an archive has another hash
_SKIP = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})

_here: dict[Path, PreparedRepository] = {}
"""The repositories that this process prepared, by folder. So a run keeps its source even if another process prepares
other source under the same name."""

RelativePath = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^(\.|[A-Za-z0-9_][A-Za-z0-9_./-]*)$(?!\n)")]


class Repository(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `repository.toml`."""

    name: Annotated[str, Meta(max_length=200, pattern=_NAME)]
    """The name that rows give in `repo`, usually owner/name."""
    source: Annotated[
        str, Meta(pattern=r"^(pypi:[A-Za-z0-9][A-Za-z0-9_.-]*==[A-Za-z0-9_.!+-]+|path:.+|image:\S+)$(?!\n)")
    ]
    """`pypi:NAME==VERSION` (a source archive), `path:DIRECTORY` (relative to repository.toml), or `image:NAME` (the
    /testbed of a container image; the tests then run in that image)."""
    sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")] = ""
    """SHA-256 of the source archive; a `pypi:` source needs it."""
    python: Annotated[str, Meta(pattern=r"^(3\.\d+(-3\.\d+)?)?$(?!\n)")] = ""
    """Python versions on which the requirements install, like `3.10-3.13`; any version if empty."""
    requirements: tuple[Annotated[str, Meta(min_length=1, pattern=r"^[^-\s]")], ...] = ()
    """Pinned requirements of the tests. The repository itself is not installed but put on the import path."""
    environment: str = ""
    """An existing virtual environment for the tests, in place of one made from `requirements`."""
    image_environment: Annotated[str, Meta(pattern=r"^/")] = SMITH_ENVIRONMENT
    """Path inside a container image: the environment whose bin/python runs the tests."""
    source_roots: tuple[RelativePath, ...] = (".",)
    """Directories that go on the import path."""
    test_roots: tuple[RelativePath, ...] = ("tests",)
    """Files and directories with the tests. A run of the whole suite gets them, and no patch may change them."""
    pytest_args: tuple[str, ...] = ()
    suite: Annotated[str, Meta(max_length=100)] = ""
    """A file beside repository.toml with one test id per line: the PASS_TO_PASS of rows that have none."""
    flaky: tuple[str, ...] = ()
    """Tests with varying outcomes; they are left out of the suite when tasks are generated."""
    cpu_seconds: Positive = 120
    """CPU limit of one run of the whole suite, in seconds."""


class PreparedRepository(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A repository that is ready for rollouts."""

    repository: Repository
    folder: str
    """The directory of the store and the environment."""
    base: str
    """Commit id of the untouched source."""
    base_python: str = ""
    """Version of the test interpreter, like 3.11.7."""
    image: Image | None = None
    """The container image of the rollouts, or None if they use the virtual environment."""

    @property
    def name(self) -> str:
        """The repository's name."""
        return self.repository.name

    @property
    def store(self) -> Path:
        """The bare git repository with the base commit."""
        return Path(self.folder) / "store.git"

    @property
    def venv(self) -> Path:
        """The test environment; with an image, a path inside the image."""
        if self.image:
            return Path(self.image.environment)
        return Path(self.repository.environment or f"{self.folder}/venv")

    @property
    def python(self) -> Path:
        """The test environment's interpreter. It is a symbolic link; do not resolve it."""
        return self.venv / "bin" / "python"

    @property
    def digest(self) -> str:
        """Digest of all that test outcomes depend on besides task and patch: definition, source and interpreter."""
        return codec.digest([self.repository, self.base, self.base_python, self.image])

    @property
    def usable(self) -> bool:
        """True if its test environment still exists on this machine, or is part of an image."""
        return self.repository.source.startswith(IMAGE_PREFIX) or self.python.exists()


def read_definition(path: Path) -> Repository:
    """Read a repository.toml; a relative `path:` source becomes absolute.

    Raises:
        TaskError: the file is missing, too large, not UTF-8 or not TOML, or has unknown or malformed keys.
    """
    try:
        raw = codec.parse_toml(read_limited(path, _MAX_BYTES, "repository"))
    except FileNotFoundError as e:
        raise TaskError(f"{path}: no such file; a task directory holds {FILE_NAME} and tasks.jsonl") from e
    except BankError as e:  # names the file
        raise TaskError(str(e)) from e
    except RecordError as e:
        raise TaskError(f"{path}: {e}") from e
    try:
        repository = codec.convert(raw, Repository, where=str(path))
    except RecordError as e:
        raise TaskError(str(e)) from e
    if repository.source.startswith("path:"):
        folder = (path.parent / repository.source.removeprefix("path:")).resolve()
        repository = replace(repository, source=f"path:{folder}")
    if repository.environment:
        repository = replace(repository, environment=str(path.parent.absolute() / repository.environment))
    if any(".." in Path(p).parts for p in (*repository.source_roots, *repository.test_roots, repository.suite)):
        raise TaskError(f"{path}: source_roots, test_roots and suite must stay inside the directory, without '..'")
    return repository


def prepare(repository: Repository, progress: Callable[[str], None] | None = None) -> PreparedRepository:
    """Fetch the source, store it in git and make the test environment. Idempotent; resumes after a kill.

    Finished steps are not repeated, and concurrent callers wait for the first one. Afterwards `find_prepared` returns
    this repository in this process.

    Raises:
        TaskError: the source does not exist or does not match sha256, an archive has no sha256, or there is no usable
            Python.
        InfrastructureError: the package index or git failed.
    """
    say = progress or (lambda _: None)
    home = _home(repository.name)
    place = _make_place(repository)
    with FileLock(home / "lock"):
        done = _read_prepared(home)
        if done and done.repository == repository and done.usable:
            _here[home] = done
            return done
        if not (place / "store.git" / _BASE_FILE).exists():
            _require_hash(repository, say)  # before anything is installed
        in_image = repository.source.startswith(IMAGE_PREFIX)
        test_python = None if in_image else _environment(place / "venv", repository, say)
        base = _store(place / "store.git", repository, say)
        result = PreparedRepository(
            repository=repository,
            folder=str(place),
            base=base,
            base_python=_python_version(repository, test_python) if test_python else "",
        )
        write_atomic(home / "prepared.json", codec.pretty(result))
        _here[home] = result
        return result


def prepare_source(repository: Repository, progress: Callable[[str], None] | None = None) -> PreparedRepository:
    """Fetch the source and store it in git, as `prepare` does, but make no test environment.

    Raises:
        TaskError, InfrastructureError, SandboxError: see `prepare`.
    """
    place = _make_place(repository)
    with FileLock(place.parent / "lock"):
        base = _store(place / "store.git", repository, progress or (lambda _: None))
    return PreparedRepository(repository=repository, folder=str(place), base=base)


def prepare_from(repository: Repository, base: str, bundle: Callable[[], bytes]) -> PreparedRepository:
    """Prepare a repository on another machine than the one that has its source; see `prepare`.

    Args:
        bundle: returns a git bundle with it; called where it is not here yet.
    """
    place = _make_place(repository)
    store = place / "store.git"
    with FileLock(place / "bundle.lock"), scratch_folder() as scratch:
        if not (store / _BASE_FILE).exists() or (store / _BASE_FILE).read_text().strip() != base:
            create_store(store)
            (scratch / "bundle").write_bytes(bundle())
            git("bundle", "unbundle", str(scratch / "bundle"), git_dir=store)
            git("update-ref", BASE_REF, base, git_dir=store)
            write_atomic(store / _BASE_FILE, base.encode() + b"\n")
        made = _here[place.parent] = replace(prepare(repository), base=base)
        return made


def find_prepared(name: str) -> PreparedRepository:
    """Return the prepared repository of that name: from this process, else the last one on this machine.

    Raises:
        TaskError: it was not prepared on this machine; the message says how to do that.
    """
    home = _home(name)
    found = _here.get(home) or _read_prepared(home)
    if found is None or not found.usable:
        raise TaskError(
            f"repository {name!r} is not prepared on this machine; run `valve evolve DIRECTORY` on its task directory, "
            f"or call valve_plugin.tasks.repository.prepare(read_definition(Path('DIRECTORY/{FILE_NAME}')))"
        )
    return found


def _home(name: str) -> Path:
    if not re.match(_NAME, name):
        raise TaskError(f"repository name {name!r}: not of the form owner/name")
    return data_dir() / "repos" / name.replace("/", "__")


def _make_place(repository: Repository) -> Path:
    """Return the folder for store and environment; it and those above are private, for they hold the hidden tests."""
    # All that store and environment are made from, not how tests run.
    made_from = (repository.source, repository.sha256, repository.python)
    place = _home(repository.name) / codec.digest([*made_from, repository.requirements, repository.environment])[:12]
    for folder in (place.parent.parent, place.parent, place):
        make_private_dir(folder)
    return place


def _read_prepared(home: Path) -> PreparedRepository | None:
    path = home / "prepared.json"
    try:
        return codec.decode(path.read_bytes(), PreparedRepository, where=str(path))
    except (OSError, RecordError):
        return None  # missing, or written by another version: prepare again


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


def _python_version(repository: Repository, python: Path) -> str:
    """Return the version of the tests' interpreter; one that a definition names may be any program, and is not run."""
    if not repository.environment:
        return environment.version(python)
    return environment.setting(python.parent.parent, "version", "version_info")


def _store(path: Path, repository: Repository, say: Callable[[str], None]) -> str:
    commit = path / _BASE_FILE
    if commit.exists():
        return commit.read_text().strip()
    kind, _, where = repository.source.partition(":")
    if kind == "image":
        _, files = image.image_files(where, say)
    elif kind == "pypi":
        say(f"downloading the source archive of {where}")
        python = path.parent / "venv/bin/python"  # one that is named runs only in the sandbox
        pip_python = python if python.exists() else environment.find_python("")
        _require_hash(repository, say)
        files = read_archive(download(pip_python, where, path.parent / "archive", repository.sha256))
    else:
        files = read_directory(Path(where))
    say(f"storing {plural(len(files), 'file')}")
    if not path.exists():
        create_store(path)
    base = import_files(path, files, BASE_REF)
    write_atomic(commit, base.encode() + b"\n")
    return base


def _require_hash(repository: Repository, say: Callable[[str], None]) -> None:
    """Refuse a source archive that could be any: what the index has may change, and code of it runs here."""
    kind, _, where = repository.source.partition(":")
    if kind == "pypi" and not repository.sha256:
        found = archive_hash(where, say)
        raise TaskError(
            f"nothing says which source archive of {where} is meant. Compare what the package index has now with what "
            f'the project says, and add to {FILE_NAME}: sha256 = "{found}"'
        )


def archive_hash(requirement: str, say: Callable[[str], None]) -> str:
    """Return the SHA-256 of the source archive that the user's package index has for `NAME==VERSION`.

    Nothing of it runs: pip is told a hash that it does not have, so it refuses what it has fetched.

    Raises:
        InfrastructureError: pip failed.
    """
    say(f"asking for the hash of the source archive of {requirement}")
    with scratch_folder() as scratch:
        try:
            _pip_download(environment.find_python(""), requirement, scratch, "0" * 64, "--ignore-requires-python")
        except InfrastructureError as e:
            if found := _GOT.search(str(e)):
                return found[1]
            raise
    raise InfrastructureError(f"{requirement}: pip checks no hashes; use a newer pip")


def download(python: Path, requirement: str, into: Path, sha256: str) -> Path:
    """Download the source archive of `NAME==VERSION` with pip, from the user's package index; return its path.

    Args:
        sha256: its hash. pip checks it before it asks the archive for its metadata, which runs code of the archive.

    Raises:
        InfrastructureError: pip failed.
        TaskError: the release has no source archive, or it has another hash.
    """
    make_private_dir(into)
    try:
        _pip_download(python, requirement, into, sha256)
    except InfrastructureError as e:
        if "Expected sha256" in str(e):
            raise TaskError(f"{requirement}: {e}; the tasks were made from other source") from e
        raise
    found = sorted(p for p in into.iterdir() if p.name.endswith((".tar.gz", ".tgz", ".tar.bz2")))
    if len(found) != 1:
        raise TaskError(f"{requirement}: expected one source archive, got {[p.name for p in into.iterdir()]}")
    return found[0]


def _pip_download(python: Path, requirement: str, into: Path, sha256: str, *more: str) -> None:
    options = ["--no-deps", "--no-binary", requirement.partition("==")[0], "-d", str(into), "--require-hashes", *more]
    with scratch_folder() as scratch:
        wanted = scratch / "requirements.txt"
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        pip(python, "download", *options, "-r", str(wanted))


def read_archive(archive: Path) -> list[File]:
    """Return the files of a source archive, without unpacking it and without its single top directory.

    Raises:
        TaskError: it has absolute paths or `..`, is too large, or is not an archive.
    """
    found, size = [], 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                size += member.size
                _check_size(size, archive)
                parts = PurePosixPath(member.name).parts
                if member.name.startswith("/") or ".." in parts:
                    raise TaskError(
                        f"{archive.name}: hostile path {member.name!r}; expected relative ones without '..'"
                    )
                path = "/".join(parts[1:])
                if not path or _is_git(parts):  # a submodule leaves a file .git behind
                    continue
                mode = "100755" if member.mode & 0o111 else "100644"
                if member.isfile() and (handle := tar.extractfile(member)):
                    found.append((path, mode, handle.read()))
                elif member.issym():
                    found.append((path, "120000", member.linkname.encode()))
    except (tarfile.TarError, EOFError, OSError) as e:
        raise TaskError(f"{archive.name}: not a readable source archive: {e}") from e
    return found


def read_directory(root: Path) -> list[File]:
    """Return the files of a source tree, without version control, environments and caches.

    Raises:
        TaskError: there is no such directory, or it is larger than 500 MB.
    """
    if not root.is_dir():
        raise TaskError(f'{root}: no such directory; `source = "path:…"` is relative to repository.toml')
    files, size = [], 0
    for folder in walk(root.resolve(), on_skip=lambda _: None):
        for name in [n for n in folder.folders if n in _SKIP or os.path.exists(root / folder.path(n) / "pyvenv.cfg")]:
            folder.folders.remove(name)
        for name in folder.others:
            if file := _read(root / folder.path(name), folder.path(name)):
                files.append(file)
                size += len(file[2])
                _check_size(size, root)
    return files


def _read(path: Path, name: str) -> File | None:
    try:
        info = path.lstat()
    except OSError as e:  # gone, or a name longer than the system takes
        raise TaskError(f"{name[:80]}: {e.strerror or e}") from e
    if stat.S_ISLNK(info.st_mode):
        return name, "120000", os.fsencode(os.readlink(path))
    if not stat.S_ISREG(info.st_mode) or name.endswith(".pyc") or _is_git([path.name]):
        return None
    _check_size(info.st_size, path)
    try:
        return name, "100755" if info.st_mode & 0o111 else "100644", read_regular(path, MAX_SOURCE_BYTES)
    except OSError as e:
        raise TaskError(f"{path}: {e.strerror or e}") from e


def _is_git(parts: Sequence[str]) -> bool:
    """Whether a path has a part `.git`, which git refuses in a tree."""
    return any(part.lower() == ".git" for part in parts)


def _check_size(size: int, where: Path) -> None:
    if size > MAX_SOURCE_BYTES:
        raise TaskError(f"{where}: more than {MAX_SOURCE_BYTES:,} bytes of source; expected the source of one library")
