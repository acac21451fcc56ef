"""What `valve doctor` looks at: the registry, and the rows about Python, mini and the model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from valve_plugin.cli.installs import origin, ours, repaired, system_install
from valve_plugin.cli.requirements import extras, lacking, met, told
from valve_plugin.errors import ValveError
from valve_plugin.extras import DISTRIBUTION, install, pip_install
from valve_plugin.shell_words import programs, quote

if TYPE_CHECKING:
    from valve_plugin.bank.checkout import Checkout
    from valve_plugin.config import Settings

State = Literal["ok", "missing", "failed"]
"""`missing` is optional: what it is for does not work, the rest does."""
_RUNNERS = ("pytest", "tox", "nox", "nose2", "coverage")
"""Test runners whose package has the name of the command."""


class Found(NamedTuple):
    """What a look found."""

    state: State
    detail: str
    fix: str = ""
    """The one command that changes the state; empty where it is ok."""


class Row(NamedTuple):
    """One row of the report."""

    name: str
    state: State
    detail: str
    fix: str


class Place(NamedTuple):
    """Where doctor looks."""

    here: Checkout
    bank: Path
    settings: Settings
    trouble: str = ""
    """Why the bank's settings could not be read: then these are the defaults."""
    call: bool = False


Look = Callable[[Place], Found]
LOOKS: dict[str, Look] = {}
"""Every row by its name, in the order they are shown."""


def row(name: str) -> Callable[[Look], Look]:
    """Register a look under the name of its row."""

    def registered(look: Look) -> Look:
        LOOKS[name] = look
        return look

    return registered


def examine(place: Place) -> list[Row]:
    """Look at everything; what a look raises is its row's failure."""
    rows = []
    for name, look in LOOKS.items():
        try:
            found = look(place)
        except Exception as e:  # noqa: BLE001  # no row ends the report
            found = Found("failed", str(e) if isinstance(e, ValveError) else f"{type(e).__name__}: {e}")
        rows.append(Row(name, *found))
    return rows


@row("python")
def _python(place: Place) -> Found:
    version = ".".join(map(str, sys.version_info[:3]))
    return Found("ok", f"{version}, valve {metadata.version(DISTRIBUTION)}")


@row("packages")
def _packages(place: Place) -> Found:
    if lacks := lacking(None):
        return Found("failed", f"not installed as needed: {told(lacks)}", pip_install(*lacks))
    shown = ("litellm", "typer", "msgspec", "numpy")
    return Found("ok", ", ".join(f"{name} {metadata.version(name)}" for name in shown))


@row("git")
def _git(place: Place) -> Found:
    if shutil.which("git") is None:
        return Found("failed", "git is not on PATH", system_install("git"))
    done = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode or not done.stdout.startswith("git version "):
        said = (done.stderr or done.stdout).strip()[:200]
        text = f"{shutil.which('git')} --version ended with {done.returncode}: {said}"
        return Found("failed", text, repaired("git", "git"))
    return Found("ok", done.stdout.strip().removeprefix("git version "))


@row("mini-SWE-agent")
def _mini(place: Place) -> Found:
    version = metadata.version("mini-swe-agent")
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not (2, 4) <= numbers < (3, 0):
        return Found("failed", f"{version}; 2.4 up to 3 is supported", pip_install("mini-swe-agent>=2.4,<3"))
    return Found("ok", version)


@row("start-up file")
def _seam(place: Place) -> Found:
    if os.environ.get("VALVE_STARTUP") == "0":
        return Found(
            "missing", "VALVE_STARTUP=0 switches `mini --plugin` off; `valve mini` works", "unset VALVE_STARTUP"
        )
    # A process that looks like mini's to the start-up file, and says whether that took notice.
    code = "import sys; print(any(type(f).__module__ == 'valve_plugin._boot' for f in sys.meta_path))"
    command = [sys.executable, "-c", code, "minisweagent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.stdout.strip().endswith("True"):
        return Found("ok", "`mini --plugin valve` works")
    found = metadata.distribution(DISTRIBUTION)
    text = "mini does not see the plugin; `valve mini` does without the start-up file"
    source = origin(found.read_text("direct_url.json"), found.version)
    if source[-1].startswith("/") and not Path(source[-1]).exists():
        return Found("missing", f"{text}. Install valve-plugin again; it came from {source[-1]}, which is gone")
    return Found("missing", text, pip_install("--force-reinstall", "--no-deps", *source))


@row("model")
def _model(place: Place) -> Found:
    from valve_plugin.rollouts import mini_settings

    mini_settings.load()
    name = place.settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    if not name:
        return Found("failed", "no model is named; only `--simulate` and `valve demo` work", _variable())
    if not place.call:
        return Found("ok", f"{name} (not called; --call does)")
    named = _edit(place) if place.settings.model else _variable()
    return _called(name, place.settings.model_kwargs, named)


def cheapest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one call that costs as little as it can, whatever a bank's settings ask for. Pure.

    Thinking is left out: some providers refuse a budget for it above the limit of the reply.
    """
    limit = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"  # never both
    kept = {k: v for k, v in given.items() if k not in ("max_tokens", "max_completion_tokens", "reasoning_effort")}
    return {**kept, limit: 16, "timeout": 60, "num_retries": 0, "max_retries": 0}


def _called(name: str, given: dict[str, Any], named: str) -> Found:
    """Call the model once, for as little as it gives."""
    from valve_plugin.client import client
    from valve_plugin.rollouts.faults import advice, key_variable
    from valve_plugin.rollouts.patience import fault_of

    litellm = client()
    try:
        litellm.completion(
            model=name,
            messages=[{"role": "user", "content": "Answer with the word yes."}],
            **cheapest(given),
        )
    except Exception as e:  # noqa: BLE001  # litellm wraps every provider in its own way
        fault = fault_of(e)
        if fault is None:
            return Found("failed", f"{name}: {type(e).__name__}: {str(e)[:200]}", named)
        fixes = {"key": _variable(key_variable(name), "KEY"), "model": named}
        again = fixes.get(fault.kind, ours("valve", "doctor", "--call"))  # where only time, money or the provider helps
        return Found("failed", f"{name}: {advice(fault.kind, name, given, os.environ)}", again)
    return Found("ok", f"{name} answers")


def _variable(name: str = "MSWEA_MODEL_NAME", value: str = "PROVIDER/NAME") -> str:
    """Return the command that sets a variable of mini's; empty: a repository's model made it no name."""
    return ours("mini-extra", "config", "set", name, value) if re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) else ""


@row("check command")
def _check(place: Place) -> Found:
    if place.trouble:
        return Found("missing", "not known while the bank's settings cannot be read, see there")
    command = place.settings.check or place.settings.test_command
    if not command:
        return Found("missing", "no test command is known: attempts are graded only by one you name", _name_one(place))
    edit = _edit(place)
    try:
        needed = programs(command)
    except ValueError as e:
        return Found("failed", f"{command}: the shell cannot read it: {e}", edit)
    lost = [name for name in needed if not (shutil.which(name) or (place.here.folder / name).is_file())]
    if not lost:
        return Found("ok", command)
    return Found("failed", f"{command}: {', '.join(lost)}: not on PATH", _runner(lost[0]) or edit)


def _edit(place: Place) -> str:
    """Return the command that opens the bank's settings."""
    return f"${{EDITOR:-vi}} {quote(str(place.bank / 'valve.toml'))}"


def _runner(name: str) -> str:
    """Return the command that puts a test runner on PATH; empty where none is known.

    The name may come out of somebody's repository: what is not in the table is never installed.
    """
    beside = Path(sys.executable).parent
    if (beside / name).is_file() and "/" not in name:
        return f"export PATH={quote(str(beside))}:$PATH"
    on_path = str(beside) in os.environ.get("PATH", "").split(os.pathsep)
    return pip_install(name) if name in _RUNNERS and on_path else ""


def _name_one(place: Place) -> str:
    """Return the command that writes down how this repository is tested."""
    from valve_plugin.cli.detect import language, tests
    from valve_plugin.cli.init import making

    found = tests(place.here.folder, language(place.here.folder).value).value
    there = (place.bank / "ledger.jsonl").exists()  # then only what is named is written into its settings
    named = found if there else ""
    again = [] if found and not there else ["--test-command", named or "python -m pytest"]
    return making(place.bank, place.here, *again)


_WITHOUT = {
    "smith": "`valve tasks generate` needs it",
    "semantic": "items are ranked by hashed words",
    "report": "reports and experiments have no figures",
    "skillopt": "experiments have no condition `skillopt`",
    "browser": "tests that open pages need it",
    "dev": "work on valve itself needs it",
}
"""What is lost without each extra, in the order of the rows."""


def _extra(name: str, place: Place) -> Found:
    """Look whether all that an extra takes is installed."""
    lacks = lacking(name)
    if not lacks:
        return Found("ok", met(name))
    there = any(lacks.values())  # in another version
    state = f"not as needed: {told(lacks)}" if there else "not installed"
    without = _WITHOUT.get(name, "what it is for does not work")
    return Found("missing", f"{state}; {without}", install(name))


for _name in sorted(extras(), key=[*_WITHOUT, *extras()].index):
    row(f"extra {_name}")(partial(_extra, _name))


@row("embedding model")
def _embedding(place: Place) -> Found:
    from valve_plugin.bank import embedding, models

    wanted = place.settings.embedding
    if wanted == embedding.HASHING:
        return Found("ok", "hashing, as set")
    name = embedding.DEFAULT_MODEL if wanted == embedding.AUTO else wanted
    found = models.find(name)
    if found is not None:
        return Found("ok", f"{name}, on disk")
    state: State = "missing" if wanted == embedding.AUTO else "failed"
    hub = models.on_hub(name)  # else it is a path, or somebody's joke
    fix = ours("hf", "download", hub) if hub else _edit(place)
    return Found(state, f"{name} is not on disk; items are ranked by hashed words", fix)
