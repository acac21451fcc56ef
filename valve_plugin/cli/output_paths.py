"""The places that a command may write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valve_plugin.errors import ConfigError


def require_page(option: str, path: Path) -> None:
    """Require a place for an HTML page (else ConfigError)."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{option} {path}: the page is HTML; name a file ending in .html or .htm")
    require_folder(option, path.parent)


def require_folder(option: str, path: Path) -> None:
    """Require a folder that exists or can be made (else ConfigError)."""
    with explain_errors(option, path):
        place = path.resolve()
        if there := next((f for f in (place, *place.parents) if f.exists() and not f.is_dir()), None):
            raise ConfigError(f"{option} {path}: {there} is no folder; name another place")


def make_folder(option: str, path: Path) -> None:
    """Make a folder, and those above it; a ConfigError if it cannot be made."""
    with explain_errors(option, path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def explain_errors(option: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system (OSError) into one line (ConfigError)."""
    try:
        yield
    except OSError as e:
        raise ConfigError(f"{option} {path}: {e.strerror or e}; name a place that can be written to") from e
