"""`valve certify`: what the recorded numbers prove, and under which assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from valve_plugin.cli import options, output, runs
from valve_plugin.cli.options import BankDir, Commands, Count, Json, Real, Variance, open_bank, points, theory_errors
from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError
from valve_plugin.words import plural

if TYPE_CHECKING:
    from valve_plugin.evidence.certify import AcceptCap, Bound, Certificate, CertifiedAccept

_STYLES = {"met": "", "unmet": "red", "unknown": "yellow"}

commands = Commands()


@commands.add(
    "certify",
    "valve certify                                                  # what this bank's ledger proves",
    "valve certify --gain 0.172 --n 100 --variance 0.025            # a gain measured on a holdout",
    "valve certify --move 0.0583 --accept 3 --horizon 60 --n 50 --variance 0.025",
)
def certify(
    gain: Annotated[Real, options.difference("--gain", "G", "Measured holdout gain, 5 points are 0.05.")] = None,
    drawdown: Annotated[Real, options.loss("--drawdown", "D", "Measured peak-to-final holdout drop.")] = None,
    move: Annotated[Real, options.difference("--move", "G", "Panel gain of an accepted move.")] = None,
    n: Annotated[Count, options.tasks("--n", "N", "Holdout or panel tasks.")] = None,
    banks: Annotated[Count, options.banks("--banks", "A", "Different banks checkpointed, for --drawdown.")] = None,
    accept: Annotated[Count, options.accepts("--accept", "K", "Which accept it was, for --move.")] = None,
    horizon: Annotated[Count, options.queries("--horizon", "T", "Gate queries declared first, for --move.")] = None,
    variance: Variance = None,
    delta: Annotated[Real, options.chance("--delta", "P", "Chance of error. Default: the ledger's, or 0.05.")] = None,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Say what the measured numbers prove about tasks like these.

    From a bank's ledger: for each accept, how much the bank can have lost by it at most, and how many accepts there can
    be. From plain numbers: the same for a gain, a drawdown or an accept measured elsewhere. Too few tasks: not even the
    loss of half of all tasks can be excluded. The radius is how far the true value may be from the measured one.

    Every certificate lists its assumptions as met, unmet or unknown. `disjoint`: nothing was learned from the tasks
    that measure. `tasks like yours`: they are a random sample of yours; `panel age`: they still are. `horizon`: there
    were no more gate queries than declared. `variance`: results vary no more than that between tasks. `judged =
    deployed`: agents get the contexts that were judged. `holdout sealed`: nothing was chosen by its holdout results.
    """
    from valve_plugin.evidence.certify import certify_ledger
    from valve_plugin.evidence.evaluations import read_measurements
    from valve_plugin.report.findings import certainty

    given = {"--n": n, "--variance": variance, "--banks": banks, "--accept": accept, "--horizon": horizon}
    simulation, typed = False, not (gain is drawdown is move is None)
    title, sure, of = "From the numbers given", "", {"repo": "", "version": 0, "ledger_head": ""}
    with theory_errors():
        if typed:
            found = _from_numbers(gain, drawdown, move, given, 0.05 if delta is None else delta)
        else:
            for name, value in (*given.items(), ("--delta", delta)):
                if value is not None and name != "--variance":
                    raise ConfigError(
                        f"{name} goes with --gain, --drawdown or --move; a ledger has its own. Leave it out, or give "
                        "one of them"
                    )
            store = open_bank(bank)
            seen = read_measurements(store.entries(), trusting=False)
            found = certify_ledger(seen, variance)
            answer = certainty(found, held=bool(store.bank.version and seen.checkpoints))  # as on the page
            title, sure = f"{store.bank.repo} at version {store.bank.version}", ". ".join(answer.texts)
            simulation = runs.note_simulation(store.dir, json=json)
            of = {"repo": store.bank.repo, "version": store.bank.version, "ledger_head": store.head}
    if json:
        output.emit_json({**plain(found), **of, "simulation": simulation})
        return
    output.say(title, style="bold")
    if sure:
        output.say(f"How sure? {sure}\n")
    for line in _lines(found, typed=typed):
        output.say(line)
    output.say("\nThis rests on:")
    width = max(len(a.name) for a in found.assumptions)
    for a in found.assumptions:
        needed = f"{', '.join(a.needed_for)}: " if found.moves and found.gain else ""  # else all is about one of them
        output.say(f"{a.status:8} {a.name:{width}}  {needed}{output.one_line(a.why)}", style=_STYLES[a.status])
    if head := of["ledger_head"]:
        output.say(f"\nledger    {head} is the hash of its last line: quote it with these numbers")


def _from_numbers(
    gain: float | None, drawdown: float | None, move: float | None, given: dict[str, Any], delta: float
) -> Certificate:
    from valve_plugin.evidence import certify as certificates

    if move is not None and not gain is drawdown is None:
        raise ConfigError("--move is measured on a panel, --gain and --drawdown on a holdout; certify them one by one")
    wanted = ["--n", "--variance"] + ["--banks"] * (drawdown is not None)
    wanted += ["--accept", "--horizon"] * (move is not None)
    if missing := [name for name in wanted if given[name] is None]:
        raise ConfigError(f"a certificate from numbers also needs {' and '.join(missing)}")
    n, variance, banks, accept, horizon = given.values()
    if move is not None:
        more = {
            "panel age": "that your tasks are still like those the panel was drawn from",
            "horizon": f"that a horizon of {horizon} was declared before the first query and was kept",
            "count": f"that this is accept {accept} on this panel, in the panel's first epoch",
            "judged = deployed": "that agents get exactly the contexts the panel was judged under",
        }
        return certificates.Certificate(
            moves=(certificates.certify_accept(move, n, horizon, accept, delta, variance),),
            assumptions=tuple(certificates.number_assumptions(n, variance, ("panel",), more)),
        )
    more = {"holdout sealed": "that the compared banks were fixed before anyone saw a holdout result"}
    more |= {} if drawdown is None else {"banks": f"that there are {plural(banks, 'different bank')}"}
    needed = ("gain",) * (gain is not None) + ("drawdown",) * (drawdown is not None)
    return certificates.Certificate(
        gain=None if gain is None else certificates.certify_gain(gain, n, delta, variance),
        drawdown=None if drawdown is None else certificates.certify_drawdown(drawdown, n, delta, variance, banks),
        assumptions=tuple(certificates.number_assumptions(n, variance, needed, more)),
    )


def _lines(found: Certificate, *, typed: bool) -> Iterator[str]:
    from valve_plugin.evidence.certify import owned_versions

    unmet = ", ".join(a.name for a in found.unmet("panel"))
    for move in found.moves:
        yield _move(move, unmet)
    if found.taken:
        yield f"ungated   nothing is certified about what led to version {found.taken}: no gate judged it"
    if found.owned:
        yield f"owner     nothing is certified about these changes: {owned_versions(found.owned)}, not judged"
    if not typed:
        yield from map(_cap, found.caps) if found.caps else ["accepts   unknown: no complete panel is recorded"]
        if not found.moves:
            yield "losses    none to certify: nothing was accepted"
    if found.gain:
        yield _bound("gain", found.gain)
    if found.drawdown:
        yield _bound("drawdown", found.drawdown)
    if found.gain and found.drawdown and not (found.gain.vacuous or found.drawdown.vacuous):
        yield f"together  both hold with probability {1 - found.gain.delta - found.drawdown.delta:.4g} at least"
    if found.unevaluated:
        yield f"gain      unknown: {found.unevaluated}"
        yield f"drawdown  unknown: {found.unevaluated}"


def _move(move: CertifiedAccept, unmet: str = "") -> str:
    from valve_plugin.evidence.certify import tasks_for_gain

    where = f" (made version {move.version}; query {move.query} of epoch {move.epoch})" if move.version else ""
    seen = f"accept {move.accept}{where}: {points(move.panel_gain)} points measured on {plural(move.tasks, 'task')}"
    chance = f"with probability {1 - move.delta:.4g} for all accepts of the epoch at once"
    if move.vacuous:
        return f"{seen}; not certified, which takes more tasks. {tasks_for_gain(move)}"
    if unmet:
        return f"{seen}; not certified: {unmet} unmet"
    if move.loss:
        return f"{seen}; tasks like these lose at most {100 * move.loss:.1f} points, {chance}"
    return f"{seen}; no loss: tasks like these gain at least {100 * move.floor:.1f} points, {chance}"


def _cap(cap: AcceptCap) -> str:
    if not cap.carried:
        useless = f", of which at most {cap.useless:.3g} do not help, in expectation" if cap.useless else ""
        return (
            f"accepts   epoch {cap.epoch}: {cap.accepted} so far, at most {cap.most} (the declared queries: scores are "
            f"measured anew, so the margin caps nothing){useless}"
        )
    return (
        f"accepts   epoch {cap.epoch}: {cap.accepted} so far, at most {cap.most} at margin {cap.rho} from a first "
        f"panel score of {100 * cap.start:.1f} %"
    )


def _bound(name: str, bound: Bound) -> str:
    from valve_plugin.evidence.certify import guarantee, too_few

    number = f"{100 * bound.measured:.1f}" if name == "drawdown" else points(bound.measured)
    seen = f"{name:9} {number} points measured on {plural(bound.tasks, 'task')}"
    says = guarantee(bound, f" on tasks like these, with probability {1 - bound.delta:.4g}")
    if bound.vacuous:
        return f"{seen}; not certified: too few tasks, the radius is {100 * bound.radius:.1f} points"
    if too_few(bound):
        return f"{seen}; too few to say much: {says}"
    return f"{seen}; {says} (radius {100 * bound.radius:.1f})"
