"""One self-contained HTML page: no request, no server, and no script but its own.

Jinja escapes every value; what is marked as markup here is made here, from parts that are escaped themselves.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin import __version__
from valve_plugin.errors import ConfigError
from valve_plugin.records import is_live
from valve_plugin.report.bounds import sizes
from valve_plugin.report.certify import Cap
from valve_plugin.report.compare import compared, equal
from valve_plugin.report.elsewhere import elsewhere, prompts
from valve_plugin.report.fates import fates, steps
from valve_plugin.report.figures import figures
from valve_plugin.report.gains import caption, gain, told
from valve_plugin.report.heat import heat, short
from valve_plugin.report.joined import attempts as attempts_of
from valve_plugin.report.joined import joined
from valve_plugin.report.measured_tasks import again, tables
from valve_plugin.report.overview import duration, overview, own_start, ran, signed, simulation
from valve_plugin.report.paired import by_version
from valve_plugin.report.provenance import listed, others, ranges
from valve_plugin.report.reach import capped, left
from valve_plugin.report.run import Proposed, Run
from valve_plugin.report.run_spent import APART, everything, total
from valve_plugin.report.said import numbers, said
from valve_plugin.report.shelves import shelves
from valve_plugin.report.style import inline, narrow
from valve_plugin.report.texts import breaks, difference, embedded, inert, pretty, sentences, ticked
from valve_plugin.report.versus import versus_card
from valve_plugin.report.words import counted, points
from valve_plugin.words import moment

if TYPE_CHECKING:
    from jinja2 import Environment

_PAIRINGS = {
    "paper": "a candidate's rollouts get what retrieval finds in the current bank, and everything that is proposed.",
    "deployed": (
        "a candidate's rollouts get what retrieval would find in the bank with the proposal in it; tasks whose context "
        "stays the same keep their outcomes."
    ),
}


def page(runs: Sequence[Run], attempts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of one run, or of two compared.

    Args:
        attempts: attempt id -> what to show of it.

    Where matplotlib is not installed the page has no figures, and says how to get them.
    """
    from markupsafe import Markup

    css, js = _asset("page.css"), _asset("page.js")
    parts = [_part(run, number, len(runs)) for number, run in enumerate(runs)]
    for part, other in zip(parts, reversed(parts), strict=True):
        part |= {
            "elsewhere": elsewhere(part["run"].items, other["run"].items, live=other["live"]) if len(runs) > 1 else {},
            "other": other,
        }
    drawn, missing = _drawn(runs)
    return _environment().get_template("page.html.j2").render(
        title=runs[0].label if len(runs) == 1 else f"{runs[0].repo}: {' against '.join(run.label for run in runs)}",
        simulation=simulation(runs),
        policy=_policy(css, js),
        css=Markup(css),  # noqa: S704 (a file of this package)
        js=Markup(js),  # noqa: S704 (a file of this package)
        runs=parts,
        pairings=_PAIRINGS,
        pairs=joined(runs),
        apart=APART,
        seen={style for part in parts for style in part["heat"].styles},
        kinds={column.kind for run in runs for column in run.columns},
        opens=any(cell.attempts for part in parts for row in part["heat"].rows for cell in row.cells),
        again=any(column.repeat for run in runs for column in run.columns),
        figures=drawn,
        missing=missing,
        states=sorted({item.state for run in runs for item in run.items}),
        types=sorted({line.type for run in runs for line in run.ledger}),
        broken=sum(part["broken"] for part in parts),
        compared=compared(runs) if len(runs) > 1 else [],
        versus=versus_card(*runs) if len(runs) > 1 else None,
        stretches=by_version(*runs) if len(runs) > 1 else [],
        attempts=embedded(attempts),
        version=__version__,
    )  # fmt: skip


class Gated(NamedTuple):
    """What all gates together ran."""

    ran: int
    total: int
    said: str


def gated(run: Run) -> Gated:
    """Return the sums of the gates' rollouts, and what became of the rest."""
    ran, of, kept, beyond = (sum(getattr(g, name) for g in run.gates) for name in ("ran", "total", "kept", "beyond"))
    saved, usd = sum(g.saved for g in run.gates), sum(g.saved_usd for g in run.gates)
    money = f", about ${usd:,.2f}" if usd >= 0.005 else ""
    said = f"{saved} ({saved / of:.0%}{money}) not needed: the verdict was certain" if of and saved else ""
    more = f"{beyond} more ran on when the verdict was certain" if beyond else ""
    return Gated(ran, of, "; ".join(filter(None, [f"{kept} kept from before" if kept else "", said, more])))


def unseen(run: Run) -> dict[int, int]:
    """Return ledger line -> of the rollouts that ran on in its gate, how many the panel cannot show."""
    shown = Counter(c.line for c in run.columns for cell in c.cells for _ in cell.late)
    return {g.line: max(0, g.beyond - shown[g.line]) for g in run.gates}


def fitting(run: Run, cap: Cap) -> int:
    """Return how many gains of a margin's whole rollouts fit between an epoch's first score and 100 %."""
    margins = [g.margin for g in run.gates if g.epoch == cap.epoch]
    return int((1 - cap.start) / margins[0] + 1e-9) if margins else cap.most


def originals(items: Sequence[Proposed]) -> dict[int, Proposed]:
    """Return, by place in the list, what a duplicate repeats: of its own proposal, or what came into the bank before.

    Another item of that name, a rejected one, say, is not what it was compared with.
    """
    found: dict[int, Proposed] = {}
    for place, item in enumerate(items):
        if item.twin and item.kept:
            named = [i for i in items if (i.kind, i.name) == (item.kind, item.twin) and not i.twin and i.kept]
            own = [i for i in named if i.proposal_id == item.proposal_id]
            came = [i for i in named if i.state in ("accepted", "taken", "retired") and i.line < item.line]
            if match := own or came:
                found[place] = match[-1]
    return found


def _part(run: Run, number: int, of: int) -> dict[str, Any]:
    hidden = unseen(run)
    return {
        "run": run,
        "prefix": "" if of == 1 else f"run{number + 1}-",
        "suffix": "" if of == 1 else f", {run.label}",
        "overview": overview(run) if of == 1 else [own_start(card) for card in overview(run)],
        "heat": heat(run),
        "originals": originals(run.items),
        "gated": gated(run),
        "again": again(run),
        "tables": tables(run),
        "fates": fates(run),
        "ran": ran(run),
        "mixed_only": not run.stream_whole and any(not is_live(p.task_id) for p in run.stream),
        "shelves": shelves(run.items),
        "live": bool(run.live.attempts) or not run.stream_whole,
        "latest": max((i.version for i in run.items if i.version is not None), default=None),
        "steps": steps(run),
        "said": said(run),
        "numbers": numbers(run),
        "told": {g.line: told(run, g, hidden[g.line]) for g in run.gates},
        "left": bool(left(run)),
        "caps": {cap.epoch: fitting(run, cap) for cap in run.certificate.caps},
        "total": total(run.spent),
        "all": everything(run.spent),
        "apart": any(s.role in APART for s in run.spent),
        "broken": len(run.problems) + sum(bool(line.problem) for line in run.ledger),
    }


def _drawn(runs: Sequence[Run]) -> tuple[list[dict[str, str]], str]:
    """The figures, or why there are none."""
    from markupsafe import Markup

    try:
        return [
            {
                "title": f.title,
                "caption": f.caption,
                "wide": Markup(inline(f)),  # noqa: S704 (matplotlib escapes text)
                "narrow": Markup(inline(narrow(f))),  # noqa: S704
            }
            for f in figures(runs)
        ], ""
    except ConfigError as e:
        return [], str(e)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("valve_plugin.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "points": points,
        "signed": signed,
        "counted": counted,
        "prompts": prompts,
        "inert": inert,
        "pretty": pretty,
        "sentences": sentences,
        "ranges": ranges,
        "listed": listed,
        "others": others,
        "breaks": breaks,
        "short": short,
        "attempts": attempts_of,
        "ticked": ticked,
        "duration": duration,
        "sizes": sizes,
        "capped": capped,
        "gain": gain,
        "verdicts": caption,
        "difference": difference,
        "equal": equal,
        "moment": moment,
    }
    return environment


def _policy(css: str, js: str) -> str:
    """Nothing loads; the one style sheet and the one script are named by hash; SVG keeps its style attributes."""
    return (
        f"default-src 'none'; script-src '{_hash(js)}'; style-src-elem '{_hash(css)}'; style-src-attr 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return (resources.files("valve_plugin.report") / "assets" / name).read_text(encoding="utf-8")
