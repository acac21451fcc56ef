"""docs/reference/settings.md lists every setting, with the default the code has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from valve_plugin.codec import plain
from valve_plugin.config import NAMES, Settings

PAGE = Path(__file__).parents[2] / "docs/reference/settings.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<default>[^`]*)` \| (?P<meaning>.+) \|$", re.MULTILINE)
ROWS = {match["name"]: match for match in ROW.finditer(PAGE.read_text("utf-8"))}


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_documented_with_its_default(name: str) -> None:
    assert name in ROWS, f"docs/reference/settings.md has no row for {name}"
    assert json.loads(ROWS[name]["default"]) == json.loads(json.dumps(plain(Settings())[name]))
    assert len(ROWS[name]["meaning"]) > 10


def test_no_setting_is_documented_that_does_not_exist() -> None:
    assert set(ROWS) == set(NAMES)
