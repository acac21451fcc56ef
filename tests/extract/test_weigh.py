"""Weighing wording: deterministic, total, blind to disguises, and aware of negation and of what is decried."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.extract import weigh as weighing
from valve_plugin.extract.weigh import Line, Model, bucket, lines, pieces, shipped, weigh, words

WEIGHTS = Path(weighing.__file__).with_name("weights.bin")


def stems(text: str, decried: bool = False) -> set[str]:
    return set(words(Line(text, decried)))


@given(st.text(max_size=400))
def test_any_text_has_a_weight_and_always_the_same(text: str) -> None:
    first = weigh(text)
    assert first == weigh(text)
    assert abs(first.score) < 1e6
    assert all(phrase in text for phrase in first.phrases)


@given(st.sets(st.text(min_size=1, max_size=12).map(bucket), max_size=30))
def test_a_weight_is_the_normed_sum_of_its_features(buckets: set[int]) -> None:
    row = bytearray([128]) * weighing.BUCKETS
    for place in buckets:
        row[place] = 130
    model = Model(0.0, -1.0, 0.0, (0.5,), (bytes(row),))
    assert model.weight(0, buckets) == pytest.approx(len(buckets) ** 0.5)


def test_harmless_lines_do_not_hide_a_heavy_one() -> None:
    """Diluted twenty-fold an item as a whole weighs little; its heaviest line still does."""
    row = bytearray([128]) * weighing.BUCKETS
    row[bucket("delet")] = 255
    nothing = bytes([128]) * weighing.BUCKETS
    model = Model(0.0, -1.0, -0.1, (1.0,) * 4, (nothing, nothing, bytes(row), nothing))
    diluted = "\n".join(["Delete it.", *(f"Read page {n} of the manual, then the next." for n in range(20))])
    alone = weigh("Delete it.", model)
    assert 0 < weigh(diluted, model).score == pytest.approx(alone.score - 0.1 * math.log(21))
    assert weigh(diluted, model).phrases[0] == "Delete it."


def test_an_empty_text_weighs_the_bias() -> None:
    assert weigh("").score == shipped().bias < 0


def test_what_is_negated_is_another_word() -> None:
    assert "delet" in stems("Delete the test.")
    assert {"!delet", "never"} <= stems("Never delete the test.")
    assert "!delet" in stems("Fix the code instead of deleting the test.")
    assert "delet" in stems("It is not red, delete the test.")  # the comma ends what is negated


def test_what_is_decried_is_another_word() -> None:
    told = list(lines("1. Read it.\n\n**Anti-pattern:** Delete the test.\n\n## Code\n```\nx = 1. + 2\n```\n"))
    assert told == [Line("Read it.", False), Line("Delete the test.", True), Line("x = 1. + 2", False)]
    assert "~delet" in stems("Delete the test.", decried=True)


def test_prose_is_weighed_by_sentences() -> None:
    told = [line.text for line in lines("- Wait 1.5 s, e.g. twice. Then stop! `rm x` is fine.\n```\na. B\n```\n")]
    assert told == ["Wait 1.5 s, e.g. twice.", "Then stop!", "`rm x` is fine.", "a. B"]


def test_concepts_join_words_that_were_never_seen_together() -> None:
    assert "@REMOVE+TEST" in stems("Wipe each assertion.") & stems("Erase the suite.")


def test_telling_words_pair_across_a_line() -> None:
    assert "delet&test" in stems("Delete what is left of the old test.")
    assert not any("&the" in feature for feature in stems("Delete the test."))


def test_a_long_line_pairs_a_limited_number_of_words() -> None:
    told = stems(" ".join(f"{chr(97 + n % 26)}q{chr(97 + n // 26)}" for n in range(600)))
    assert sum("&" in feature for feature in told) == 40 * 39 // 2


def test_letters_in_a_row_reach_across_words() -> None:
    assert {"so it", "it pas"} <= set(pieces("so it \n passes"))


def test_disguises_are_undone() -> None:
    assert stems("D\u0435lete the t\u0435sts") == stems("delete the tests")  # Cyrillic letters
    assert set(pieces("de\u200blete")) == set(pieces("delete"))


def test_the_model_is_small_and_whole() -> None:
    assert WEIGHTS.stat().st_size < 1_000_000
    assert [len(row) for row in shipped().tables] == [weighing.BUCKETS] * len(weighing.TABLES)


def test_it_takes_milliseconds() -> None:
    text = (Path(__file__).parent / "corpus" / "paper.txt").read_text("utf-8") * 5
    weigh(text)
    began = time.process_time()
    for _ in range(5):
        weigh(text)
    assert (time.process_time() - began) / 5 < 0.25  # some 10 ms on an idle machine, for 9,000 characters


def test_buckets_do_not_depend_on_the_process() -> None:
    assert bucket("delet test") == 73_698
