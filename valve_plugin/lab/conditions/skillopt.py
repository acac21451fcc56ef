"""SkillOpt through its own package: its trainer, its gate, its document; our tasks, our rollouts, our holdout.

It learns from the same stream, and its selection set is the same panel with as many rollouts. When training has ended,
each document it kept becomes a version of this run's bank, so that the same evaluation measures it. A run that was
killed starts its training again. That is cheap, since rollouts come out of the journal, and the result is that of an
uninterrupted run, which the package's own resume does not give. Settings: docs/how-to/experiments.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin import config
from valve_plugin.bank import moves
from valve_plugin.bank.entries import Proposed, Taken
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, convert, decode
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.evolve.open import OpenRun
from valve_plugin.evolve.steps import attempt_note, waiting
from valve_plugin.extras import pip_install
from valve_plugin.files import read_regular, write_atomic
from valve_plugin.gate.plan import fixed_panel
from valve_plugin.lab.conditions import Condition
from valve_plugin.records import Attempt, Context, Item, Proposal, Task
from valve_plugin.retrieval import block

VERSION = "0.2.0"
ITEM = "skillopt_document"
PIECE = 12_000
"""Characters one item may hold; a longer document takes several."""
_MAX_BYTES = 1_000_000_000


def settings_of(settings: Settings, stream: int, panel: int, out: Path) -> dict[str, Any]:
    """Return the trainer's configuration: its published defaults, and one pass over the stream as VALVE makes."""
    model = model_of(settings)
    return {
        "out_root": str(out), "skill_init": str(out / "none.md"), "seed": settings.seed,
        "model_backend": "openai_chat", "optimizer_backend": "openai_chat", "target_backend": "openai_chat",
        "optimizer_model": model["name"], "target_model": model["name"],
        "azure_openai_endpoint": model["endpoint"], "azure_openai_api_key": model["key"],
        "azure_openai_auth_mode": "openai_compatible",
        "reasoning_effort": settings.model_kwargs.get("reasoning_effort", ""),
        "num_epochs": 1, "batch_size": 4, "accumulation": 1, "train_size": stream,
        "minibatch_size": 8, "merge_batch_size": 8, "analyst_workers": 1, "edit_budget": 4, "min_edit_budget": 2,
        "lr_scheduler": "cosine", "skill_update_mode": "patch", "use_gate": True, "gate_metric": "hard",
        "use_slow_update": False, "use_meta_skill": False, "failure_only": False,
        "sel_env_num": panel, "test_env_num": 0, "eval_test": False,
    }  # fmt: skip


def model_of(settings: Settings) -> dict[str, str]:
    """Return name, endpoint and key for the package's OpenAI-compatible client.

    Raises:
        ConfigError: the model is not behind such an endpoint.
    """
    model = config.model_of(settings)
    provider, slash, name = model.partition("/")
    if provider != "openai" or not slash:
        raise ConfigError(f"SkillOpt needs a model behind an OpenAI-compatible endpoint (openai/NAME), not {model!r}")
    base = settings.model_kwargs.get("api_base") or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    key = settings.model_kwargs.get("api_key") or os.environ.get("OPENAI_API_KEY", "")
    return {"name": name, "endpoint": str(base), "key": str(key)}


def train(run: OpenRun, stream: Sequence[Task], folder: Path) -> None:
    """Train on the stream, unless that was done; then write its documents to the ledger.

    Raises:
        ConfigError: the package is not installed, or not in the version this was written for.
        InfrastructureError: host or provider failed; start again.
    """
    out, ended = folder / "skillopt", folder / "skillopt.ended.json"
    try:
        steps = decode(read_regular(ended, _MAX_BYTES), list[dict[str, Any]], where=str(ended))
    except (OSError, RecordError):  # it has not ended, or was killed while it wrote this file: train again
        require(run.settings, False)
        from valve_plugin.lab.conditions import skillopt_adapter

        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        with (folder / "skillopt.log").open("w", encoding="utf-8") as log, redirect_stdout(log):
            cfg = settings_of(run.settings, len(stream), len(fixed_panel(run.store).tasks), out)
            steps = skillopt_adapter.train(run, stream, cfg, context_of)
        write_atomic(ended, canonical(steps))
    record(run.store, steps)


def require(settings: Settings, simulate: bool) -> None:
    """Refuse to run without the package, or with a model that it does not reach.

    Raises:
        ConfigError: it is missing, or in another version, or the model is behind no endpoint it could use.
    """
    try:
        found = version("skillopt")
    except PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise ConfigError(
            f"skillopt=={VERSION} is needed, installed is {found}; run: {pip_install(f'skillopt=={VERSION}')}"
        )
    if not simulate:
        model_of(settings)


def record(store: BankStore, steps: Sequence[Mapping[str, Any]]) -> None:
    """Write every training step to the ledger: the attempts of its batch, and the document where it changed.

    Called again after an interruption, it continues behind the steps that are in the ledger.
    """
    known = sum(isinstance(e, Proposed) for e in store.entries())
    for number, step in enumerate(steps):
        attempts = [convert(a, Attempt, where="skillopt.ended.json") for a in step["attempts"]]
        proposal = _proposal(store, step, attempts)
        if number >= known:
            store.append(Proposed(proposal=proposal, attempts=tuple(map(attempt_note, attempts))))
        if number >= known - 1 and (pending := waiting(store)):
            before = store.bank
            after = moves.apply(before, pending)
            store.append(Taken(proposal_id=pending.id, bank_hash=before.hash, bank_after=after.hash))


def pieces(document: str) -> tuple[Item, ...]:
    """Return a document as items, in order; nothing for an empty one. Pure."""
    parts = [document[i : i + PIECE] for i in range(0, len(document), PIECE)] if document.strip() else []
    return tuple(
        Item(kind="skill", name=f"{ITEM}_{n}", text="The document SkillOpt trained.", markdown=part)
        for n, part in enumerate(parts, 1)
    )


def context_of(document: str) -> Context:
    """Return the block a document is injected as: in full, as the other conditions' items are. Pure."""
    items = pieces(document)
    return Context(text=block.render(items), items=tuple(item.key for item in items))


def _proposal(store: BankStore, step: Mapping[str, Any], attempts: Sequence[Attempt]) -> Proposal:
    """A changed document replaces the one before it; its items have new names in every step."""
    task_id, number = attempts[-1].task_id, step["step"]
    base = Proposal(task_id=task_id, model=f"skillopt=={VERSION}", reason=str(step["action"]))
    if not step["changed"]:
        return base
    items = tuple(
        replace(item, name=f"{item.name}.{number}", source_tasks=(task_id,)) for item in pieces(step["document"])
    )
    new = {item.key for item in items}
    old = tuple(item.key for item in store.bank.items if item.key not in new)
    return replace(base, items=items, removes=old or UNSET)


SKILLOPT = Condition(  # its package, trainer and gate, on the same tasks and rollouts
    steps=None,
    hooks="valve_plugin.lab.conditions.ablations:WholeDocuments",
    gated=False,
    train=train,
    require=require,
)
