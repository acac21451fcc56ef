"""Asking a model again where its provider failed, and only there."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar

from valve_plugin.config import Settings
from valve_plugin.rollouts import paid, waits
from valve_plugin.rollouts.exits import classify
from valve_plugin.rollouts.faults import Fault, fault, pause

T = TypeVar("T")

_MINI_TRIES = "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"


class UnreadableReplyError(Exception):
    """A provider's reply is no reply."""


def tries(settings: Settings, environ: Mapping[str, str]) -> int:
    """Return how often one model call is tried: the setting, else what mini is told, else mini's default."""
    told = environ.get(_MINI_TRIES, "")
    return settings.model_tries or (int(told) if told.isdecimal() and int(told) else 10)


def fault_of(error: BaseException) -> Fault | None:
    """Return what failed at the provider; None for an error that is not a provider's."""
    response = getattr(error, "response", None)
    headers = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None)
    status = getattr(error, "status_code", None)
    names = [c.__name__ for c in type(error).__mro__]
    if _unreadable(error):
        names.insert(0, UnreadableReplyError.__name__)
    return fault(
        names,
        str(error),
        status if isinstance(status, int) else None,
        dict(headers) if headers is not None else None,
        now=time.time(),
        behind=[type(cause).__name__ for cause in waits.behind(error)],
    )


def _unreadable(error: BaseException) -> bool:
    """Whether mini failed to read a reply that is none, one without choices for example."""
    if not isinstance(error, (LookupError, AttributeError, TypeError, ValueError)):
        return False
    return any(frame.name == "_parse_actions" for frame in traceback.extract_tb(error.__traceback__, 20))


def patiently(
    call: Callable[[], T],
    at_most: int,
    first: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    told: Callable[[Exception, Fault, int, float], None] = lambda error, found, number, seconds: None,
) -> T:
    """Return what the call returns, tried again after a pause where the provider failed.

    Args:
        call: one model call.
        at_most: tries.
        first: seconds before the second try; they double from try to try, see `faults.pause`.
        sleep: waits.
        told: about each wait: the error, what failed, which try it was, and the seconds.

    Raises:
        Exception: the last try's, or the first that no other try can help.
    """
    for number in count(1):
        try:
            return call()
        except Exception as e:
            found = fault_of(e)
            names = [c.__name__ for c in type(e).__mro__]
            asked_for = classify("", names, str(e))[0] == "unresolved"  # the conversation's doing
            if found is None or found.lasting or asked_for or number >= at_most:
                raise
            seconds = pause(number, first, found.asked, random.random())  # noqa: S311 (spreads load, no secret)
            told(e, found, number, seconds)
            sleep(seconds)
    raise AssertionError("unreachable")


class Patient:
    """A mini model that asks again where its provider failed. All else is the model's own."""

    def __init__(
        self, model: Any, at_most: int, first: float, tell: waits.Tell = waits.tell, note: paid.Note = lambda usd: None
    ) -> None:
        self._model, self._tries, self._first, self._tell, self._note = model, at_most, first, tell, note
        self.fault: Fault | None = None
        """What the last call failed of, when it did."""

    def query(self, messages: list[dict[str, Any]], **arguments: Any) -> Any:
        """See `minisweagent.Model`."""
        try:
            answer = patiently(
                lambda: self._model.query(messages, **arguments), self._tries, self._first, told=self._told
            )
        except Exception as e:
            self.fault = fault_of(e)
            if cost := sum(map(paid.usd, getattr(e, "messages", ()))):  # answered, and of no use
                self._note(cost)
            raise
        self._note(paid.usd(answer))
        return answer

    def _told(self, error: Exception, found: Fault, number: int, seconds: float) -> None:
        kwargs = getattr(getattr(self._model, "config", None), "model_kwargs", {})
        what = waits.said(error, found, kwargs)
        self._tell(waits.Wait(said=what, tried=number, at_most=self._tries, seconds=seconds))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def tell_mini_to_try_once() -> None:
    """Leave trying again to `Patient`: mini's own loop knows neither `Retry-After` nor what no try can help."""
    os.environ[_MINI_TRIES] = "1"
