"""Where an item came from, down to the steps: what a ledger records of it, and what can be derived and is no record.

A ledger records the attempts behind a proposal. The model that contrasts them names no steps, so none is on record.
What can be said: which steps the digests that it was given hold, and which of them no attempt that ended the other way
took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from valve_plugin.bank.entries import AttemptNote, Entry
from valve_plugin.bank.entries import Proposed as ProposedEntry
from valve_plugin.errors import BankError
from valve_plugin.extract.digest import Step, steps, told
from valve_plugin.records import Attempt
from valve_plugin.report.run import Source
from valve_plugin.report.run_panel import Kept


def behind(
    entries: Iterable[Entry], attempts: Sequence[Attempt], trajectory: Callable[[Attempt], bytes]
) -> dict[str, tuple[Source, ...]]:
    """Return, by task, the attempts that its proposal was learned from, each with its steps where it is kept here.

    Args:
        trajectory: of a kept attempt; raises BankError where it is gone.
    """
    kept, known = Kept(attempts), {a.id: a for a in attempts}
    found = {}
    for entry in entries:
        if isinstance(entry, ProposedEntry) and entry.attempts:
            plain = [_source(note, kept) for note in entry.attempts]
            taken = {s.attempt: read for s in plain if (read := _read(known.get(s.attempt), trajectory)) is not None}
            found[entry.proposal.task_id] = tuple(
                _with_steps(source, known[source.attempt], taken, _others(source, plain))
                if source.attempt in taken
                else source
                for source in plain
            )
    return found


def own_steps(mine: Sequence[Step], others: Iterable[Sequence[Step]]) -> tuple[int, ...]:
    """Return the numbers, from 1, of the steps with commands that none of the others ran at any point.

    Commands are compared but for white space; thoughts and outputs are not.
    """
    ran = {_told(command) for other in others for step in other for command in step.commands}
    return tuple(n for n, step in enumerate(mine, 1) if any(_told(c) not in ran for c in step.commands if c.strip()))


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers to read: `2, 4, 6 to 9`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def listed(numbers: Iterable[int]) -> str:
    """Return ascending numbers within a sentence: `2, 4 and 6 to 9`."""
    return " and ".join(ranges(numbers).rsplit(", ", 1))


def others(source: Source, sources: Iterable[Source]) -> str:
    """Return the attempts at the same task that ended the other way, to read: `attempt 2`, `attempts 2 and 3`."""
    ends = {"resolved", "unresolved"}
    numbers = [s.ordinal + 1 for s in sources if s.task_id == source.task_id and {s.outcome, source.outcome} == ends]
    return f"attempt{'s' * (len(numbers) > 1)} {listed(sorted(numbers))}"


def _told(command: str) -> str:
    return " ".join(command.split())


def _source(note: AttemptNote, kept: Kept) -> Source:
    rollout = kept.rollout(note)
    return Source(task_id=note.task_id, ordinal=note.ordinal, outcome=rollout.outcome, attempt=rollout.attempt)


def _others(source: Source, all_: Iterable[Source]) -> list[str]:
    """Ids of the attempts at the same task that ended the other way; empty ones are not kept here."""
    ends = {"resolved", "unresolved"}
    return [s.attempt for s in all_ if s.task_id == source.task_id and {s.outcome, source.outcome} == ends]


def _with_steps(source: Source, attempt: Attempt, taken: Mapping[str, bytes], others: list[str]) -> Source:
    digest = told(taken[source.attempt], attempt)
    found = replace(source, steps=digest.steps, left_out=tuple(digest.left_out))
    if not others or not all(other in taken for other in others):
        return found
    own = own_steps(steps(taken[source.attempt]), [steps(taken[other]) for other in others])
    return replace(found, own=own, compared=True)


def _read(attempt: Attempt | None, trajectory: Callable[[Attempt], bytes]) -> bytes | None:
    try:
        return None if attempt is None else trajectory(attempt)
    except BankError:  # an older one that was tidied away
        return None
