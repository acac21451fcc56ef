"""Finding plugins by entry point and loading them into one pluggy manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pluggy

from valve_plugin.errors import PluginError
from valve_plugin.hookspecs import HostEvents, StepHooks

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from valve_plugin.events import Event

GROUP = "minisweagent.plugins"
TRACKERS = {"mlflow": "valve_plugin.hooks.mlflow:Tracker"}
"""Trackers that come with VALVE."""


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the plugin group by name, without loading them. The first on the path wins."""
    from importlib.metadata import distributions  # 20 ms where nobody else imported it, so not at import

    found: dict[str, EntryPoint] = {}
    for distribution in distributions():
        # Looking for the name first takes half the time of parsing what every distribution advertises.
        if GROUP in (distribution.read_text("entry_points.txt") or ""):
            for entry_point in distribution.entry_points.select(group=GROUP):
                found.setdefault(entry_point.name, entry_point)
    return found


def load(names: Sequence[str], *, broken: Callable[[PluginError], None] | None = None) -> pluggy.PluginManager:
    """Return a manager holding the named plugins, in the order given (the last is asked first).

    A plugin that is a class is instantiated, so that each manager's plugin has state of its own.

    Args:
        names: names of entry points, or "module:object" for other plugins.
        broken: gets the error of each plugin that does not load, which is then left out; if None, errors are raised.

    Raises:
        PluginError: a name is not installed; a plugin does not import, or implements a hook that does not exist.
    """
    manager = pluggy.PluginManager("minisweagent")
    manager.add_hookspecs(HostEvents)
    manager.add_hookspecs(StepHooks)
    wanted = dict.fromkeys(names)
    from importlib.metadata import EntryPoint

    places = TRACKERS | {name: name for name in wanted if ":" in name}
    have = installed() | {name: EntryPoint(name, place, GROUP) for name, place in places.items() if name in wanted}
    if unknown := [name for name in wanted if name not in have]:
        listed = ", ".join(sorted(have)) or "none"
        raise PluginError(f"no plugin named {unknown[0]!r}; installed: {listed}")
    for name in wanted:
        try:
            _register(manager, have[name])
        except PluginError as e:
            if broken is None:
                raise
            broken(e)
    return manager


def send(hook: pluggy.HookRelay, event: Event) -> None:
    """Tell all plugins of a manager (its `hook`) about an event."""
    hook.valve_event(event=event, name=event.name, data=event.data)


def _register(manager: pluggy.PluginManager, entry_point: EntryPoint) -> None:
    name = entry_point.name
    try:
        plugin = entry_point.load()
        manager.register(plugin() if isinstance(plugin, type) else plugin, name=name)
        manager.check_pending()  # a misspelt hook would otherwise be registered and never called
    except Exception as e:  # a foreign module may raise anything while it is imported
        if manager.has_plugin(name):
            manager.unregister(name=name)
        raise PluginError(f"plugin {name!r} does not load: {type(e).__name__}: {e}") from e
