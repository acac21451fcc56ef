"""The page of experiments: every number in it is in a committed ledger, on the line that it names."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from valve_plugin.bank.entries import Evaluated
from valve_plugin.bank.evaluated import path, rate
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.experiment.conditions import NAMES

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
