"""How the report of a patch's run differs in kind from that of the run of the fix that the task is known by. Pure.

What the fix's run shows is ordinary in this repository: plugins that replace test functions, tests that replace parts
of pytest. What only this run shows is the patch's doing. That holds for what tests compare too (`values.py`), which is
reported as raw values: here it is decided what is equal, not by the objects that are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from valve_plugin.records import SUSPICIOUS
from valve_plugin.tasks.grading.testrun import TestRun

_EQUAL, _ASKED, _INSIDE, _BESIDE, _CALLED, _TEXT, _TOLD = "=", "?", ",", "~", "^", "'", ">"
_ASSERTED = (_EQUAL, _ASKED)
_VARIES = ("varies", "varies")
_UNDECIDED = "undecided"
_FAILED = "is an assertion that failed, and its test passed"


class Seen(NamedTuple):
    """What one place of a test has seen."""

    path: str
    line: int
    kind: str
    """`=` where two values are asserted to be equal, `?` in another assertion, `,` where something else decides in
    one, `~` where something decides outside, `>` where the tested code is told something, `^` where a test begins, `'`
    where a text of an object is asked for."""
    times: int
    """How often the place was reached."""
    failed: int
    """How often an assertion there failed."""
    unequal: int
    """How often two values were to be equal whose raw values differ, at least one of a class of the tested code; or
    one was another when it was compared than when it was made."""
    digests: tuple[str, str]
    """Of all values of the left side and of the right, in order."""
    kinds: tuple[frozenset[str], frozenset[str]]
    """Classes of the tested code on either side; with `=` if they answer like raw values, with `:` if all but texts
    of them do, with `!` if perhaps not."""
    wanted: frozenset[str]
    """Names of the errors that are to be caught."""
    errors: tuple[frozenset[str], ...]
    """Names of the classes of each kind of error that was caught, from its own to `object`."""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def read_seen(entry: str, path: str) -> Seen:
    """Return an entry of the report of a test in the file `path`.

    Raises:
        ValueError: it is none.
    """
    site, numbers, left, right, kinds_left, kinds_right, wanted, errors = entry.split("\t")
    place, _, number = site.rpartition(".")
    file, _, line = place.rpartition(":")
    times, failed, unequal = map(int, numbers.split())
    return Seen(
        path=file or path,
        line=int(line),
        kind=number.lstrip("0123456789")[:1],
        times=times,
        failed=failed,
        unequal=unequal,
        digests=(left, right),
        kinds=(frozenset(filter(None, kinds_left.split(";"))), frozenset(filter(None, kinds_right.split(";")))),
        wanted=frozenset(filter(None, wanted.split(","))),
        errors=tuple(frozenset(one.split(",")) for one in errors.split(";") if one),
    )


def differences(run: TestRun, gold: TestRun, wanted: Sequence[str]) -> str:
    """Return how a run differs in kind from that of the fix, but for what tests compared; "" if it does not."""
    for name in (*wanted, *(name for name in gold.codes if name not in gold.tests)):
        if gold.codes.get(name, "") != run.codes.get(name, "") and name in gold.codes:
            return f"{SUSPICIOUS} {name} is not the code that its file holds"
    if excused := [test for test in wanted if (gold.tests.get(test), run.tests.get(test)) == ("passed", "xfailed")]:
        return f"{SUSPICIOUS} {excused[0]} was expected to fail, and not with the known fix"
    new = sorted(run.seen - gold.seen)
    return f"{SUSPICIOUS} {new[0]}, and not with the known fix" if new else ""


def compared(
    run: TestRun, gold: TestRun, wanted: Sequence[str], again: TestRun | None = None
) -> tuple[list[str], list[str]]:
    """Return (why what tests compared cannot be believed, what of it a person should look at), by place.

    Args:
        again: a second run of the fix. What differs in it varies by itself: its digests are not compared, and places
            that it did not reach are left out.
    """
    bad, odd = dict[str, None](), dict[str, None]()
    for name, usual in gold.names.items():
        told = run.names.get(name, usual)
        if told != usual and (again is None or again.names.get(name) == usual):
            why, wrong = _another(told, usual)
            (bad if wrong else odd).update({f"{name} {why}": None} if why else {})
    for test in wanted:
        entries, other = run.values.get(test, ()), gold.values.get(test, ())
        if entries == other:
            continue
        path = test.partition("::")[0]
        ours, theirs = ({one.partition("\t")[0]: one for one in held} for held in (entries, other))
        repeated = {one.partition("\t")[0]: one for one in (other if again is None else again.values.get(test, ()))}
        more = (read_seen(one, path) for name, one in ours.items() if name not in theirs)
        bad |= dict.fromkeys(f"{one.where} {_FAILED}" for one in more if one.failed)
        reached = any(read_seen(one, path).kind in _ASSERTED for one in entries)
        for name, entry in theirs.items():
            if entry == ours.get(name) or name not in repeated:
                continue
            known, twice = read_seen(entry, path), read_seen(repeated[name], path)
            if name in ours:
                seen = read_seen(ours[name], path)
                if known != twice:
                    known = _both(known, twice)._replace(digests=_VARIES)
                bad |= dict.fromkeys(f"{known.where} {why}" for why in _wrong(seen, known))
                odd |= dict.fromkeys(f"{known.where} {why}" for why in _odd(seen, known))
            elif known.kind == _CALLED:
                bad[f"{known.where} is a test that was reported, but not called"] = None
            elif known.kind in _ASSERTED and not known.errors:
                (odd if reached else bad)[f"{known.where} was not reached"] = None
    return list(bad), list(odd)


def _another(told: str, known: str) -> tuple[str, bool]:
    """Return (why a name stands for something else than with the fix, "" if a repair may do that; whether none does).

    A class may get other bases of the tested code. It may not be one of Python's, or get a class that answers for it.
    """
    if not known.startswith("class "):
        return "stands for another value than with the known fix", False
    if not told.startswith("class "):
        return "stands for no class, and for one with the known fix", True
    (ours, own), (theirs, usual) = ([one.split(",") for one in text[6:].split(" of ")] for text in (told, known))
    if ours[0].endswith("*") and not theirs[0].endswith("*"):
        return f"stands for {ours[0][:-1]}, and for a class of the tested code with the known fix", True
    if not all(one.endswith("*") for one in own) and all(one.endswith("*") for one in usual):
        return "stands for a class that is asked what belongs to it, and not with the known fix", True
    alike, same = ([chain[0], *(one for one in chain if one.endswith("*"))] for chain in (ours, theirs))
    return "" if alike == same else "stands for another class than with the known fix", False


def _both(one: Seen, other: Seen) -> Seen:
    """Return what a place has seen in either of two runs."""
    return one._replace(
        failed=max(one.failed, other.failed),
        unequal=max(one.unequal, other.unequal),
        kinds=(one.kinds[0] | other.kinds[0], one.kinds[1] | other.kinds[1]),
        wanted=one.wanted | other.wanted,
        errors=tuple(dict.fromkeys(one.errors + other.errors)),
    )


def _wrong(seen: Seen, known: Seen) -> Iterator[str]:
    """Yield why what a place of a test that passed has seen cannot be believed."""
    if seen.failed and not known.failed:
        yield _FAILED
    new = _new(seen, known)
    if _undecided(seen) and not _undecided(known):
        yield "compares a value of which not all can be looked at, and with the known fix all was"
    elif seen.unequal and not known.unequal and seen.digests != known.digests:
        yield f"says that raw values are equal which differ ({_names(seen)})"
    elif new and (known.kind in (*_ASSERTED, _TOLD) or (new.endswith("!") and known.kind in (_INSIDE, _BESIDE))):
        yield f"compares {_plain(new)}, which is a plain value with the known fix"
    for error in seen.errors:
        if known.wanted and "?" not in known.wanted and not error & known.wanted:
            yield f"catches what is no {' or '.join(sorted(known.wanted))}"


def _undecided(seen: Seen) -> bool:
    return any(_UNDECIDED in side for side in seen.kinds)


def _odd(seen: Seen, known: Seen) -> Iterator[str]:
    """Yield why a person should look at what a place of a test has seen."""
    if new := _new(seen, known):
        yield f"compares {_plain(new)}, which is a plain value with the known fix"
    if known.kind in (_BESIDE, _TEXT):
        return
    differ = [n for n in (0, 1) if seen.digests[n] != known.digests[n]]
    ours, theirs = _answering(seen), _answering(known)
    others = [one for n in differ if theirs[n] for one in sorted(ours[n] - theirs[n])]
    if others:
        yield f"compares {_plain(others[0])}, another class than with the known fix"
    elif known.digests == _VARIES:
        return
    elif any(ours[n] or theirs[n] for n in differ) or (len(differ) == 2 and known.kind in _ASSERTED):
        yield "compares other values than with the known fix"
    elif differ and known.kind == _TOLD:
        yield "lets the tested code judge other values than with the known fix"


def _new(seen: Seen, known: Seen) -> str:
    """Return a class on a side where the fix has plain values, and others, unless it answers like its raw value.

    "" if there is none.
    """
    ours, theirs = _answering(seen), _answering(known)
    for n in (0, 1):
        if seen.digests[n] != known.digests[n] and ours[n] and not theirs[n]:
            return min(ours[n])
    return ""


def _answering(seen: Seen) -> list[set[str]]:
    """Return the classes on either side that answer otherwise than their raw values would."""
    as_raw = "=" if seen.kind == _TEXT else "=:"
    believed = "!" if seen.kind == _EQUAL and not seen.unequal else as_raw  # what is said to be equal is equal
    return [{one for one in side if one[-1] not in as_raw + believed} for side in seen.kinds]


def _names(seen: Seen) -> str:
    return ", ".join(_plain(one) for one in sorted(seen.kinds[0] | seen.kinds[1]))


def _plain(name: str) -> str:
    return name.rstrip("=:!")
