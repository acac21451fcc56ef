"""`valve report`: one page to look at, and its figures and numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from valve_plugin.cli import output, output_paths
from valve_plugin.cli.options import BankDir, Commands, Json, argument, flag, open_bank, option
from valve_plugin.errors import ConfigError
from valve_plugin.paths import page_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from valve_plugin.bank.store import BankStore
    from valve_plugin.report.run import RunReport


commands = Commands()


@commands.add(
    "report",
    "valve report --open                          # this repository's bank, in the browser",
    "valve report --out run.html --figures figs/  # the page, and its figures as SVG",
    "valve report --compare A/bank B/bank         # two runs on one page",
    "valve report --json                          # the numbers of every figure and table",
)
def report(
    banks: Annotated[
        list[Path] | None, argument("BANK BANK", "With --compare: the two bank directories.", show_default=False)
    ] = None,
    compare: Annotated[bool, flag("--compare", "Put two runs on one page.")] = False,
    out: Annotated[Path | None, option("--out", "FILE", "Where to write the page. Default: in user data.")] = None,
    figures: Annotated[Path | None, option("--figures", "DIR", "Write each figure as SVG too.")] = None,
    open_: Annotated[bool, flag("--open", "Show the page in the browser.")] = False,
    size: Annotated[float, option("--attempts-mb", "MB", "Room for patches and trajectories.", min=0, max=500)] = 6.0,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Write a page about a run: gain, certainty, cost.

    The page is one file that loads nothing else. It shows every gate, every panel rollout with its patch and
    trajectory, every item with its source, the certificates and the ledger. Rollouts are shown if this machine has
    them.
    """
    from valve_plugin.report.attempts import attempt_details
    from valve_plugin.report.build import build_run

    stores = _stores(banks or [], bank, compare=compare)
    _require_places(out, figures, stores)
    labels = _labels(banks or []) if compare else [""]
    runs = [build_run(store, label) for store, label in zip(stores, labels, strict=True)]
    drawn = _draw(runs, figures) if figures else {}  # before anything is written: a file may be in the way
    if not json or out or open_:
        from valve_plugin.report.page import render_page

        shown = attempt_details(zip(runs, (store.local for store in stores), strict=True), int(size * 1_000_000))
        path = out or page_path(*(store.dir for store in stores))
        with output_paths.explain_errors("--out", path):
            path.parent.mkdir(mode=0o777 if out else 0o700, parents=True, exist_ok=True)  # patches are private code
            path.write_text(render_page(runs, shown), encoding="utf-8")
        (output.note if json else output.say)(str(path))
        if open_:
            _open(path.resolve())
    if figures:
        _write_figures(figures, drawn)
    if json:
        output.emit_json(_as_json(runs))


def _as_json(runs: Sequence[RunReport]) -> dict[str, object]:
    """Return the page's numbers and statements as plain data."""
    from valve_plugin.report.compare import comparison_card
    from valve_plugin.report.findings import findings
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
            "answer": text(card.headline),
            "why": text(card.reason),
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


def _require_places(out: Path | None, figures: Path | None, stores: Sequence[BankStore]) -> None:
    """Refuse places that must not be written to, before the work."""
    kept = [place for store in stores for place in (store.dir, store.local.dir)]
    if out:
        output_paths.require_page("--out", out, kept)
    if figures:
        output_paths.require_folder("--figures", figures, kept)
    if out and figures and out.resolve() in (figures.resolve(), *figures.resolve().parents):
        raise ConfigError(f"--figures {figures}: --out names the same place as a file; name another folder")


def _labels(banks: list[Path]) -> list[str]:
    """Return a short label per bank: `A, gated` and `B, ungated` for runs/gated/bank and runs/ungated/bank."""
    paths = [path.resolve() for path in banks]
    common = os.path.commonpath(paths)
    names = [path.relative_to(common) for path in paths]
    short = [name.parent if name.name in ("bank", ".valve") and len(name.parts) > 1 else name for name in names]
    told = short if len(set(short)) == len(short) else names
    return [f"{letter}, {name}" for letter, name in zip("AB", told, strict=True)]


def _draw(runs: Sequence[RunReport], folder: Path) -> dict[Path, bytes]:
    """Return the content of each figure's files, by path.

    Raises:
        ConfigError: a file in the way is no figure of ours.
    """
    from valve_plugin.report.figures import standalone_figures
    from valve_plugin.report.style import file_svg, require_replaceable

    found = {}
    for figure in standalone_figures(runs):
        path = folder / f"{figure.name}.svg"
        with output_paths.explain_errors("--figures", path):
            require_replaceable(path)
        found[path] = file_svg(figure).encode()
    return found


def _write_figures(folder: Path, drawn: Mapping[Path, bytes]) -> None:
    if not drawn:
        output.note(f"--figures {folder}: nothing was measured yet, so there is nothing to draw")
        return
    with output_paths.explain_errors("--figures", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in drawn.items():
            path.write_bytes(content)


def _open(page: Path) -> None:
    """Open the page in the browser, in a session of its own: Ctrl-C in the terminal does not close it."""
    silent = subprocess.DEVNULL
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    try:
        subprocess.Popen([opener, str(page)], stdin=silent, stdout=silent, stderr=silent, start_new_session=True)
    except OSError:
        output.note(f"valve: there is no {opener} to open a browser with; the page is {page}")
