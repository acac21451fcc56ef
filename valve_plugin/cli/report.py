"""`valve report`: one page to look at, and its numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Commands, Json, argument, flag, open_bank, option
from valve_plugin.errors import ConfigError
from valve_plugin.files import make_dir
from valve_plugin.paths import page_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from valve_plugin.bank.store import BankStore
    from valve_plugin.report.run import RunReport

_ROOM = 6_000_000
"""Characters of patches and trajectories on a page."""

commands = Commands()


@commands.add(
    "report",
    "valve report --open                          # this repository's bank, in the browser",
    "valve report --compare A/bank B/bank         # two runs on one page",
    "valve report --json                          # the numbers of every figure and table",
)
def report(
    banks: Annotated[
        list[Path] | None, argument("BANK", "With --compare: two bank directories.", show_default=False)
    ] = None,
    compare: Annotated[bool, flag("--compare", "Put two runs on one page.")] = False,
    out: Annotated[Path | None, option("--out", "FILE", "Where to write the page. Default: in user data.")] = None,
    open_: Annotated[bool, flag("--open", "Show the page in the browser.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Write a page about a run: gain, certainty, cost.

    The page is one file that loads nothing else. It shows every gate, every panel rollout with its patch and
    trajectory, every note with its source, the certificates and the ledger; of a long run the latest of each, and
    --json has all. Rollouts are shown if this machine has them.
    """
    from valve_plugin.report.build import build_run
    from valve_plugin.report.page import attempt_details

    if out:
        output.require_page("--out", out)
    stores = _stores(banks or [], bank, compare=compare)
    labels = [""]
    if compare:  # with the names of the banks' folders: `gated` for runs/gated/bank
        folders = [store.dir.resolve() for store in stores]
        names = [folder.parent.name if folder.name in ("bank", ".valve") else folder.name for folder in folders]
        labels = [f"{letter}, {name}" for letter, name in zip("AB", names, strict=True)]
    runs = [build_run(store, label) for store, label in zip(stores, labels, strict=True)]
    if not json or out or open_:
        from valve_plugin.report.page import render_page

        shown = attempt_details(zip(runs, (store.local for store in stores), strict=True), _ROOM)
        path = out or page_path(*(store.dir for store in stores))
        with output.explain_errors("--out", path):
            if not out:
                make_dir(path.parent, 0o700)  # patches are private code
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render_page(runs, shown), encoding="utf-8")
        (output.note if json else output.say)(str(path))
        if open_:
            # Open the page in the browser, in a session of its own: Ctrl-C in the terminal does not close it
            page = path.resolve()
            silent = subprocess.DEVNULL
            opener = "open" if sys.platform == "darwin" else "xdg-open"
            try:
                subprocess.Popen(
                    [opener, str(page)], stdin=silent, stdout=silent, stderr=silent, start_new_session=True
                )
            except OSError:
                output.note(f"valve: there is no {opener} to open a browser with; the page is {page}")
    if json:
        output.emit_json(_as_json(runs))


def _as_json(runs: Sequence[RunReport]) -> dict[str, object]:
    """Return the page's numbers and statements as plain data."""
    from valve_plugin.report.findings import comparison_card, findings
    from valve_plugin.report.templates import text

    told: dict[str, object] = {
        "runs": runs,
        "said": [{section: list(map(text, said)) for section, said in findings(run).items()} for run in runs],
        "saved": [
            {"rollouts": sum(g.saved for g in run.gates), "usd": sum(g.saved_usd for g in run.gates)} for run in runs
        ],
    }
    if len(runs) > 1:
        card = comparison_card(*runs)
        told["versus"] = {
            "question": "Is A better than B?",
            "answer": card.texts[0],
            "why": card.texts[1],
            "tone": card.tone,
            "streams": card.values["streams"],
            "holdouts": card.values["holdouts"],
        }
    return told


def _stores(banks: list[Path], bank: str, *, compare: bool) -> list[BankStore]:
    if not compare and banks:
        raise ConfigError(f"{banks[0]}: name one bank with --bank, or two with --compare A B")
    if not compare:
        return [open_bank(bank)]
    if len(banks) != 2 or bank:
        raise ConfigError(f"--compare takes two bank directories, got {len(banks)}: valve report --compare A B")
    if banks[0].resolve() == banks[1].resolve():
        raise ConfigError(f"--compare {banks[0]} {banks[1]}: both are the same bank; name two, or one with --bank")
    return [open_bank(str(path)) for path in banks]
