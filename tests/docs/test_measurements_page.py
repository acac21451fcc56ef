"""The page of measurements: every rate in the table of conditions is in a committed ledger, on the line it names."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from valve_plugin.bank.entries import Evaluated
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.evidence.evaluations import solve_rate
from valve_plugin.lab.conditions import NAMES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "measurements.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([a-z-]+) \| (\d[^|]+) \| \[seed 0\]\((\S+)\) \| (\d[^|]+) \| \[seed 1\]\((\S+)\) \|$", PAGE, re.M
)
LEDGERS = [(name, shown, file) for name, *seeds in ROWS for shown, file in zip(seeds[::2], seeds[1::2], strict=True)]


def test_all_conditions_are_there() -> None:
    assert [name for name, *_ in ROWS] == list(NAMES)


@pytest.mark.parametrize(("name", "shown", "file"), LEDGERS, ids=[file for *_, file in LEDGERS])
def test_every_rate_is_on_its_line(name: str, shown: str, file: str, tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "ledger.jsonl").write_bytes(gzip.decompress((DOCS / file).read_bytes()))
    store = BankStore.open(tmp_path / "bank")
    assert not any(finding.level == "error" for finding in verify(store.dir))
    entries = list(store.entries())
    readings = re.findall(r"([\d.]+) \(line (\d+)\)", shown)
    assert len(readings) == 2
    for rate, line in readings:
        entry = entries[int(line) - 1]
        assert isinstance(entry, Evaluated)
        assert f"{100 * float(solve_rate(entry).low):.1f}" == rate
