"""Make an example's tasks.jsonl and suite.txt again: SWE-smith's bugs, verified by the library's own tests.

    pip install '.[smith]'
    python examples/regenerate.py examples/pygments --wanted 45 --workers 2

Deterministic by --seed, whatever the number of workers; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from functools import partial
from pathlib import Path

from valve_plugin import codec
from valve_plugin.config import Settings
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.tasks import repository
from valve_plugin.tasks.make import candidates, generate
from valve_plugin.tasks.make.generate import NOT_REACHED, CandidateResult, is_excluded
from valve_plugin.tasks.task_set import ROWS_NAME, load
from valve_plugin.tasks.workspace import open_commit


def main() -> None:
    """Generate, verify, write, and load again what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("example", type=Path, help="directory with a repository.toml")
    parser.add_argument("--wanted", type=int, default=40)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefix", default="", help="what instance ids begin with; default: name and commit")
    options = parser.parse_args()

    definition = repository.read_definition(options.example / repository.FILE_NAME)
    work = Path(repository.prepare(definition, print).folder) / "regenerate"
    sandbox = choose(Settings())
    prepared, ground = generate.survey(work, definition, "examples/regenerate.py", sandbox, print, options.workers)
    with open_commit(prepared, prepared.base) as workspace:
        source = partial(is_excluded, test_roots=definition.test_roots)
        found = candidates.find_candidates(workspace.path, source, options.seed, options.workers)
    print(f"{len(found)} candidates")

    started, tally = time.monotonic(), Counter[str]()

    def told(tried: CandidateResult) -> None:
        tally["verified" if tried.row else "unreached" if tried.reason == NOT_REACHED else "refused"] += 1
        seconds = time.monotonic() - started
        said = f"{len(tried.row.fail_to_pass)} fail" if tried.row else tried.reason
        print(f"{seconds:5.0f} s {tally['verified']:3} {tried.candidate.modifier} {tried.candidate.file}: {said}")

    made = generate.try_candidates(
        work,
        prepared,
        ground,
        candidates.order_candidates(found, options.seed),
        sandbox,
        wanted=options.wanted,
        workers=options.workers,
        report=told,
        prefix=options.prefix,
    )
    (options.example / definition.suite).write_text("\n".join(made.suite) + "\n")
    (options.example / ROWS_NAME).write_bytes(b"".join(codec.canonical(row) + b"\n" for row in made.rows))
    tasks = load(options.example).tasks
    files = Counter(line[6:] for task in tasks for line in task.patch.splitlines() if line.startswith("+++ b/"))
    modifiers = Counter(task.instance_id.split(".")[-1].split("__")[0] for task in tasks)
    print(f"{dict(tally)}; {len(tasks)} tasks over {len(files)} files {dict(files)}")
    print(f"and {len(modifiers)} modifiers {dict(modifiers)}")


if __name__ == "__main__":
    main()
