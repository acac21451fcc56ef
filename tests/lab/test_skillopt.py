"""SkillOpt's own package on our tasks: what it keeps becomes versions of a bank, however often that is interrupted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import valve_plugin.lab
from tests.bank import build
from tests.extract.provider import provider
from tests.lab.test_conditions import compare, group
from tests.lab.test_run import experiment, start  # noqa: F401 (fixtures)
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import digest, plain
from valve_plugin.config import Settings
from valve_plugin.lab.conditions import skillopt
from valve_plugin.lab.conditions.skillopt import PIECE, pieces, record, settings_of

GATE = [("reject", False, ""), ("accept_new_best", True, "# One\n"), ("reject", False, "# One\n")]


def step(number: int, action: str, changed: bool, document: str) -> dict[str, object]:
    attempts = [plain(replace(a, context_hash=digest("block"))) for a in group(f"t{number}", "resolved", "unresolved")]
    return {"step": number, "action": action, "changed": changed, "document": document, "attempts": attempts}


STEPS = [step(n, *row) for n, row in enumerate([*GATE, ("accept", True, "x" * (PIECE + 5))], 1)]


def test_documents_become_versions_and_an_interrupted_import_goes_on(tmp_path, data_dir):
    whole, parts = (BankStore.create(tmp_path / name, "o/r") for name in ("whole", "parts"))
    record(whole, STEPS)
    for number in range(len(STEPS) + 1):
        record(parts, STEPS[:number])
        record(parts, STEPS[:number])
    assert (parts.dir / "ledger.jsonl").read_bytes() == (whole.dir / "ledger.jsonl").read_bytes()
    assert [len(whole.at(v).skills) for v in range(3)] == [0, 1, 2]
    assert [(i.markdown, i.source_tasks) for i in whole.at(1).skills] == [("# One\n", ("t2",))]
    assert "".join(i.markdown for i in whole.bank.skills) == "x" * (PIECE + 5), "nothing is cut"
    assert verify(whole.dir) == []
    assert pieces(" \n") == ()


@pytest.mark.parametrize("left", [b"", b'[{"step": 1, "act', b"{}", b"\xff", None])
def test_training_that_left_nothing_readable_is_done_again(left, tmp_path, data_dir, monkeypatch):
    """A kill while the file was written; None: there is no file."""
    store, trained = BankStore.create(tmp_path / "bank", "o/r"), []
    monkeypatch.setattr(skillopt, "require", lambda settings, simulate: None)
    monkeypatch.setattr(skillopt, "fixed_panel", lambda store: build.PANEL)
    monkeypatch.setattr(skillopt, "settings_of", lambda *about: {})
    ours = SimpleNamespace(train=lambda *about: trained.append(1) or STEPS)
    monkeypatch.setattr(valve_plugin.lab.conditions, "skillopt_adapter", ours, raising=False)
    run = SimpleNamespace(store=store, settings=Settings())
    ended = tmp_path / "skillopt.ended.json"
    if left is not None:
        ended.write_bytes(left)
    for _ in range(2):
        skillopt.train(run, [], tmp_path)
    assert trained == [1], "once more, and then it is on record"
    assert len(list(store.entries())) == 1 + len(STEPS) + 2


def test_what_its_optimizer_is_asked(tmp_path, data_dir):
    """By the package's own reflection, about rows as our adapter gives them; and every prompt it can look up."""
    pytest.importorskip("skillopt")
    from skillopt import model
    from skillopt.prompts import load_prompt

    from valve_plugin.lab.conditions import skillopt_adapter as ours

    store = BankStore.create(tmp_path / "bank", "o/r")
    issue = SimpleNamespace(instance_id="t1", problem_statement="Issue of t1.")
    with provider('{"reasoning": "none", "patch": {"reasoning": "none", "edits": []}}') as server:
        given = Settings(model="openai/m", model_kwargs={"api_base": server.base, "api_key": "none"}, review="off")
        cfg = settings_of(given, stream=4, panel=3, out=tmp_path)
        adapter = ours.Adapter.__new__(ours.Adapter)
        adapter._cfg = cfg
        for name in ("analyst_workers", "failure_only", "minibatch_size", "edit_budget"):
            setattr(adapter, name, cfg[name])
        ours.supply_prompts()
        model.configure_azure_openai(
            endpoint=cfg["azure_openai_endpoint"], api_key="none", auth_mode=cfg["azure_openai_auth_mode"]
        )
        model.set_optimizer_backend(cfg["optimizer_backend"])
        model.set_optimizer_deployment(cfg["optimizer_model"])
        rows = [ours._result(store, a, [issue], tmp_path) for a in group("t1", "resolved", "unresolved")]
        adapter.reflect(rows, "# Known\n\nLook twice.\n", str(tmp_path))
    asked = [f"### {m['role']}\n\n{m['content']}\n\n" for r in server.asked for m in r["messages"]]
    compare("skillopt.prompt.txt", "".join(asked))
    assert all(map(load_prompt, ours.PROMPTS))
