"""`valve attempts`: what live runs left behind, and every other rollout that this machine keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Json, examples, open_bank
from valve_plugin.errors import BankError, BankNotFoundError, ConfigError
from valve_plugin.shell_words import quote
from valve_plugin.words import moment

if TYPE_CHECKING:
    from valve_plugin.bank.local import LocalStore
    from valve_plugin.records import Attempt

_TASK, _PATCH_LINES = 60, 400
"""Characters of a task in the table; lines of a patch that are shown."""
_LARGE = ("patch", "task_text", "check_output")

All = Annotated[
    bool, typer.Option("--all", help="Rollouts of stream, panel and evaluation too, not only your own runs.")
]
Last = Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the latest N.")]


def register(app: typer.Typer) -> None:
    """Add `valve attempts` and its commands."""
    group = typer.Typer(
        epilog=examples(
            "valve attempts          # as `valve attempts list`",
            "valve attempts list     # your runs of `mini --plugin valve`",
            "valve attempts show     # the latest: why it is graded as it is, and its patch",
        ),
        invoke_without_command=True,
    )
    group.callback()(alone)
    group.command(
        "list",
        epilog=examples(
            "valve attempts list                          # your runs of `mini --plugin valve`, the latest first",
            "valve attempts list --last 5",
            "valve attempts list --all --json | jq -r '.attempts[] | select(.outcome == \"errored\") | .reason'",
        ),
    )(list_)
    group.command(
        "show",
        epilog=examples(
            "valve attempts show                          # your latest run",
            "valve attempts show 0a1b2c3d                 # any beginning of an id that no other has",
            "valve attempts show 0a1b2c3d --patch | git apply",
        ),
    )(show)
    app.add_typer(group, name="attempts")


def alone(ctx: typer.Context, bank: BankDir = "", json: Json = False) -> None:
    """List and show recorded attempts."""
    if ctx.invoked_subcommand is None:
        list_(bank=bank, json=json)
    elif bank or json:
        ctx.fail(f"options go behind the command: valve attempts {ctx.invoked_subcommand} ... --bank DIR --json")


def list_(all_: All = False, last: Last = None, bank: BankDir = "", json: Json = False) -> None:
    """List attempts, the latest first.

    TASK is how the task begins. An attempt is resolved or unresolved only where a check could grade it. DROPPED are
    the test files that it changed and that were put back before grading, ITEMS what the bank put into its prompt.
    """
    store = open_bank(bank)
    found = _kept(store.local)
    shown = [a for a in found if all_ or a.source == "live"][:last]
    if json:
        output.emit_json({"bank": str(store.dir), "attempts": [_facts(a) for a in shown]})
        return
    if not shown:
        others = output.plural(len(found), "rollout")
        more = f"; {others} of stream, panel and evaluation: `valve attempts list --all`" if found else ""
        output.note(f"no run of your own is recorded on this machine: `mini --plugin valve -t ...` records one{more}")
        return
    header = ["ID", "WHEN", *(["SOURCE"] if all_ else []), "TASK", "OUTCOME", "REASON", "DROPPED", "ITEMS"]
    rows = [[a.id, moment(a.recorded_at, local=True), *([a.source] if all_ else []), *_row(a)] for a in shown]
    output.table(header, rows, can_wait=("DROPPED", "ITEMS", "REASON", "WHEN"), prose=("TASK", "REASON"))


def show(
    id_: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The attempt's id, or how it begins. Default: your latest run.",
            show_default=False,
            autocompletion=lambda: _ids(),
        ),
    ] = "",
    patch: Annotated[bool, typer.Option("--patch", help="Print the patch alone, exactly as it is kept.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Show one attempt: outcome, why, patch.

    With the last lines its check printed, the changes to tests that did not count, and its trajectory, unpacked for
    `mini-extra inspect`. What a model or the repository wrote is indented or comes last, and steers no terminal.
    """
    local = open_bank(bank).local
    attempt = find(_kept(local), id_)
    if patch:
        output.verbatim(attempt.patch)
        return
    path, missing = _unpacked(local, attempt)
    if json:
        from valve_plugin.codec import plain

        output.emit_json({**plain(attempt), "trajectory_path": str(path) if path else None})
        return
    _describe(attempt, f"mini-extra inspect {quote(str(path))}" if path else missing)


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


def _kept(local: LocalStore) -> list[Attempt]:
    """Every attempt that can be read, the latest first; the others are told of on stderr."""
    found = local.attempts()[::-1]
    for warning in local.warnings:
        output.note(f"valve: {warning}", style="yellow")
    return found


def _row(a: Attempt) -> list[str]:
    injected = ", ".join(name for _, name in a.context_items)
    return [_words(a.task_text or a.task_id), a.outcome, a.reason, ", ".join(a.dropped_paths), injected]


def _words(text: str) -> str:
    line = output.one_line(text[: 4 * _TASK])
    return line if len(line) <= _TASK else f"{line[: _TASK - 1].rstrip()}…"


def _facts(attempt: Attempt) -> dict[str, Any]:
    from valve_plugin.codec import plain

    facts: dict[str, Any] = plain(attempt)
    return {"task": _words(attempt.task_text or attempt.task_id), **{k: facts[k] for k in facts if k not in _LARGE}}


def _ids() -> list[str]:
    """Return what a shell may complete: nothing where there is no readable bank."""
    try:
        return [a.id for a in open_bank("").local.attempts()[::-1] if a.source == "live"]
    except BankError:
        return []


def _unpacked(local: LocalStore, attempt: Attempt) -> tuple[Path | None, str]:
    """Return where the trajectory lies as mini reads it, or None and why it does not."""
    try:
        return local.unpacked(attempt), ""
    except BankNotFoundError:
        return None, "none is kept"
    except (BankError, OSError) as e:
        return None, f"cannot be read: {e}"


def _describe(a: Attempt, trajectory: str) -> None:
    output.say(f"attempt {output.one_line(a.id)}, {a.outcome}", style="bold")
    items = ", ".join(f"{kind} {name}" for kind, name in a.context_items)
    spent = [output.plural(a.steps, "step"), f"{a.seconds:.0f} s", f"${a.cost_usd:.4f}" if a.cost_usd else ""]
    source = "live" if a.source == "live" else f"a rollout of {a.source}"
    rows = {
        "recorded": f"{moment(a.recorded_at, local=True)}, {source}",
        "why": a.reason,
        "check": a.check,
        "dropped": ", ".join(a.dropped_paths) and f"{', '.join(a.dropped_paths)} (changes to tests do not count)",
        "items": items or "none",
        "model": a.model,
        "took": ", ".join(filter(None, spent)),
        "ended": a.exit_status,
        "trajectory": trajectory,
    }
    for label, value in rows.items():
        if value:
            output.say(f"{label:10}  {output.one_line(value)}")
    _block("task", a.task_text or a.task_id)
    _block("check's last lines", a.check_output)
    lines = a.patch.splitlines()
    output.say("\npatch:" if lines else "\npatch: empty")
    for line in lines[:_PATCH_LINES]:
        output.say(line.replace("\r", ""))
    if len(lines) > _PATCH_LINES:
        output.note(f"{len(lines) - _PATCH_LINES} more lines: `valve attempts show {quote(a.id)} --patch`")


def _block(title: str, text: str) -> None:
    """Print text of somebody else's, indented, so that no line of it looks like one of ours."""
    if text.strip():
        output.say(f"\n{title}:")
        for line in text.rstrip().splitlines():
            output.say(f"    {line}".rstrip())
