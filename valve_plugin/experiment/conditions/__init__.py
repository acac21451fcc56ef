"""The ten conditions, one file each. A condition is three small things: settings, hooks, and steps of the loop."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.evolve.steps import Steps

NAMES = (
    "base",
    "skillopt",
    "ungated",
    "valve",
    "sentence",
    "no-principles",
    "document",
    "inject-all",
    "batch",
    "all-tasks",
)
"""In the order of the paper's tables: tab:main, then tab:impl-ablations."""


class Condition(NamedTuple):
    """What differs from the reference protocol; nothing given: nothing differs."""

    about: str
    """One line, for people."""
    steps: type[Steps] | None = Steps
    """The loop's steps; None: nothing is learned."""
    hooks: str = ""
    """Plugin that replaces some of VALVE's hooks, as "module:object", so that every process of a run loads it."""
    settings: Mapping[str, Any] = {}
    """Settings that belong to the condition and win over the experiment's."""
    ranked: bool = True
    """Whether retrieval selects; where it does not, settings of the selection and the paper's pairing mean nothing."""
    gated: bool = True
    """Whether a panel and a horizon are fixed first."""
    run: Callable[..., None] | None = None
    """A learner that is not VALVE's loop: called with the run, its stream and the folder of its own files."""
    require: Callable[[Settings, bool], None] | None = None
    """Refuses, before anything runs, settings it cannot use or a missing package: (settings, simulate)."""


def find(name: str) -> Condition:
    """Return a condition by name.

    Raises:
        ConfigError: there is none.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise ConfigError(f"no condition {name!r}; {hint}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    condition: Condition = module.CONDITION
    return condition
