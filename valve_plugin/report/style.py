"""The style of all figures. They are readable in black and white: shapes and lines show the state.

Text from models or repositories never enters a figure. A figure in its own file names its repository, in plain
characters.
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
from valve_plugin.extras import install_command

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
"""Longest label, in characters, of a legend with two columns on a phone."""
_MADE_BY = "figure made by valve-plugin"
"""Mark in the metadata of every file; a file with it may be overwritten."""
_ENDS = 8_192
_NAME = 60
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Figure(NamedTuple):
    """One figure."""

    name: str
    title: str
    caption: str
    """What was measured, and on which tasks."""
    draw: Callable[[], Canvas]
    of: str = ""
    """Bank and version, shown in a figure in its own file."""
    message: str = ""
    """What the figure shows, as text for screen readers."""


def svg(figure: Figure) -> str:
    """Return the figure as an SVG document; equal numbers give equal bytes.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    return _accessible(figure, _svg_text(figure))


def _svg_text(figure: Figure, *, transparent: bool = True) -> str:
    out = io.StringIO()
    _save(figure, out, "svg", transparent=transparent)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _accessible(figure: Figure, text: str) -> str:
    """Return the SVG document with a title and a description for screen readers."""
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


def page_svg(figure: Figure) -> str:
    """Return the figure as SVG for the page, with the colours of its style sheet and without unused ids."""
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", _svg_text(figure), flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return _accessible(figure, text.replace("<svg ", '<svg focusable="false" ', 1))


def write_figure(figure: Figure, file: str) -> None:
    """Write the figure with title and caption to its own .svg, .pdf or .png file.

    Raises:
        ConfigError: matplotlib is not installed, the file cannot be written, or it is not a figure of valve's.
    """
    kind = Path(file).suffix.removeprefix(".")
    if kind not in ("svg", "pdf", "png"):
        raise ConfigError(f"{file}: valve cannot write figures of this type; name a file ending in .svg, .pdf or .png")
    try:
        require_replaceable(Path(file))
        if kind == "svg":
            Path(file).write_text(
                _accessible(figure, _svg_text(with_caption(figure), transparent=False)), encoding="utf-8"
            )
        else:
            _save(with_caption(figure), file, kind, transparent=False)
    except OSError as e:
        raise ConfigError(f"{file}: {e}; name a file in a folder that exists") from e


def require_replaceable(path: Path) -> None:
    """Check that a path is free, empty, or a figure that valve wrote, so that it may be overwritten.

    Raises:
        ConfigError: another file is there.
    """
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            start = file.read(_ENDS)
            file.seek(max(0, size - _ENDS))  # a PDF has its metadata at the end
            if size == 0 or _MADE_BY.encode() in start + file.read():
                return
    raise ConfigError(f"{path}: this file exists and is not a figure of valve's; name another file or remove it first")


def plain_name(repo: str, version: int) -> str:
    """Return `owner/name, version 3`, with other characters than plain ones replaced."""
    return f"{re.sub(r'[^A-Za-z0-9._/ -]', '?', repo)[:_NAME]}, version {version}"


def with_caption(figure: Figure) -> Figure:
    """Return the figure with its title and caption inside, for a file of its own."""
    return figure._replace(draw=lambda: _draw_with_caption(figure))


def narrow_figure(figure: Figure) -> Figure:
    """Return the figure in the width of a phone, with its legends above the axes."""
    return figure._replace(name=f"{figure.name}-narrow", draw=lambda: _draw_narrow(figure))


def _draw_narrow(figure: Figure) -> Canvas:
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


def _draw_with_caption(figure: Figure) -> Canvas:
    canvas = figure.draw()
    canvas.suptitle(f"{figure.title}: {figure.of}" if figure.of else figure.title, x=0.01, ha="left", fontsize=11)
    canvas.supxlabel(textwrap.fill(figure.caption, 125), x=0.01, ha="left", fontsize=8, color=SOFT)
    return canvas


def _save(figure: Figure, out: Any, kind: str, *, transparent: bool | None = None) -> None:
    try:
        import matplotlib
    except ImportError as e:
        how = install_command("report", anywhere=True)  # the message may be on a page for other readers
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


def new_canvas(height: float, **parts: Any) -> tuple[Canvas, Any]:
    """Return an empty figure of this height in inches, and its axes."""
    from matplotlib.figure import Figure as Canvas  # no pyplot: nothing global, no display

    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    return canvas, canvas.subplots(**parts)


def show_percent(axes: Any, label: str, top: float = 1.02) -> None:
    """Set the y axis to a share from 0 to 100 %."""
    axes.set_ylim(-0.02, top)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylabel(label)


def draw_band(axes: Any, left: float, right: float, low: float, high: float, colour: str) -> None:
    """Draw a certificate as a band from the guaranteed value (the line at the bottom) to the measured value."""
    axes.fill_between([left, right], low, high, facecolor=colour, alpha=0.18, linewidth=0)
    axes.plot([left, right], [low, low], color=colour, linewidth=2, solid_capstyle="butt")
