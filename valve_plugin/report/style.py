"""The one style of all figures, which reads in black and white: state is shape and line, colour only helps.

Text from models or repositories never enters a figure; tables and captions carry it. What stands alone names its
repository, in plain characters.
"""

from __future__ import annotations

import io
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

from valve_plugin.errors import ConfigError
from valve_plugin.extras import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

INK, SOFT, GRID, ACCENT, SECOND, WARN = "#1a1c20", "#5f6670", "#d5d9de", "#0b57a4", "#7a4a00", "#a32020"
_VARIABLES = {INK: "ink", SOFT: "soft", GRID: "grid", ACCENT: "accent", SECOND: "second", WARN: "warn"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
}
_WIDTH = 9.0
_NARROW = 3.9
_LABEL = 20
"""Characters of a legend's label that fit twice on a phone."""
_MADE_BY = "figure made by valve-plugin"
"""In every file's metadata: what says so may be written again."""
_ENDS = 8_192
_NAME = 60
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Figure(NamedTuple):
    """One figure."""

    name: str
    title: str
    caption: str
    """What was measured, on what."""
    draw: Callable[[], Canvas]
    of: str = ""
    """Which bank at which version; a figure that stands alone says it."""
    message: str = ""
    """What it shows, in a sentence, for who cannot see it."""


def svg(figure: Figure) -> str:
    """Return the figure as an SVG document; equal numbers give equal bytes.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    return _named(figure, _drawn(figure))


def _drawn(figure: Figure, *, transparent: bool = True) -> str:
    out = io.StringIO()
    _save(figure, out, "svg", transparent=transparent)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _named(figure: Figure, text: str) -> str:
    """The document with its title and what it shows, which screen readers read out."""
    id_, title = f"figure-{figure.name}", f"{figure.title}: {figure.of}" if figure.of else figure.title
    said = f"{figure.caption} {figure.message}".strip()
    title, said = (escape(_CONTROLS.sub("?", part)) for part in (title, said))
    start = text.index(">") + 1
    root = text[:start].replace("<svg ", f'<svg role="img" aria-labelledby="{id_}-title {id_}-desc" ', 1)
    return f'{root}<title id="{id_}-title">{title}</title><desc id="{id_}-desc">{said}</desc>{text[start:]}'


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG image on white, 160 dots per inch."""
    out = io.BytesIO()
    _save(figure, out, "png")
    return out.getvalue()


def inline(figure: Figure) -> str:
    """Return the figure as SVG for the page: themed by its style sheet, and without ids nothing refers to."""
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", _drawn(figure), flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return _named(figure, text.replace("<svg ", '<svg focusable="false" ', 1))


def write(figure: Figure, file: str) -> None:
    """Write the figure with title and caption, to stand alone: an .svg, .pdf or .png.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written, or is another's.
    """
    kind = Path(file).suffix.removeprefix(".")
    if kind not in ("svg", "pdf", "png"):
        raise ConfigError(f"{file} is no figure this can write; name a file ending in .svg, .pdf or .png")
    try:
        require_own(Path(file))
        if kind == "svg":
            Path(file).write_text(_named(figure, _drawn(alone(figure), transparent=False)), encoding="utf-8")
        else:
            _save(alone(figure), file, kind, transparent=False)
    except OSError as e:
        raise ConfigError(f"{file}: {e}; name a file in a folder that exists") from e


def require_own(path: Path) -> None:
    """Require a place where no file is, or an empty one, or a figure that was written here: it may be written again.

    Raises:
        ConfigError: there is another file.
    """
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            start = file.read(_ENDS)
            file.seek(max(0, size - _ENDS))  # where a PDF says it
            if size == 0 or _MADE_BY.encode() in start + file.read():
                return
    raise ConfigError(f"{path}: exists and is no figure of valve's; name another place, or remove it first")


def named(repo: str, version: int) -> str:
    """Return `owner/name, version 3`, of a name that may be anything."""
    return f"{re.sub(r'[^A-Za-z0-9._/ -]', '?', repo)[:_NAME]}, version {version}"


def alone(figure: Figure) -> Figure:
    """Return the figure with its title and caption in it: what a file needs that travels without its page."""
    return figure._replace(draw=lambda: _captioned(figure))


def narrow(figure: Figure) -> Figure:
    """Return the figure as wide as a phone, its legends above the axes in two columns."""
    return figure._replace(name=f"{figure.name}-narrow", draw=lambda: _narrowed(figure))


def _narrowed(figure: Figure) -> Canvas:
    canvas = figure.draw()
    rows = 0
    for axes in canvas.axes:
        if shown := axes.get_legend():
            longest = max(len(label.get_text()) for label in shown.get_texts())
            columns = 1 if longest > _LABEL else 2
            legend = axes.legend(
                loc="lower left",
                bbox_to_anchor=(0, 1),
                fontsize=9.5,
                ncols=columns,
                columnspacing=1.0,
                handlelength=1.6,
            )
            rows += -(-len(legend.get_texts()) // columns)
    canvas.set_size_inches(_NARROW, 0.8 * canvas.get_figheight() + 0.2 * rows)
    return canvas


def _captioned(figure: Figure) -> Canvas:
    canvas = figure.draw()
    canvas.suptitle(f"{figure.title}: {figure.of}" if figure.of else figure.title, x=0.01, ha="left", fontsize=11)
    canvas.supxlabel(textwrap.fill(figure.caption, 125), x=0.01, ha="left", fontsize=8, color=SOFT)
    return canvas


def _save(figure: Figure, out: Any, kind: str, *, transparent: bool | None = None) -> None:
    try:
        import matplotlib
    except ImportError as e:
        how = install("report", anywhere=True)  # a page that goes to others says it
        raise ConfigError(f"figures are drawn by matplotlib, which is not installed; run: {how}") from e
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": figure.name}):
        canvas = figure.draw()
        marks: dict[str, dict[str, Any]] = {
            "svg": {"Date": None, "Creator": _MADE_BY},
            "pdf": {"CreationDate": None, "Creator": _MADE_BY},
            "png": {"Software": _MADE_BY},
        }
        given: dict[str, Any] = {"metadata": marks[kind], "dpi": 160 if kind == "png" else None}
        clear = kind == "svg" if transparent is None else transparent
        canvas.savefig(out, format=kind, transparent=clear, bbox_inches="tight", pad_inches=0.05, **given)


def new(height: float, **parts: Any) -> tuple[Canvas, Any]:
    """Return an empty figure so many inches high, and its axes."""
    from matplotlib.figure import Figure as Canvas  # no pyplot: nothing global, no display

    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    return canvas, canvas.subplots(**parts)


def swatch(axes: Any, colour: str, hatch: str, label: str) -> None:
    """Give a hatched area its place in the legend: framed, and denser than the area, which is much larger."""
    axes.fill_between([], [], facecolor="none", edgecolor=colour, hatch=2 * hatch, linewidth=1, label=label)


def band(axes: Any, left: float, right: float, low: float, high: float, colour: str, hatch: str = "") -> None:
    """Draw what is certified: from what is guaranteed, the line below, to what was measured."""
    axes.fill_between([left, right], low, high, facecolor=colour, alpha=0.18, linewidth=0)
    if hatch:
        axes.fill_between([left, right], low, high, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0)
    axes.plot([left, right], [low, low], color=colour, linewidth=2, solid_capstyle="butt")
