"""What is shown of a run, computed from its events: one line per event, and one view folded from all of them. Pure.

`valve evolve` shows the view of its own run, and `valve evolve --attach` that of a run in another terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin import events
from valve_plugin.cli.output import clean
from valve_plugin.events import Event
from valve_plugin.records import short_task_id
from valve_plugin.theory.budget import Role, Spending, spending_by_role
from valve_plugin.theory.panel_order import accept_odds
from valve_plugin.words import clock, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

SIMULATION = "SIMULATION"
"""The note of a run with the scripted model."""
LINES = 6
"""Latest events shown below the figures."""
_BAR = 16
_PACE_SECONDS, _PACE_EVENTS = 600.0, 200
"""The pace is that of the last ten minutes, or of as many rollouts and calls."""


# ---- a line per event


def line(event: Event) -> str:
    """Return one event as a line of text; empty for an event that only changes a figure."""
    return _LINES[type(event)](event) if type(event) in _LINES else ""


def _proposed(event: events.ProposalRecorded) -> str:
    if event.aside:
        return f"set aside {', '.join(event.aside)}: {event.reason}"
    what = ", ".join([*event.items, *(f"without {name}" for name in event.removes)])
    withheld = f"; {event.withheld} withheld" if event.withheld else ""
    return f"proposed  {what or f'nothing ({event.reason})'}{withheld}"


def _verdict(event: events.VerdictReached) -> str:
    wanted = event.current_passes + event.needed
    out_of_reach = f"{plural(wanted, 'pass is', 'passes are')} out of reach"
    ran = f"{event.rollouts} of {plural(event.of * (1 + event.repeated), 'rollout')}"
    if event.decision == "accept":
        passes = plural(event.candidate_passes, "pass", "passes")
        advice = f" (to reject such: --new-epoch -c guard={max(map(_lost, event.worse))})" if event.worse else ""
        worse = f"; worse: {', '.join(event.worse)}{advice}" if event.worse else ""
        return f"accepted  {passes}, {wanted} needed; now version {event.version}{worse}"
    if event.decision == "indecisive":
        return f"undecided after {ran}: errored ones could change the verdict"
    least, most = event.net
    if most >= event.needed:
        return f"rejected  a panel task lost more passes than the guard allows, after {ran}"
    if not event.rollouts:
        return f"rejected  {out_of_reach}; no rollout was needed: too few panel tasks get other notes than before"
    if least == most:  # no rollout is open
        return f"rejected  {plural(event.current_passes + most, 'pass', 'passes')}, {wanted} needed, after {ran}"
    return f"rejected  {out_of_reach} after {ran}"


def _lost(fallen: str) -> int:
    """Return the passes that a task lost, of `TASK 3/3 -> 1/3`."""
    before, after = (int(part.rpartition(" ")[2].partition("/")[0]) for part in fallen.split(" -> "))
    return before - after


def _gate(event: events.GateStarted) -> str:
    total = event.rollouts + event.kept
    kept = f": {event.rollouts} of {plural(total, 'rollout')} run, {event.kept} outcomes are kept where the notes stay"
    needs = plural(event.current_passes + event.needed, "pass", "passes")
    return f"gate {event.query:<4} needs {needs}{kept * bool(event.kept)}"


def _name(event: events.TaskStarted | events.TaskFinished) -> str:
    return event.title or short_task_id(event.task_id)


def _is_tenth(event: events.EvaluationAdvanced | events.TrialAdvanced) -> bool:
    """Whether another tenth is done: these get a line."""
    return event.done * 10 // event.of > (event.done - 1) * 10 // event.of


def _trial(event: events.TrialAdvanced) -> str:
    ends = f"{100 * event.low:+.1f} and {100 * event.high:+.1f} points"
    return f"try       {event.better} better, {event.worse} worse, between {ends}" if _is_tenth(event) else ""


def _try(event: events.Waiting) -> str:
    return f"try {event.tried} of {event.of}"


_LINES: Mapping[type[Event], Callable[[Any], str]] = {
    events.AgentsLoading: lambda e: "loading   the agents, which takes a moment",
    events.TaskFinished: lambda e: (
        f"task      {_name(e)}: {e.passed} of {e.attempts} passed, {'' if e.mixed else 'not '}mixed"
    ),
    events.ExtractionStarted: lambda e: f"extract   the model compares {plural(e.attempts, 'attempt')}",
    events.ProposalRecorded: _proposed,
    events.ScreenStarted: lambda e: f"screen    its own task again, with it: {plural(e.attempts, 'attempt')} must pass",
    events.BaselineStarted: lambda e: f"baseline  {plural(e.rollouts, 'rollout')} of the current bank on the panel",
    events.BaselineMeasured: lambda e: f"baseline  {e.passes} of {e.rollouts} passed",
    events.GateStarted: _gate,
    events.ConfirmationStarted: lambda e: f"confirm   margin reached; again on {plural(e.rollouts, 'fresh rollout')}",
    events.VerdictReached: _verdict,
    events.VerdictStale: lambda e: f"stale     {e.reason}",
    events.ProposalTaken: lambda e: f"taken     without a gate; now version {e.version}",
    events.RemeasureStarted: lambda e: (
        f"A/A {e.number:<5} of {e.of}: {plural(e.rollouts, 'fresh rollout')} of the current bank"
    ),
    events.PanelRemeasured: lambda e: f"A/A {e.number:<5} {e.passes} of {e.rollouts} passed",
    events.LeaveOutStarted: lambda e: (
        f"without   {e.kind} {e.item} ({e.number} of {e.of}): {plural(e.rollouts, 'rollout')}"
    ),
    events.EvaluationStarted: lambda e: (
        f"eval      {plural(e.banks, 'bank')} on {plural(e.tasks, 'holdout task')}: "
        f"{plural(e.rollouts, 'rollout')} to run"
    ),
    events.EvaluationAdvanced: lambda e: "eval      rollouts on the holdout" if _is_tenth(e) else "",
    events.TrialAdvanced: _trial,
    events.EvaluationRecorded: lambda e: f"eval      version {e.version} is measured",
    events.Waiting: lambda e: f"waiting   {e.said}, {_try(e)}, next in {max(1, ceil(e.seconds))} s",
    events.RunPaused: lambda e: f"paused    {e.reason}",
}


# ---- all events folded into a view


class Judging(NamedTuple):
    """The current panel run: a baseline, a gate or a measurement."""

    what: str
    rollouts: int
    """Rollouts to run, without the `reused` ones."""
    wanted: int | None = None
    """Passes needed for an accept; None: nothing is judged."""
    done: int = 0
    passed: int = 0
    reused: int = 0
    """Passes carried over because the context did not change."""
    role: Role = "gate"
    """The role that its rollouts are counted for."""
    current: int = 0
    """Passes of the current bank on the tasks that run."""


class View(NamedTuple):
    """Everything that is shown of a run."""

    run: events.RunStarted = events.RunStarted()
    """What was known when the run started."""
    started: float = 0.0
    """Seconds since the epoch; 0: nothing started."""
    ended: str = ""
    """How the run ended; empty while it goes on."""
    position: int = 0
    of: int = 0
    tasks_done: int = 0
    """In this run, with those that were read back from the journal."""
    mixed: int = 0
    attempting_since: float = 0.0
    """When the present task's attempts began; 0: they ended."""
    learning_since: float = 0.0
    """When they ended, at a mixed task; 0: what followed them has ended, too."""
    evaluating_since: float = 0.0
    attempting: float = 0.0
    """Seconds of the attempts at the tasks so far."""
    learning: float = 0.0
    """Seconds of what followed at mixed tasks: extraction, baseline and gate."""
    learned: int = 0
    """Mixed tasks with which that is over."""
    version: int = 0
    accepts: int = 0
    """On this panel."""
    panel_passes: int | None = None
    panel_rollouts: int = 0
    now: str = ""
    """What is done now, if it is not a panel run."""
    judging: Judging | None = None
    waiting: tuple[events.Waiting, float] | None = None
    """The latest wait and its end, in seconds since the epoch; None: a call succeeded since then."""
    working: events.AgentsWorking | None = None
    """The latest news of the running rollouts; None: one has ended since."""
    cluster: events.ClusterSeen | None = None
    spent: Mapping[Role, Spending] = {}
    """Spent in this run, by role."""
    wasted: Spending = Spending()
    """Of that, for rollouts that no verdict uses."""
    recent: tuple[tuple[float, float, int], ...] = ()
    """When the latest rollouts and calls ended, what each cost, and 1 for a rollout."""
    lines: tuple[str, ...] = ()

    @property
    def total(self) -> Spending:
        """Spent by all roles; the extractor's calls are no rollouts."""
        usd = sum(s.usd for s in self.spent.values())
        return Spending(usd, sum(s.rollouts for role, s in self.spent.items() if role != "extractor"), 0.0)

    def pace(self, now: float) -> tuple[float, float]:
        """Return rollouts a minute and USD an hour."""
        since = max(self.started, now - _PACE_SECONDS)
        if len(self.recent) == _PACE_EVENTS:
            since = max(since, self.recent[0][0])
        seen = [(usd, rollouts) for at, usd, rollouts in self.recent if at >= since]
        seconds = max(1.0, now - since)
        return 60 * sum(n for _, n in seen) / seconds, 3600 * sum(usd for usd, _ in seen) / seconds


def fold(view: View, event: Event, at: float = 0.0) -> View:
    """Return the view after one event, at so many seconds since the epoch; unknown events change nothing."""
    after = _time(_fold_run(view, event), event, at)
    if isinstance(event, events.ClusterSeen):
        return after._replace(cluster=event)
    if after.spent is not view.spent and not isinstance(event, events.RunStarted):
        usd = getattr(event, "cost_usd", 0.0)
        ended = (at, usd if isinstance(usd, float) else 0.0, int(not isinstance(event, events.ModelCalled)))
        after = after._replace(recent=(*after.recent, ended)[-_PACE_EVENTS:])
    if isinstance(event, events.AgentsWorking):
        return after._replace(working=event, waiting=None)
    if not isinstance(event, events.Waiting):
        after = after._replace(working=None)
    if isinstance(event, events.RunStarted):
        after = after._replace(started=at)
    elif isinstance(event, events.Waiting):
        after = after._replace(waiting=(event, at + event.seconds))
    elif isinstance(event, events.ModelCalled | events.RunPaused) or getattr(event, "outcome", "errored") != "errored":
        after = after._replace(waiting=None)  # a call succeeded, or the run paused
    text = line(event)
    return after._replace(lines=(*after.lines, text)[-LINES:]) if text else after


def _time(view: View, event: Event, at: float) -> View:
    """Return the view with the seconds that the last part of the loop took, where this event ends it."""
    match event:
        case events.TaskStarted() if since := view.learning_since:
            learning = view.learning + at - since
            return view._replace(learning=learning, learned=view.learned + 1, learning_since=0.0, attempting_since=at)
        case events.TaskStarted():
            return view._replace(attempting_since=at)
        case events.TaskFinished():
            took = at - view.attempting_since if view.attempting_since else 0.0
            learning_since = at if event.mixed else 0.0
            return view._replace(attempting=view.attempting + took, attempting_since=0.0, learning_since=learning_since)
        case events.EvaluationStarted():
            return view._replace(evaluating_since=at)
    return view


def _fold_run(view: View, event: Event) -> View:
    match event:
        case events.RunStarted():
            names = set(View._fields) & set(event.__struct_fields__)
            return View(run=event, **{name: getattr(event, name) for name in names})
        case events.RunEnded():
            return view._replace(ended=event.how, judging=None, now="")
        case events.TaskStarted():
            now = f"attempts at {_name(event)}"
            return view._replace(position=event.position, of=event.of, now=now)
        case events.TaskFinished():
            return view._replace(tasks_done=view.tasks_done + 1, mixed=view.mixed + event.mixed)
        case events.ExtractionStarted() | events.ScreenStarted():
            return view._replace(now=line(event).partition(" ")[2].strip())
        case events.ProposalRecorded():
            return view._replace(now="")
        case events.AttemptFinished() | events.RolloutUnused() | events.RolloutCut() | events.ModelCalled():
            return _pay(view, event)
        case events.VerdictReached(decision="accept"):
            passes = event.candidate_passes
            return view._replace(judging=None, version=event.version, accepts=view.accepts + 1, panel_passes=passes)
        case events.VerdictReached():
            return view._replace(judging=None, version=event.version)
    return _fold_panel(view, event)


def _fold_panel(view: View, event: Event) -> View:
    match event:
        case events.BaselineStarted():
            return view._replace(judging=Judging("baseline", event.rollouts))
        case events.BaselineMeasured():
            return view._replace(judging=None, panel_passes=event.passes, panel_rollouts=event.rollouts)
        case events.GateStarted(current_passes=passes):
            wanted = passes + event.needed
            current = passes - event.reused_passes
            judging = Judging(
                f"gate {event.query}", event.rollouts, wanted, reused=event.reused_passes, current=current
            )
            return view._replace(judging=judging, panel_passes=passes)
        case events.ConfirmationStarted() if view.judging:
            again = view.judging._replace(what="confirm", rollouts=event.rollouts, done=0, passed=0)
            return view._replace(judging=again)
        case events.RolloutFinished():
            measures = view.judging and view.judging.role == "measurement"
            view = _pay(view, event, {"source": "measurement"} if measures else {})
            if view.judging is None:
                return view
            passed = view.judging.passed + (event.outcome == "resolved")
            return view._replace(judging=view.judging._replace(done=event.done, passed=passed))
        case events.RemeasureStarted():
            return view._replace(judging=Judging(f"A/A {event.number}", event.rollouts, role="measurement"))
        case events.LeaveOutStarted():
            return view._replace(judging=Judging("without", event.rollouts, role="measurement"))
        case events.PanelRemeasured() | events.LeaveOutMeasured():
            return view._replace(judging=None)
    return view


def _pay(view: View, event: Event, changes: Mapping[str, str] = {}) -> View:
    """Add the cost of a rollout or call, unless an earlier run made it."""
    if getattr(event, "replayed", False):
        return view
    spent = dict(view.spent)
    for role, more in spending_by_role([{**event.data, **changes}]).items():
        spent[role] = spent.get(role, Spending()).plus(*more)
    if isinstance(event, events.RolloutUnused | events.RolloutCut):
        view = view._replace(wasted=view.wasted.plus(event.cost_usd, 1))
    return view._replace(spent=spent)


def eta(view: View, now: float) -> float | None:
    """Return the seconds until the stream ends or enough tasks were mixed, at the pace so far; None: unknown.

    A task takes its attempts, and a mixed one also what follows them, which takes longer: nobody knows how much longer
    before the first one is through.
    """
    if not view.tasks_done or not view.learned or view.ended:
        return None
    left = float(max(0, view.of - view.position))
    if view.run.max_mixed and view.mixed:
        left = min(left, (view.run.max_mixed - view.mixed) * view.position / view.mixed)
    each, begun = view.learning / view.learned, bool(view.learning_since)
    mixed = (view.learned + begun) / view.tasks_done
    pending = max(0.0, view.learning_since + each - now) if begun else 0.0
    return left * (view.attempting / view.tasks_done + mixed * each) + pending


# ---- the view as figures


def rows(view: View, now: float) -> list[tuple[str, str]]:
    """Return the view's figures as (label, text), those that a low terminal must show first."""
    rest, at = eta(view, now), view.position
    left = "unknown yet" if rest is None else f"{clock(rest)} at this pace"
    limits, total = view.run.limits, view.total
    usd = f"${total.usd:.2f}" if total.usd or not view.spent else "cost unknown"
    usd += f" of ${limits['usd']:.2f}" if limits.get("usd") else ""
    ran = plural(total.rollouts, "rollout") + (f" of {limits['rollouts']:.0f}" if limits.get("rollouts") else "")
    hours = f", {clock(now - view.started)} of {clock(3600 * limits['hours'])}" if limits.get("hours") else ""
    found = [_activity(view), ("spent", f"{usd}, {ran}{hours}")]
    if view.working and not view.ended:
        found.insert(1, ("agents", working(view.working)))
    if view.waiting and not view.ended:
        event, until = view.waiting
        when = f"next in {seconds} s" if (seconds := round(until - now)) > 0 else "asking again"
        found.append(("waiting", f"{_try(event)}, {when}: {event.said}"))
    if not view.ended:
        found += [("nodes", _nodes(view.cluster))] if view.cluster else []
        rollouts, usd_each = view.pace(now)
        found.append(("pace", f"{rollouts:.1f} rollouts a minute" + (f", ${usd_each:.2f} an hour" if usd_each else "")))
    found.append(("ended", view.ended) if view.ended else ("left", f"{left}   workers {view.run.workers}"))
    if view.panel_passes is None or not view.panel_rollouts:
        panel = "not measured yet"
    else:
        rate = 100 * view.panel_passes / view.panel_rollouts
        panel = f"{view.panel_passes} of {view.panel_rollouts} passed, {rate:.1f} %"
    return [
        *found,
        ("stream", f"task {at} of {view.of}   mixed {view.mixed} of {at}   {_bar(at, view.of)}"),
        ("panel", panel),
        ("accepts", f"{view.accepts}   version {view.version}"),
        ("wasted", describe_spent("gate", view.wasted) if view.wasted.rollouts else "nothing"),
        ("by role", ", ".join(f"{role} {describe_spent(role, s)}" for role, s in view.spent.items()) or "nothing"),
    ]


def working(event: events.AgentsWorking) -> str:
    """Return what the running rollouts did so far."""
    return f"{event.rollouts} at work, {plural(event.steps, 'step')}, the longest {event.longest} of {event.of}"


def describe_spent(role: Role, spent: Spending) -> str:
    """Return what a role spent, in words; a cost of 0 means that it is unknown."""
    what = plural(spent.rollouts, "call" if role == "extractor" else "rollout")
    return f"{what} ${spent.usd:.2f}" if spent.usd else f"{what} (cost unknown)"


def _activity(view: View) -> tuple[str, str]:
    judging = view.judging
    if judging is None:
        return "now", view.now or "nothing is running"
    done, bar = f"{judging.done} of {judging.rollouts}", _bar(judging.done, judging.rollouts)
    if judging.wanted is None:
        return judging.what, f"{done}   {judging.passed} passed   {bar}"
    passed, left = judging.reused + judging.passed, judging.rollouts - judging.done
    # by what the current bank and the candidate did so far
    seen = judging.current + judging.passed
    failed = max(0, judging.rollouts + judging.done - seen)
    odds = accept_odds(judging.wanted - passed, max(0, left), seen, failed)
    counts = f"{passed} passed, {judging.wanted} needed, {passed + left} possible"
    return judging.what, f"{done}   {counts}, odds {100 * odds:.0f} %   {bar}"


def _nodes(cluster: events.ClusterSeen) -> str:
    if not cluster.nodes:
        return "no cluster answers"
    able = [node for node in cluster.nodes if not node.problem]
    cores, busy = sum(node.cores for node in able), sum(node.rollouts for node in able)
    each = ", ".join(f"{node.name} {node.rollouts}" for node in able)
    unfit = "".join(f"; {node.name}: {node.problem}" for node in cluster.nodes if node.problem)
    return f"{len(able)} of {len(cluster.nodes)}, {plural(busy, 'rollout')} on {cores:g} cores ({each}){unfit}"


def _bar(done: int, of: int) -> str:
    full = round(_BAR * min(done, of) / of) if of else 0
    return "#" * full + "." * (_BAR - full)


def draw(view: View, now: float) -> RenderableType:
    """Return the figures and the latest lines for a terminal; what is too wide or too low is cut.

    Text of models and repositories is plain text.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="bold", no_wrap=True, min_width=7)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for label, text in rows(view, now):
        grid.add_row(Text(label), Text(clean(text)))
    latest = [Text(clean(text), style="dim", no_wrap=True, overflow="ellipsis") for text in view.lines]
    title = " ".join(filter(None, [view.run.note, "valve", view.run.repo, clock(now - view.started)]))
    return Panel(Group(grid, "", *latest), title=Text(title), title_align="left")
