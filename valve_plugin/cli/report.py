"""`valve report`: one page to look at, and its figures and numbers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.bank.paths import page_path
from valve_plugin.cli import browser, output, targets
from valve_plugin.cli.options import BankDir, Json, examples, open_bank
from valve_plugin.errors import ConfigError
from valve_plugin.extras import install

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        typer.Argument(metavar="BANK BANK", help="With --compare: the two bank directories.", show_default=False),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Put two runs on one page.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where to write the page. Default: one place for each bank, in your data folder.",
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
    _require_places(out, figures, stores)
    labels = _labels(banks or []) if compare else [""]
    runs = [run_facts(store, words, label) for store, label in zip(stores, labels, strict=True)]
    drawn = _drawn(runs, figures) if figures else {}  # before anything is written: drawing may be impossible here
    if not json or out or open_:
        from valve_plugin.report.page import page

        kept = attempts(zip(runs, (store.local for store in stores), strict=True), int(size * 1_000_000))
        path = _write_page(out, stores, page(runs, kept))
        (output.note if json else output.say)(str(path))
        if importlib.util.find_spec("matplotlib") is None:
            output.note(f"no figures: matplotlib draws them and is not installed; run: {install('report')}")
        if open_:
            browser.show(path)
    if figures:
        _write_figures(figures, drawn)
    if json:
        from valve_plugin.report.paired import by_version
        from valve_plugin.report.reach import caveat
        from valve_plugin.report.said import said
        from valve_plugin.report.versus import versus_card

        told: dict[str, object] = {"runs": runs, "said": [said(run) for run in runs]}
        told["saved"] = [
            {"rollouts": sum(g.saved for g in run.gates), "usd": sum(g.saved_usd for g in run.gates)} for run in runs
        ]
        told["caveats"] = [{str(g.number): less for g in run.gates if (less := caveat(run, g))} for run in runs]
        if compare:
            told |= {"versus": versus_card(*runs)._asdict(), "by_version": by_version(*runs)}
        output.emit_json(told)


def _stores(banks: list[Path], bank: str, *, compare: bool) -> list[BankStore]:
    if compare and len(banks) != 2:
        raise ConfigError(f"--compare takes two bank directories, got {len(banks)}: valve report --compare A B")
    if compare and bank:
        raise ConfigError("--bank names one bank, --compare takes two as arguments: leave --bank out")
    if not compare and banks:
        raise ConfigError(f"{banks[0]}: name one bank with --bank, or two with --compare A B")
    stores = [open_bank(str(path)) for path in banks] if compare else [open_bank(bank)]
    if compare and banks[0].resolve() == banks[1].resolve():
        raise ConfigError(f"--compare {banks[0]} {banks[1]}: both are the same bank; name two, or one with --bank")
    return stores


def _require_places(out: Path | None, figures: Path | None, stores: Sequence[BankStore]) -> None:
    """Before the work: what may be written, and where."""
    kept = [place for store in stores for place in (store.dir, store.local.dir)]
    if out:
        targets.page("--out", out, kept)
    if figures:
        targets.folder("--figures", figures, kept)
    if out and figures and out.resolve() in (figures.resolve(), *figures.resolve().parents):
        raise ConfigError(f"--figures {figures}: --out names the same place as a file; name a folder beside it")


def _labels(banks: list[Path]) -> list[str]:
    """What tells two banks apart: `A, gated` and `B, ungated` for runs/gated/bank and runs/ungated/bank."""
    paths = [path.resolve() for path in banks]
    common = os.path.commonpath(paths)
    names = [path.relative_to(common) for path in paths]
    short = [name.parent if name.name in ("bank", ".valve") and len(name.parts) > 1 else name for name in names]
    told = short if len(set(short)) == len(short) else names
    return [f"{letter}, {name}" for letter, name in zip("AB", told, strict=True)]


def _write_page(out: Path | None, stores: Sequence[BankStore], html: str) -> Path:
    path = out or page_path(*(store.dir for store in stores))
    with targets.usable("--out", path):
        path.parent.mkdir(mode=0o777 if out else 0o700, parents=True, exist_ok=True)  # patches are the person's code
        path.write_text(html, encoding="utf-8")
    return path


def _drawn(runs: Sequence[Run], folder: Path) -> dict[Path, bytes]:
    """Every figure's files; each says itself what it shows.

    Raises:
        ConfigError: matplotlib is not installed, or a file in the way is no figure of ours.
    """
    from valve_plugin.report.figures import standing
    from valve_plugin.report.style import alone, png, require_own, svg

    found = {}
    for figure in standing(runs):
        told = alone(figure)
        for suffix, drawn in ((".svg", lambda f: svg(f).encode()), (".png", png)):
            path = folder / f"{figure.name}{suffix}"
            with targets.usable("--figures", path):
                require_own(path)
            found[path] = drawn(told)
    return found


def _write_figures(folder: Path, drawn: Mapping[Path, bytes]) -> None:
    if not drawn:
        output.note(f"--figures {folder}: nothing was measured yet, so there is nothing to draw")
        return
    with targets.usable("--figures", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in drawn.items():
            path.write_bytes(content)
