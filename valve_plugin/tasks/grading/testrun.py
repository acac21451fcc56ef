"""One run of tests in a sandbox, and reading the signed records of its harness."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from msgspec import field
from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.errors import InfrastructureError, RecordError
from valve_plugin.files import make_private_dir, write_new
from valve_plugin.paths import data_dir
from valve_plugin.records import Record
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import read_tree
from valve_plugin.sandbox.supervisor import CommandResult, ProcessLimits, Watcher
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.grading.answers import VARIANTS
from valve_plugin.tasks.grading.inspect_patch import new_modules
from valve_plugin.tasks.grading.words import WORDS
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import CONFIG_NAMES, is_protected

# Run inside the sandbox and never imported here: pytest belongs to the test environment.
_HARNESS, _PROGRAM, *_BESIDE = (
    Path(__file__).resolve().with_name(f"{name}.py") for name in ("harness", "program", "answers", "signed", "words")
)
_OPTIONS = (
    *("--assert=plain", "--color=no", "--continue-on-collection-errors", "--disable-warnings"),
    *("-p", "no:cacheprovider", "-q", "--tb=no"),
)
_RECORD = re.compile(rb"^@valve ([0-9a-f]{128}) (\{.*\})$", re.MULTILINE)
_REASON = re.compile(rb"^@reason (\{.*\})$", re.MULTILINE)
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that usually come from outside, so that neither a program nor its input is at fault."""
_FIXED = (".py", ".ini", ".toml", ".cfg")
_MAX_MOUNTS = 200
"""Files that are mounted read-only one by one."""
_ZONES = ("CET-1", "EST5", "CST6", "PST8", "JST-9", "IST-5:30")
_PHASES = ("setup", "call", "teardown")


class Asked(NamedTuple):
    """Tests that run with other inputs, too, and show what they see."""

    tests: tuple[str, ...]
    """Test ids; of functions where they run as a program."""
    files: dict[str, str]
    """What their files hold where they run as a program; none where the tree holds it, and pytest runs them."""


class TestReason(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a failed test raised."""

    __test__ = False
    test: str
    message: str
    """The exception and what it says."""
    place: str
    """File and line where it was raised."""
    line: str = ""
    """File and line of the tests that led there."""


class TestRun(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdicts of one test run, and how it ended."""

    __test__ = False
    tests: dict[str, str]
    trouble: str = ""
    """Why the run as a whole is not valid; empty if it is."""
    timed_out: bool = False
    reasons: dict[str, TestReason] = field(default_factory=dict)
    """Why tests failed, by test id; by file where its tests could not be collected. Unsigned, so only to be read."""
    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    """What tests saw; see `other_inputs.Seen`."""
    died: int | None = None
    """Exit code of pytest if tested code ended its process (-n or 128 + n for signal n), else None."""
    wall: bool = False
    """Whether the limit of wall time ended it."""
    changed: tuple[str, ...] = ()
    """Files under a test root, and test configuration, that changed while it ran, also if they were put back."""

    @property
    def died_of_signal(self) -> int:
        """The number of the signal that ended it; 0 if none did."""
        return max(0, -self.died if self.died < 0 else self.died - 128) if self.died is not None else 0

    @property
    def killed(self) -> bool:
        """Whether that signal usually comes from outside, so that neither the code nor its tests are at fault."""
        return self.died_of_signal in FROM_OUTSIDE

    @property
    def keeps(self) -> bool:
        """Whether the result depends on the tree alone, not on how busy the machine was."""
        return not self.killed and not self.wall


class Message(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One signed line of the harness; only the fields of its kind are set."""

    event: Literal["", "start", "end", "answers"] = ""
    test: str = ""
    when: Literal["", "setup", "call", "teardown", "part"] = ""
    """Phase of the test. `part` means that one of its subTests failed; there may be several."""
    outcome: str = ""
    raised: bool = False
    reruns: bool = False
    """At the start: a plugin runs failed tests again."""
    variant: str = ""
    """Of answers: the number of the run."""
    answers: tuple[str, ...] = ()
    """Places and digests of what a test saw."""
    shadows: tuple[str, ...] = ()
    """At the start: new modules of the patch that other modules have the names of."""


class HarnessReport(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the signed records of one run."""

    started: bool
    """The harness started; if not, the host is at fault."""
    ended: bool
    """pytest ended by itself."""
    tests: dict[str, str]
    """passed, failed, skipped or xfailed, by test id."""
    answers: dict[str, dict[str, str]]
    """What tests saw; see `other_inputs.Seen`."""
    tampered: str = ""
    """Why the records cannot be trusted; empty if they can."""


def run_tests(
    sandbox: Sandbox,
    workspace: Workspace,
    prepared: PreparedRepository,
    paths: Sequence[str],
    limits: ProcessLimits,
    watcher: Watcher | None = None,
    *,
    asked: Asked | None = None,
) -> TestRun:
    """Run the tests under `paths` (files, directories or test ids of the tree) and return their verdicts.

    Args:
        watcher: follows the run, which then reports its progress; see `watch.py`.
        asked: tests that run with other inputs, too; those alone.

    Raises:
        InfrastructureError: the harness did not start; no tested code has run.
    """
    root = workspace.place if sandbox.root else str(workspace.path)
    key = secrets.token_bytes(32)
    roots = prepared.repository.test_roots
    base, tree = (list(read_tree(prepared.store, commit)) for commit in (prepared.base, workspace.commit))
    fixed = [p for p in tree if is_protected(p, roots) and (workspace.path / p).is_file()]
    plan = {
        "key": key.hex(),
        "progress": watcher is not None,
        "root": root,
        "hidden": [f"{root}/{path}" for path in fixed if path.endswith(".py")],
        "new": sorted(new_modules(base, tree)),
        "packages": _packages(prepared, base),
        "paths": [str(PurePosixPath(root, r)) for r in prepared.repository.source_roots],
        "asked": asked.tests if asked else (),
        "variants": VARIANTS if sandbox.isolates else 0,  # other inputs may be names of files, or what to end
        "arguments": [*_OPTIONS, *prepared.repository.pytest_args, "--rootdir", root, *paths],
    }
    script, flags = _HARNESS, ["-s"]
    env = {"PYTHONPATH": "", "PYTHONHASHSEED": _seed(prepared, asked=asked is not None)}
    if asked and asked.files:  # started as no test is
        own = workspace.home / f"{secrets.choice(WORDS)}.py"  # the list of processes shows this name
        # On other lines each time: code may ask on which one it is called.
        own.write_bytes(b"\n" * secrets.randbelow(100) + _PROGRAM.read_bytes())
        own.chmod(0o644)  # it is read as `workspace.uid`
        script, flags = Path(workspace.own if sandbox.root else workspace.home, own.name), []
        plan |= {"tests": asked.tests, "files": asked.files}
        plan["beside"] = [str(path) for path in _BESIDE]
    if asked:
        # Files of tests, and the time zone, are as many users have them.
        env["TMPDIR"] = workspace.own if sandbox.root else str(workspace.home)
        env["TZ"] = _ZONES[_of_machine(prepared)[-1] % len(_ZONES)]
    before = _states(workspace.path, fixed)
    # Only the script puts the tree on the import path.
    done = sandbox.run(
        [str(prepared.python), *flags, str(script)],
        workspace,
        limits=limits,
        env=env,
        stdin=json.dumps(plan).encode(),
        readonly=[_HARNESS, *_BESIDE],
        readonly_tree=_mounted([p for p in fixed if not (workspace.path / p).is_symlink()]),
        watcher=watcher,
    )
    report = read_report(done.output, key)
    if not report.started:
        raise InfrastructureError(f"the test harness did not start: {_tail(done)}")
    trouble = "" if report.ended else f"the test run ended early: {_tail(done)}"
    if done.limit:
        trouble = f"the tests hit the {done.limit} limit"
    died = None if report.ended or report.tampered or done.limit else done.returncode
    return TestRun(
        tests=report.tests,
        answers=report.answers,
        trouble=report.tampered or trouble,
        timed_out=done.timed_out,
        wall=done.limit == "wall",
        died=died,
        changed=tuple(sorted(path for path, _ in before - _states(workspace.path, fixed))),
        reasons=_reasons(done.output, root),
    )


def _reasons(output: bytes, root: str) -> dict[str, TestReason]:
    """Return the reasons in a run's output; the first of each test counts."""
    found: dict[str, TestReason] = {}
    for match in _REASON.finditer(output):
        with suppress(RecordError):
            reason = codec.decode(match[1], TestReason, where="reason")
            where = {name: getattr(reason, name).removeprefix(f"{root}/") for name in ("place", "line")}
            found.setdefault(reason.test, replace(reason, **where))
    return found


def _seed(prepared: PreparedRepository, *, asked: bool = False) -> str:
    """Return the seed of the hashes of texts: the same on each machine, and another one where tests are asked."""
    known = _of_machine(prepared) if asked else hashlib.sha256(prepared.base.encode()).digest()
    return str(int.from_bytes(known[:4], "big"))


def _of_machine(prepared: PreparedRepository) -> bytes:
    """Return 32 bytes that are always the same here, and that only who can read this machine's kept runs can know."""
    path = data_dir() / "testruns" / "machine"
    if not path.exists():
        make_private_dir(path.parent)
        write_new(path, secrets.token_bytes(32))  # of two at once, one is kept
    return hmac.digest(path.read_bytes(), prepared.base.encode(), "sha256")


def elsewhere(prepared: PreparedRepository) -> tuple[str, str]:
    """Return (where the tree is, whose home there is) if tests get other inputs: as with most users it may be.

    A place that few have would tell code that it is not with a user.
    """
    known = _of_machine(prepared)
    user = "".join(chr(ord("a") + one % 26) for one in known[8 : 12 + known[6] % 4])
    version = prepared.python.resolve().name  # as python3.11
    return f"/home/{user}/.venv/lib/{version}/site-packages", user


def _mounted(fixed: Sequence[str]) -> list[str]:
    """Return the files that no test may change: test files and configuration, up to a number that mounts quickly."""
    files = [path for path in fixed if path.endswith(_FIXED)]
    return sorted(files, key=lambda path: (PurePosixPath(path).name not in CONFIG_NAMES, path))[:_MAX_MOUNTS]


def _states(folder: Path, paths: Sequence[str]) -> set[tuple[str, tuple[int, int]]]:
    """Return what tells that a file was changed or replaced: no code can set the time of its last change."""
    found = set[tuple[str, tuple[int, int]]]()
    for path in paths:
        with suppress(OSError):
            state = os.lstat(folder / path)
            found.add((path, (state.st_ino, state.st_ctime_ns)))
    return found


def _packages(prepared: PreparedRepository, base: Sequence[str]) -> list[str]:
    """Return the importable names that the untouched source provides."""
    files = [PurePosixPath(path) for path in base if path.endswith(".py")]
    roots = [PurePosixPath(root) for root in prepared.repository.source_roots]
    inside = [file.relative_to(root) for file in files for root in roots if file.is_relative_to(root)]
    return sorted({path.parts[0].removesuffix(".py") for path in inside})


def _tail(done: CommandResult) -> str:
    text = done.output[-2000:].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line and not line.startswith(("@valve", "@reason"))]
    return "; ".join(filter(None, [f"exit code {done.returncode}", " / ".join(lines[-3:])[-300:]]))


def read_report(output: bytes, key: bytes) -> HarnessReport:
    """Return the content of the records in a run's output, up to the first with a wrong signature. Pure."""
    messages, tampered = _signed(output, key)
    reruns = any(message.reruns for message in messages)
    phases: dict[str, list[Message]] = {}
    twice = ""
    for message in messages:
        if message.event or not message.test:
            continue
        parts = phases.setdefault(message.test, [])
        if message.when != "part" and any(part.when == message.when for part in parts):
            if reruns:  # the last try counts
                parts[:] = [part for part in parts if part.when == "setup" and message.when != "setup"]
            else:
                twice = message.test
        parts.append(message)
    shadows = [name for message in messages for name in message.shadows]
    return HarnessReport(
        started=any(message.event == "start" for message in messages),
        ended=any(message.event == "end" for message in messages),
        tests={test: combine_phases(parts) for test, parts in phases.items()},
        answers=_answers(messages),
        tampered=tampered
        or (f"suspicious patch: adds a module {shadows[0]}, which hides another of that name" if shadows else "")
        or (f"{twice} was reported twice" if twice else ""),
    )


def _answers(messages: Sequence[Message]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for message in messages:
        counts = Counter[str]()
        for answer in message.answers:
            place, _, value = answer.partition(" ")
            found.setdefault(message.test, {}).setdefault(f"{message.variant} {place} {counts[place]}", value)
            counts[place] += 1
    return found


def combine_phases(parts: list[Message]) -> str:
    """Return the verdict of one test. It is "passed" only if all three phases passed without an exception."""
    outcomes = {part.outcome for part in parts}
    if outcomes == {"passed"} and tuple(p.when for p in parts) == _PHASES and not any(p.raised for p in parts):
        return "passed"
    if "failed" not in outcomes and parts[-1].when == "teardown":
        return next((known for known in ("xfailed", "skipped") if known in outcomes), "failed")
    return "failed"


def _signed(output: bytes, key: bytes) -> tuple[list[Message], str]:
    """Return (messages whose signatures continue the chain, the reason why reading stopped early or "")."""
    chain = hashlib.blake2b(key=key)
    messages: list[Message] = []
    for match in _RECORD.finditer(output):
        chain.update(match[2] + b"\n")
        if not hmac.compare_digest(chain.copy().hexdigest().encode(), match[1]):
            return messages, "the output holds a record that the harness did not write"
        try:
            messages.append(codec.decode(match[2], Message, where="record"))
        except RecordError as e:
            return messages, str(e)
    return messages, ""
