"""The schema files and the records say the same thing, each by its own engine."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from jsonschema import Draft202012Validator

from tests import strategies
from tests.bank.generate_schemas import DOCUMENTS, SCHEMAS, generate
from tests.tools import TEST_ALL
from valve_plugin.bank.directory import BankFile, Head
from valve_plugin.bank.ledger import StoredLine
from valve_plugin.codec import canonical, decode
from valve_plugin.errors import RecordError
from valve_plugin.schemas import load

RECORDS: dict[str, SearchStrategy[Any]] = {
    "bank": st.builds(
        BankFile,
        ledger=st.builds(Head, seq=strategies.counts, hash=strategies.hashes),
        repo=strategies.texts(),
        version=strategies.counts,
        principles=strategies.unique(strategies.items("principle"), 2),
        skills=strategies.unique(strategies.items("skill"), 2),
    ),
    "ledger": st.builds(
        StoredLine, seq=strategies.counts, prev=strategies.hashes, bank=strategies.hashes, entry=strategies.entries
    ),
    "panel": strategies.panels,
    "item": strategies.items(),
    "proposal": strategies.proposals,
    "verdict": strategies.verdicts,
    "attempt": strategies.attempts,
    "task": strategies.tasks,
    "repository": strategies.repositories,
    "split": strategies.splits,
}
VALIDATORS = {name: Draft202012Validator(load(name)) for name in RECORDS}

# Integral floats are left out: 1.0 is an integer to JSON Schema, and refused by the records.
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-5, 5).filter(lambda x: not x.is_integer())
    | st.sampled_from(
        ["", "x", "a" * 64, "g" * 64, "a" * 64 + "\n", "skill", "accept", "name\n", "../x", "é", "x" * 20_000]
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "kind", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def test_every_record_has_its_schema() -> None:
    assert set(RECORDS) == set(DOCUMENTS)


@pytest.mark.parametrize("name", RECORDS)
def test_the_files_are_made_from_the_records(name: str) -> None:
    committed = (SCHEMAS / f"{name}.schema.json").read_bytes()
    assert committed == generate(name), "run `python -m tests.bank.generate_schemas`"
    Draft202012Validator.check_schema(json.loads(committed))


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
def test_every_record_is_valid(name: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[name])
    raw = canonical(record)
    assert list(VALIDATORS[name].iter_errors(json.loads(raw))) == []
    assert decode(raw, type(record), where="x") == record


@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=120 if TEST_ALL else 40)
@given(data=st.data())
def test_what_the_schema_refuses_the_record_refuses_and_the_reverse(name: str, data: st.DataObject) -> None:
    """On valid documents with one place changed, left out or added."""
    document = mutated(json.loads(canonical(data.draw(RECORDS[name]))), data)
    valid = VALIDATORS[name].is_valid(document)
    try:
        decode(json.dumps(document), DOCUMENTS[name][0], where="x")
        decoded = True
    except RecordError:
        decoded = False
    assert valid == decoded, document


def mutated(document: Any, data: st.DataObject) -> Any:
    """Change one place of a JSON document, found by walking down a random path."""
    document = copy.deepcopy(document)
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        inner = [key for key in keys if isinstance(node[key], (dict, list)) and node[key]]
        if not inner or data.draw(st.booleans()):
            break
        node = node[data.draw(st.sampled_from(inner))]
    kind = data.draw(st.sampled_from(["change", "drop", "add"]))
    if kind == "add" and isinstance(node, list):
        node.append(data.draw(junk))
    elif kind == "add":
        node[data.draw(st.sampled_from(["x", "", "type", "FAIL_TO_PASS", "schema_version"]))] = data.draw(junk)
    elif keys:
        key = data.draw(st.sampled_from(keys))
        if kind == "drop":
            del node[key]
        else:
            node[key] = data.draw(junk)
    return document
