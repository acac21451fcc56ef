"""One self-contained HTML page: it needs no server, loads nothing and runs only its own script.

Jinja escapes every value. Markup objects in this module are made from escaped parts.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from valve_plugin import __version__
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.scripted_bank import HEEDS_ITS_OWN
from valve_plugin.codec import canonical
from valve_plugin.errors import BankError
from valve_plugin.evidence.certify import CertifiedAccept
from valve_plugin.evidence.cost import APART, run_cost, sum_costs
from valve_plugin.extract.digest import digest, printable
from valve_plugin.records import is_live
from valve_plugin.report.figures import figures, page_svg
from valve_plugin.report.findings import (
    answers,
    comparison_card,
    comparison_columns,
    findings,
    heatmap,
    lesson,
    origins,
    task_pairs,
)
from valve_plugin.report.run import GateResult, ItemState, LedgerLine, PanelColumn, ProposedItem, RunReport, StreamPoint
from valve_plugin.report.templates import environment, json_for_script
from valve_plugin.words import visible

ROWS, ITEMS, COLUMNS = 500, 200, 60
"""The latest that the page holds: rows of each list, items of each group, measurements in a table of tasks."""
_DATA = 3_000_000
"""Characters of JSON of ledger lines, those of the latest lines."""
TOKENS = 1_200
"""Tokens of one trajectory digest."""
_PATCH = 6_000
_TASK = 1_500
_REASON = 600


class ItemGroup(NamedTuple):
    """A group of items, of which the page holds the newest."""

    in_bank: bool
    states: Mapping[ItemState, int]
    """Of all its items."""
    places: list[int]
    """Positions of the newest in the list of items, in display order."""
    total: int


def group_items(items: Sequence[ProposedItem]) -> list[ItemGroup]:
    """Return the bank's items, then the others, each group with the newest first."""
    order = sorted(range(len(items)), key=lambda n: (-items[n].line, n))
    found = []
    for in_bank in (True, False):
        places = [place for place in order if (items[place].version is not None) is in_bank]
        states = Counter(items[place].state for place in places)
        found.append(ItemGroup(in_bank, states, places[:ITEMS], len(places)))
    return [group for group in found if group.places]


class Extract(NamedTuple):
    """What the page of a long run holds of each list. Sums, answers and captions are of the whole run."""

    gates: Sequence[GateResult]
    columns: Sequence[PanelColumn]
    evaluations: Sequence[PanelColumn]
    shelves: Sequence[ItemGroup]
    moves: Sequence[CertifiedAccept]
    stream: Sequence[StreamPoint]
    lines: Sequence[LedgerLine]
    """The latest, and before them those in which verification found something."""
    data: int
    """Number of the first line whose data is there as well."""


def extract(run: RunReport) -> Extract:
    """Return the latest of each list of a run."""
    latest, room, data = run.ledger[-ROWS:], _DATA, len(run.ledger) + 1
    for line in reversed(latest):
        if (room := room - len(canonical(line.data))) < 0:
            break
        data = line.number
    return Extract(
        gates=run.gates[-ROWS:],
        columns=run.columns[-COLUMNS:],
        evaluations=run.evaluations[-COLUMNS:],
        shelves=group_items(run.items),
        moves=run.certificate.moves[-ROWS:],
        stream=run.stream[-ROWS:],
        lines=(*[line for line in run.ledger[:-ROWS] if line.problem][:ROWS], *latest),
        data=data,
    )


def render_page(runs: Sequence[RunReport], attempts: Mapping[str, Any]) -> str:
    """Return the page of one run, or of two to compare."""
    from markupsafe import Markup

    css, js = (
        (resources.files("valve_plugin.report") / "assets" / name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    parts = [_part(run, number, len(runs)) for number, run in enumerate(runs, 1)]
    two = len(runs) > 1
    page: str = (
        environment()
        .get_template("page.html.j2")
        .render(
            title=f"{runs[0].repo}: {' against '.join(run.label for run in runs)}" if two else runs[0].label,
            policy=policy(css, js),
            css=Markup(css),  # noqa: S704 (a file of this package)
            js=Markup(js),  # noqa: S704 (a file of this package)
            runs=parts,
            reports=runs,
            names={task: name for run in runs for task, name in run.tasks.items()},
            two=two,
            lesson=lesson,
            simulated=[run for run in runs if run.simulated],
            heeds=HEEDS_ITS_OWN if any(item.owned for run in runs if run.simulated for item in run.items) else "",
            apart=APART,
            figures=[
                {
                    "title": f.title,
                    "caption": f.caption,
                    "wide": Markup(page_svg(f)),  # noqa: S704 (all text is escaped there)
                    "narrow": Markup(page_svg(f, narrow=True)),  # noqa: S704
                }
                for f in figures(runs)
            ],
            versus=comparison_card(*runs) if two else None,
            sides=comparison_columns(runs),
            pairs=task_pairs(runs),
            rows=ROWS,
            attempts=json_for_script(attempts),
            version=__version__,
        )
    )
    return visible(page)


def _part(run: RunReport, number: int, of: int) -> dict[str, Any]:
    """Return the template values of one run."""
    shown = extract(run)
    return {
        "run": run,
        "prefix": "" if of == 1 else f"run{number}-",
        "suffix": "" if of == 1 else f", {run.label}",
        "answers": answers(run),
        "findings": findings(run),
        "origins": origins(run),
        "shown": shown,
        "lines": {line.number for line in shown.lines},
        "panel": heatmap(shown.columns),
        "holdout": heatmap(shown.evaluations),
        "latest": max((i.version for i in run.items if i.version is not None), default=None),
        "total": run_cost(run.spent),
        "all": sum_costs(run.spent),
        "apart": any(s.role in APART for s in run.spent),
        "proposed": {line.data.proposal.task_id: line for line in run.ledger if isinstance(line.data, Proposed)},
        "judged": {g.task_id: g for g in run.gates},
        "mixed_only": not run.stream_whole and any(not is_live(p.task_id) for p in run.stream),
        "faults": len(run.problems) + sum(bool(line.problem) for line in run.ledger),
    }


def policy(css: str, js: str) -> str:
    """Return a content security policy that allows only our style sheet and script, and style attributes in SVG."""
    style, script = (
        f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in (css, js)
    )
    return (
        f"default-src 'none'; script-src '{script}'; style-src-elem '{style}'; style-src-attr 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


# The details of single attempts: patch and trajectory digest, within a size limit


def attempt_details(runs: Iterable[tuple[RunReport, LocalStore]], budget: int) -> dict[str, dict[str, Any]]:
    """Return, by attempt id, the details of every attempt that the page of these runs links to.

    Args:
        runs: each run with its local store.
        budget: total characters of patches and digests. Source attempts of proposals come first, then those of
            accepting gates. Attempts beyond the budget have no texts.
    """
    found: dict[str, dict[str, Any]] = {}
    for run, local in runs:
        known = {a.id: a for a in local.attempts()}
        shown = extract(run)
        columns = (*sorted(shown.columns, key=lambda c: c.decision != "accept"), *shown.evaluations)
        rollouts = [
            *(r for shelf in shown.shelves for place in shelf.places for r in run.items[place].sources),
            *(r for column in columns for cell in column.cells for r in cell.rollouts),
            *(r for point in shown.stream for r in point.rollouts),
        ]
        for id_ in (r.attempt for r in rollouts):
            if id_ not in known or id_ in found:
                continue
            a = known[id_]
            found[id_] = {
                "task": printable(a.task_text, _TASK) or a.task_id,
                "ordinal": a.ordinal,
                "source": a.source,
                "outcome": a.outcome,
                "reason": printable(a.reason, _REASON),
                "steps": a.steps,
                "seconds": round(a.seconds, 1),
                "usd": round(a.cost_usd, 4),
                "model": a.model,
                "injected": [f"{kind}: {name}" for kind, name in a.context_items],
                "dropped": list(a.dropped_paths),
            }
            if a.check:
                found[id_] |= {"check": a.check, "printed": printable(a.check_output, _PATCH)}
            if budget > 0:
                try:
                    trajectory = local.trajectory(a)
                except BankError:  # the file was removed; the outcome is still known
                    trajectory = b""
                texts = {"patch": printable(a.patch, _PATCH), "trajectory": digest(trajectory, a, tokens=TOKENS)}
                budget -= sum(map(len, texts.values()))
                found[id_] |= texts
    return found
