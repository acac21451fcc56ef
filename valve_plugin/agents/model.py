"""The model of a rollout: retries after provider failures, and a check of everything that an answer holds.

Whatever a model puts into an answer is the agent's own doing. An answer that cannot be used is reported to it as mini
reports a missing command, which after some in a row ends the rollout as `unresolved`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from valve_plugin.agents.faults import ConversationRefusedError, Fault, describe_error, find_fault, is_unreadable_answer
from valve_plugin.agents.protocol import RolloutReporter
from valve_plugin.agents.retry import call_model

MAX_COMMANDS = 100
"""Commands in one answer. (mini keeps the output of each.)"""
_SURROGATES = re.compile("[\ud800-\udfff]")


class RetryingModel:
    """A wrapper of a mini model that retries provider failures, checks answers, and reports waits and costs."""

    def __init__(
        self,
        model: Any,
        tries: int,
        first_pause: float,
        reporter: RolloutReporter,
        redact: Callable[[str], str],
        seconds: float | None = None,
    ) -> None:
        self._model, self._reporter, self._redact, self._answered = model, reporter, redact, False
        self._call = partial(
            call_model, tries=tries, first_pause=first_pause, redact=redact, seconds=seconds, on_wait=reporter.wait
        )
        self.fault: Fault | None = None
        """The provider's failure that ended the last call."""

    def query(self, messages: list[dict[str, Any]], **arguments: Any) -> Any:
        """See `minisweagent.Model`.

        Raises:
            FormatError: the answer cannot be used; the agent tells the model why.
            ConversationRefusedError: the provider refuses this conversation, but not its beginning.
        """
        from minisweagent.exceptions import FormatError

        try:
            reply = self._call(lambda: self._ask(messages, **arguments))
        except FormatError as e:
            self._answered = True
            e.messages = tuple(without_surrogates(message) for message in e.messages)
            self._reporter.pay(sum(map(_cost, e.messages)))
            raise
        except Exception as e:
            self.fault = find_fault(e)
            if self._answered and self.fault and self.fault.kind in ("request", "timeout"):
                self._require_refusal_of_beginning(messages, e)
            raise
        self._answered = True
        self._reporter.pay(_cost(reply))
        return reply

    def _ask(self, messages: list[dict[str, Any]], **arguments: Any) -> Any:
        try:
            reply = self._model.query(messages, **arguments)
        except Exception as e:
            if is_unreadable_answer(str(e)):
                raise self._format_error("The answer does not have the shape of a message with tool calls.") from e
            raise
        if not isinstance(reply, dict):
            return reply
        if problem := _problem(reply):
            raise self._format_error(problem, reply)
        clean = without_surrogates(reply)
        if "role" in clean:
            clean["role"] = "assistant"  # the model's own words stay its own
        return clean

    def _require_refusal_of_beginning(self, messages: list[dict[str, Any]], error: Exception) -> None:
        """Return if the provider fails for the rollout's first request, too, which it has answered before."""
        from minisweagent.exceptions import FormatError

        try:
            self._reporter.pay(_cost(self._call(lambda: self._model.query(messages[:2]), tries=1)))
        except FormatError as e:  # an answer, too
            self._reporter.pay(sum(map(_cost, e.messages)))
        except Exception:  # noqa: BLE001  # whatever it is, the provider does not answer
            return
        raise ConversationRefusedError(describe_error(error, self._redact)) from error

    def _format_error(self, problem: str, reply: Mapping[str, Any] | None = None) -> Exception:
        """Return mini's error that tells the model what is wrong with its answer."""
        from jinja2 import StrictUndefined, Template
        from minisweagent.exceptions import FormatError

        template = str(getattr(getattr(self._model, "config", None), "format_error_template", "{{ error }}"))
        text = Template(template, undefined=StrictUndefined).render(
            error=problem, actions=[], has_tool_calls=True, finish_reason=None
        )
        extra = {"interrupt_type": "FormatError", "cost": _cost(reply), "response": reply}
        if reply and reply.get("object") == "response":  # OpenAI's newer interface
            content: Any = [{"type": "input_text", "text": text}]
            return FormatError({"type": "message", "role": "user", "content": content, "extra": extra})
        return FormatError({"role": "user", "content": text, "extra": extra})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _problem(reply: Mapping[str, Any]) -> str:
    """Return what is wrong with a reply's commands, or "". One that bash cannot take fails; see `supervisor.refuse`."""
    actions = reply.get("extra", {}).get("actions", ())
    for command in (action.get("command", "") for action in actions):
        if not isinstance(command, str):
            kind = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}.get(type(command))
            return f"The argument 'command' is {kind or 'a number'}, expected a string."
        if _SURROGATES.search(command):
            return "The command holds half of a surrogate pair, which is not valid Unicode; write whole characters."
    if (number := len(actions)) > MAX_COMMANDS:
        return f"The answer has {number:,} commands, at most {MAX_COMMANDS} are possible."
    ids = [action["tool_call_id"] for action in actions if "tool_call_id" in action]
    if not all(isinstance(one, str) for one in ids) or len(set(ids)) < len(ids):
        return "Each tool call needs an id of its own, a string."
    return ""


def without_surrogates(value: Any) -> Any:
    """Return a JSON value in which U+FFFD replaces lone surrogates, which cannot be sent back to the provider."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {without_surrogates(name): without_surrogates(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_surrogates(part) for part in value]
    return value


def _cost(message: Any) -> float:
    cost = message.get("extra", {}).get("cost") if isinstance(message, Mapping) else None
    return float(cost) if isinstance(cost, int | float) else 0.0
