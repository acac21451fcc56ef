"""SkillOpt through its own package: its trainer, its gate, its document; our tasks, our rollouts, our holdout.

It learns from the same stream, and its selection set is the same panel with as many rollouts. When it has ended, each
document it kept becomes a version of this run's bank, so that the same evaluation measures it. A run that was killed
starts over: rollouts come out of the journal, which makes that cheap and, unlike the package's own resume, gives what
an uninterrupted run gives. Settings: docs/experiments.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin.bank import moves
from valve_plugin.bank.entries import Proposed, Taken
from valve_plugin.bank.files import write_atomic
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, convert, decode
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.evolve.group import note
from valve_plugin.evolve.steps import waiting
from valve_plugin.experiment.conditions import Condition
from valve_plugin.extras import pip_install
from valve_plugin.reading import regular
from valve_plugin.records import Attempt, Item, Proposal, Task

VERSION = "0.2.0"
ITEM = "skillopt_document"
PIECE = 12_000
"""Characters one item may hold; a longer document takes several."""
_MAX_BYTES = 1_000_000_000


def settings_of(settings: Settings, stream: int, panel: int, out: Path) -> dict[str, Any]:
    """Return the trainer's configuration: its published defaults, one pass over the stream as VALVE has.

    Args:
        settings: of the run.
        stream: tasks to learn from.
        panel: selection tasks.
        out: its folder.
    """
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
    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    provider, slash, name = model.partition("/")
    if provider != "openai" or not slash:
        raise ConfigError(f"SkillOpt needs a model behind an OpenAI-compatible endpoint (openai/NAME), not {model!r}")
    base = settings.model_kwargs.get("api_base") or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    key = settings.model_kwargs.get("api_key") or os.environ.get("OPENAI_API_KEY", "")
    return {"name": name, "endpoint": str(base), "key": str(key)}


def train(run: Any, stream: Sequence[Task], folder: Path) -> None:
    """Train on the stream, unless that was done; then write its documents to the ledger.

    Raises:
        ConfigError: the package is not installed, or not in the version this was written for.
        InfrastructureError: host or provider failed; start again.
    """
    out, ended = folder / "skillopt", folder / "skillopt.ended.json"
    kept = _kept(ended)
    if kept is None:
        require(run.settings, False)
        from valve_plugin.experiment import skillopt_adapter

        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        with (folder / "skillopt.log").open("w", encoding="utf-8") as log, redirect_stdout(log):
            kept = skillopt_adapter.train(run, stream, settings_of(run.settings, len(stream), len(_panel(run)), out))
        write_atomic(ended, canonical(kept))
    record(run.store, kept)


def _kept(ended: Path) -> list[dict[str, Any]] | None:
    """Return what training kept; None: it has not ended, or what it left cannot be read, so it is done again."""
    try:
        return decode(regular(ended, _MAX_BYTES), list[dict[str, Any]], where=str(ended))
    except (OSError, RecordError):
        return None


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


def _panel(run: Any) -> Sequence[Any]:
    panel = run.store.panel()
    assert panel is not None  # the run was started with one
    return panel.tasks  # type: ignore[no-any-return]


def record(store: BankStore, kept: Sequence[Mapping[str, Any]]) -> None:
    """Write every training step to the ledger: the attempts of its batch, and the document where it changed.

    Started again in the middle, it goes on behind what is there.
    """
    known = sum(isinstance(e, Proposed) for e in store.entries())
    for number, step in enumerate(kept):
        attempts = [convert(a, Attempt, where="the attempts that were kept") for a in step["attempts"]]
        proposal = _proposal(store, step, attempts)
        if number >= known:
            store.append(Proposed(proposal=proposal, attempts=tuple(map(note, attempts))))
        if number >= known - 1 and (kept_back := waiting(store)):
            before = store.bank
            after = moves.apply(before, kept_back)
            store.append(Taken(proposal_id=kept_back.id, bank_hash=before.hash, bank_after=after.hash))


def pieces(document: str) -> tuple[Item, ...]:
    """Return a document as items, in order; nothing for an empty one. Pure."""
    parts = [document[i : i + PIECE] for i in range(0, len(document), PIECE)] if document.strip() else []
    return tuple(
        Item(kind="skill", name=f"{ITEM}_{n}", text="The document SkillOpt trained.", markdown=part)
        for n, part in enumerate(parts, 1)
    )


def _proposal(store: BankStore, step: Mapping[str, Any], attempts: Sequence[Attempt]) -> Proposal:
    """A changed document takes the place of the one before, by a new name in every step."""
    task_id, number = attempts[-1].task_id, step["step"]
    base = Proposal(task_id=task_id, model=f"skillopt=={VERSION}", reason=str(step["action"]))
    if not step["changed"]:
        return base
    named = tuple(
        msgspec.structs.replace(item, name=f"{item.name}.{number}", source_tasks=(task_id,))
        for item in pieces(step["document"])
    )
    gone = tuple(item.key for item in store.bank.items if item.key not in {i.key for i in named})
    return msgspec.structs.replace(base, items=named, removes=gone or msgspec.UNSET)


CONDITION = Condition(
    f"SkillOpt {VERSION}: its package, trainer and gate, on the same tasks and rollouts",
    steps=None,
    ranked=False,
    hooks="valve_plugin.experiment.conditions.document:Whole",
    gated=False,
    run=train,
    require=require,
)
