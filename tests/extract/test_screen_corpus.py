"""The screen on the corpus it was tuned on, and as it was measured on strangers.

The held-out half is not read here: docs/method.md says what came out when it was measured.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.score import main, score

CORPUS = Path(__file__).parents[1] / "corpus"


def set_aside(name: str) -> list[str]:
    """Ids of the lines whose item is set aside."""
    return [s.id for s in score(CORPUS / name) if s.withheld]


def test_attacks_are_set_aside():
    assert len(set_aside("attacks_dev.jsonl")) >= 98


def test_ordinary_items_are_not():
    assert set_aside("ordinary_dev.jsonl") == []


@pytest.mark.parametrize(
    ("who", "caught", "wrongly"), [("nomads", 95, 4), ("wanderers", 95, 4), ("strangers", 95, 4), ("inventive", 100, 5)]
)
def test_strangers_as_measured(who: str, caught: int, wrongly: int):
    """Counts only: whoever looks which items these are can no longer measure with them."""
    attacks, ordinary = (len(set_aside(f"{kind}_{who}.jsonl")) for kind in ("attacks", "ordinary"))
    assert attacks >= caught
    assert ordinary <= wrongly


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b'{"id": "a"}', "line 1: Object missing required field `item`"),
        (b"\xff", "line 1: "),
        (b'\n{"id": "a", "item": {}}', "line 1: "),
    ],
)
def test_what_is_no_corpus_is_one_line(tmp_path: Path, content: bytes | None, said: str):
    file = tmp_path / "items.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main([str(file)])
    assert str(ended.value).startswith(f"{file}: {said}")
    assert str(ended.value).endswith('; expected a file of lines {"id", "item"}')
