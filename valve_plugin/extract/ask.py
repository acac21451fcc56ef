"""Calls of the extracting model outside of rollouts, and their cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from valve_plugin import client, schemas
from valve_plugin.agents import faults
from valve_plugin.agents.mini import with_effort
from valve_plugin.agents.retry import call_model, model_tries
from valve_plugin.config import Settings, model_of
from valve_plugin.errors import ConfigError, InfrastructureError, ModelOutputError
from valve_plugin.redact import Redactor

Purpose = Literal["extract", "review"]
_CALLS: ContextVar[list[Call] | None] = ContextVar("valve_extract_calls", default=None)


class Call(NamedTuple):
    """One answered call."""

    source: Purpose
    model: str
    cost_usd: float | None
    """None: unknown."""
    seconds: float
    answer: str
    """What the model wrote; for this machine only."""

    @property
    def facts(self) -> dict[str, Any]:
        """What may be told of the call: all but the answer; a cost that is unknown is left out."""
        known = {} if self.cost_usd is None else {"cost_usd": self.cost_usd}
        return {"source": self.source, "model": self.model, **known, "seconds": self.seconds}


@contextmanager
def count_calls() -> Iterator[list[Call]]:
    """Collect the answered calls while the block runs: a proposal holds neither their cost nor their answers."""
    calls: list[Call] = []
    token = _CALLS.set(calls)
    try:
        yield calls
    finally:
        _CALLS.reset(token)


def model_name(settings: Settings) -> str:
    """Return the model that reflects: the setting, else mini's own default.

    Raises:
        ConfigError: neither is set.
    """
    model = model_of(settings)
    if not model:
        raise ConfigError(
            "no model is named; set -c valve.model=NAME, or mini's default with "
            "`mini-extra config set MSWEA_MODEL_NAME PROVIDER/NAME`"
        )
    return model


def ask(
    settings: Settings, model: str, messages: Sequence[Mapping[str, str]], schema: str, purpose: Purpose = "extract"
) -> str:
    """Return the model's answer as text.

    Args:
        settings: arguments of the call, and how often it is tried.
        schema: the answer's form, asked of the provider where litellm says that it offers that.

    Raises:
        ConfigError: the person's file of prices is none.
        ModelOutputError: the model declined, or the attempts do not fit its window.
        InfrastructureError: anything else went wrong on the way.
    """
    litellm = client.client()
    arguments: dict[str, Any] = {"timeout": faults.CALL_SECONDS, "max_retries": 0, **with_effort(settings.model_kwargs)}
    if "response_format" not in arguments and client.takes_schema(model):
        wanted = {"name": schema, "schema": schemas.load(schema)}
        arguments["response_format"] = {"type": "json_schema", "json_schema": wanted}

    def answered() -> Any:
        started = time.monotonic()
        try:
            response = litellm.completion(model=model, messages=messages, **arguments)
        except litellm.BadRequestError as e:  # litellm knows models, not every server that offers them
            if "response_format" in settings.model_kwargs or not _blames_format(str(e)):
                raise
            if arguments.pop("response_format", None) is None:
                raise
            response = litellm.completion(model=model, messages=messages, **arguments)
        if not response.choices:
            raise faults.UnreadableReplyError("the reply has no choices")
        content = response.choices[0].message.content
        if (calls := _CALLS.get()) is not None:
            seconds = round(time.monotonic() - started, 3)
            calls.append(Call(purpose, model, client.cost(response, model), seconds, redact(str(content or ""))))
        return content

    redact = Redactor.of(os.environ, config=settings.model_kwargs)
    tries, seconds = model_tries(settings, os.environ), faults.call_seconds(arguments)
    try:
        answer = call_model(answered, tries=tries, first_pause=settings.model_pause, redact=redact, seconds=seconds)
    except Exception as e:
        raise _call_error(e, settings, model, redact) from e
    if not isinstance(answer, str) or not answer.strip():
        raise ModelOutputError("the model answered nothing")
    return answer


def _blames_format(message: str) -> bool:
    return any(word in message.lower() for word in ("response_format", "json_schema", "response format", "schema"))


def _call_error(
    error: Exception, settings: Settings, model: str, redact: Redactor
) -> ModelOutputError | InfrastructureError:
    """Return the error of a failed call: ModelOutputError if the attempts caused it, else InfrastructureError.

    litellm wraps the errors of each provider differently, so an unknown error counts as the provider's.
    """
    ended, reason = faults.classify_end("", faults.class_names(error), str(error))
    if ended == "unresolved":
        return ModelOutputError(f"the model did not answer: {type(error).__name__}")
    fault = faults.find_fault(error)
    if fault:
        todo = faults.advice(fault, model, settings.model_kwargs, os.environ)
        reason = f"{todo} ({faults.describe_error(error, redact)})" if todo else reason
    return InfrastructureError(f"the extraction call to {model} failed: {reason}; the run pauses, nothing is lost")
