"""What the runs of a folder were made with: written before their first rollout, and what a file has to agree with.

A table says what its file says. So a file that asks for something else than what ran is refused, with the difference.
More seeds, conditions, models and repositories may come, and a longer stream, whose beginning stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from valve_plugin.bank.files import make_dir, read_limited, write_atomic
from valve_plugin.codec import decode, digest, plain, pretty
from valve_plugin.config import FILE_NAME, NEVER_FROM_FILE, SAMPLING, Settings, changed, resolve, to_toml
from valve_plugin.errors import BankNotFoundError, ConfigError, RecordError
from valve_plugin.experiment.conditions import find
from valve_plugin.experiment.spec import Cell, Experiment
from valve_plugin.records import Count, Positive
from valve_plugin.rollouts.attempt import solver_configuration
from valve_plugin.rollouts.worker import SCRIPTED_MODEL
from valve_plugin.tasks import folder
from valve_plugin.tasks.load import load

SHARED, RUN = "experiment.json", "settings.json"
FREE = frozenset(
    {"workers", "run_ahead", "early_stop", "budget_usd", "max_rollouts", "max_hours", "model_tries", "model_pause",
     "sandbox", "unsafe_local", "bank", "tasks", "plugins", "repo", "language", "test_command", "check",
     "check_timeout", "learn"}
)  # fmt: skip
"""Settings that change what a run takes, or nothing, and not what its ledger says. All others are bound."""
_MAX_BYTES = 10_000_000
T = TypeVar("T")


class Shared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all runs of a folder have in common."""

    simulate: bool
    holdout: Positive
    holdout_seed: int
    largest_panel: Positive
    """Set aside in every run, so it decides about every stream."""
    every: Positive
    eval_rollouts: Positive
    tasks: dict[str, str] = {}
    """Digest of each repository's tasks, by its name; more may come."""


class Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run was made with, resolved from the file's layers."""

    use: str
    panel: Count
    feedback: bool
    limit: Positive | None
    settings: dict[str, Any]
    """Without defaults, without those in FREE, and of the model's arguments only those in `config.SAMPLING`."""
    solver: str
    """Digest of what else changes how tasks are solved: the model's other arguments, mini's files and version."""


def require(experiment: Experiment, wanted: Iterable[Cell], out: Path, root: Path, *, tables: bool) -> None:
    """Refuse a file that says something else than what ran in this folder. Writes nothing.

    Args:
        experiment: the file.
        wanted: runs of it.
        out: the experiment's folder.
        root: folder that relative task paths start from.
        tables: nothing will run, so tasks and solver need not be on this machine; a folder without records is old.

    Raises:
        ConfigError: with what differs, the old and the new value, and what to do.
    """
    shared = _read(out / SHARED, Shared)
    if shared is None:
        if not tables:
            _require_new(wanted, out)
        return
    _agree(shared, _shared(experiment), out)
    for cell in wanted:
        made = _read(out / cell.path / RUN, Made)
        if made is not None:
            _same(made, _made(experiment, cell, tables=tables), out / cell.path, tables=tables)
    for name, tasks in ({} if tables else _tasks(experiment, root)).items():
        if shared.tasks.get(name, tasks[0]) not in tasks:
            _refuse(out, f"tasks of {name}", f"digest {shared.tasks[name][:12]}", f"digest {tasks[0][:12]}", out)


def bind(experiment: Experiment, cell: Cell, out: Path, root: Path) -> None:
    """Note what a run is made with, unless that was done.

    Raises:
        ConfigError: see `require`.
    """
    require(experiment, [cell], out, root, tables=False)
    now = _made(experiment, cell)
    before, shared = _read(out / cell.path / RUN, Made), _read(out / SHARED, Shared)
    tasks = {**(shared.tasks if shared else {}), **{name: now for name, (now, _) in _tasks(experiment, root).items()}}
    if shared is None or shared.tasks != tasks:
        make_dir(out)
        write_atomic(out / SHARED, pretty(replace(_shared(experiment), tasks=tasks)))
    if now != before:
        make_dir(out / cell.path)
        write_atomic(out / cell.path / RUN, pretty(now))


def tell_bank(experiment: Experiment, cell: Cell, bank: Path, repo: str) -> None:
    """Write into a run's bank what the run is made with, so that whoever measures there measures the same thing.

    What a bank's file may not say (it could run code, or send keys elsewhere) is named, without its value.
    """
    given = resolve(cell.settings(experiment))
    made = _made(experiment, cell, tables=True).settings
    hooks = {"condition": cell.variant.condition} if cell.condition.hooks else {}
    says = {"repo": repo, **{n: v for n, v in made.items() if n not in NEVER_FROM_FILE}, **hooks}
    left: list[str] = [n for n in ("model_class", "mini_config") if n in made]
    left += [f"model_kwargs.{n}" for n in given.model_kwargs if n not in SAMPLING]
    lines = ["# What this run of an experiment is made with."]
    lines += ["# Its model is scripted: give --simulate."] if experiment.simulate else []
    lines += [f"# Not taken from a file, so give it with -c as the experiment does: {', '.join(left)}."] if left else []
    write_atomic(bank / FILE_NAME, "\n".join([*lines, to_toml(says)]).encode())


def longer(experiment: Experiment, cell: Cell, out: Path) -> str:
    """Return in words what the file's limit adds to the one this run was made with; empty: nothing."""
    made = _read(out / cell.path / RUN, Made)
    if made is None or made.limit == experiment.limit:
        return ""
    return f"it ran with limit {made.limit}, the file says {experiment.limit or 'none'}"


def _shared(experiment: Experiment) -> Shared:
    return Shared(
        simulate=experiment.simulate,
        holdout=experiment.holdout,
        holdout_seed=experiment.holdout_seed,
        largest_panel=experiment.reserve,
        every=experiment.every,
        eval_rollouts=experiment.eval_rollouts,
    )


def _made(experiment: Experiment, cell: Cell, *, tables: bool = False) -> Made:
    settings = resolve(cell.settings(experiment))
    solver = replace(settings, model=SCRIPTED_MODEL, model_kwargs={}) if experiment.simulate else settings
    kept = {name: value for name, value in changed(settings).items() if name not in FREE}
    arguments = {name: value for name, value in settings.model_kwargs.items() if name in SAMPLING}
    return Made(
        use=cell.variant.condition,
        panel=cell.panel,
        feedback=cell.variant.feedback,
        limit=experiment.limit,
        settings={**kept, "model_kwargs": arguments} if arguments else _without(kept, "model_kwargs"),
        solver="" if tables else digest(solver_configuration(solver)),
    )


def _tasks(experiment: Experiment, root: Path) -> dict[str, tuple[str, str]]:
    """Return (digest, as it was noted before) of each repository's tasks: without paths, which differ by machine."""
    sets = {r.name: load(source(r.tasks, root)) for r in experiment.repository}
    here = {name: (replace(found.repository, source=""), found.tasks) for name, found in sets.items()}
    return {n: (digest([replace(r, environment=""), tasks]), digest([r, tasks])) for n, (r, tasks) in here.items()}


def source(tasks: str, root: Path) -> Path:
    """Return the folder of a repository's task set."""
    given = root / tasks
    return given if folder.is_one(given) else folder.find(tasks)


def _same(before: Made, now: Made, run: Path, *, tables: bool) -> None:
    flat = [{**plain(replace(made, settings={}, limit=None)), **plain(Settings()), **made.settings}
            for made in (before, now)]  # fmt: skip
    for one in flat:
        one.pop("settings")
    for name in [n for n in flat[1] if n != "solver"]:
        if flat[0].get(name) != flat[1][name]:
            _refuse(run, name, flat[0].get(name), flat[1][name], run)
    if before.limit != now.limit and not _grows(before, now):
        _refuse(run, "limit", before.limit or "none", now.limit or "none", run)
    if before.solver != now.solver and not tables:
        said = "the solver (mini's version or files, or arguments of the model that may hold keys and are not shown)"
        _refuse(run, said, f"digest {before.solver[:12]}", f"digest {now.solver[:12]}", run)


def _grows(before: Made, now: Made) -> bool:
    """Whether the longer stream begins as the shorter one did; SkillOpt's schedule depends on its whole length."""
    return find(now.use).run is None and before.limit is not None and (now.limit is None or now.limit > before.limit)


def _agree(before: Shared, now: Shared, out: Path) -> None:
    old, new = (plain(replace(shared, tasks={})) for shared in (before, now))
    for name in new:
        if old[name] != new[name]:
            _refuse(out, name, old[name], new[name], out)


def _refuse(where: Path, name: str, before: object, now: object, gone: Path) -> NoReturn:
    raise ConfigError(
        f"{where} was made with {name} = {_shown(before)}, the file now says {_shown(now)}: give another --out, "
        f"or delete {gone} to make it anew"
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _require_new(wanted: Iterable[Cell], out: Path) -> None:
    if any((out / cell.path / "bank").exists() for cell in wanted) or (out / "tasks").exists():
        raise ConfigError(
            f"{out} was made before runs noted what they were made with, so nothing can be added to it: give another "
            "--out; with --tables its tables are written from what is there"
        )


def _without(layer: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != name}


def _read(file: Path, kind: type[T]) -> T | None:
    try:
        return decode(read_limited(file, _MAX_BYTES, file.stem), kind, where=str(file))
    except BankNotFoundError:
        return None
    except RecordError as e:
        raise ConfigError(f"{e}; no note of what ran here: restore it, or give another --out") from e
