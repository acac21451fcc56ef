"""mini-SWE-agent as the agent of a rollout: its user settings, configuration and prices, its model, and the run itself.

This module is quick to import: mini and litellm take seconds, so they are imported only when a rollout runs.

Whatever a model puts into an answer is the agent's own doing. An answer that cannot be used is reported to it as mini
reports a missing command, which after some in a row ends the rollout as `unresolved`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valve_plugin import client
from valve_plugin.agents import faults
from valve_plugin.agents.protocol import TRAJECTORY, RolloutReporter, RolloutResult, RolloutSpec
from valve_plugin.agents.retry import MINI_TRIES, call_model, model_tries
from valve_plugin.config import ROLLOUT_HEADER, SCRIPTED_MODEL, Settings
from valve_plugin.errors import ConfigError
from valve_plugin.redact import Redactor
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.words import one_line

if TYPE_CHECKING:
    from valve_plugin.agents.mini_environment import SandboxEnvironment

Sections = dict[str, dict[str, Any]]
_SECTIONS = ("agent", "model", "environment")

SLOT_VARIABLE = "plugin_system_block"
SLOT = "{{ " + SLOT_VARIABLE + " | default('') }}"

_LITELLM_CLASSES = ("", "litellm", "litellm_textbased")
_PRICED_CLASSES = (*_LITELLM_CLASSES, "litellm_response")
"""Model classes that look up the cost of a call in litellm's price list."""
_PROVIDERS_WITH_COST = ("openrouter/", "litellm_proxy/", "opencode_go/")
"""Providers whose replies include their cost."""
MAX_COMMANDS = 100
"""Commands in one answer. (mini keeps the output of each.)"""
_SURROGATES = re.compile("[\ud800-\udfff]")


def load_user_settings() -> None:
    """Add the values of `mini-extra config setup` (default model, keys) to `os.environ`, except those already set."""
    from dotenv import load_dotenv

    load_dotenv(_user_folder() / ".env")


def _user_folder() -> Path:
    from platformdirs import user_config_path

    return Path(os.environ.get("MSWEA_GLOBAL_CONFIG_DIR") or user_config_path("mini-swe-agent"))


def require_user_folder() -> None:
    """Make the folder of mini's user settings, as importing mini does.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        _user_folder().mkdir(mode=0o700, parents=True, exist_ok=True)  # keys are kept there
    except OSError as e:
        raise ConfigError(
            f"mini-SWE-agent needs the folder {_user_folder()}, which cannot be made: {e.strerror}; name one that can, "
            "as in export MSWEA_GLOBAL_CONFIG_DIR=/tmp/mini"
        ) from e


# The configuration of unattended rollouts


def require_config(given: Sequence[str]) -> None:
    """Check that rollouts can run with a configuration (the setting `mini_config`).

    Raises:
        ConfigError: see `read_config`; or its environment class cannot isolate unattended rollouts; or mini's own
            folder cannot be made.
    """
    require_user_folder()
    name, where = "", ""
    for one in given:
        environment = read_config([one])["environment"]
        if "environment_class" in environment:
            name, where = str(environment["environment_class"] or ""), one
    if why := environment_refusal(name):
        raise ConfigError(f"mini_config {where}: {why}")


def read_config(given: Sequence[str]) -> Sections:
    """Return the merged sections of values of `mini -c`; agent, model and environment are always present.

    Raises:
        ConfigError: there is no such file, or it is not a mini configuration.
    """
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")  # prevents a greeting on stdout
    import yaml
    from minisweagent.config import get_config_from_spec
    from minisweagent.utils.serialize import recursive_merge

    merged: Sections = {name: {} for name in _SECTIONS}
    for one in given:
        try:
            config = get_config_from_spec(one) or {}
        except FileNotFoundError as e:
            raise ConfigError(f"mini_config {one}: there is no such file, neither here nor among mini's own") from e
        except (OSError, ValueError, yaml.YAMLError) as e:
            raise ConfigError(f"mini_config {one}: expected a file or KEY=VALUE, as `mini -c` takes: {e}") from e
        if not isinstance(config, dict) or not all(isinstance(config.get(name) or {}, dict) for name in _SECTIONS):
            raise ConfigError(f"mini_config {one}: expected {', '.join(_SECTIONS)}, each a mapping")
        merged = recursive_merge(merged, {name: part for name, part in config.items() if part is not None})
    return merged


def environment_refusal(environment_class: str) -> str:
    """Return why an unattended rollout cannot use one of mini's environment classes, or "" if it can.

    `docker` (in mini's benchmark configurations) becomes a container if the task has an image, else bubblewrap; both
    isolate at least as well.
    """
    if environment_class in ("", "docker"):
        return ""
    return (
        f"environment_class {environment_class!r} is refused, because it does not keep network, keys and limits apart "
        "as VALVE's own sandbox does. Leave it out, or name 'docker'"
    )


def rollout_config(spec: RolloutSpec) -> Sections:
    """Return mini's configuration of a rollout: mini.yaml, then `mini_config`, then the settings of valve."""
    from minisweagent.config import builtin_config_dir
    from minisweagent.utils.serialize import recursive_merge

    settings = spec.settings
    model: dict[str, Any] = {"model_kwargs": settings.model_kwargs}
    if settings.model:
        model["model_name"] = settings.model
    if settings.model_class:
        model["model_class"] = settings.model_class
    if tracking := os.environ.get("MSWEA_COST_TRACKING"):  # mini reads it at import, which happened in the fork server
        model["cost_tracking"] = tracking
    if settings.model == SCRIPTED_MODEL:
        headers = {"extra_headers": {ROLLOUT_HEADER: f"{spec.task_id}/{spec.ordinal}"}}
        model["model_kwargs"] = recursive_merge(settings.model_kwargs, headers)
    limits = {"step_limit": settings.step_limit, "cost_limit": settings.cost_limit}
    default = str(builtin_config_dir / "mini.yaml")  # the name alone could match a file in the working directory
    config = read_config([default, *settings.mini_config])
    merged: Sections = recursive_merge(config, {"agent": limits, "model": model})
    if merged["model"].get("model_class", "") in _LITELLM_CLASSES:
        # Otherwise the client below litellm tries each call three times without reporting it.
        merged["model"]["model_kwargs"] = {
            "max_retries": 0, "timeout": faults.CALL_SECONDS, **with_effort(merged["model"]["model_kwargs"])
        }  # fmt: skip
    return merged


def with_effort(model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return model arguments with which litellm sends `reasoning_effort`, if it is set, to every model.

    If litellm believes that a model does not support it, it raises an error or, with the `drop_params` of mini's
    defaults, drops it silently. The provider knows better what a model supports.
    """
    if "reasoning_effort" not in model_kwargs:
        return dict(model_kwargs)
    return {"allowed_openai_params": ["reasoning_effort"], **model_kwargs}


def require_price(settings: Settings) -> None:
    """Check that the price of the model is known. Without a price, mini stops after the first (paid) reply.

    Raises:
        ConfigError: it is not known; the message says how to give a price, or to run without one.
    """
    given = read_config(settings.mini_config)["model"] if settings.mini_config else {}
    model = settings.model or given.get("model_name") or os.environ.get("MSWEA_MODEL_NAME", "")
    tracking = os.environ.get("MSWEA_COST_TRACKING") or given.get("cost_tracking")
    model_kwargs = {**given.get("model_kwargs", {}), **settings.model_kwargs}
    if (
        tracking == "ignore_errors"
        or (settings.model_class or given.get("model_class") or "") not in _PRICED_CLASSES
        or given.get("litellm_model_registry")
        or "input_cost_per_token" in model_kwargs
        or model.startswith(_PROVIDERS_WITH_COST)
        or client.is_priced(model)
    ):
        return
    raise ConfigError(
        f"the price of {model} is not known, and mini stops after the first call without a price. Where calls cost "
        "nothing, as those of a server of your own, export MSWEA_COST_TRACKING=ignore_errors, and limit the run with "
        f"--max-rollouts N or --max-hours H; else {client.pricing_help(model)}"
    )


# The slot at the end of a system template: text reaches the system message as a Jinja value, never as syntax.


def with_slot(template: str) -> str:
    """Return a Jinja template that renders as `template` does, followed by the slot's value."""
    if template.endswith(SLOT):
        return template
    # Jinja drops one newline at the end of a template; before the slot it would be kept.
    body = re.sub(r"(\r\n|\r|\n)\Z", "", template)
    if re.search(r"\{#[-+]?\Z", body):  # a comment that opens at the very end: Jinja treats it as closed
        body += "#}"
    elif body.endswith("{"):  # plain text at the very end, but not directly before the slot's braces
        body = body[:-1] + "{{ '{' }}"
    return body + SLOT


def slot_variables(blocks: Sequence[str]) -> dict[str, str]:
    """Return the template variables that put these blocks into the slot, verbatim, each after a blank line."""
    return {SLOT_VARIABLE: "".join(f"\n\n{block}" for block in blocks if block)}


# A rollout


def solve(spec: RolloutSpec, folder: Path, reporter: RolloutReporter) -> RolloutResult:
    """Run mini's own agent on a task. Never raises for what the agent or the provider did."""
    redact = Redactor.of(os.environ, config=spec.settings.model_kwargs)
    agent: Any = None
    model: RetryingModel | None = None
    environment: SandboxEnvironment | None = None
    error: list[str] = []
    message = shown = ""
    try:
        from minisweagent.agents import get_agent
        from minisweagent.models import get_model

        from valve_plugin.agents.mini_environment import SandboxEnvironment

        config = rollout_config(spec)
        tries = model_tries(spec.settings, os.environ)
        # mini's own retry loop ignores Retry-After, and retries errors for which this is useless.
        os.environ[MINI_TRIES] = "1"
        seconds, stock = faults.call_seconds(config["model"]["model_kwargs"]), get_model(config=config["model"])
        model = RetryingModel(stock, tries, spec.settings.model_pause, reporter, redact, seconds)
        options = dict(config["environment"])
        if why := environment_refusal(str(options.pop("environment_class", "") or "")):
            raise ConfigError(why)
        environment = SandboxEnvironment(choose(spec.settings, spec.workspace.image), spec.workspace, **options)
        template = with_slot(config["agent"]["system_template"])
        settings = config["agent"] | {"output_path": folder / TRAJECTORY, "system_template": template}
        agent = get_agent(model, environment, settings, default_type="default")
        agent.run(spec.issue, **slot_variables([spec.block]))
    except Exception as e:  # noqa: BLE001  # the rollout boundary: any error becomes this rollout's outcome
        error, message, shown = faults.class_names(e), str(e), faults.describe_error(e, redact)
    finally:
        if environment is not None:
            environment.cleanup()
    last = agent.messages[-1].get("extra", {}) if agent is not None and agent.messages else {}
    status = str(last.get("exit_status", "")) or (error[0] if error else "")
    ended, reason = faults.classify_end(status, error, message)
    model_config = getattr(model, "config", None)
    name = str(getattr(model_config, "model_name", ""))
    fault = model.fault if model and ended == "errored" else None
    if fault:
        todo = faults.advice(fault, name, getattr(model_config, "model_kwargs", {}), os.environ)
        reason = one_line(f"{todo} ({shown})")
    return RolloutResult(
        ended=ended,
        reason=reason,
        fault=fault.kind if fault else "",
        exit_status=status,
        steps=getattr(agent, "n_calls", 0),
        cost_usd=getattr(agent, "cost", 0.0),
        model=name,
    )


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
        self.fault: faults.Fault | None = None
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
            self.fault = faults.find_fault(e)
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
            if faults.is_unreadable_answer(str(e)):
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
        raise faults.ConversationRefusedError(faults.describe_error(error, self._redact)) from error

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
