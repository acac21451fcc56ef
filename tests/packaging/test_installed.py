"""The installation these tests run in."""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["minisweagent_valve.pth", "minisweagent_valve.start"])
def test_start_up_files_are_installed_and_current(name: str) -> None:
    installed = Path(sysconfig.get_path("purelib")) / name
    assert installed.read_text() == (ROOT / name).read_text(), "reinstall: pip install -e ."
    recorded = importlib.metadata.files("valve-plugin") or []
    assert name in map(str, recorded), "an uninstall would leave it behind"


def test_plugin_and_command_are_advertised() -> None:
    (plugin,) = importlib.metadata.entry_points(group="minisweagent.plugins", name="valve")
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="valve")
    assert (plugin.value, command.value) == ("valve_plugin.hooks:Valve", "valve_plugin.__main__:main")


def test_in_tree_links_and_top_level_folders_are_the_same() -> None:
    for folder in ("hooks", "schemas"):
        link = ROOT / "valve_plugin" / folder
        assert link.is_symlink()
        assert link.resolve() == ROOT / folder
