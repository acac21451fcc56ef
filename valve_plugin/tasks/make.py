"""A task directory from a source tree: definition, stable suite, candidates tried until enough are verified.

What took long to find is kept in `work/` of the directory, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.bank.checkout import text_of
from valve_plugin.bank.files import write_atomic
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.reading import regular
from valve_plugin.records import Record
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.slots import slot
from valve_plugin.rollouts.supervise import Completed
from valve_plugin.rollouts.workspace import Workspace
from valve_plugin.tasks import dying, folder, keeping, screen
from valve_plugin.tasks.define import CPU_SECONDS, Say, define
from valve_plugin.tasks.follow import Following
from valve_plugin.tasks.generate import Tried, generate, stable_suite
from valve_plugin.tasks.load import ROWS_NAME, Row
from valve_plugin.tasks.repository import FILE_NAME, Prepared, Repository, prepare, read
from valve_plugin.tasks.smith import Candidate
from valve_plugin.tasks.source import File

_MAX_GROUND = 1 << 28


class Ground(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a repository before the first bug is tried."""

    suite: tuple[str, ...]
    """Tests that passed in both runs of the untouched source."""
    reached: screen.Reached | None
    """See `screen.watch`."""


class Timed:
    """A sandbox that also notes how much CPU time each command and its children took."""

    _COMMAND = '"$@"; code=$?; times > "$TMPDIR/times"; exit $code'

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.name, self.root = sandbox.name, sandbox.root
        self.seconds: list[float] = []
        """Of each command; 0 where it was ended by a limit."""

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Any) -> Completed:
        """See `Sandbox.run`."""
        words = ["bash", "-c", command] if isinstance(command, str) else list(command)
        done = self._sandbox.run(["bash", "-c", self._COMMAND, "timed", *words], workspace, **options)
        children = text_of(workspace.tmp / "times", 10_000).splitlines()[1:2]
        parts = re.findall(r"(\d+)m(\d+(?:\.\d+)?)s", "".join(children))
        self.seconds.append(sum(60 * int(minutes) + float(seconds) for minutes, seconds in parts))
        return done


class Made(NamedTuple):
    """What a run came to."""

    folder: Path
    rows: list[Row]
    suite: list[str]


def define_in(
    out: Path,
    name: str,
    files: Sequence[File],
    command: str,
    *,
    python: str,
    requirements: Sequence[str],
    say: Say,
    wanted: int,
    ignored: Sequence[str] = (),
) -> Repository:
    """Return the definition in `out`, made unless it is there and still holds.

    Args:
        command: what makes the tasks; another command's tasks are not replaced.
        wanted: how many there will be.

    Raises:
        TaskError: `out` holds other tasks, or more about other source; no tests were found; no pytest.
    """
    folder.check_free(out, command)
    try:
        known = read(out / FILE_NAME) if folder.made_by(out).partition(" --")[0] == command else None
    except TaskError:
        known = None  # damaged: made again
    found = define(name, files, out, python=python, requirements=requirements, ignored=ignored, known=known, say=say)
    if found is not known:
        keeping.require_kept(out, {}, wanted)
        (out / ROWS_NAME).unlink(missing_ok=True)  # about other source
        folder.write_definition(out, found, command)
    return replace(found, suite="")  # which is yet to be found


def grounded(
    out: Path,
    name: str,
    files: Sequence[File],
    command: str,
    sandbox: Sandbox,
    say: Say,
    *,
    python: str,
    requirements: Sequence[str],
    ignored: Sequence[str],
    wanted: int,
    workers: int,
    again: str,
) -> tuple[Prepared, Ground]:
    """Define a repository and survey it; see `define_in` and `survey`."""
    repository = define_in(
        out, name, files, command, python=python, requirements=requirements, ignored=ignored, say=say, wanted=wanted
    )
    return survey(out, repository, command, sandbox, say, workers, again=again)


def survey(
    out: Path, repository: Repository, command: str, sandbox: Sandbox, say: Say, workers: int = 1, *, again: str = ""
) -> tuple[Prepared, Ground]:
    """Prepare a repository, run its tests twice, watch what they call, and fix how much CPU time a run may take.

    Args:
        again: the command as it was typed, where that is known.

    Raises:
        TaskError: its tests do not run through, none passes, or one waits without end. Up to `dying.MOST` files that
            end the process are left out instead.
    """
    prepared = prepare(repository, say)
    work = out / "work" / "ground.json"
    try:
        return prepared, codec.decode(regular(work, _MAX_GROUND), Kept, where=str(work)).of(prepared)
    except (OSError, RecordError, KeyError):
        pass
    say("running its tests twice, and once watching which functions they call")
    while True:
        try:
            ground, spent = _ran(prepared, sandbox, Following(say, again=again or command, gives_up=True), workers)
            break
        except dying.DiedError as e:
            repository = dying.without(repository, e, again or command)
            say(f"{e.file} ends the process ({e.how}): left out; running the others")
            folder.write_definition(out, repository, command)  # no row can be there yet
            prepared = prepare(repository, say)
    say(f"{len(ground.suite)} tests pass in both runs, {spent:.0f} s of CPU time each")
    if repository.cpu_seconds == CPU_SECONDS:
        repository = replace(repository, cpu_seconds=max(10, math.ceil(3 * spent) + 5))
        folder.write_definition(out, repository, command)  # no row can be there yet
        prepared = prepare(repository, say)
    work.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(work, codec.canonical(Kept(digest=prepared.digest, ground=ground)))
    return prepared, ground


def _ran(prepared: Prepared, sandbox: Sandbox, following: Following, workers: int) -> tuple[Ground, float]:
    """Return what two runs and a watched one tell, and the CPU seconds of one."""
    timed = Timed(sandbox)
    with ThreadPoolExecutor(workers) as pool:
        stable = pool.submit(stable_suite, prepared, timed, following)
        watched = pool.submit(screen.watch, prepared, sandbox, following.run("watched run"))
        try:
            suite = stable.result()
        except BaseException:  # Ctrl-C too
            following.stopped = True
            watched.cancel()
            raise
        return Ground(suite=tuple(suite), reached=watched.result()), max(timed.seconds)


def try_all(
    out: Path,
    prepared: Prepared,
    ground: Ground,
    ordered: Sequence[Candidate],
    sandbox: Sandbox,
    *,
    wanted: int,
    workers: int,
    told: Callable[[Tried], None],
    prefix: str = "",
    distinct: bool = False,
) -> Made:
    """Try candidates in order until `wanted` of them are verified, and all that the set holds already.

    Args:
        prefix: what instance ids begin with; empty: the repository's name and commit.
        distinct: see `generate`.

    Raises:
        TaskError: these are not the candidates of what the set holds, and it is split or holds more.
    """
    reached, ordered = ground.reached, _distinct(ordered)
    prefix = prefix or f"{prepared.repository.slug}.{prepared.base[:8]}"
    if not {f"{prefix}.{c.modifier}__{c.digest}" for c in ordered}.issuperset(held := keeping.held(out)):
        keeping.require_kept(out, {}, wanted)
        held = {}
    choose = screen.screener(reached, ground.suite, screen.reader(prepared)) if reached else lambda _: None
    suite, rows = generate(
        prepared,
        ground.suite,
        ordered,
        sandbox,
        wanted=max(wanted, len(held)),
        prefix=prefix,
        journal=out / "work" / f"tried-{prepared.digest[:12]}.jsonl",
        workers=workers,
        told=told,
        screen=choose,
        distinct=distinct,
        held=held,
    )
    return Made(out, rows, suite)


@contextmanager
def unpacked(files: Sequence[File]) -> Iterator[Path]:
    """Yield a temporary directory with the files."""
    with slot() as (_, root):
        for path, mode, content in files:
            if mode != "120000":
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(content)
        yield root


class Kept(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """ground.json: a survey, and what it was made of."""

    digest: str
    ground: Ground

    def of(self, prepared: Prepared) -> Ground:
        """Return the survey if it is of this repository.

        Raises:
            KeyError: it is of another one.
        """
        if self.digest != prepared.digest:
            raise KeyError(self.digest)
        return self.ground


def _distinct(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Leave out candidates whose instance id is taken: equal functions in two files."""
    return list({(c.modifier, c.digest): c for c in reversed(ordered)}.values())[::-1]
