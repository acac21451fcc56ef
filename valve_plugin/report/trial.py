"""The answer of `valve try` in words, and its page. Every value on the page is escaped by Jinja."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from valve_plugin import __version__
from valve_plugin.bank.scripted_bank import HEEDS_ITS_OWN
from valve_plugin.evolve.trial import Means, Sides, TaskResult, TrialResult
from valve_plugin.report.figures import DASHED, SOFT, Area, Chart, Figure, Line, page_svg
from valve_plugin.report.page import policy
from valve_plugin.report.templates import environment, task_name
from valve_plugin.words import one_line, plural, points, visible

_SHOWN = 6
"""Tasks shown that a text fixed or broke."""


def render_trial_page(
    result: TrialResult,
    name: str,
    other: str,
    sides: Sides,
    *,
    negligible: float,
    simulated: bool,
    names: Mapping[str, str] = {},
) -> str:
    """Return the page of a trial: the answer, its course, every task by its name and both texts."""
    from markupsafe import Markup

    css = (resources.files("valve_plugin.report") / "assets" / "page.css").read_text(encoding="utf-8")
    rows = []
    if result.without and result.with_text:
        rows = measured_rows(result.without, result.with_text, result.interval, simulated=simulated)
    page: str = (
        environment()
        .get_template("trial.html.j2")
        .render(
            title=verdict(result, name, other, negligible),
            policy=policy(css, ""),
            css=Markup(css),  # noqa: S704 (a file of this package)
            result=result,
            heads=[other or "without", name if other else "with"],
            rows=rows,
            notes=footnotes(result, name, simulated=simulated),
            course=[Markup(page_svg(course(result), narrow=narrow)) for narrow in (False, True)]  # noqa: S704 (escaped there)
            if len(result.course) > 1
            else [],
            texts=[(other, sides.without.text), (name, sides.with_text.text)],
            simulated=simulated,
            names=names,
            version=__version__,
        )
    )
    return visible(page)


def course(result: TrialResult) -> Figure:
    """Return the difference and its interval after each pair, as a figure."""
    seen, low, high = ([(float(row[0]), row[n]) for row in result.course] for n in (1, 2, 3))
    pairs = seen[-1][0]
    chart = Chart(
        [Area([*low, *high[::-1]], "part"), Line([(0, 0), (pairs, 0)], SOFT, DASHED, 1), Line(seen)],
        (0, pairs),
        (-1, 1),
        200,
        "pairs",
        "difference, points",
        y_ticks={n / 100: f"{n:+d}" if n else "0" for n in range(-100, 101, 50)},
    )
    caption = "The difference in points after each pair (line) and its interval (band); dashed: no difference."
    return Figure("course", "The difference and its interval after each pair", caption, [chart])


def verdict(result: TrialResult, name: str, other: str, negligible: float) -> str:
    """Return the answer in one sentence."""
    low, high = (points(end).removesuffix(" points") for end in result.interval)
    than = f", compared with {other}" if other else ""
    tasks = f"{'this' if result.tasks == 1 else 'these'} {plural(result.tasks, 'task')}"
    shown = f"{points(result.counts.difference)} on {tasks}, between {low} and {high}"
    match result.answer:
        case "helps":
            return f"{name} helps{than}: {shown}"
        case "harms":
            return f"{name} harms{than}: {shown}"
        case "no_difference":
            return f"{name} makes no difference larger than {100 * negligible:g} points{than}: {shown}"
    return f"Not clear whether {name} helps or harms{than}: {shown}"


def footnotes(result: TrialResult, name: str, *, simulated: bool = False) -> list[str]:
    """Return what the answer rests on, what it is about, and what to do next."""
    counts, alike = result.counts, result.alike
    better, worse, same = (int(count) for count in counts)
    low, high = (points(end).removesuffix(" points") for end in alike)
    drawn = f"{plural(int(counts.total), 'pair')} ran, of {result.planned} at most"
    left_out = f"; {plural(result.sealed, 'task')} of the holdout left out" if result.sealed else ""
    lines = [
        f"{drawn}: {name} did better in {better}, worse in {worse}, the same in {same}. Each is drawn at random from "
        f"{plural(result.tasks, 'task')}: {len(result.by_task)} came up so far{left_out}.",
        "The interval is about these tasks, and stays valid however often one looks. For tasks like these, if they "
        f"are a random sample: between {low} and {high}.",
    ]
    if result.stopped:
        lines.append(f"stopped: {result.stopped}. Nothing is lost: the same command continues from here.")
    if result.lost:
        lines.append(
            f"{plural(len(result.lost), 'pair')} left out, because host or provider failed ({result.lost[0]}): "
            "the same command tries them again."
        )
    if simulated:
        lines.append(HEEDS_ITS_OWN)
    elif result.answer == "unclear" and result.needed:
        more = max(1, result.needed - int(counts.total))
        lines.append(
            f"About {2 * more:,} more rollouts would make it clear, if it goes on like this: --pairs {result.needed}. "
            "More tasks tell more than more rollouts of the same."
        )
    return lines


def measured_rows(
    without: Means, with_text: Means, ends: Sequence[float], *, simulated: bool = False
) -> list[list[str]]:
    """Return what was measured as (name, without, with the text, difference); all but the rate are per rollout.

    In a simulation neither time nor money says anything about the text.
    """
    low, high = (points(end).removesuffix(" points") for end in ends)
    passed = f"{points(with_text.passed - without.passed)}, between {low} and {high}"
    rows = [["pass rate", f"{100 * without.passed:.1f} %", f"{100 * with_text.passed:.1f} %", passed]]
    for field, label, form in _MEANS[: 2 if simulated else None]:
        before, after = getattr(without, field), getattr(with_text, field)
        if before is None or after is None:
            rows.append([label, "unknown", "unknown", ""])
        else:
            share = f" ({100 * (after / before - 1):+.0f} %)" if before else ""
            change = ("-" if after < before else "+") + form.format(abs(after - before))
            rows.append([label, form.format(before), form.format(after), change + share])
    return rows


_MEANS = (
    ("tokens", "tokens", "{:,.0f}"),
    ("steps", "steps", "{:.1f}"),
    ("seconds", "seconds", "{:,.1f}"),
    ("usd", "dollars", "${:.3f}"),
)
"""Field of `Means`, its name, and how it is written; all are per rollout."""


def moved_tasks(rows: Sequence[TaskResult], sign: int, names: Mapping[str, str] = {}) -> str:
    """Return the tasks that passed more (or less) often with the text, those that moved most first."""
    moved = [row for row in (rows if sign > 0 else rows[::-1]) if (row.with_text - row.without) * sign > 0]
    if not moved:
        return "none"
    shown = [
        f"{one_line(task_name(r.task_id, names))}: {r.without}/{r.pairs} to {r.with_text}/{r.pairs}" for r in moved
    ]
    more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
