"""`valve` alone: where this repository stands, and the next command to run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin import __version__
from valve_plugin.cli import again, around, output
from valve_plugin.cli.counted import count, in_words
from valve_plugin.cli.init import target
from valve_plugin.cli.options import BankDir, Json, examples
from valve_plugin.cli.output import plural
from valve_plugin.cli.session import MAKE_TASKS
from valve_plugin.errors import BankNotFoundError
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.bank.checkout import Checkout
    from valve_plugin.bank.entries import Entry
    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Verdict

_EXAMPLES = examples(
    "valve                  # where this repository stands, and what to run next",
    "valve init             # create this repository's bank",
    "valve COMMAND --help   # what a command does, with examples",
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Skills for one repository, kept only when paired, executable rollouts show a gain.

    Without a command: shows where this repository stands and the next command to run.
    """
    if ctx.invoked_subcommand is not None:
        _hand_on(ctx, {name: value for name, value in (("bank", bank), ("json", json)) if value})
        return
    from valve_plugin.bank.simulation import LABEL

    standing = _look(bank)
    if json:
        output.emit_json(standing)
        return
    if standing["simulation"]:
        output.say(LABEL, style="bold yellow")
    for label, text in _lines(standing):
        output.say(f"{label:10} {text}")
    output.say(f"{'next':10} {standing['next']['command']}", style="bold")
    output.say(f"{'':10} {standing['next']['why']}", style="dim")


def _hand_on(ctx: typer.Context, given: dict[str, Any]) -> None:
    """Let --bank and --json stand before a command that has them; what is given behind it goes first."""
    group: Any = ctx.command
    invoked = str(ctx.invoked_subcommand)
    command = group.commands[invoked]
    for name in given:
        if any(name not in {param.name for param in leaf.params} for leaf in _leaves(command)):
            ctx.fail(f"--{name} is no option of every command here: put it behind one that has it, see "
                     f"`valve {invoked} --help`")  # fmt: skip
    ctx.default_map = {invoked: _defaults(command, given)}


def _leaves(command: Any) -> list[Any]:
    below = getattr(command, "commands", {}).values()
    return [leaf for one in below for leaf in _leaves(one)] if below else [command]


def _defaults(command: Any, given: dict[str, Any]) -> dict[str, Any]:
    below = getattr(command, "commands", {})
    return {name: _defaults(one, given) for name, one in below.items()} if below else given


def advise(standing: dict[str, Any]) -> tuple[str, str]:
    """Return the next command and why, from what `valve --json` shows."""
    if not standing["bank"]["exists"]:
        return "valve init", "there is no bank here yet (`valve demo` shows the whole loop first)"
    return _first(standing) or _queued(standing) or around.prepared(standing) or around.by_hand(standing)


def _first(standing: dict[str, Any]) -> tuple[str, str] | None:
    if standing["foreign"]:
        return (
            "valve bank list",
            f"the bank is of {standing['bank_of']}, and you are in {standing['repo']}: only read it",
        )
    if standing["run"] and standing["run"]["going"]:
        return "valve evolve --attach", "a run of this bank goes on; this shows it, and Ctrl-C then only stops looking"
    if standing["warnings"]:
        return "valve bank verify --repair", "what is made from the ledger is made again; the ledger is kept as it is"
    if standing["waiting"]:
        return _go_on(standing)
    if around.stopped(standing):
        command = standing["run"]["command"] or "valve evolve TASKS"
        return command, "the last run ended before it was done; it goes on where it stopped"
    if standing["simulation"]:
        return (
            "valve bank log",
            "a simulation learned this bank, so no real run is given anything of it; learn for real in another: "
            "`valve evolve TASKS --bank DIR`",
        )
    return None


def _queued(standing: dict[str, Any]) -> tuple[str, str] | None:
    gate, queued = standing["gate"], standing["queue"]
    if queued and gate and gate["queries"] >= gate["horizon"]:
        return "valve bank log", f"all {gate['horizon']} declared gate queries are used: {queued} queued must wait"
    if queued and standing["panel"]:
        return "valve gate", f"{queued} queued for the gate"
    if queued:
        return (
            "valve gate --tasks TASKS",
            f"{queued} queued; a first gate chooses its panel from a task set. {MAKE_TASKS}",
        )
    return None


def _go_on(standing: dict[str, Any]) -> tuple[str, str]:
    """Return the command with which an interrupted run goes on: the one that was typed, where it is known."""
    typed = standing["interrupted"]
    if not standing["gate"] and standing["bank"]["version"]:
        why = "a run without a gate was interrupted; it goes on where it stopped"
        return typed or "valve evolve TASKS --ungated", why
    why = f"nothing is decided yet about proposal {standing['waiting']}; finished rollouts are kept"
    return typed or ("valve gate --simulate" if standing["simulation"] else "valve gate"), why


def _look(bank: str) -> dict[str, Any]:
    from valve_plugin.bank.checkout import find
    from valve_plugin.bank.paths import locate
    from valve_plugin.bank.store import BankStore

    here = find(Path.cwd())
    standing = _absent(here, target(bank, private=False, here=here))
    with contextlib.suppress(BankNotFoundError):
        store = BankStore.open(locate(bank, here.folder, here.name))
        standing |= _present(store) | _whose(store, here) | around.look(store)
    command, why = advise(standing)
    named = bank or (standing["bank"]["dir"] if standing["simulation"] else "")  # --simulate alone finds another
    if command not in (standing["interrupted"], standing["run"] and standing["run"]["command"]):
        command = around.with_model(command, standing["model"])
        command = aimed(command, named) if named else command
    return {**standing, "next": {"command": command, "why": why}}


def aimed(command: str, bank: str) -> str:
    """Return a command for the bank that was named, not for the one it would find by itself."""
    mini = "mini --plugin valve"
    if command.startswith(mini):
        return f"{mini} -c {quote(f'valve.bank={bank}')}{command.removeprefix(mini)}"
    return command if command.startswith("valve split") else f"{command} --bank {quote(bank)}"


def _whose(store: BankStore, here: Checkout) -> dict[str, Any]:
    """Return which repository the bank is of, and whether that is known to be another one than that at hand."""
    from valve_plugin.bank.belonging import belongs, foreign

    name = store.bank.repo
    ours = belongs(name, store.dir, here)
    return {
        "repo": name if ours else here.name,
        "bank_of": name,
        "foreign": not ours and foreign(name, store.dir, here),
    }


def _absent(here: Checkout, directory: Path) -> dict[str, Any]:
    return {
        "repo": here.name,
        "bank_of": "",
        "foreign": False,
        "folder": str(here.folder),
        "test_command": "",
        "bank": {"dir": str(directory), "exists": False, "version": 0, "principles": 0, "skills": 0},
        "panel": None,
        "gate": None,
        "attempts": count([], []),
        "queue": 0,
        "quarantine": 0,
        "waiting": "",
        "simulation": False,
        "interrupted": "",
        "last_verdict": None,
        "warnings": [],
        **around.NOTHING,
    }


def _present(store: BankStore) -> dict[str, Any]:
    from valve_plugin.bank.simulation import simulated

    bank, panel, epoch = store.bank, store.panel(), store.epoch()
    verdict, waiting = outlook(store.entries())
    return {
        "test_command": store.settings({}).test_command,
        "bank": {
            "dir": str(store.dir),
            "exists": True,
            "version": bank.version,
            "principles": len(bank.principles),
            "skills": len(bank.skills),
        },
        "panel": panel and {"tasks": len(panel.tasks), "rollouts": panel.rollouts, "rho": panel.rho},
        "gate": epoch and {"epoch": epoch.epoch, "queries": store.queries_used(), "horizon": epoch.horizon},
        "attempts": count(store.local.attempts(), store.entries()),
        "queue": len(store.local.queue()),
        "quarantine": len(store.local.quarantine()),
        "waiting": waiting,
        "simulation": simulated(store.dir),
        "interrupted": again.recall(store.local) if waiting else "",
        "last_verdict": verdict and _verdict_facts(verdict),
        "warnings": list(store.warnings),
    }


def outlook(entries: Iterable[Entry]) -> tuple[Verdict | None, str]:
    """Return the last verdict, and the id of the last proposal while nothing was decided about it, else empty."""
    from valve_plugin.bank.entries import Judged, Proposed, decided

    last, waiting = None, ""
    for entry in entries:
        if isinstance(entry, Proposed):
            waiting = "" if entry.proposal.empty else entry.proposal.id
        elif isinstance(entry, Judged):
            last = entry.verdict
        if waiting and decided(entry) == waiting:
            waiting = ""
    return last, waiting


def _verdict_facts(verdict: Verdict) -> dict[str, Any]:
    from valve_plugin.cli.history import brief

    return {"decision": verdict.decision, "proposal": verdict.proposal_id, "words": brief(verdict)}


def _lines(standing: dict[str, Any]) -> list[tuple[str, str]]:
    bank, panel, gate = standing["bank"], standing["panel"], standing["gate"]
    lines = [("repository", f"{standing['repo']}  ({standing['folder']})")]
    if not bank["exists"]:
        return [*lines, ("bank", f"none yet; it would be created in {bank['dir']}")]
    items = f"{plural(bank['principles'], 'principle')}, {plural(bank['skills'], 'skill')}"
    whose = "" if standing["bank_of"] == standing["repo"] else f" of {standing['bank_of']}"
    lines += [
        ("bank", f"version {bank['version']}{whose}: {items}  ({bank['dir']})"),
        (
            "panel",
            f"{plural(panel['tasks'], 'task')} x {plural(panel['rollouts'], 'rollout')}" if panel else "none yet",
        ),
        ("attempts", in_words(standing["attempts"])),
        ("queue", str(standing["queue"])),
    ]
    if gate:
        lines.append(("gate", f"{gate['queries']} of {gate['horizon']} queries used in epoch {gate['epoch']}"))
    elif bank["version"]:
        lines.append(("gate", f"none: the bank reached version {bank['version']} without one"))
    if standing["quarantine"]:
        lines.append(("quarantine", f"{plural(standing['quarantine'], 'item')} set aside for a person to look at"))
    if standing["last_verdict"]:
        lines.append(("last", standing["last_verdict"]["words"]))
    return lines + around.lines(standing) + [("warning", warning) for warning in standing["warnings"]]
