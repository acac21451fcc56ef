"""Fixtures of the seam's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.harness import Mini, make_mini


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    """mini's commands, with the plugin `probe` and a scripted model."""
    return make_mini(tmp_path)


@pytest.fixture
def default_config(mini: Mini) -> Mini:
    """The same, where mini's *default* configuration is the stock one with the scripted model in it."""
    import yaml
    from minisweagent.config import builtin_config_dir

    stock = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
    model = yaml.safe_load((mini.directory / "model.yaml").read_text())["model"]
    stock["model"] |= model
    stock["agent"]["step_limit"] = 17  # how the tests tell the default apart
    (mini.directory / "default.yaml").write_text(yaml.safe_dump(stock))
    mini.variables["MSWEA_MINI_CONFIG_PATH"] = str(mini.directory / "default.yaml")
    return mini
