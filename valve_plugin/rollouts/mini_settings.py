"""What mini-SWE-agent keeps for its user: default model and keys, in a file that every `mini` process reads."""

from __future__ import annotations

import os
from pathlib import Path


def load() -> None:
    """Add what `mini-extra config setup` wrote to `os.environ`, as importing mini would; what is set already stays."""
    from dotenv import load_dotenv
    from platformdirs import user_config_path

    folder = os.environ.get("MSWEA_GLOBAL_CONFIG_DIR") or user_config_path("mini-swe-agent")
    load_dotenv(Path(folder) / ".env")
