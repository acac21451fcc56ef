"""Write schemas/*.schema.json from the records, their classes' and fields' docstrings included.

Run `python -m tests.bank.generate_schemas` after changing a record; a test fails until the files agree.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin import records
from valve_plugin.bank import directory, entries, ledger
from valve_plugin.codec import pretty
from valve_plugin.tasks import repository, split

SCHEMAS = Path(__file__).parents[2] / "schemas"
DOCUMENTS: dict[str, tuple[Any, str]] = {
    "bank": (directory.BankFile, "bank.json"),
    "ledger": (ledger.StoredLine, "One line of ledger.jsonl"),
    "panel": (records.Panel, "panel.json"),
    "item": (records.Item, "One item of a bank"),
    "proposal": (records.Proposal, "What one mixed task proposed"),
    "verdict": (records.Verdict, "What the gate said"),
    "attempt": (records.Attempt, "One recorded run, under local/"),
    "task": (records.Task, "One row of a tasks.jsonl"),
    "split": (split.Split, "split.json, beside the tasks.jsonl it splits"),
    "repository": (repository.Repository, "repository.toml, beside the tasks.jsonl that is about it"),
}


def generate(name: str) -> bytes:
    """Return the bytes of one schema file."""
    type_, title = DOCUMENTS[name]
    schema = msgspec.json.schema(type_)
    docs = {}
    for module in (records, entries, directory, ledger, repository, split):
        docs.update(field_docs(inspect.getsource(module)))
    for class_name, definition in schema["$defs"].items():
        if "description" in definition:  # as written: versions of msgspec differ in how they indent it
            definition["description"] = docs[class_name, ""]
        for field, about in definition.get("properties", {}).items():
            if doc := docs.get((class_name, field)):
                about["description"] = doc
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:valve-plugin:{name}:{records.SCHEMA_VERSION}",
        "title": title,
    }
    return pretty({**head, **schema})


def field_docs(source: str) -> dict[tuple[str, str], str]:
    """Return the docstrings of classes, as (class, ""), and of their fields, as (class, field): text on one line."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            found[node.name, ""] = (ast.get_docstring(node, clean=False) or "").strip()
            for field, below in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                ):
                    found[node.name, field.target.id] = " ".join(str(below.value.value).split())
    return found


if __name__ == "__main__":
    for name in DOCUMENTS:
        (SCHEMAS / f"{name}.schema.json").write_bytes(generate(name))
