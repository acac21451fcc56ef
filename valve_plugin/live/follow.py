"""Following another agent by its hooks: one event when a prompt begins, one when its answer ends; then the attempt.

Claude Code starts a process for each event. The first keeps the starting tree on this machine; the second takes the
diff, and grades and records it in the background, so that nobody waits for the check. A prompt that changed no file is
not recorded: it may have been a question.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from valve_plugin import files
from valve_plugin.bank import ledger
from valve_plugin.bank.identity import find_bank
from valve_plugin.bank.local import local_store
from valve_plugin.checkout import find
from valve_plugin.codec import convert, digest, plain
from valve_plugin.errors import ValveError
from valve_plugin.live.context import EMPTY, MAX_BYTES, notes, read_event
from valve_plugin.live.trees import Base, Trees
from valve_plugin.paths import BANK_NAME
from valve_plugin.records import Context

if TYPE_CHECKING:
    from valve_plugin.agents.adapter import Messages

_STATE = "prompt.json"
_MAX_BYTES = 50_000_000
"""Largest part of a transcript, and largest state, that is read."""
_STALE_SECONDS = 86_400
"""Age from which the tree of a prompt whose answer never ended is removed."""
_TRANSCRIPT_SECONDS = 3.0
"""How long to wait for the answer's end in a transcript, which is written after the hook has begun."""
_PERSONS_FILES = (".claude/settings.local.json",)
"""What the agent itself writes about the person; never part of a tree."""


def main(options: Sequence[str]) -> None:
    """Act on the event on stdin, as `valve attempts record` with these options does; never fail.

    A person waits for it with each prompt and answer, so it runs without the packages of the command line.
    """
    given = dict(zip(options[::2], options[1::2], strict=True))
    with suppress(Exception):
        follow(sys.stdin.buffer.read(MAX_BYTES + 1), given.get("--check", ""), given.get("--bank", ""))


def follow(raw: bytes, check: str, bank: str = "") -> None:
    """Act on a hook's event: capture, or record what was captured. Says nothing; without a bank nothing is done.

    Raises:
        ValveError: the directory cannot be captured, or the attempt cannot be kept.
        ValueError, KeyError, TypeError: it is no event of Claude Code.
        OSError: files cannot be read or written.
    """
    event = read_event(raw)
    cwd = Path(event["cwd"]).resolve()
    os.chdir(cwd)
    bank_dir = find_bank(bank, find(cwd)).resolve()
    if not (bank_dir / ledger.FILE_NAME).exists():
        return
    folders, session = local_store(bank_dir).dir / "sessions", digest(str(event["session_id"]))[:16]
    if event["hook_event_name"] == "UserPromptSubmit":
        # Remove trees of prompts that were given up: earlier ones of this session, and old ones of others
        for folder in folders.glob("*"):
            with suppress(OSError):
                waits = (folder / _STATE).exists() and folder.name.startswith(session)
                if waits or time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
        folder = folders / f"{session}-{os.urandom(4).hex()}"
        size = 0
        with suppress(OSError, KeyError, TypeError):
            size = os.stat(event["transcript_path"]).st_size
        begin(str(event["prompt"]), bank_dir, folder, size)
    elif event["hook_event_name"] == "Stop":
        for folder in folders.glob(f"{session}-*"):
            if (work := take(folder)) and not os.fork():
                _record_in_background(work, event, bank_dir, check)


class Work(NamedTuple):
    """What an agent did for a prompt, before it is graded."""

    prompt: str
    context: Context
    base: Base
    end: str
    """The final tree."""
    started: float
    """Monotonic time, in seconds."""
    transcript_at: int
    """Size of the transcript at the start, in bytes."""
    folder: Path


def begin(prompt: str, bank_dir: Path, folder: Path, transcript_at: int = 0) -> Context:
    """Keep the tree of the current directory in a new private folder; return the context of the prompt.

    Raises:
        ValveError: the directory cannot be captured.
    """
    files.make_private_dir(folder)
    cwd, context = Path.cwd(), EMPTY
    root = find(cwd).root
    with suppress(ValveError):
        context = notes(bank_dir, prompt)
    trees = Trees(root, folder, [bank_dir, root / BANK_NAME, cwd / BANK_NAME, *(root / f for f in _PERSONS_FILES)])
    state = {
        "prompt": prompt,
        "cwd": str(cwd),
        "tree": trees.capture(),
        "trees": trees.saved(),
        "context": plain(context),
        "transcript_at": transcript_at,
        "started": time.monotonic(),
    }
    files.write_atomic(folder / _STATE, json.dumps(state).encode())
    if context.items:
        local_store(bank_dir).count_use(context)
    return context


def take(folder: Path) -> Work | None:
    """Return what changed since `begin`; None, and the folder is removed, if nothing did. Only once for each folder.

    Raises:
        ValveError: the directory cannot be captured.
    """
    taken = folder / "taken.json"
    try:
        (folder / _STATE).rename(taken)  # of two events at once, one records
    except FileNotFoundError:
        return None
    state = json.loads(files.read_regular(taken, _MAX_BYTES))
    base = Base(Trees.resumed(state["trees"]), state["tree"], Path(state["cwd"]))
    end = base.trees.capture()
    if end == base.tree:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    context = convert(state["context"], Context, where=_STATE)
    return Work(state["prompt"], context, base, end, state["started"], state["transcript_at"], folder)


def keep(work: Work, messages: Messages, info: Mapping[str, Any], bank_dir: Path, check: str) -> None:
    """Grade and record an attempt, and remove its folder.

    `info` holds `agent`, and `model` and `calls` if they are known. Without a check it is not graded.
    """
    from valve_plugin.config import Settings, load
    from valve_plugin.live.check import Check
    from valve_plugin.live.record import Run, record
    from valve_plugin.redact import gather
    from valve_plugin.sandbox import scratch

    # The bank's settings; what runs a command comes from the hook's command line alone
    settings = Settings()
    with suppress(ValveError):
        settings = load(bank_dir)
    learn = "queue" if settings.learn == "inline" else settings.learn  # judging calls models and runs code
    settings = replace(settings, check=check, attempts=1, learn=learn)
    run = Run(
        settings=settings,
        bank_dir=bank_dir,
        local=local_store(bank_dir),
        say=lambda line: None,
        task=work.prompt,
        context=work.context,
        scratch=scratch.private_folder("valve-run-"),
        base=work.base,
        check=Check(settings, work.base) if check else None,
        notes=list(work.base.trees.notes),
        secrets=gather(os.environ, work.base.trees.root),
        started=work.started,
    )
    asked: Messages = [{"role": "system", "content": work.context.text}, {"role": "user", "content": work.prompt}]
    result = {"exit_status": "Submitted", "api_calls": info.get("calls", 0)}
    trajectory = {"messages": asked + messages, "info": dict(info)}
    try:
        record(run, trajectory, work.end, result, ("submitted", ""), str(info.get("model", "")))
    finally:
        run.scratch.cleanup()
        shutil.rmtree(work.folder, ignore_errors=True)


def _record_in_background(work: Work, event: dict[str, Any], bank_dir: Path, check: str) -> None:
    """Record in this forked process, which belongs to no session, and end it."""
    from valve_plugin.agents.claude import Claude, has_answered, model_calls

    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        late = time.monotonic() + _TRANSCRIPT_SECONDS
        while not has_answered(transcript := _transcript(event, work.transcript_at)) and time.monotonic() < late:
            time.sleep(0.1)
        model, calls = model_calls(transcript)
        info = {"agent": "claude", "model": model, "calls": calls}
        keep(work, Claude().messages(transcript), info, bank_dir, check)
    finally:
        os._exit(0)


def _transcript(event: dict[str, Any], start: int) -> str:
    try:
        with open(event["transcript_path"], "rb") as f:
            f.seek(start)
            return f.read(_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, KeyError, TypeError):
        return ""
