"""`valve doctor`: check all that a run needs, and name a command for what does not work.

Each check is a function from a `Place` to a `CheckResult`; `checks()` lists them. People paste hints into a shell, so
text of a repository is always quoted in them.
"""

from __future__ import annotations

import json as json_
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from valve_plugin import config
from valve_plugin.bank import ledger
from valve_plugin.checkout import find
from valve_plugin.cli import output
from valve_plugin.cli.connect import claude_settings, connection
from valve_plugin.cli.init import init_command, line_to_set
from valve_plugin.cli.options import BankDir, Commands, Json, bank_dir, flag, option
from valve_plugin.errors import BankNotFoundError, ConfigError, ValveError
from valve_plugin.extras import DISTRIBUTION, install_command, missing_requirements, own_command, pip_install
from valve_plugin.files import hold_lock, write_atomic, write_new
from valve_plugin.paths import data_dir
from valve_plugin.sandbox.scratch import private_folder, scratch_folder
from valve_plugin.words import join

if TYPE_CHECKING:
    from valve_plugin.checkout import Checkout
    from valve_plugin.config import Settings
    from valve_plugin.sandbox.bubblewrap import Sandbox

State = Literal["ok", "missing", "failed"]
"""`missing`: an optional part is not there; the rest works."""
_STYLES = {"ok": "", "missing": "yellow", "failed": "red"}
_TEST_SECONDS = 60
_LEAST_GIB = 2
"""Disk space that one rollout may use."""
_WITHOUT = {
    "smith": "`valve tasks generate` needs it",
    "semantic": "notes are ranked by hashed words",
    "mcp": "`valve mcp` needs it",
    "ray": "rollouts run on this machine only",
    "mlflow": "`-c tracker=mlflow` needs it",
    "skillopt": "experiments have no condition `skillopt`",
}
"""What does not work without each extra for users, in the order of the checks."""
_EXTRA = "extra "
_USER_NAMESPACES = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
"""The kernel setting with which Ubuntu forbids bubblewrap."""
_ESCAPE = """
(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo "got: network"
unshare --user true 2>/dev/null && echo "got: namespaces"
cat '{path}' 2>/dev/null
env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'
nohup setsid sleep {sleep} >/dev/null 2>&1 &
"""


class CheckResult(NamedTuple):
    """What a check found."""

    state: State
    detail: str
    hint: str = ""
    """A command that fixes it; empty if it is ok, or if no single command fixes it."""


class Place(NamedTuple):
    """What is checked."""

    here: Checkout
    bank: Path
    settings: Settings
    trouble: str = ""
    """Why the bank's settings could not be read; `settings` are then the defaults."""
    call: bool = False


Check = Callable[[Place], CheckResult]

commands = Commands()


@commands.add(
    "doctor",
    "valve doctor                                   # everything; needs no key and no network",
    "valve doctor --call                            # and one cheap call of the model",
    "valve doctor --all                             # with every optional extra",
    "valve doctor --executor ray                    # what the nodes of a Ray cluster can do",
)
def doctor(
    bank: BankDir = "",
    call: Annotated[bool, flag("--call", "Call the model once; costs a few tokens.")] = False,
    all_: Annotated[
        bool, flag("--all", "A row for each optional extra, with what it is for and how to get it.")
    ] = False,
    executor: Annotated[str, option("--executor", "ray", "Check the nodes of a cluster, and not this machine.")] = "",
    json: Json = False,
) -> None:
    """Check what a run needs, and name the fix for what does not work.

    The sandbox check runs commands that try to escape. A `missing` row is optional. Exit code 1 when a row failed.
    """
    given = {"executor": executor} if executor else {}
    place = Place(find(Path.cwd()), bank_dir(bank), config.resolve(given), call=call)
    try:
        place = place._replace(settings=config.load(place.bank, given))
    except ConfigError as e:
        place = place._replace(trouble=str(e))
    found = _nodes(place.settings) if place.settings.executor == "ray" and executor else examine(place)
    if json:
        named = found.items()
        output.emit_json({"rows": [{"name": n, "state": s, "detail": d, "fix": h} for n, (s, d, h) in named]})
    else:
        for line, style in lines(found, all_=all_):
            output.say(line, style=style)
    if any(one.state == "failed" for one in found.values()):
        raise typer.Exit(output.FINDING)


def checks() -> dict[str, Check]:
    """Return every check by its name, in the order they are shown."""
    return {
        "python": _python,
        "git": _git,
        "start-up file": _start_up_file,
        "model": _model,
        "test command": _check_command,
        **{f"{_EXTRA}{name}": partial(_extra, name) for name in _WITHOUT},
        "bank": _bank,
        "claude": _claude,
        "user data": _user_data,
        "sandbox": _sandbox,
        "container engine": _engine,
    }


def examine(place: Place, wanted: Mapping[str, Check] | None = None) -> dict[str, CheckResult]:
    """Return what every check found; a check that raises has failed."""
    found = {}
    for name, check in (wanted or checks()).items():
        try:
            found[name] = check(place)
        except Exception as e:  # noqa: BLE001  # no check ends the report
            found[name] = CheckResult("failed", str(e) if isinstance(e, ValveError) else f"{type(e).__name__}: {e}")
    return found


def lines(found: Mapping[str, CheckResult], *, all_: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (text, style) of the report, with the hint below each row that is not ok.

    Args:
        all_: show each extra that is not installed; else they are one row.
    """
    absent = [name for name, one in found.items() if name.startswith(_EXTRA) and one.state == "missing"]
    shown = {name: one for name, one in found.items() if all_ or name not in absent}
    if len(shown) < len(found):
        names = ", ".join(name.removeprefix(_EXTRA) for name in absent)
        shown["extras"] = CheckResult("missing", f"optional, not installed: {names} (--all says what each is for)")
    width = max(map(len, shown), default=0)
    for name, one in shown.items():
        yield f"{one.state:8} {name:{width}}  {output.one_line(one.detail)}", _STYLES[one.state]
        if one.state != "ok" and one.hint:
            yield f"{'':8} {'':{width}}  $ {output.one_line(one.hint)}", "bold"
    bad = [name for name, one in found.items() if one.state == "failed"]
    yield "", ""
    failed = f"{output.plural(len(bad), 'row')} failed: {', '.join(bad)}"
    yield failed if bad else "everything that is needed works", ""


def _nodes(settings: Settings) -> dict[str, CheckResult]:
    """Return what each node of the cluster can do."""
    from valve_plugin.rollouts.ray_executor import nodes

    found = {}
    output.note("asking each node what it can do: some seconds, up to two minutes", style="dim")
    for node in nodes(settings):
        model = settings.model or os.environ.get("MSWEA_MODEL_NAME") or "the default model"
        key = f"{'a' if node.key else 'no'} key for {model}"
        able = f"{output.plural(round(node.cores), 'core')}, Python {node.python}, valve {node.valve}, {node.sandbox}"
        found[node.name] = CheckResult("failed", node.problem) if node.problem else CheckResult("ok", f"{able}, {key}")
    return found


def _as_root(*words: str) -> str:
    """Return a command for the system; empty where its program is not there."""
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    return join([*sudo, *words]) if shutil.which(words[0]) else ""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


# ---- Python and its packages


def _listed(lacks: Mapping[str, str]) -> str:
    """Return requirements as `numpy>=1.26 (1.25.2 is installed), rich>=13`."""
    return ", ".join(f"{line} ({version} is installed)" if version else line for line, version in lacks.items())


def _python(place: Place) -> CheckResult:
    if lacks := missing_requirements(None):
        return CheckResult("failed", f"packages not installed as needed: {_listed(lacks)}", pip_install(*lacks))
    packages = [f"{name} {metadata.version(name)}" for name in (DISTRIBUTION, "mini-swe-agent", "litellm")]
    return CheckResult("ok", ", ".join([platform.python_version(), *packages]))


def _extra(name: str, place: Place) -> CheckResult:
    lacks = missing_requirements(name)
    if not lacks:
        return CheckResult("ok", "installed")
    state = f"not as needed: {_listed(lacks)}" if any(lacks.values()) else "not installed"
    return CheckResult("missing", f"{state}; {_WITHOUT[name]}", install_command(name))


def _start_up_file(place: Place) -> CheckResult:
    if os.environ.get("VALVE_STARTUP") == "0":
        text = "VALVE_STARTUP=0 switches `mini --plugin` off; `valve mini` works"
        return CheckResult("missing", text, "unset VALVE_STARTUP")
    # The start-up file takes this process for mini; it prints whether the start-up file was loaded.
    code = "import sys; print(any(type(f).__module__ == 'valve_plugin._boot' for f in sys.meta_path))"
    if _run(sys.executable, "-c", code, "minisweagent").stdout.strip().endswith("True"):
        return CheckResult("ok", "`mini --plugin valve` works")
    return CheckResult("missing", "mini does not see the plugin; install valve again, or use `valve mini`")


# ---- model, tests and bank


def _model(place: Place) -> CheckResult:
    from valve_plugin.agents import mini
    from valve_plugin.agents.faults import advice, find_fault, key_variable
    from valve_plugin.client import client

    mini.require_user_folder()
    mini.load_user_settings()
    name = config.model_of(place.settings)
    if not name:
        return CheckResult("failed", "no model is named; only `--simulate` and `valve demo` work", _set_variable())
    given, key = place.settings.model_kwargs, key_variable(name)
    if not place.call:
        keyed = os.environ.get(key) or given.keys() & {"api_key", "api_base", "base_url"}
        return CheckResult("ok", f"{name} (--call calls it){'' if keyed else f'; {key} is not set'}")
    try:
        message = {"role": "user", "content": "Answer with the word yes."}
        client().completion(model=name, messages=[message], **cheapest(given))
    except Exception as e:  # noqa: BLE001  # litellm wraps every provider in its own way
        fault = find_fault(e)
        if fault is None:
            return CheckResult("failed", f"{name}: {type(e).__name__}: {str(e)[:200]}", _set_variable())
        hints = {"key": _set_variable(key, "KEY"), "model": _set_variable()}
        again = own_command("valve", "doctor", "--call")  # only time, money or the provider can fix it
        return CheckResult("failed", f"{name}: {advice(fault, name, given, os.environ)}", hints.get(fault.kind, again))
    return CheckResult("ok", f"{name} answers")


def cheapest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one cheap call, whatever the bank's settings ask for.

    Reasoning is left out, because some providers refuse a reasoning budget above the reply's limit.
    """
    limit = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"  # never both
    kept = {k: v for k, v in given.items() if k not in ("max_tokens", "max_completion_tokens", "reasoning_effort")}
    return {**kept, limit: 16, "timeout": 60, "num_retries": 0, "max_retries": 0}


def _set_variable(name: str = "MSWEA_MODEL_NAME", value: str = "PROVIDER/NAME") -> str:
    """Return the command that sets a variable of mini; empty for an invalid name, as of a hostile model."""
    return own_command("mini-extra", "config", "set", name, value) if re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) else ""


def _check_command(place: Place) -> CheckResult:
    """Run the tests as a check would be run: in a copy, in the sandbox, for a minute at most."""
    from valve_plugin.live.check import try_command

    if place.trouble:
        return CheckResult("missing", "not known while the bank's settings cannot be read")
    command = place.settings.check or place.settings.test_command
    if not command:
        there = (place.bank / "ledger.jsonl").exists()
        where = f"; set {_line_to_set(place, 'pytest')}" if there else ""
        hint = "" if there else init_command(place.bank, place.here)
        return CheckResult("missing", f"no test command is known, so no attempt is graded without one{where}", hint)
    output.note(f"running the tests for up to {_TEST_SECONDS} s: {output.one_line(command)}", style="dim")
    try:
        tried = try_command(command, place.settings, place.here.folder, place.bank, _TEST_SECONDS)
    except ValveError as e:
        return CheckResult("missing", f"{command}: not tried: {e}")
    if tried.outcome != "errored":
        return CheckResult("ok", f"{command}: {tried.reason}")
    return CheckResult("failed", f"{command}: {tried.reason}; {_line_to_set(place, command)}")


def _line_to_set(place: Place, command: str) -> str:
    """Return where the command of the tests is set, and the line that sets it to a Python that may have them."""
    from valve_plugin.live.check import is_pytest

    environment = next(
        (f for name in (".venv", "venv") if (f := place.here.folder / name).is_dir()), Path("/path/.venv")
    )
    better = f"{environment / 'bin' / 'python'} -m pytest{command.partition('pytest')[2]}"
    name = "check" if place.settings.check else "test_command"
    return line_to_set(place.bank, better if is_pytest(command) else "COMMAND", name)


def _bank(place: Place) -> CheckResult:
    """Check that the bank's settings can be read, and all that the bank claims."""
    from valve_plugin.bank.verify import verify

    if place.trouble:
        return CheckResult("failed", place.trouble)
    try:
        found = verify(place.bank)
    except BankNotFoundError:
        return CheckResult("missing", f"none yet; it would be {place.bank}", init_command(place.bank, place.here))
    if errors := [one for one in found if one.level == "error"]:
        of_ledger = [one for one in errors if one.file == ledger.FILE_NAME or one.place == "ledger"]
        worst = (of_ledger or errors)[0]  # the others follow from it
        repair = own_command("valve", "bank", "verify", "--repair", "--bank", str(place.bank))
        return CheckResult("failed", f"{worst.file} {worst.place}: {worst.message}", "" if of_ledger else repair)
    return CheckResult("ok", "; ".join([f"{place.bank}: all verified", *(one.message for one in found)]))


def _claude(place: Place) -> CheckResult:
    """Check that what Claude Code's hooks run is there: they never stop a prompt, so they fail without a word."""
    path = claude_settings(place.here.folder)
    try:
        found = connection(json_.loads(path.read_text("utf-8"))) if path.exists() else None
    except ValueError as e:
        return CheckResult("failed", f"{path}: its hooks cannot be read: {e}")
    if found is None:
        return CheckResult("ok", "Claude Code is not connected here; `valve connect claude` gives it the notes")
    if gone := [program for program in needed_programs(found.program) if shutil.which(program) is None]:
        again = own_command("valve", "connect", "claude", "--yes", *(["--check", found.check] if found.check else []))
        text = f"Claude Code gets no notes: the hooks in {path} run {found.program}, and {gone[0]} is not there"
        return CheckResult("failed", text, again)
    return CheckResult("ok", f"Claude Code's hooks run {found.program}")


def needed_programs(program: str) -> list[str]:
    """Return a program and, of an installed script, the Python in its first lines."""
    found = shutil.which(program)
    if found is None:
        return [program]
    with open(found, "rb") as file:
        head = file.read(1024)
    script = re.match(rb"#!(?:/bin/sh\n'{3}exec' )?[\"]?(/[^\s\"]+)", head)  # the long form is that of long paths
    return [program, *([os.fsdecode(script[1])] if script else [])]


# ---- this machine


def _git(place: Place) -> CheckResult:
    if shutil.which("git") is None:
        return CheckResult("failed", "git is not on PATH", _as_root("apt-get", "install", "-y", "git"))
    done = _run("git", "--version")
    if done.returncode:
        return CheckResult("failed", f"git --version ended with {done.returncode}: {done.stderr.strip()[:200]}")
    root = str(place.here.root)
    if place.here.git and "dubious ownership" in _run("git", "-C", root, "rev-parse", "--git-dir").stderr:
        trust = join(["git", "config", "--global", "--add", "safe.directory", root])
        return CheckResult("failed", f"git does not read {root}, because another user owns it", trust)
    return CheckResult("ok", done.stdout.strip().removeprefix("git version "))


def _user_data(place: Place) -> CheckResult:
    from valve_plugin.sandbox.git import create_store, import_files
    from valve_plugin.sandbox.workspace import diff, open_workspace

    where = data_dir()
    move = "unset VALVE_DATA" if os.environ.get("VALVE_DATA") else 'export VALVE_DATA="$HOME/.valve-data"'
    if root := next((folder for folder in (where, *where.parents) if (folder / ".git").exists()), None):
        text = f"{where} is inside the repository {root}, where an agent can read it: tasks hold the fixes"
        return CheckResult("failed", text, move)
    above = next(folder for folder in (where, *where.parents) if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        return CheckResult("failed", f"{where} cannot be written: {above} is not a folder of yours", move)
    free = shutil.disk_usage(above).free / 1024**3
    if free < _LEAST_GIB:
        return CheckResult("failed", f"{where} has {free:.0f} GiB free; a rollout may need {_LEAST_GIB} GiB", move)
    if shutil.which("git"):  # its own row says that it is missing
        # what a graded attempt does: a tree is kept in the temporary folder and checked out in user data
        tried = "the temporary folder"
        try:
            tried = tempfile.gettempdir()
            with private_folder("valve-doctor-") as temporary:
                store = Path(temporary, "store")
                create_store(store)
                commit = import_files(store, [("x", "100644", b"x\n")], "refs/heads/main")
                tried = str(where)
                with open_workspace(store, commit) as copy, scratch_folder() as scratch:
                    (copy.path / "x").write_text("y\n")
                    diff(copy)
                    with hold_lock(scratch / "lock", 1.0, "it cannot be locked"):
                        write_new(scratch / "z", b"z")
                        write_atomic(scratch / "z", b"z")
        except (ValveError, OSError) as e:
            return CheckResult("failed", f"{tried} cannot be used: {e}", move)
    wanted, used = os.environ.get("TMPDIR") or tempfile.gettempdir(), tempfile.gettempdir()
    if os.path.realpath(wanted) != os.path.realpath(used):
        return CheckResult("missing", f"$TMPDIR, {wanted}, cannot be written; {used} is used instead", "unset TMPDIR")
    return CheckResult("ok", f"{where}, {free:.0f} GiB free")


def _sandbox(place: Place) -> CheckResult:
    """Check that unattended rollouts can be sandboxed, and that the sandbox holds."""
    from valve_plugin.sandbox.bubblewrap import Bubblewrap, bubblewrap_problem, choose, filter_problem
    from valve_plugin.sandbox.cgroup import memory_group

    settings = place.settings
    if settings.sandbox not in ("auto", "bwrap"):
        return CheckResult("ok", f"{settings.sandbox}, as set: tasks need an image")
    reason = bubblewrap_problem()
    if reason and not settings.unsafe_local:
        text = f"unattended rollouts need one, and bubblewrap does not work here: {reason}"
        return CheckResult("failed", f"{text}; --unsafe-local runs them without", _allow_bubblewrap(_USER_NAMESPACES))
    box = choose(settings)
    if got := escapes(box):
        return CheckResult("failed", f"{box.name} does not keep commands from: {', '.join(got)}")
    if isinstance(box, Bubblewrap) and (why := filter_problem()):
        return CheckResult("missing", why)
    with memory_group(1 << 30) as group:
        memory = "" if group else "; no control group for memory can be made here, so only that of processes is counted"
    return CheckResult("ok", f"{box.name}: no network, no files, no environment, nothing outlives its command{memory}")


def _allow_bubblewrap(kernel: Path) -> str:
    """Return the command that makes bubblewrap work; empty if none is known. `kernel` is the setting's file."""
    if not all(shutil.which(tool) for tool in ("bwrap", "prlimit", "setpriv")):
        return _as_root("apt-get", "install", "-y", "bubblewrap", "util-linux")
    with suppress(OSError):
        if kernel.read_text().strip() == "1":
            return _as_root("sysctl", "-w", f"kernel.{kernel.name}=0")
    return ""


def escapes(box: Sandbox) -> list[str]:
    """Return what a command in the sandbox can reach but must not; an empty list means the sandbox holds.

    Raises:
        SandboxError: it does not start.
    """
    import psutil

    from valve_plugin.sandbox.bubblewrap import filter_problem
    from valve_plugin.sandbox.supervisor import ProcessLimits
    from valve_plugin.sandbox.workspace import open_workspace

    word, sleep = secrets.token_hex(16), f"{600 + secrets.randbelow(10**6) / 10**6:.6f}"
    os.environ["VALVE_DOCTOR_CANARY"] = f"environment {word}"
    # A child has the canary in its environment from its start; it ends when its stdin closes.
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        with scratch_folder() as scratch, open_workspace() as place, socket.create_server(("127.0.0.1", 0)) as server:
            (scratch / "canary").write_text(f"file {word}\n")
            command = _ESCAPE.format(port=server.getsockname()[1], path=scratch / "canary", sleep=sleep)
            printed = box.run(command, place, limits=ProcessLimits(wall_seconds=60)).output.decode("utf-8", "replace")
    finally:
        other.communicate()
        del os.environ["VALVE_DOCTOR_CANARY"]
    left = [process for process in psutil.process_iter(["cmdline"]) if sleep in (process.info["cmdline"] or [])]
    for process in left:
        process.kill()
    reached = {
        "network": "got: network" in printed,
        "namespaces of their own": "got: namespaces" in printed and not filter_problem(),
        "files of this machine": f"file {word}" in printed,
        "environment variables": f"environment {word}" in printed,
        "outliving their end": bool(left),
    }
    return [what for what, got in reached.items() if got]


def _engine(place: Place) -> CheckResult:
    """Check docker or podman, which tasks with an image need."""
    from valve_plugin.sandbox.engine import ENGINES, Engine, engine_problem

    wanted = [name for name in ENGINES if place.settings.sandbox in ("auto", "bwrap", name)]
    reasons = {name: engine_problem(name) for name in wanted}
    if works := [name for name in wanted if not reasons[name]]:
        engine = Engine(works[0])
        return CheckResult("ok", f"{works[0]} {engine.call('version', '--format', '{{.Client.Version}}')}")
    there = [name for name in wanted if shutil.which(name)]
    text = "; ".join(reasons[name] for name in there or wanted)
    packages = ("podman", "runc") if "podman" in wanted else ("docker.io",)
    hint = "" if there else _as_root("apt-get", "install", "-y", *packages)
    if place.settings.sandbox in ENGINES:
        return CheckResult("failed", text, hint)
    return CheckResult("missing", f"{text}; tasks run in bubblewrap, not in their own images", hint)
