"""One call to the model that extracts, outside of any rollout."""

from __future__ import annotations

import os
import time
from typing import Any

from valve_plugin import client, schemas
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, InfrastructureError, ModelOutputError
from valve_plugin.extract import cost
from valve_plugin.rollouts import waits
from valve_plugin.rollouts.arguments import insisted
from valve_plugin.rollouts.exits import classify
from valve_plugin.rollouts.faults import Fault, advice
from valve_plugin.rollouts.patience import UnreadableReplyError, fault_of, patiently, tries

TIMEOUT_SECONDS = 600


def model_name(settings: Settings) -> str:
    """Return the model that reflects: the setting, else mini's own default.

    Raises:
        ConfigError: neither is set.
    """
    model = settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    if not model:
        raise ConfigError(
            "no model is named; set -c valve.model=NAME, or mini's default with "
            "`mini-extra config set MSWEA_MODEL_NAME PROVIDER/NAME`"
        )
    return model


def ask(settings: Settings, model: str, messages: list[dict[str, str]], schema: str) -> str:
    """Return the model's answer as text; `schema` names what it should be, for models that can be told.

    Raises:
        ConfigError: the person's file of prices is none.
        ModelOutputError: the model declined, or the attempts do not fit its window.
        InfrastructureError: anything else went wrong on the way.
    """
    litellm = client.client()
    arguments: dict[str, Any] = {"timeout": TIMEOUT_SECONDS, "max_retries": 0, **insisted(settings.model_kwargs)}
    if litellm.supports_response_schema(model):
        wanted = {"name": schema, "schema": schemas.load(schema)}
        arguments.setdefault("response_format", {"type": "json_schema", "json_schema": wanted})

    def answered() -> Any:
        started = time.monotonic()
        response = litellm.completion(model=model, messages=messages, **arguments)
        if not response.choices:
            raise UnreadableReplyError("the reply has no choices")
        cost.note(model, client.cost(response, model), time.monotonic() - started)
        return response.choices[0].message.content

    at_most = tries(settings, os.environ)

    def told(error: Exception, found: Fault, number: int, seconds: float) -> None:
        what = waits.said(error, found, settings.model_kwargs)
        waits.tell(waits.Wait(said=what, tried=number, at_most=at_most, seconds=seconds))

    try:
        answer = patiently(answered, at_most, settings.model_pause, told=told)
    except Exception as e:
        raise _failed(e, settings, model) from e
    if not isinstance(answer, str) or not answer.strip():
        raise ModelOutputError("the model answered nothing")
    return answer


def _failed(error: Exception, settings: Settings, model: str) -> ModelOutputError | InfrastructureError:
    """Return what an extraction call's error is: the attempts' own doing, else the provider's, never an empty answer.

    litellm wraps every provider in its own way, so whatever is not known to be the attempts' doing is not theirs.
    """
    ended, reason = classify("", [c.__name__ for c in type(error).__mro__], str(error))
    if ended == "unresolved":
        return ModelOutputError(f"the model did not answer: {type(error).__name__}")
    fault = fault_of(error)
    if fault:
        todo = advice(fault.kind, model, settings.model_kwargs, os.environ, fault.asked)
        reason = f"{todo} ({waits.shown(error, settings.model_kwargs)})" if todo else reason
    return InfrastructureError(f"the extraction call to {model} failed: {reason}; the run pauses, nothing is lost")
