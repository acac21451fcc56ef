"""Runs that break too much are ended early: only those, always at the same test, and the reason says how many."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from tests.tasks.test_generate import candidate
from valve_plugin.config import Settings
from valve_plugin.rollouts import sandbox as sandboxes
from valve_plugin.rollouts.glance import Glance
from valve_plugin.tasks import cut
from valve_plugin.tasks.generate import stable_suite, try_candidate
from valve_plugin.tasks.repository import prepare, read

SUITE = frozenset(f"t{number}" for number in range(200))
verdict_lines = st.builds(
    lambda number, outcome: f'{{"test":"t{number}","when":"call","outcome":"{outcome}","raised":false}}',
    st.integers(0, 250),  # some are not of the suite
    st.sampled_from(["passed", "failed", "failed", "skipped"]),
)


def output(collected: int, lines: list[str]) -> bytes:
    body = [f'@valve-now {{"tests":{collected}}}', *(f"@valve {'0' * 128} {line}" for line in lines)]
    return "".join(f"\n{line}\n" for line in body).encode()


def ended(said: bytes, cuts: list[int]) -> str:
    tap, start = cut.Cut(SUITE, lambda _: None), 0
    try:
        for end in [*sorted(cuts), len(said)]:
            tap(Glance(said[start:end], 0.0, lambda: False, str))
            start = max(start, end)
    except cut.BrokenError as e:
        return str(e)
    return ""


@given(st.integers(150, 250), st.lists(verdict_lines, max_size=60), st.lists(st.integers(0, 9000), max_size=9))
def test_only_what_is_lost_is_ended_wherever_the_output_is_cut(
    collected: int, lines: list[str], cuts: list[int]
) -> None:
    failed = {f"t{n}" for n in range(200) if any(f'"t{n}"' in line and '"failed"' in line for line in lines)}
    lost = max(0, 200 - collected)
    found = ended(output(collected, lines), cuts)
    assert found == ended(output(collected, lines), [])
    assert bool(found) == (lost + len(failed) > 20)
    if found:
        assert found == f"breaks more than a tenth: at least {max(21, lost)} of 200 tests"


@pytest.mark.parametrize(
    "said", [b"@valve {", b'\n@valve-now {"tests":"x"}\n', b'\n@valve-now {"tests":-9, "test": 3}\n', b"\xff" * 100_000]
)
def test_what_is_not_ours_ends_nothing(said: bytes) -> None:
    assert ended(said * 30, []) == ""


def test_how_many_are_too_many() -> None:
    assert [cut.reason(n, 8) for n in (4, 5)] == ["", "breaks 5 of 8 tests"]
    assert [cut.reason(n, 50) for n in (10, 11)] == ["", "breaks 11 of 50 tests"]
    assert [cut.reason(n, 200) for n in (20, 21)] == ["", "breaks more than a tenth: 21 of 200 tests"]


LONG = """\
import time

import pytest

from calc.ops import add


@pytest.mark.parametrize("n", range(40))
def test_many(n):
    if n == 30 and add(1, 1) != 2:
        time.sleep(300)
    assert add(n, 1) == n + 1
"""


@pytest.mark.timeout(100)
def test_a_whole_run_ends_when_too_many_have_failed_or_are_not_collected(tmp_path: Path, data_dir: Path) -> None:
    files = {**calc.FILES, "tests/test_zmany.py": LONG}
    where = prepare(read(calc.write(tmp_path, files=files) / "repository.toml"))
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    suite = stable_suite(where, sandbox)
    assert len(suite) == 48
    for source, least in ((calc.OPS.replace("a + b", "a - b"), 11), (calc.OPS.replace("def add", "def sum"), 46)):
        tried = try_candidate(where, suite, candidate("x", source), sandbox, "x")
        assert tried.reason == f"breaks at least {least} of 48 tests"
