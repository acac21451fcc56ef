"""Two streams of the same tasks are one table; of other tasks they are two."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.facts import run_facts
from valve_plugin.report.joined import joined
from valve_plugin.report.page import page


def test_streams_of_the_same_tasks_are_one_table(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4)
    maker.stream(4, 2)
    a = replace(run_facts(maker.store, words), label="A, one")
    first, second, *rest = a.stream
    ahead, behind, lost = (replace(first, passed=n, graded=g, position=3) for n, g in ((3, 3), (0, 3), (0, 0)))
    a = replace(a, stream=(replace(first, passed=1, graded=2), second, *rest))
    for other, higher in ((ahead, "B"), (behind, "A"), (replace(ahead, passed=2, graded=4), "equal"), (lost, "")):
        b = replace(a, label="B, two", stream=(second, other, *rest))
        pairs = joined([a, b])
        assert [p.task for p in pairs] == [p.task_id for p in a.stream], "in A's order"
        assert [p.higher for p in pairs] == [higher, *["equal"] * (len(pairs) - 1)]
    html = page([a, b], {})
    assert html.count('aria-label="Stream tasks') == 1
    assert "A higher on 0, B on 0, equal on 3." in html
    assert "(0, as no. 3)" in html
    apart = replace(b, stream=b.stream[1:])
    assert joined([a]) == joined([a, apart]) == []
    assert page([a, apart], {}).count('aria-label="Stream tasks') == 2
