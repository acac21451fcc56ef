"""One self-contained HTML page: no request, no server, and no script but its own.

Jinja escapes every value; what is marked as markup here is made here, from parts that are escaped themselves.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin import __version__
from valve_plugin.errors import ConfigError
from valve_plugin.report.figures import figures
from valve_plugin.report.overview import duration, overview, points
from valve_plugin.report.run import Cell, Column, Proposed, Run, total
from valve_plugin.report.style import inline
from valve_plugin.report.words import counted

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


_PAIRINGS = {
    "paper": "a candidate's rollouts get what retrieval finds in the current bank, and everything that is proposed.",
    "deployed": (
        "a candidate's rollouts get what retrieval would find in the bank with the proposal in it; tasks whose context "
        "stays the same keep their outcomes."
    ),
}


class HeatCell(NamedTuple):
    """One cell of a heatmap, ready to show."""

    text: str
    style: str
    attempts: str
    """Ids of the attempts kept, with blanks between; empty: nothing to open."""
    column: str


class HeatRow(NamedTuple):
    """One panel task."""

    task: str
    short: str
    cells: list[HeatCell]


def page(runs: Sequence[Run], attempts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of one run, or of two compared.

    Args:
        attempts: attempt id -> what to show of it.

    Where matplotlib is not installed the page has no figures, and says how to get them.
    """
    from markupsafe import Markup

    css, js = _asset("page.css"), _asset("page.js")
    parts = [_part(run, number, len(runs)) for number, run in enumerate(runs)]
    drawn, missing = _drawn(runs)
    return _environment().get_template("page.html.j2").render(
        title=runs[0].label if len(runs) == 1 else f"{runs[0].repo}: {' against '.join(run.label for run in runs)}",
        simulated=any(run.simulated for run in runs),
        policy=_policy(css, js),
        css=Markup(css),  # noqa: S704 (a file of this package)
        js=Markup(js),  # noqa: S704 (a file of this package)
        runs=parts,
        pairings=_PAIRINGS,
        figures=drawn,
        missing=missing,
        states=sorted({item.state for run in runs for item in run.items}),
        types=sorted({line.type for run in runs for line in run.ledger}),
        broken=sum(part["broken"] for part in parts),
        compared=compared(runs) if len(runs) > 1 else [],
        attempts=_json(attempts),
        version=__version__,
    )  # fmt: skip


def heat(run: Run) -> list[HeatRow]:
    """Return the heatmap's rows: every task of a panel, those that fail most first."""
    cells = [{cell.task_id: cell for cell in column.cells} for column in run.columns]
    tasks = dict.fromkeys(task for column in cells for task in column)

    def share(task: str) -> float:
        seen = [r.outcome == "resolved" for column in cells if task in column for r in column[task].rollouts]
        return sum(seen) / len(seen)

    return [
        HeatRow(task, short(task), [_heat_cell(run.columns[i], column.get(task)) for i, column in enumerate(cells)])
        for task in sorted(tasks, key=share)
    ]


def compared(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return rows of (what, one value for each run)."""
    table = {
        "repository": [r.repo for r in runs],
        "models": [", ".join(r.models) or "-" for r in runs],
        "panel": [f"{p.tasks} x {p.rollouts}, margin {p.rho}" if (p := r.panel) else "-" for r in runs],
        "stream tasks": [str(len(r.stream)) for r in runs],
        "resolved in the stream": [_resolved(r) for r in runs],
        "accepts of gates": [
            f"{sum(g.decision == 'accept' for g in r.gates)} of {len(r.gates)}" if r.gated else "no gate" for r in runs
        ],
        "bank": [f"{counted(r.principles, 'principle')}, {counted(r.skills, 'skill')}" for r in runs],
        "panel passes, first → last": [_first_last(r) for r in runs],
        "holdout rate, first → last": [_read(r) for r in runs],
        "time of rollouts, evaluation and measurement apart": [
            duration(total(r.spent).hours) if r.spent else "not recorded" for r in runs
        ],
        "US dollars": [f"{usd:.2f}" if (usd := total(r.spent).usd) else "not recorded" for r in runs],
    }
    return list(table.items())


class Gated(NamedTuple):
    """What all gates together ran."""

    ran: int
    total: int
    said: str


def gated(run: Run) -> Gated:
    """Return the sums of the gates' rollouts, and what became of the rest."""
    ran, of, kept, beyond = (sum(getattr(g, name) for g in run.gates) for name in ("ran", "total", "kept", "beyond"))
    saved = of - ran - kept - beyond
    said = f"{saved} ({saved / of:.0%}) not needed: the verdict was certain" if of and saved else ""
    more = f"{beyond} more were under way by then" if beyond else ""
    return Gated(ran, of, "; ".join(filter(None, [f"{kept} kept from before" if kept else "", said, more])))


def signed(rate: float) -> str:
    """Return a rate difference in points, without the word."""
    return f"{100 * rate:+.1f}"


def short(task_id: str) -> str:
    """Return a task id without the repository and commit that SWE-smith's begin with."""
    return task_id.rpartition(".")[2] or task_id


def _part(run: Run, number: int, of: int) -> dict[str, Any]:
    return {
        "run": run,
        "prefix": "" if of == 1 else f"run{number + 1}-",
        "suffix": "" if of == 1 else f", {run.label}",
        "overview": overview(run),
        "heat": {"rows": heat(run)},
        "originals": {(i.kind, i.name): i for i in run.items if i.markdown and not i.twin},
        "linked": [" ".join(r.attempt for r in p.rollouts if r.attempt) for p in run.stream],
        "gated": gated(run),
        "total": total(run.spent) if run.spent else None,
        "broken": len(run.problems) + sum(bool(line.problem) for line in run.ledger),
    }


def _drawn(runs: Sequence[Run]) -> tuple[list[dict[str, str]], str]:
    """The figures, or why there are none."""
    from markupsafe import Markup

    try:
        return [
            {"title": f.title, "caption": f.caption, "svg": Markup(inline(f))}  # noqa: S704 (matplotlib escapes text)
            for f in figures(runs)
        ], ""
    except ConfigError as e:
        return [], str(e)


def _heat_cell(column: Column, cell: Cell | None) -> HeatCell:
    if cell is None:
        return HeatCell("·", "none", "", column.label)
    passed, ran = sum(r.outcome == "resolved" for r in cell.rollouts), len(cell.rollouts)
    lost = any(r.outcome == "errored" for r in cell.rollouts)
    style = "lost" if lost else "full" if passed == ran else "part" if passed else "zero"
    ids = " ".join(r.attempt for r in cell.rollouts if r.attempt)
    text = f"{passed}/{ran}{'!' if lost else ''}"
    return HeatCell(text, f"{style} kept" if cell.kept else style, ids, column.label)


def _resolved(run: Run) -> str:
    graded = sum(p.graded for p in run.stream)
    passed = sum(p.passed for p in run.stream)
    return f"{passed} of {graded} ({passed / graded:.0%})" if graded else "-"


def _first_last(run: Run) -> str:
    if not run.scores:
        return "-"
    first, last = run.scores[0], run.scores[-1]
    return f"{first.passes}/{first.rollouts} → {last.passes}/{last.rollouts}"


def _read(run: Run) -> str:
    """The evaluated versions' rates; lower ends where rollouts errored."""
    if not run.checkpoints:
        return "not read"
    first, last = run.checkpoints[0], run.checkpoints[-1]
    tasks = counted(last.tasks, "task")
    if first.version == last.version:
        return f"{last.low:.1%} at version {last.version}, {tasks}"
    return f"{first.low:.1%} → {last.low:.1%}, {tasks}"


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
        "inert": inert,
        "pretty": pretty,
        "difference": difference,
    }
    return environment


def inert(markdown: str) -> Markup:
    """Return Markdown as HTML in which nothing loads, leads anywhere or runs: tags, links and images stay text."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
    return Markup(parser.render(markdown))  # noqa: S704 (the parser escapes all text; tests attack it)


def difference(item: Proposed, twin: Proposed) -> str:
    """Return a unified diff from one item's text to another's."""
    before, after = (f"{i.text}\n\n{i.markdown}".splitlines() for i in (twin, item))
    return "\n".join(difflib.unified_diff(before, after, twin.name, item.name, lineterm=""))


def pretty(data: Any) -> str:
    """Return JSON to read: nested, with each small part on one line."""
    return _pretty(data, "")


def _pretty(data: Any, indent: str) -> str:
    flat = json.dumps(data, ensure_ascii=False)
    if len(flat) + len(indent) <= 150 or not isinstance(data, dict | list) or not data:
        return flat
    deeper = indent + "  "
    if isinstance(data, dict):
        rows = [f"{deeper}{json.dumps(k)}: {_pretty(v, deeper)}" for k, v in data.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _pretty(v, deeper) for v in data) + f"\n{indent}]"


def _json(data: Any) -> Markup:
    """Return JSON for a script element: nothing in it can end the element or start another."""
    from markupsafe import Markup

    text = json.dumps(data, separators=(",", ":"))  # ASCII only
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (escaped above)


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
