"""mini-SWE-agent's configuration of unattended rollouts, and what of it is refused before any of them runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from valve_plugin.errors import ConfigError

Sections = dict[str, dict[str, Any]]
_SECTIONS = ("agent", "model", "environment")

_REFUSED = {
    "bubblewrap": "mini's class leaves the network and your environment variables, keys included, in the agent's reach "
    "and limits nothing but wall time; without it VALVE's own bubblewrap is used",
    "singularity": "its --contain keeps the network, --fakeroot makes the agent root, and nothing limits CPU, memory, "
    "processes or disk",
    "local": "commands would run on this machine as you",
    "swerex_docker": "a server inside the container takes commands over the network, which is therefore open",
    "swerex_modal": "its containers run on another machine, with a network, and outlive a killed run",
    "contree": "its containers run on another machine, and what they can reach cannot be told from here",
}


def require(given: Sequence[str]) -> None:
    """Refuse what rollouts could only end as errored with; `given` is the setting `mini_config`.

    Raises:
        ConfigError: see `read`; or an environment class is named that cannot hold what unattended rollouts need.
    """
    named, where = "", ""
    for one in given:
        own = read([one])["environment"]
        if "environment_class" in own:
            named, where = class_named(own), one
    if why := refusal(named):
        raise ConfigError(f"mini_config {where}: {why}")


def read(given: Sequence[str]) -> Sections:
    """Return the merged sections of what `mini -c` takes: agent, model and environment are always there.

    Raises:
        ConfigError: there is no such file, or it is not a mini configuration.
    """
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")  # else its import greets on stdout
    from minisweagent.utils.serialize import recursive_merge

    merged: Sections = recursive_merge({name: {} for name in _SECTIONS}, *map(_sections, given))
    return merged


def class_named(environment: Mapping[str, Any]) -> str:
    """Return the class that an `environment` section names; empty: none, which may be written as null. Pure."""
    named = environment.get("environment_class")
    return "" if named is None else str(named)


def refusal(environment_class: str) -> str:
    """Return why an unattended rollout cannot run in one of mini's environment classes; empty: it can. Pure.

    `docker`, which mini's own benchmark configurations name, is a container where the task has an image, else
    bubblewrap: both hold what it promises and more.
    """
    if environment_class in ("", "docker"):
        return ""
    why = _REFUSED.get(environment_class, "nothing is known about its isolation")
    return f"environment_class {environment_class!r} is refused: {why}. Leave it out, or name 'docker'"


def _sections(given: str) -> Sections:
    import yaml
    from minisweagent.config import get_config_from_spec

    try:
        found = get_config_from_spec(given) or {}
    except FileNotFoundError as e:
        raise ConfigError(f"mini_config {given}: there is no such file, neither here nor among mini's own") from e
    except (OSError, ValueError, yaml.YAMLError) as e:
        raise ConfigError(f"mini_config {given}: expected a file or KEY=VALUE, as `mini -c` takes: {e}") from e
    if not isinstance(found, dict) or not all(isinstance(found.get(name) or {}, dict) for name in _SECTIONS):
        raise ConfigError(f"mini_config {given}: expected {', '.join(_SECTIONS)}, each a mapping")
    return {name: part for name, part in found.items() if part is not None}
