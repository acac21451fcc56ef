"""The interface of agents: the specification of a rollout, its result, and its messages while it runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

import msgspec

from valve_plugin.agents.faults import EndKind
from valve_plugin.agents.retry import report_step, report_wait
from valve_plugin.codec import canonical, decode
from valve_plugin.config import Settings
from valve_plugin.events import Waiting
from valve_plugin.records import Count, FaultKind, Money

if TYPE_CHECKING:
    from valve_plugin.sandbox.workspace import Workspace

TRAJECTORY = "trajectory.traj.json"
"""File in a rollout's directory, in mini's own format."""


class RolloutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent."""

    task_id: str
    ordinal: int
    issue: str
    block: str
    """The context at the end of the system message, verbatim; may be empty."""
    workspace: Workspace
    settings: Settings
    wall_seconds: float = 4 * 3600.0
    """Time limit in seconds. Reaching it counts as a failure of the infrastructure: agents have a step limit."""


class RolloutResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of an agent ended."""

    ended: EndKind
    reason: str = ""
    """Why there is no patch to grade, in one line. For provider failures it starts with advice."""
    fault: FaultKind = ""
    exit_status: str = ""
    steps: int = 0
    """Model calls."""
    cost_usd: float = 0.0
    model: str = ""
    trajectory: bytes = b""
    """JSON in mini's format; empty if the run ended before its first step."""


class Payment(msgspec.Struct, frozen=True):
    """The sum of the answered model calls. (A call that is cut off is not counted.)"""

    calls: Count = 0
    usd: Money = 0.0


class RolloutCancelledError(CancelledError):
    """A rollout was stopped before its end."""

    def __init__(self, paid: Payment) -> None:
        """Set what it had paid."""
        super().__init__(f"ended after {paid.calls} model calls")
        self.paid = paid


def payment_of(error: CancelledError) -> Payment:
    """Return what a stopped rollout had paid; zero if the error does not say."""
    return error.paid if isinstance(error, RolloutCancelledError) else Payment()


class RolloutMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message from a rollout's process to its caller."""

    wait: Waiting | None = None
    """A wait that starts now."""
    usd: Money | None = None
    """The cost of one answered model call."""
    result: RolloutResult | None = None


class RolloutReporter:
    """Sends a rollout's waits and payments as they happen, so that a kill loses none of them."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def wait(self, wait: Waiting) -> None:
        """Report a wait that starts now."""
        self._send(canonical(RolloutMessage(wait=wait)))

    def pay(self, usd: float) -> None:
        """Report one answered model call and its cost."""
        self._send(canonical(RolloutMessage(usd=usd)))

    def finish(self, result: RolloutResult) -> None:
        """Report how it ended."""
        self._send(canonical(RolloutMessage(result=result)))


class RolloutProgress:
    """Collects the messages of a rollout."""

    def __init__(self) -> None:
        self.paid = Payment()
        self.result: RolloutResult | None = None

    def receive(self, message: bytes) -> None:
        """Process one message; waits and answered calls are passed on to who listens in this thread.

        Raises:
            RecordError: it is not a valid message.
        """
        report = decode(message, RolloutMessage, where="report")
        if report.wait is not None:
            report_wait(report.wait)
        if report.usd is not None:
            self.paid = Payment(self.paid.calls + 1, self.paid.usd + report.usd)
            report_step(self.paid.calls, self.paid.usd)
        self.result = report.result or self.result
