"""`valve tasks import`: SWE-smith rows that somebody else made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import again, output, targets
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import UnsafeLocal
from valve_plugin.cli.tasks_generate import Out, Python, With
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.tasks.importing import Refused
    from valve_plugin.tasks.repository import Repository
    from valve_plugin.tasks.rows import Rows

_COMMAND = "valve tasks import"


def add(group: typer.Typer) -> None:
    """Add `valve tasks import`."""
    group.command(
        "import",
        epilog=examples(
            "valve tasks import SWE-bench/SWE-smith --repo seperman/deepdiff --source pypi:deepdiff==8.2.0",
            "valve tasks import rows.parquet --repo owner/name --clone ../clone-with-branches",
            "valve tasks import rows.jsonl --repo owner/name  # in the image that the rows name, if it is here",
            "valve tasks import rows.jsonl --source ../lib --python ../lib/.venv --out tasks/",
        ),
    )(import_)


@again.told()
def import_(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="Hub id of a data set, one saved on disk, .parquet, .jsonl or .json."),
    ],
    repo: Annotated[str, typer.Option("--repo", metavar="NAME", help="Take the rows of this repository.")] = "",
    out: Out = "",
    clone: Annotated[str, typer.Option("--clone", metavar="PATH", help="Local clone with a branch for each row.")] = "",
    tree: Annotated[
        str,
        typer.Option(
            "--source", metavar="PATH", help="Source the rows' patches apply to: a tree or pypi:NAME==VERSION."
        ),
    ] = "",
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="Of the data set.")] = "train",
    python: Python = "",
    with_: With = [],  # noqa: B006 (Typer copies it)
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Import SWE-smith rows as a task set.

    What the rows change is in a source tree, in a clone, or in /testbed of the container image they name.

    Every row is checked: empty FAIL_TO_PASS, ids and bugs that come twice, patches that do not apply to the source
    are refused, with reasons. A row without a problem statement gets one as `valve tasks generate` makes them, from
    a failing test. Refusals name the line of a JSONL file, else the row, counted from 1 over all of it; how many
    rows are about other repositories, and so left out, is told. Whether the tests agree is what `valve tasks verify`
    finds out next. Exit code 1 when no row could be used.
    """
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.config import Settings
    from valve_plugin.rollouts import sandbox as sandboxes
    from valve_plugin.tasks import folder, importing
    from valve_plugin.tasks.repository import prepare
    from valve_plugin.tasks.rows import choose, lacking, listed, read_rows, unit

    rows, what = read_rows(source, split), unit(source)
    if rows and all(lacking(row) for row in rows.values()):
        facts = {"repository": "", "path": "", "tasks": 0, **_left_out(Counter())}
        _report(facts, {number: lacking(row) for number, row in rows.items()}, what, json)
        output.note("a row is SWE-smith's: repo, instance_id, patch, FAIL_TO_PASS, PASS_TO_PASS and problem_statement")
        raise typer.Exit(output.FINDING)
    name, rows, others = choose(rows, repo)
    output.note(f"{output.plural(len(rows), 'row')} about {name}")
    if others:
        output.note(f"{output.plural(others.total(), 'row')} about other repositories left out: {listed(others)}")
    directory = Path(out) if out else folder.default(name)
    targets.folder("--out", directory)
    with GoingOn() as going:
        rows, refusals, repository = _repository(directory, name, rows, clone, tree, python, with_, going)
        tasks, bad = importing.check_rows(rows, repository, what)
        prepared = prepare(repository, going)
        going.on("applying the rows' patches to the source")
        tasks, unmade = importing.check_states(prepared, tasks)
        refusals = refusals | bad | unmade
        if wordless := sum(not task.problem_statement.strip() for task in tasks.values()):
            going(f"{output.plural(wordless, 'row')} without a problem statement; made from their failing tests")
            sandbox = sandboxes.choose(Settings(unsafe_local=unsafe_local))
            tasks, silent = importing.worded(prepared, tasks, sandbox)
            refusals |= silent
    if tasks:
        targets.made("--out", directory)
        folder.write(directory, repository, map(importing.to_row, tasks.values()), made_by=_COMMAND)
    facts = {"repository": name, "path": str(directory), "tasks": len(tasks), **_left_out(others)}
    _report(facts, refusals, what, json)
    if not tasks:
        raise typer.Exit(output.FINDING)


def _left_out(others: Counter[str]) -> dict[str, Any]:
    return {"left_out": others.total(), "other_repositories": dict(others.most_common())}


def _report(facts: dict[str, Any], refusals: Refused, what: str, json: bool) -> None:
    """Tell what became of the rows; `what` their numbers count."""
    told = [f"{what} {number}: {why}" for number, why in sorted(refusals.items())]
    if json:
        output.emit_json({**facts, "refusals": told})
        return
    for refusal in told:
        output.say(f"refused  {output.one_line(refusal)}", style="yellow")
    tasks, others = facts["tasks"], facts["left_out"]
    left_out = f", {output.plural(others, 'row')} about other repositories left out" if others else ""
    where = f"; {facts['path']}" if tasks else ""
    output.say(f"{output.plural(tasks, 'task')} imported, {len(refusals)} refused{left_out}{where}")


def _repository(
    directory: Path, name: str, rows: Rows, clone: str, tree: str, python: str, with_: list[str], going: GoingOn
) -> tuple[Rows, Refused, Repository]:
    """Return (rows, refusals, definition): what the rows change is in a clone, in a source tree, or known already.

    Raises:
        ConfigError: none of the three, or two of them.
    """
    from valve_plugin.tasks import importing, make
    from valve_plugin.tasks.define import define_image, read_source
    from valve_plugin.tasks.repository import FILE_NAME, read

    if clone and tree:
        raise ConfigError("--clone and --source both say what the rows change; give one of them")
    refusals: Refused = {}
    if clone:
        going(f"reading the rows' branches in {clone}")
        files, rows, refusals = importing.from_branches(Path(clone), rows)
    elif tree:
        files = read_source(tree, going)
    elif (directory / FILE_NAME).exists():
        return rows, {}, read(directory / FILE_NAME)
    elif image := importing.image_of(rows):
        files, rows, refusals = importing.from_image(image, rows, going)
        return rows, refusals, define_image(name, image, files)
    else:
        raise ConfigError(
            "the rows say what a bug changes, not in what: give --source PATH or --source pypi:NAME==VERSION, or "
            "--clone PATH, or rows that all name one container image in image_name, or put a "
            f"{FILE_NAME} into {directory}"
        )
    targets.made("--out", directory)
    repository = make.define_in(
        directory, name, files, _COMMAND, python=python, requirements=with_, say=going, wanted=len(rows)
    )
    return rows, refusals, repository
