"""Finding plugins by entry point and loading them into one pluggy manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

from valve_plugin.errors import PluginError
from valve_plugin.hookspecs import HostEvents, Steps

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "minisweagent.plugins"


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of the plugin group by name, nothing loaded."""
    from importlib.metadata import entry_points  # 20 ms, so not at import

    return {ep.name: ep for ep in entry_points(group=GROUP)}


def load(names: Sequence[str]) -> pluggy.PluginManager:
    """Return a manager holding the named plugins, in the order given (the last is asked first).

    A plugin that is a class is instantiated, so that each manager's plugin has state of its own.

    Raises:
        PluginError: a name is not installed, a plugin does not import, or implements no such hook.
    """
    manager = pluggy.PluginManager("minisweagent")
    manager.add_hookspecs(HostEvents)
    manager.add_hookspecs(Steps)
    have = installed()
    for name in dict.fromkeys(names):
        if name not in have:
            listed = ", ".join(sorted(have)) or "none"
            raise PluginError(f"no plugin named {name!r}; installed: {listed}")
        try:
            plugin = have[name].load()
            manager.register(plugin() if isinstance(plugin, type) else plugin, name=name)
        except Exception as e:  # a foreign module may raise anything while it is imported
            raise PluginError(f"plugin {name!r} does not load: {type(e).__name__}: {e}") from e
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as e:
        raise PluginError(f"a plugin has a hook nobody calls: {e}") from e
    return manager
