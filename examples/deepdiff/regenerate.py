"""Make tasks.jsonl and suite.txt again: bugs by SWE-smith's modifiers, verified by deepdiff's own tests.

    pip install '.[smith]'
    python examples/deepdiff/regenerate.py --workers 2

Deterministic by --seed, whatever the number of workers; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from valve_plugin import codec
from valve_plugin.config import Settings
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.tasks import repository
from valve_plugin.tasks.make import candidates
from valve_plugin.tasks.make.generate import CandidateResult, generate, is_excluded, stable_suite
from valve_plugin.tasks.task_set import ROWS_NAME, load

HERE = Path(__file__).parent


def main() -> None:
    """Generate, verify, write, and load again what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wanted", type=int, default=40)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefix", default="seperman__deepdiff.ed252022", help="SWE-smith's name of the same tree")
    options = parser.parse_args()

    prepared = repository.prepare(repository.read_definition(HERE / repository.FILE_NAME), print)
    sandbox = choose(Settings())
    suite = stable_suite(prepared, sandbox)
    print(f"{len(suite)} tests pass in both runs of the untouched source")
    with tempfile.TemporaryDirectory() as tree:
        archive = subprocess.run(["git", "archive", prepared.base], cwd=prepared.store, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
        found = candidates.find_candidates(
            Path(tree), lambda path: is_excluded(path, prepared.repository.test_roots), options.seed
        )
    print(f"{len(found)} candidates")

    started, tally = time.monotonic(), Counter[str]()

    def told(tried: CandidateResult) -> None:
        tally["verified" if tried.row else "refused"] += 1
        seconds = time.monotonic() - started
        said = f"{len(tried.row.fail_to_pass)} fail" if tried.row else tried.reason
        print(
            f"{seconds:5.0f} s {tally['verified']:3} {tried.candidate.modifier} {tried.candidate.file}: {said}",
            flush=True,
        )

    suite, rows = generate(
        prepared,
        suite,
        candidates.order_candidates(found, options.seed),
        sandbox,
        wanted=options.wanted,
        prefix=options.prefix,
        journal=Path(prepared.folder) / f"tried-{options.seed}.jsonl",
        workers=options.workers,
        report=told,
    )
    (HERE / prepared.repository.suite).write_text("\n".join(suite) + "\n")
    (HERE / ROWS_NAME).write_bytes(b"".join(codec.canonical(row) + b"\n" for row in rows))
    tasks = load(HERE).tasks
    files = Counter(line[6:] for task in tasks for line in task.patch.splitlines() if line.startswith("+++ b/"))
    modifiers = Counter(task.instance_id.split(".")[-1].split("__")[0] for task in tasks)
    print(f"{len(tasks)} tasks over {len(files)} files {dict(files)} and {len(modifiers)} modifiers {dict(modifiers)}")


if __name__ == "__main__":
    main()
