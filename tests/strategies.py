"""Hypothesis strategies shared by all tests: valid records, and legal histories of a bank."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from valve_plugin.bank import moves
from valve_plugin.bank.entries import (
    AttemptNote,
    Baseline,
    Entry,
    EpochOpened,
    Evaluated,
    Judged,
    Opened,
    OwnerAct,
    PanelFixed,
    Proposed,
    Taken,
)
from valve_plugin.codec import digest
from valve_plugin.records import (
    Attempt,
    Bank,
    Conditions,
    Decision,
    Hash,
    Item,
    Kind,
    Merge,
    Name,
    Outcome,
    Panel,
    PanelOutcome,
    PanelResult,
    PanelTask,
    Proposal,
    Suppressed,
    Task,
    Verdict,
)
from valve_plugin.tasks.repository import Repository
from valve_plugin.tasks.split import Split
from valve_plugin.theory import gate_rule

MAX_COUNT = 2**53
counts = st.integers(0, MAX_COUNT)
positives = st.integers(1, MAX_COUNT)
hashes = st.integers(0, 2**40).map(digest)
kinds: SearchStrategy[Kind] = st.sampled_from(["principle", "skill"])
outcomes_known: SearchStrategy[Outcome] = st.sampled_from(["resolved", "unresolved"])
outcomes: SearchStrategy[Outcome] = st.sampled_from(["resolved", "unresolved", "errored"])


def texts(min_size: int = 0, max_size: int = 30) -> SearchStrategy[str]:
    """Any text that has a JSON form: everything but lone surrogates."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size, max_size=max_size)


conditions = st.just(UNSET) | st.builds(
    Conditions, confirm=st.booleans(), guard=st.integers(0, 3), fresh=st.integers(0, 2), bet=st.sampled_from([0, 2])
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
ids = texts(1, 12)
amounts = st.floats(0, 1e12)


def records(cls: type[Any], **own: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Records of a class: each field anything that its type allows, or what `own` has for it."""
    hints = get_type_hints(cls, include_extras=True)
    fields = (field.name for field in msgspec.structs.fields(cls))
    return st.builds(cls, **{name: own[name] if name in own else of_type(hints[name]) for name in fields})


def of_type(kind: Any) -> SearchStrategy[Any]:
    """Values of a field's type."""
    plain = {str: texts(), int: st.integers(-MAX_COUNT, MAX_COUNT), float: amounts, bool: st.booleans()}
    origin, args = get_origin(kind), get_args(kind)
    if kind in (Name, Hash):
        return names if kind == Name else hashes
    if origin is Annotated:
        base, meta = args
        if base is str:
            return texts(meta.min_length or 0)
        if base is int:
            return st.integers(meta.ge, MAX_COUNT)
        return (
            of_type(base).filter(bool) if meta.min_length else st.floats(meta.ge, 1e12 if meta.le is None else meta.le)
        )
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        several = st.lists(of_type(args[0]), max_size=3).map(tuple)
        return several if args[1:] == (...,) else st.tuples(*map(of_type, args))
    if args:  # a union
        return st.one_of(*map(of_type, args))
    if kind in (type(None), UnsetType):
        return st.just(UNSET if kind is UnsetType else None)
    return plain[kind] if kind in plain else records(kind)


def items(kind: Kind | None = None, created_step: SearchStrategy[int] = counts) -> SearchStrategy[Item]:
    """Items of one kind, or of both."""
    return records(Item, kind=st.just(kind) if kind else kinds, created_step=created_step, judged=st.just(UNSET))


def unique(strategy: SearchStrategy[Item], max_size: int) -> SearchStrategy[tuple[Item, ...]]:
    """Several items, no two with the same kind and name."""
    return st.lists(strategy, max_size=max_size, unique_by=lambda item: item.key).map(tuple)


banks = records(Bank, principles=unique(items("principle"), 3), skills=unique(items("skill"), 3))
left_out = st.just(UNSET) | items(created_step=st.just(0))
proposals = records(
    Proposal,
    task_id=ids,
    items=unique(items(created_step=st.just(0)), 4),
    merges=st.lists(records(Merge, item=left_out), max_size=2).map(tuple),
    suppressed=st.lists(records(Suppressed, item=left_out), max_size=2).map(tuple),
    removes=st.just(UNSET),
    withheld=st.just(()),
)
panels = records(
    Panel,
    tasks=st.lists(
        records(PanelTask, instance_id=ids), min_size=1, max_size=3, unique_by=lambda task: task.instance_id
    ).map(tuple),
    rollouts=st.integers(1, 3),
    rho=st.sampled_from(["0.02", "0.1", "0.3"]),
    embedding=st.just("hashing"),
)
verdicts = records(Verdict)
attempts = records(Attempt, id=ids, task_id=ids, trajectory=st.just(""))
tasks = records(Task)
attempt_notes = records(AttemptNote, task_id=ids)
entries: SearchStrategy[Entry] = st.one_of(
    *(records(cls, **({"proposal": proposals} if cls is Proposed else {})) for cls in get_args(Entry))
)


few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For tests whose every example is a whole history; how long one takes to draw says how busy the machine is."""


class Story(NamedTuple):
    """A legal history and what it must lead to, worked out without the code under test but for `moves.apply`."""

    entries: list[Entry]
    banks: list[Bank]
    """By version."""
    panel: Panel | None
    epoch: EpochOpened | None
    queries: int
    outcomes: tuple[PanelOutcome, ...] | None


class _Teller:
    """Writes one legal history, entry by entry, as an evolve run would."""

    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw
        repo = draw(ids)
        self.entries: list[Entry] = [Opened(repo=repo)]
        self.banks = [Bank(repo=repo)]
        self.panel: Panel | None = None
        self.epoch: EpochOpened | None = None
        self.epochs = self.queries = 0
        self.known: tuple[PanelOutcome, ...] = ()
        self.ordinal = 0

    @property
    def lacking(self) -> list[str]:
        """Panel tasks without outcomes."""
        assert self.panel is not None
        measured = {o.task_id for o in self.known}
        return [t.instance_id for t in self.panel.tasks if t.instance_id not in measured]

    @property
    def outcomes(self) -> tuple[PanelOutcome, ...] | None:
        return None if self.panel is None or self.lacking else self.known

    def fix_panel(self) -> None:
        self.panel = self.draw(panels)
        self.epoch, self.queries, self.known = None, 0, ()
        self.entries.append(PanelFixed(panel=self.panel))

    def open_epoch(self) -> None:
        if self.panel is None:
            self.fix_panel()
        assert self.panel is not None
        self.epochs += 1
        horizon = self.draw(st.integers(1, 4))
        self.epoch = EpochOpened(
            epoch=self.epochs, horizon=horizon, delta="0.05", panel_hash=self.panel.hash, reason=self.draw(texts()),
            conditions=self.draw(conditions),
        )  # fmt: skip
        self.queries, self.known, self.served = 0, (), Counter[str]()
        self.entries.append(self.epoch)

    def measure(self) -> None:
        if self.epoch is None or self.outcomes is not None or self.queries >= self.epoch.horizon:
            self.open_epoch()
        assert self.panel is not None
        assert self.epoch is not None
        found = self._rollouts(self.lacking, outcomes_known)
        result = PanelResult(bank_hash=self.banks[-1].hash, outcomes=found)
        self.known = self._in_panel_order((*self.known, *found))
        self.entries.append(Baseline(epoch=self.epoch.epoch, result=result))

    def evaluate(self) -> None:
        """Any version, or one of its items alone, on two tasks that nothing else uses."""
        version = self.draw(st.integers(0, len(self.banks) - 1))
        frozen = self.banks[version]
        only = self.draw(st.none() | st.sampled_from([i.key for i in frozen.items])) if frozen.items else None
        held = ["held out: a task", "held out: another"]
        found = tuple(
            PanelOutcome(task_id=task, ordinal=j, outcome=self.draw(outcomes), context_hash=digest(version))
            for task in held
            for j in range(2)
        )
        self.entries.append(
            Evaluated(
                holdout=tuple(PanelTask(instance_id=task, content_hash=digest(task)) for task in held),
                rollouts=2,
                version=version,
                only=only,
                bank_hash=(moves.single_item_bank(frozen, only) if only else frozen).hash,
                solver=digest("solver"),
                outcomes=found,
            )
        )

    def propose(self) -> Proposal:
        bank = self.banks[-1]
        taken = {item.key for item in bank.items}
        fresh = self.draw(unique(items(created_step=st.just(0)), 3).map(lambda found: _without(found, taken)))
        repeated = self.draw(st.lists(st.sampled_from(bank.items), max_size=2)) if bank.items else []
        proposal = Proposal(
            task_id=self.draw(ids),
            items=fresh,
            merges=tuple(Merge(kind=i.kind, name=i.name, source_task=self.draw(ids), attempts=3) for i in repeated),
            reason=self.draw(texts()),
        )
        notes = self.draw(st.lists(attempt_notes, max_size=3).map(tuple))
        self.entries.append(Proposed(proposal=proposal, attempts=notes))
        return proposal

    def take(self) -> None:
        """Without a gate, as only a bank may that was never gated."""
        if self.epochs or (proposal := self.propose()).empty:
            return
        before = self.banks[-1]
        self.banks.append(moves.apply(before, proposal))
        self.entries.append(Taken(proposal_id=proposal.id, bank_hash=before.hash, bank_after=self.banks[-1].hash))

    def own(self) -> None:
        """The owner removes an item, adds one, or goes back to an earlier version; the epoch ends."""
        before = self.banks[-1]
        taken = {item.key for item in before.items}
        added = self.draw(unique(items(), 1).map(lambda found: _without(found, taken)))
        removed = tuple(self.draw(st.lists(st.sampled_from(before.items), max_size=1))) if before.items else ()
        act = OwnerAct(
            act="add", reason="as I like", items=added, removes=tuple(i.key for i in removed), bank_hash=before.hash,
            bank_after="",
        )  # fmt: skip
        if before.version and self.draw(st.booleans()):
            to = self.draw(st.integers(0, before.version - 1))
            act = replace(act, act="undo", items=(), removes=(), undo_to=to)
            self.banks.append(moves.restore(before, self.banks[to]))
        elif added or removed:
            self.banks.append(moves.change(before, act.removes, added))
        else:
            return
        self.epoch, self.queries, self.known = None, 0, ()
        self.entries.append(replace(act, bank_after=self.banks[-1].hash))

    def judge(self) -> None:
        proposal = self.propose()
        if proposal.empty:
            return
        if self.epoch is None or self.outcomes is None or self.queries >= self.epoch.horizon:
            self.measure()
        self.queries += 1
        verdict = self._verdict(proposal)
        if verdict.decision == "indecisive" and self.draw(st.booleans()):
            self._record(verdict, proposal)
            verdict = self._verdict(proposal)  # the errored rollouts were run again: the same query
        self._record(verdict, proposal)

    def _record(self, verdict: Verdict, proposal: Proposal) -> None:
        if verdict.decision == "accept":
            self.banks.append(moves.apply(self.banks[-1], proposal))
            self.known = self._in_panel_order(verdict.measured)
        fresh = verdict.conditions.fresh if verdict.conditions else 0
        if fresh and verdict.decision != "indecisive":  # the next gate measures these tasks anew
            for task in set(verdict.order) - {o.task_id for o in verdict.reused}:
                self.served[task] += 1
                if verdict.decision == "accept" or self.served[task] == fresh:
                    del self.served[task]
                    self.known = tuple(o for o in self.known if o.task_id != task)
        self.entries.append(Judged(verdict=verdict, bank_after=self.banks[-1].hash))

    def _in_panel_order(self, found: tuple[PanelOutcome, ...]) -> tuple[PanelOutcome, ...]:
        assert self.panel is not None
        return tuple(o for task in self.panel.tasks for o in found if o.task_id == task.instance_id)

    def _verdict(self, proposal: Proposal) -> Verdict:
        assert self.panel is not None
        assert self.epoch is not None
        assert self.outcomes is not None
        order = tuple(self.draw(st.permutations([task.instance_id for task in self.panel.tasks])))
        needed = gate_rule.needed_passes(self.panel.rho, len(order), self.panel.rollouts)
        asked = self.epoch.conditions or Conditions()
        context = digest(self.ordinal)
        same = self.draw(st.sets(st.sampled_from(order))) if self.panel.pairing == "deployed" else set()
        reused = tuple(o for o in self.outcomes if o.task_id in same)
        rest = [task for task in order if task not in same]
        decision, kept = self._stage(rest, reused, needed, asked, context)
        again = None
        if decision == "accept" and asked.confirm:
            decision, again = self._stage(rest, reused, needed, asked, context)
        return Verdict(
            proposal_id=proposal.id,
            decision=decision,
            epoch=self.epoch.epoch,
            query=self.queries,
            panel_hash=self.panel.hash,
            bank_hash=self.banks[-1].hash,
            pairing=self.panel.pairing,
            rho=self.panel.rho,
            n_tasks=len(order),
            rollouts=self.panel.rollouts,
            needed=needed,
            current_passes=sum(o.outcome == "resolved" for o in self.outcomes),
            candidate_passes=sum(o.outcome == "resolved" for o in kept),
            unknown=sum(o.outcome == "errored" for o in kept),
            order=order,
            outcomes=kept,
            reused=reused,
            conditions=self.epoch.conditions,
            confirming=UNSET if again is None else again,
        )

    def _stage(
        self, order: list[str], reused: tuple[PanelOutcome, ...], needed: int, asked: Conditions, context: str
    ) -> tuple[Decision, tuple[PanelOutcome, ...]]:
        assert self.outcomes is not None
        found = self._rollouts(order, outcomes if self.draw(st.booleans()) else st.just("resolved"), context)
        decision, length = gate_rule.decide_measurement(
            self.outcomes, (*reused, *found), needed, asked.guard, asked.bet
        )
        return decision, found if length is None else found[: max(0, length - len(reused))]

    def _rollouts(
        self, order: list[str], drawn: SearchStrategy[Outcome], context: str = ""
    ) -> tuple[PanelOutcome, ...]:
        """r rollouts for each task, in this order, with ordinals never used before."""
        assert self.panel is not None
        first, r = self.ordinal, self.panel.rollouts
        self.ordinal += r
        return tuple(
            PanelOutcome(
                task_id=task, ordinal=first + j, outcome=self.draw(drawn), context_hash=context or digest(first)
            )
            for task in order
            for j in range(r)
        )


def _without(found: tuple[Item, ...], taken: set[tuple[Kind, str]]) -> tuple[Item, ...]:
    return tuple(item for item in found if item.key not in taken)


@st.composite
def stories(draw: DrawFn, max_steps: int = 6) -> Story:
    """Legal histories: ungated moves, panels, epochs, baselines, proposals and all verdicts, in any legal order."""
    teller = _Teller(draw)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        teller.take()
    steps = [*[teller.judge] * 3, teller.propose, teller.measure, teller.open_epoch, teller.evaluate, teller.own]
    for step in draw(st.lists(st.sampled_from([*steps, teller.fix_panel]), max_size=max_steps)):
        step()
    return Story(teller.entries, teller.banks, teller.panel, teller.epoch, teller.queries, teller.outcomes)


repositories = st.builds(
    Repository,
    name=st.sampled_from(["calc", "acme/calc", "a.b-c_d/E"]),
    source=st.sampled_from(["pypi:deepdiff==8.2.0", "path:../source"]),
    sha256=st.just("") | hashes,
    python=st.sampled_from(["", "3.12", "3.10-3.13"]),
    requirements=st.lists(st.from_regex(r"[a-z]{1,8}(==[0-9]{1,3})?", fullmatch=True), max_size=3).map(tuple),
    environment=texts(0, 8),
    source_roots=st.sampled_from([(), (".",), ("src", "lib/x")]),
    test_roots=st.sampled_from([("tests",), ("pkg/tests", "t")]),
    pytest_args=st.lists(texts(0, 8), max_size=2).map(tuple),
    suite=st.sampled_from(["", "suite.txt"]),
    flaky=st.lists(texts(0, 8), max_size=2).map(tuple),
    cpu_seconds=positives,
)

splits = records(Split)
