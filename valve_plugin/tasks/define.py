"""From a source tree to a repository.toml: a snapshot of the source, and an environment its tests run in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from valve_plugin.codec import digest, digest_bytes
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.rollouts.foreign import beneath, new_file, remove
from valve_plugin.rollouts.slots import slot
from valve_plugin.shell_words import quote
from valve_plugin.tasks import environment, source
from valve_plugin.tasks.project import PYTEST, Project, examine, normalize, requirement_name, wanted
from valve_plugin.tasks.repository import Repository
from valve_plugin.tasks.source import File
from valve_plugin.words import plural

Say = Callable[[str], None]

CPU_SECONDS = 300
"""Limit of a test run before it is known how long the tests take."""
# What only makes sense in the project's own set-up is switched off: options of plugins that are not installed,
# coverage, doctests of everything; warnings as errors, which newer versions of anything trip over.
PYTEST_ARGS = ("-o", "addopts=", "-o", "required_plugins=", "-o", "filterwarnings=")
_IGNORE = "--ignore="
_SNAPSHOT, _HALF = "source-", ".source-half"


def read_source(given: str, say: Say = lambda _: None) -> list[File]:
    """Return the files of a source tree, a checkout's working tree, or `pypi:NAME==VERSION`.

    Raises:
        TaskError: nothing there.
        InfrastructureError: git, pip or the network failed.
    """
    if given.startswith("pypi:"):
        say(f"downloading the source archive of {given.removeprefix('pypi:')}")
        with slot() as (_, scratch):
            python = environment.find_python("")
            return source.from_archive(source.download(python, given.removeprefix("pypi:"), scratch))
    root = Path(given).resolve()
    ignored = _ignored(root)
    return [
        file for file in source.from_directory(root) if file[0] not in ignored and not file[0].startswith(".valve/")
    ]


def read_head(root: Path, commit: str) -> list[File]:
    """Return the files of a checkout's commit, with the generated modules that lie in its working tree."""
    from valve_plugin.tasks import history

    files = history.files_at(history.git_dir(root), commit)
    there = {path for path, _, _ in files}
    made = [file for file in read_source(str(root)) if file[0].endswith("version.py") and file[0] not in there]
    return files + made


def define(
    name: str,
    files: Sequence[File],
    out: Path,
    *,
    python: str = "",
    requirements: Sequence[str] = (),
    ignored: Sequence[str] = (),
    known: Repository | None = None,
    say: Say = lambda _: None,
) -> Repository:
    """Write a snapshot of the source into `out` and return the definition of a repository that is tested from it.

    Args:
        name: what rows will call it.
        python: an existing virtual environment, or its interpreter; empty: one is made from the project's metadata.
        requirements: what the tests need beyond what is found.
        ignored: files and directories of tests that are not run.
        known: an earlier answer, given again where it still holds.

    Raises:
        TaskError: there are no tests, none of that name to ignore, or the environment has no pytest.
        InfrastructureError: the requirements cannot be installed.
    """
    contents, project = examined(name, files)
    say(f"source in {' and '.join(project.source_roots)}, tests in {' and '.join(project.test_roots)}")
    left_out = _ignoring(ignored, contents)
    where = _snapshot(out, [*files, *_metadata(project, contents)])
    venv = str(_existing(python)) if python else ""
    if known and _still_holds(known, name, where, venv, requirements, left_out):
        return known
    base = Repository(
        name=name,
        source=f"path:{where}",
        source_roots=project.source_roots,
        test_roots=project.test_roots,
        pytest_args=(*PYTEST_ARGS, *_import_mode(contents), *left_out),
        cpu_seconds=CPU_SECONDS,
    )
    if venv:
        return replace(base, environment=venv)
    run = {path: content for path, content in contents.items() if not _is_under(path, ignored)}
    needed, missing = wanted(project, run)
    if missing:
        say(f"the tests import {', '.join(missing)}, and nothing says which package that is; --with PACKAGE adds one")
    interpreter = environment.find_python("")
    pins = resolve(interpreter, [*project.runtime, *requirements], needed, say)
    minor = ".".join(environment.version(interpreter).split(".")[:2])
    return replace(base, python=minor, requirements=_without(pins, project.name))


def examined(name: str, files: Sequence[File]) -> tuple[dict[str, bytes], Project]:
    """Return the contents of the files, links left out, and what they say of the project.

    Raises:
        TaskError: there are no tests.
    """
    contents = {path: content for path, mode, content in files if mode != "120000"}
    project = examine(contents)
    if not project.test_roots:
        raise TaskError(f"{name}: no test file found; expected a directory tests/ or files called test_*.py")
    return contents, project


def define_image(name: str, image: str, files: Sequence[File]) -> Repository:
    """Return the definition of a repository that is tested in a container image, where everything is installed.

    Raises:
        TaskError: its /testbed has no tests.
    """
    contents, project = examined(f"{image}: /testbed", files)
    return Repository(
        name=name,
        source=f"image:{image}",
        source_roots=project.source_roots,
        test_roots=project.test_roots,
        pytest_args=(*PYTEST_ARGS, *_import_mode(contents)),
        cpu_seconds=CPU_SECONDS,
    )


def resolve(python: Path, runtime: Sequence[str], needed: Sequence[str], say: Say) -> tuple[str, ...]:
    """Return everything to install, pinned.

    The library's own requirements must resolve. Of what its tests need, versions are given up first, then, one by
    one, what cannot be had.
    """
    with slot() as (_, scratch):
        say("making an environment to resolve requirements with")
        interpreter = environment.create(scratch / "venv", python, [], lambda _: None)
        say(f"resolving {plural(len(runtime) + len(needed), 'requirement')}")
        tries = [list(needed), [PYTEST, *(requirement_name(r) for r in needed)]]
        for attempt in tries:
            try:
                return _resolved(interpreter, [*runtime, *attempt])
            except InfrastructureError as e:
                error = e
                how = "in any version" if attempt is tries[0] else "one by one"
                say(f"they cannot be had together; trying them {how}")
        kept = ["pytest"]  # of any version, if it must be
        for name in (n for n in tries[1] if requirement_name(n) != "pytest"):
            try:
                _resolved(interpreter, [*runtime, *kept, name])
                kept.append(name)
            except InfrastructureError:
                say(f"{name} cannot be installed; tests that need it are left out")
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
        raise TaskError(f"--ignore {missing[0]}: nothing there; expected a path of the source tree, like tests/slow")
    return [_IGNORE + word for word in words]


def _is_under(path: str, folders: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _resolved(python: Path, requirements: Sequence[str]) -> tuple[str, ...]:
    with slot() as (_, scratch):
        report = scratch / "report.json"
        options = ["--dry-run", "--ignore-installed", "--prefer-binary", "--report", str(report)]
        environment.pip(python, "install", *options, *requirements)
        installed = json.loads(report.read_text())["install"]
    return tuple(sorted(f"{p['metadata']['name']}=={p['metadata']['version']}" for p in installed))


def _without(pins: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(pin for pin in pins if requirement_name(pin) != normalize(name))


def _existing(given: str) -> Path:
    """Return the folder of a virtual environment that has pytest, never resolving its interpreter's link."""
    path = Path(given).absolute()
    venv = path if (path / "pyvenv.cfg").exists() else path.parent.parent
    python = venv / "bin" / "python"
    if not (venv / "pyvenv.cfg").exists() or not python.exists():
        raise TaskError(f"--python {given}: expected a virtual environment, like .venv, or its .venv/bin/python")
    done = environment.runs(python, "import pytest")
    if done is None or done.returncode:
        raise TaskError(f"--python {given}: it has no pytest; {quote(str(python))} -m pip install pytest")
    return venv


def _snapshot(out: Path, files: Sequence[File]) -> Path:
    """Write the files below `out`, in a folder named by their content; older snapshots are removed."""
    key = digest(sorted([path, mode, digest_bytes(content)] for path, mode, content in files))[:12]
    where = out.resolve() / f"{_SNAPSHOT}{key}"
    if not where.exists():
        half = where.with_name(_HALF)
        remove(half)  # left by a run that was killed
        half.mkdir(parents=True)
        for path, mode, content in files:
            _write(half, path, mode, content)
        half.rename(where)
    for old in out.glob(f"{_SNAPSHOT}*"):
        if old.name != where.name:
            remove(old)
    return where


def _write(root: Path, path: str, mode: str, content: bytes) -> None:
    *folders, name = path.split("/")
    try:
        with beneath(root, folders, make=True) as fd:
            if mode == "120000":
                os.symlink(os.fsdecode(content), name, dir_fd=fd)
                return
            with new_file(fd, name, int(mode[-3:], 8)) as file:
                file.write(content)
    except (FileExistsError, NotADirectoryError) as e:
        raise TaskError(
            f"{path}: a link or another file of its tree is in its way; expected a tree that git can write"
        ) from e


def _metadata(project: Project, files: dict[str, bytes]) -> list[File]:
    """Return what an editable install would leave beside the source, for libraries that ask for their own version."""
    root = project.source_roots[0]
    there = any(PurePosixPath(path).suffix == ".egg-info" for p in files for path in PurePosixPath(p).parents)
    if not project.name or there:
        return []
    folder = f"{project.name.replace('-', '_')}.egg-info"
    info = f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version or '0'}\n"
    lines = [
        line
        for group, points in project.entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), "")
    ]
    made = {"PKG-INFO": info, "entry_points.txt": "\n".join(lines)}
    prefix = "" if root == "." else f"{root}/"
    return [(f"{prefix}{folder}/{name}", "100644", text.encode()) for name, text in made.items()]


def _import_mode(files: dict[str, bytes]) -> tuple[str, ...]:
    config = b"\n".join(files.get(name, b"") for name in ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg"))
    return ("--import-mode=importlib",) if b"--import-mode=importlib" in config else ()


def _ignored(root: Path) -> frozenset[str]:
    """Return what git ignores in a checkout, but for generated modules that the source imports (`_version.py`)."""
    if not (root / ".git").exists():
        return frozenset()
    from valve_plugin.tasks import history
    from valve_plugin.tasks.git import LONGEST, git, ignore_file

    command = ["-c", f"core.excludesFile={ignore_file()}", "ls-files", "-z", "--others", "--ignored"]
    listed = git(*command, "--exclude-standard", cwd=root, env=history.trusting(root), seconds=LONGEST)
    paths = [os.fsdecode(path) for path in listed.split(b"\0") if path]
    return frozenset(p for p in paths if not PurePosixPath(p).name.endswith("version.py"))
