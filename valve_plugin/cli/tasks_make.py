"""`valve tasks generate`, `mine` and `import`: three ways to make a task set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec.structs import asdict

from valve_plugin.cli import output, task_sets
from valve_plugin.cli.options import Commands, Json, argument, flag, option
from valve_plugin.cli.runs import UnsafeLocal
from valve_plugin.cli.stage import Meter, Stage
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, SandboxError, TaskError, ValveError
from valve_plugin.words import quote

if TYPE_CHECKING:
    from valve_plugin.records import Task
    from valve_plugin.sandbox.bubblewrap import Sandbox
    from valve_plugin.sandbox.git import File
    from valve_plugin.tasks.import_rows import Branches, Rows, Survey
    from valve_plugin.tasks.make.candidates import Candidate
    from valve_plugin.tasks.make.define import SuiteNeeds
    from valve_plugin.tasks.make.generate import CandidateResult, GeneratedSet
    from valve_plugin.tasks.repository import PreparedRepository, Repository
    from valve_plugin.tasks.task_set import SmithRow

_GENERATE, _MINE, _IMPORT = "valve tasks generate", "valve tasks mine", "valve tasks import"

Source = Annotated[
    str, argument("PATH", "Checkout, source tree, or pypi:NAME==VERSION. Default: here.", show_default=False)
]
Wanted = Annotated[int, option("--n", "N", "Verified tasks there should be at least.", min=1)]
Repo = Annotated[str, option("--repo", "NAME", "owner/name of the repository, where it is not as found.")]
Ignore = Annotated[list[str], option("--ignore", "TESTS", "Tests to leave out, a file or directory; may be repeated.")]
Workers = Annotated[int, option("--workers", "N", "Candidates tried at the same time.", min=1)]

commands = Commands()


class Making(NamedTuple):
    """The options of all three."""

    out: Annotated[str, option("--out", "DIR", "Where the tasks go. Default: a folder of its own in user data.")] = ""
    python: Annotated[
        str, option("--python", "PYTHON", "Virtual environment for the tests. Default: made from metadata.")
    ] = ""
    with_: Annotated[list[str], option("--with", "PACKAGE", "A package the tests need too; may be repeated.")] = []  # noqa: RUF012 (Typer copies it)
    auto_env: Annotated[bool, flag("--auto-env", "Also install declared extras, until pytest collects all tests.")] = (
        False
    )
    unsafe_local: UnsafeLocal = False

    def sandbox(self) -> Sandbox:
        """Return the sandbox for tests."""
        return _sandbox(self.unsafe_local)

    def needs(self, ignore: Sequence[str] = ()) -> SuiteNeeds:
        """Return what the tests need; for --auto-env also the sandbox in which pytest collects them."""
        from valve_plugin.tasks.make.define import SuiteNeeds

        if self.auto_env and self.python:
            raise ConfigError("--auto-env installs into its own environment, --python names one; give one of them")
        return SuiteNeeds(self.python, self.with_, ignore, self.sandbox() if self.auto_env else None)

    def folder(self, name: str, command: str) -> Path:
        """Return the folder for a task set, which holds none that another command made."""
        from valve_plugin.tasks import task_set

        directory = Path(self.out) if self.out else task_set.default_folder(name)
        if command != _IMPORT:
            task_set.check_free(directory, command)
        output.require_folder("--out", directory)
        return directory


MAKING = Making()


@commands.add(
    "generate",
    "valve tasks generate --n 20                       # bugs in the checkout you are in",
    "valve tasks generate ../lib --python ../lib/.venv --n 50 --workers 4",
    "valve tasks generate pypi:tomlkit==0.13.2 --repo python-poetry/tomlkit --n 20",
)
@output.advise_on_stop()
def generate(
    path: Source = ".",
    n: Wanted = 20,
    seed: Annotated[int, option("--seed", "SEED", "Of the bugs and their order.")] = 0,
    repo: Repo = "",
    ignore: Ignore = [],  # noqa: B006 (Typer copies it)
    workers: Workers = 2,
    making: Making = MAKING,
    json: Json = False,
) -> None:
    """Make verified tasks out of a repository.

    SWE-smith's procedural modifiers introduce bugs. The repository's own tests, run twice, show what a bug breaks.
    Bugs that no test notices are dropped, and tests with varying results are left out. The bugs tried first are spread
    over places, files and kinds. The same seed gives the same tasks with any number of workers. Stopped and started
    again, it continues, and a larger --n adds tasks. Tasks in a set stay there, also with a smaller --n; --out DIR
    makes another set. Needs the extra `smith`, 0.9 GB. Exit code 1 when fewer than --n were found.
    """
    from valve_plugin.tasks import task_set
    from valve_plugin.tasks.make import candidates
    from valve_plugin.tasks.make.define import read_source
    from valve_plugin.tasks.make.project import examine

    name = task_sets.repository_name(path, repo)
    directory, sandbox, needs = making.folder(name, _GENERATE), making.sandbox(), making.needs(ignore)
    made_by = f"{_GENERATE} --seed {seed}"
    if " --seed " in (before := task_set.made_by(directory)) and before != made_by:
        task_set.require_kept(directory, {}, n)  # another seed gives other tasks
    trials = Trials(n, lambda one: f"{one.modifier} {one.file}")
    with Stage() as stage:
        stage.on("loading the modifiers")
        candidates.load_modifiers()  # where they are missing, nothing is read for nothing
        stage.on(f"reading the source of {name}")
        files = read_source(path, stage)
        roots = examine({p: c for p, _, c in files}).test_roots
        stage(f"{output.plural(len(files), 'file')}; looking for places for a bug")
        with candidates.unpack_files(files) as source_tree:
            found = candidates.find_candidates(
                source_tree, lambda file: candidates.is_excluded(file, roots), seed, workers
            )
        output.note(output.plural(len(found), "candidate bug"))
        ordered = candidates.order_candidates(found, seed)
        source = _Source(directory, name, files, _GENERATE, needs)
        definition, made = _verify_candidates(source, ordered, sandbox, n, workers, trials, stage)
    task_set.write(directory, definition, made.rows, made_by=made_by, suite=made.suite)
    if n < len(made.rows):
        output.note(f"{len(made.rows)} tasks are kept: --n says how many there are at least; --out DIR makes fewer")
    others = f"{output.resume_command() or _GENERATE} --seed {seed + 1} --out {quote(f'{directory}-seed-{seed + 1}')}"
    _report_made(name, directory, len(made.rows), trials, json, others, wanted=n)
    if not json:
        output.note(f"next: {_next_command(directory) or f'valve tasks mine {quote(path)}'}")
    if len(made.rows) < n:
        raise typer.Exit(output.FINDING)


@commands.add(
    "import",
    "valve tasks import SWE-bench/SWE-smith --repo seperman/deepdiff --source pypi:deepdiff==8.2.0",
    "valve tasks import rows.parquet --repo owner/name --clone ../clone-with-branches",
    "valve tasks import rows.jsonl --repo owner/name  # in the image that the rows name, if it is here",
    "valve tasks import rows.jsonl --source ../lib --python ../lib/.venv --out tasks/",
)
@output.advise_on_stop()
def import_(
    source: Annotated[
        str, argument("SOURCE", "Hub id of a data set, one saved on disk, or a file: JSON, JSON lines, CSV, parquet.")
    ],
    repo: Annotated[str, option("--repo", "NAME", "Take the rows of this repository.")] = "",
    clone: Annotated[str, option("--clone", "PATH", "Local clone with a branch for each row.")] = "",
    tree: Annotated[str, option("--source", "PATH", "Source of the rows: a tree or pypi:NAME==VERSION.")] = "",
    split: Annotated[str, option("--split", "NAME", "Of the data set.")] = "train",
    making: Making = MAKING,
    json: Json = False,
) -> None:
    """Import SWE-smith rows as a task set.

    The code that the rows change is in a source tree, in a clone, or in /testbed of the container image they name.

    The rows are read one at a time, from a file of any size, also from a compressed one. A row that cannot be read or
    used is listed with its line or row number and the reason, the others are imported, and the exit code is 1. Refused
    are an empty FAIL_TO_PASS, a known id or bug, a test that cannot exist, a patch that does not apply or that changes
    tests. Rows about other repositories are left out and counted. A row without a problem statement gets one made from
    a failing test. Run `valve tasks verify` next, which checks the rows against the tests.
    """
    from valve_plugin.tasks import import_rows, task_set
    from valve_plugin.tasks.image import IMAGE_PREFIX
    from valve_plugin.tasks.repository import prepare

    rows = import_rows.open_rows(source, split)
    survey = import_rows.survey_rows(rows, repo)
    if not survey.name:
        _report_import(survey, "", 0, survey.refusals, rows.unit, json)
        output.note("a row is SWE-smith's: repo, instance_id, patch, FAIL_TO_PASS, PASS_TO_PASS and problem_statement")
        raise typer.Exit(output.FINDING)
    output.note(f"{output.plural(survey.rows, 'row')} about {survey.name}")
    if survey.others:
        listed = import_rows.list_repositories(survey.others)
        output.note(f"{output.plural(sum(survey.others.values()), 'row')} about other repositories left out: {listed}")
    directory, found = making.folder(survey.name, _IMPORT), list[str]()
    with Stage() as stage:
        repository, branches = _rows_repository(directory, survey, rows, clone, tree, making.needs(), stage)
        prepared = prepare(repository, stage)
        stage.on("applying the rows' patches to the source")
        importer = import_rows.Importer(prepared, rows.unit, making.sandbox, branches)
        made = (task_set.SmithRow(**asdict(task)) for task in importer.tasks(import_rows.rows_about(rows, survey)))
        output.make_folder("--out", directory)
        tasks = task_set.write(directory, repository, made, made_by=_IMPORT)
        if tasks and not repository.source.startswith(IMAGE_PREFIX):
            stage.on("running the tests with the fix")
            found = _refused(prepared, task_set.load(directory).tasks, Settings(unsafe_local=making.unsafe_local))
    for line in found:
        output.warn(line)
    refusals = survey.refusals | importer.refusals
    _report_import(survey, str(directory), tasks, refusals, rows.unit, json)
    if refusals or not tasks:
        raise typer.Exit(output.FINDING)


def _refused(prepared: PreparedRepository, tasks: Sequence[Task], settings: Settings) -> list[str]:
    """Return what to say of tasks that not even their fix resolves, or why their tests cannot be run."""
    from valve_plugin.tasks.grading.grade import refused_fixes, say_refused

    try:
        return say_refused([*refused_fixes(prepared, tasks, settings)])
    except ValveError as e:
        return [f"the tests were not run with the fix: {e}"]


@commands.add(
    "mine",
    "valve tasks mine                               # the checkout you are in",
    "valve tasks mine ../lib --commits 2000 --n 50 --python ../lib/.venv",
)
@output.advise_on_stop()
def mine(
    path: Annotated[str, argument("PATH", "A git checkout. Default: here.", show_default=False)] = ".",
    n: Wanted = 20,
    commits: Annotated[int, option("--commits", "N", "Commits to look at, newest first, without merges.", min=1)] = 500,
    repo: Repo = "",
    ignore: Ignore = [],  # noqa: B006 (Typer copies it)
    workers: Workers = 2,
    making: Making = MAKING,
    json: Json = False,
) -> None:
    """Make verified tasks out of a git history.

    Takes commits that changed source and tests together, and reverts only the source change in today's source. The
    tests that then fail, and pass with the change, make the task. The issue is the commit's message and what a failing
    test prints. Nothing is written to the repository. Exit code 1 when no task was made.
    """
    from valve_plugin.sandbox import git
    from valve_plugin.tasks import task_set
    from valve_plugin.tasks.make import candidates
    from valve_plugin.tasks.make.define import read_head, read_project

    name = task_sets.repository_name(path, repo)
    directory, sandbox, needs = making.folder(f"{name}__mined", _MINE), making.sandbox(), making.needs(ignore)
    git_dir = git.find_git_dir(Path(path))
    if not git.has_history(Path(path)):
        raise TaskError(
            f"{path}: its HEAD has no commit before it, so no history can be looked at, as in a new repository or "
            "a shallow clone; `valve tasks generate` takes the files as they are"
        )
    head = git.resolve_commit(git_dir, "HEAD")
    rows: list[SmithRow] = []
    with Stage() as stage:
        stage("looking for fixes in the history")
        files = read_head(Path(path), head)
        found = candidates.find_fixes(git_dir, head, read_project(name, files)[1].test_roots, commits)
        both = len(found.candidates) + found.gone
        gone = f", {found.gone} of them cannot be reverted any more" if both else ""
        first = f" ({found.first} without a parent)" if found.first else ""
        looked = output.plural(found.looked_at, "commit")
        output.note(f"{looked} looked at{first}, {both or 'none'} with source and tests{gone}")
        subjects = {digest: message.partition("\n")[0][:60] for digest, message in found.messages.items()}
        trials = Trials(min(n, len(found.candidates)), lambda one: f"{one.digest[:8]} {subjects[one.digest]}")
        if found.candidates:
            source = _Source(directory, name, files, _MINE, needs)
            definition, made = _verify_candidates(source, found.candidates, sandbox, n, workers, trials, stage)
            if rows := candidates.add_messages(made.rows, found.messages):
                task_set.write(directory, definition, rows, made_by=_MINE, suite=made.suite)
    counts = {"commits": found.looked_at, "first": found.first, "gone": found.gone}
    _report_made(name, directory, len(rows), trials, json, "", **counts)
    if rows and not json and (then := _next_command(directory)):
        output.note(f"next: {then}")
    if not found.candidates:
        output.note("so nothing was run: --commits N looks further back, `valve tasks generate` needs no history")
    if not rows:
        raise typer.Exit(output.FINDING)


class _Source(NamedTuple):
    """What a new task set is made from."""

    directory: Path
    name: str
    files: list[File]
    command: str
    needs: SuiteNeeds


class Trials:
    """Prints a line about each candidate that was tried, when called with it, and keeps all of them.

    Args:
        wanted: how many tasks there should be.
        describe: returns what a candidate is called.
    """

    def __init__(self, wanted: int, describe: Callable[[Candidate], str]) -> None:
        self.tried: list[CandidateResult] = []
        self.meter, self._describe = Meter(wanted), describe

    def __call__(self, one: CandidateResult) -> None:
        """Take one candidate."""
        self.tried.append(one)
        result = output.plural(len(one.row.fail_to_pass), "test fails", "tests fail") if one.row else one.reason
        text = f"{self._describe(one.candidate)}: {result}"
        self.meter.tick(text, counts=one.row is not None, style="green" if one.row else "")


def _verify_candidates(
    source: _Source, ordered: Sequence[Candidate], sandbox: Sandbox, n: int, workers: int, trials: Trials, stage: Stage
) -> tuple[Repository, GeneratedSet]:
    """Try candidates until `n` are verified; return (the repository's definition, the task set)."""
    from valve_plugin.tasks.make import generate as build

    directory, name, files, command, needs = source
    output.make_folder("--out", directory)
    definition = build.define_repository(directory, name, files, command, needs, say=stage, wanted=n)
    prepared, known = build.survey(directory, definition, command, sandbox, stage, again=output.resume_command())
    stage.on("trying candidate bugs")
    trials.meter.most = len(ordered)
    made = build.try_candidates(directory, prepared, known, ordered, sandbox, wanted=n, workers=workers, report=trials)
    return prepared.repository, made


@cache
def _sandbox(unsafe_local: bool) -> Sandbox:
    from valve_plugin.sandbox import bubblewrap

    return bubblewrap.choose(Settings(unsafe_local=unsafe_local))


def _report_made(
    name: str, directory: Path, tasks: int, trials: Trials, json: bool, others: str, **counts: int
) -> None:
    """Print how many tasks there are now, why candidates were dropped, and `others`, the command that makes others."""
    if json:
        facts = {"repository": name, "path": str(directory) if trials.tried else "", "tasks": tasks}
        output.emit_json({**facts, "tried": len(trials.tried), **counts})
    elif trials.tried:
        for reason, count in Counter(_kind(one.reason) for one in trials.tried if not one.row).most_common():
            output.say(f"{count:4} dropped: {reason}")
        short = tasks < counts.get("wanted", 0)
        more = f" ({counts['wanted']} wanted, and there are no more candidates)" if short else ""
        output.say(f"{output.plural(tasks, 'verified task')}{more}; {directory}")
        if short and others:
            output.note(f"another set, with other bugs: {others}")


def _next_command(folder: Path) -> str:
    """Return what to run once a set was made: its split, or what uses it; empty where it has no task."""
    from valve_plugin.cli.status import with_model
    from valve_plugin.tasks import task_set

    found = task_set.load(folder) if task_set.is_task_set(folder) else None
    if found is None or not found.tasks:
        return ""
    name = task_sets.display_name(folder)
    if found.split:
        return with_model(f"valve evolve {quote(name)}", "")
    too_few = f"valve try AGENTS.md --tasks {quote(name)}  # too few to learn from; this measures a text with them"
    return task_sets.split_command(name, len(found.tasks)) or too_few


def _kind(reason: str) -> str:
    """Return a reason without its numbers, so that equal reasons can be counted."""
    if reason.startswith("breaks "):
        return "breaks too many tests: over a tenth of the suite, and over 10 or half of it"
    return re.sub(r"\d+", "N", reason.partition(": ")[0])


def _report_import(survey: Survey, path: str, tasks: int, refusals: dict[int, str], unit: str, json: bool) -> None:
    """Print what became of the rows; `unit` is `line` or `row`, what their numbers count."""
    refused = [f"{unit} {number}: {why}" for number, why in sorted(refusals.items())]
    others = sum(survey.others.values())
    if json:
        facts: dict[str, Any] = {"repository": survey.name, "path": path, "tasks": tasks, "left_out": others}
        output.emit_json({**facts, "other_repositories": survey.others, "refusals": refused})
        return
    for refusal in refused:
        output.say(f"refused  {output.one_line(refusal)}", style="yellow")
    left_out = f", {output.plural(others, 'row')} about other repositories left out" if others else ""
    where = f"; {path}" if tasks else ""
    output.say(f"{output.plural(tasks, 'task')} imported, {len(refused)} refused{left_out}{where}")


def _rows_repository(
    directory: Path, survey: Survey, rows: Rows, clone: str, tree: str, needs: SuiteNeeds, stage: Stage
) -> tuple[Repository, Branches | None]:
    """Return the definition, and the bugs if they are in branches; the code is in a clone, a source tree or an image.

    Raises:
        ConfigError: none of these is known, or two are given.
        SandboxError: the image is not here.
    """
    from valve_plugin.sandbox.git import read_files
    from valve_plugin.tasks import import_rows
    from valve_plugin.tasks.make.define import define_image, read_source
    from valve_plugin.tasks.make.generate import define_repository
    from valve_plugin.tasks.repository import FILE_NAME, read_definition

    if clone and tree:
        raise ConfigError("--clone and --source both say what the rows change; give one of them")
    branches = None
    if clone:
        stage(f"reading the rows' branches in {clone}")
        branches = import_rows.read_branches(Path(clone), import_rows.rows_about(rows, survey))
        files = read_files(branches.git_dir, branches.tree)
    elif tree:
        files = read_source(tree, stage)
    elif (directory / FILE_NAME).exists():
        return read_definition(directory / FILE_NAME), None
    elif survey.image:
        try:
            files, branches = import_rows.read_image(survey.image, import_rows.rows_about(rows, survey), stage)
        except SandboxError as e:
            raise SandboxError(
                "the rows say what a bug changes, not in what: give --source PATH or --source pypi:NAME==VERSION, or "
                f"--clone PATH. Or use their container image: {e}"
            ) from e
        return define_image(survey.name, survey.image, files), branches
    else:
        raise ConfigError(
            "the rows say what a bug changes, not in what: give --source PATH or --source pypi:NAME==VERSION, or "
            "--clone PATH, or rows that all name one container image in image_name, or put a "
            f"{FILE_NAME} into {directory}"
        )
    output.make_folder("--out", directory)
    repository = define_repository(directory, survey.name, files, _IMPORT, needs, say=stage, wanted=survey.rows)
    return repository, branches
