"""What one experiment file asks for: repositories x models x conditions x seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from valve_plugin.codec import convert, parse_toml
from valve_plugin.config import resolve
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.files import read_regular
from valve_plugin.lab.conditions import Condition, find
from valve_plugin.records import Count, Positive

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
        raw = parse_toml(read_regular(path, _MAX_BYTES).decode("utf-8"))
    except OSError as e:
        raise ConfigError(f"{path}: no usable experiment: {e.strerror or e}; FILE is the experiment's TOML file") from e
    except (UnicodeDecodeError, RecordError) as e:
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
        resolve(layer, where=f"{path}: settings of {name}")
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
