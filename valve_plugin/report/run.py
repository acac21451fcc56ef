"""What a report says about one run, as numbers: every figure and table of the page is drawn from these records."""

from __future__ import annotations

from typing import Any, Literal

from valve_plugin.records import AttemptOutcome, Kind, Outcome, Pairing, Record
from valve_plugin.report.certify import Certificate
from valve_plugin.report.run_live import Live
from valve_plugin.report.run_spent import Clock, Spent

GateDecision = Literal["accept", "reject", "indecisive"]
ItemState = Literal["accepted", "taken", "retired", "rejected", "waiting", "near-duplicate", "merged", "withheld"]


class Rollout(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt, as a table cell points to it."""

    ordinal: int
    outcome: AttemptOutcome | Outcome
    attempt: str = ""
    """Id of the attempt kept on this machine; empty where there is none."""


class Source(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt that a proposal was learned from."""

    task_id: str
    ordinal: int
    outcome: AttemptOutcome
    attempt: str = ""
    """Id of the attempt kept on this machine; empty where there is none."""
    steps: int | None = None
    """How many it took; None: its trajectory is not on this machine."""
    left_out: tuple[int, ...] = ()
    """Numbers of the steps that the digest given to the extractor had no room for."""
    compared: bool = False
    """The attempts at this task that ended the other way are here too, so that steps can be compared."""
    own: tuple[int, ...] = ()
    """Numbers of the steps with a command that none of those ran. Derived by the report; no ledger records steps."""


class StreamPoint(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stream task and what its attempts came to."""

    task_id: str
    position: int
    """1-based, in the order the tasks were attempted."""
    passed: int
    graded: int
    """Attempts that are resolved or unresolved."""
    version: int
    """Of the bank its context came from."""
    rollouts: tuple[Rollout, ...]
    accepted: bool = False
    """Its proposal came into the bank."""

    @property
    def errored(self) -> int:
        """Attempts that failed with host or provider: neither a pass nor a failure, and tried again."""
        return sum(r.outcome == "errored" for r in self.rollouts)


class Cell(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A panel task's rollouts in one measurement; a task that is not named was not evaluated."""

    task_id: str
    rollouts: tuple[Rollout, ...]
    kept: bool = False
    """Carried over: the context is the same bytes as before."""
    late: tuple[Rollout, ...] = ()
    """What ran on when the verdict was certain: it decided nothing."""


REPEAT = " repeat"


class Column(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement on the panel: a baseline, a gate's candidate, or the bank once more (A/A)."""

    label: str
    kind: Literal["baseline", "gate", "measurement"]
    line: int
    """Number of the ledger line it is from."""
    decision: GateDecision | None = None
    """A gate's verdict."""
    against: str = ""
    """Label of the column that a gate's candidate is compared with."""
    cells: tuple[Cell, ...]

    @property
    def repeat(self) -> bool:
        """Whether it is a gate's candidate once more, on fresh rollouts."""
        return self.label.endswith(REPEAT)


class Gate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One verdict."""

    number: int
    """1-based over the whole ledger; a query that went on counts each verdict."""
    line: int
    epoch: int
    query: int
    proposal_id: str
    task_id: str
    items: tuple[str, ...]
    """`kind: name` of each proposed item, `without kind: name` of each that would go."""
    decision: GateDecision
    pairing: Pairing
    low: float
    """Panel gain at the last measurement, in rate units; below `high` where rollouts were not run or got lost."""
    high: float
    first: float | None = None
    """Panel gain of the first measurement, where an accept was repeated; `low` and `high` are then the repeat's."""
    margin: float
    """The least gain that is accepted: needed passes over N * r."""
    reference: int
    """Passes of the bank it was judged against, of N * r."""
    floor: float | None
    """Accepts: the certified floor of the population gain; None for the others."""
    vacuous: bool
    ran: int
    """Rollouts the verdict rests on."""
    beyond: int = 0
    """Rollouts that ran on when the verdict was certain, as far as this machine knows: they change nothing."""
    saved: int = 0
    saved_usd: float = 0.0
    """What was not run, at the mean cost of what was; 0 where no cost is known."""
    again: int = 0
    """How many of them repeated the measurement."""
    total: int
    """Panel rollouts: N * r, and as many again where an apparent accept had to repeat."""
    kept: int
    unknown: int
    version: int
    """Of the bank after it."""


class Score(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bank's complete panel measurement: in-sample for an accept, which was selected by it."""

    version: int
    passes: int
    rollouts: int


class Size(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How big the bank was from a stream position on."""

    position: int
    principles: int
    skills: int


class Proposed(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item that a model proposed, whatever became of it."""

    kind: Kind
    name: str
    state: ItemState
    why: str = ""
    """Why it is not in the bank, or what it was merged into."""
    kept: bool = True
    """False: the ledger does not hold what it said; older ones lack it for duplicates, and a secret is kept nowhere."""
    text: str = ""
    markdown: str = ""
    scope_hint: str = ""
    task_id: str
    proposal_id: str
    line: int
    model: str = ""
    version: int | None = None
    """The version it came in with."""
    support: int = 1
    uses: int = 0
    """Stream tasks and live runs whose context had it, counted on this machine; no gates, no evaluations."""
    sources: tuple[Source, ...] = ()
    """The attempts it was contrasted from, those of its earlier tries included."""
    tries: int = 1
    """How often it was proposed and rejected, word by word; 1 for what is not rejected."""
    earlier: tuple[str, ...] = ()
    """Ids of the proposals of its other tries, the oldest first; a gate names its proposal."""
    displaced: tuple[str, ...] | None = None
    """Items that some panel task's context lost when the proposal with this item came in; None: not known."""
    twin: str = ""
    """Name of the bank item that this one repeats."""
    similarity: float | None = None


class Checkpoint(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One frozen version, evaluated on the sealed holdout."""

    step: int
    """Mixed tasks learned from until then."""
    version: int
    low: float
    """avg@r, in rate units; below `high` while errored rollouts leave it unknown."""
    high: float
    gain: tuple[float, float] | None
    """Over version 0, task by task: all it can be, in rate units. None: version 0 was not evaluated, so unknown."""
    tasks: int
    rollouts: int
    line: int


class Line(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ledger line."""

    number: int
    type: str
    words: str
    problem: str = ""
    """What verification found wrong here."""
    data: dict[str, Any]


class PanelFacts(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The panel in force."""

    tasks: int
    rollouts: int
    rho: str
    pairing: Pairing


class Run(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bank's whole history."""

    label: str
    repo: str
    simulated: bool
    """A scripted model took part: the numbers say what the machinery did, not what a model gains."""
    models: tuple[str, ...]
    version: int
    principles: int
    skills: int
    gated: bool
    panel: PanelFacts | None
    stream: tuple[StreamPoint, ...]
    stream_whole: bool
    """False: only the mixed tasks are known, which is all a ledger holds; this machine does not keep the rest."""
    gates: tuple[Gate, ...]
    scores: tuple[Score, ...]
    checkpoints: tuple[Checkpoint, ...]
    sizes: tuple[Size, ...]
    columns: tuple[Column, ...]
    items: tuple[Proposed, ...]
    spent: tuple[Spent, ...]
    clock: Clock | None
    """None: not known of everything that ran."""
    live: Live
    certificate: Certificate
    ledger: tuple[Line, ...]
    problems: tuple[str, ...]
    """What verification found, besides what belongs to one line."""
