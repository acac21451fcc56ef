"""Retries of model calls after provider failures."""

from __future__ import annotations

import concurrent.futures
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

from valve_plugin.agents.faults import SilentProviderError, class_names, classify_end, describe_fault, find_fault
from valve_plugin.config import Settings
from valve_plugin.events import Waiting

T = TypeVar("T")

MINI_TRIES = "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"
LONGEST_PAUSE_SECONDS = 60.0
"""The longest wait between two tries, unless the provider asks for more."""
_TIMEOUT_TRIES = 2
"""Tries of a call that reaches its time limit, so that a silent provider is noticed within minutes."""

OnWait = Callable[[Waiting], None]
OnStep = Callable[[int, float], None]
"""Receives the number of answered model calls of a rollout, and their cost in USD."""

_LISTENERS: ContextVar[tuple[OnWait, OnStep | None] | None] = ContextVar("valve_listeners", default=None)


@contextmanager
def listen_to_waits(on_wait: OnWait, on_step: OnStep | None = None) -> Iterator[None]:
    """Call `on_wait` for each wait, and `on_step` for each answered call, of this thread while the block runs."""
    token = _LISTENERS.set((on_wait, on_step))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def report_wait(wait: Waiting) -> None:
    """Report a wait to the listener of this thread, if there is one."""
    if listeners := _LISTENERS.get():
        listeners[0](wait)


def report_step(steps: int, usd: float) -> None:
    """Report that a rollout of this thread has had so many answers at this cost, if somebody listens."""
    if (listeners := _LISTENERS.get()) and listeners[1]:
        listeners[1](steps, usd)


def model_tries(settings: Settings, environ: Mapping[str, str]) -> int:
    """Return the number of tries of a model call: the setting, else mini's variable, else mini's default (10)."""
    given = environ.get(MINI_TRIES, "")
    return settings.model_tries or (int(given) if given.isdecimal() and int(given) else 10)


def call_model(
    call: Callable[[], T],
    *,
    tries: int,
    first_pause: float,
    redact: Callable[[str], str],
    seconds: float | None = None,
    on_wait: OnWait = report_wait,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the result of a model call; try again after provider failures if that can help.

    `seconds` limits one try; client libraries limit only the silence between two bytes. See `Tries` for the rest.

    Raises:
        Exception: that of the last try, or the first one for which another try is useless.
    """
    count = Tries(tries, first_pause, redact)
    while True:
        try:
            return _call_within(seconds, call)
        except Exception as e:
            wait = count.after(e)
            if wait is None:
                raise
            on_wait(wait)
            sleep(wait.seconds)


class Tries:
    """The tries of one model call: counts them, and says whether and when another one helps."""

    def __init__(self, at_most: int, first_pause: float, redact: Callable[[str], str]) -> None:
        """Set the number of tries, the seconds before the second one, and what removes secrets from messages."""
        self._at_most, self._first_pause, self._redact = at_most, first_pause, redact
        self._number = self._timeouts = 0

    def after(self, error: Exception) -> Waiting | None:
        """Return the wait before another try; None if this was the last, or another one is useless."""
        self._number += 1
        fault = find_fault(error)
        self._timeouts += fault is not None and fault.kind == "timeout"
        if fault is None or self._number >= self._at_most or self._timeouts >= _TIMEOUT_TRIES:
            return None
        if fault.lasting and fault.kind != "timeout":  # a connection may hang once
            return None
        if classify_end("", class_names(error), str(error))[0] == "unresolved":  # the agent is at fault
            return None
        pause = backoff_seconds(self._number, self._first_pause, fault.wait_seconds, random.random())  # noqa: S311 (spreads load)
        reason = describe_fault(error, fault, self._redact)
        return Waiting(said=reason, tried=self._number, of=self._at_most, seconds=pause)


def _call_within(seconds: float | None, call: Callable[[], T]) -> T:
    """Return the result of a call. After the time limit (a second more, for its own) the call is left to itself."""
    if seconds is None:
        return call()
    result: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as e:  # noqa: BLE001  # raised in the waiting thread
            result.set_exception(e)

    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    if not concurrent.futures.wait([result], seconds + 1.0).done:
        raise SilentProviderError(f"no complete answer within {seconds:.0f} s")
    return result.result()


def backoff_seconds(number: int, first: float, asked: float | None, uniform: float) -> float:
    """Return the seconds to wait before another try: exponential with jitter, added to the provider's own wait.

    Half of the wait is random, so that workers that failed together do not try again at the same time.

    Args:
        number: number of the try that failed, from 1.
        first: seconds after the first try, before jitter.
        asked: seconds that the provider asks to wait.
        uniform: a random number in [0, 1).
    """
    wait = min(LONGEST_PAUSE_SECONDS, first * 2.0 ** min(number - 1, 30))
    return (asked or 0.0) + wait * (0.5 + uniform / 2)
