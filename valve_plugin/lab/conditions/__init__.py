"""The ten conditions of the paper. A condition is settings, hooks and steps that differ from the reference protocol."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.evolve.steps import Steps
from valve_plugin.words import meant

_PLACES = {
    "base": "ablations:BASE",
    "skillopt": "skillopt:SKILLOPT",
    "ungated": "ablations:UNGATED",
    "valve": "ablations:VALVE",
    "sentence": "ablations:SENTENCE",
    "no-principles": "ablations:NO_PRINCIPLES",
    "document": "ablations:DOCUMENT",
    "inject-all": "ablations:INJECT_ALL",
    "batch": "ablations:BATCH",
    "all-tasks": "ablations:ALL_TASKS",
}
NAMES = tuple(_PLACES)
"""In the order of the paper's tables: tab:main, then tab:impl-ablations."""


class Condition(NamedTuple):
    """How a condition differs from the reference protocol; the defaults are the reference protocol."""

    steps: type[Steps] | None = Steps
    """The steps of the loop; None: nothing is learned by VALVE's loop."""
    hooks: str = ""
    """Plugin that replaces some of VALVE's hooks, as "module:object", so that every process of a run loads it."""
    settings: Mapping[str, Any] = {}
    """Settings that belong to the condition and win over the experiment's."""
    gated: bool = True
    """Whether a gate judges proposals, so that a panel and a horizon are fixed first."""
    train: Callable[..., None] | None = None
    """A learner in place of VALVE's loop: called with the run, its stream and the folder for its own files."""
    require: Callable[[Settings, bool], None] | None = None
    """Refuses, before anything runs, settings it cannot use or a missing package: (settings, simulate)."""


def find(name: str) -> Condition:
    """Return a condition by name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in _PLACES:
        hint = meant(name, NAMES) or f"there are {', '.join(NAMES)}"
        raise ConfigError(f"no condition {name!r}; {hint}")
    module, _, constant = _PLACES[name].partition(":")
    condition: Condition = getattr(importlib.import_module(f"{__name__}.{module}"), constant)
    return condition


def with_hooks(settings: Settings) -> Settings:
    """Return the settings with the hooks of the condition they name among the plugins.

    Raises:
        ConfigError: there is no such condition.
    """
    hooks = find(settings.condition).hooks if settings.condition else ""
    if not hooks or hooks in settings.plugins:
        return settings
    return replace(settings, plugins=(*settings.plugins, hooks))
