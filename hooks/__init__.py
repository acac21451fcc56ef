"""The built-in plugin: one file per step, thin glue between hook calls and the rooms that do the work.

`Valve` is the object behind the entry point `valve`; each plugin manager gets an instance of its own.
"""

from __future__ import annotations

from valve_plugin.hooks.attempt import AttemptHooks
from valve_plugin.hooks.extract import ExtractHooks
from valve_plugin.hooks.retrieve import RetrieveHooks
from valve_plugin.hooks.validate import ValidateHooks


class Valve(RetrieveHooks, AttemptHooks, ExtractHooks, ValidateHooks):
    """All hook implementations of VALVE; the four bases share one `Session`."""
