"""`valve connect`: give a daily agent the notes with each prompt, and record its attempts."""

from __future__ import annotations

import json as json_
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import Commands, Json, argument, flag, option
from valve_plugin.errors import ConfigError

_MAX_BYTES = 1_000_000
_NOTES, _RECORD = "context --hook", "attempts record"
"""The commands of the hooks, by which they are found again."""
_HOOKS = {"UserPromptSubmit": (_NOTES, _RECORD), "Stop": (_RECORD,)}
_SECONDS = {_NOTES: 10, _RECORD: 60}

_OTHERS = "Other agents read files: see `valve bank export --help`"
_WITHOUT_HOOK = {
    "mini": "mini gets the notes with each run of `mini --plugin valve`",
    "codex": "Codex reads AGENTS.md: `valve bank export --to agents` writes the notes there",
    "cursor": "Cursor reads a rules file: `valve bank export --to cursor` writes it",
    "copilot": "Copilot reads a file of instructions: `valve bank export --to copilot` writes it",
}

commands = Commands()


@commands.add(
    "connect",
    "valve connect claude                          # shows the change, asks, makes it",
    "valve connect claude --check 'pytest tests'   # also grades the attempts",
    "valve connect claude --undo                   # takes it back",
)
def connect(
    agent: Annotated[str, argument("AGENT", "claude: Claude Code.")],
    check: Annotated[str, option("--check", "COMMAND", "Grades attempts: fails before the task, passes after.")] = "",
    undo: Annotated[bool, flag("--undo", "Take the change back.")] = False,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Give Claude Code the notes for each prompt, and record its attempts.

    Adds hooks to this repository's .claude/settings.local.json, which is yours and not for git. `valve context --hook`
    prints the notes for the prompt, or nothing. `valve attempts record` keeps the task, what Claude Code did, and the
    diff on this machine, to learn from. For an agent without hooks: `valve bank export --to`.
    """
    from valve_plugin.checkout import find
    from valve_plugin.files import make_dir, write_atomic

    if agent != "claude":
        raise ConfigError(f"{agent}: expected claude. {_WITHOUT_HOOK.get(agent, _OTHERS)}")
    path = find(Path.cwd()).folder / ".claude" / "settings.local.json"
    before = _read(path)
    after = without_hooks(before)
    if not undo:
        after = with_hooks(after, _program(), check)
    changed = after != before
    old, new = _text(before), _text(after)
    if changed and not json:
        output.verbatim(_difference(path, old, new))
    if changed and not yes:
        if not (sys.stdin.isatty() and output.is_terminal()):
            raise ConfigError("nobody can be asked here; --yes makes the change without asking")
        typer.confirm("Make this change?", abort=True)
    if changed and after:
        make_dir(path.parent)
        write_atomic(path, new.encode())
    elif changed:
        path.unlink()
    if json:
        output.emit_json({"agent": agent, "file": str(path), "changed": changed, "connected": not undo})
    else:
        output.say(f"{path}: {'changed' if changed else 'nothing to change'}")


def with_hooks(settings: dict[str, Any], program: str, check: str) -> dict[str, Any]:
    """Return Claude Code's settings with the hooks. Pure.

    Args:
        settings: the settings without them.
        program: start of their commands.
        check: the check of recorded attempts, or "".
    """
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


def _read(path: Path) -> dict[str, Any]:
    """Return Claude Code's settings; empty if there are none.

    Raises:
        ConfigError: they cannot be read.
    """
    from valve_plugin.files import read_regular

    try:
        found = json_.loads(read_regular(path, _MAX_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}; expected JSON") from e
    hooks = found.get("hooks", {}) if isinstance(found, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in _HOOKS):
        raise ConfigError(f"{path}: expected an object whose `hooks` hold a list for {' and '.join(_HOOKS)}")
    return dict(found)


def _text(settings: dict[str, Any]) -> str:
    return json_.dumps(settings, indent=2, ensure_ascii=False) + "\n" if settings else ""


def _difference(path: Path, old: str, new: str) -> str:
    from difflib import unified_diff

    return "".join(unified_diff(old.splitlines(True), new.splitlines(True), str(path), str(path)))
