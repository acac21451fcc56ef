"""What one event of a run says in a line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from valve_plugin.words import plural


def line(name: str, data: Mapping[str, Any]) -> str:
    """Return what one event says; empty for those that only move a figure.

    Raises:
        KeyError: the event lacks what its name promises.
    """
    say = _SAY.get(name)
    return say(data) if say else ""


def wait_told(data: Mapping[str, Any]) -> str:
    """Return why a run waits, and before which try."""
    return f"{data['said']}, try {data['try']} of {data['of']}"


def _task_line(data: Mapping[str, Any]) -> str:
    mixed = "mixed" if 0 < data["passed"] < data["attempts"] else "not mixed"
    return f"task      {data['task_id']}: {data['passed']} of {data['attempts']} passed, {mixed}"


def _proposed_line(data: Mapping[str, Any]) -> str:
    gone = [f"without {name}" for name in data.get("removes", ())]
    what = ", ".join([*data["items"], *gone]) or f"nothing ({data['reason']})"
    return f"proposed  {what}" + (f"; {data['withheld']} withheld" if data["withheld"] else "")


def _verdict_line(data: Mapping[str, Any]) -> str:
    wanted = data["current_passes"] + data["needed"]
    ran = f"{data['rollouts']} of {plural(data['of'] * (1 + data['repeated']), 'rollout')}"
    if data["decision"] == "accept":
        passes = plural(data["candidate_passes"], "pass", "passes")
        return f"accepted  {passes}, {wanted} needed; now version {data['version']}"
    if data["decision"] == "reject":
        if data["net"][1] >= data["needed"]:
            return f"rejected  a panel task lost more passes than the guard allows, after {ran}"
        if data["rollouts"] and data["net"][0] == data["net"][1]:  # nothing is open any more
            passes = plural(data["current_passes"] + data["net"][1], "pass", "passes")
            return f"rejected  {passes}, {wanted} needed, after {ran}"
        if not data["rollouts"]:
            return f"rejected  {_passes(wanted)} out of reach by what is known; no rollout was needed"
        return f"rejected  {_passes(wanted)} out of reach after {ran}"
    return f"undecided {ran} in, but errored ones could change the verdict"


def _passes(wanted: int) -> str:
    return "1 pass is" if wanted == 1 else f"{wanted} passes are"


_SAY: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "loading": lambda data: "loading   the agents, which takes a moment",
    "task_finished": _task_line,
    "extracting": lambda data: f"extract   the model contrasts {plural(data['attempts'], 'attempt')}",
    "proposed": _proposed_line,
    "baseline_started": lambda data: (
        f"baseline  {plural(data['rollouts'], 'rollout')} of the current bank on the panel"
    ),
    "baseline": lambda data: f"baseline  {data['passes']} of {data['rollouts']} passed",
    "aa_started": lambda data: (
        f"A/A {data['number']:<5} of {data['of']}: {plural(data['rollouts'], 'fresh rollout')} of the current bank"
    ),
    "aa": lambda data: f"A/A {data['number']:<5} {data['passes']} of {data['rollouts']} passed",
    "left_out_started": lambda data: (
        f"without   {data['kind']} {data['name']} ({data['number']} of {data['of']}): "
        f"{plural(data['rollouts'], 'rollout')}"
    ),
    "gate_started": lambda data: (
        f"gate {data['query']:<4} needs {plural(data['current_passes'] + data['needed'], 'pass', 'passes')}"
    ),
    "confirm_started": lambda data: f"confirm   reached; has to repeat on {plural(data['rollouts'], 'fresh rollout')}",
    "verdict": _verdict_line,
    "waiting": lambda data: f"waiting   {wait_told(data)}, next in {max(1, ceil(data['seconds']))} s",
    "paused": lambda data: f"paused    {data['reason']}",
    "taken": lambda data: f"taken     without a gate; now version {data['version']}",
    "stale": lambda data: f"stale     {data['reason']}",
}
