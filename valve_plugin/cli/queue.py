"""`valve evolve --all DIR`: the banks of many repositories, run with one set of workers and one budget."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from valve_plugin.cli import output, resume, together
from valve_plugin.cli.output import plural
from valve_plugin.errors import ConfigError
from valve_plugin.paths import scripted_bank_dir

_MOST = 120
"""Characters of a failure that the table at the end repeats."""


class Entry(NamedTuple):
    """A task set and its bank."""

    name: str
    tasks: Path
    bank: Path


def find(folder: str, bank: str, *, simulate: bool) -> list[Entry]:
    """Return the task sets in a folder, by name, each with the bank that `valve evolve` would use for it alone.

    Args:
        folder: holds task sets as folders.
        bank: folder of the banks, by name of the set; empty: each where it would be.
        simulate: whether the banks are those of simulations.

    Raises:
        ConfigError: there is no task set, or two would share a bank.
        TaskError: a definition is damaged.
    """
    from valve_plugin.tasks.task_set import is_task_set

    place = Path(folder)
    if is_task_set(place):
        raise ConfigError(f"{folder} is one task set; --all takes a folder of several: leave --all out")
    sets = sorted(path for path in place.glob("*/") if is_task_set(path))
    if not sets:
        raise ConfigError(f"{folder}: no folder in it is a task set, with repository.toml and tasks.jsonl")
    found = [Entry(path.name, path, Path(bank) / path.name if bank else _bank(path, simulate)) for path in sets]
    owners: dict[Path, str] = {}
    for one in found:
        if (other := owners.setdefault(one.bank.resolve(), one.name)) != one.name:
            raise ConfigError(
                f"{other} and {one.name} would use one bank, {one.bank}; --bank DIR gives each one of its own there"
            )
    return found


def _bank(tasks: Path, simulate: bool) -> Path:
    from valve_plugin.bank.identity import find_bank
    from valve_plugin.checkout import find as find_checkout
    from valve_plugin.tasks.repository import FILE_NAME, read_definition

    name = read_definition(tasks / FILE_NAME).name  # the tasks are read by the run, which may fail alone
    return scripted_bank_dir(name) if simulate else find_bank("", find_checkout(Path.cwd()), name)


def run(queue: Sequence[Entry], given: dict[str, Any], how: dict[str, Any], *, yes: bool, json: bool) -> None:
    """Run all banks, and print what each came to.

    Raises:
        typer.Exit: some did not end; with their lowest exit code.
    """
    from valve_plugin.config import resolve
    from valve_plugin.rollouts.retry import limits_of

    settings = resolve(given)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if asks and not (yes or how["simulate"] or any(limits_of(settings))):
        what = f"{plural(len(queue), 'bank')} would learn without a limit (--budget-usd, --max-rollouts, --max-hours)"
        typer.confirm(f"{what}. Start?", abort=True, err=True)
    jobs = [
        together.Job(
            one.name,
            "valve_plugin.cli.evolve:learn",
            {"tasks": str(one.tasks), "bank": str(one.bank), "given": given, **how, "yes": True, "json": True},
        )
        for one in queue
    ]
    with resume.advise_on_stop():
        ended = together.run(jobs, settings, limits_of(settings))
    rows = {}
    for one in queue:
        code, said, answer = ended[one.name]
        found = answer if isinstance(answer, dict) else {}
        state = said if code else found.get("stopped") or "done"
        state = state if len(state) <= _MOST else f"{state[:_MOST]}… (whole above)"
        rows[one.name] = {"bank": str(one.bank), "code": code, "ended": state, **found}
    if json:
        output.emit_json({"simulation": how["simulate"], "banks": rows})
    else:
        table, usd, rollouts = [], 0.0, 0
        for name, row in rows.items():
            spent = row.get("spent", {}).get("run", {})
            ran = sum(of["number"] for role, of in spent.items() if role != "extractor")
            cost = sum(of["usd"] for of in spent.values())
            rollouts, usd = rollouts + ran, usd + cost
            sizes = [row.get(fact, "") for fact in ("version", "principles", "skills")]
            table.append([name, *sizes, ran, f"{cost:.2f}" if cost else "", output.one_line(row["ended"])])
        output.table(["TASKS", "VERSION", "PRINCIPLES", "SKILLS", "ROLLOUTS", "USD", "ENDED"], table, prose=("ENDED",))
        money = f", ${usd:.2f}" if usd else ""
        output.say(f"{plural(len(rows), 'bank')}: {plural(rollouts, 'rollout')} in this run{money}")
    if failed := [row["code"] for row in rows.values() if row["code"]]:
        again = resume.command()
        advice = f": {again}" if again else ""
        first = "" if set(failed) == {output.INFRASTRUCTURE} else "repair what is named above; then "
        output.note(
            f"{len(failed)} of {plural(len(rows), 'bank')} did not end; {first}the same command goes on{advice}"
        )
        raise typer.Exit(min(failed))
