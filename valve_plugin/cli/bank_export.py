"""`valve bank export`: the bank in the files that other coding agents read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from valve_plugin.bank.scripted_bank import LABEL, is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import find
from valve_plugin.cli import output, runs
from valve_plugin.cli.options import BankDir, Commands, Json, flag, open_bank, option
from valve_plugin.errors import ConfigError
from valve_plugin.files import make_dir, read_regular, write_atomic
from valve_plugin.records import Item

Format = Literal["agents", "claude", "cursor", "copilot", "skills", "text"]
FILES: dict[Format, str] = {
    "agents": "AGENTS.md",
    "claude": "CLAUDE.md",
    "cursor": ".cursor/rules/valve.mdc",
    "copilot": ".github/copilot-instructions.md",
    "skills": ".claude/skills",
    "text": "-",
}
_MAX_BYTES = 10_000_000

commands = Commands()


@commands.add(
    "export",
    "valve bank export --to claude                # between two marks in CLAUDE.md; the rest stays as it is",
    "valve bank export --to skills --out .agents/skills",
    "valve bank export --to agents --check        # in CI: exit code 1 when AGENTS.md is out of date",
    "valve bank export --to text                  # on stdout",
)
def export(
    to: Annotated[Format, option("--to", "FORMAT", "agents, claude, cursor, copilot, skills or text.")],
    out: Annotated[str, option("--out", "PATH", "Another place than the format's usual one; - is stdout.")] = "",
    check: Annotated[bool, flag("--check", "Write nothing; exit code 1 when something is out of date.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Write the bank's notes where other agents look for instructions.

    Only the part between the marks is ours, and running it twice changes nothing. Skills are folders of the Agent
    Skills format: an agent reads name and description always, and the rest on demand. What no gate judged says so.
    `valve bank import` reads all of it back.
    """
    from valve_plugin.live.context import require_welcome

    store = open_bank(bank)
    require_welcome(store, lambda line: output.warn(line))
    simulation = runs.note_simulation(store.dir, json=json, data=out == "-" or to == "text")
    if simulation and not out and to != "text":
        refuse_simulation(store)
    wanted = _wanted(to, out, store)
    stale = sorted(path for path, text in wanted.items() if path != "-" and now(Path(path)) != text)
    if not check:
        for path in stale:
            write(Path(path), wanted[path])
    if json:
        facts = {"bank": str(store.dir), "format": to, "files": sorted(wanted), "simulation": simulation}
        text = {"text": wanted["-"]} if "-" in wanted else {}
        hidden = [item.name for item in store.bank.items if item.hidden]
        output.emit_json({**facts, "changed": stale, "left_out": hidden, **text})
    else:
        if "-" in wanted:
            output.verbatim(wanted["-"] or "")
        for path in stale:
            done = "removed" if wanted[path] is None else "written"
            output.note(f"{path}: {'out of date' if check else done}")
        if not stale and "-" not in wanted:
            output.note("up to date")
    if check and stale:
        raise typer.Exit(output.FINDING)


def refuse_simulation(store: BankStore) -> None:
    """Raise ConfigError for a simulation's bank."""
    if _simulation(store):
        raise ConfigError(f"{store.dir} is a SIMULATION's bank, so no agent should get it; name a place with --out")


def notes(store: BankStore) -> str:
    """Return the part between the marks."""
    from valve_plugin.bank import acts, exchange

    return exchange.section(_seen(store), acts.standing(store.entries()), _simulation(store))


def _simulation(store: BankStore) -> str:
    return LABEL if is_scripted(store.dir) else ""


def _seen(store: BankStore) -> list[Item]:
    """Return the items that hide nothing, and name the others on stderr."""
    for item in store.bank.items:
        if item.hidden:
            output.warn(f"{item.kind} {item.name} hides what it says and is left out")
    return [item for item in store.bank.items if not item.hidden]


def _wanted(to: Format, out: str, store: BankStore) -> dict[str, str | None]:
    """Return the text that each file should have; None: it should not be there; `-` is stdout."""
    from valve_plugin.bank import acts, exchange
    from valve_plugin.bank.exchange import SKILL_FILE, is_ours

    place = out or FILES[to]
    if to == "skills":
        if place == "-":
            raise ConfigError("--out -: skills are folders; name one")
        folder = Path(place) if out else inside(place)
        written = exchange.skill_files(_seen(store), acts.standing(store.entries()), _simulation(store))
        files = {str(folder / name / exchange.SKILL_FILE): text for name, text in written.items()}
        # Our own skills of earlier exports, to be removed
        found: dict[str, str | None] = {}
        for path in sorted(folder.glob(f"*/{SKILL_FILE}")):
            if is_ours(now(path) or ""):
                found[str(path)] = None
            elif str(path) in files:
                raise ConfigError(f"{path} is a skill of your own with the name of a note; rename one of the two")
        return {**found, **files}
    part = notes(store)
    if place == "-":
        return {"-": f"{part}\n"}
    path = Path(place) if out else inside(place)
    return {str(path): exchange.place(now(path) or "", part, head=exchange.cursor_head(path))}


def inside(place: str) -> Path:
    """Return a file's place in the repository around.

    Raises:
        ConfigError: a link leads out of it.
    """
    folder = find(Path.cwd()).folder
    path = folder / place
    if not path.resolve().is_relative_to(folder):
        raise ConfigError(
            f"{path} leads to {path.resolve()}, outside of {folder}; `valve bank export --out` writes there"
        )
    return path


def now(path: Path) -> str | None:
    """Return a file's text; None where there is none."""
    try:
        return read_regular(path, _MAX_BYTES).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from e


def write(path: Path, text: str | None) -> None:
    """Write a file, or remove it, and its folder where that is empty then."""
    if text is None:
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
        return
    place = path.resolve()  # CLAUDE.md is often a link to AGENTS.md, and stays one
    make_dir(place.parent)
    write_atomic(place, text.encode("utf-8", "surrogateescape"))
