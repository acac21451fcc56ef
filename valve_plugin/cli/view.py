"""What a person sees of a run: a pure fold of its events. `screen` draws the result.

`valve evolve` shows it while it runs, `valve evolve --attach` from another terminal: both fold the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from valve_plugin.cli.lines import line
from valve_plugin.theory.budget import Role, Spent, by_role
from valve_plugin.theory.convergence import accept_cap
from valve_plugin.words import plural

SIMULATION = "SIMULATION"
"""The note of a run with the scripted model."""
LINES = 6
"""Latest events shown below the figures."""
_CAME_THROUGH = ("extracted", "run_started", "paused")
"""Events that end a wait, beside rollouts that are not errored."""


class Judging(NamedTuple):
    """The panel run that goes on: a baseline or a gate."""

    what: str
    rollouts: int
    """To run; `reused` outcomes stand beside them."""
    wanted: int | None = None
    """Passes an accept takes; None: a baseline, which wants nothing."""
    done: int = 0
    passed: int = 0
    reused: int = 0
    """Passes carried over because the context did not change."""
    role: Role = "gate"
    """What its rollouts are paid for."""

    @property
    def possible(self) -> int:
        """Passes the candidate can still reach."""
        return self.reused + self.passed + self.rollouts - self.done


class Waiting(NamedTuple):
    """A wait before a failed call or rollout is tried again."""

    said: str
    tried: str
    """Which try of how many."""
    until: float
    """Seconds since the epoch."""


class View(NamedTuple):
    """Everything the screen shows."""

    repo: str = ""
    note: str = ""
    """SIMULATION, where it is one."""
    workers: int = 1
    started: float = 0.0
    """Seconds since the epoch; 0: nothing started."""
    ended: str = ""
    """How the run ended; empty while it goes on."""
    position: int = 0
    of: int = 0
    tasks_done: int = 0
    """In this run; those replayed out of the journal too."""
    mixed: int = 0
    max_mixed: int = 0
    version: int = 0
    accepts: int = 0
    """On this panel."""
    rho: str = ""
    start_passes: int | None = None
    """Of the panel's first measured bank: F_0 times the rollouts of a complete panel."""
    panel_passes: int | None = None
    panel_rollouts: int = 0
    now: str = ""
    """What goes on where no panel run does."""
    judging: Judging | None = None
    waiting: Waiting | None = None
    """While nothing came through since."""
    command: str = ""
    """That starts it again."""
    limits: Mapping[str, float] = {}
    spent: Mapping[Role, Spent] = {}
    """By what ran in this run."""
    lines: tuple[str, ...] = ()

    @property
    def cap(self) -> int | None:
        """The most accepts there can be, floor((1 - F_0)/rho); None before the first measurement."""
        if self.start_passes is None or not self.panel_rollouts or not self.rho:
            return None
        return accept_cap(self.rho, Fraction(self.start_passes, self.panel_rollouts))

    @property
    def total(self) -> Spent:
        """Spent by all roles; the extractor's calls are no rollouts."""
        usd = sum(s.usd for s in self.spent.values())
        return Spent(usd, sum(s.rollouts for role, s in self.spent.items() if role != "extractor"), 0.0)


def fold(view: View, name: str, data: Mapping[str, Any], at: float = 0.0) -> View:
    """Return the view after one event; events of unknown names, or without what is expected, change nothing.

    Args:
        view: before it.
        name: as `hookspecs.Steps.valve_event` gets it.
        data: of the same.
        at: seconds since the epoch.
    """
    change: Change | None = _CHANGES.get(name)
    try:
        after = change(view, data) if change else view
        said = line(name, data)
        after = _waiting(after, name, data, at)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):  # another version's, or a stranger's
        return view
    if name == "run_started":
        after = after._replace(started=at)
    return after._replace(lines=(*after.lines, said)[-LINES:]) if said else after


def folded(events: Iterable[tuple[str, Mapping[str, Any], float]]) -> View:
    """Return the view after all events."""
    view = View()
    for name, data, at in events:
        view = fold(view, name, data, at)
    return view


def eta(view: View, now: float) -> float | None:
    """Return the seconds until the stream ends or enough tasks were mixed, at the pace so far; None: unknown."""
    if not view.tasks_done or view.ended:
        return None
    left = float(max(0, view.of - view.position))
    if view.max_mixed and view.mixed:
        left = min(left, (view.max_mixed - view.mixed) * view.position / view.mixed)
    return (now - view.started) / view.tasks_done * left


def _waiting(view: View, name: str, data: Mapping[str, Any], at: float) -> View:
    if name == "waiting":
        return view._replace(
            waiting=Waiting(str(data["said"]), f"try {data['try']} of {data['of']}", at + data["seconds"])
        )
    through = name in _CAME_THROUGH or data.get("outcome", "errored") != "errored"
    return view._replace(waiting=None) if through else view


def _run_started(view: View, data: Mapping[str, Any]) -> View:
    known = {k: v for k, v in data.items() if k in View._fields and k not in ("started", "lines", "spent", "judging")}
    return View(**known)


def _paid(view: View, data: Mapping[str, Any]) -> View:
    if data.get("replayed"):
        return view
    spent = dict(view.spent)
    for role, more in by_role([data]).items():
        spent[role] = spent.get(role, Spent()).plus(*more)
    return view._replace(spent=spent)


def _task_finished(view: View, data: Mapping[str, Any]) -> View:
    mixed = 0 < data["passed"] < data["attempts"]
    return view._replace(tasks_done=view.tasks_done + 1, mixed=view.mixed + mixed)


def _task_started(view: View, data: Mapping[str, Any]) -> View:
    now = f"attempts at {data['task_id'].rpartition('.')[2]}"
    return view._replace(position=data["position"], of=data["of"], now=now)


def _baseline(view: View, data: Mapping[str, Any]) -> View:
    first = data["passes"] if view.start_passes is None else view.start_passes
    return view._replace(judging=None, start_passes=first, panel_passes=data["passes"], panel_rollouts=data["rollouts"])


def _gate_started(view: View, data: Mapping[str, Any]) -> View:
    wanted, what = data["current_passes"] + data["needed"], f"gate {data['query']}"
    return view._replace(
        judging=Judging(what, data["rollouts"], wanted, reused=data.get("reused_passes", 0)),
        panel_passes=data["current_passes"],
    )


def _measuring(view: View, what: str, data: Mapping[str, Any]) -> View:
    return view._replace(judging=Judging(what, data["rollouts"], role="measurement"))


def _confirm_started(view: View, data: Mapping[str, Any]) -> View:
    if view.judging is None:
        return view
    again = view.judging._replace(what="confirm", rollouts=data["rollouts"], done=0, passed=0)
    return view._replace(judging=again)


def _rollout_finished(view: View, data: Mapping[str, Any]) -> View:
    if view.judging is None:
        return _paid(view, data)
    view = _paid(view, {**data, "source": view.judging.role} if view.judging.role == "measurement" else data)
    assert view.judging is not None
    passed = view.judging.passed + (data["outcome"] == "resolved")
    return view._replace(judging=view.judging._replace(done=data["done"], passed=passed))


def _verdict(view: View, data: Mapping[str, Any]) -> View:
    view = view._replace(judging=None, version=data["version"])
    if data["decision"] != "accept":
        return view
    return view._replace(accepts=view.accepts + 1, panel_passes=data["candidate_passes"])


Change = Callable[[View, Mapping[str, Any]], View]
_CHANGES: dict[str, Change] = {
    "run_started": _run_started,
    "run_ended": lambda view, data: view._replace(ended=data["how"], judging=None, now=""),
    "task_started": _task_started,
    "extracting": lambda view, data: view._replace(now=f"the model contrasts {plural(data['attempts'], 'attempt')}"),
    "proposed": lambda view, data: view._replace(now=""),
    "attempt_finished": _paid,
    "extracted": _paid,
    "rollout_unused": _paid,
    "rollout_cut": _paid,
    "task_finished": _task_finished,
    "baseline_started": lambda view, data: view._replace(judging=Judging("baseline", data["rollouts"])),
    "baseline": _baseline,
    "gate_started": _gate_started,
    "rollout_finished": _rollout_finished,
    "aa_started": lambda view, data: _measuring(view, f"A/A {data['number']}", data),
    "aa": lambda view, data: view._replace(judging=None),
    "left_out_started": lambda view, data: _measuring(view, "without", data),
    "left_out": lambda view, data: view._replace(judging=None),
    "confirm_started": _confirm_started,
    "verdict": _verdict,
}
