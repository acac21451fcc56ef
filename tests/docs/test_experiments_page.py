"""The page of experiments: every number in it is in a committed ledger, on the line that it names."""

from __future__ import annotations

import csv
import gzip
import re
import sys
from importlib import resources
from pathlib import Path

import pytest

from valve_plugin.bank.entries import Baseline, Evaluated, Judged, Proposed
from valve_plugin.bank.evaluated import path, rate
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.experiment import bound, ending, tables
from valve_plugin.experiment.conditions import NAMES
from valve_plugin.experiment.results import Row, collect
from valve_plugin.experiment.spec import cells, read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "experiments.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\S+) \| (\d) \| (\d[^|]+) \| \[ledger\]\((\S+)\) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("label", "seed", "evaluations", "file"), ROWS)
def test_every_evaluation_is_on_its_line(label, seed, evaluations, file, tmp_path, data_dir):
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "ledger.jsonl").write_bytes(gzip.decompress((DOCS / file).read_bytes()))
    store = BankStore.open(tmp_path / "bank")
    assert not any(f.level == "error" for f in verify(store.dir))
    entries = list(store.entries())
    steps = {(c.step, c.version) for c in path(entries)}
    for one in evaluations.split("; "):
        step, version, points, line = re.fullmatch(r"(\d+), (\d+), ([\d.]+), line (\d+)", one).groups()
        entry = entries[int(line) - 1]
        assert isinstance(entry, Evaluated)
        assert (entry.version, f"{100 * float(rate(entry).low):.1f}") == (int(version), points)
        assert (int(step), int(version)) in steps
    if seed == "0":  # the last one is what the tables call final
        shown = re.search(rf"^\| {re.escape(label)} \| ([\d.]+) \(", PAGE, re.MULTILINE)
        assert shown
        assert shown[1] == points


def test_all_conditions_are_there():
    assert set(NAMES) <= {label for label, *_ in ROWS}


# What the page says in tables and in sentences, computed from the ledgers.
FUNCY = DOCS / "experiments" / "funcy"
MATRIX = read(DOCS.parent / "benchmarks" / "matrix.toml")
SWEEPS = [v.name for v in MATRIX.condition if v.name not in NAMES]
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
with resources.files("valve_plugin.simulate").joinpath("lessons.toml").open("rb") as lessons:
    QUALITY = {lesson["name"].partition("${")[0]: lesson["quality"] for lesson in tomllib.load(lessons)["lesson"]}
LEARNED = {(r["condition"], int(r["seed"])): r for r in csv.DictReader((FUNCY / "rollouts.csv").open(encoding="utf-8"))}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[dict[tuple[str, int], Row], Path]:
    """The committed ledgers as the folder of an experiment: one from before runs noted what they are made with."""
    out = tmp_path_factory.mktemp("funcy")
    for cell in cells(MATRIX):
        bank = out / cell.path / "bank"
        bank.mkdir(parents=True)
        data = gzip.decompress((FUNCY / f"{cell.variant.name}.seed-{cell.seed}.jsonl.gz").read_bytes())
        (bank / "ledger.jsonl").write_bytes(data)
        ending.write(out / cell.path, BankStore.open(bank).head)
    bound.require(MATRIX, list(cells(MATRIX)), out, DOCS, tables=True)
    found = collect(MATRIX, out)
    assert found.remarks == {}
    return {(row.condition, row.seed): row for row in found.rows}, out


def test_every_table_is_what_the_ledgers_give(runs):
    """As the command writes it, without its last two columns, the hours."""
    rows, _ = runs
    around = ["ungated", "valve", *SWEEPS]
    wanted = [(NAMES, [0]), (NAMES, [0, 1]), (NAMES, [1]), (around, [0]), (around, [1])]
    expected = []
    for names, seeds in wanted:
        page = tables.markdown([rows[name, seed] for name in names for seed in seeds], "", simulated=True)
        lines = page.partition("| Condition | Final")[2].partition("\n\n")[0].splitlines()[2:]
        expected.append([line.rsplit("|", 3)[0] + "|" for line in lines])
    shown = [part.partition("\n\n")[0].splitlines()[2:] for part in PAGE.split("| Condition | Final")[1:]]
    assert shown == expected


def test_what_sentences_and_comparisons_say(runs):
    """Each is composed anew from ledgers, rollouts.csv and lessons.toml; the page has to say just that."""
    rows, out = runs
    text = " ".join(PAGE.split())
    said = [*_gains(rows), *_lessons(out), *_rollouts(out), *_beside_the_paper(rows)]
    assert [one for one in said if one not in text] == []


def test_only_the_drawdowns_that_are_named_are_there(runs):
    rows, _ = runs
    lost = {key: round(30 * row.drawdown[0] / 100) for key, row in rows.items() if row.drawdown[1]}
    assert lost == {("all-tasks", 0): 2, ("all-tasks", 1): 3}
    assert "`all-tasks`: two rollouts at seed 0, three at seed 1" in " ".join(PAGE.split())


def _gain(row: Row) -> str:
    return f"{row.gain[0]:+.1f}"


def _gains(rows):
    final = {key: _gain(row) for key, row in rows.items()}
    assert float(final["skillopt", 0]) > float(final["valve", 0])
    yield f"({final['skillopt', 0]} against {final['valve', 0]}, one rollout of thirty)"
    yield f"VALVE ends {final['valve', 1][1:]} up"
    yield f"at seed 1 it ended {final['valve-panel-3', 1][1:]} up"
    reference, batch = (tables._interval([rows[name, 1]])[1:-1].split(", ") for name in ("valve", "batch"))
    assert float(batch[1]) > float(reference[0])
    yield f"(up to {batch[1]}, the reference's from {reference[0]})"


def _lessons(out: Path):
    document = _bank(out, "skillopt", 0).skills[0].markdown
    names = re.findall(r"^## (.+)$", document, re.MULTILINE)
    assert {quality(name) for name in names} == {"good"}
    yield f"a document of {WORDS[len(names)]} good lessons (line 8 of its ledger)"
    good = {key: [quality(i.name) for i in _bank(out, *key).items].count("good") for key in _both("ungated", "valve")}
    of = {key: len(_bank(out, *key).items) for key in good}
    words = {key: f"{WORDS[good[key]]}{{}} of {WORDS[of[key]]}" for key in good}
    yield f"with {words['ungated', 0].format(' good items')}, the reference 36.7 up with {words['valve', 0].format('')}"
    yield f"with {words['ungated', 1].format('')} against 50.0 with {words['valve', 1].format('')}"
    harmful = {key for key in _both(*(v.name for v in MATRIX.condition if v.name not in ("base", "skillopt")))
               if any(quality(i.name) == "harmful" for i in _bank(out, *key).items)}  # fmt: skip
    assert harmful == set(_both("ungated")), "both runs without validation, and none of the gated ones"


def quality(name: str) -> str:
    """What a lesson is worth, some of which are named after the function they were learned from."""
    (found,) = {worth for known, worth in QUALITY.items() if name.startswith(known)}
    return found


def _both(*names: str) -> list[tuple[str, int]]:
    return [(name, seed) for name in names for seed in (0, 1)]


def _bank(out: Path, name: str, seed: int):
    return BankStore.open(out / "funcy" / "default" / name / f"seed-{seed}" / "bank").bank


def learned(name: str, seed: int) -> int:
    return int(LEARNED[name, seed]["attempts"]) + int(LEARNED[name, seed]["panel_rollouts"])


def in_ledger(out: Path, name: str, seed: int) -> int:
    """Rollouts of learning that a ledger holds; telemetry knows of no fewer, where nothing was lost."""
    store = BankStore.open(out / "funcy" / "default" / name / f"seed-{seed}" / "bank")
    total = 0
    for entry in store.entries():
        if isinstance(entry, Proposed):
            total += len(entry.attempts)
        elif isinstance(entry, Baseline):
            total += len(entry.result.outcomes)
        elif isinstance(entry, Judged):
            total += len(entry.verdict.outcomes) + len(entry.verdict.confirming or ())
    return total


def _rollouts(out: Path):
    short = {key for key in LEARNED if learned(*key) < in_ledger(out, *key)}
    assert short == {("valve-rho-0.2", 1)}
    yield f"so its {learned('valve-rho-0.2', 1)} rollouts are at least, where its ledger alone has " + str(
        in_ledger(out, "valve-rho-0.2", 1)
    )
    yield f"These 17 learned from {sum(learned(*key) for key in LEARNED if key[1] == 0):,} rollouts"
    yield f"learned from {learned('valve-confirm', 0)} rollouts where the reference took {learned('valve', 0)}"
    line = LEARNED["skillopt", 0]
    assert in_ledger(out, "skillopt", 0) == int(line["attempts"])
    yield f"Of SkillOpt's {learned('skillopt', 0)} rollouts at seed 0 its ledger has the {line['attempts']} of the "
    yield f"the other {line['panel_rollouts']} are its selection set"


def _beside_the_paper(rows):
    for label, name in (("SkillOpt", "skillopt"), ("without validation", "ungated"), ("VALVE", "valve")):
        row = rows[name, 0]
        ours = f"| {_gain(row)} | {row.peak_gain[0]:+.1f} | {row.drawdown[0]:.1f} | {learned(name, 0)} |"
        assert re.search(rf"^\| {label} \|.*{re.escape(ours)}$", PAGE, re.MULTILINE), ours
    reference = rows["valve", 0].final[0]
    order = ("inject-all", "all-tasks", "no-principles", "sentence", "document", "batch")
    yield "| here, seed 0 | " + " | ".join(f"{reference - rows[n, 0].final[0] + 0.0:.1f}" for n in order) + " |"
    for seed in (0, 1):
        sizes = [f"{rows[n, seed].skills}/{rows[n, seed].principles}" for n in ("ungated", "valve")]
        yield f"| here, seed {seed} | {' | '.join(sizes)} |"
    order = ("valve", "sentence", "no-principles", "document", "inject-all", "batch", "all-tasks")
    hours = [float(LEARNED[n, 0]["hours"]) / rows[n, 0].steps for n in order]
    yield "| here, seed 0 | " + " | ".join(f"{h:.3f}" for h in hours) + " |"
    panels = [f"{rows[n, 0].final[0]:.1f}" for n in ("ungated", "valve-panel-3", "valve-panel-6", "valve")]
    yield f"| | {' | '.join(panels)} |"
