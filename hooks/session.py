"""What one plugin instance remembers between hook calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valve_plugin.config import Settings, resolve
from valve_plugin.errors import BankNotFoundError, ConfigError
from valve_plugin.hookspecs import hookimpl
from valve_plugin.reading import leave_dotenv
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    import pluggy

    from valve_plugin.rollouts.live import Run

ASKED_FOR = ("check", "attempts")
"""What runs commands: in a live run only the person's own `-c` counts, not a file that came with the repository."""


class Session:
    """Settings and bank of this process or agent, and the runs that are going on."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.bank_dir: Path | None = None
        """None: there is no bank, and mini runs as stock."""
        self.repo = ""
        """What the person calls the repository at hand; a bank's file names its own."""
        self.told_foreign = False
        self.manager: pluggy.PluginManager | None = None
        self.runs: dict[int, Run] = {}
        """By agent: a batch runs several at once, in threads."""

    @hookimpl
    def minisweagent_configure(
        self, config: dict[str, Any], options: Mapping[str, Any], manager: pluggy.PluginManager
    ) -> None:
        """Take the settings from `valve.*` of mini's configuration, and find the bank and those it brings.

        Raises:
            ConfigError: a wrong setting, or one that cannot be honoured here.
            BankNotFoundError: the bank that was named does not exist.
        """
        self.manager = manager
        leave_dotenv()  # mini makes its model after this; what valve starts inherits it
        given = dict(config.get("valve") or {})
        self.settings = resolve(given, where="valve.*")
        self.repo = self.settings.repo
        self.bank_dir = _bank(self.settings)
        if self.bank_dir is not None:
            self.settings = _with_file(self.bank_dir, given)
        if self.settings.attempts > 1:
            _require_unattended(config, self.bank_dir)


def say(text: str) -> None:
    """Show the person one line, on stderr: stdout is mini's."""
    line = " ".join(text.split())  # what a check printed may be in it: nothing may steer the terminal
    sys.stderr.write(f"valve: {''.join(c for c in line if c.isprintable())}\n")


def _bank(settings: Settings) -> Path | None:
    from valve_plugin.bank.checkout import find
    from valve_plugin.bank.ledger import FILE_NAME
    from valve_plugin.bank.paths import locate

    here = find(Path.cwd())
    place = locate(settings.bank, here.folder, settings.repo or here.name)
    if (place / FILE_NAME).exists() or (place / "bank.json").exists():
        return place
    if settings.bank:
        raise BankNotFoundError(
            f"{place}: there is no bank here; make one with `valve init --bank {quote(settings.bank)}`"
        )
    say(f"there is no bank for {here.name}, so nothing is injected or recorded; `valve init` makes one")
    return None


def _with_file(bank_dir: Path, given: Mapping[str, Any]) -> Settings:
    """Return the settings with the bank's `valve.toml` underneath; a damaged file costs one line, not the run."""
    from msgspec.structs import replace

    from valve_plugin.config import load

    asked = resolve(given, where="valve.*")
    try:
        settings = load(bank_dir, given)
    except ConfigError as e:
        say(f"{e}; going on without that file")
        return asked
    if settings.learn == "inline" and asked.learn != "inline":
        settings = replace(settings, learn="queue")  # judging calls models and runs code: see ASKED_FOR
    return replace(settings, **{name: getattr(asked, name) for name in ASKED_FOR})


def _require_unattended(config: Mapping[str, Any], bank_dir: Path | None) -> None:
    mode = (config.get("agent") or {}).get("mode", "yolo")
    if mode != "yolo":
        raise ConfigError(f"valve.attempts runs unattended, and mini is in mode {mode!r}; add -y")
    if bank_dir is None:
        raise ConfigError("valve.attempts records its attempts in a bank, and there is none; run `valve init` first")
