"""Opening a page: an opener, and none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.tools import until
from valve_plugin.bank.store import BankStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the opener is xdg-open")


def test_the_page_is_opened_or_named(
    bank: BankStore, project: Path, valve: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(project / "bin"))
    valve("report", "--open", "--out", "page.html")
    assert f"the page is {project / 'page.html'}" in valve.err
    (project / "bin").mkdir()
    (project / "bin/xdg-open").write_text('#!/bin/sh\necho noise >&2; /bin/cp "$1" seen\n')
    (project / "bin/xdg-open").chmod(0o755)
    valve("report", "--open", "--out", "page.html")
    until((project / "seen").exists)
    assert "noise" not in "".join(capfd.readouterr())
