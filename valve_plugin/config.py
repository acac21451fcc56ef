"""Settings: defaults, then `valve.toml`, then overrides; unknown names are refused with the nearest known one."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from valve_plugin.codec import convert, plain
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.reading import regular
from valve_plugin.records import Count, Pairing, Positive

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

FILE_NAME = "valve.toml"
MAX_BYTES = 1_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting with its default: the paper's reference configuration (tab:impl-config)."""

    bank: str = ""
    """Bank directory; empty: $VALVE_BANK, then <repo>/.valve, then user data."""
    repo: str = ""
    """owner/name of the repository; empty: found from the checkout."""
    language: str = ""
    """Main language, as `valve init` found it."""
    test_command: str = ""
    """How this repository runs its tests, as `valve init` found it."""

    check: str = ""
    """Live runs: command that fails at the base and passes after a good attempt. Empty: attempts stay ungraded."""
    check_timeout: Positive = 600
    """Seconds of wall clock for one run of `check`."""
    attempts: Annotated[int, Meta(ge=0, le=100)] = 0
    """Rollouts per task; 0: one in a live `mini` run, three in `valve evolve`."""
    learn: Literal["queue", "inline", "off"] = "queue"
    """What mixed live attempts do: queue an extraction, run it at once, or nothing."""

    review: Literal["off", "model"] = "off"
    """model: the model looks at each extracted item once more; what it does not clear waits for a person."""

    model: str = ""
    """Model of solver and extractor (litellm name); empty: mini's own default."""
    model_class: str = ""
    """mini model class; empty: by model name."""
    model_kwargs: dict[str, Any] = {}
    """Extra arguments of every model call."""
    mini_config: tuple[str, ...] = ()
    """Unattended rollouts: what `mini -c` takes (files, or KEY=VALUE), on top of mini.yaml."""
    model_tries: Count = 0
    """Tries of one model call before a rollout ends as errored; 0: mini's own setting (10)."""
    model_pause: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """Seconds before a failed model call is tried again; they double each time, up to a minute, with jitter."""
    step_limit: Positive = 50
    """Model calls per rollout."""
    cost_limit: Annotated[float, Meta(ge=0)] = 3.0
    """USD per rollout; 0: none (then only steps bound it)."""

    top_principles: Count = 10
    top_skills: Count = 10
    embedding: str = "auto"
    """auto: sentence-transformers when the extra and the model are on disk, else hashing; or a name on the hub, or a
    path: absolute, or beginning with ./, ../ or ~."""

    rho: str = "0.02"
    """Gate margin as decimal text."""
    panel_size: Positive = 50
    rollouts: Positive = 3
    """Panel rollouts per task and condition."""
    pairing: Pairing = "paper"
    early_stop: bool = True
    """Stop a gate as soon as its rejection is certain. False: run whole panels, to compare; the ledger is the same."""
    confirm: bool = False
    """An apparent accept has to repeat on as many fresh rollouts. Declared with the epoch."""
    guard: Count = 0
    """Reject where a panel task passes so many rollouts fewer, or still fewer; 0: off. Declared with the epoch."""
    horizon: Positive = 100
    """Gate queries declared per epoch."""
    delta: str = "0.05"
    """Failure probability of the certificates, as decimal text."""
    max_mixed: Positive = 100
    """Mixed tasks after which evolve stops."""
    panel_seed: int = 123
    seed: int = 0

    tasks: str = ""
    """Task set that panel and stream come from: a directory with repository.toml and tasks.jsonl."""
    plugins: tuple[str, ...] = ("valve",)
    """Plugins of unattended steps, by entry point; the last is asked first."""
    condition: str = ""
    """Condition of the experiment whose run the bank is: its hooks, which are ours, are then among `plugins`."""
    workers: Positive = 1
    sandbox: Literal["auto", "bwrap", "podman", "docker"] = "auto"
    """Where unattended commands run. auto: in the task's image where it is on this machine, else in bubblewrap."""
    keep_history: bool = False
    """Leave the image's git history in the agent's copy, as SWE-smith does: its parent commit shows the fix."""
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    """USD one run of `valve evolve` or `valve gate` may spend; unset: no limit. 0 is refused: nothing could run."""
    max_rollouts: Positive | None = None
    """Rollouts one run may start; unset: no limit. Those that ran before cost nothing."""
    max_hours: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Hours of wall clock after which one run starts nothing new; unset: no limit. Less than 0.01 is refused."""
    run_ahead: Annotated[int, Meta(ge=0, le=100)] = 0
    """Next tasks of the stream that idle workers may attempt meanwhile. An accept wastes what it changes, so: none."""
    unsafe_local: bool = False
    """Run unattended rollouts without a sandbox. Only for code and models you trust."""


NAMES: tuple[str, ...] = Settings.__struct_fields__

# A bank comes along with a repository, from whoever wrote there. These could run code, leave the sandbox or send
# keys and issues to another server, so they count only where the person typed them.
NEVER_FROM_FILE = ("unsafe_local", "model_class", "mini_config", "plugins", "tasks")
SAMPLING = frozenset(
    {"drop_params", "max_completion_tokens", "max_tokens", "reasoning_effort", "seed", "stop", "temperature", "top_p"}
)
"""Arguments of a model call that say how it answers, and not where it goes or with which key."""
_KINDS = {
    "array": "a list of texts",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a table",
    "string": "text",
}


def resolve(*layers: Mapping[str, Any], where: str = "settings") -> Settings:
    """Merge layers (later ones win) over the defaults.

    Raises:
        ConfigError: unknown name (with the nearest known one), wrong type, or value out of range.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            merged[_known(name, where)] = value
    for name in ("rho", "delta"):
        if name in merged:
            merged[name] = _fraction(name, merged[name], where)
    for name in ("budget_usd", "max_hours"):
        if isinstance(merged.get(name), float) and not math.isfinite(merged[name]):
            raise ConfigError(f"{where}: {name} is {merged[name]}, expected {_expected(name)}")
    try:
        return convert(merged, Settings, where=where)
    except RecordError as e:
        raise ConfigError(
            f"{_mismatch(e, merged, where)}; the page Settings of the documentation lists them all"
        ) from e


def read_file(path: Path) -> dict[str, Any]:
    """Read one `valve.toml` (missing: empty).

    Raises:
        ConfigError: unreadable, too large, not UTF-8 or not TOML, with file and line.
    """
    try:
        raw = regular(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: not UTF-8 text at byte {e.start + 1}; save it as UTF-8") from e
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise ConfigError(f"{path}: not valid TOML: {e}") from e


def load(bank_dir: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a bank directory with overrides on top."""
    path = bank_dir / FILE_NAME if bank_dir else None
    layer = read_file(path) if path else {}
    base = resolve(layer, where=str(path)) if path else Settings()
    _refuse_dangerous(layer, path)
    return resolve(changed(base), overrides or {}, where="overrides") if overrides else base


def is_path(embedding: str) -> bool:
    """Whether an `embedding` is a place on this machine, and no name."""
    return embedding.startswith(("/", "~", "./", "../")) or embedding in (".", "..")


def _refuse_dangerous(layer: Mapping[str, Any], path: Path | None) -> None:
    bad = [name for name in NEVER_FROM_FILE if name in layer]
    bad += [f"model_kwargs.{name}" for name in layer.get("model_kwargs", {}) if name not in SAMPLING]
    bad += ["model"] if "://" in layer.get("model", "") else []  # litellm asks the server such a name holds
    bad += ["embedding"] if is_path(layer.get("embedding", "")) else []  # a folder beside it would rank the items
    if bad:
        raise ConfigError(
            f"{path}: {bad[0]} is not taken from a file that can come with a repository; remove it there, "
            f"and give it yourself, with -c {bad[0]}=VALUE (`mini`: -c valve.{bad[0]}=VALUE)"
        )


def to_toml(layer: Mapping[str, Any]) -> str:
    """Return settings as the text of a `valve.toml`, in the order of `Settings`.

    Raises:
        ConfigError: a value has no form in TOML: null in a list, NaN, text that is not Unicode.
    """
    lines = []
    for name in NAMES:
        if name in layer:
            try:
                lines.append(f"{name} = {_toml(layer[name])}\n")
                lines[-1].encode()
            except ValueError as e:
                raise ConfigError(f"{name} is {layer[name]!r:.200}, which cannot be written as TOML: {e}") from e
    return "".join(lines)


def changed(settings: Settings) -> dict[str, Any]:
    """Return only what differs from the defaults."""
    default = plain(Settings())
    return {name: value for name, value in plain(settings).items() if value != default[name]}


def _toml(value: Any) -> str:
    """One value; JSON's strings, numbers and lists are TOML's too, but for the DEL character."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if value is None:
        raise ValueError("it has no null")
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _known(name: str, where: str) -> str:
    if name in NAMES:
        return name
    if name == "environment_class":  # mini's, and no name of ours is meant
        raise ConfigError(
            f"{where}: unknown setting {name!r}; settings of mini go into mini_config, which takes "
            f"what `mini -c` takes: -c 'mini_config=[\"environment.{name}=VALUE\"]'"
        )
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.65)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
    raise ConfigError(f"{where}: unknown setting {name!r}; {hint}")


def _mismatch(error: RecordError, merged: Mapping[str, Any], where: str) -> str:
    at = re.search(r"at `\$\.(\w+)", str(error))
    return f"{where}: {at[1]} is {merged[at[1]]!r:.200}, expected {_expected(at[1])}" if at else str(error)


def _expected(name: str) -> str:
    wanted = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"][name]
    unset = "; leave it out for no limit" if "anyOf" in wanted else ""
    wanted = wanted.get("anyOf", [wanted])[0]
    if "enum" in wanted:
        return f"one of {', '.join(wanted['enum'])}"
    words = (("exclusiveMinimum", "more than"), ("minimum", "at least"), ("maximum", "at most"))
    bounds = [f"{word} {wanted[key]}" for key, word in words if key in wanted]
    return f"{_KINDS[wanted['type']]} {'of ' if bounds else ''}{' and '.join(bounds)}".strip() + unset


def _fraction(name: str, value: Any, where: str) -> str:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not (number.is_finite() and 0 < number < 1):
        raise ConfigError(f"{where}: {name} is {value!r}, expected a number between 0 and 1, like 0.02")
    return str(value)
