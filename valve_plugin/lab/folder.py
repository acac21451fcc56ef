"""An experiment: what its file asks for, and the folder that holds its runs.

What a run is made with is recorded before its first rollout. A table says what its file says, so a file that asks for
something else than what ran is refused, with the difference. More seeds, conditions, models and repositories may come,
and a longer stream, whose beginning stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from valve_plugin import config
from valve_plugin.bank import ledger
from valve_plugin.bank.entries import Entry, Evaluated
from valve_plugin.codec import canonical, convert, decode, digest, parse_toml, plain, pretty
from valve_plugin.errors import BankNotFoundError, ConfigError, RecordError
from valve_plugin.evidence.evaluations import evaluated_checkpoints
from valve_plugin.files import make_dir, read_limited, read_regular, write_atomic
from valve_plugin.lab.conditions import Condition, find
from valve_plugin.records import Count, Positive
from valve_plugin.rollouts.attempt import solver_configuration
from valve_plugin.tasks import task_set
from valve_plugin.tasks.task_set import load

_MAX_BYTES = 1_000_000
_RESERVED = {
    "plugins": "its conditions name them",
    "seed": "write seeds = [0, 1]",
    "tasks": "a [[repository]] has them",
    "bank": "every run has its own, in --out",
    "repo": "a [[repository]] has it",
    "condition": "a [[condition]] has it",
    "panel_size": "write panel = 50, for all or in one [[condition]]",
    "panel_seed": "every panel is drawn with seed 123",
}
_FOLDERS = ("shared", "tasks")
"""The experiment's own, in --out beside those of the repositories."""
Label = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.=-]*$(?!\n)", max_length=60)]
FOLDER_FILE, RUN_FILE = "experiment.json", "settings.json"
END_FILE = "ended.json"
"""The ledger line a run ended with. A run that is under way has evaluations too, and is in no table."""
FREE = frozenset(
    {"workers", "executor", "ray_address", "speculate", "early_stop", "budget_usd", "max_rollouts", "max_hours",
     "model_tries", "model_pause", "sandbox", "unsafe_local", "bank", "tasks", "plugins", "repo", "language",
     "test_command", "check", "check_timeout", "learn"}
)  # fmt: skip
"""Settings that may change between two starts: they do not change what the ledger of a run says."""
_MAX_BYTES = 10_000_000
T = TypeVar("T")


class ExperimentRepository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task set; a relative path is relative to the experiment's file."""

    name: Label
    tasks: str


class ExperimentModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that say which model, like `model` and `model_kwargs`."""

    name: Label
    settings: dict[str, Any] = {}


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition under a label, perhaps with other settings; a sweep is a list of variants."""

    use: str
    """Name of the condition."""
    label: Label | None = None
    """In tables; default: the condition's name."""
    settings: dict[str, Any] = {}
    panel: Count | None = None
    """Validation tasks, where not the experiment's; 0: the reference protocol without validation."""
    feedback: bool = False
    """Reflection is told what validation said about earlier proposals."""

    @property
    def name(self) -> str:
        """Name in the tables."""
        return self.label or self.use

    @property
    def condition(self) -> str:
        """Name of the condition that runs: a panel of 0 is no validation."""
        return "ungated" if self.panel == 0 and self.use == "valve" else self.use


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file. The numbers' defaults are the paper's (tab:impl-config)."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """Title of the tables."""
    simulate: bool = False
    """Use the scripted model: a SIMULATION of the solver."""
    repository: Annotated[tuple[ExperimentRepository, ...], Meta(min_length=1)]
    model: Annotated[tuple[ExperimentModel, ...], Meta(min_length=1)] = (ExperimentModel(name="default"),)
    condition: Annotated[tuple[Variant, ...], Meta(min_length=1)]
    seeds: Annotated[tuple[int, ...], Meta(min_length=1)] = (0,)
    settings: dict[str, Any] = {}
    """For all; a model's, a variant's and those that belong to a condition win, in this order."""
    holdout: Positive = 100
    holdout_seed: int = 42
    panel: Positive = 50
    limit: Positive | None = None
    """Tasks of the stream that are used; default: all."""
    every: Positive = 10
    """Mixed tasks from one evaluation to the next."""
    eval_rollouts: Positive = 3

    @property
    def reserve(self) -> int:
        """Tasks set aside for validation: the size of the largest panel, so that all panel sizes have one stream."""
        return max([self.panel, *(v.panel for v in self.condition if v.panel)])


class ExperimentRun(NamedTuple):
    """One run of an experiment: a repository, a model, a variant of a condition, and a seed."""

    repository: ExperimentRepository
    model: ExperimentModel
    variant: Variant
    condition: Condition
    seed: int
    panel: int

    @property
    def path(self) -> Path:
        """Its folder inside the experiment's."""
        return Path(self.repository.name) / self.model.name / self.variant.name / f"seed-{self.seed}"

    def settings(self, experiment: Experiment) -> dict[str, Any]:
        """Return the run's settings; those that belong to the condition win."""
        hooks = [self.condition.hooks] if self.condition.hooks else []
        merged: dict[str, Any] = {"protocol": "paper", "retrieval": "paper"}
        for layer in (experiment.settings, self.model.settings, self.variant.settings, self.condition.settings):
            arguments = {**merged.get("model_kwargs", {}), **layer.get("model_kwargs", {})}
            merged |= layer
            if arguments:  # they add up: a condition that raises the effort keeps the model's address
                merged["model_kwargs"] = arguments
        return {**merged, "panel_size": self.panel, "plugins": ["valve", *hooks], "seed": self.seed}


def read(path: Path) -> Experiment:
    """Read an experiment's file.

    Raises:
        ConfigError: it is missing, no TOML, asks for what is unknown, or names two runs alike.
    """
    try:
        raw = parse_toml(read_regular(path, _MAX_BYTES))
    except OSError as e:
        raise ConfigError(f"{path}: no usable experiment: {e.strerror or e}; FILE is the experiment's TOML file") from e
    except RecordError as e:
        raise ConfigError(f"{path}: no usable experiment: {e}") from e
    try:
        experiment = convert(raw, Experiment, where=str(path))
    except RecordError as e:
        raise ConfigError(f"{e}; the page Experiments of the documentation explains the file") from e
    _check_names(experiment, path)
    layers = [("settings", experiment.settings), *((m.name, m.settings) for m in experiment.model)]
    for name, layer in [*layers, *((v.name, v.settings) for v in experiment.condition)]:
        if reserved := [setting for setting in _RESERVED if setting in layer]:
            hint = f"{reserved[0]} is the experiment's to say, not a setting's: {_RESERVED[reserved[0]]}"
            raise ConfigError(f"{path}: settings of {name}: {hint}")
        config.resolve(layer, where=f"{path}: settings of {name}")
    for variant in experiment.condition:
        try:
            find(variant.condition)
        except ConfigError as e:
            raise ConfigError(f"{path}: {variant.name}: {e}") from e
        if variant.panel == 0 and variant.condition not in ("base", "ungated"):
            raise ConfigError(f'{path}: {variant.name} has panel = 0; only `use = "valve"` can do without validation')
    return experiment


def list_runs(experiment: Experiment) -> list[ExperimentRun]:
    """Return all runs: repository by repository, model by model, seed by seed, conditions side by side."""
    return [
        ExperimentRun(repository, model, v, find(v.condition), seed, v.panel or experiment.panel)
        for repository in experiment.repository
        for model in experiment.model
        for seed in experiment.seeds
        for v in experiment.condition
    ]


def _check_names(experiment: Experiment, path: Path) -> None:
    """Refuse equal names, and names whose files would overwrite one another."""
    groups: dict[str, list[Any]] = {
        "repositories": [r.name for r in experiment.repository],
        "models": [m.name for m in experiment.model],
        "conditions": [v.name for v in experiment.condition],
        "figures": [f"{r.name}-{m.name}" for r in experiment.repository for m in experiment.model],
    }
    for group, names in groups.items():
        if repeated := [n for n in names if names.count(n) > 1]:
            raise ConfigError(f"{path}: two of its {group} are called {repeated[0]!r}; give one a label of its own")
    if repeated_seeds := [s for s in experiment.seeds if experiment.seeds.count(s) > 1]:
        raise ConfigError(f"{path}: seeds has {repeated_seeds[0]} twice, which is one run; give each seed once")
    if reserved := [r.name for r in experiment.repository if r.name in _FOLDERS]:
        raise ConfigError(
            f"{path}: a repository is called {reserved[0]!r}, as a folder of the experiment is; give it another name"
        )


class FolderRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run was made with, resolved from the file's layers."""

    use: str
    panel: Count
    feedback: bool
    limit: Positive | None
    settings: dict[str, Any]
    """With defaults, which another version may change; without those in FREE, and of the model's arguments only those
    in `config.SAMPLING`."""
    solver: str
    """Digest of what else changes how tasks are solved: the model's other arguments, mini's files and version."""


def require_unchanged(experiment: Experiment, runs: Iterable[ExperimentRun], out: Path, root: Path) -> None:
    """Refuse a file that says something else than what ran in this folder. Writes nothing.

    Args:
        root: folder that relative task paths start from.

    Raises:
        ConfigError: with what differs, the old and the new value, and what to do.
    """
    recorded = _read_record(out / FOLDER_FILE, FolderRecord)
    if recorded is None:
        return
    _require_equal(out, plain(replace(recorded, tasks={})), plain(_folder_record(experiment)))
    for run in runs:
        before = _read_record(out / run.path / RUN_FILE, RunRecord)
        if before is not None:
            _require_same_run(out / run.path, before, _run_record(experiment, run))
    for name, tasks in _task_digests(experiment, root).items():
        if recorded.tasks.get(name, tasks) != tasks:
            _refuse(out, f"tasks of {name}", f"digest {recorded.tasks[name][:12]}", f"digest {tasks[:12]}")


def record_run(experiment: Experiment, run: ExperimentRun, out: Path, root: Path) -> None:
    """Record what a run is made with; call `require_unchanged` first."""
    recorded = _read_record(out / FOLDER_FILE, FolderRecord)
    tasks = {**(recorded.tasks if recorded else {}), **_task_digests(experiment, root)}
    make_dir(out / run.path)
    write_atomic(out / FOLDER_FILE, pretty(replace(_folder_record(experiment), tasks=tasks)))
    write_atomic(out / run.path / RUN_FILE, pretty(_run_record(experiment, run)))


def write_bank_settings(experiment: Experiment, run: ExperimentRun, bank: Path, repo: str) -> None:
    """Write into a run's bank what the run is made with, so that later measurements there use the same settings.

    Settings that a bank's file may not set (they could run code, or send keys elsewhere) are named without values.
    """
    given = config.resolve(run.settings(experiment))
    noted, changed = _run_record(experiment, run, solver=False).settings, config.changed_settings(given)
    recorded = {name: value for name, value in noted.items() if name in changed and value != {}}
    hooks = {"condition": run.variant.condition} if run.condition.hooks else {}
    layer = {"repo": repo, **{n: v for n, v in recorded.items() if n not in config.NEVER_FROM_FILE}, **hooks}
    left_out: list[str] = [n for n in ("model_class", "mini_config") if n in recorded]
    left_out += [f"model_kwargs.{n}" for n in given.model_kwargs if n not in config.SAMPLING]
    lines = ["# What this run of an experiment is made with."]
    if experiment.simulate:
        lines.append("# Its model is scripted: give --simulate.")
    if left_out:
        lines.append(f"# Not taken from a file, so give it with -c as the experiment does: {', '.join(left_out)}.")
    write_atomic(bank / config.FILE_NAME, "\n".join([*lines, config.to_toml(layer)]).encode())


def task_source(tasks: str, root: Path) -> Path:
    """Return the folder of a repository's task set."""
    given = root / tasks
    return given if task_set.is_task_set(given) else task_set.find(tasks)


# ---- how far a run is


class Ending(NamedTuple):
    """How far a run is."""

    entries: Sequence[Entry]
    """The run's own ledger entries; empty: it has not ended."""
    remark: str
    """Why it is in no table, or what was written to its bank after it."""


def write_ending(folder: Path, head: str) -> None:
    """Record that a run has ended with this ledger line."""
    write_atomic(folder / END_FILE, pretty({"head": head}))


def remove_ending(folder: Path) -> None:
    """Record that a run goes on: its stream is longer now, or errored rollouts are tried again."""
    (folder / END_FILE).unlink(missing_ok=True)


def read_ending(experiment: Experiment, run: ExperimentRun, out: Path) -> Ending:
    """Return a run's own entries, if it has ended as the file asks."""
    folder = out / run.path
    file = folder / "bank" / ledger.FILE_NAME
    try:
        data = read_limited(file, ledger.MAX_BYTES, "ledger")
    except BankNotFoundError:
        return Ending((), "not begun")
    ending = _read_record(folder / END_FILE, dict[str, Any])
    if ending is None:
        return Ending((), "begun and not ended")
    recorded = _read_record(folder / RUN_FILE, RunRecord)
    if recorded and recorded.limit != experiment.limit:
        return Ending((), f"it ran with limit {recorded.limit}, the file says {experiment.limit or 'none'}")
    lines = ledger.parse(data, str(file)).lines
    last = next((n for n, line in enumerate(lines, start=1) if line.hash == ending.get("head")), 0)
    if not last:
        return Ending((), "its ledger no longer holds the line it ended with")
    later = (n for n, line in enumerate(lines[last:], start=last + 1) if not isinstance(line.entry, Evaluated))
    remark = ""
    if changed_at := next(later, 0):
        remark = f"its bank went on after the run, from ledger line {changed_at}; the table ends at line {last}"
    return Ending([line.entry for line in lines[:last]], remark)


def is_done(experiment: Experiment, run: ExperimentRun, out: Path) -> bool:
    """Whether nothing is left to run: it has ended, and no evaluation has errored rollouts that could be tried again.

    A run whose bank was continued by somebody is left alone.
    """
    entries, remark = read_ending(experiment, run, out)
    complete = all(point.entry.complete for point in evaluated_checkpoints(list(entries), experiment.every))
    return bool(entries) and (bool(remark) or complete)


# ---- records, and how two of them are compared


def _folder_record(experiment: Experiment) -> FolderRecord:
    return FolderRecord(
        simulate=experiment.simulate,
        holdout=experiment.holdout,
        holdout_seed=experiment.holdout_seed,
        largest_panel=experiment.reserve,
        every=experiment.every,
        eval_rollouts=experiment.eval_rollouts,
    )


def _run_record(experiment: Experiment, run: ExperimentRun, *, solver: bool = True) -> RunRecord:
    """Return what a run is made with; `solver`: whether to take the digest of the solver, which needs mini's files."""
    settings = config.resolve(run.settings(experiment))
    scripted = replace(settings, model=config.SCRIPTED_MODEL, model_kwargs={})
    as_read = decode(canonical(settings), dict[str, Any], where="settings")  # a tuple comes back as a list
    kept = {name: value for name, value in as_read.items() if name not in FREE}
    kept["model_kwargs"] = {name: value for name, value in settings.model_kwargs.items() if name in config.SAMPLING}
    return RunRecord(
        use=run.variant.condition,
        panel=run.panel,
        feedback=run.variant.feedback,
        limit=experiment.limit,
        settings=kept,
        solver=digest(solver_configuration(scripted if experiment.simulate else settings)) if solver else "",
    )


def _task_digests(experiment: Experiment, root: Path) -> dict[str, str]:
    """Return the digest of each repository's tasks, by its name; without paths, which differ by machine."""
    digests = {}
    for repository in experiment.repository:
        taskset = load(task_source(repository.tasks, root))
        digests[repository.name] = digest([replace(taskset.repository, source="", environment=""), taskset.tasks])
    return digests


def _require_same_run(folder: Path, before: RunRecord, now: RunRecord) -> None:
    unknown = sorted(now.settings.keys() - before.settings.keys() - {"model_kwargs"})
    if unknown and not ((folder / END_FILE).exists() and before.limit == now.limit):
        raise ConfigError(
            f"{folder} was begun by an earlier version of valve-plugin and does not say with which {unknown[0]}: "
            f"finish it with that version, give another --out, or delete {folder} to make it anew"
        )
    defaults = {**now.settings, "model_kwargs": {}}
    flat = [
        {"use": record.use, "panel": record.panel, "feedback": record.feedback, **defaults, **record.settings}
        for record in (before, now)
    ]
    _require_equal(folder, *flat)
    if before.limit != now.limit and not _extends(before, now):
        _refuse(folder, "limit", before.limit or "none", now.limit or "none")
    if now.solver and before.solver != now.solver:
        name = "the solver (mini's version or files, or arguments of the model that may hold keys and are not shown)"
        _refuse(folder, name, f"digest {before.solver[:12]}", f"digest {now.solver[:12]}")


def _extends(before: RunRecord, now: RunRecord) -> bool:
    """Whether the longer stream begins as the shorter one did; SkillOpt's schedule depends on its whole length."""
    return find(now.use).train is None and before.limit is not None and (now.limit is None or now.limit > before.limit)


def _require_equal(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now:
        if before.get(name) != now[name]:
            _refuse(folder, name, before.get(name), now[name])


def _refuse(folder: Path, name: str, before: object, now: object) -> NoReturn:
    old, new = (str(v).lower() if isinstance(v, bool) else v for v in (before, now))
    raise ConfigError(
        f"{folder} was made with {name} = {old}, the file now says {new}: "
        f"give another --out, or delete {folder} to make it anew"
    )


def _read_record(file: Path, kind: type[T]) -> T | None:
    try:
        return decode(read_limited(file, _MAX_BYTES, file.stem), kind, where=str(file))
    except BankNotFoundError:
        return None
    except RecordError as e:
        raise ConfigError(f"{e}; it records what ran here: restore it, or give another --out") from e
