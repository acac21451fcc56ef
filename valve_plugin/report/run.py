"""What a report says about one run, as numbers: the records behind every figure and table of the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from valve_plugin.bank.entries import Entry
from valve_plugin.evidence.certify import Certificate
from valve_plugin.evidence.cost import ClockTime, RoleCost
from valve_plugin.evidence.plan import GatePlan, RunPlan
from valve_plugin.evidence.summary import VersionScore
from valve_plugin.records import AttemptOutcome, Decision, Kind, Outcome, Pairing, Record, is_live, is_owners

ItemState = Literal["accepted", "taken", "retired", "rejected", "waiting", "near-duplicate", "merged", "withheld"]


class Rollout(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt, as a table cell points to it."""

    ordinal: int
    outcome: AttemptOutcome | Outcome
    attempt: str = ""
    """Id of the attempt kept on this machine; empty where there is none."""


class SourceAttempt(Rollout, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt that a proposal was learned from."""

    task_id: str


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


class PanelCell(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A panel task's rollouts in one measurement; a task that is not named was not evaluated."""

    task_id: str
    rollouts: tuple[Rollout, ...]
    kept: bool = False
    """Carried over: the context is the same bytes as before."""


class PanelColumn(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement task by task: of the panel (a baseline, a gate's candidate, A/A), or of the holdout."""

    label: str
    kind: Literal["baseline", "gate", "measurement", "evaluation"]
    line: int
    """Number of the ledger line it is from."""
    decision: Decision | None = None
    """A gate's verdict."""
    against: str = ""
    """Label of the column that a gate's candidate is compared with."""
    cells: tuple[PanelCell, ...]

    @property
    def passes(self) -> int:
        """Rollouts that resolved their task."""
        return sum(r.outcome == "resolved" for cell in self.cells for r in cell.rollouts)

    @property
    def rollouts(self) -> int:
        """All that ran, errored ones included."""
        return sum(len(cell.rollouts) for cell in self.cells)


class GateResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    decision: Decision
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
    saved: int = 0
    """Panel rollouts that were not run, because the verdict was certain without them."""
    saved_usd: float = 0.0
    """Their cost at the mean of what was run; 0 where no cost is known."""
    again: int = 0
    """How many of them repeated the measurement."""
    total: int
    """Panel rollouts: N * r, and as many again where an apparent accept had to repeat."""
    kept: int
    unknown: int
    version: int
    """Of the bank after it."""
    worse: tuple[str, ...] = ()
    """Panel tasks that an accept makes worse, like `TASK 2/2 -> 0/2`."""

    @property
    def bounded(self) -> bool:
        """Whether only a reject's upper end says something: what did not run is no failure."""
        return self.decision == "reject" and self.low < self.high


class BankSize(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How big the bank was from a stream position on."""

    position: int
    principles: int
    skills: int


class ProposedItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item that a model or the bank's owner proposed, whatever became of it."""

    kind: Kind
    name: str
    state: ItemState
    why: str = ""
    """Why it is not in the bank, or what it was merged into."""
    text: str = ""
    """Empty in ledgers that do not hold the text of duplicates."""
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
    sources: tuple[SourceAttempt, ...] = ()
    """The attempts it was contrasted from."""

    @property
    def owned(self) -> bool:
        """Whether the bank's owner put it in; no attempts taught it."""
        return is_owners(self.task_id)


class HoldoutReading(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class LedgerLine(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ledger line."""

    number: int
    type: str
    words: str
    problem: str = ""
    """What verification found wrong here."""
    data: Entry


class TriedText(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `valve try` in this repository, on this machine."""

    recorded_at: float
    """Seconds since the epoch."""
    verdict: str
    """The answer, in a sentence."""
    pairs: int


class PanelFacts(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The panel in force."""

    tasks: int
    rollouts: int
    rho: str
    pairing: Pairing


class RunReport(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
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
    gates: tuple[GateResult, ...]
    scores: tuple[VersionScore, ...]
    checkpoints: tuple[HoldoutReading, ...]
    sizes: tuple[BankSize, ...]
    columns: tuple[PanelColumn, ...]
    """Every measurement of the panel."""
    evaluations: tuple[PanelColumn, ...]
    """The evaluations on the holdout, in the order of `checkpoints`."""
    items: tuple[ProposedItem, ...]
    advice: str
    """What helps where proposals could not be judged or none passed its screen; empty where that did not happen."""
    spent: tuple[RoleCost, ...]
    speculation: dict[str, float]
    """Rollouts that idle workers made early, what of it was wasted, and its USD; empty where they made none."""
    clock: ClockTime | None
    """None: not known of everything that ran."""
    certificate: Certificate
    odds: GatePlan | None
    """The next query; None before a complete panel."""
    outlook: RunPlan | None
    """As many queries as were declared, from here on."""
    ledger: tuple[LedgerLine, ...]
    tasks: dict[str, str]
    """Task id -> its function and file, of tasks that this machine has."""
    trials: tuple[TriedText, ...]
    """The latest first."""
    problems: tuple[str, ...]
    """What verification found, besides what belongs to one line."""

    @property
    def accepts(self) -> tuple[GateResult, ...]:
        """Gates that accepted their proposal."""
        return tuple(g for g in self.gates if g.decision == "accept")

    @cached_property
    def verdicts(self) -> Mapping[str, Sequence[GateResult]]:
        """Gates by the id of the proposal that they judged; a query that went on has several."""
        found: dict[str, list[GateResult]] = defaultdict(list)
        for gate in self.gates:
            found[gate.proposal_id].append(gate)
        return dict(found)

    @property
    def ran(self) -> bool:
        """Whether the ledger or this machine knows of any rollout but a person's own."""
        return bool(self.spent or self.columns or self.checkpoints or any(not is_live(p.task_id) for p in self.stream))
