"""Virtual environments for tests: finding an interpreter, making an environment, running pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from valve_plugin.codec import digest
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.files import read_text
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.supervisor import UMASK, run_child
from valve_plugin.words import plural

_DONE = "valve-complete"
_ANSWER_SECONDS = 60.0  # a version manager's shim may hang


def find_python(versions: str) -> Path:
    """Return an interpreter of a wanted minor version: the one of this process if it fits, else one on PATH.

    Args:
        versions: `3.10-3.13`, `3.12`, or an empty string for any version.

    Raises:
        TaskError: there is none.
    """
    own = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    if not versions:
        return own
    low, _, high = versions.partition("-")
    wanted = range(int(low[2:]), int((high or low)[2:]) + 1)
    if sys.version_info.minor in wanted:
        return own
    for minor in reversed(wanted):
        found = shutil.which(f"python3.{minor}")
        if found and version(Path(found)).startswith(f"3.{minor}."):  # a version manager's shim may not work
            return Path(os.path.realpath(found))
    raise TaskError(
        f"the tests need Python {versions}, but this is {sys.version.split()[0]} and PATH has no other; "
        f"install one, for example python3.{wanted[-1]}"
    )


def create(venv: Path, python: Path, requirements: Sequence[str], say: Callable[[str], None]) -> Path:
    """Make the environment unless it exists with these requirements; return its interpreter.

    Raises:
        InfrastructureError: the package index cannot be reached or has no such package.
    """
    done = venv / _DONE
    interpreter = venv / "bin" / "python"
    wanted = digest([str(python), list(requirements)])
    if done.exists() and read_text(done) == wanted:
        return interpreter
    shutil.rmtree(venv, ignore_errors=True)  # half made by a run that was killed
    say("making the test environment")
    _run([str(python), "-m", "venv", str(venv)], "make a virtual environment")
    if requirements:
        say(f"installing {plural(len(requirements), 'package')} into it")
        pip(interpreter, "install", "--prefer-binary", *requirements)
    done.write_text(wanted)
    return interpreter


def pip(python: Path, command: str, *arguments: str) -> None:
    """Run an environment's pip quietly, with the user's index configuration."""
    options = ["--disable-pip-version-check", "--no-input", "-q"]
    _run([str(python), "-m", "pip", command, *options, *arguments], f"pip {command}")


def version(python: Path) -> str:
    """Return the version of an interpreter, like 3.11.7, or "" if it does not run."""
    done = run_code(python, "import platform; print(platform.python_version())")
    return done.stdout.decode("utf-8", "replace").strip() if done else ""


def run_code(python: Path, code: str) -> subprocess.CompletedProcess[bytes] | None:
    """Run code with another interpreter; return the completed process, or None if it takes over a minute."""
    try:
        return run_child([str(python), "-I", "-c", code], seconds=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def base_prefix(venv: Path) -> Path:
    """Return the prefix of the interpreter from which a virtual environment was made."""
    if home := setting(venv, "home"):
        return Path(home).parent
    raise InfrastructureError(f"{venv}/pyvenv.cfg names no home; remove {venv} and prepare again")


def setting(venv: Path, *names: str) -> str:
    """Return what a virtual environment says of itself under the first of these names that it has, or ""."""
    lines = (line.partition("=") for line in read_text(venv / "pyvenv.cfg").splitlines())
    found = {key.strip(): value.strip() for key, _, value in lines}
    return next((found[name] for name in names if name in found), "")


def _run(command: list[str], what: str) -> None:
    # This process may run in a virtual environment itself; its variables must not affect the new one.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "__PYVENV"))}
    with scratch_folder() as scratch:  # the next run removes temporary files of a killed pip
        done = run_child(command, env={**env, "TMPDIR": str(scratch)}, umask=UMASK)
    if done.returncode:
        output = (done.stderr + done.stdout).decode("utf-8", "replace")
        lines = [line for line in output.splitlines() if not line.startswith("WARNING")]
        raise InfrastructureError(f"cannot {what}: {' / '.join(lines[-4:])[-600:]}")
