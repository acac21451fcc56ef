"""Any command as the agent of a rollout: a template with places for the task and the notes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from valve_plugin.agents.adapter import Job, Launch, Messages, result, turn
from valve_plugin.errors import ConfigError
from valve_plugin.sandbox.environment import base_prefix

_PLACES = ("task", "notes", "task_file", "notes_file", "workdir", "model", "url")
_PLACE = re.compile(r"\{(\w+)\}")


class CommandAgent:
    """A shell command that solves the task in its working directory."""

    provider = ""

    def __init__(self, template: str) -> None:
        """Set the template.

        Raises:
            ConfigError: it names no task, or an unknown place.
        """
        self.template = self.name = template
        known = ", ".join(f"{{{name}}}" for name in _PLACES)
        if unknown := [name for name in _PLACE.findall(template) if name not in _PLACES]:
            raise ConfigError(f"agent: {{{unknown[0]}}} is not known; a command has places for {known}")
        if not {"task", "task_file"}.intersection(_PLACE.findall(template)):
            raise ConfigError(
                f"agent is {template!r}: expected mini, claude, codex or a command with {{task}} or {{task_file}}"
            )

    def version(self) -> str:
        """Return "": a command has none that is known."""
        self._program()
        return ""

    def launch(self, job: Job) -> Launch:
        """See `Adapter`. Each place is filled with one quoted word; long texts go into files."""
        values = {
            "task": job.issue,
            "notes": job.notes,
            "task_file": f"{job.folder}/task.md",
            "notes_file": f"{job.folder}/notes.md",
            "workdir": job.workdir,
            "model": job.model,
            "url": job.url,
        }
        command = _PLACE.sub(lambda place: shlex.quote(values[place[1]]), self.template)
        key = "the-gateway-has-the-key"
        env = {
            **{f"OPENAI_{end}": f"{job.url}/v1" for end in ("BASE_URL", "API_BASE")},
            **{f"ANTHROPIC_{end}": job.url for end in ("BASE_URL", "API_BASE")},
            "OPENAI_API_KEY": key,
            "ANTHROPIC_API_KEY": key,
        }
        files = {"task.md": job.issue, "notes.md": job.notes}
        if (found := self._program()) is None:
            return Launch(["bash", "-c", command], files, env)
        name, program = found
        function = "" if "/" in name else f'{name}() {{ {shlex.quote(str(program))} "$@"; }}; '
        return Launch(["bash", "-c", function + command], files, env, "", visible(program))

    def messages(self, output: str) -> Messages:
        """Return its whole output as one turn."""
        return [turn("", self.template), result(output)]

    def _program(self) -> tuple[str, Path] | None:
        """Return the first word and its program; None: it is part of the sandbox, or the shell's."""
        try:
            words = [word for word in shlex.split(self.template) if not re.match(r"\w+=", word)]
        except ValueError as e:
            raise ConfigError(f"agent: the shell cannot read {self.template!r}: {e}") from e
        name = words[0] if words else ""
        found = shutil.which(name)
        if found is None and subprocess.run(["bash", "-c", 'type -t -- "$0"', name], capture_output=True).returncode:
            raise ConfigError(
                f"agent: {name!r} is not on PATH, and no command of the shell; install it, or give its path"
            )
        if found is None or found.startswith(("/usr/bin/", "/bin/")):
            return None
        real = Path(os.path.realpath(found))
        return name, Path(os.path.abspath(found)) if "/" in name else real


def visible(program: Path) -> list[Path]:
    """Return what the sandbox has to show for a program: itself, its Python environment, or its npm packages."""
    venv = program.parents[1]
    if (venv / "pyvenv.cfg").is_file():
        return [venv, base_prefix(venv)]
    return [next((above for above in reversed(program.parents) if above.name == "node_modules"), program)]
