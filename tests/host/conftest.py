"""Fixtures of the seam's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.harness import PROBE, Mini, add_distribution, deterministic


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    """mini's commands in a directory of their own, with the plugin `probe` installed and a scripted model."""
    made = Mini(tmp_path, {})
    add_distribution(made.plugins, "probe", PROBE)
    made.variables |= {
        "PYTHONPATH": str(made.plugins),
        "PROBE_LOG": str(tmp_path / "probe.jsonl"),
        "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "global"),
        "VALVE_DATA": str(tmp_path / "data"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    deterministic(tmp_path / "model.yaml", "echo working")
    return made


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
