"""What one plugin instance remembers between hook calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from valve_plugin.config import Settings
from valve_plugin.hookspecs import hookimpl


class Session:
    """Settings and bank of this process or agent."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.bank_dir: Path | None = None

    @hookimpl
    def minisweagent_configure(self, config: dict[str, Any], options: Mapping[str, Any]) -> None:
        """Take `valve.*` out of mini's configuration."""
        config.pop("valve", None)
