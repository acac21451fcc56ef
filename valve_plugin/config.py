"""Settings: defaults, then `valve.toml`, then overrides; unknown names are refused with the nearest known one."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from valve_plugin.codec import convert, parse_toml, plain
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.files import read_regular
from valve_plugin.paths import BANK_NAME, data_dir
from valve_plugin.records import Count, Pairing, Panel, Positive
from valve_plugin.words import meant

FILE_NAME = "valve.toml"
MINI = "mini"
"""The setting `agent` of mini-SWE-agent, which attempts have without the setting."""
FUSED: Literal["fused"] = "fused"
STEMMED: Literal["stemmed"] = "stemmed"
"""The rankings that leave out what does not fit, as contexts and panels record them before their embedding."""
Ranking = Literal["stemmed", "fused", "paper"]
MAX_BYTES = 1_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting with its default: the paper's reference configuration (tab:impl-config)."""

    bank: str = ""
    """Bank directory; empty: $VALVE_BANK, then <repo>/.valve, then user data."""
    repo: str = ""
    """owner/name of the repository; empty: found from the checkout."""
    language: str = ""
    """Not used; `valve init` of earlier versions wrote it."""
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

    protocol: Literal["paper", "fresh"] = "fresh"
    """fresh: extraction asks what went wrong in each failing attempt, knows earlier verdicts, may replace notes, and
    reads an answer as a person would; the gate runs only panel tasks whose context changes, and measures those anew
    after an accept; what fails its screen is not judged. paper: the paper's prompts, its strict answers and its gate;
    experiments use it. The gate's part is declared with the epoch."""
    digest_tokens: Annotated[int, Meta(ge=1_000, le=1_000_000)] = 12_000
    """Tokens that extraction is shown of all attempts at a task together."""
    review: Literal["off", "model"] = "model"
    """model: one more call, in which the model checks the extracted items; what it does not clear waits for a person.
    off: only the short rules, which read English."""

    agent: str = "mini"
    """Who solves the tasks: mini, claude (Claude Code), codex, or a command with places like {task} and {notes}."""
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
    agent_hours: Annotated[float, Meta(gt=0, le=3)] = 2.0
    """Hours of wall clock and of CPU time per rollout, for an agent other than mini with all its commands."""
    agent_memory: Annotated[int, Meta(ge=1024)] = 8192
    """MiB of memory for such an agent; JavaScript engines reserve 4096 of address space."""

    top_principles: Count = 10
    top_skills: Count = 10
    retrieval: Literal["auto", "stemmed", "fused", "paper"] = "auto"
    """fused: weighted words, a model's cosine where one is on disk, and a floor. paper: eq:impl-retrieval. auto: as the
    bank's panel was judged, else fused."""
    context_bytes: Positive = 128_000
    """Bytes of the injected block, at most; what does not fit is left out in whole items, lowest rank first."""
    embedding: str = "auto"
    """auto: sentence-transformers when the extra and the model are on disk, else hashing; or a name on the hub, or a
    path: absolute, or beginning with ./, ../ or ~."""

    rho: str = "auto"
    """Gate margin as decimal text, fixed with the panel. auto: one pass more; 0.02 under `protocol = "paper"`."""
    screen: Annotated[int, Meta(ge=0, le=100)] = 5
    """More attempts at the task that a proposal was learned from, with it: where one fails, no gate is asked. 0: none,
    as under `protocol = "paper"`."""
    panel_size: Positive = 50
    rollouts: Positive = 3
    """Panel rollouts per task and condition."""
    pairing: Literal["auto", "paper", "deployed"] = "auto"
    """deployed: a candidate's context is what retrieval will give, and tasks whose context stays keep their outcomes.
    paper: the current context plus every proposed item. auto: paper under `protocol = "paper"`, else deployed."""
    early_stop: bool = True
    """Stop a gate as soon as its rejection is certain. False: run whole panels, to compare; the ledger is the same."""
    confirm: bool = False
    """An apparent accept has to repeat on as many fresh rollouts. Declared with the epoch."""
    guard: Count = 0
    """Reject where a panel task passes so many rollouts fewer, or still fewer; 0: off. Declared with the epoch."""
    false_accepts: Annotated[float, Meta(ge=0, le=1000)] = 0
    """Accepts of proposals that do not help, at most, in expectation over the epoch's queries; 0: not limited. Declared
    with the epoch; each query then measures both sides anew, and far less is learned."""
    horizon: Positive = 100
    """Gate queries declared per epoch."""
    delta: str = "0.05"
    """Failure probability of the certificates, and of what `valve try` says, as decimal text."""
    max_mixed: Positive = 100
    """Mixed tasks after which evolve stops."""
    panel_seed: int = 123
    seed: int = 0

    tasks: str = ""
    """Task set that panel and stream come from: a directory with repository.toml and tasks.jsonl."""
    plugins: tuple[str, ...] = ("valve",)
    """Plugins of unattended steps, by entry point; the last is asked first."""
    tracker: str = ""
    """Plugin that a run's events go to, beside those: `mlflow`, or another's entry point. Empty: none."""
    condition: str = ""
    """Condition of the experiment whose run the bank is: its hooks, which are ours, are then among `plugins`."""
    workers: Positive = 1
    executor: Literal["local", "ray"] = "local"
    """Where unattended rollouts run: on this machine, or on the nodes of a Ray cluster."""
    ray_address: str = "auto"
    """Of the cluster, HOST:PORT; auto: $RAY_ADDRESS, else the one that runs on this machine."""
    sandbox: Literal["auto", "bwrap", "podman", "docker"] = "auto"
    """Where unattended commands run. auto: in the task's image where it is on this machine, else in bubblewrap."""
    keep_history: bool = False
    """Leave the image's git history in the agent's copy, as SWE-smith does: its parent commit shows the fix."""
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    """USD one run of `valve evolve`, `valve gate` or `valve try` may spend; unset: no limit. 0 is refused."""
    max_rollouts: Positive | None = None
    """Rollouts one run may start; unset: no limit. Those that ran before cost nothing."""
    max_hours: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Hours of wall clock after which one run starts nothing new; unset: no limit. Less than 0.01 is refused."""
    speculate: Annotated[float, Meta(ge=0, le=10)] = 0.1
    """Rollouts that idle workers may waste, per useful one, on what is likely to be needed next; 0: they stay idle. The
    ledger is the same. A single worker never speculates."""
    unsafe_local: bool = False
    """Run unattended rollouts without a sandbox. Only for code and models you trust."""


NAMES: tuple[str, ...] = Settings.__struct_fields__

# A bank comes along with a repository, from whoever wrote there. These could run code, leave the sandbox or send
# keys and issues to another server, so they count only where the person typed them.
NEVER_FROM_FILE = (
    "agent",
    "unsafe_local",
    "model_class",
    "mini_config",
    "plugins",
    "tasks",
    "executor",
    "ray_address",
    "tracker",
)
# In the `.valve` of a repository, these could also spend the person's money, or weaken what protects them.
NOT_FROM_REPOSITORY = ("model", "workers", "speculate", "review", "keep_history")
ONLY_LOWER = ("cost_limit", "step_limit", "check_timeout", "agent_hours", "agent_memory")
"""Limits that such a file may lower, and not raise or switch off."""
AT_MOST = {
    **{"attempts": 10, "rollouts": 10, "screen": 10, "panel_size": 200, "max_mixed": 200, "model_tries": 20},
    **{"digest_tokens": 50_000, "context_bytes": 256_000, "top_principles": 50, "top_skills": 50},
}
"""What multiplies a run's cost, and how far such a file may raise it: a project's habit, and nobody's bill."""
SAMPLING = frozenset(
    {"drop_params", "max_completion_tokens", "max_tokens", "reasoning_effort", "seed", "stop", "temperature", "top_p"}
)
"""Arguments of a model call that say how it answers, and not where it goes or with which key."""
SCRIPTED_MODEL = "openai/valve-scripted"
"""The scripted model of demo, tests and experiments."""
ROLLOUT_HEADER = "X-Valve-Rollout"
"""HTTP header `<task id>/<ordinal>`, sent to the scripted model only: its draws depend on both."""
Use = Literal["live", "attempts", "learn", "ungated", "drain", "measure", "evaluate", "try"]
"""How settings are used: a live run, one with several attempts, or a run of the commands below."""
_USES = {
    "bank repo check check_timeout learn": "live attempts",
    "language test_command": "",
    "attempts": "live attempts learn ungated",
    "review digest_tokens": "learn ungated drain",
    "agent agent_hours agent_memory": "learn ungated drain measure evaluate try",
    "model model_class model_kwargs mini_config model_tries model_pause step_limit cost_limit workers": (
        "attempts learn ungated drain measure evaluate try"
    ),
    "protocol rho panel_size rollouts pairing panel_seed": "learn ungated drain measure",
    "budget_usd max_rollouts max_hours": "learn ungated drain measure try",
    "confirm guard false_accepts horizon": "learn drain measure",
    "delta": "learn drain measure try",
    "early_stop screen": "learn drain",
    "tracker": "learn ungated drain",
    "max_mixed speculate": "learn ungated",
    "tasks": "drain measure evaluate",
    "condition": "learn ungated drain measure evaluate",
    "seed plugins keep_history executor ray_address": "learn ungated drain measure evaluate try",
    "top_principles top_skills retrieval embedding": "live attempts learn ungated drain measure evaluate",
}
"""What uses the settings that not everything uses."""
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
            merged[_check_name(name, where)] = value
    for name in ("rho", "delta"):
        if name in merged and (name, merged[name]) != ("rho", "auto"):
            merged[name] = str(given := merged[name])
            try:
                number = Decimal(merged[name])
            except InvalidOperation:
                number = Decimal("NaN")
            if not (number.is_finite() and 0 < number < 1):
                raise ConfigError(f"{where}: {name} is {given!r}, expected a number between 0 and 1, like 0.02")
    for name in ("budget_usd", "max_hours"):
        if isinstance(merged.get(name), float) and not math.isfinite(merged[name]):
            raise ConfigError(f"{where}: {name} is {merged[name]}, expected {_expected(name)}")
    try:
        return convert(merged, Settings, where=where)
    except RecordError as e:
        at = re.search(r"at `\$\.(\w+)", str(e))
        wrong = f"{where}: {at[1]} is {merged[at[1]]!r:.200}, expected {_expected(at[1])}" if at else str(e)
        raise ConfigError(f"{wrong}; the page Settings of the documentation lists them all") from e


def is_unused(name: str, use: Use, *, draws: bool = True) -> bool:
    """Return whether a setting has no effect in a run.

    Args:
        draws: whether what replaces the model (the scripted model, a plugin) may draw with `seed`.
    """
    uses = next((uses for names, uses in _USES.items() if name in names.split()), use).split()
    return use not in uses or (name == "seed" and not draws and use != "try")


def read_file(path: Path) -> dict[str, Any]:
    """Read one `valve.toml` (missing: empty).

    Raises:
        ConfigError: unreadable, too large, not UTF-8 or not TOML, with file and line.
    """
    try:
        raw = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e
    try:
        return parse_toml(raw)
    except RecordError as e:
        raise ConfigError(f"{path}: {e}") from e


def load(bank_dir: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a bank directory, with the person's own and then overrides on top."""
    path = bank_dir / FILE_NAME if bank_dir else None
    layer = read_file(path) if path else {}
    base = resolve(layer, where=str(path)) if path else Settings()
    if bank_dir:
        _refuse_dangerous(layer, bank_dir / FILE_NAME, shared=in_repository(bank_dir))
    if own := read_file(user_file()):
        base = resolve(changed_settings(base), own, where=str(user_file()))
    return resolve(changed_settings(base), overrides or {}, where="overrides") if overrides else base


def ranking_of(recorded: str) -> Ranking:
    """Return the ranking of what a context or a panel recorded as its embedding."""
    named = recorded.partition(":")[0]
    return FUSED if named == FUSED else STEMMED if named == STEMMED else "paper"


def pairing_of(settings: Settings) -> Pairing:
    """Return the pairing of a panel that is fixed under these settings."""
    if settings.pairing == "auto":
        return "paper" if settings.protocol == "paper" else "deployed"
    return settings.pairing


def as_judged(settings: Settings, panel: Panel | None) -> Settings:
    """Return settings in which `retrieval = "auto"` is the ranking that the bank's panel was judged under."""
    if settings.retrieval != "auto" or panel is None:
        return settings
    return replace(settings, retrieval=ranking_of(panel.embedding))


def model_of(settings: Settings) -> str:
    """Return the model of a run: the setting, else mini's default, else an empty string."""
    return settings.model or os.environ.get("MSWEA_MODEL_NAME", "")


def is_path(embedding: str) -> bool:
    """Whether an `embedding` is a place on this machine, and no name."""
    return embedding.startswith(("/", "~", "./", "../")) or embedding in (".", "..")


def user_file() -> Path:
    """Return where a person's own settings are, for all banks; it need not exist."""
    return data_dir() / FILE_NAME


def in_repository(bank_dir: Path) -> bool:
    """Whether a bank may have come with a repository: it is a `.valve`, or in a git repository, and not user data."""
    places = {bank_dir.absolute(), bank_dir.resolve()}
    if any(place.is_relative_to(data_dir().resolve()) for place in places):
        return False
    return any(p.name == BANK_NAME or any((above / ".git").exists() for above in (p, *p.parents)) for p in places)


def _refuse_dangerous(layer: Mapping[str, Any], path: Path, *, shared: bool) -> None:
    """Refuse what only the person may set.

    Args:
        shared: whether it is in a repository.
    """
    bad = [name for name in NEVER_FROM_FILE if name in layer]
    bad += [f"model_kwargs.{name}" for name in layer.get("model_kwargs", {}) if name not in SAMPLING]
    bad += ["model"] if "://" in layer.get("model", "") else []  # litellm asks the server such a name holds
    bad += ["embedding"] if is_path(layer.get("embedding", "")) else []  # a folder beside it would rank the items
    bad += [name for name in NOT_FROM_REPOSITORY if shared and name in layer]
    if bad:
        raise ConfigError(
            f"{path}: {bad[0]} is not taken from a file that can come with a repository; remove it there, "
            f"{_yours(bad[0])}"
        )
    most = {name: plain(Settings())[name] for name in ONLY_LOWER} | AT_MOST
    for name in layer.keys() & most.keys() if shared else ():
        lowers = name in ONLY_LOWER
        if layer[name] > most[name] or (lowers and layer[name] <= 0):
            may = f"only lower the default, {most[name]}" if lowers else f"say at most {most[name]}"
            raise ConfigError(
                f"{path}: {name} is {layer[name]}, but a file that can come with a repository may {may}; "
                f"remove it there, {_yours(name)}"
            )


def _yours(name: str) -> str:
    return f"and give it yourself, with -c {name}=VALUE (`mini`: -c valve.{name}=VALUE), or in {user_file()}"


def to_toml(layer: Mapping[str, Any]) -> str:
    """Return settings as the text of a `valve.toml`, in the order of `Settings`.

    Raises:
        ConfigError: a value has no form in TOML: null in a list, NaN, text that is not Unicode.
    """
    lines = []
    for name in NAMES:
        if name in layer:
            try:
                lines.append(f"{name} = {toml_value(layer[name])}\n")
                lines[-1].encode()
            except ValueError as e:
                raise ConfigError(f"{name} is {layer[name]!r:.200}, which cannot be written as TOML: {e}") from e
    return "".join(lines)


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return only what differs from the defaults."""
    default = plain(Settings())
    return {name: value for name, value in plain(settings).items() if value != default[name]}


def toml_value(value: Any) -> str:
    """Return a value as TOML. JSON's strings, numbers and lists are TOML's too, but for the DEL character."""
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{toml_value(str(k))} = {toml_value(v)}" for k, v in value.items() if v is not None) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if value is None:
        raise ValueError("it has no null")
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _check_name(name: str, where: str) -> str:
    if name in NAMES:
        return name
    if name == "environment_class":  # mini's, and no name of ours is meant
        raise ConfigError(
            f"{where}: unknown setting {name!r}; settings of mini go into mini_config, which takes "
            f"what `mini -c` takes: -c 'mini_config=[\"environment.{name}=VALUE\"]'"
        )
    if name == "run_ahead":
        raise ConfigError(
            f"{where}: run_ahead is now speculate, the rollouts that may be wasted per useful one: write "
            "speculate = 0.1, or 0 for none"
        )
    hint = meant(name, NAMES, near=0.65) or f"there are {', '.join(NAMES)}"
    raise ConfigError(f"{where}: unknown setting {name!r}; {hint}")


def _expected(name: str) -> str:
    wanted = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"][name]
    unset = "; leave it out for no limit" if "anyOf" in wanted else ""
    wanted = wanted.get("anyOf", [wanted])[0]
    if "enum" in wanted:
        return f"one of {', '.join(wanted['enum'])}"
    words = (("exclusiveMinimum", "more than"), ("minimum", "at least"), ("maximum", "at most"))
    bounds = [f"{word} {wanted[key]}" for key, word in words if key in wanted]
    return f"{_KINDS[wanted['type']]} {'of ' if bounds else ''}{' and '.join(bounds)}".strip() + unset
