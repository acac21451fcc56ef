"""Shelling out the panel run and reading what it prints, line by line."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from valve_plugin.codec import canonical, plain
from valve_plugin.config import Settings
from valve_plugin.errors import BudgetError, InfrastructureError, ValveError
from valve_plugin.gate.guard import Observe
from valve_plugin.gate.panel import Line, Told, read
from valve_plugin.records import Proposal
from valve_plugin.rollouts import forks
from valve_plugin.rollouts.processes import VALVE, kill_tree, python

_GRACE_SECONDS = 10.0


def stream(
    settings: Settings,
    bank_dir: Path,
    proposal: Proposal | None,
    *,
    observe: Observe = lambda name, data: None,
    confirm: bool = False,
) -> Generator[Line, None, None]:
    """Run `valve panel run` and yield its lines. Closing the generator stops the run and all its rollouts.

    Args:
        settings: complete settings of the run; they travel in a file without a name, since they may hold keys. With
            `early_stop`, nothing starts after the rollouts that decide about the proposal.
        bank_dir: the bank.
        proposal: what to measure; None: the current bank.
        observe: told what happens between them.
        confirm: measure it on the rollouts after those of its first measurement.

    Raises:
        BudgetError: the run stopped at a limit of the settings.
        InfrastructureError: the run ended with that kind of error, or died.
        ValveError: the run was used wrongly; the message is its own.
    """
    with ExitStack() as files:
        errors = files.enter_context(tempfile.TemporaryFile())
        settings_file = files.enter_context(_nameless(canonical(plain(settings))))
        what, proposal_file = ["--current"], None
        if proposal is not None:
            proposal_file = files.enter_context(_nameless(canonical(proposal)))
            what = ["--proposal", _path(proposal_file)]
        command = python(VALVE, "panel", "run", "--bank", str(bank_dir), *what, "--settings", _path(settings_file))
        command += [
            *["--confirm"] * confirm,
            *["--until-decided"] * (proposal is not None and settings.early_stop),
            "--parent",
            str(os.getpid()),
            "--fork-server",
            forks.lend(),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=[file.fileno() for file in (settings_file, proposal_file) if file is not None],
            start_new_session=True,  # Ctrl-C reaches us alone, and we end it
        )
        try:
            assert process.stdout is not None
            for raw in process.stdout:
                line = read(raw)
                if isinstance(line, Told):
                    observe(line.event, line.data)
                else:
                    yield line
            _check(process.wait(), errors)
        finally:
            _stop(process)


def _nameless(data: bytes) -> IO[bytes]:
    """Return an open file that has no name, so that it is gone with the processes that hold it, whatever ends them."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(data)
    file.seek(0)
    return file


def _path(file: IO[bytes]) -> str:
    """The name under which a process that inherits the file opens it."""
    return f"/dev/fd/{file.fileno()}"


def _check(code: int, errors: IO[bytes]) -> None:
    """Turn a failed panel run into the error it reported."""
    if code == 0:
        return
    errors.seek(0)
    said = errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
    if code == BudgetError.exit_code:
        raise BudgetError(said[-1].removeprefix("valve: ") if said else "the budget is used up")
    if code == InfrastructureError.exit_code and said:
        raise InfrastructureError(said[-1].removeprefix("valve: "))
    message = f"the panel run failed (exit status {code}): {said[-1] if said else 'it said nothing'}"
    raise ValveError(message) if code == ValveError.exit_code else InfrastructureError(message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the run; it gets a moment to end its rollouts itself."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
        return
    kill_tree(process.pid)
    process.wait()
