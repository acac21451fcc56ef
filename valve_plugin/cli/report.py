"""`valve report`: one page to look at, and its figures and numbers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Json, examples, open_bank
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from valve_plugin.bank.store import BankStore
    from valve_plugin.report.run import Run

_BUDGET_MB = 6.0


def register(app: typer.Typer) -> None:
    """Add `valve report`."""
    app.command(
        "report",
        epilog=examples(
            "valve report --open                          # this repository's bank, in the browser",
            "valve report --out run.html --figures figs/  # the page, and its figures as SVG and PNG",
            "valve report --compare A/bank B/bank         # two runs on one page",
            "valve report --json                          # the numbers of every figure and table",
        ),
    )(report)


def report(
    banks: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BANK] [BANK]", help="With --compare: the two bank directories.", show_default=False),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Put two runs on one page.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to write the page. Default: a new file in the temporary folder."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="Write each figure as SVG and PNG too.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    size: Annotated[
        float,
        typer.Option(
            "--attempts-mb", metavar="MB", min=0, max=500, help="Room for patches and trajectories in the page."
        ),
    ] = _BUDGET_MB,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Write a page about a run: gain, certainty, cost.

    The page is one file that loads nothing: every gate, every panel rollout with its patch and trajectory, every
    item with where it came from, the certificates and the ledger. Rollouts are shown where this machine keeps them.
    """
    from valve_plugin.cli.history import words
    from valve_plugin.report.details import attempts
    from valve_plugin.report.facts import run_facts

    stores = _stores(banks or [], bank, compare=compare)
    labels = _labels(banks or []) if compare else [""]
    runs = [run_facts(store, words, label) for store, label in zip(stores, labels, strict=True)]
    if json:
        output.emit_json({"runs": runs})
        return
    from valve_plugin.report.page import page

    kept = attempts(zip(runs, (store.local for store in stores), strict=True), int(size * 1_000_000))
    html = page(runs, kept)
    path = out or Path(tempfile.mkdtemp(prefix="valve-report-")) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    if figures:
        _write_figures(figures, runs)
    output.say(str(path))
    if open_:
        typer.launch(str(path))


def _stores(banks: list[Path], bank: str, *, compare: bool) -> list[BankStore]:
    if compare and len(banks) != 2:
        raise ConfigError(f"--compare takes two bank directories, got {len(banks)}: valve report --compare A B")
    if compare and bank:
        raise ConfigError("--bank names one bank, --compare takes two as arguments: leave --bank out")
    if not compare and banks:
        raise ConfigError(f"{banks[0]}: name one bank with --bank, or two with --compare A B")
    return [open_bank(str(path)) for path in banks] if compare else [open_bank(bank)]


def _labels(banks: list[Path]) -> list[str]:
    """What tells two banks apart: `A, gated` and `B, ungated` for runs/gated/bank and runs/ungated/bank."""
    paths = [path.resolve() for path in banks]
    common = os.path.commonpath(paths)
    names = [path.relative_to(common) for path in paths]
    short = [name.parent if name.name in ("bank", ".valve") and len(name.parts) > 1 else name for name in names]
    told = short if len(set(short)) == len(short) else names
    return [f"{letter}, {name}" for letter, name in zip("AB", told, strict=True)]


def _write_figures(folder: Path, runs: Sequence[Run]) -> None:
    from valve_plugin.report.figures import figures
    from valve_plugin.report.style import png, svg

    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures(runs):
        (folder / f"{figure.name}.svg").write_text(svg(figure), encoding="utf-8")
        (folder / f"{figure.name}.png").write_bytes(png(figure))
