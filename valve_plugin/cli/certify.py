"""`valve certify`: what the recorded numbers prove, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output, ranges, simulations
from valve_plugin.cli.options import BankDir, Json, examples, open_bank
from valve_plugin.cli.output import plural
from valve_plugin.cli.ranges import Variance, points, theory_errors
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from valve_plugin.report.bounds import Bound
    from valve_plugin.report.certify import Cap, Certificate, Move


def register(app: typer.Typer) -> None:
    """Add `valve certify`."""
    app.command(
        "certify",
        epilog=examples(
            "valve certify                                                  # what this bank's ledger proves",
            "valve certify --gain 0.172 --n 100 --variance 0.025            # a gain measured on a holdout",
            "valve certify --drawdown 0.0092 --banks 8 --n 100 --variance 0.025",
            "valve certify --move 0.0583 --accept 3 --horizon 60 --n 50 --variance 0.025",
        ),
    )(certify)


def certify(
    gain: Annotated[
        float | None,
        typer.Option(
            "--gain", metavar="G", callback=ranges.difference, help="Measured holdout gain, 5 points are 0.05."
        ),
    ] = None,
    drawdown: Annotated[
        float | None,
        typer.Option(
            "--drawdown", metavar="D", callback=ranges.loss, help="Measured peak-to-final holdout drop, at least 0."
        ),
    ] = None,
    move: Annotated[
        float | None,
        typer.Option("--move", metavar="G", callback=ranges.difference, help="Panel gain of an accepted move."),
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", metavar="N", callback=ranges.tasks, help="Holdout or panel tasks.")
    ] = None,
    banks: Annotated[
        int | None,
        typer.Option(
            "--banks", metavar="A", callback=ranges.banks, help="Different banks checkpointed, for --drawdown."
        ),
    ] = None,
    accept: Annotated[
        int | None,
        typer.Option("--accept", metavar="K", callback=ranges.accepts, help="Which accept it was, for --move."),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            "--horizon",
            metavar="T",
            callback=ranges.queries,
            help="Gate queries declared first, for --move.",
        ),
    ] = None,
    variance: Variance = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            metavar="P",
            callback=ranges.chance,
            help="Chance of being wrong. Default: the ledger's, or 0.05.",
        ),
    ] = None,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Say what the measured numbers prove about tasks like these.

    From a bank's ledger: for each accept, the most that the bank can have lost by it, and how many accepts there can
    be. From plain numbers: the same for a gain, a drawdown or an accept measured elsewhere. VACUOUS says nothing: there
    are too few tasks to exclude anything. The radius is how far all tasks like these may lie from what was measured.

    Every certificate comes with what it rests on: met, unmet, or unknown. `disjoint`: nothing was learned from the
    tasks that measure. `tasks like yours`: they are a random sample of yours; `panel age`: they still are. `horizon`:
    no more gate queries than were declared. `variance`: results differ no more than that from task to task. `judged =
    deployed`: agents get the contexts that were judged. `gains local`: only tasks that passed sometimes improve.
    `holdout sealed`: nothing was chosen by the holdout.
    """
    from valve_plugin.codec import plain

    simulation, typed = False, not (gain is drawdown is move is None)
    with theory_errors():
        if typed:
            given = {"--n": n, "--variance": variance, "--banks": banks, "--accept": accept, "--horizon": horizon}
            found = _from_numbers(gain, drawdown, move, given, 0.05 if delta is None else delta)
            title, sure = "From the numbers given", ""
        else:
            lost = {"--n": n, "--banks": banks, "--accept": accept, "--horizon": horizon, "--delta": delta}
            found, title, sure, where = _from_bank(bank, variance, lost)
            simulation = simulations.told(where, json=json)
    if json:
        output.emit_json({**plain(found), "simulation": simulation})
        return
    output.say(title, style="bold")
    if sure:
        output.say(f"How sure? {sure}\n")
    for line in _lines(found, typed=typed):
        output.say(line)
    output.say("\nThis rests on:")
    capped = any(map(_second, found.caps))
    rests = [a for a in found.assumptions if capped or a.needed_for != ("second cap",)]
    width = max(len(a.name) for a in rests)
    for a in rests:
        needed = f"{', '.join(a.needed_for)}: " if found.moves and found.gain else ""  # else all is about one of them
        output.say(f"{a.status:8} {a.name:{width}}  {needed}{output.one_line(a.why)}", style=_STYLES[a.status])


_STYLES = {"met": "", "unmet": "red", "unknown": "yellow"}


def _from_bank(
    bank: str, variance: float | None, lost: dict[str, float | int | None]
) -> tuple[Certificate, str, str, Path]:
    """Return what a ledger certifies, whose it is, the report's answer to how sure that is, and the bank."""
    from valve_plugin.bank.measured import measured
    from valve_plugin.report.certify import from_ledger
    from valve_plugin.report.held import how_sure

    if idle := [name for name, value in lost.items() if value is not None]:
        raise ConfigError(
            f"{idle[0]} goes with --gain, --drawdown or --move; a ledger has its own. Leave it out, or give one of them"
        )
    store = open_bank(bank)
    seen = measured(store.entries())
    found = from_ledger(seen, variance)
    answer, why = how_sure(found, held=bool(store.bank.version and seen.points))
    return found, f"{store.bank.repo} at version {store.bank.version}", f"{answer}. {why}", store.dir


def _from_numbers(
    gain: float | None, drawdown: float | None, move: float | None, given: dict[str, Any], delta: float
) -> Certificate:
    from valve_plugin.report import assumptions, bounds, certify
    from valve_plugin.report.certify import Certificate

    if move is not None and not gain is drawdown is None:
        raise ConfigError("--move is measured on a panel, --gain and --drawdown on a holdout; certify them one by one")
    wanted = ["--n", "--variance"] + ["--banks"] * (drawdown is not None)
    wanted += ["--accept", "--horizon"] * (move is not None)
    if missing := [name for name in wanted if given[name] is None]:
        raise ConfigError(f"{' and '.join(missing)} missing; a certificate from numbers takes {', '.join(wanted)}")
    n, variance, banks, accept, horizon = given.values()
    if move is not None:
        moves = (certify.accepted_move(move, n, horizon, accept, delta, variance),)
        rests = assumptions.of_panel_numbers(n, horizon, accept, variance)
        return Certificate(moves=moves, assumptions=(*rests, *certify.range_of(moves, None, None)))
    floor = None if gain is None else bounds.of_gain(gain, n, delta, variance)
    ceiling = None if drawdown is None else bounds.of_drawdown(drawdown, n, delta, variance, banks)
    needed = ("gain",) * (gain is not None) + ("drawdown",) * (drawdown is not None)
    rests = assumptions.of_holdout_numbers(n, variance, None if drawdown is None else banks, needed)
    return Certificate(gain=floor, drawdown=ceiling, assumptions=(*rests, *certify.range_of((), floor, ceiling)))


def _lines(found: Certificate, *, typed: bool) -> Iterator[str]:
    for move in found.moves:
        yield _move(move)
    if found.taken:
        yield f"ungated   nothing is certified about what led to version {found.taken}: no gate judged it"
    if not typed:
        yield from map(_cap, found.caps) if found.caps else ["accepts   unknown: no complete panel is recorded"]
        if not found.moves:
            yield "losses    none to certify: nothing was accepted"
    if found.gain:
        yield _bound("gain", found.gain)
    if found.drawdown:
        yield _bound("drawdown", found.drawdown)
    if found.gain and found.drawdown and found.drawdown.by_gain is not None:
        yield f"together  one guarantee covers both, so both hold with probability {1 - found.gain.delta:.4g}"
    elif found.gain and found.drawdown and not (found.gain.vacuous or found.drawdown.vacuous):
        yield f"together  both hold with probability {1 - found.gain.delta - found.drawdown.delta:.4g} at least"
    if found.unevaluated:
        yield f"gain      unknown: {found.unevaluated}"
        yield f"drawdown  unknown: {found.unevaluated}"


def _move(move: Move) -> str:
    where = f" (version {move.version}, query {move.query} of epoch {move.epoch})" if move.version else ""
    seen = f"accept {move.accept}{where}: {points(move.panel_gain)} points measured on {plural(move.tasks, 'task')}"
    chance = f"with probability {1 - move.delta:.4g} for all accepts of the epoch at once"
    if move.vacuous:
        return f"{seen}; VACUOUS: no loss can be excluded"
    if move.loss:
        return f"{seen}; tasks like these lose at most {100 * move.loss:.1f} points, {chance}"
    return f"{seen}; no loss: tasks like these gain at least {100 * move.floor:.1f} points, {chance}"


def _cap(cap: Cap) -> str:
    said = (
        f"accepts   epoch {cap.epoch}: {cap.accepted} so far, at most {cap.most} at margin {cap.rho} from a first "
        f"panel score of {100 * cap.start:.1f} %"
    )
    if not _second(cap):
        return said
    mixed = f"the {100 * cap.unstable:.1f} % of tasks whose first rollouts were mixed"
    return f"{said}; at most {cap.localized} if gains stay on {mixed}"


def _second(cap: Cap) -> bool:
    """Tell whether the cap that rests on an assumption says more than the one that is certain."""
    return cap.localized < cap.most


def _bound(name: str, bound: Bound) -> str:
    from valve_plugin.report.bounds import guarantee

    number = f"{100 * bound.measured:.1f}" if name == "drawdown" else points(bound.measured)
    seen = f"{name:9} {number} points measured on {plural(bound.tasks, 'task')}"
    says = guarantee(bound, f" on tasks like these, with probability {1 - bound.delta:.4g}")
    if bound.by_gain is not None:
        return f"{seen}; {says}"
    if bound.vacuous:
        return f"{seen}; VACUOUS: the radius of {100 * bound.radius:.1f} points leaves everything possible"
    return f"{seen}; {says} (radius {100 * bound.radius:.1f})"
