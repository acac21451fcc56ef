"""`valve tasks generate`: verified bugs in any Python repository."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import again, around, output, targets
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import UnsafeLocal
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.tasks.generate import Tried
    from valve_plugin.tasks.load import Row
    from valve_plugin.tasks.smith import Candidate
    from valve_plugin.tasks.source import File

Source = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Checkout, source tree, or pypi:NAME==VERSION. Default: here.", show_default=False
    ),
]
Repo = Annotated[
    str, typer.Option("--repo", metavar="NAME", help="owner/name of the repository, where it is not as found.")
]
Out = Annotated[
    str, typer.Option("--out", metavar="DIR", help="Where the tasks go. Default: tasks/<owner>__<repo> in user data.")
]
Python = Annotated[
    str,
    typer.Option("--python", metavar="PYTHON", help="Virtual environment to test in. Default: made from the metadata."),
]
With = Annotated[
    list[str],
    typer.Option("--with", metavar="PACKAGE", help="A requirement of the tests that was not found; may be repeated."),
]
Ignore = Annotated[
    list[str],
    typer.Option("--ignore", metavar="TESTS", help="Tests to leave out, a file or directory; may be repeated."),
]
TaskWorkers = Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Candidates tried at the same time.")]


def add(group: typer.Typer) -> None:
    """Add `valve tasks generate`."""
    group.command(
        "generate",
        epilog=examples(
            "valve tasks generate --n 20                       # bugs in the checkout you are in",
            "valve tasks generate ../lib --python ../lib/.venv --n 50 --workers 4",
            "valve tasks generate pypi:tomlkit==0.13.2 --repo python-poetry/tomlkit --n 20",
            "valve tasks generate --ignore tests/integration   # without the slow ones",
            "valve tasks generate --n 20 --issue-model openai/gpt-5.5-mini",
        ),
    )(generate)


@again.told()
def generate(
    path: Source = ".",
    n: Annotated[int, typer.Option("--n", min=1, metavar="N", help="Verified tasks there should be at least.")] = 20,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", help="Of the bugs and their order.")] = 0,
    repo: Repo = "",
    out: Out = "",
    python: Python = "",
    with_: With = [],  # noqa: B006 (Typer copies it)
    ignore: Ignore = [],  # noqa: B006
    workers: TaskWorkers = 2,
    issue_model: Annotated[
        str, typer.Option("--issue-model", metavar="MODEL", help="Let this model word the issues. Default: no model.")
    ] = "",
    alike: Annotated[
        bool,
        typer.Option("--alike", help="Take bugs as they come, also where nearly the same tests fail with another."),
    ] = False,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Make verified tasks out of a repository.

    SWE-smith's procedural modifiers introduce a bug; the repository's own tests, run twice, say what it breaks.
    Candidates that no test notices are dropped, tests that vary are left out, files and kinds of bugs are spread;
    of bugs in the same lines, or with which nearly the same tests fail, one is taken, as long as others are found.
    The same seed gives the same tasks, with any number of workers; stopped and started again, it goes on where it
    was, and a larger --n adds to them. What a set holds stays, also with a smaller --n; --out DIR makes another.
    Needs the extra `smith`. Exit code 1 when fewer than --n were found.
    """
    from valve_plugin.cli.candidates_told import CandidatesTold
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.cli.meter import Meter
    from valve_plugin.config import Settings
    from valve_plugin.rollouts import sandbox as sandboxes
    from valve_plugin.tasks import folder, make, smith
    from valve_plugin.tasks.define import read_source
    from valve_plugin.tasks.follow import EVERY

    name = repository_name(path, repo)
    directory, command = Path(out) if out else folder.default(name), "valve tasks generate"
    folder.check_free(directory, command)
    targets.folder("--out", directory)
    settings = Settings(unsafe_local=unsafe_local)
    sandbox = sandboxes.choose(settings)
    with GoingOn() as going:
        going.on(f"reading the source of {name}")
        files = read_source(path, going)
        found = _candidates(files, seed, workers, directory, going)
        output.note(f"{len(found)} candidate bugs")
        prepared, ground = make.grounded(
            directory, name, files, command, sandbox, going,
            python=python, requirements=with_, ignored=ignore, wanted=n, workers=workers, again=again.command(settings),
        )  # fmt: skip
        told, ordered = CandidatesTold(n, Meter(n), alike=alike), smith.spread(found, seed)
        going.on(told.far, EVERY)
        made = make.try_all(
            directory, prepared, ground, ordered, sandbox, wanted=n, workers=workers, told=told, distinct=not alike
        )
        if 0 < n < len(made.rows):
            output.note(f"{len(made.rows)} tasks are kept: --n says how many there are at least; --out DIR makes fewer")
        rows = _worded(made.rows, issue_model, directory, going)
    folder.write(directory, prepared.repository, rows, made_by=f"{command} --seed {seed}", suite=made.suite)
    if json:
        facts = {"repository": name, "path": str(directory), "tasks": len(rows), "wanted": n, "tried": len(told.tried)}
        output.emit_json({**facts, "yield": _yields(told.tried)})
    else:
        _report(directory, len(rows), n, told.tried)
        around.note_next(f"valve tasks verify {quote(around.called(directory))}")
    if len(rows) < n:
        raise typer.Exit(output.FINDING)


def _candidates(files: list[File], seed: int, workers: int, directory: Path, going: GoingOn) -> list[Candidate]:
    """Return the possible bugs of a source tree; found once, they are kept."""
    from valve_plugin.cli.meter import Slow
    from valve_plugin.tasks import make, scan, smith
    from valve_plugin.tasks.generate import skip
    from valve_plugin.tasks.project import examine

    roots = examine({p: c for p, _, c in files}).test_roots
    work, key = directory / "work" / "candidates.json", scan.key_of(files, seed)
    if (found := scan.kept(work, key)) is None:
        going(f"{output.plural(len(files), 'file')}; looking for places for a bug")
        with make.unpacked(files) as tree:
            found = smith.candidates(tree, lambda file: skip(file, roots), seed, workers, Slow("files"))
        targets.made("--out", directory)
        scan.keep(work, key, found)
    return found


def repository_name(path: str, given: str) -> str:
    """Return what the tasks' repository is called: as told, as its bank says, as `valve init` would call it.

    Raises:
        TaskError: the name found is not owner/name.
    """
    import re

    from valve_plugin.bank.checkout import find
    from valve_plugin.bank.paths import BANK_NAME
    from valve_plugin.cli import detect
    from valve_plugin.config import load
    from valve_plugin.errors import TaskError

    name = given
    if not name and path.startswith("pypi:"):
        name = path.removeprefix("pypi:").partition("==")[0]
    elif not name:
        here = find(Path(path))
        bank = here.folder / BANK_NAME
        name = (load(bank).repo if bank.is_dir() else "") or detect.name(here).value
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?", name):
        raise TaskError(f"repository name {name!r}, expected owner/name or name; say it with --repo")
    return name


def _worded(rows: list[Row], model: str, directory: Path, going: GoingOn) -> list[Row]:
    from valve_plugin.tasks import issue_model

    if not model:
        return rows
    going(f"{model} words {output.plural(len(rows), 'issue')}")
    journal = directory / "work" / "issues.jsonl"
    return issue_model.rewrite(rows, issue_model.by_litellm(model), model, journal, going)


def _yields(tried_all: list[Tried]) -> dict[str, dict[str, int]]:
    """Return candidates tried and verified, by modifier."""
    tried = Counter(t.candidate.modifier for t in tried_all)
    good = Counter(t.candidate.modifier for t in tried_all if t.row)
    return {name: {"tried": tried[name], "verified": good[name]} for name in sorted(tried)}


def _report(directory: Path, tasks: int, wanted: int, tried_all: list[Tried]) -> None:
    rows = [
        [name, c["tried"], c["verified"], f"{100 * c['verified'] / c['tried']:.0f} %"]
        for name, c in _yields(tried_all).items()
    ]
    output.table(["MODIFIER", "TRIED", "VERIFIED", "YIELD"], rows)
    for reason, count in Counter(_kind(t.reason) for t in tried_all if not t.row).most_common():
        output.say(f"{count:4} dropped: {reason}")
    if spare := sum(t.row is not None for t in tried_all) - tasks:
        output.say(f"{spare:4} left out: much the same as another bug, or what shows them varies")
    files = len({t.candidate.file for t in tried_all if t.row})
    short = (
        f" ({wanted} wanted, and there are no more candidates; another --seed makes others)" if tasks < wanted else ""
    )
    output.say(f"{output.plural(tasks, 'verified task')} over {output.plural(files, 'file')}{short}; {directory}")


def _kind(reason: str) -> str:
    """Return a reason without its numbers, so that equal ones can be counted."""
    import re

    if reason.startswith("breaks "):
        return "breaks too many tests: over a tenth of the suite, and over 10 or half of it"
    return re.sub(r"\d+", "N", reason)
