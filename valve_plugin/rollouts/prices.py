"""Whether mini-SWE-agent can count what a model's calls cost: where it cannot, it gives up after the first one."""

from __future__ import annotations

import os
from typing import Any

from valve_plugin import client
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.rollouts import mini_config

_COUNTING = ("", "litellm", "litellm_textbased", "litellm_response")
"""Model classes that look a call's cost up in litellm's list of prices."""
_SAYING = ("openrouter/", "litellm_proxy/", "opencode_go/")
"""Providers whose replies say what they cost."""


def require(settings: Settings) -> None:
    """Refuse a model of which the first reply would be paid and thrown away, because nothing prices it.

    Args:
        settings: of a run with mini's own defaults loaded.

    Raises:
        ConfigError: with how a price is given, and how a run goes on without one.
    """
    given = mini_config.read(settings.mini_config)["model"] if settings.mini_config else {}
    model = settings.model or given.get("model_name") or os.environ.get("MSWEA_MODEL_NAME", "")
    if not _counted(settings, given) or model.startswith(_SAYING) or client.counts(model):
        return
    raise ConfigError(
        f"the price of {model} is not known, and mini gives up after the first call it cannot price: "
        f"{client.how(model)}, or count no dollars: export MSWEA_COST_TRACKING=ignore_errors, and limit the run with "
        "--max-rollouts N or --max-hours H"
    )


def _counted(settings: Settings, given: dict[str, Any]) -> bool:
    """Whether costs come from litellm's list alone, and have to."""
    tracking = os.environ.get("MSWEA_COST_TRACKING") or given.get("cost_tracking")
    named = {**given.get("model_kwargs", {}), **settings.model_kwargs}
    return not (
        tracking == "ignore_errors"
        or (settings.model_class or given.get("model_class") or "") not in _COUNTING
        or given.get("litellm_model_registry")
        or "input_cost_per_token" in named
    )
