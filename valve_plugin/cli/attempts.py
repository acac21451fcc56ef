"""`valve attempts`: attempts of live runs, and all other rollouts on this machine; `valve extract`: what they teach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from valve_plugin.bank.entries import FAILED_AGAIN, Proposed, sets_aside
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.scripted_bank import LABEL
from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Commands, Json, argument, flag, open_bank, option
from valve_plugin.codec import plain
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.errors import BankError, ConfigError
from valve_plugin.extras import runnable
from valve_plugin.records import Attempt
from valve_plugin.words import format_time, quote

_TASK, _PATCH_LINES = 60, 400
"""Characters of a task in the table; lines of a patch that are shown."""

All = Annotated[bool, flag("--all", "Rollouts of stream, panel and evaluation too, not only your own runs.")]

commands = Commands(
    "attempts",
    "valve attempts          # as `valve attempts list`",
    "valve attempts list     # your runs of `mini --plugin valve`",
    "valve attempts show     # the latest: why it is graded as it is, and its patch",
    invoke_without_command=True,
)

extraction = Commands()


def register(app: typer.Typer) -> None:
    """Add `valve attempts` and `valve extract`."""
    app.add_typer(commands)
    app.registered_commands += extraction.registered_commands


@commands.callback()
def list_by_default(ctx: typer.Context, bank: BankDir = "", json: Json = False) -> None:
    """List and show recorded attempts."""
    if ctx.invoked_subcommand is None:
        list_(bank=bank, json=json)
    elif bank or json:
        ctx.fail(f"options go behind the command: valve attempts {ctx.invoked_subcommand} --bank DIR --json")


@commands.add(
    "list",
    "valve attempts list                          # your runs of `mini --plugin valve`, the latest first",
    "valve attempts list --all --json | jq -r '.attempts[] | select(.outcome == \"errored\") | .reason'",
)
def list_(all_: All = False, bank: BankDir = "", json: Json = False) -> None:
    """List attempts, the latest first.

    TASK is how the task begins. An attempt is resolved or unresolved only where a check could grade it; where its patch
    looks as if written to pass the tests alone, it is also suspicious, and REASON says why. RESTORED lists the test
    files that it changed and that did not count. NOTES lists what its prompt got from the bank. Not used: an idle
    worker made it ahead of a run that then did not ask for it; it counts in no result.
    """
    store = open_bank(bank)
    found = kept(store.local)
    simulated = any(map(_simulated, found))
    shown = [(a, True) for a in found if all_ or a.source == "live"]
    if all_:
        shown = sorted([*shown, *((a, False) for a in store.local.unused())], key=lambda one: -one[0].recorded_at)
    if json:
        records = [{"task": _title(a), **plain(a), "used": used} for a, used in shown]
        large = ("patch", "task_text", "check_output")
        small = [{name: value for name, value in one.items() if name not in large} for one in records]
        output.emit_json({"bank": str(store.dir), "simulation": simulated, "attempts": small})
        return
    if simulated:
        output.note(LABEL)
    if not shown:
        others = output.plural(len(found), "rollout")
        more = f"; {others} of stream, panel and evaluation: `valve attempts list --all`" if found else ""
        what = "no attempt of this bank" if all_ else "no run of your own"
        output.note(f"{what} is recorded on this machine: `mini --plugin valve -t ...` records one{more}")
        return
    header = ["ID", "WHEN", *["SOURCE"] * all_, "TASK", "OUTCOME", "REASON", "RESTORED", "NOTES"]
    rows = [
        [
            *(a.id, format_time(a.recorded_at, local=True), *[a.source] * all_, _title(a)),
            *(_outcome(a) if used else "not used", a.reason),
            *(", ".join(a.dropped_paths), ", ".join(name for _, name in a.context_items)),
        ]
        for a, used in shown
    ]
    output.table(header, rows, prose=("TASK", "REASON", "RESTORED", "NOTES"))


@commands.add(
    "record",
    "valve attempts record < event.json                          # as a hook; see `valve connect`",
    "valve attempts record --check 'python -m pytest tests' < event.json   # graded",
)
def record(
    check: Annotated[str, option("--check", "COMMAND", "Fails before the task is done, and passes after it.")] = "",
    bank: BankDir = "",
) -> None:
    """Record what another agent does for a prompt, told by its hooks.

    Reads one event from stdin. When a prompt begins, the files are captured; when its answer ends and a file has
    changed, that is an attempt at the prompt. It says nothing and always exits with 0: the session is the person's.
    """
    from valve_plugin.live.follow import main

    main(["--check", check, "--bank", bank])


@commands.add(
    "show",
    "valve attempts show                          # your latest run",
    "valve attempts show 0a1b2c3d                 # any beginning of an id that no other has",
    "valve attempts show 0a1b2c3d --patch | git apply",
)
def show(
    id_: Annotated[str, argument("ID", "Its id, or how it begins. Default: your latest run.", show_default=False)] = "",
    patch: Annotated[bool, flag("--patch", "Print the patch alone, exactly as it is kept.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Show one attempt: outcome, why, patch.

    Also shows the last lines that its check printed, the changes to tests that did not count, and the trajectory,
    unpacked for `mini-extra inspect`. Text of a model or a repository is indented or comes last.
    """
    local = open_bank(bank).local
    attempt = find([*kept(local), *local.unused()], id_)
    if patch:
        output.verbatim(attempt.patch)
        return
    path, shown = None, ""
    try:
        path = local.trajectory_file(attempt)
        shown = f"mini-extra inspect {quote(str(path))}"
    except (BankError, OSError) as e:
        shown = f"cannot be read: {e}"
    if json:
        output.emit_json({**plain(attempt), "simulation": _simulated(attempt), "trajectory_path": path and str(path)})
    else:
        output.say(f"attempt {output.one_line(attempt.id)}, {_outcome(attempt)}", style="bold")
        items = ", ".join(f"{kind} {name}" for kind, name in attempt.context_items)
        spent = [
            output.plural(attempt.steps, "step"),
            f"{attempt.seconds:.0f} s",
            f"${attempt.cost_usd:.4f}" if attempt.cost_usd else "",
        ]
        source = "a run of your own" if attempt.source == "live" else f"a rollout of {attempt.source}"
        rows = {
            "recorded": f"{format_time(attempt.recorded_at, local=True)}, {source}",
            "why": attempt.reason,
            "check": attempt.check,
            "restored": ", ".join(attempt.dropped_paths)
            and f"{', '.join(attempt.dropped_paths)} (changes to tests do not count)",
            "notes": items or "none",
            "model": f"{attempt.model} ({LABEL})" if _simulated(attempt) else attempt.model,
            "took": ", ".join(filter(None, spent)),
            "ended": attempt.exit_status,
            "trajectory": shown,
        }
        for label, value in rows.items():
            if value:
                output.say(f"{label:10}  {output.one_line(value)}")
        _block("task", attempt.task_text or attempt.task_id)
        _block("check's last lines", attempt.check_output)
        lines = attempt.patch.splitlines()
        output.say("\npatch:" if lines else "\npatch: empty")
        for line in lines[:_PATCH_LINES]:
            output.say(line.replace("\r", ""))
        if len(lines) > _PATCH_LINES:
            output.note(f"{len(lines) - _PATCH_LINES} more lines: `valve attempts show {quote(attempt.id)} --patch`")


def find(attempts: Sequence[Attempt], id_: str) -> Attempt:
    """Return the attempt whose id is, or begins with, `id_`; empty: the first live one.

    Args:
        attempts: the latest first.
        id_: at least one character of it.

    Raises:
        ConfigError: there is none, or several.
    """
    listing = "`valve attempts list --all` shows what there is"
    found = [a for a in attempts if (a.id.startswith(id_) if id_ else a.source == "live")]
    exact = [a for a in found if a.id == id_]
    if not found:
        what = f"no attempt {id_!r}" if id_ else "no run of your own"
        raise ConfigError(f"{what} is recorded on this machine; {listing}")
    if id_ and len(found) > 1 and len(exact) != 1:
        raise ConfigError(f"{id_!r} begins {len(found)} ids: {', '.join(a.id for a in found[:3])} ...; say more of it")
    return (exact or found)[0]


def kept(local: LocalStore) -> list[Attempt]:
    """Return every attempt that can be read, the latest first; print warnings about the others to stderr."""
    found = local.attempts()[::-1]
    for warning in local.warnings:
        output.warn(warning)
    return found


def _simulated(a: Attempt) -> bool:
    return a.model == SCRIPTED_MODEL


def _outcome(a: Attempt) -> str:
    return f"{a.outcome}, suspicious" if a.suspicious else a.outcome


def _title(a: Attempt) -> str:
    """Return how the task begins, on one line."""
    line = output.one_line((a.task_text or a.task_id)[: 4 * _TASK])
    return line if len(line) <= _TASK else f"{line[: _TASK - 1].rstrip()}…"


def _block(title: str, text: str) -> None:
    """Print text of a model or a repository, indented, so that it cannot look like output of `valve`."""
    if text.strip():
        output.say(f"\n{title}:")
        for line in text.rstrip().splitlines():
            output.say(f"    {line}".rstrip())


@extraction.add(
    "extract",
    "valve extract                # the last extraction that came to nothing",
    "valve extract 0a1b2c3d       # that of a proposal, as `valve bank log` names it",
    "valve extract 0a1b 77c2 9d01 # from these attempts, as `valve attempts list --all` names them",
)
def extract(
    ids: Annotated[
        list[str] | None, argument("ID", "Attempts at one task, or a proposal. Default: the last that held nothing.")
    ] = None,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Ask the model once more what recorded attempts teach.

    For an extraction that came to nothing, such as one whose answer could not be read. No new attempt is made: the
    group is queued, and `valve gate` asks the model and judges the proposal.
    """
    from valve_plugin.evolve.loop import queue_again
    from valve_plugin.evolve.steps import attempt_note, mixed

    store = open_bank(bank)
    there = kept(store.local)
    # what set a proposal aside after a second look is no extraction
    made = [e for e in store.entries() if isinstance(e, Proposed) and e.attempts and not sets_aside(e, FAILED_AGAIN)]
    wanted = [e for e in made if e.proposal.empty]
    if ids:
        wanted = [e for e in made if e.proposal.id.startswith(ids[0])] if len(ids) == 1 else []
    if wanted:
        notes = wanted[-1].attempts
        found = [a for a in reversed(there) if a.task_id == notes[0].task_id and attempt_note(a) in notes]
        if len(found) < len(notes):
            raise ConfigError(
                f"the attempts of proposal {wanted[-1].proposal.id} are not on this machine; make new ones"
            )
    elif ids:
        found = [find(there, id_) for id_ in ids]
    else:
        raise ConfigError("no extraction that came to nothing is recorded; name the attempts, see `valve attempts`")
    if len({a.task_id for a in found}) != 1 or not mixed(found):
        outcomes = ", ".join(f"{a.id} {a.outcome} at {output.one_line(a.task_id)}" for a in found)
        raise ConfigError(f"expected attempts at one task of which some passed and some failed: {outcomes}")
    queue_again(store, found)
    if json:
        output.emit_json({"queued": [a.id for a in found], "task_id": found[0].task_id})
    else:
        output.say(f"queued: {output.plural(len(found), 'attempt')} at {output.one_line(found[0].task_id)}")
        output.say(f"next: {runnable(output.for_bank('valve gate'))}")
