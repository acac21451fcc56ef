"""`valve mcp`: notes and attempts for any agent that speaks the Model Context Protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from valve_plugin.cli.options import BankDir, Commands, open_bank, option
from valve_plugin.errors import ConfigError

commands = Commands()


@commands.add(
    "mcp",
    "valve mcp                          # as the command of a server in the client's configuration",
    "valve mcp --check 'pytest tests'   # attempts are graded",
)
def mcp(
    check: Annotated[str, option("--check", "COMMAND", "Fails before the task is done, and passes after it.")] = "",
    bank: BankDir = "",
) -> None:
    """Serve the notes, and record attempts, for any MCP client.

    Speaks on stdin and stdout, in the repository where it is started. Two tools: `notes_for_task` keeps the files as
    they are and returns the notes; `record_attempt` records what has changed since. Needs the extra `mcp`.
    """
    from valve_plugin.agents.adapter import turn
    from valve_plugin.extras import install_command
    from valve_plugin.live.follow import begin, keep, take
    from valve_plugin.sandbox.scratch import private_folder

    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as e:
        raise ConfigError(f"the MCP SDK is not installed ({e}); run: {install_command('mcp')}") from e
    bank_dir = open_bank(bank).dir.resolve()
    kept = private_folder("valve-mcp-")
    started: dict[str, Path] = {}

    def notes_for_task(task: str) -> str:
        """Return notes from earlier work in this repository. Call it once, before you change a file.

        Args:
            task: the person's task, in their own words and complete.
        """
        started[task] = Path(kept.name, os.urandom(4).hex())
        return begin(task, bank_dir, started[task]).text or "There are no notes for this task."

    def record_attempt(task: str, report: str) -> str:
        """Record what you changed for a task, to learn from it. Call it once, when you are done.

        Args:
            task: the same text that `notes_for_task` got.
            report: what you found and did, with the commands that mattered.
        """
        if task not in started:
            return "Not recorded: notes_for_task was not called with this text, so the files before it are not known."
        work = take(started.pop(task))
        if work is None:
            return "Not recorded: no file has changed."
        keep(work, [turn(report)], {"agent": "mcp"}, bank_dir, check)
        return "Recorded."

    server = MCPServer("valve")
    for tool in (notes_for_task, record_attempt):
        server.add_tool(tool)
    with kept:
        server.run("stdio")
