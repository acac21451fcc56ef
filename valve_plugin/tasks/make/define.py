"""Defining a repository from a source tree: a snapshot of the source and the requirements of its tests."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin.codec import digest, digest_bytes
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.sandbox import environment
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import MAX_SECONDS, File, find_git_dir, git, read_files, trust_checkout, user_ignore_file
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.trees import create_file, open_below, remove_tree
from valve_plugin.tasks import repository
from valve_plugin.tasks.issue_text import headline, pytest_output
from valve_plugin.tasks.make.project import (
    PACKAGES,
    UNWANTED_PLUGINS,
    Project,
    examine,
    normalize_name,
    required_packages,
    requirement_name,
)
from valve_plugin.tasks.repository import PreparedRepository, Repository, prepare
from valve_plugin.words import plural, quote

Say = Callable[[str], None]

CPU_SECONDS = 300
"""CPU limit of a test run until it is known how long the tests take."""
# Switches off what works only in the project's own set-up: options of missing plugins, coverage, doctests of all
# modules, and warnings as errors (newer versions of other packages cause warnings).
PYTEST_ARGS = ("-o", "addopts=", "-o", "required_plugins=", "-o", "filterwarnings=")
_IGNORE = "--ignore="
_LEFTOVER = re.compile(r"(^|/)[^/]+\.(egg-info|dist-info|egg)/|^(build/(lib|bdist|temp)|dist/[^/]+\.(whl|tar\.gz)$)")
_LOOKS_UP = re.compile(rb"importlib[._]metadata|pkg_resources|entry_points")
_NOT_COLLECTED = re.compile(
    r"^_* ?(ERROR collecting .*?|ImportError while loading conftest .*?)\.?(?: _+)?$", re.MULTILINE
)
_SNAPSHOT, _HALF = "source-", ".source-half"


class SuiteNeeds(NamedTuple):
    """What a person says about the tests of a repository, beside its metadata."""

    python: str = ""
    """An existing virtual environment or its interpreter; if empty, requirements come from the project's metadata."""
    requirements: Sequence[str] = ()
    """Additional requirements."""
    ignored: Sequence[str] = ()
    """Files and directories that are not run."""
    complete: Sandbox | None = None
    """Runs pytest to find which declared requirements are missing (see `add_declared`); None adds none."""


def read_source(given: str, say: Say = lambda _: None) -> list[File]:
    """Return the files of a source tree, of a checkout's working tree, or of `pypi:NAME==VERSION`.

    Raises:
        TaskError: there is no such source.
        InfrastructureError: git, pip or the network failed.
    """
    if given.startswith("pypi:"):
        release = given.removeprefix("pypi:")
        found = repository.archive_hash(release, say)
        say(f"downloading the source archive of {release}, sha256 {found}")
        with scratch_folder() as scratch:
            return repository.read_archive(repository.download(environment.find_python(""), release, scratch, found))
    root = Path(given).resolve()
    ignored = _ignored(root)
    return [
        file for file in repository.read_directory(root) if file[0] not in ignored and not file[0].startswith(".valve/")
    ]


def read_head(root: Path, commit: str) -> list[File]:
    """Return the files of a checkout's commit, and the generated version modules of its working tree."""
    files = read_files(find_git_dir(root), commit)
    there = {path for path, _, _ in files}
    made = [file for file in read_source(str(root)) if file[0].endswith("version.py") and file[0] not in there]
    return files + made


def define(
    name: str,
    files: Sequence[File],
    out: Path,
    needs: SuiteNeeds = SuiteNeeds(),  # noqa: B008 (frozen)
    *,
    known: Repository | None = None,
    say: Say = lambda _: None,
) -> Repository:
    """Write a snapshot of the source into `out` and return the definition of the repository.

    Args:
        known: an earlier definition; it is returned if it is still valid.

    Raises:
        TaskError: there are no tests, an ignored path does not exist, or the environment has no pytest.
        InfrastructureError: the requirements cannot be installed.
    """
    contents, project = read_project(name, files)
    say(f"source in {' and '.join(project.source_roots)}, tests in {' and '.join(project.test_roots)}")
    left_out = _ignoring(needs.ignored, contents)
    kept = [file for file in files if not _LEFTOVER.search(file[0])]
    where = _snapshot(out, [*kept, *_metadata(project, contents)])
    venv = str(_existing(needs.python)) if needs.python else ""
    if known and _still_holds(known, name, where, venv, needs.requirements, left_out):
        return known
    base = _definition(name, f"path:{where}", project, contents, left_out)
    if venv:
        return replace(base, environment=venv)
    run = {
        path: content
        for path, content in contents.items()
        if not any(PurePosixPath(path).is_relative_to(folder) for folder in needs.ignored)
    }
    wanted, missing = required_packages(project, run)
    if missing:
        say(f"the tests import {', '.join(missing)}; no known package has that; add --with PACKAGE if it is needed")
    interpreter = environment.find_python("")
    pins = resolve(interpreter, [*project.runtime, *needs.requirements], wanted, say)
    minor = ".".join(environment.version(interpreter).split(".")[:2])
    return replace(base, python=minor, requirements=_without_own(project, pins))


def _without_own(project: Project, pins: Iterable[str]) -> tuple[str, ...]:
    return tuple(pin for pin in pins if requirement_name(pin) != normalize_name(project.name))


def read_project(name: str, files: Sequence[File]) -> tuple[dict[str, bytes], Project]:
    """Return (contents by path, without links; the project's metadata and layout).

    Raises:
        TaskError: there are no tests.
    """
    contents = {path: content for path, mode, content in files if mode != "120000"}
    project = examine(contents)
    if not project.test_roots:
        raise TaskError(f"{name}: no test file found; expected a directory tests/ or files called test_*.py")
    return contents, project


def define_image(name: str, image: str, files: Sequence[File]) -> Repository:
    """Return the definition of a repository whose tests run in a container image that has all requirements.

    Raises:
        TaskError: its /testbed has no tests.
    """
    contents, project = read_project(f"{image}: /testbed", files)
    return _definition(name, f"image:{image}", project, contents)


def _definition(
    name: str, source: str, project: Project, contents: dict[str, bytes], left_out: Sequence[str] = ()
) -> Repository:
    config = b"\n".join(contents.get(file, b"") for file in ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg"))
    mode = ("--import-mode=importlib",) if b"--import-mode=importlib" in config else ()
    kept = tuple(root for root in project.test_roots if _IGNORE + root not in left_out)  # pytest runs what is named
    return Repository(
        name=name,
        source=source,
        source_roots=project.source_roots,
        test_roots=kept or project.test_roots,
        pytest_args=(*PYTEST_ARGS, *mode, *left_out),
        cpu_seconds=CPU_SECONDS,
    )


def add_declared(repository: Repository, sandbox: Sandbox, say: Say) -> Repository:
    """Return the definition with more declared requirements: sets of them one by one, until pytest collects all tests.

    Those that declare a package which is said to be missing come first, then those for tests.

    Raises:
        InfrastructureError: an environment cannot be made.
    """
    prepared = prepare(repository, say)
    project = examine({path: content for path, _, content in read_files(prepared.store, prepared.base)})
    errors, left = collection_errors(prepared, sandbox), dict(project.sets)
    interpreter = environment.find_python(repository.python)
    while errors and left:
        label = min(left, key=lambda one: _rank(one, left[one], errors[0]))
        there = {requirement_name(pin) for pin in repository.requirements} | UNWANTED_PLUGINS
        more = [line for line in left.pop(label) if requirement_name(line) not in there]
        if not more:
            continue
        say(f"{errors[0]}; adding {label}: {', '.join(map(requirement_name, more))}")
        try:
            pins = _without_own(project, resolve(interpreter, repository.requirements, more, say))
        except InfrastructureError as e:
            say(f"{label} cannot be installed: {e}")
            continue
        bigger = replace(repository, requirements=pins)
        tried = prepare(bigger, say)
        found = collection_errors(tried, sandbox)
        helped = errors[0] not in found
        remove_tree(Path((prepared if helped else tried).folder))
        if helped:
            repository, prepared, errors = bigger, tried, found
    say(f"still: {errors[0]}" if errors else "pytest collects all tests")
    prepare(repository, say)
    return repository


def _rank(label: str, lines: Sequence[str], error: str) -> tuple[bool, bool, bool]:
    """Return the order of a set of requirements: first what an error names, then what is for tests."""
    module = error.partition("No module named '")[2].partition("'")[0].partition(".")[0]
    names = {normalize_name(PACKAGES.get(module, module)), normalize_name(module)}
    return names.isdisjoint(map(requirement_name, lines)), "test" not in label, "dev" not in label


def collection_errors(prepared: PreparedRepository, sandbox: Sandbox) -> list[str]:
    """Return why pytest cannot collect the original source's tests, a line for each file, or an empty list."""
    options = ("--collect-only", "--continue-on-collection-errors")
    output = pytest_output(prepared, prepared.base, [*options, *prepared.repository.test_roots], sandbox)
    _, *parts = _NOT_COLLECTED.split(output)
    return [f"{what}: {headline(text)}" for what, text in zip(parts[::2], parts[1::2], strict=True)]


def resolve(python: Path, runtime: Sequence[str], needed: Sequence[str], say: Say) -> tuple[str, ...]:
    """Return all packages to install, as pinned requirements.

    The library's own requirements must resolve. If those of its tests do not, their version bounds are dropped, and
    the packages that cannot be installed.
    """
    with scratch_folder() as scratch:
        say("making an environment in which to resolve requirements")
        interpreter = environment.create(scratch / "venv", python, [], lambda _: None)
        say(f"resolving {plural(len(runtime) + len(needed), 'requirement')}")
        try:
            return _resolved(interpreter, [*runtime, *needed])
        except InfrastructureError as e:
            error = e
            say("they cannot be installed together; trying them one by one, in any version")
        kept = ["pytest"]
        for name in (n for n in map(requirement_name, needed) if n != "pytest"):
            try:
                _resolved(interpreter, [*runtime, *kept, name])
                kept.append(name)
            except InfrastructureError:
                say(f"{name} cannot be installed; tests that need it will not pass")
        if len(kept) == 1 and len(needed) == 1:
            raise error
        return _resolved(interpreter, [*runtime, *kept])


def _still_holds(
    known: Repository, name: str, where: Path, venv: str, requirements: Iterable[str], left_out: Sequence[str]
) -> bool:
    there = {requirement_name(pin) for pin in known.requirements}
    more = {requirement_name(r) for r in requirements}
    ignoring = [word for word in known.pytest_args if word.startswith(_IGNORE)]
    same = (known.name, known.source, known.environment) == (name, f"path:{where}", venv)
    return same and more <= there and ignoring == list(left_out)


def _ignoring(paths: Sequence[str], files: Iterable[str]) -> list[str]:
    """Return pytest's arguments that leave these files and directories of the tree out."""
    there = {str(place) for path in files for place in (PurePosixPath(path), *PurePosixPath(path).parents)}
    words = [str(PurePosixPath(path)) for path in paths]
    if missing := [word for word in words if word not in there]:
        raise TaskError(f"--ignore {missing[0]}: no such path; expected one in the source tree, like tests/slow")
    return [_IGNORE + word for word in words]


def _resolved(python: Path, requirements: Sequence[str]) -> tuple[str, ...]:
    with scratch_folder() as scratch:
        report = scratch / "report.json"
        options = ["--dry-run", "--ignore-installed", "--prefer-binary", "--report", str(report)]
        environment.pip(python, "install", *options, *requirements)
        installed = json.loads(report.read_text())["install"]
    return tuple(sorted(f"{p['metadata']['name']}=={p['metadata']['version']}" for p in installed))


def _existing(given: str) -> Path:
    """Return the folder of a virtual environment with pytest, given by folder or interpreter."""
    path = Path(given).absolute()
    venv = path if (path / "pyvenv.cfg").exists() else path.parent.parent
    python = venv / "bin" / "python"
    if not (venv / "pyvenv.cfg").exists() or not python.exists():
        raise TaskError(f"--python {given}: expected a virtual environment, like .venv, or its .venv/bin/python")
    done = environment.run_code(python, "import pytest")
    if done is None or done.returncode:
        raise TaskError(f"--python {given}: pytest is missing; run: {quote(str(python))} -m pip install pytest")
    return venv


def _snapshot(out: Path, files: Sequence[File]) -> Path:
    """Write the files below `out`, in a folder named by their content; older snapshots are removed."""
    key = digest(sorted([path, mode, digest_bytes(content)] for path, mode, content in files))[:12]
    where = out.resolve() / f"{_SNAPSHOT}{key}"
    if not where.exists():
        half = where.with_name(_HALF)
        remove_tree(half)  # left by a run that was killed
        half.mkdir(parents=True)
        for path, mode, content in files:
            *folders, name = path.split("/")
            try:
                with open_below(half, folders, make=True) as fd:
                    if mode == "120000":
                        os.symlink(os.fsdecode(content), name, dir_fd=fd)
                        continue
                    with create_file(fd, name, int(mode[-3:], 8)) as file:
                        file.write(content)
            except (FileExistsError, NotADirectoryError) as e:
                raise TaskError(
                    f"{path}: another file or a link of the same tree is in the way; expected a tree that git can "
                    "check out"
                ) from e
        half.rename(where)
    for old in out.glob(f"{_SNAPSHOT}*"):
        if old.name != where.name:
            remove_tree(old)
    return where


def _metadata(project: Project, files: dict[str, bytes]) -> list[File]:
    """Return the least metadata of an editable install, for a library that looks up its own version or plugins."""
    if not project.name or not any(_LOOKS_UP.search(text) for path, text in files.items() if path.endswith(".py")):
        return []
    folder = f"{project.name.replace('-', '_')}.egg-info"
    info = f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version or '0'}\n"
    lines = [
        line
        for group, points in project.entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), "")
    ]
    built = [text for path, text in files.items() if path.endswith(".egg-info/entry_points.txt")]
    made = {"PKG-INFO": info.encode(), "entry_points.txt": built[0] if built else "\n".join(lines).encode()}
    root = project.source_roots[0]
    prefix = "" if root == "." else f"{root}/"
    return [(f"{prefix}{folder}/{name}", "100644", text) for name, text in made.items() if text]


def _ignored(root: Path) -> frozenset[str]:
    """Return the paths that git ignores in a checkout, except generated modules like `_version.py`."""
    if not (root / ".git").exists():
        return frozenset()
    command = ["-c", f"core.excludesFile={user_ignore_file()}", "ls-files", "-z", "--others", "--ignored"]
    listed = git(*command, "--exclude-standard", cwd=root, env=trust_checkout(root), seconds=MAX_SECONDS)
    paths = [os.fsdecode(path) for path in listed.split(b"\0") if path]
    return frozenset(p for p in paths if not PurePosixPath(p).name.endswith("version.py"))
