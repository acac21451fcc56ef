"""`valve connect`: give a daily agent the notes; Claude Code's with each prompt, and its attempts recorded."""

from __future__ import annotations

import json as json_
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from valve_plugin.cli import output
from valve_plugin.cli.bank_export import FILES as EXPORTED
from valve_plugin.cli.bank_export import inside, notes, now, refuse_simulation, write
from valve_plugin.cli.options import Commands, Json, argument, flag, open_bank, option
from valve_plugin.errors import ConfigError

_NOTES, _RECORD = "context --hook", "attempts record"
"""The commands of the hooks, by which they are found again."""
_HOOKS = {"UserPromptSubmit": (_NOTES, _RECORD), "Stop": (_RECORD,)}
_SECONDS = {_NOTES: 10, _RECORD: 60}

_FILES = {"claude": ".claude/settings.local.json", "codex": EXPORTED["agents"], "cursor": EXPORTED["cursor"]}
"""The file of the repository that is changed for each agent."""
_MINI = "mini needs no change: `mini --plugin valve -t TASK` gets the notes and records its attempt"

commands = Commands()


@commands.add(
    "connect",
    "valve connect claude                          # shows the change, asks, makes it",
    "valve connect claude --check 'pytest tests'   # also grades the attempts",
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

    Claude Code gets hooks in .claude/settings.local.json, which is yours and not for git. `valve context --hook`
    prints the notes for the prompt, or nothing. `valve attempts record` keeps the task, what Claude Code did, and the
    diff on this machine, to learn from.

    Codex and Cursor have no such hooks: the notes stand between two marks in AGENTS.md, or in a rules file of Cursor.
    After the bank changed, the same command brings them up to date.
    """
    if check and agent != "claude":
        raise ConfigError(f"--check {check}: only the attempts of claude are recorded here; leave it out for {agent}")
    if agent == "mini":
        output.emit_json({"agent": agent, "file": "", "changed": False}) if json else output.say(_MINI)
        return
    path = inside(_FILES[agent])
    before = now(path) or ""
    after = _hooked(path, before, check, undo=undo) if agent == "claude" else _noted(path, before, agent, undo=undo)
    changed = after != before
    if changed and not json:
        output.verbatim(_difference(path, before, after))
    if changed and not yes:
        if not (sys.stdin.isatty() and output.is_terminal()):
            raise ConfigError("nobody can be asked here; --yes makes the change without asking")
        typer.confirm("Make this change?", abort=True)
    if changed:
        write(path, after or None)
    if json:
        output.emit_json({"agent": agent, "file": str(path), "changed": changed, "connected": not undo})
    else:
        output.say(f"{path}: {'changed' if changed else 'nothing to change'}")


def _noted(path: Path, before: str, agent: str, *, undo: bool) -> str:
    """Return a file of instructions with the notes, or without them."""
    from valve_plugin.bank import exchange

    head = exchange.cursor_head(path)
    if undo:
        return exchange.take_out(before, head=head)
    store = open_bank("")
    refuse_simulation(store)
    return exchange.place(before, notes(store), head=head)


def _hooked(path: Path, before: str, check: str, *, undo: bool) -> str:
    """Return Claude Code's settings with our hooks, or without them."""
    settings = without_hooks(found := _parsed(path, before))
    if not undo:
        settings = with_hooks(settings, _program(), check)
    if settings == found:
        return before
    return json_.dumps(settings, indent=2, ensure_ascii=False) + "\n" if settings else ""


def with_hooks(settings: dict[str, Any], program: str, check: str) -> dict[str, Any]:
    """Return Claude Code's settings with the hooks. Pure."""
    from valve_plugin.shell_words import quote

    hooks = dict(settings.get("hooks", {}))
    for event, ours in _HOOKS.items():
        words = [f"{hook} --check {quote(check)}" if check and hook == _RECORD else hook for hook in ours]
        entries = [
            # Code 2 would stop the person's prompt, whatever it comes from.
            {"type": "command", "command": f"{program} {word} || true", "timeout": _SECONDS[hook]}
            for hook, word in zip(ours, words, strict=True)
        ]
        hooks[event] = [*hooks.get(event, []), {"hooks": entries}]
    return {**settings, "hooks": hooks}


def without_hooks(settings: dict[str, Any]) -> dict[str, Any]:
    """Return Claude Code's settings without the hooks, and without what is empty then. Pure."""
    hooks = dict(settings.get("hooks", {}))
    for event in _HOOKS:
        kept = [entry for entry in hooks.get(event, []) if not _is_ours(entry)]
        if kept:
            hooks[event] = kept
        else:
            hooks.pop(event, None)
    rest = {name: value for name, value in settings.items() if name != "hooks"}
    return {**rest, "hooks": hooks} if hooks else rest


def _is_ours(entry: Any) -> bool:
    found = entry.get("hooks", []) if isinstance(entry, dict) else []
    commands = [str(hook.get("command")) for hook in found if isinstance(hook, dict)]
    return any("valve" in command and (f" {_NOTES}" in command or f" {_RECORD}" in command) for command in commands)


def _program() -> str:
    """Return the start of the hooks' commands: the whole path, because a hook's shell may have another PATH."""
    from valve_plugin.shell_words import quote

    found = shutil.which("valve")
    return quote(found) if found else f"{quote(sys.executable)} -m valve_plugin"


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """Return Claude Code's settings; empty if there are none.

    Raises:
        ConfigError: they are not understood.
    """
    try:
        found = json_.loads(text or "{}")
    except ValueError as e:
        raise ConfigError(f"{path}: cannot be read: {e}; expected JSON") from e
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in _HOOKS):
        raise ConfigError(f"{path}: expected an object whose `hooks` hold a list for {' and '.join(_HOOKS)}")
    return dict(found)


def _difference(path: Path, old: str, new: str) -> str:
    from difflib import unified_diff

    return "".join(unified_diff(old.splitlines(True), new.splitlines(True), str(path), str(path)))
