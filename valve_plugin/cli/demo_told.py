"""What `valve demo` shows of its two runs: a table, a curve, and what the gate kept out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin.cli import output
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.cli.session import Run
    from valve_plugin.evolve.summary import Row
    from valve_plugin.records import Attempt

_SHOWN_LINES = 14
GATED, UNGATED = "G", "u"


class Step(NamedTuple):
    """One stream task in one run."""

    passed: int
    attempts: int
    row: Row | None
    """What was proposed; None: the attempts were not mixed."""

    def cells(self) -> list[object]:
        """Return passed, what became of the proposal, and the bank's version after it."""
        passed = f"{self.passed}/{self.attempts}"
        return [passed, self.row.outcome, self.row.version] if self.row else [passed, "", ""]


class Told:
    """Both runs, by task."""

    def __init__(self, gated: Run, ungated: Run) -> None:
        self.gated, self.ungated = gated, ungated
        self.steps = {"gated": _steps(gated), "ungated": _steps(ungated)}

    def facts(self) -> dict[str, Any]:
        """Return everything as plain data."""
        from valve_plugin.cli.evolve import facts

        found: dict[str, Any] = {}
        for name, run in (("gated", self.gated), ("ungated", self.ungated)):
            steps = self.steps[name]
            passed = {task: step.passed for task, step in steps.items()}
            found[name] = {**facts(run.store), "passed": passed, "share": _shares(steps)[-1:]}
        carried = _carried(self.gated)
        items = [f"{kind}: {name}" for kind, name in carried[0].context_items] if carried else []
        return {**found, "carried": {"task_id": carried[0].task_id, "items": items} if carried else None}

    def show(self, problems: list[str], folder: Path) -> None:
        """Print everything."""
        from valve_plugin.simulate.server import BANNER

        output.say()
        self._table()
        self._curve()
        self._panel()
        self._block()
        verdict = "; ".join(problems) or "both intact; every verdict follows from its stored outcomes"
        output.say(f"\nvalve bank verify: {verdict}")
        output.say(f"banks and ledgers: {folder}/*/bank; attempts, trajectories and telemetry: {folder}/*/local")
        for command in ("bank log", "bank list", "certify"):
            output.say(f"  valve {command} --bank {quote(str(self.gated.store.dir))}")
        both = " ".join(quote(str(run.store.dir)) for run in (self.gated, self.ungated))
        output.say(f"  valve report --compare {both} --open")
        output.say(BANNER, style="bold yellow")

    def _table(self) -> None:
        gated, ungated = self.steps["gated"], self.steps["ungated"]
        table = [
            [task.rpartition(".")[2], *step.cells(), *ungated[task].cells()]
            for task, step in gated.items()
            if task in ungated
        ]
        output.table(["TASK", "GATED", "VERDICT", "VERSION", "UNGATED", "TAKEN", "VERSION"], table)
        for name, run in (("gated", self.gated), ("ungated", self.ungated)):
            bank, steps = run.store.bank, self.steps[name]
            passed, ran = sum(s.passed for s in steps.values()), sum(s.attempts for s in steps.values())
            items = output.plural(len(bank.items), "item")
            output.say(
                f"{name:8} {passed} of {output.plural(ran, 'attempt')} passed; version {bank.version} holds {items}"
            )

    def _curve(self) -> None:
        from valve_plugin.report.curve import SAME, curve

        output.say("\nShare of all attempts so far that passed, by task; each was attempted before it could teach:")
        marks = {GATED: _shares(self.steps["gated"]), UNGATED: _shares(self.steps["ungated"])}
        for line in curve(marks):
            output.say(line)
        output.say(f"       {GATED} gated   {UNGATED} ungated   {SAME} both")

    def _panel(self) -> None:
        from valve_plugin.evolve.summary import scores

        output.say("\nPanel passes of each version the gate let in (in-sample: the gate selected by them):")
        for score in scores(self.gated.store.entries()):
            bar = "#" * round(30 * score.passes / score.rollouts)
            output.say(f"  version {score.version}  {bar:<30}  {score.passes}/{score.rollouts}")

    def _block(self) -> None:
        if (found := _carried(self.gated)) is None:
            return
        attempt, block = found
        output.say(f"\nFrom then on the system prompt carried them; {attempt.task_id} got:")
        lines = block.splitlines()
        for line in lines[:_SHOWN_LINES]:
            output.say(f"  | {line}")
        if len(lines) > _SHOWN_LINES:
            output.say(f"  ... {output.plural(len(lines) - _SHOWN_LINES, 'more line')}")


def problems(bank: Path) -> list[str]:
    """Return what `valve bank verify` would refuse."""
    from valve_plugin.bank.verify import verify

    return [finding.message for finding in verify(bank) if finding.level == "error"]


def _steps(run: Run) -> dict[str, Step]:
    """Return what happened at each stream task that was attempted, in stream order."""
    from valve_plugin.evolve.summary import rows

    proposed = {row.task_id: row for row in rows(run.store.entries())}
    attempts: dict[str, list[Attempt]] = {}
    for attempt in run.store.local.attempts():
        if attempt.source == "evolve":
            attempts.setdefault(attempt.task_id, []).append(attempt)
    found = {}
    for task in (t.instance_id for t in run.stream if t.instance_id in attempts):
        passed = sum(a.outcome == "resolved" for a in attempts[task])
        found[task] = Step(passed, len(attempts[task]), proposed.get(task))
    return found


def _shares(steps: dict[str, Step]) -> list[float]:
    from valve_plugin.report.curve import running_share

    return running_share([s.passed for s in steps.values()], [s.attempts for s in steps.values()])


def _carried(run: Run) -> tuple[Attempt, str] | None:
    """Return the first stream attempt whose system message ends with a block, and that block, out of its trajectory."""
    from valve_plugin.codec import decode

    for attempt in run.store.local.attempts():
        if attempt.source == "evolve" and attempt.context_items:
            trajectory = decode(run.store.local.trajectory(attempt), dict[str, Any], where="trajectory")
            block = _ending_with_hash(str(trajectory["messages"][0]["content"]), attempt.context_hash)
            if block:
                return attempt, block
    return None


def _ending_with_hash(text: str, wanted: str) -> str:
    """Return the lines at the end of `text` that have this hash: what was injected, byte for byte; else nothing."""
    from valve_plugin.codec import digest_bytes

    starts = [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]
    endings = (text[start:] for start in starts)
    return next((ending for ending in endings if digest_bytes(ending.encode("utf-8", "surrogatepass")) == wanted), "")
