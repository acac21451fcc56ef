"""A model that mini cannot price is refused before its first reply is paid and thrown away."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.rollouts import prices


@pytest.fixture(autouse=True)
def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MSWEA_COST_TRACKING", "MSWEA_MODEL_NAME", "LITELLM_MODEL_REGISTRY_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_what_the_refusal_advises_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(model="openai/nobody-prices-this")
    with pytest.raises(ConfigError, match="the price of openai/nobody-prices-this is not known") as refused:
        prices.require(settings)
    advised = re.search(r"LITELLM_MODEL_REGISTRY_PATH names, with JSON like (\{.*\}), in USD", str(refused.value))
    assert advised
    assert "export MSWEA_COST_TRACKING=ignore_errors" in str(refused.value)
    (tmp_path / "prices.json").write_text(json.dumps(json.loads(advised[1])))
    monkeypatch.setenv("LITELLM_MODEL_REGISTRY_PATH", str(tmp_path / "prices.json"))
    prices.require(settings)


def test_where_no_price_is_needed_none_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = "openai/nobody-prices-that"
    config = tmp_path / "mini.yaml"
    config.write_text(f"model: {{model_name: {unknown}}}\n")
    for refused in (Settings(model="no-provider-at-all"), Settings(mini_config=(str(config),))):
        with pytest.raises(ConfigError, match="is not known"):
            prices.require(refused)
    config.write_text("model: {cost_tracking: ignore_errors}\n")
    for taken in (
        Settings(model="openai/gpt-4o"),
        Settings(model="openrouter/maker/its-replies-have-a-cost"),
        Settings(model=unknown, model_class="requesty"),
        Settings(model=unknown, model_kwargs={"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}),
        Settings(model=unknown, mini_config=(str(config),)),
    ):
        prices.require(taken)
    monkeypatch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
    prices.require(Settings(model=unknown))
