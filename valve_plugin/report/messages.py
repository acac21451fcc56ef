"""What a figure shows, in a sentence: for who cannot see it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from valve_plugin.report.captions import rolling
from valve_plugin.report.overview import duration
from valve_plugin.report.run import Run
from valve_plugin.report.words import counted


def each(runs: Sequence[Run], message: Callable[[Run], str]) -> str:
    """Return the message of one run, or of two with their letters."""
    told = [(letter, message(run)) for letter, run in zip("AB", runs, strict=False)]
    return " ".join(f"{f'{letter}: ' if len(runs) > 1 else ''}{said}." for letter, said in told if said)


def of_stream(run: Run) -> str:
    """Return where the curve ends, and what came in on the way."""
    if not run.stream:
        return ""
    came = counted(sum(p.accepted for p in run.stream), "proposal")
    return f"The rate ends at {rolling(run.stream)[-1]:.0%} after {counted(len(run.stream), 'task')}; {came} came in"


def of_holdout(run: Run) -> str:
    """Return every reading."""
    return ", ".join(
        f"version {c.version}: {c.low:.1%}{f' to {c.high:.1%}' if c.low < c.high else ''}" for c in run.checkpoints
    )


def of_gates(run: Run) -> str:
    """Return how many gates decided what."""
    words = {"accept": "accepted", "reject": "rejected", "indecisive": "left open"}
    seen = Counter(words[g.decision] for g in run.gates)
    return f"Of {counted(len(run.gates), 'gate')} {', '.join(f'{n} {word}' for word, n in seen.items())}"


def of_cost(run: Run) -> str:
    """Return the time of each role."""
    return ", ".join(f"{s.role} {duration(s.hours)}" for s in run.spent)
