"""The screen of a run, drawn from its view into whatever space there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from valve_plugin.cli.view import View, Waiting, eta
from valve_plugin.theory.budget import Role, Spent
from valve_plugin.words import plural

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live
    from rich.table import Table

_BAR = 16
_WIDE = 66
"""Columns from which there is room for bars."""
_STACKED = 40
"""Columns below which labels have no column of their own."""
_ALL, _NARROW = 1_000, 60
"""Characters of what a provider said: everywhere, and in a narrow screen."""
_FRAME = 4
"""Columns of the frame around the figures."""
_CAN_WAIT = ("by role", "accepts", "panel", "stream")
"""Rows that a low screen does without, in this order."""


def rows(view: View, now: float, *, narrow: bool = False) -> list[tuple[str, str]]:
    """Return the screen's figures as (label, text); `narrow` leaves out what only looks nice."""
    bar = "" if narrow else _bar(view.position, view.of) + " "
    mixed = f"mixed {view.mixed} of {view.max_mixed}" if view.max_mixed else f"mixed {view.mixed}"
    cap = "" if view.cap is None else f" of at most {view.cap}" + ("" if narrow else ", floor((1 - F0)/rho)")
    score = "not measured yet"
    if view.panel_passes is not None and view.panel_rollouts:
        rate = 100 * view.panel_passes / view.panel_rollouts
        score = f"{view.panel_passes} of {view.panel_rollouts} passed, {rate:.1f} %"
        if view.start_passes is not None:
            score += f"; first {view.start_passes}"
    found = [
        ("stream", f"{bar}task {view.position} of {view.of}   {mixed}"),
        ("accepts", f"{view.accepts}{cap}   version {view.version}"),
        ("panel", score),
        _going_on(view, narrow=narrow),
        ("spent", _spent(view, now)),
        ("by role", ", ".join(_role(role, s) for role, s in view.spent.items()) or "nothing"),
    ]
    if view.waiting and not view.ended:
        found.append(("waiting", _waiting(view.waiting, now, _NARROW if narrow else _ALL)))
    rest = eta(view, now)
    left = "" if view.ended else "unknown yet" if rest is None else f"{clock(rest)} at this pace"
    found.append(("ended", view.ended) if view.ended else ("left", f"{left}   workers {view.workers}"))
    return found


def screen(view: View, now: float) -> RenderableType:
    """Return the screen, for any size; what came from models and repositories is plain text.

    A narrow one has shorter figures that wrap, a low one first loses the latest lines and then what can wait. That it
    is a SIMULATION, what was spent, and what is waited for stay.
    """
    return Screen(view, now)


def live(view: Callable[[], View], *, stderr: bool, transient: bool) -> Live:
    """Return the screen of a view that changes, drawn twice a second from its start to its stop."""
    import time

    from rich.console import Group
    from rich.live import Live

    from valve_plugin.cli.output import console

    return Live(
        # Ctrl-C is echoed where the cursor stands: on a line of its own it breaks nothing that is erased later.
        get_renderable=lambda: Group(screen(view(), time.time()), ""),
        console=console(stderr=stderr),
        refresh_per_second=2,
        transient=transient,
    )


class Screen(NamedTuple):
    """Draws itself into whatever space there is."""

    view: View
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """See rich's console protocol."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        from valve_plugin.cli.output import clean

        width = options.max_width
        title, figures = self._figures(width)
        inside = options.update(width=max(1, options.max_width - _FRAME), height=None)

        def height() -> int:
            return len(console.render_lines(_grid(figures, width), inside)) + 2

        for label in ("", *_CAN_WAIT, *self._last_to_go(figures)):
            if height() < console.height:
                break
            figures = [(name, self._brief(name, text)) for name, text in figures if name != label]
        shown = self.view.lines[-max(0, console.height - height() - 2) :] if height() + 2 < console.height else ()
        latest = Text("\n".join(clean(text) for text in shown), style="dim", no_wrap=True, overflow="ellipsis")
        grid = _grid(figures, width)
        yield Panel(Group(grid, Text(), latest) if shown else grid, title=Text(title), title_align="left")

    def _figures(self, width: int) -> tuple[str, list[tuple[str, str]]]:
        """The title, and the rows; what does not fit into the title is a row of its own."""
        from rich.cells import cell_len

        view = self.view
        figures = rows(view, self.now, narrow=width < _WIDE)
        took = clock(self.now - view.started)
        title = " ".join(part for part in ("valve", view.repo, took, view.note) if part)
        room = width - _FRAME - 2
        if cell_len(title) <= room:
            return title, figures
        fitting = (t for t in (f"valve {view.note}".strip(), view.note, view.note[:3]) if cell_len(t) <= room)
        return next(fitting, ""), [("run", ", ".join(part for part in (view.repo, took) if part)), *figures]

    def _brief(self, label: str, text: str) -> str:
        """What a row says where there is no room for what a provider said."""
        waiting = self.view.waiting
        return _waiting(waiting, self.now, 0) if waiting and label == "waiting" else text

    def _last_to_go(self, figures: Iterable[tuple[str, str]]) -> list[str]:
        """What a very low screen does without, too: at last even what was spent, where the run waits."""
        waits = ["spent"] if self.view.waiting and not self.view.ended else []
        return [label for label, _ in figures if label not in (*_CAN_WAIT, "spent", "waiting", "ended")] + waits


def _grid(figures: Iterable[tuple[str, str]], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    from valve_plugin.cli.output import clean

    grid = Table.grid(padding=(0, 2))
    if width < _STACKED:
        grid.add_column(overflow="fold")
        for label, text in figures:
            grid.add_row(Text.assemble((label, "bold"), " ", clean(text)))
        return grid
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in figures:
        grid.add_row(Text(label), Text(clean(text)))
    return grid


def clock(seconds: float) -> str:
    """Return seconds as h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def spent_told(role: Role, spent: Spent) -> str:
    """Return what a role took; a cost that nobody counted is unknown and not nothing."""
    what = plural(spent.rollouts, "call" if role == "extractor" else "rollout")
    return f"{what} ${spent.usd:.2f}" if spent.usd else f"{what} (cost unknown)"


def _role(role: Role, spent: Spent) -> str:
    return f"{role} ${spent.usd:.2f}" if spent.usd else f"{role} {spent_told(role, spent)}"


def _waiting(waiting: Waiting, now: float, room: int) -> str:
    """What is waited for: first when it is tried again, then what the provider said, cut to `room` characters."""
    next_in = round(waiting.until - now)
    said = waiting.said if len(waiting.said) <= room else f"{waiting.said[: room - 1]}…" if room else ""
    when = f"next in {next_in} s" if next_in > 0 else "asking again"
    return f"{waiting.tried}, {when}" + (f": {said}" if said else "")


def _going_on(view: View, *, narrow: bool) -> tuple[str, str]:
    judging = view.judging
    if judging is None:
        return ("now", view.now) if view.now else ("gate", "none is running")
    bar = "" if narrow else _bar(judging.done, judging.rollouts) + " "
    done = f"{bar}{judging.done} of {judging.rollouts}"
    if judging.wanted is None:
        return judging.what, f"{done}   {judging.passed} passed"
    passed = judging.reused + judging.passed
    return judging.what, f"{done}   {passed} passed, {judging.wanted} needed, {judging.possible} possible"


def _spent(view: View, now: float) -> str:
    limits, total = view.limits, view.total
    unknown = [role for role, s in view.spent.items() if not s.usd]
    usd = f"${total.usd:.2f}" if total.usd or not view.spent else "cost unknown"
    usd = f"at least {usd}" if total.usd and unknown else usd
    usd += f" of ${limits['usd']:.2f}" if limits.get("usd") else ""
    ran = plural(total.rollouts, "rollout") + (f" of {limits['rollouts']:.0f}" if limits.get("rollouts") else "")
    hours = f", {clock(now - view.started)} of {clock(3600 * limits['hours'])}" if limits.get("hours") else ""
    return f"{usd}, {ran}{hours}"


def _bar(done: int, of: int) -> str:
    full = round(_BAR * min(done, of) / of) if of else 0
    return "#" * full + "." * (_BAR - full)
