"""The paper's figures: evolution curves with bank sizes, and peak against final. Needs the extra `report`.

Source: fig:evolution-curve-main, fig:drawdown-main, fig:bank-growth-example, fig:ablation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from valve_plugin.errors import ConfigError
from valve_plugin.experiment.results import Row

LABEL = "SIMULATION of the solver"


def draw(rows: Sequence[Row], out: Path, *, simulated: bool) -> list[Path]:
    """Write two SVG files for each repository and model; equal rows give equal bytes.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as e:
        raise ConfigError("figures need matplotlib: pip install 'valve-plugin[report]'") from e
    matplotlib.use("svg")
    from matplotlib import pyplot

    made = []
    with matplotlib.rc_context({"svg.hashsalt": "valve", "svg.fonttype": "none", "font.size": 9}):
        for repository, model in dict.fromkeys((r.repository, r.model) for r in rows):
            here = [r for r in rows if (r.repository, r.model) == (repository, model)]
            note = f" ({LABEL})" if simulated else ""
            for name, fill in (("curves", _curves), ("retention", _retention)):
                figure = fill(pyplot, here)
                figure.suptitle(f"{repository}, {model}{note}", fontsize=10)
                path = out / f"{repository}-{model}-{name}.svg"
                figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
                pyplot.close(figure)
                made.append(path)
    return made


def _curves(pyplot: Any, rows: Sequence[Row]) -> Any:
    """Rate and bank size over evolution steps, one line per condition of the first seed."""
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True)
    first = [r for r in rows if r.seed == rows[0].seed]
    for index, row in enumerate(first):
        marker = "^so"[index // 10 % 3]  # there are ten colors
        style = {"color": f"C{index % 10}", "marker": marker, "markersize": 4, "label": row.condition}
        steps = [c.step for c in row.curve]
        above.plot(steps, [c.rate[0] for c in row.curve], **style)
        below.plot(steps, [c.items for c in row.curve], linestyle="--", **style)
    above.set_ylabel("resolved on the holdout (%)")
    below.set_ylabel("items in the bank")
    below.set_xlabel("evolution steps")
    above.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def _retention(pyplot: Any, rows: Sequence[Row]) -> Any:
    """Final rate as a bar, peak as a tick above it: what is between them was lost."""
    figure, axes = pyplot.subplots(figsize=(7, 3.4))
    names = list(dict.fromkeys(r.condition for r in rows))
    for index, name in enumerate(names):
        group = [r for r in rows if r.condition == name]
        final = sum(r.final[0] for r in group) / len(group)
        best = sum(r.peak[0] for r in group) / len(group)
        axes.bar(index, final, color="C0", alpha=0.7)
        axes.hlines(best, index - 0.4, index + 0.4, color="C3")
    axes.axhline(sum(r.base[0] for r in rows) / len(rows), linestyle=":", color="black", linewidth=1)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylabel("resolved on the holdout (%)")
    axes.set_title("bar: final, red: peak (selected on the holdout), dotted: step 0", fontsize=8)
    return figure
