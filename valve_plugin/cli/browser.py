"""Showing a page in the browser, if there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from valve_plugin.cli import output

_SECONDS = 5.0
"""An opener that still runs after them is the browser itself."""


def show(path: Path) -> None:
    """Open a page; where nothing can, say so in one line, without the noise of what looked for a browser."""
    if not _opened(path.resolve()):
        output.note(f"valve: no browser opened here; the page is {path.resolve()}")


def _opened(path: Path) -> bool:
    if sys.platform == "win32":
        import webbrowser

        return webbrowser.open(path.as_uri())
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    silent = subprocess.DEVNULL
    try:
        # A session of its own: the Ctrl-C that ends `valve` does not close the browser.
        process = subprocess.Popen(
            [opener, str(path)], stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )
        return process.wait(_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False
