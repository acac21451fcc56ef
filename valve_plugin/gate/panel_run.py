"""The panel run: a process that runs the rollouts of a plan, and the stream of lines that it prints.

`run_panel` implements `valve panel run`; `panel_process` starts that command and reads its output. A rollout is durable
before its line is printed, so a rollout that was read never has to run again. `leave_out` runs the panel without each
item, for reports only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, as_completed
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Any, NoReturn

import msgspec
import pluggy

from valve_plugin.agents import process as agent_process
from valve_plugin.agents.protocol import payment_of
from valve_plugin.bank.entries import EpochOpened, LeftOut
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, convert, decode, plain
from valve_plugin.config import Settings
from valve_plugin.errors import BankError, BankNotFoundError, BudgetError, InfrastructureError, RecordError, ValveError
from valve_plugin.events import (
    Event,
    LeaveOutMeasured,
    LeaveOutStarted,
    Observe,
    RolloutCut,
    RolloutFinished,
    event_of,
    ignore,
)
from valve_plugin.gate.plan import (
    Plan,
    PlannedRollout,
    Stage,
    fixed_panel,
    left_out_plan,
    panel_settings,
    panel_tasks,
    require_solver,
)
from valve_plugin.records import Attempt, Item, PanelOutcome, Proposal, Source
from valve_plugin.rollouts import share
from valve_plugin.rollouts.attempt import read_trajectory, rollout_key, solver_of
from valve_plugin.rollouts.retry import Guard, OnSpend, RunAttempt, limits_of
from valve_plugin.rollouts.workers import Workers
from valve_plugin.sandbox.supervisor import VALVE_MAIN, kill_tree, python_command
from valve_plugin.tasks.task_set import TaskSet
from valve_plugin.theory.budget import mean_rollout_cost
from valve_plugin.words import plural

CUT = "cut"
"""Telemetry kind of rollouts that were stopped before their end."""
_WHERE = "valve panel run"
_GRACE_SECONDS = 10.0
"""Seconds that a panel run gets to end its rollouts by itself."""


class PanelLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished rollout in the stream that `valve panel run` prints."""

    outcome: PanelOutcome
    """The outcome in the form of the ledger."""
    telemetry: dict[str, Any] = {}
    """Cost, time and other facts; informational only."""


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line about spending, printed only under a budget: a rollout started, or its cost in USD."""

    usd: float
    rollouts: int


class _EventLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line with an event."""

    event: str
    data: dict[str, Any] = {}


Line = PanelLine | Charge | Event


def write_line(line: Line) -> bytes:
    """Return the line as bytes."""
    return canonical(_EventLine(line.name, line.data) if isinstance(line, Event) else line)


def read_line(raw: bytes) -> Line:
    """Return one line of the stream.

    Raises:
        RecordError: it is not a valid line.
    """
    found = decode(raw, dict[str, Any], where=_WHERE)
    if "event" in found:
        told = convert(found, _EventLine, where=_WHERE)
        return event_of(told.event, told.data)
    if "usd" in found:
        return convert(found, Charge, where=_WHERE)
    return convert(found, PanelLine, where=_WHERE)


def rollout_finished(line: PanelLine, done: int, of: int) -> RolloutFinished:
    """Return the event of a finished rollout: number `done` of `of` rollouts in the plan."""
    return convert({**line.telemetry, "done": done, "of": of}, RolloutFinished, where=_WHERE)


def run_durably(
    attempt: RunAttempt,
    local: LocalStore,
    settings: Settings,
    cell: PlannedRollout,
    source: Source,
    observe: Observe = ignore,
    *,
    early: bool = False,
) -> Attempt:
    """Return the attempt of a planned rollout. It is run at most once, even if the process is killed.

    An errored rollout is not put into the journal, so the next process tries it again. A rollout that is stopped before
    its end is observed as `RolloutCut`.

    Args:
        early: nobody asked for it yet, so it is no result.
    """
    key = rollout_key(settings, cell.task, cell.context, cell.ordinal)
    with share.claim(key):
        known = local.journal_get(key)
        if known is not None:
            if not early:
                local.use(known)
            return known
        try:
            done = attempt(settings=settings, task=cell.task, context=cell.context, ordinal=cell.ordinal, source=source)
        except CancelledError as e:
            had = payment_of(e)
            cut = RolloutCut(
                task_id=cell.task.instance_id,
                ordinal=cell.ordinal,
                context_hash=cell.context.hash,
                source=source,
                steps=had.calls,
                cost_usd=had.usd,
            )
            local.write_telemetry(CUT, cut.data)
            observe(cut)
            raise
        kept = local.add_attempt(done, _trajectory(done), early=early)
        local.write_telemetry("rollouts", rollout_facts(kept))
        if kept.outcome != "errored":
            local.journal_put(key, kept)
        return kept


def _trajectory(attempt: Attempt) -> bytes | None:
    try:
        return read_trajectory(attempt) if attempt.trajectory else None
    except BankNotFoundError:  # old trajectories are removed; the outcome is valid without them
        return None


def panel_outcome(cell: PlannedRollout, attempt: Attempt) -> PanelOutcome:
    """Return the outcome of a rollout in the form of the ledger."""
    assert attempt.outcome != "ungraded"  # panel and holdout tasks have tests
    return PanelOutcome(
        task_id=cell.task.instance_id,
        ordinal=cell.ordinal,
        outcome=attempt.outcome,
        context_hash=cell.context.hash,
    )


def rollout_facts(attempt: Attempt) -> dict[str, Any]:
    """Return the facts about a rollout for events and telemetry; informational only."""
    names = ("task_id", "ordinal", "context_hash", "source", "outcome", "reason", "fault", "exit_status", "steps",
             "cost_usd", "model")  # fmt: skip
    return {name: getattr(attempt, name) for name in names} | {"seconds": round(attempt.seconds, 3)}


class _Starter:
    """Starts the rollouts of a plan, on worker threads, until the finished ones decide."""

    def __init__(self, start: Callable[[PlannedRollout], Attempt], stage: Stage | None) -> None:
        self._start, self._stage = start, stage
        self._found: dict[tuple[str, int], PanelOutcome] = {}
        self._lock = threading.Lock()
        self._decided = stage is not None and stage({})[1] is not None

    def __call__(self, cell: PlannedRollout) -> Attempt | None:
        """Return the attempt, or None if it is no longer needed.

        The worker itself checks after each rollout whether the verdict is certain. The judge, which reads the stream,
        would notice too late to prevent the next start.
        """
        if self._decided:
            return None
        done = self._start(cell)
        if self._stage:
            with self._lock:
                self._found[cell.task.instance_id, cell.ordinal] = panel_outcome(cell, done)
                self._decided = self._decided or self._stage(self._found)[1] is not None
        return done


def run_panel(
    attempt: RunAttempt,
    local: LocalStore,
    settings: Settings,
    plan: Plan,
    emit: Callable[[Line], None],
    stage: Stage | None = None,
) -> None:
    """Run a plan and emit a line for each finished rollout. They start in canonical order and end in any order.

    `stage` says whether what has ended decides; then nothing more starts. Lines are emitted from any thread.
    Ctrl-C ends the running rollouts; their cost is emitted, and also rollouts that have just ended.

    Raises:
        InfrastructureError: host or provider fail again and again; the rollouts that still ran are ended.
        BudgetError: a limit of the settings is reached; the rollouts that still ran are awaited and emitted first.
    """
    guard = Guard(
        attempt,
        limits_of(settings),
        observe=emit,
        usd_each=_expected_usd(local, settings),
        spending=lambda usd, rollouts: emit(Charge(usd, rollouts)),
    )
    stopped: BudgetError | None = None
    starter = _Starter(lambda cell: run_durably(guard, local, settings, cell, "panel", emit), stage)

    def report(cell: PlannedRollout, done: Attempt) -> None:
        facts = {**rollout_facts(done), "replayed": not guard.ran(done)}
        emit(PanelLine(outcome=panel_outcome(cell, done), telemetry=facts))

    with Workers(settings.workers) as executor:
        jobs = {executor.submit(partial(starter, cell)): cell for cell in plan.cells}
        try:
            for job in as_completed(list(jobs)):
                cell = jobs.pop(job)
                try:
                    done = job.result()
                except BudgetError as e:
                    stopped = e
                    continue
                if done is not None:
                    guard.check()  # before an errored rollout can count for anything
                    report(cell, done)
        except KeyboardInterrupt:
            executor.kill()
            for job, cell in jobs.items():
                if not job.cancelled() and job.exception() is None and (done := job.result()) is not None:
                    report(cell, done)
            raise
    if stopped:
        raise stopped


def _expected_usd(local: LocalStore, settings: Settings) -> float:
    """Return the expected cost of a rollout in USD. It prevents overspending by parallel starts."""
    if not settings.budget_usd:
        return 0.0
    recorded = local.read_telemetry("rollouts")
    return (
        mean_rollout_cost(r for r in recorded if r.get("model", "") in ("", settings.model or r.get("model"))).usd
        or 0.0
    )


def stop_with(parent: int) -> None:
    """End this process like Ctrl-C on SIGTERM, or when the process `parent` (0: none) has ended."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)
    if parent:
        threading.Thread(target=watch, daemon=True).start()


def panel_process(
    settings: Settings,
    bank_dir: Path,
    proposal: Proposal | None,
    *,
    observe: Observe = ignore,
    charge: OnSpend = lambda usd, rollouts: None,
    unused: Callable[[PanelLine], None] = lambda line: None,
    confirm: bool = False,
) -> Generator[PanelLine, None, None]:
    """Run `valve panel run` and yield its rollouts. Closing the generator stops the run and all its rollouts.

    Args:
        settings: complete settings of the run; they travel in a file without a name, since they may hold keys. With
            `early_stop`, nothing starts after the rollouts that decide about the proposal.
        bank_dir: the bank.
        proposal: what to measure; None: the current bank.
        observe: gets the events of the run.
        charge: gets what the run spends, in USD and rollouts, where the settings have a budget.
        unused: gets rollouts that ended after the generator was closed.
        confirm: measure it on the rollouts after those of its first measurement.

    Raises:
        BudgetError: the run stopped at a limit of the settings.
        InfrastructureError: the run ended with that kind of error, or died.
        ValveError: the run was used wrongly; the message is its own.
    """
    lines: SimpleQueue[bytes | None] = SimpleQueue()

    def handle(raw: bytes) -> PanelLine | None:
        line = read_line(raw)
        if isinstance(line, PanelLine):
            return line
        charge(line.usd, line.rollouts) if isinstance(line, Charge) else observe(line)
        return None

    with tempfile.TemporaryFile() as errors:
        process = _start(settings, bank_dir, proposal, errors, confirm=confirm)
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        try:
            while (raw := lines.get()) is not None:
                if line := handle(raw):
                    yield line
            _check(process.wait(), errors)
        finally:
            _stop(process)
            reader.join(1.0)
            with suppress(Empty, RecordError):  # the last line may be torn
                while (raw := lines.get_nowait()) is not None:
                    if line := handle(raw):
                        unused(line)


def _start(
    settings: Settings, bank_dir: Path, proposal: Proposal | None, errors: IO[bytes], *, confirm: bool
) -> subprocess.Popen[bytes]:
    with ExitStack() as stack:
        settings_file = stack.enter_context(_nameless(canonical(plain(settings))))
        passed, what = [settings_file], ["--current"]
        if proposal is not None:
            passed.append(stack.enter_context(_nameless(canonical(proposal))))
            what = ["--proposal", _path(passed[-1]), *["--confirm"] * confirm]
            what += ["--until-decided"] * settings.early_stop
        return subprocess.Popen(
            python_command(
                *(VALVE_MAIN, "panel", "run", "--bank", str(bank_dir), *what, "--settings", _path(settings_file)),
                *("--parent", str(os.getpid()), "--fork-server", agent_process.server_address()),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=[file.fileno() for file in passed],
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the other
        )


def _nameless(data: bytes) -> IO[bytes]:
    """Return an open file without a name; it disappears with the processes that have it open."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(data)
    file.seek(0)
    return file


def _path(file: IO[bytes]) -> str:
    """Return the path under which a child process opens an inherited file."""
    return f"/dev/fd/{file.fileno()}"


def _read(process: subprocess.Popen[bytes], lines: SimpleQueue[bytes | None]) -> None:
    """Queue what the process prints, then None."""
    assert process.stdout is not None
    with process.stdout:
        for raw in process.stdout:
            lines.put(raw)
    lines.put(None)


def _check(code: int, errors: IO[bytes]) -> None:
    """Turn a failed panel run into the error it reported."""
    if code == 0:
        return
    errors.seek(0)
    said = errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
    last = said[-1].removeprefix("valve: ") if said else ""
    if code == BudgetError.exit_code:
        raise BudgetError(last or "the budget is used up")
    if code == InfrastructureError.exit_code and last:
        raise InfrastructureError(last)
    message = f"the panel run failed (exit status {code}): {last or 'it printed nothing on stderr'}"
    raise ValveError(message) if code == ValveError.exit_code else InfrastructureError(message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the run; it gets some seconds to end its rollouts itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
            return
        kill_tree(process.pid)
        process.wait()


def leave_out(
    manager: pluggy.PluginManager,
    store: BankStore,
    settings: Settings,
    taskset: TaskSet,
    observe: Observe = ignore,
) -> None:
    """Measure the panel without each item of the current bank, one line of the ledger per item.

    Only tasks whose context changes without the item are run, each `rollouts` times, on unused ordinals. After an
    interruption, the next start continues.

    Args:
        manager: the run's plugins.
        store: the bank; its panel was measured.
        settings: of the run; the panel's own win.
        taskset: the one its panel was chosen from.
        observe: gets LeaveOutStarted, RolloutFinished and LeaveOutMeasured.

    Raises:
        BankError: no panel is fixed, or the bank was not measured on it in the open epoch, or by another solver.
        RecordError: a verdict is undecided.
        InfrastructureError: rollouts errored; run again to retry those.

    Source: sec:bank-growth measures items alone on the holdout; this is the other side, with all others in place.
    """
    fixed = fixed_panel(store)
    settings = panel_settings(settings, fixed)
    members = panel_tasks(fixed, taskset.tasks)
    epoch = store.epoch()
    if epoch is None or store.current_outcomes() is None:
        raise BankError(f"{store.dir}: the bank was not measured on the panel in this epoch; `valve evolve` does that")
    require_solver(store, settings)
    solver = solver_of(settings)
    todo = _items_left(store, epoch, solver)
    for number, item in enumerate(todo, 1):
        plan = left_out_plan(settings, store, members, item.key, manager.hook.valve_retrieve)
        about: dict[str, Any] = {"kind": item.kind, "item": item.name, "number": number, "of": len(todo)}
        observe(LeaveOutStarted(**about, rollouts=len(plan.cells)))
        outcomes = _all_outcomes(manager, store, settings, plan, observe)
        store.append(
            LeftOut(epoch=epoch.epoch, without=item.key, bank_hash=store.bank.hash, outcomes=outcomes, solver=solver)
        )
        observe(LeaveOutMeasured(**about, tasks=len(plan.order), rollouts=len(outcomes)))


def _items_left(store: BankStore, epoch: EpochOpened, solver: str) -> list[Item]:
    """Return the items whose leave-one-out measurement is missing for this bank, epoch and solver."""
    readings = (e for e in store.entries() if isinstance(e, LeftOut) and e.solver == solver)
    known = {e.without for e in readings if (e.epoch, e.bank_hash) == (epoch.epoch, store.bank.hash)}
    return [item for item in store.bank.items if item.key not in known]


def _all_outcomes(
    manager: pluggy.PluginManager, store: BankStore, settings: Settings, plan: Plan, observe: Observe
) -> tuple[PanelOutcome, ...]:
    """Run all rollouts of the plan; return the outcomes in panel order."""
    found: dict[tuple[str, int], PanelOutcome] = {}

    def emit(line: Line) -> None:
        if isinstance(line, PanelLine):
            found[line.outcome.task_id, line.outcome.ordinal] = line.outcome
            observe(rollout_finished(line, len(found), len(plan.cells)))
        elif isinstance(line, Event):
            observe(line)

    run_panel(manager.hook.valve_attempt, store.local, settings, plan, emit)
    lost = sum(o.outcome == "errored" for o in found.values())
    if lost:
        raise InfrastructureError(
            f"{lost} of {plural(len(plan.cells), 'rollout')} errored; the next start retries only those"
        )
    return tuple(found[cell.task.instance_id, cell.ordinal] for cell in plan.cells)
