"""`valve tasks mine`: bugs that a repository's own history fixed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import again, output, targets
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import UnsafeLocal
from valve_plugin.cli.tasks_generate import Ignore, Python, Repo, TaskWorkers, With, repository_name

if TYPE_CHECKING:
    from valve_plugin.tasks.generate import Tried
    from valve_plugin.tasks.mine import Found

_COMMAND = "valve tasks mine"
_OTHERWISE = "--commits N looks further back, `valve tasks generate` needs no history"


def add(group: typer.Typer) -> None:
    """Add `valve tasks mine`."""
    group.command(
        "mine",
        epilog=examples(
            "valve tasks mine                               # the checkout you are in",
            "valve tasks mine ../lib --commits 2000 --n 50 --python ../lib/.venv",
            "valve tasks mine --out tasks/ --json",
        ),
    )(mine)


@again.told()
def mine(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A git checkout. Default: here.", show_default=False)
    ] = ".",
    n: Annotated[int, typer.Option("--n", min=1, metavar="N", help="Verified tasks there should be at least.")] = 20,
    commits: Annotated[
        int,
        typer.Option(
            "--commits", min=1, metavar="N", help="Commits to look at, newest first, merges aside. Default: 500."
        ),
    ] = 500,
    repo: Repo = "",
    out: Annotated[
        str,
        typer.Option("--out", metavar="DIR", help="Where they go. Default: tasks/<owner>__<repo>__mined in user data."),
    ] = "",
    python: Python = "",
    with_: With = [],  # noqa: B006 (Typer copies it)
    ignore: Ignore = [],  # noqa: B006
    workers: TaskWorkers = 2,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Make verified tasks out of a git history.

    Takes commits that changed source and tests together, and takes back the source change alone in today's source:
    tests that then fail, and pass again with the change, are the task; the issue is the commit's message and what
    a failing test shows. Nothing is written to the repository. Exit code 1 when there are none.
    """
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.cli.meter import Meter
    from valve_plugin.config import Settings
    from valve_plugin.rollouts import sandbox as sandboxes
    from valve_plugin.tasks import folder, make
    from valve_plugin.tasks import mine as mining
    from valve_plugin.tasks.define import examined, read_head

    name = repository_name(path, repo)
    directory = Path(out) if out else folder.default(f"{name}__mined")
    folder.check_free(directory, _COMMAND)
    targets.folder("--out", directory)
    settings = Settings(unsafe_local=unsafe_local)
    sandbox = sandboxes.choose(settings)
    repository, head = _history(Path(path))
    tried_all: list[Tried] = []

    def told(tried: Tried) -> None:
        tried_all.append(tried)
        said = output.plural(len(tried.row.fail_to_pass), "test fails", "tests fail") if tried.row else tried.reason
        subject = found.messages[tried.candidate.digest].partition("\n")[0]
        text = f"{tried.candidate.digest[:8]} {subject[:60]}: {said}"
        meter.tick(text, counts=tried.row is not None, style="green" if tried.row else "")

    with GoingOn() as going:
        going("looking for fixes in the history")
        files = read_head(Path(path), head)
        found = mining.find(repository, head, examined(name, files)[1].test_roots, commits)
        output.note(_counted(found))
        meter = Meter(min(n, len(found.candidates)))
        if found.candidates:
            targets.made("--out", directory)
            prepared, ground = make.grounded(
                directory, name, files, _COMMAND, sandbox, going,
                python=python, requirements=with_, ignored=ignore, wanted=n, workers=workers,
                again=again.command(settings),
            )  # fmt: skip
            going.on("trying commits")
            made = make.try_all(
                directory, prepared, ground, found.candidates, sandbox, wanted=n, workers=workers, told=told
            )
    if not found.candidates:
        output.note(f"so nothing was run and no task set made: {_OTHERWISE}")
        if json:
            output.emit_json({"repository": name, "path": "", "tasks": 0, **_looked(found, 0)})
        raise typer.Exit(output.FINDING)
    rows = mining.worded(made.rows, found.messages)
    if rows:
        folder.write(directory, prepared.repository, rows, made_by=_COMMAND, suite=made.suite)
    if json:
        facts = {"repository": name, "path": str(directory), "tasks": len(rows)}
        output.emit_json({**facts, **_looked(found, len(tried_all))})
    else:
        for reason, count in Counter(t.reason for t in tried_all if not t.row).most_common():
            output.say(f"{count:4} dropped: {reason}")
        output.say(f"{output.plural(len(rows), 'verified task')}; {directory}")
    if not rows:
        raise typer.Exit(output.FINDING)


def _history(checkout: Path) -> tuple[Path, str]:
    """Return (git directory, commit) of a checkout.

    Raises:
        TaskError: it is none, or has no history.
    """
    from valve_plugin.errors import TaskError
    from valve_plugin.tasks import history

    repository = history.git_dir(checkout)
    if not history.goes_back(checkout):
        raise TaskError(
            f"{checkout}: its HEAD has no commit before it, so no history can be looked at, as in a new repository or "
            "a shallow clone; `valve tasks generate` takes the files as they are"
        )
    return repository, history.resolve(repository, "HEAD")


def _counted(found: Found) -> str:
    both = len(found.candidates) + found.gone
    gone = f", {found.gone} of them cannot be taken back any more" if both else ""
    first = f" ({found.first} with nothing before {'it' if found.first == 1 else 'them'})" if found.first else ""
    return f"{output.plural(found.looked_at, 'commit')} looked at{first}, {both or 'none'} with source and tests{gone}"


def _looked(found: Found, tried: int) -> dict[str, int]:
    return {"commits": found.looked_at, "first": found.first, "tried": tried, "gone": found.gone}
