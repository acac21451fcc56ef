"""Where items came from: attempts as recorded, steps as derived, and nothing made up."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.extract.digest import DEFAULT_TOKENS, Step, digest
from valve_plugin.report.details import attempts
from valve_plugin.report.facts import run_facts
from valve_plugin.report.page import page
from valve_plugin.report.provenance import listed, others, own_steps, ranges

walks = st.lists(st.sampled_from(["ls", " ls", "cat a", "edit", ""]), max_size=8).map(
    lambda commands: [Step("", (c,), ()) for c in commands]
)


@given(walks, st.lists(walks, max_size=3))
def test_own_steps_are_those_no_other_attempt_took(mine: list[Step], others: list[list[Step]]) -> None:
    ran = {" ".join(c.split()) for other in others for step in other for c in step.commands}
    assert own_steps(mine, others) == tuple(
        n for n, step in enumerate(mine, 1) if (c := " ".join(step.commands[0].split())) and c not in ran
    )
    assert own_steps(mine, [mine]) == ()


@given(st.sets(st.integers(1, 30)))
def test_ranges_say_each_number(numbers: set[int]) -> None:
    said: set[int] = set()
    for part in filter(None, ranges(sorted(numbers)).split(", ")):
        low, _, high = part.partition(" to ")
        said |= set(range(int(low), int(high or low) + 1))
    assert said == numbers
    assert listed(sorted(numbers)).replace(" and ", ", ") == ranges(sorted(numbers))
    assert len(numbers) < 2 or ", " not in listed(sorted(numbers)).partition(" and ")[2]


def test_an_item_leads_to_attempts_and_their_steps(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3, seed=3)
    maker.stream(12, 4)
    run = run_facts(maker.store, words)
    first = run.items[0].sources
    assert [others(s, first) for s in first] == ["attempt 2", "attempts 1 and 3", "attempt 2"]
    assert [(s.outcome, s.steps, s.left_out, s.own) for s in first] == [
        ("resolved", 2, (), (2,)),
        ("unresolved", 2, (), (2,)),
        ("resolved", 2, (), (2,)),
    ]
    told = attempts([(run, maker.store.local)], 1_000_000)
    kept = {a.id: a for a in maker.store.local.attempts()}
    for item in run.items:
        for source in item.sources:
            shown = told[source.attempt]
            assert shown["parting"].startswith("Step 2")
            assert shown["own"] == (2,)
            if item.version is not None:
                attempt = kept[source.attempt]
                given_ = digest(maker.store.local.trajectory(attempt), attempt, tokens=DEFAULT_TOKENS)
                assert (shown["whole"], shown["trajectory"]) == (True, given_)
    html = page([run], told)
    assert "was given every step and named none" in " ".join(html.split())


def test_steps_are_unknown_where_the_trajectories_are_gone(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3, seed=3)
    maker.stream(12, 4)
    shutil.rmtree(maker.store.local.dir / "trajectories")
    run = run_facts(maker.store, words)
    assert {(s.steps, s.compared, s.own) for i in run.items for s in i.sources} == {(None, False, ())}
    assert all(s.attempt for i in run.items for s in i.sources)
    html = page([run], attempts([(run, maker.store.local)], 1_000_000))
    assert "named none" not in html
    assert "data-step" not in html.partition("<script")[0]
