"""The hash chain: what is written is read back, and no change goes unnoticed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.strategies import Story
from valve_plugin.bank import ledger
from valve_plugin.bank.entries import Entry, Opened, Proposed
from valve_plugin.bank.replay import Replay, replayed
from valve_plugin.codec import canonical, digest
from valve_plugin.errors import BankCorruptError, BankError, LedgerForkedError, RecordError
from valve_plugin.records import Proposal


def written(entries: list[Entry]) -> bytes:
    """The bytes of a ledger with these entries."""
    state, prev, data = Replay(), ledger.GENESIS, b""
    for seq, entry in enumerate(entries):
        state.feed(entry)
        line = ledger.encode(seq, prev, state.bank.hash, entry)
        prev, data = ledger.hash_of(line), data + line + b"\n"
    return data


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@strategies.few
@given(strategies.stories())
def test_what_is_written_is_read_back(story: Story) -> None:
    data = written(story.entries)
    reading = ledger.parse(data, "x")
    assert [line.entry for line in reading.lines] == story.entries
    assert (reading.torn, reading.size) == (b"", len(data))
    history = replayed(reading.lines, "x")
    assert history.state.banks == story.banks
    assert history.chain[-1] == (reading.lines[-1].hash, story.banks[-1].hash)


@strategies.few
@given(strategies.stories())
def test_equal_histories_are_equal_bytes(story: Story) -> None:
    assert written(story.entries) == written(list(story.entries))


@strategies.few
@given(strategies.stories())
def test_the_tail_is_the_last_line(story: Story) -> None:
    data = written(story.entries)
    last = ledger.parse(data, "x").lines[-1]
    assert ledger.tail(data) == (last.seq, last.hash, last.bank)


@strategies.few
@given(strategies.stories(), st.data())
def test_any_cut_leaves_whole_lines_and_a_torn_rest(story: Story, data: st.DataObject) -> None:
    whole = written(story.entries)
    size = data.draw(st.integers(0, len(whole)))
    reading = ledger.parse(whole[:size], "x")
    assert [line.entry for line in reading.lines] == story.entries[: len(reading.lines)]
    assert whole[: reading.size] + reading.torn == whole[:size]
    assert b"\n" not in reading.torn
    if reading.torn:
        assert ledger.tail(whole[:size]) is None


@strategies.few
@given(strategies.stories(), st.data())
def test_any_changed_byte_before_the_last_line_is_found(story: Story, data: st.DataObject) -> None:
    """The last line has nobody to vouch for it but `bank.json`: see the tests of verify."""
    whole = bytearray(written([*story.entries, Proposed(proposal=Proposal(task_id="last"))]))
    last_line = len(lines_of(bytes(whole))[-1])
    at = data.draw(st.integers(0, len(whole) - last_line - 1))
    whole[at] = (whole[at] + data.draw(st.integers(1, 255))) % 256
    with pytest.raises(BankError, match=r"^x: line \d+"):
        ledger.parse(bytes(whole), "x")


@strategies.few
@given(strategies.stories(), st.data())
def test_dropped_doubled_and_swapped_lines_are_found(story: Story, data: st.DataObject) -> None:
    lines = lines_of(written([*story.entries, Proposed(proposal=Proposal(task_id="last"))]))
    at = data.draw(st.integers(0, len(lines) - 2))
    dropped = lines[:at] + lines[at + 1 :]
    doubled = [*lines[: at + 1], *lines[at:]]
    swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
    for spoilt in (dropped, doubled, swapped):
        with pytest.raises(BankCorruptError):
            ledger.parse(b"".join(spoilt), "x")


@strategies.few
@given(strategies.stories(), strategies.ids, strategies.ids)
def test_two_branches_put_together_are_a_fork(story: Story, ours: str, theirs: str) -> None:
    """What a line-wise merge of two branches makes of the file."""
    base = lines_of(written(story.entries))
    branches = [
        lines_of(written([*story.entries, *(Proposed(proposal=Proposal(task_id=t)) for t in (task, task + "2"))]))
        for task in (f"ours {ours}", f"theirs {theirs}")
    ]
    merged = b"".join([*base, *branches[0][len(base) :], *branches[1][len(base) :]])
    assert ledger.tail(merged) is None  # so that a quick look at the end does not pass it
    with pytest.raises(LedgerForkedError, match=f"line {len(base) + 3}: continues line {len(base)}, as line"):
        ledger.parse(merged, "x")


def test_conflict_marks_are_a_fork(accept: list[Entry]) -> None:
    lines = lines_of(written(accept))
    lines.insert(-1, b"<<<<<<< HEAD\n")
    with pytest.raises(LedgerForkedError, match="conflict mark"):
        ledger.parse(b"".join(lines), "x")


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], "x" * 500])
def test_another_version_is_said_before_what_it_does_differently(accept: list[Entry], version: object) -> None:
    lines = lines_of(written(accept))
    first = json.loads(lines[0])
    first["entry"] |= {"schema_version": version, "unknown": 1}
    lines[0] = canonical(first) + b"\n"
    with pytest.raises(BankError) as caught:
        ledger.parse(b"".join(lines), "x")
    message = str(caught.value)
    assert "x: line 1" in message
    assert len(message) < 300
    if version is not None:
        assert "this valve reads 1; use the version of valve-plugin that wrote it" in message


@pytest.mark.parametrize(
    "text",
    [
        '{"bank":BANK,"entry":{"repo":"r","schema_version":1,"type":"opened"},"prev":PREV,"seq":0,"seq":0}',  # doubled
        '{"bank":BANK,"entry":{"repo":"r","schema_version":1,"type":"opened"},"prev":PREV, "seq":0}',  # a space
        '{"seq":0,"bank":BANK,"entry":{"repo":"r","schema_version":1,"type":"opened"},"prev":PREV}',  # order
        '{"bank":BANK,"entry":{"repo":"r","type":"opened"},"prev":PREV,"seq":0}',  # a default left out
        '{"bank":BANK,"entry":{"repo":"\\u0072","schema_version":1,"type":"opened"},"prev":PREV,"seq":0}',  # an escape
        '{"bank":BANK,"entry":{"repo":"r","schema_version":1,"type":"opened"},"prev":PREV,"seq":1}',  # number
    ],
)
def test_the_right_content_in_other_bytes_is_refused(text: str) -> None:
    text = text.replace("BANK", f'"{digest("b")}"').replace("PREV", f'"{ledger.GENESIS}"')
    with pytest.raises(BankCorruptError, match="not as it was written"):
        ledger.parse(text.encode() + b"\n", "x")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"bank":"' + b"9" * 64 + b'","entry":{"type":"opened","repo":"r"},"prev":"' + b"0" * 64 + b'","seq":1e999}',
        b'{"bank":"","entry":{"type":"opened","repo":"r"},"prev":"","seq":' + b"9" * 100_000 + b"}",
        b'{"bank":"","entry":{"type":"of a later version"},"prev":"","seq":0}',
    ],
)
def test_hostile_lines_are_refused_with_their_place(raw: bytes) -> None:
    with pytest.raises(BankCorruptError, match=r"^x: line 1.*restore the file from git or a backup"):
        ledger.parse(raw + b"\n", "x")


def test_what_could_not_be_read_back_is_not_written() -> None:
    """Records do not check themselves when they are made."""
    with pytest.raises(RecordError, match=r"Opened entry: .*\$.entry.repo"):
        ledger.encode(0, ledger.GENESIS, digest("b"), Opened(repo=""))
    with pytest.raises(RecordError):
        ledger.encode(0, ledger.GENESIS, digest("b"), Opened(repo="\ud800"))
