"""Whether SWE-smith's own report and ours call the same candidate bugs valid.

    pip install '.[smith]'
    python benchmarks/agreement.py [EXAMPLE] [--candidates 60]

Each candidate's whole suite runs once. Its output, in pytest's own words, is SWE-smith's log, for `get_valid_report`;
the same run's verdicts are ours. Differences are named one by one; the last line is the figure. A run that was stopped
goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.sandbox.bubblewrap import Sandbox, choose
from valve_plugin.sandbox.git import apply_patch
from valve_plugin.sandbox.supervisor import CommandResult
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks import repository
from valve_plugin.tasks.grading.testrun import TestRun
from valve_plugin.tasks.grading.watch import CandidateSandbox
from valve_plugin.tasks.make import candidates, generate
from valve_plugin.tasks.make import generate as build
from valve_plugin.tasks.make.candidates import Candidate
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import commit_tree, open_commit

HERE = Path(__file__).resolve()
DEEPDIFF = HERE.parent.parent / "examples" / "deepdiff"
PROFILES = {  # SWE-smith's names of these repositories
    "Suor/funcy": "Suor__funcy.207a7810",
    "seperman/deepdiff": "seperman__deepdiff.ed252022",
    "pygments/pygments": "pygments__pygments.27649ebb",
}
START, END = "+ : '>>>>> Start Test Output'", "+ : '>>>>> End Test Output'"
RECORD = re.compile(rb"\n@valve [0-9a-f]{128} \{.*\}\n")


class Listening:
    """A sandbox that keeps what the last command printed."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.name, self.root = sandbox.name, sandbox.root
        self.heard = b""

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Any) -> CommandResult:
        """See `Sandbox.run`."""
        done = self._sandbox.run(command, workspace, **options)
        self.heard = done.output
        return done


class Both:
    """Validates candidates of one repository twice, on the same runs."""

    def __init__(self, prepared: PreparedRepository, ground: build.Survey, place: Path) -> None:
        words = (*prepared.repository.pytest_args, "-v", "-v")  # beside our -q: as SWE-smith runs pytest
        self.prepared = replace(prepared, repository=replace(prepared.repository, pytest_args=words))
        self.ground, self.place = ground, place
        self.sandbox = Listening(choose(Settings()))
        self.whole_run = generate._run
        self.kept: dict[str, TestRun] = {}
        self.base_log = self.log(prepared.base)

    def log(self, commit: str) -> Path:
        """Run the whole suite on a commit; return the log, and keep the verdicts for `try_candidate`."""
        run = self.whole_run(self.prepared, commit, self.sandbox)
        self.kept[commit] = run
        path = self.place / f"{commit}.log"
        said = RECORD.sub(b"", self.sandbox.heard).decode("utf-8", "replace")
        path.write_text(f"{START}\n{said}\n{END}\n")
        return path

    def run(self, prepared: PreparedRepository, commit: str, sandbox: Sandbox, *more: Any, **options: Any) -> TestRun:
        """Replace `generate._run`, but for the first run of a whole suite, which was made already."""
        return (self.kept.pop(commit, None) if not any(more[:1]) else None) or self.whole_run(
            prepared, commit, sandbox, *more, **options
        )

    def judge(self, candidate: Candidate) -> dict[str, Any]:
        """Return what each says of a candidate."""
        from swesmith.harness.grading import get_valid_report

        tree = apply_patch(self.prepared.store, self.prepared.base, candidate.patch, self.place / "index")
        assert tree is not None
        theirs = get_valid_report(
            str(self.log(commit_tree(self.prepared, tree))),
            str(self.base_log),
            {"repo": PROFILES[self.prepared.name]},
        )["FAIL_TO_PASS"]
        ours = generate.try_candidate(
            self.prepared, self.ground.suite, candidate, CandidateSandbox(self.sandbox, Event()), "x"
        )
        return {
            "candidate": f"{candidate.modifier}__{candidate.digest}",
            "file": candidate.file,
            "theirs": sorted(theirs),
            "ours": ours.row.fail_to_pass if ours.row else [],
            "reason": ours.reason,
        }


def main() -> None:
    """Judge the first candidates in the order `valve tasks generate` takes them; count where both agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("example", type=Path, nargs="?", default=DEEPDIFF)
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=24)
    options = parser.parse_args()
    definition = repository.read_definition(options.example / repository.FILE_NAME)
    work = Path(repository.prepare(definition, print).folder) / "agreement"
    prepared, ground = build.survey(work, definition, "benchmarks/agreement.py", choose(Settings()), print)
    with open_commit(prepared, prepared.base) as workspace:
        source = partial(candidates.is_excluded, test_roots=definition.test_roots)
        found = candidates.find_candidates(workspace.path, source, options.seed, workers=2)
    journal = work / f"agreement-{prepared.digest[:12]}-{options.seed}.jsonl"
    known = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {row["candidate"]: row for row in known}
    tally = Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        both = Both(prepared, ground, Path(place))
        generate._run = both.run  # type: ignore[assignment]
        for candidate in candidates.order_candidates(found, options.seed)[: options.candidates]:
            name = f"{candidate.modifier}__{candidate.digest}"
            row = done.get(name) or both.judge(candidate)
            if name not in done:
                with journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            tally[verdict(row)] += 1
            print(f"{sum(tally.values()):3} {verdict(row)}: {name} {row['file']} {row['reason']}", flush=True)
    print(dict(tally))
    same = sum(count for name, count in tally.items() if name.startswith("both"))
    print(f"the same verdict on {same} of {sum(tally.values())} candidates of {definition.name}")


def verdict(row: dict[str, Any]) -> str:
    """Return who calls a candidate valid, and where both do, whether they name the same failing tests."""
    if row["theirs"] and row["ours"]:
        return "both valid" if set(row["theirs"]) == set(row["ours"]) else "both valid, other tests"
    if not row["theirs"] and not row["ours"]:
        return "both invalid"
    return "theirs alone" if row["theirs"] else "ours alone"


if __name__ == "__main__":
    main()
