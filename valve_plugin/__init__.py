"""VALVE: validation-gated skills for mini-SWE-agent.

This module stays empty of imports: the start-up guard passes through it in every `mini` process.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers understand it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from valve_plugin.host.instrument import instrument

__version__ = "0.1.0"
__all__ = ["__version__", "instrument"]


def __getattr__(name: str) -> Any:
    if name == "instrument":
        from valve_plugin.host.instrument import instrument

        return instrument
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
