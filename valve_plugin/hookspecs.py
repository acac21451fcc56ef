"""The whole extension surface on one screen: host events of mini-SWE-agent, then VALVE's own steps.

A plugin is a module, or a class without arguments, whose `@hookimpl` functions carry these names,
advertised under the entry-point group `minisweagent.plugins`. Later registered plugins are asked first; a step's first
answer that is not None wins, so replacing one step takes one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from valve_plugin.config import Settings
    from valve_plugin.events import Event
    from valve_plugin.records import Attempt, Bank, Context, Proposal, Task, Verdict

hookspec = pluggy.HookspecMarker("minisweagent")
hookimpl = pluggy.HookimplMarker("minisweagent")


class HostEvents:
    """What happens in a `mini` process. A batch runs many agents in threads: keep what belongs to a run by agent."""

    @hookspec
    def minisweagent_add_options(self) -> Sequence[Mapping[str, Any]]:
        """Return command-line options: [{'flag': '--x', 'dest': 'x', 'type': str, 'default': None, 'help': ''}]."""
        return ()

    @hookspec
    def minisweagent_configure(
        self, config: dict[str, Any], options: Mapping[str, Any], manager: pluggy.PluginManager
    ) -> None:
        """Change mini's merged config in place, before model, environment and agent are built.

        `config["valve"]` holds the settings from `-c valve.KEY=VALUE` (the host takes it out afterwards), `options`
        every plugin's by `dest`; `manager.hook` calls VALVE's steps as all plugins of this run implement them.
        """

    @hookspec
    def minisweagent_pre_run(self, agent: Any, task: str) -> str | None:
        """Before the first step. A returned string ends the system message, verbatim."""

    @hookspec
    def minisweagent_run(self, agent: Any, task: str) -> Mapping[str, Any] | None:
        """Run the task in place of the agent's own loop and return what `agent.run` would; None: leave it to the agent.

        The first plugin, in the order named, that does not answer None has the run. One that refuses it adds the
        `exit_code` that mini's command is to end with.
        """

    @hookspec
    def minisweagent_post_run(
        self, agent: Any, task: str, result: Mapping[str, Any], error: BaseException | None
    ) -> None:
        """After the last step, also when it raised. `result`: exit_status, submission, cost, api_calls."""


class Account(Protocol):
    """What validation has of the run that asked for it: its budget, its workers, and rollouts that it made already."""

    store: Any
    """The open `BankStore` of the run, so that VALVE's gate need not read the bank again."""

    def spend(self, usd: float, rollouts: int) -> None:
        """Charge the run's budget, in USD and started rollouts."""

    def lend(self, settings: Settings) -> AbstractContextManager[Settings]:
        """Lend what is left of the budget, until the block ends: these settings with it as their limits."""

    def expect(self, rollouts: int) -> None:
        """Say how many rollouts of the validation are still to end, outside of the run's own workers."""

    def finished(self, cells: Sequence[tuple[Task, Context, int]]) -> Iterator[tuple[Attempt, bool]]:
        """Yield rollouts of these tasks, contexts and ordinals as the run's own workers finish them, in any order.

        With each comes whether it ran before the validation asked, so that it costs nothing now. It ends where they
        bring no more: what is left is the validation's to run.
        """


class StepHooks:
    """The method's steps, in flow order. `bank_dir` is the bank directory; `bank` its accepted content."""

    @hookspec(firstresult=True)
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context | None:
        """Compose the context for one task from the bank.

        With pairing "paper" the gate composes a candidate's context itself, as the paper does; so where another plugin
        has this step, it refuses to judge by any pairing but "deployed".
        """

    @hookspec(firstresult=True)
    def valve_attempt(
        self, settings: Settings, task: Task, context: Context, ordinal: int, source: str
    ) -> Attempt | None:
        """Run the agent once on the task with that context, and grade it. Never raises for the agent's doing."""

    @hookspec(firstresult=True)
    def valve_extract(
        self,
        settings: Settings,
        bank: Bank,
        issue: str,
        attempts: Sequence[Attempt],
        trajectories: Sequence[str],
        feedback: str,
    ) -> Proposal | None:
        """Contrast mixed attempts (with their trajectory digests) into a proposal; empty when nothing is usable.

        `feedback`: what validation decided about earlier proposals, where reflection is to know; else empty.
        """

    @hookspec(firstresult=True)
    def valve_validate(
        self,
        settings: Settings,
        bank_dir: Path,
        proposal: Proposal,
        observe: Callable[..., None],
        account: Account,
    ) -> Verdict | None:
        """Judge the proposal on the panel by paired rollouts. Persists outcomes, never the bank.

        `observe(event)` passes on what happens meanwhile; so does `observe(name, data)`, for events of your own.
        What is spent goes to `account`; one who hands the work on to VALVE's judge hands that on, too.
        """

    @hookspec
    def valve_event(self, event: Event, name: str, data: Mapping[str, Any]) -> None:
        """Observe what happens, from any thread. Informational only: nothing that decides depends on it.

        `event` is a record of `valve_plugin.events`, where each class documents its fields; `name` and `data` are the
        same as text and plain data, which is also how telemetry keeps it. In the order of a run:

        - RunStarted, AgentsLoading, RunEnded; Waiting and RunPaused when a provider or the host fails
        - TaskStarted, AgentsWorking, ClusterSeen (with a cluster), AttemptFinished, TaskFinished
        - ExtractionStarted, ModelCalled, ProposalRecorded, ScreenStarted
        - BaselineStarted, BaselineMeasured; GateStarted, ConfirmationStarted; RolloutFinished, and RolloutUnused or
          RolloutCut for what was under way when the verdict was certain
        - VerdictReached, ProposalAccepted; VerdictStale when the bank changed meanwhile; ProposalTaken without a gate
        - RemeasureStarted, PanelRemeasured (A/A); LeaveOutStarted, LeaveOutMeasured
        - EvaluationStarted, EvaluationAdvanced, EvaluationRecorded; TrialAdvanced (`valve try`)
        """
