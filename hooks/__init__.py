"""The built-in plugin: thin glue between hook calls and the rooms that do the work.

`Valve` is the object behind the entry point `valve`; each plugin manager gets an instance of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valve_plugin.config import Settings, as_judged, is_unused, resolve
from valve_plugin.errors import BankNotFoundError, ConfigError, ValveError
from valve_plugin.events import AttemptFinished
from valve_plugin.extras import ignore_dotenv
from valve_plugin.hookspecs import Account, hookimpl
from valve_plugin.plugins import send
from valve_plugin.records import Attempt, Bank, Context, Panel, Proposal, Source, Task, Verdict
from valve_plugin.words import quote

if TYPE_CHECKING:
    import pluggy

    from valve_plugin.live.record import Run

TYPED_ONLY = ("check", "attempts")
"""Settings that run commands. In a live run they must come from `-c`, not from a file of the repository."""


class Valve:
    """The events of a mini process, and the method's steps (see `hookspecs.StepHooks`).

    It holds the settings and the bank of a process or agent, and its unfinished runs.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self.bank_dir: Path | None = None
        """The bank, or None if there is none; then mini runs without changes."""
        self.repo = ""
        """The repository's name in the person's settings; the bank's file has its own."""
        self.warned_foreign = False
        self.manager: pluggy.PluginManager | None = None
        self.runs: dict[int, Run] = {}
        """By agent: a batch runs several at once, in threads."""

    @hookimpl
    def minisweagent_configure(
        self, config: dict[str, Any], options: Mapping[str, Any], manager: pluggy.PluginManager
    ) -> None:
        """Read the settings from `valve.*` of mini's configuration, and find the bank and its settings.

        Raises:
            ConfigError: a setting is wrong, or not possible here.
            BankNotFoundError: the named bank does not exist.
        """
        self.manager = manager
        ignore_dotenv()  # mini makes its model after this; what valve starts inherits it
        given = dict(config.get("valve") or {})
        self.settings = resolve(given, where="valve.*")
        for name in given:
            if is_unused(name, "attempts" if self.settings.attempts > 1 else "live"):
                say(f"valve.{name} has no effect in this run")
        self.repo = self.settings.repo
        self.bank_dir = _bank(self.settings)
        if self.bank_dir is not None:
            self.settings = _with_file(self.bank_dir, given)
        if self.settings.attempts > 1:
            mode = (config.get("agent") or {}).get("mode", "yolo")
            if mode != "yolo":
                raise ConfigError(f"valve.attempts runs unattended, but mini is in mode {mode!r}; add -y")
            if self.bank_dir is None:
                raise ConfigError(
                    "valve.attempts records its attempts in a bank, but there is none; run `valve init` first"
                )

    @hookimpl
    def minisweagent_pre_run(self, agent: Any, task: str) -> str | None:
        """Return the context for the task, and capture the starting state of the run."""
        if self.bank_dir is None:
            return None
        from msgspec.structs import replace

        from valve_plugin.live.record import model_of, start

        def retrieve(bank: Bank, panel: Panel | None) -> Context:
            self._warn_if_foreign(bank, agent)
            assert self.manager is not None
            context: Context | None = self.manager.hook.valve_retrieve(
                settings=replace(as_judged(self.settings, panel), model=model_of(agent) or self.settings.model),
                bank=bank,
                task_id="",
                issue=task,
            )
            return context or Context(text="")

        run = start(self.settings, self.bank_dir, retrieve, agent, task, say)
        self.runs[id(agent)] = run
        return run.context.text or None

    @hookimpl
    def minisweagent_run(self, agent: Any, task: str) -> Mapping[str, Any] | None:
        """Run several sandboxed attempts in place of the agent's own loop, where `valve.attempts` asks for them.

        A check is tried first: where it cannot grade, nothing is run.
        """
        run = self.runs.get(id(agent))
        if run is None:
            return None
        if self.settings.attempts > 1:
            from valve_plugin.live.several import run_attempts

            return run_attempts(run, agent)
        from valve_plugin.live.record import refused, require_grading

        try:
            require_grading(run, agent)
        except ValveError as e:
            return refused(run, e)
        return None

    @hookimpl
    def minisweagent_post_run(
        self, agent: Any, task: str, result: Mapping[str, Any], error: BaseException | None
    ) -> None:
        """Record the run as an attempt; grade it if a check was given."""
        run = self.runs.pop(id(agent), None)
        if run is None:
            return
        from valve_plugin.live.record import finish, show_hint

        attempt = finish(run, agent, result, error)
        if attempt is None:
            return
        if hasattr(getattr(agent, "config", None), "mode"):
            # Only in an interactive run: batches and other programs have their own records.
            article = "a" if attempt.outcome == "resolved" else "an"
            check = "" if run.settings.check else ", -c valve.check=COMMAND grades the next"
            run.say(f"recorded as {article} {attempt.outcome} attempt: {show_hint(attempt, run.settings)}{check}")
        if self.manager is not None:
            send(self.manager.hook, AttemptFinished(task_id=attempt.task_id, id=attempt.id, outcome=attempt.outcome))

    def _warn_if_foreign(self, bank: Bank, agent: Any) -> None:
        """Warn once if the bank belongs to another repository than the one in which the agent works."""
        from valve_plugin.bank.identity import describe_mismatch, is_foreign
        from valve_plugin.checkout import find
        from valve_plugin.live.record import directory

        where = directory(agent)
        if where is None or self.bank_dir is None or self.warned_foreign or self.repo == bank.repo:
            return
        here = find(where)
        if is_foreign(bank.repo, self.bank_dir, here):
            self.warned_foreign = True
            say(f"{describe_mismatch(bank.repo, self.bank_dir, here.name)}: its notes are not about this code")

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Rank the bank's items for the task and compose the block."""
        from valve_plugin.retrieval.contexts import retrieve

        return retrieve(settings, bank, task_id, issue)

    @hookimpl
    def valve_attempt(self, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one sandboxed rollout of the task and grade it per test."""
        if settings.executor == "ray":
            from valve_plugin.rollouts.ray_executor import attempt
        else:
            from valve_plugin.rollouts.attempt import attempt
        return attempt(settings, task, context, ordinal, source)

    @hookimpl
    def valve_extract(
        self,
        settings: Settings,
        bank: Bank,
        issue: str,
        attempts: Sequence[Attempt],
        trajectories: Sequence[str],
        feedback: str,
    ) -> Proposal:
        """Ask the model for at most three principles and three skills."""
        from valve_plugin.extract.reflect import reflect

        return reflect(settings, bank, issue, attempts, trajectories, feedback=feedback)

    @hookimpl
    def valve_validate(
        self, settings: Settings, bank_dir: Path, proposal: Proposal, observe: Callable[..., None], account: Account
    ) -> Verdict:
        """Run paired rollouts on the fixed panel and apply the integer rule."""
        from valve_plugin.gate.judge import judge

        return judge(settings, bank_dir, proposal, observe, account)


def say(text: str) -> None:
    """Show the person one line on stderr, because stdout belongs to mini."""
    line = " ".join(text.split())  # it may contain output of a check, so control characters are removed
    sys.stderr.write(f"valve: {''.join(c for c in line if c.isprintable())}\n")


def _bank(settings: Settings) -> Path | None:
    from valve_plugin.bank.identity import find_bank
    from valve_plugin.bank.ledger import FILE_NAME
    from valve_plugin.checkout import find

    here = find(Path.cwd())
    place = find_bank(settings.bank, here, settings.repo)
    if (place / FILE_NAME).exists() or (place / "bank.json").exists():
        return place
    if settings.bank:
        raise BankNotFoundError(
            f"{place}: there is no bank here; make one with `valve init --bank {quote(settings.bank)}`"
        )
    say(f"there is no bank for {here.name}, so nothing is injected or recorded; `valve init` makes one")
    return None


def _with_file(bank_dir: Path, given: Mapping[str, Any]) -> Settings:
    """Return the given settings on top of the bank's `valve.toml`; a damaged file is reported and ignored."""
    from msgspec.structs import replace

    from valve_plugin.config import load

    asked = resolve(given, where="valve.*")
    try:
        settings = load(bank_dir, given)
    except ConfigError as e:
        say(f"{e}; going on without that file")
        return asked
    if settings.learn == "inline" and asked.learn != "inline":
        settings = replace(settings, learn="queue")  # judging calls models and runs code: see TYPED_ONLY
    return replace(settings, **{name: getattr(asked, name) for name in TYPED_ONLY})
