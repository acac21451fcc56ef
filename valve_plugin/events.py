"""What happens during a run: one record per event. Informational only; nothing that decides depends on them.

A plugin gets each event through the hook `valve_event`: as its record (`event`), and as `name` and `data`, which is
also what telemetry keeps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from valve_plugin.codec import convert
from valve_plugin.errors import RecordError
from valve_plugin.records import AttemptOutcome, Decision, Kind, Source


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""

    NAME: ClassVar[str] = ""
    """The `name` of the hook and of telemetry."""

    @property
    def name(self) -> str:
        """The event's name, as in `task_started`."""
        return self.NAME

    @property
    def data(self) -> dict[str, Any]:
        """The fields as plain data."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class RunStarted(Event, frozen=True, kw_only=True):
    """A run begins. With this event a screen is complete from the start."""

    NAME = "run_started"
    pid: int = 0
    created: float = 0.0
    """When the process started, in seconds since the epoch: process numbers are used again."""
    host: str = ""
    """Name of the machine that the process is on."""
    bank: str = ""
    """Directory of the bank."""
    repo: str = ""
    note: str = ""
    """What a screen's title has to say, such as that the model is scripted."""
    command: str = ""
    """The command that starts the run again."""
    workers: int = 1
    limits: dict[str, float] = {}
    """Budget by `usd`, `rollouts` and `hours`; 0: no limit."""
    of: int = 0
    """Tasks in the stream."""
    position: int = 0
    """Tasks of the stream that earlier runs are done with."""
    mixed: int = 0
    max_mixed: int = 0
    """Mixed tasks after which the run ends; 0: no limit."""
    version: int = 0
    rho: str = ""
    """Margin of the gate; empty: no panel is fixed."""
    accepts: int = 0
    panel_passes: int | None = None
    """Passes of the current bank."""
    panel_rollouts: int = 0


class RunEnded(Event, frozen=True, kw_only=True):
    """The run ends."""

    NAME = "run_ended"
    how: str
    """In words: finished, interrupted, stopped by a budget, or the error."""


class AgentsLoading(Event, frozen=True, kw_only=True):
    """The first rollout waits for the agent's packages to be imported."""

    NAME = "loading"


class TaskStarted(Event, frozen=True, kw_only=True):
    """The attempts at a task of the stream begin."""

    NAME = "task_started"
    task_id: str
    title: str = ""
    """The task's name for people, where it has one."""
    position: int
    """Counted from 1."""
    of: int


class TaskFinished(Event, frozen=True, kw_only=True):
    """All attempts at a task have ended."""

    NAME = "task_finished"
    task_id: str
    title: str = ""
    """The task's name for people, where it has one."""
    passed: int
    attempts: int

    @property
    def mixed(self) -> bool:
        """Whether some passed and some failed."""
        return 0 < self.passed < self.attempts


class AgentsWorking(Event, frozen=True, kw_only=True):
    """Rollouts go on; sent at most every few seconds, when a model call was answered."""

    NAME = "working"
    rollouts: int
    """Rollouts that run now."""
    steps: int
    """Their model calls so far."""
    longest: int
    """Model calls of the one with the most."""
    of: int
    """Model calls that a rollout may make."""


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a cluster."""

    name: str
    cores: float
    rollouts: int
    """Rollouts of the run that are at work there."""
    problem: str = ""
    """Why it takes none; empty if it does."""


class ClusterSeen(Event, frozen=True, kw_only=True):
    """The cluster on whose nodes the rollouts run; sent when it is another than before, and every minute."""

    NAME = "cluster"
    nodes: tuple[NodeSeen, ...] = ()
    """None: no cluster answers."""


class RolloutEvent(Event, frozen=True, kw_only=True):
    """Base of events about one rollout that has ended."""

    task_id: str = ""
    ordinal: int = 0
    context_hash: str = ""
    source: Source | Literal["live"] = "live"
    """What it is for: to learn from, to judge by, to evaluate; or a person's own run."""
    outcome: AttemptOutcome
    reason: str = ""
    fault: str = ""
    exit_status: str = ""
    steps: int = 0
    """Model calls."""
    cost_usd: float = 0.0
    seconds: float = 0.0
    model: str = ""
    replayed: bool = False
    """It ran in an earlier process, so this run did not pay for it."""


class AttemptFinished(RolloutEvent, frozen=True, kw_only=True):
    """An attempt at a task of the stream, an evaluation's rollout or a person's own run has ended."""

    NAME = "attempt_finished"
    id: str = ""
    """Of the record that a person's own run left."""


class RolloutFinished(RolloutEvent, frozen=True, kw_only=True):
    """A rollout of the panel has ended, and counts."""

    NAME = "rollout_finished"
    done: int
    of: int


class RolloutUnused(RolloutEvent, frozen=True, kw_only=True):
    """A rollout of the panel ended after the verdict was certain."""

    NAME = "rollout_unused"


class RolloutCut(Event, frozen=True, kw_only=True):
    """A rollout of the panel was stopped because the verdict was certain."""

    NAME = "rollout_cut"
    task_id: str
    ordinal: int
    context_hash: str
    source: Source = "panel"
    steps: int = 0
    cost_usd: float = 0.0
    """USD of the model calls that it had made."""


class ExtractionStarted(Event, frozen=True, kw_only=True):
    """The model is asked to contrast a task's attempts."""

    NAME = "extracting"
    task_id: str
    attempts: int


class ModelCalled(Event, frozen=True, kw_only=True):
    """The model answered one call of extraction, or of the review of what was extracted."""

    NAME = "extracted"
    source: Literal["extract", "review"] = "extract"
    model: str = ""
    cost_usd: float | UnsetType = UNSET
    """Left out where nobody counted it."""
    seconds: float = 0.0


class ProposalRecorded(Event, frozen=True, kw_only=True):
    """A proposal, possibly an empty one, is in the ledger."""

    NAME = "proposed"
    task_id: str = ""
    proposal_id: str = ""
    items: tuple[str, ...]
    """New items as "kind: name"."""
    removes: tuple[str, ...] = ()
    merges: int = 0
    suppressed: int = 0
    withheld: int = 0
    reason: str = ""
    """Why it is empty, or why the one before it is set aside."""
    aside: tuple[str, ...] = ()
    """Items, as in `items`, of the task's proposal before it, which this one sets aside unjudged."""


class ScreenStarted(Event, frozen=True, kw_only=True):
    """Before its gate, a proposal is attempted at the task that it was learned from; AttemptFinished follows."""

    task_id: str
    proposal_id: str
    attempts: int
    """At most: the first that fails ends it."""


class BaselineStarted(Event, frozen=True, kw_only=True):
    """The current bank is about to be measured on the panel, once per epoch."""

    NAME = "baseline_started"
    rollouts: int


class BaselineMeasured(Event, frozen=True, kw_only=True):
    """The baseline is complete and in the ledger."""

    NAME = "baseline"
    version: int
    """Of the bank that was measured."""
    passes: int
    rollouts: int


class GateStarted(Event, frozen=True, kw_only=True):
    """A gate query begins."""

    NAME = "gate_started"
    proposal_id: str = ""
    query: int
    """Number of the query in its epoch, from 1."""
    needed: int
    """Passes that the candidate needs beyond those of the current bank."""
    current_passes: int
    kept: int = 0
    """Rollouts whose context stays the same, so that they need not run."""
    reused_passes: int = 0
    """Passes of those."""
    rollouts: int
    """Rollouts to run."""


class ConfirmationStarted(Event, frozen=True, kw_only=True):
    """The candidate passed the gate, and has to pass it again on fresh rollouts."""

    NAME = "confirm_started"
    proposal_id: str = ""
    rollouts: int


class VerdictReached(Event, frozen=True, kw_only=True):
    """The gate has decided, and the verdict is in the ledger."""

    NAME = "verdict"
    proposal_id: str = ""
    task_id: str = ""
    decision: Decision
    version: int
    """Of the bank, after the verdict."""
    current_passes: int
    candidate_passes: int
    needed: int
    net: tuple[int, int]
    """Least and most passes that the candidate has beyond the current bank."""
    repeated: bool = False
    """The candidate was measured a second time."""
    rollouts: int
    """Rollouts that the verdict uses."""
    of: int
    """Rollouts on the panel tasks that get other notes than before; the others keep their outcomes."""
    worse: tuple[str, ...] = ()
    """Panel tasks that an accept makes worse, like `TASK 2/2 -> 0/2`."""


class ProposalAccepted(Event, frozen=True, kw_only=True):
    """The gate accepted a proposal, and the bank holds its items now; follows the verdict."""

    NAME = "accepted"
    proposal_id: str = ""
    task_id: str = ""
    version: int


class ProposalTaken(Event, frozen=True, kw_only=True):
    """An ungated run put a proposal's items into the bank without asking the gate."""

    NAME = "taken"
    proposal_id: str = ""
    task_id: str = ""
    version: int


class VerdictStale(Event, frozen=True, kw_only=True):
    """The bank changed while its gate ran: the verdict is dropped and the proposal judged again."""

    NAME = "stale"
    proposal_id: str = ""
    reason: str


class RemeasureStarted(Event, frozen=True, kw_only=True):
    """An A/A measurement begins: the current bank again, on fresh rollouts."""

    NAME = "aa_started"
    number: int
    of: int
    rollouts: int


class PanelRemeasured(Event, frozen=True, kw_only=True):
    """An A/A measurement is in the ledger."""

    NAME = "aa"
    passes: int
    rollouts: int
    number: int


class LeaveOutStarted(Event, frozen=True, kw_only=True):
    """The panel is about to be measured without one item."""

    NAME = "left_out_started"
    kind: Kind
    item: str = field(name="name")
    number: int
    of: int
    rollouts: int


class LeaveOutMeasured(Event, frozen=True, kw_only=True):
    """What the panel does without an item is in the ledger."""

    NAME = "left_out"
    kind: Kind
    item: str = field(name="name")
    number: int
    of: int
    tasks: int
    rollouts: int


class EvaluationStarted(Event, frozen=True, kw_only=True):
    """Frozen banks are about to be measured on the holdout."""

    NAME = "eval_started"
    banks: int
    tasks: int
    rollouts: int


class EvaluationAdvanced(Event, frozen=True, kw_only=True):
    """A rollout of an evaluation has ended; its outcome is not shown before the evaluation is on record."""

    NAME = "eval_rollout"
    done: int
    of: int


class EvaluationRecorded(Event, frozen=True, kw_only=True):
    """The evaluation of one bank is in the ledger."""

    NAME = "evaluated"
    version: int
    only: tuple[Kind, str] | None = None
    """The one item that was evaluated; None: the whole bank."""


class TrialAdvanced(Event, frozen=True, kw_only=True):
    """A pair of rollouts, with a text and without, has ended, and all pairs that were drawn before it."""

    NAME = "trial_pair"
    done: int
    of: int
    better: int
    """Pairs of which only the rollout with the text resolved its task."""
    worse: int
    low: float
    """Ends of the interval of the difference, in rate units."""
    high: float


class Waiting(Event, frozen=True, kw_only=True):
    """A model call or a rollout failed and is tried again after a pause."""

    NAME = "waiting"
    said: str
    """Why, in words."""
    tried: int = field(name="try")
    """Number of the try that failed, from 1."""
    of: int
    seconds: float
    """Until the next try."""


class RunPaused(Event, frozen=True, kw_only=True):
    """Nothing more starts: the provider or the host failed too often, or for good."""

    NAME = "paused"
    reason: str


class PluginEvent(Event, frozen=True, kw_only=True):
    """An event that is not one of these: another plugin's, or another version's."""

    called: str
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """The name under which it was sent."""
        return self.called

    @property
    def data(self) -> dict[str, Any]:
        """The data with which it was sent."""
        return self.content


Observe = Callable[[Event], None]
"""Gets events as they happen, from any thread."""


def ignore(event: Event) -> None:
    """Observe nothing."""


def _named(base: type[Event]) -> dict[str, type[Event]]:
    found = {base.NAME: base} if base.NAME else {}
    for kind in base.__subclasses__():
        found |= _named(kind)
    return found


EVENTS = _named(Event)
"""Every class of event by its name."""


def event_of(name: str, data: Mapping[str, Any]) -> Event:
    """Return the record of an event given by name and data: a `PluginEvent` where no class here fits."""
    kind = EVENTS.get(name)
    if kind is not None:
        try:
            return convert(dict(data), kind, where=name)
        except RecordError:
            pass
    return PluginEvent(called=name, content=dict(data))
