"""Every error this package raises on purpose.

Each class is also a builtin error, so callers may catch either. A message says the value, what was
expected and what to do next; `exit_code` is what the `valve` command returns for it
(2 wrong use, 3 infrastructure, 4 a panel run that stopped at a budget).
"""

from __future__ import annotations


class ValveError(Exception):
    """Base of the tree; catch this to catch everything of ours."""

    exit_code = 2


class ConfigError(ValveError, ValueError):
    """A setting has an unknown name or a value out of range."""


class RecordError(ValveError, ValueError):
    """Data does not have the shape its record asks for (truncated, malformed, hostile, wrong version)."""


class TaskError(ValveError, ValueError):
    """A task cannot be used: empty FAIL_TO_PASS, unknown repository, duplicate id, patch that does not apply."""


class ModelOutputError(ValveError, ValueError):
    """What a model returned is not what was asked for; it becomes an empty proposal, never a crash."""


class BankError(ValveError, OSError):
    """A bank directory cannot be used; nothing in it was changed."""


class BankNotFoundError(BankError, FileNotFoundError):
    """There is no bank where one was looked for."""


class BankCorruptError(BankError, ValueError):
    """A covered file is damaged: the message names the file, the place and the way out."""


class LedgerForkedError(BankCorruptError):
    """Two histories claim the same place in the ledger (for example after a git merge)."""


class BankBusyError(BankError, TimeoutError):
    """Another process holds the bank's lock or its evolve lease."""

    exit_code = 3


class StaleVerdictError(ValveError, RuntimeError):
    """The bank changed while a proposal was judged; the verdict is dropped and the proposal requeued."""


class HorizonError(ValveError, RuntimeError):
    """All declared gate queries of this epoch are used; a new epoch must be opened first."""


class UnjudgedError(ValveError, RuntimeError):
    """A proposal changes the context of no panel task, so no outcome can say anything about it; no query is used."""


class SandboxError(ValveError, RuntimeError):
    """No sandbox is available, or it failed to start."""

    exit_code = 3


class InfrastructureError(ValveError, RuntimeError):
    """The host or the provider failed. A rollout that ends this way is `errored`, never a failure."""

    exit_code = 3


class BudgetError(ValveError, RuntimeError):
    """A limit of money, rollouts or time is reached. Nothing is lost: the same command continues from here."""

    exit_code = 4


class PluginError(ValveError, LookupError):
    """A plugin is not installed, does not load, or names a hook that does not exist."""


class AgentError(ValveError, TypeError):
    """An agent object cannot be instrumented."""
