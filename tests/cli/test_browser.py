"""Opening a page: an opener that works, one that finds no browser, and none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from valve_plugin.bank.store import BankStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the opener is xdg-open")


@pytest.mark.parametrize(
    ("script", "opened"), [('cat "$1" > seen', True), ("echo noise >&2; exit 3", False), ("", False)]
)
def test_the_page_is_opened_or_named(
    bank: BankStore, project: Path, valve: Run, script: str, opened: bool, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", f"{project / 'bin'}:/bin")
    (project / "bin").mkdir()
    if script:
        (project / "bin/xdg-open").write_text(f"#!/bin/sh\n{script}\n")
        (project / "bin/xdg-open").chmod(0o755)
    valve("report", "--open", "--out", "page.html")
    page = project / "page.html"
    assert valve.err == ("" if opened else f"valve: no browser opened here; the page is {page}\n")  # type: ignore[attr-defined]
    assert (project / "seen").exists() == opened
    assert "noise" not in "".join(capfd.readouterr())
