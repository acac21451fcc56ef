"""The virtual environment that tests run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from valve_plugin.bank.checkout import text_of
from valve_plugin.codec import digest
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.rollouts import lifeline
from valve_plugin.rollouts.slots import slot
from valve_plugin.words import plural

_DONE = "valve-complete"
_ANSWERS = 60.0  # seconds; a version manager's shim may wait for something, and more than a minute is no answer


def find_python(versions: str) -> Path:
    """Return an interpreter of the wanted minor versions: our own if it fits, else one on PATH.

    Args:
        versions: `3.10-3.13`, `3.12`, or empty for any.

    Raises:
        TaskError: none is installed.
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
        if found and version(Path(found)).startswith(f"3.{minor}."):  # a version manager's shim may lead nowhere
            return Path(os.path.realpath(found))
    raise TaskError(
        f"the tests need Python {versions}, this is {sys.version.split()[0]} and PATH has no other; "
        f"install one of them, for example python3.{wanted[-1]}"
    )


def create(venv: Path, python: Path, requirements: Sequence[str], say: Callable[[str], None]) -> Path:
    """Make the environment unless it is complete; return its interpreter.

    Raises:
        InfrastructureError: the package index cannot be reached or has no such package.
    """
    done = venv / _DONE
    interpreter = venv / "bin" / "python"
    wanted = digest([str(python), list(requirements)])
    if done.exists() and text_of(done) == wanted:
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
    """Run pip of an environment, quietly, with the user's own index configuration."""
    options = ["--disable-pip-version-check", "--no-input", "-q"]
    _run([str(python), "-m", "pip", command, *options, *arguments], f"pip {command}")


def version(python: Path) -> str:
    """Return the version of an interpreter, like 3.11.7; empty when it does not run."""
    code = "import platform; print(platform.python_version())"
    done = runs(python, code)
    return done.stdout.decode("utf-8", "replace").strip() if done else ""


def runs(python: Path, code: str) -> subprocess.CompletedProcess[bytes] | None:
    """Return what an interpreter that is not ours came to with some code; None: it does not start, or answer."""
    try:
        return lifeline.run([str(python), "-I", "-c", code], seconds=_ANSWERS)
    except subprocess.TimeoutExpired:
        return None


def base_prefix(venv: Path) -> Path:
    """Return the prefix of the interpreter a virtual environment was made from."""
    for line in text_of(venv / "pyvenv.cfg").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return Path(value.strip()).parent
    raise InfrastructureError(f"{venv}/pyvenv.cfg names no home; remove {venv} and prepare again")


def _run(command: list[str], what: str) -> None:
    # The environment of this process may be a virtual one itself; what it exports must not leak into the new one.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "__PYVENV"))}
    with slot() as (_, scratch):  # what pip leaves in its temporary folders when it is killed, the next run removes
        done = lifeline.run(command, env={**env, "TMPDIR": str(scratch)})
    if done.returncode:
        said = (done.stderr + done.stdout).decode("utf-8", "replace")
        lines = [x for x in said.splitlines() if not x.startswith("WARNING")]
        raise InfrastructureError(f"cannot {what}: {' / '.join(lines[-4:])[-600:]}")
