"""`valve doctor`: whether all that a run needs is here and works, and the command for what does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Json, bank_dir, examples
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.cli.doctor_rows import Place, Row

_STYLES = {"ok": "", "missing": "yellow", "failed": "red"}


def register(app: typer.Typer) -> None:
    """Add `valve doctor`."""
    app.command(
        "doctor",
        epilog=examples(
            "valve doctor                                   # everything; needs no key and no network",
            "valve doctor --call                            # and one cheap call of the model",
            "valve doctor --json | jq -r '.rows[].fix'      # only the commands that fix something",
        ),
    )(doctor)


def doctor(
    bank: BankDir = "",
    call: Annotated[bool, typer.Option("--call", help="Call the model once; costs a few tokens.")] = False,
    json: Json = False,
) -> None:
    """Check what a run needs, and name the fix for what does not work.

    The sandbox is checked by trying to get out of it. `missing` is optional; exit code 1 when a row failed.
    """
    from valve_plugin.cli import doctor_bank, doctor_sandbox  # noqa: F401 (their rows)
    from valve_plugin.cli.doctor_rows import examine

    rows = examine(_place(bank, call))
    if json:
        output.emit_json({"rows": [row._asdict() for row in rows]})
    else:
        for line, style in lines(rows):
            output.say(line, style=style)
    if any(row.state == "failed" for row in rows):
        raise typer.Exit(output.FINDING)


def lines(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield (text, style) of the report, a row's command below it. Pure."""
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        yield f"{row.state:8} {row.name:{width}}  {output.one_line(row.detail)}", _STYLES[row.state]
        if row.state != "ok" and row.fix:
            yield f"{'':8} {'':{width}}  $ {output.one_line(row.fix)}", "bold"  # ours are so already
    bad = [row.name for row in rows if row.state == "failed"]
    yield "", ""
    said = f"{output.plural(len(bad), 'row')} failed: {', '.join(bad)}" if bad else "everything that is needed works"
    yield said, ""


def _place(bank: str, call: bool) -> Place:
    from pathlib import Path

    from valve_plugin import config
    from valve_plugin.bank.checkout import find
    from valve_plugin.cli.doctor_rows import Place

    here = find(Path.cwd())
    directory = bank_dir(bank)
    try:
        return Place(here, directory, config.load(directory), call=call)
    except ConfigError as e:
        return Place(here, directory, config.Settings(), str(e), call=call)
