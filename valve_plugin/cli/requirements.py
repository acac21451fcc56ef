"""What this distribution and its extras require, beside what is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from valve_plugin.extras import DISTRIBUTION, wanted

_SHOWN = 3


def extras() -> list[str]:
    """Return the extras of this distribution, by name; none where it is not installed as one."""
    try:
        return sorted(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [])
    except metadata.PackageNotFoundError:
        return []


def lacking(extra: str | None) -> dict[str, str]:
    """Return those of `wanted` that are not met, each with the version that is installed; empty: none is."""
    return {line: version for line in wanted(extra) if (version := _unmet(line)) is not None}


def met(extra: str) -> str:
    """Return what is installed of an extra that lacks nothing, the first few for a person: `matplotlib 3.10`."""
    from packaging.requirements import Requirement

    names = [Requirement(line).name for line in wanted(extra)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"{name} {metadata.version(name)}" for name in names[:_SHOWN]) + more


def told(lacks: Mapping[str, str]) -> str:
    """Return them for a person: `numpy>=1.26 (1.25.2 is installed), rich>=13`. Pure."""
    return ", ".join(f"{line} ({version} is installed)" if version else line for line, version in lacks.items())


def _unmet(line: str) -> str | None:
    """Return the version that does not meet a requirement, "" where there is none; None: it is met."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return ""
    return None if requirement.specifier.contains(version, prereleases=True) else version
