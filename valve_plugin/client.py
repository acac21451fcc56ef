"""Load litellm for valve: quiet, without a download at import, and with the user's own prices."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from valve_plugin.codec import decode_once
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.files import read_regular

REGISTRY = "LITELLM_MODEL_REGISTRY_PATH"
_PRICES = "model_prices_and_context_window_backup.json"
_MAX_BYTES = 10_000_000


def client() -> Any:
    """Return litellm with the prices of the file that `REGISTRY` names; a missing file is ignored, as by mini.

    Raises:
        ConfigError: the file is no list of models.
    """
    use_own_copies()
    import litellm  # 4 s, so not at import

    litellm.suppress_debug_info = True  # else it prints advice to stdout, where results go
    path = Path(os.environ.get(REGISTRY, ""))
    if path.is_file():
        try:
            _register(read_regular(path, _MAX_BYTES), str(path))
        except (OSError, RecordError, TypeError, ValueError) as e:
            raise ConfigError(
                f"{REGISTRY} names {path}, which registers no prices: {e}; expected JSON like {_entry('openai/NAME')}"
            ) from e
    return litellm


def use_own_copies() -> None:
    """Have litellm take the prices and headers that it brings along; else it waits for a download of them."""
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"):
        os.environ.setdefault(name, "True")


def pricing_help(model: str) -> str:
    """Return what a user does to give the price of a model, as a clause."""
    return f"register it in a file that {REGISTRY} names, with JSON like {_entry(model)}"


def _entry(model: str) -> str:
    provider = model.partition("/")[0] if "/" in model else "openai"
    prices = '"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06'
    return f'{{"{model}": {{"litellm_provider": "{provider}", "mode": "chat", {prices}}}}}, in USD'


@cache
def _register(raw: bytes, where: str) -> None:
    import litellm

    prices = decode_once(raw, dict[str, dict[str, Any]], where=where)
    log = logging.getLogger("LiteLLM")
    before = log.level
    log.setLevel(logging.ERROR)  # it warns about left-out prices of a cache
    try:
        litellm.utils.register_model(prices)
    finally:
        log.setLevel(before)


def takes_schema(model: str) -> bool:
    """Return whether the model's provider offers answers that follow a JSON Schema, as far as litellm knows."""
    litellm = client()
    try:
        offered = litellm.get_supported_openai_params(model=model) or ()
        return "response_format" in offered and bool(litellm.supports_response_schema(model=model))
    except Exception:  # noqa: BLE001  # litellm raises various errors for models it does not know
        return False


def price(model: str) -> tuple[float, float] | None:
    """Return the USD of one prompt and one reply token; None: unknown."""
    litellm = client()
    try:
        known = litellm.get_model_info(model)
        prompt, reply = (float(known.get(f"{which}_cost_per_token") or 0.0) for which in ("input", "output"))
    except Exception:  # noqa: BLE001  # litellm raises a bare Exception for a model it does not know
        return None
    return (prompt, reply) if prompt and reply else None


def is_priced(model: str) -> bool:
    """Return whether the cost of a call follows from its tokens, as mini computes it."""
    if _is_surely_unpriced(model):
        return False
    litellm = client()
    usage = litellm.Usage(prompt_tokens=1000, completion_tokens=100, total_tokens=1100)
    return cost(litellm.ModelResponse(model=model, usage=usage), model) is not None


def _is_surely_unpriced(model: str) -> bool:
    """Whether litellm's own list, which is read without loading litellm, lacks a model of the plainest provider."""
    provider, _, name = model.partition("/")
    spec = importlib.util.find_spec("litellm")
    if provider != "openai" or name.startswith("ft:") or os.environ.get(REGISTRY) or spec is None or not spec.origin:
        return False
    try:
        prices = read_regular(Path(spec.origin).parent / _PRICES, _MAX_BYTES)
    except OSError:  # another version keeps it elsewhere
        return False
    return f'"{name}"'.encode() not in prices and f'"{model}"'.encode() not in prices


def cost(response: Any, model: str) -> float | None:
    """Return the USD of an answered call; None where it is unknown: like mini, a cost of 0 is taken as unknown."""
    litellm = client()
    try:
        return float(litellm.completion_cost(response, model=model)) or None
    except Exception:  # noqa: BLE001  # litellm raises various errors for models without a price
        return None
