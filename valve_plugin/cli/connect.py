"""`valve context`, `valve connect` and `valve mcp`: other agents get the notes, and what they do is recorded."""

from __future__ import annotations

import json as json_
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from valve_plugin import plugins
from valve_plugin.bank import ledger
from valve_plugin.bank.identity import describe_mismatch, is_foreign
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import find
from valve_plugin.cli import output, runs
from valve_plugin.cli.bank_export import FILES as EXPORTED
from valve_plugin.cli.bank_export import inside, notes, now, refuse_simulation, write
from valve_plugin.cli.options import BankDir, Commands, Json, argument, bank_dir, flag, open_bank, option, read_input
from valve_plugin.codec import plain
from valve_plugin.config import load
from valve_plugin.errors import ConfigError, PluginError, ValveError
from valve_plugin.extras import install_command
from valve_plugin.records import Context
from valve_plugin.sandbox.scratch import private_folder
from valve_plugin.words import join, plural, quote

_MAX_BYTES = 1_000_000

commands = Commands()
_NOTES, _RECORD = "context --hook", "attempts record"
"""The commands of the hooks, by which they are found again."""
_HOOKS = {"UserPromptSubmit": (_NOTES, _RECORD), "Stop": (_RECORD,)}
_SECONDS = {_NOTES: 10, _RECORD: 60}
_FILES = {"claude": ".claude/settings.local.json", "codex": EXPORTED["agents"], "cursor": EXPORTED["cursor"]}
"""The file of the repository that is changed for each agent."""
_GIT_SECONDS = 20
_MINI = "mini needs no change: `mini --plugin valve -t TASK` gets the notes and records its attempt"


@commands.add(
    "context",
    "valve context 'Timestamps lose their time zone'",
    "gh issue view 41 --json body -q .body | valve context -",
    'other-agent --append-system-prompt "$(valve context --file issue.md)"',
    "valve context --hook < event.json           # as the prompt hook of Claude Code; see `valve connect`",
)
def context(
    text: Annotated[str, argument("TASK", "What the agent is asked; - reads stdin.", show_default=False)] = "",
    file: Annotated[Path | None, option("--file", "FILE", "Read the task from this file.")] = None,
    bank: BankDir = "",
    simulate: Annotated[bool, flag("--simulate", "Also print it of a simulation's bank, only to look at it.")] = False,
    hook: Annotated[bool, flag("--hook", "Read a prompt hook's event from stdin; print notes or nothing.")] = False,
    json: Json = False,
) -> None:
    """Print the notes for a task, for any other agent.

    It is what `mini --plugin valve` adds at the end of the system message. Where nothing fits, it is empty and
    stderr says so. A simulation's bank is refused: a real agent must not get what a script taught.
    """
    from valve_plugin.live.context import is_welcome
    from valve_plugin.retrieval.contexts import near

    if hook:
        from valve_plugin.live.context import MAX_BYTES, answer

        output.verbatim(answer(sys.stdin.buffer.read(MAX_BYTES + 1), bank))
        return
    if bool(text) == bool(file):
        raise ConfigError("give the task once: `valve context TASK`, `valve context -` for stdin, or --file PATH")
    issue = os.fsencode(text).decode("utf-8", "replace")  # whatever encoding the locale names
    if file or issue == "-":
        issue = read_input(str(file or "-"), _MAX_BYTES).decode("utf-8", "replace")
    store = runs.open_store(bank, simulate)
    simulation = runs.note_simulation(store.dir, json=json, data=True)
    if simulation and not simulate:
        raise ConfigError(
            f"{store.dir} was learned or judged by the scripted model: for no real agent; --simulate prints it"
        )

    here = find(Path.cwd())
    if is_foreign(store.bank.repo, store.dir, here):
        words = describe_mismatch(store.bank.repo, store.dir, here.name)
        output.warn(f"{words}: its notes are not about this code")
    settings = store.settings()
    hooks = plugins.load(settings.plugins).hook
    block = hooks.valve_retrieve(settings=settings, bank=store.bank, task_id="", issue=issue)
    if block is None:
        raise PluginError(f"none of the plugins {', '.join(settings.plugins)} retrieves; add valve to `plugins`")
    left_out = [(key, "larger than context_bytes") for key in block.left_out]
    if not is_welcome(store, lambda line: output.warn(line)):
        block, left_out = Context(text="", bank_hash=store.bank.hash), []
    elif not block.items:
        left_out += [(item.key, "shares too little with the task") for item in near(settings, store.bank, issue)]
        output.note(_nothing(store, [name for (_, name), _ in left_out]))
    if json:
        items = [{"kind": kind, "name": name} for kind, name in block.items]
        out = [{"kind": kind, "name": name, "why": why} for (kind, name), why in left_out]
        output.emit_json(
            {**plain(block), "items": items, "left_out": out, "hash": block.hash, "simulation": simulation}
        )
    else:
        output.verbatim(block.text)


def _nothing(store: BankStore, nearest: Sequence[str]) -> str:
    """Return the line that says why nothing is injected."""
    if not store.bank.items:
        return f"{store.dir}: the bank holds no notes yet, so there is nothing to inject"
    near = f"; the nearest: {', '.join(nearest)}" if nearest else ""
    held = plural(len(store.bank.items), "note")
    return f"no note fits this task ({held} in the bank; `valve bank list` shows them){near}"


@commands.add(
    "connect",
    "valve connect claude                          # shows the change, asks, makes it",
    "valve connect claude --check 'python -m pytest tests'   # also grades the attempts",
    "valve connect codex                           # the notes in AGENTS.md",
    "valve connect codex --undo                    # takes it back",
)
def connect(
    agent: Annotated[Literal["claude", "codex", "cursor", "mini"], argument("AGENT", "claude, codex, cursor or mini.")],
    check: Annotated[
        str, option("--check", "COMMAND", "For claude: grades attempts; fails before the task, passes after.")
    ] = "",
    undo: Annotated[bool, flag("--undo", "Take the change back.")] = False,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Give an agent the notes of this repository.

    Claude Code gets hooks in .claude/settings.local.json, which is yours: git is told to ignore it. `valve context
    --hook` prints the notes for the prompt, or nothing. `valve attempts record` keeps the task, what Claude Code did,
    and the diff on this machine, to learn from.

    Codex and Cursor have no such hooks: the notes stand between two marks in AGENTS.md, or in a rules file of Cursor.
    After the bank changed, the same command brings them up to date.
    """
    from valve_plugin.bank import exchange

    if check and agent != "claude":
        raise ConfigError(f"--check {check}: only the attempts of claude are recorded here; leave it out for {agent}")
    if agent == "mini":
        output.emit_json({"agent": agent, "file": "", "changed": False}) if json else output.say(_MINI)
        return
    path = inside(_FILES[agent])
    before = now(path) or ""
    welcome = undo or _is_welcome()
    if agent == "claude":
        after = _hooked(path, before, check, undo=undo)
    elif undo:
        after = exchange.take_out(before, head=exchange.cursor_head(path))
    else:
        after = _with_notes(path, before, welcome=welcome)
    changed = after != before
    if changed and not json:
        output.verbatim("".join(unified_diff(before.splitlines(True), after.splitlines(True), str(path), str(path))))
    nobody = "nobody can be asked here; --yes makes the change without asking"
    if changed and not (yes or output.confirm("Make this change?", nobody)):
        raise typer.Abort
    if changed:
        write(path, after or None)
    if json:
        output.emit_json({"agent": agent, "file": str(path), "changed": changed, "connected": not undo})
    else:
        same = "nothing to change" if before else "there is no such file, and none was made"
        output.say(f"{path}: {('changed' if after else 'removed') if changed else same}")
    if agent == "claude" and changed and after and find(path.parent).git:
        _keep_private(path)
    if agent == "claude" and not undo and (clone := clone_around(Path(_words()[0]))):
        output.warn(
            f"the hooks run {_words()[0]}, in the clone {clone}: when that is moved or deleted, the notes stop, "
            "and only `valve doctor` says so; installed with uv or pipx, valve stays where it is"
        )


def _is_welcome() -> bool:
    """Whether the notes may be used, which is asked here: an agent's hooks can ask nobody."""
    from valve_plugin.live.context import is_welcome

    directory = bank_dir("")
    load(directory)  # settings that cannot be used would silence an agent's hooks
    if not (directory / ledger.FILE_NAME).exists():
        return True
    return is_welcome(BankStore.open(directory), lambda line: output.warn(line))


def _with_notes(path: Path, before: str, *, welcome: bool) -> str:
    """Return a file's text with the bank's notes between two marks; without marks where there are none to write."""
    from valve_plugin.bank import exchange

    store = open_bank("")
    refuse_simulation(store)
    head = exchange.cursor_head(path)
    if welcome and any(not item.hidden for item in store.bank.items):
        return exchange.place(before, notes(store), head=head)
    if welcome:
        why = "the bank holds no notes yet, so none is written; run this again once `valve` says that there are some"
        if store.bank.items:
            why = "all of its notes hide what they say: `valve bank lint` names what hides it"
        output.note(f"{store.dir}: {why}")
    return exchange.take_out(before, head=head)


def _keep_private(path: Path) -> None:
    """Let git ignore a person's own file, where nothing does so yet: not in a file that others get."""
    from valve_plugin.sandbox.git import git, git_line

    folder = path.parent
    try:
        if not git("check-ignore", str(path), cwd=folder, seconds=_GIT_SECONDS, ok=(0, 1)):
            excluded = folder / git_line("rev-parse", "--git-path", "info/exclude", cwd=folder, seconds=_GIT_SECONDS)
            excluded.parent.mkdir(exist_ok=True)
            with excluded.open("a+", encoding="utf-8") as file:
                file.seek(0)
                before = file.read()
                file.write("\n" * bool(before and not before.endswith("\n")) + f"**/{_FILES['claude']}\n")
            output.note(f"git ignores {_FILES['claude']} here: a line in {excluded.resolve()} says so")
    except (ValveError, OSError) as e:
        output.warn(f"{path} is yours alone, so do not commit it; git could not be told so: {e}")


def _hooked(path: Path, before: str, check: str, *, undo: bool) -> str:
    """Return Claude Code's settings with our hooks, or without them."""
    try:
        found = json_.loads(before or "{}")
    except ValueError as e:
        raise ConfigError(f"{path}: cannot be read: {e}; expected JSON") from e
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in _HOOKS):
        raise ConfigError(f"{path}: expected an object whose `hooks` hold a list for {' and '.join(_HOOKS)}")
    settings = without_hooks(found)
    if not undo:
        settings = with_hooks(settings, join(_words()), check)
    if settings == found:
        return before
    return json_.dumps(settings, indent=2, ensure_ascii=False) + "\n" if settings else ""


def _words() -> list[str]:
    """Return the start of the hooks' commands: the whole path, because a hook's shell may have another PATH."""
    found = shutil.which("valve")
    return [found] if found else [sys.executable, "-m", "valve_plugin"]


def with_hooks(settings: dict[str, Any], program: str, check: str) -> dict[str, Any]:
    """Return Claude Code's settings with the hooks. Pure."""
    hooks = dict(settings.get("hooks", {}))
    for event, ours in _HOOKS.items():
        entries = []
        for hook in ours:
            word = f"{hook} --check {quote(check)}" if check and hook == _RECORD else hook
            # Code 2 would stop the person's prompt, whatever it comes from.
            entries.append({"type": "command", "command": f"{program} {word} || true", "timeout": _SECONDS[hook]})
        hooks[event] = [*hooks.get(event, []), {"hooks": entries}]
    return {**settings, "hooks": hooks}


def without_hooks(settings: dict[str, Any]) -> dict[str, Any]:
    """Return Claude Code's settings without the hooks, and without what is empty then. Pure."""
    hooks = dict(settings.get("hooks", {}))
    for event in _HOOKS:
        kept = [entry for entry in hooks.get(event, []) if not _our_commands(entry)]
        if kept:
            hooks[event] = kept
        else:
            hooks.pop(event, None)
    rest = {name: value for name, value in settings.items() if name != "hooks"}
    return {**rest, "hooks": hooks} if hooks else rest


def _our_commands(entry: Any) -> list[str]:
    found = entry.get("hooks", []) if isinstance(entry, dict) else []
    commands = [str(hook.get("command")) for hook in found if isinstance(hook, dict)]
    return [c for c in commands if "valve" in c and (f" {_NOTES}" in c or f" {_RECORD}" in c)]


class Connection(NamedTuple):
    """What Claude Code's hooks run."""

    program: str
    check: str


def connection(settings: Any) -> Connection | None:
    """Return what the hooks in Claude Code's settings run; None: it is not connected. Pure."""
    hooks = settings.get("hooks") if isinstance(settings, dict) else None
    entries = [
        e for event in _HOOKS if isinstance(hooks, dict) and isinstance(found := hooks.get(event), list) for e in found
    ]
    words = [_split(command) for entry in entries for command in _our_commands(entry)]
    if not words:
        return None
    checks = [line[line.index("--check") + 1] for line in words if "--check" in line[:-1]]
    return Connection(words[0][0], checks[0] if checks else "")


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # quoted in a way that only a shell reads
        return command.split()


def claude_settings(folder: Path) -> Path:
    """Return the file of Claude Code's hooks in a repository."""
    return folder / _FILES["claude"]


def clone_around(program: Path) -> Path | None:
    """Return the clone that a program is in; None: it is in none."""
    return next((above for above in program.parents if (above / ".git").exists()), None)


@commands.add(
    "mcp",
    "valve mcp                          # as the command of a server in the client's configuration",
    "valve mcp --check 'python -m pytest tests'   # attempts are graded",
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
    from valve_plugin.live.context import is_welcome
    from valve_plugin.live.follow import begin, keep, take

    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as e:
        raise ConfigError(f"the MCP SDK is not installed ({e}); run: {install_command('mcp')}") from e
    store = open_bank(bank)
    directory = store.dir.resolve()
    is_welcome(store, lambda line: output.warn(line), ask=False)  # named on stderr; stdin speaks the protocol
    kept = private_folder("valve-mcp-")
    started: dict[str, Path] = {}

    def notes_for_task(task: str) -> str:
        """Return notes from earlier work in this repository. Call it once, before you change a file.

        Args:
            task: the person's task, in their own words and complete.
        """
        started[task] = Path(kept.name, os.urandom(4).hex())
        return begin(task, directory, started[task]).text or "There are no notes for this task."

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
        keep(work, [turn(report)], {"agent": "mcp"}, directory, check)
        return "Recorded."

    server = MCPServer("valve")
    for tool in (notes_for_task, record_attempt):
        server.add_tool(tool)
    with kept:
        server.run("stdio")
