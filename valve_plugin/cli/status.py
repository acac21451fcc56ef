"""`valve` alone: where this repository stands, and the next command to run."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from valve_plugin import __version__
from valve_plugin.bank.identity import find_bank, is_foreign, is_own
from valve_plugin.bank.scripted_bank import find_simulation, is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import Checkout, find
from valve_plugin.cli import output, task_sets
from valve_plugin.cli.init import detect_name
from valve_plugin.cli.options import BankDir, Json, bank_dir, examples, flag, new_bank_dir
from valve_plugin.cli.output import plural
from valve_plugin.cli.task_sets import MAKE_TASKS, display_name, split_command
from valve_plugin.config import load, model_of
from valve_plugin.errors import BankNotFoundError, ValveError
from valve_plugin.evidence.history import brief
from valve_plugin.extras import runnable
from valve_plugin.words import join, quote

MODEL = "PROVIDER/NAME"
"""Stands for a model's name in a command."""
NAME_MODEL = f"mini-extra config set MSWEA_MODEL_NAME {MODEL}"
"""The command that names one model for mini and valve."""
_MINI = "mini --plugin valve"
_EXAMPLES = examples(
    "valve                  # where this repository stands, and what to run next",
    "valve init             # create this repository's bank",
)


def register(app: typer.Typer) -> None:
    """Make this what `valve` does without a command."""
    app.callback(invoke_without_command=True, epilog=_EXAMPLES)(status)


def _version(wanted: bool) -> None:
    if wanted:
        output.say(f"valve {__version__}")
        raise typer.Exit


def status(
    ctx: typer.Context,
    bank: BankDir = "",
    json: Json = False,
    version: Annotated[bool, flag("--version", "Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Notes that an agent learns about one repository, kept only if it then passes more tasks.

    Without a command: shows where this repository stands and the next command to run. The options below are for that; a
    command takes its own behind it.
    """
    if ctx.invoked_subcommand is not None:
        if bank or json:
            ctx.fail(f"options go behind the command: {_in_order(ctx.invoked_subcommand, sys.argv[1:])}")
        return
    from valve_plugin.cli.runs import note_simulation

    facts = _facts(bank)
    if json:
        output.emit_json(facts)
        return
    note_simulation(Path(facts["bank"]["dir"]), json=json)
    for label, text in _lines(facts):
        output.say(f"{label:10} {text}")
    if facts["simulated"] and not facts["simulation"]:
        path = quote(facts["simulated"])
        output.say(f"{'simulation':10} what --simulate learned is in a bank of its own: `valve --bank {path}`")
    output.say(f"{'next':10} {facts['next']['command']}", style="bold")
    output.say(f"{'':10} {facts['next']['why']}", style="dim")


def _in_order(command: str, typed: list[str]) -> str:
    """Return the command line that was meant, with the options behind the command."""
    start = typed.index(command) if command in typed else len(typed)
    return join(["valve", *typed[start:], *typed[:start]]) if typed[start:] else f"valve {command} --bank DIR --json"


def next_step(facts: dict[str, Any]) -> tuple[str, str]:
    """Return the next command and why, from what `valve --json` shows. Pure."""
    run, queued, panel = facts["run"] or {}, facts["queue"], facts["panel"]
    stopped = run and not run["going"] and run["ended"] != "the run is done"
    learn, why = _learn(facts["tasks"])
    gate = "valve gate" if panel else learn.replace("valve evolve", "valve gate --tasks") or "valve tasks generate"
    first = "" if panel else f"; a first gate takes its panel from a task set{_before_split(facts['tasks'])}"
    named = facts["model"] or facts["simulation"] or facts["interrupted"] or panel
    judge = f"valve gate --simulate{'' if panel else ' --tasks TASKS'}" if facts["simulation"] else gate
    rules = (
        (not facts["bank"]["exists"], "valve init", "there is no bank here yet (`valve demo` shows the whole loop)"),
        (facts["foreign"], "valve bank list", f"read only: this bank is of {facts['bank_of']}, not {facts['repo']}"),
        (run.get("going"), "valve evolve --attach", "a run of this bank is active; Ctrl-C only stops watching"),
        (facts["warnings"], "valve bank verify --repair", "makes the other files again from the ledger, which stays"),
        (
            queued and not named,
            NAME_MODEL,
            f"{queued} queued for the gate, which needs a model; this names one for both",
        ),
        (facts["waiting"], facts["interrupted"] or judge, f"proposal {facts['waiting']} is not decided yet{first}"),
        (stopped, run.get("command") or "valve evolve TASKS", "the last run was stopped; this continues it"),
        (facts["simulation"], "valve bank log", "a simulation's bank: for a real one, `valve evolve TASKS --bank DIR`"),
        (queued, gate, f"{queued} queued for the gate{first}"),
        (not panel and learn, learn, why),
    )
    found = ((command, why) for applies, command, why in rules if applies)
    return next(found, None) or _by_hand(facts)


def _before_split(sets: list[dict[str, Any]]) -> str:
    """Return what to know before a first gate, as the end of a sentence."""
    if not sets:
        return f"; {MAKE_TASKS}"
    return "" if any(one["split"] for one in sets) else ", and a set is split once: first make all tasks that you want"


def _learn(sets: list[dict[str, Any]]) -> tuple[str, str]:
    """Return what makes a bank without a panel learn, and why: from a set that is split, else from the largest."""
    tasks = max(sets, key=lambda one: (bool(one["split"]), one["tasks"]), default=None)
    if tasks is None:
        return "", ""
    if tasks["split"]:
        return f"valve evolve {quote(tasks['name'])}", "the task set is split, and nothing was learned from it yet"
    return split_command(tasks["name"], tasks["tasks"]), f"{plural(tasks['tasks'], 'task')} to learn from, no split yet"


def _by_hand(facts: dict[str, Any]) -> tuple[str, str]:
    """Return the most useful run of mini, and why."""
    if not facts["model"]:
        return NAME_MODEL, "no model is named; this names one for mini and valve, its key is set the same way"
    live = facts["attempts"]["live"]
    if facts["attempts"]["recorded"] == 0:
        return f"{_MINI} -t 'what to do'", "no attempt is recorded yet"
    if live and live["recorded"] and not live["graded"]:
        why = "no attempt was graded: name a check that fails now and passes once the task is done"
        return f"{_MINI} -c valve.check='COMMAND THAT FAILS NOW' -t ...", why
    return f"{_MINI} -t ...", "nothing waits"


def with_model(command: str, model: str) -> str:
    """Return a command with a place for the model, where none is named. Pure."""
    takes = command.startswith(("valve evolve", "valve gate")) and not re.search("--attach|--simulate", command)
    return f"{command} -c model={MODEL}" if takes and not model else command


def _facts(bank: str) -> dict[str, Any]:
    """Return what `valve --json` prints."""
    from valve_plugin.agents import mini
    from valve_plugin.evidence.summary import count_attempts

    here = find(Path.cwd())
    facts: dict[str, Any] = {
        "repo": detect_name(here).value,
        "folder": str(here.folder),
        "bank": {"dir": str(new_bank_dir(bank, here)), "exists": False, "version": 0, "principles": 0, "skills": 0},
        "attempts": count_attempts([]),
        **dict.fromkeys(("bank_of", "test_command", "waiting", "interrupted", "model"), ""),
        **dict.fromkeys(("foreign", "simulation"), False),
        **dict.fromkeys(("queue", "quarantine"), 0),
        **dict.fromkeys(("panel", "gate", "last_verdict", "run")),
        "warnings": [],
        "tasks": [],
        "simulated": str(find_simulation(here.name, any_=True) or ""),
    }
    with contextlib.suppress(BankNotFoundError):
        load(bank_dir(bank))  # settings that cannot be used raise, also where there is no bank yet
        store = BankStore.open(find_bank(bank, here))
        mini.load_user_settings()
        model = model_of(store.settings({}))
        facts |= _of_bank(store, here) | {"tasks": _task_sets(), "run": _last_run(store), "model": model}
    command, why = next_step(facts)
    if facts["simulation"]:
        output.bank = output.bank or facts["bank"]["dir"]  # --simulate alone finds another
    if command not in (facts["interrupted"], facts["run"] and facts["run"]["command"]):  # these are complete
        command = output.for_bank(with_model(command, facts["model"]))
    return {**facts, "next": {"command": runnable(command), "why": why}}


def _of_bank(store: BankStore, here: Checkout) -> dict[str, Any]:
    from valve_plugin.evidence.summary import count_attempts

    outline = store.outline()  # first: bank and panel are of its moment
    bank, panel = store.bank, store.panel()
    epoch, verdict, waiting = outline.epoch, outline.verdict, outline.waiting
    ours = is_own(bank.repo, store.dir, here)
    size = {"principles": len(bank.principles), "skills": len(bank.skills)}
    return {
        "repo": bank.repo if ours else here.name,
        "bank_of": bank.repo,
        "foreign": not ours and is_foreign(bank.repo, store.dir, here),
        "test_command": store.settings({}).test_command,
        "bank": {"dir": str(store.dir), "exists": True, "version": bank.version, **size},
        "panel": panel and {"tasks": len(panel.tasks), "rollouts": panel.rollouts, "rho": panel.rho},
        "gate": epoch and {"epoch": epoch.epoch, "queries": outline.queries, "horizon": epoch.horizon},
        "attempts": count_attempts(store.local.attempts(), outline),
        "queue": len(store.local.queue()) + len(waiting),
        "quarantine": len(withheld := store.local.withheld()),
        "set_aside": sorted(f"{w.kind} {w.name}" for w in withheld),
        "waiting": waiting[0] if waiting else "",
        "simulation": is_scripted(store.dir),
        "interrupted": output.recall(store.local) if waiting else "",
        "last_verdict": verdict
        and {"decision": verdict.decision, "proposal": verdict.proposal_id, "words": brief(verdict)},
        "warnings": list(store.warnings),
        "simulated": str(find_simulation(here.name) or ""),
    }


def _task_sets() -> list[dict[str, Any]]:
    """Return the current repository's task sets, with the sizes of their splits."""
    from valve_plugin.tasks import split as splits
    from valve_plugin.tasks.task_set import ROWS_NAME

    found = []
    with contextlib.suppress(ValveError, OSError):  # the commands that use one report it
        for path in task_sets.of_this_repository()[1]:
            tasks = sum(map(bool, map(bytes.strip, (path / ROWS_NAME).read_bytes().splitlines())))
            split = splits.read(path / splits.FILE_NAME)
            parts = {name: len(part) for name, part in splits.parts(split).items()} if split else {}
            unused = max(0, tasks - sum(parts.values()) - split.left_out) if split else 0
            about = {"name": display_name(path), "tasks": tasks, "split": parts, "unused": unused}
            found.append({**about, "path": str(path)})
    return found


def _last_run(store: BankStore) -> dict[str, Any] | None:
    """Return the last learning run on this machine."""
    from valve_plugin.cli import progress

    run = progress.Watched(store.local)
    view, command = run.view, run.view.run.command
    if not view.started or not command.startswith(("valve evolve", "valve gate")):
        return None
    going = run.alive
    return {
        "going": going,
        "ended": "" if going else run.ending,
        "at": f"task {view.position} of {view.of}" if view.of else "",
        "command": command if command == output.recall(store.local) else "",
    }


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line."""
    from valve_plugin.evidence.summary import attempts_in_words

    bank, panel, gate, run = facts["bank"], facts["panel"], facts["gate"], facts["run"]
    yield "repository", f"{facts['repo']}  ({facts['folder']})"
    if not bank["exists"]:
        yield "bank", f"none yet; it would be created in {bank['dir']}"
        return
    items = f"{plural(bank['principles'], 'principle')}, {plural(bank['skills'], 'skill')}"
    whose = "" if facts["bank_of"] == facts["repo"] else f" of {facts['bank_of']}"
    yield "bank", f"version {bank['version']}{whose}: {items}  ({bank['dir']})"
    size = panel and f"{plural(panel['tasks'], 'task')} x {plural(panel['rollouts'], 'rollout')}"
    yield "panel", size or "none yet"
    yield "attempts", attempts_in_words(facts["attempts"])
    queued = plural(facts["queue"], "proposal waits", "proposals wait") if facts["queue"] else "nothing waits"
    yield "queue", f"{queued} for the gate"
    if gate:
        yield "gate", f"{gate['queries']} of {gate['horizon']} queries used in epoch {gate['epoch']}"
    elif facts["last_verdict"]:
        yield "gate", "no epoch is open: the next gate opens one and measures the bank as it is now"
    elif bank["version"]:
        yield "gate", f"none: the bank reached version {bank['version']} without a gate"
    if facts["quarantine"]:
        names = ", ".join(facts["set_aside"][:3]) + (", ..." if facts["quarantine"] > 3 else "")
        waits = plural(facts["quarantine"], "note waits", "notes wait")
        yield "quarantine", f"{waits} for `valve bank review`: {names}"
    if facts["last_verdict"]:
        yield "last", facts["last_verdict"]["words"]
    for one in facts["tasks"]:
        parts = ", ".join(f"{name} {count}" for name, count in one["split"].items()) or "no split yet"
        unused = f", {one['unused']} in none of them" if one["unused"] else ""
        yield "tasks", f"{one['name']}: {plural(one['tasks'], 'task')}; {parts}{unused}"
    if run:
        state = "going on" if run["going"] else f"the last one ended: {run['ended']}"
        yield "run", f"{state}, {run['at']}" if run["at"] else state
    yield "model", facts["model"] or "none is named"
    for warning in facts["warnings"]:
        yield "warning", warning
