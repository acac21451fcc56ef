"""Two runs against each other: what is paired, what decides, and what the page shows of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.report.parsed import page
from tests.report.runs import Maker
from valve_plugin.report.build import build_run
from valve_plugin.report.findings import (
    compare_holdouts,
    compare_streams,
    comparison_card,
    comparison_columns,
    task_pairs,
)
from valve_plugin.report.run import RunReport
from valve_plugin.report.templates import text


@pytest.fixture
def pair(tmp_path: Path, data_dir: Path) -> tuple[RunReport, RunReport]:
    """The same run twice; of the second all attempts at the first task passed."""
    maker = Maker(tmp_path / "a", 4)
    maker.stream(16, 4)
    a = replace(build_run(maker.store), label="A, one")
    stream = tuple(replace(p, passed=p.graded if p.position == 1 else p.passed) for p in a.stream)
    return a, replace(a, label="B, two", stream=stream)


def test_streams_of_the_same_tasks_are_paired(pair: tuple[RunReport, RunReport]) -> None:
    a, b = pair
    found = compare_streams(a, b)
    rates = [sum(p.passed for p in run.stream) / sum(p.graded for p in run.stream) for run in pair]
    assert (found["state"], found["same_order"], found["signs"], found["p"]) == ("paired", True, (0, 1, 15), 1.0)
    assert found["rates"] == rates
    card = comparison_card(a, b)
    assert (card.state, card.tone, card.values["rates"]) == ("stream", "open", rates)
    assert text(card.headline).startswith("B passed more")
    backward = compare_streams(replace(b, stream=tuple(reversed(b.stream))), a)
    assert (backward["same_order"], backward["signs"]) == (False, (1, 0, 15))
    other = compare_streams(a, replace(b, stream=b.stream[1:]))
    assert (other["state"], other["both"], other["only"]) == ("differ", 15, [1, 0])
    assert compare_streams(a, replace(b, stream_whole=False)) == {"state": "unknown"}
    assert comparison_card(a, replace(b, stream=b.stream[1:])).state == "nothing"


def test_the_table_of_both_runs_marks_what_is_equal(pair: tuple[RunReport, RunReport], tmp_path: Path) -> None:
    a, b = pair
    assert [(s["shared"], s["seed"]) for s in comparison_columns(pair)] == [(4, 123), (4, 123)]
    wider = replace(b, panel=replace(b.panel, rollouts=5) if b.panel else None)
    assert (comparison_card(a, b).values["panels_differ"], comparison_card(a, wider).values["panels_differ"]) == (
        False,
        True,
    )
    seen = page(pair)
    equal = [attributes for tag, attributes in seen.tags if tag == "tr" and attributes.get("class") == "equal"]
    assert len(equal) == seen.all("aria-label", "span").count("equal") > 5
    assert len(equal) < 15, "what neither knows is not the same"
    assert {"run1-line-1", "run2-line-1", "run1-item-0", "run2-item-0"} <= set(seen.all("id"))
    assert len(set(seen.all("id"))) == len(seen.all("id"))
    assert seen.all("data-answer")[0] == "versus"
    assert set(seen.all("data-run")) == {"A, one", "B, two"}
    assert seen.all("name", "select").count("run") == 1
    assert page([a]).all("name", "select").count("run") == 0


@pytest.mark.parametrize("held", [15, 30])
def test_a_holdout_decides_only_beyond_chance(held: int, tmp_path: Path, data_dir: Path) -> None:
    one, other = Maker(tmp_path / "a", 4), Maker(tmp_path / "b", 4)
    one.evaluate(0, 3 * held, 100)
    other.evaluate(0, 30, 100)
    runs = [build_run(m.store) for m in (one, other)]
    found = compare_holdouts(*runs)
    assert (found["signs"], found["difference"]) == ((held - 10, 0, 100 - held + 10), pytest.approx(held / 100 - 0.1))
    assert found["better"] == ("A" if held == 30 else "")
    assert comparison_card(*runs).state == ("certified" if held == 30 else "holdout")
    assert ("p = 0.062" in text(comparison_card(*runs).reason)) is (held == 15)
    same = compare_holdouts(runs[1], runs[1])
    assert (same["difference"], same["better"]) == (0, "")
    assert compare_holdouts(runs[0], replace(runs[1], checkpoints=())) == {"state": "unread", "read": ["A"]}


def test_two_streams_of_the_same_tasks_are_one_table(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(4, 2)
    a = replace(build_run(maker.store), label="A, one")
    first, second, *rest = a.stream
    ahead, behind, lost = (replace(first, passed=n, graded=g, position=3) for n, g in ((3, 3), (0, 3), (0, 0)))
    a = replace(a, stream=(replace(first, passed=1, graded=2), second, *rest))
    for other, higher in ((ahead, "B"), (behind, "A"), (replace(ahead, passed=2, graded=4), "equal"), (lost, "")):
        b = replace(a, label="B, two", stream=(second, other, *rest))
        pairs = task_pairs([a, b])
        assert [p.task for p in pairs] == [p.task_id for p in a.stream], "in A's order"
        assert [(p.a, p.b) for p in pairs[:2]] == [(0, 1), (1, 0)]
        assert [p.higher for p in pairs] == [higher, *["equal"] * (len(pairs) - 1)]
    apart = replace(b, stream=b.stream[1:])
    assert task_pairs([a]) == task_pairs([a, apart]) == []
    tables = [sum(n.startswith("Stream tasks") for n in page(runs).all("aria-label")) for runs in ([a, b], [a, apart])]
    assert tables == [1, 2]
