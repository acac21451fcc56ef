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
from valve_plugin.bank.replay import Replay, replay
from valve_plugin.codec import canonical, digest
from valve_plugin.errors import BankCorruptError, BankError, LedgerForkedError, RecordError
from valve_plugin.records import Proposal


def written(entries: list[Entry]) -> bytes:
    """The bytes of a ledger with these entries."""
    state, prev, data = Replay(), ledger.GENESIS, b""
    for seq, entry in enumerate(entries):
        state.feed(entry)
        line = ledger.encode(seq, prev, state.bank.hash, entry)
        prev, data = ledger.line_hash(line), data + line + b"\n"
    return data


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


@strategies.few
@given(strategies.stories(), st.data())
def test_what_is_written_is_read_back_whole_or_cut(story: Story, data: st.DataObject) -> None:
    whole = written(story.entries)
    reading = ledger.parse(whole, "x")
    assert [line.entry for line in reading.lines] == story.entries
    assert (reading.torn, reading.size) == (b"", len(whole))
    history = replay(reading.lines, "x")
    assert history.state.banks == story.banks
    last = reading.lines[-1]
    assert history.chain[-1] == (last.hash, story.banks[-1].hash)
    assert ledger.last_line(whole) == (last.seq, last.hash, last.bank)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    reading = ledger.parse(cut, "x")
    assert [line.entry for line in reading.lines] == story.entries[: len(reading.lines)]
    assert cut[: reading.size] + reading.torn == cut
    assert b"\n" not in reading.torn
    assert not reading.torn or ledger.last_line(cut) is None


@strategies.few
@given(strategies.stories(), st.data())
def test_any_change_before_the_last_line_is_found(story: Story, data: st.DataObject) -> None:
    """A byte, or a line that is dropped, doubled or swapped. The last line has only `bank.json`: see test_verify."""
    whole = written([*story.entries, Proposed(proposal=Proposal(task_id="last"))])
    lines = lines_of(whole)
    at, place = data.draw(st.integers(0, len(whole) - len(lines[-1]) - 1)), data.draw(st.integers(0, len(lines) - 2))
    changed = (whole[at] + data.draw(st.integers(1, 255))) % 256
    for spoilt in (
        [whole[:at], bytes([changed]), whole[at + 1 :]],
        [*lines[:place], *lines[place + 1 :]],
        [*lines[: place + 1], *lines[place:]],
        [*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]],
    ):
        with pytest.raises(BankError, match=r"^x: line \d+"):
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
    assert ledger.last_line(merged) is None  # so that a quick look at the end does not pass it
    with pytest.raises(LedgerForkedError, match=f"line {len(base) + 3}: follows line {len(base)}, as line"):
        ledger.parse(merged, "x")


@pytest.mark.parametrize("version", [0, 3, "1", None, [1], "x" * 500])
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
        assert "this valve reads 1 and 2; use the version of valve-plugin that wrote it" in message


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
    with pytest.raises(BankCorruptError, match="line end was changed"):
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
