"""SkillOpt's own package on our tasks: what it keeps becomes versions of a bank, however often that is interrupted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.evolve.conftest import calc, toy  # noqa: F401 (fixtures)
from tests.experiment.test_conditions import group
from tests.experiment.test_run import experiment, start  # noqa: F401 (fixtures)
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import digest, plain
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.experiment.conditions.skillopt import PIECE, model_of, pieces, record

GATE = [("reject", False, ""), ("accept_new_best", True, "# One\n"), ("reject", False, "# One\n")]


def step(number: int, action: str, changed: bool, document: str) -> dict[str, object]:
    attempts = [replace(a, context_hash=digest("block")) for a in group(f"t{number}", "resolved", "unresolved")]
    return {
        "step": number,
        "action": action,
        "changed": changed,
        "document": document,
        "attempts": [plain(a) for a in attempts],
    }


STEPS = [step(n, *row) for n, row in enumerate([*GATE, ("accept", True, "x" * (PIECE + 5))], 1)]


def test_documents_become_versions_and_an_interrupted_import_goes_on(tmp_path, data_dir):
    whole, parts = (BankStore.create(tmp_path / name, "o/r") for name in ("whole", "parts"))
    record(whole, STEPS)
    for number in range(len(STEPS) + 1):
        record(parts, STEPS[:number])
        record(parts, STEPS[:number])
    assert (parts.dir / "ledger.jsonl").read_bytes() == (whole.dir / "ledger.jsonl").read_bytes()
    assert [len(whole.at(v).skills) for v in range(3)] == [0, 1, 2]
    assert "".join(i.markdown for i in whole.bank.skills) == "x" * (PIECE + 5), "nothing is cut"
    assert verify(whole.dir) == []


def test_no_document_is_no_item():
    assert pieces(" \n") == ()


def test_it_talks_to_the_endpoint_of_the_run(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    given = Settings(model="openai/m", model_kwargs={"api_base": "http://127.0.0.1:1/v1"})
    assert model_of(given) == {"name": "m", "endpoint": "http://127.0.0.1:1/v1", "key": "k"}
    with pytest.raises(ConfigError, match="OpenAI-compatible"):
        model_of(Settings(model="anthropic/claude"))
