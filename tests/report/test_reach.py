"""Ceilings, repeated measurements, and why certificates differ: every sentence from the numbers it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.bounds import guarantee, of_gain
from valve_plugin.report.captions import BLAME, deepest, of_stream, rolling, visible
from valve_plugin.report.certify import accepted_move
from valve_plugin.report.facts import run_facts
from valve_plugin.report.figures import figures
from valve_plugin.report.measured_tasks import passed
from valve_plugin.report.overview import duration, overview, signed
from valve_plugin.report.page import page
from valve_plugin.report.reach import capped, caveat, ceiling, chance, left, repeats, required, unreached
from valve_plugin.report.run import Run, Score, StreamPoint
from valve_plugin.report.said import alike, fall, log_term, next_cost, numbers, said, terms
from valve_plugin.report.texts import ticked
from valve_plugin.report.versions import under, unused
from valve_plugin.theory.bennett import h


@pytest.fixture
def run(tmp_path: Path, data_dir: Path) -> Run:
    maker = Maker(tmp_path / "bank", 8, seed=3, panel_kept=True)
    maker.stream(30, 2)
    maker.evaluate(0, 12)
    maker.evaluate(maker.store.bank.version, 15)
    for _ in range(3):
        maker.measure()
    return run_facts(maker.store, words)


def test_what_is_left_counts_from_the_current_reference(run: Run) -> None:
    assert run.scores[-1].version == run.version > 0
    for passes, told in (
        (21, "Now 21 of 24 passes stand, and the margin is 1 pass: a next accept needs 22 of 24, and at most 3 more"),
        (23, "a next accept needs 24 of 24, and at most 1 more accept can fit"),
        (24, "no further accept fits on this panel"),
    ):
        scores = (*run.scores[:-1], Score(version=run.version, passes=passes, rollouts=24))
        now = left(replace(run, scores=scores))
        assert told in now[0]
        high = passes > sum(repeats(run.columns)) / 3
        assert ("is above the mean of 3 repeated measurements of the same bank" in " ".join(now)) is high
        once = left(replace(run, scores=scores, columns=run.columns[:-2]))
        again = repeats(run.columns)[0]
        assert (f"is above a repeated measurement of the same bank ({again})" in " ".join(once)) is (passes > again)
    opened = replace(next(line for line in run.ledger if line.type == "epoch_opened"), number=10_000)
    assert left(replace(run, ledger=(*run.ledger, opened))) == [], "a new epoch has no reference before its baseline"


def test_a_reject_under_the_ceiling_is_no_evidence(run: Run) -> None:
    reject = next(g for g in run.gates if g.decision == "reject")
    for reference, needed, capped_ in ((23, 24, True), (22, 23, True), (21, 22, False)):
        gate = replace(reject, number=7, reference=reference, margin=1 / 24, total=24)
        assert required(gate) == (needed, 24)
        assert capped(gate) == (f"little room: {needed} of 24 needed" if capped_ else "")
        told = ceiling(replace(run, gates=(gate,)))
        assert told.startswith(f"Gate 7 rejected where an accept needed {needed} of 24 passes") is capped_
        assert capped(replace(gate, decision="accept")) == ""
    assert ("little room: " in page([run], {})) is any(map(capped, run.gates))


def test_accepts_within_the_spread_are_named(run: Run) -> None:
    accept = next(g for g in run.gates if g.decision == "accept")
    own = next(col for col in reversed(run.columns) if col.decision == "accept")
    again = [own, *run.columns[-3:]]
    passes = [sum(r.outcome == "resolved" for c in col.cells for r in c.rollouts) for col in again]
    wide = (max(passes) - min(passes)) / 24
    small, large = (replace(accept, number=n, low=low, high=low) for n, low in ((1, wide), (2, wide + 1 / 24)))
    told = chance(replace(run, gates=(small, large)))
    read = f"({', '.join(map(str, passes))} of 24, its accept's own among them)"
    assert (
        f"{read}, differ by up to {100 * wide:.1f} points: gate 1's {100 * wide:+.1f} is within that; gate 2's" in told
    )
    assert told.endswith(f"gate 2's {100 * wide + 100 / 24:+.1f} is above that.")
    assert "within" not in chance(replace(run, gates=(large,)))
    assert chance(replace(run, gates=())) == ""
    assert chance(replace(run, columns=run.columns[:-3], gates=(small,))) == "", "nothing was measured twice"
    assert "gate 1&#39;s" in page([replace(run, gates=(small, large))], {}).partition('id="figures"')[0]


def test_a_gain_says_what_repeats_leave_of_it(run: Run) -> None:
    accepts = [g for g in run.gates if g.decision == "accept"]
    last, again = accepts[-1], repeats(run.columns)
    mean = sum(again) / 3
    told = caveat(run, last)
    gain = signed((mean - last.reference) / 24)
    assert told == (
        f"measured 3 more times, version {last.version} passes {mean:.1f} of 24 in the mean, {gain} points over its "
        f"reference ({last.reference}): probably nearer the truth"
    )
    once = caveat(replace(run, columns=run.columns[:-2]), last)
    assert once.startswith(f"measured once more, version {last.version} passes {again[0]} of 24, ")
    unmeasured = replace(run, columns=run.columns[:-3])
    assert caveat(unmeasured, last) == "measured on the tasks that selected it, so it flatters"
    assert all(caveat(run, g) == "" for g in run.gates if g.decision != "accept")
    html = page([run], {})
    assert html.count(f'<tr class="told"><td colspan="8">M{told[1:]}.</td></tr>') == 1
    flatters = "An accept&#39;s gain is measured on the tasks that selected it"
    assert (flatters in html) is (len(accepts) > 1), "once for all that were not measured again"
    assert html.count(f"more; {told}") == sum(i.proposal_id == last.proposal_id and not i.why for i in run.items)


def test_a_base_that_was_read_more_than_once_is_selected_too(run: Run) -> None:
    """At a repeated gate the candidate of the gate before was read twice; the second is what the next is judged by."""
    last = [g for g in run.gates if g.decision == "accept"][-1]
    against = next(c for c in run.columns if c.line == last.line).against
    place = next(n for n, c in enumerate(run.columns) if c.label == against)
    base = run.columns[place]
    plain = caveat(run, last)
    lost = next(n for n, c in enumerate(base.cells) if any(r.outcome == "resolved" for r in c.rollouts))
    fewer = tuple(replace(c, rollouts=()) if n == lost else c for n, c in enumerate(base.cells))
    first = replace(base, label="the first reading", cells=fewer)
    read = passed(first), passed(base)
    twice = replace(run, columns=(*run.columns[:place], first, *run.columns[place:]))
    assert caveat(twice, last) == (
        f"{plain}; the reference is one of 2 readings of its bank ({read[0]}, {read[1]}), so chance is in it too"
    )
    assert "readings" not in plain, "it was read once"
    other = replace(first, cells=first.cells[1:])
    assert caveat(replace(run, columns=(*run.columns[:place], other, *run.columns[place:])), last) == plain, (
        "other tasks"
    )


@pytest.mark.parametrize("confirm", [False, True])
def test_an_accept_that_the_bank_itself_never_reached_says_what_to_do(run: Run, confirm: bool) -> None:
    again = repeats(run.columns)
    high = max(again)
    opened = next(n for n, line in enumerate(run.ledger) if line.type == "epoch_opened")
    line = run.ledger[opened]
    line = replace(line, data={**line.data, "conditions": {"confirm": confirm, "guard": 0}})
    ledger = (*run.ledger[:opened], line, *run.ledger[opened + 1 :])
    stands = replace(run, scores=(Score(version=run.version, passes=high, rollouts=24),), ledger=ledger)
    told = unreached(stands)
    assert told.startswith(f"A next accept needs {high + 1} of 24 passes{' twice' * confirm}; measured again")
    assert f"({', '.join(map(str, again))}). `valve plan`" in told
    assert told in said(stands)["overview"]
    assert told in said(stands)["certificates"]
    assert (f"needs {high + 1} of 24, twice, as accepts have to repeat, and" in left(stands)[0]) is confirm
    reached = replace(stands, scores=(Score(version=run.version, passes=high - 1, rollouts=24),))
    assert unreached(reached) == ""
    assert unreached(replace(stands, columns=run.columns[:-3])) == "", "never measured again"
    reject = next(g for g in run.gates if g.decision == "reject")
    gate = replace(reject, reference=23, margin=1 / 24, total=24)
    assert ("needed 24 of 24 passes, twice:" in ceiling(replace(stands, gates=(gate,)))) is confirm


def test_one_variance_of_two_data_says_so(run: Run) -> None:
    gain = run.certificate.gain
    assert gain
    move = replace(accepted_move(0.2, 8, 100, 1, 0.025, gain.variance), version=1, epoch=1)
    told = alike(replace(run, certificate=replace(run.certificate, moves=(move,))))
    assert f"{gain.variance:.4f} of panel and holdout is estimated twice" in told
    other = replace(move, variance=gain.variance + 0.01)
    assert alike(replace(run, certificate=replace(run.certificate, moves=(other,)))) == ""


def test_only_the_cap_that_holds_now_is_open(run: Run) -> None:
    closed = "<details><summary>Other caps"
    html = page([run], {})
    assert closed in html
    assert html.index(left(run)[0][:40]) < html.index(closed) < html.index("Epoch 1: ")
    opened = replace(next(line for line in run.ledger if line.type == "epoch_opened"), number=10_000)
    assert "<details open><summary>Other caps" in page([replace(run, ledger=(*run.ledger, opened))], {})


@given(k=st.integers(1, 4), horizon=st.integers(2, 200), delta=st.floats(0.001, 0.5), variance=st.floats(0.01, 1))
def test_log_terms_are_what_makes_certificates_differ(k: int, horizon: int, delta: float, variance: float) -> None:
    """A smaller log term certifies no less for the same gain, tasks and variance."""
    k = min(k, horizon - 1)
    a, b = (accepted_move(0.4, 30, horizon, n, delta, variance) for n in (k, k + 1))
    small, large = sorted((a, b), key=lambda m: m.log_term)
    assert small.floor >= large.floor - 1e-9
    assert log_term(of_gain(0.4, 30, delta, variance)) <= a.log_term


def test_sentences_about_log_terms_name_them(run: Run) -> None:
    moves = [replace(accepted_move(0.2, 8, 100, k, 0.025, 0.2), version=k, epoch=1) for k in (1, 2)]
    told = " ".join(terms(replace(run, certificate=replace(run.certificate, moves=tuple(moves)))))
    assert f"log term {moves[0].log_term:.1f} at version 1, {moves[1].log_term:.1f} at version 2" in told
    assert "its log term is 3.0" in told
    assert "100 queries" in told
    gain = replace(run.certificate.gain, vacuous=True) if run.certificate.gain else None
    assert len(terms(replace(run, certificate=replace(run.certificate, moves=tuple(moves), gain=gain)))) == 1
    alone = replace(run.certificate, moves=tuple(moves[:1]), gain=None)
    assert terms(replace(run, certificate=alone)) == []


def test_what_the_next_gate_costs_goes_by_those_on_record(run: Run) -> None:
    took = {d: [g.ran + g.beyond for g in run.gates if g.decision == d] for d in ("reject", "accept")}
    told = next_cost(run)
    for ran in took.values():
        ends = f"{min(ran)} to {max(ran)}" if min(ran) < max(ran) else str(ran[0])
        assert f"took {ends} rollouts ({len(ran)} gate" in told
    assert "At 30.0 s a rollout" in told
    assert "no price is recorded" in told
    assert next_cost(replace(run, gates=())) == ""
    assert "not known here" in next_cost(replace(run, spent=()))


def test_every_sentence_is_on_the_page(run: Run) -> None:
    html = page([run], {})
    assert all(str(ticked(s)) in html for sentences in said(run).values() for s in sentences)
    assert said(run)["certificates"]


def test_how_sure_says_what_it_rests_on(run: Run) -> None:
    assert run.certificate.gain is not None
    assert not run.certificate.gain.vacuous
    sure = overview(run)[2]
    gain, drawdown = run.certificate.gain, run.certificate.drawdown
    open_ = [a.name for a in run.certificate.assumptions if "gain" in a.needed_for and a.status != "met"]
    assert open_ == ["tasks like yours", "holdout variance"]
    assert sure.answer == "A loss cannot be excluded"
    assert sure.why.startswith(
        f"Measured {100 * gain.measured:+.1f} points on {gain.tasks} holdout tasks. Guaranteed, with probability 0.95: "
        f"not worse than {100 * gain.value:+.1f} points, if (1) the holdout is like your tasks and (2) the estimated "
        "variance is right. Drawdown: none measured (versions 0 and "
    )
    assert drawdown is not None
    assert sure.why.endswith(f"guaranteed: {guarantee(drawdown)}.")
    several = replace(run.certificate, drawdown=replace(drawdown, by_gain=None))
    for term in numbers(run)[-2:-1]:
        assert term.slack == pytest.approx(gain.measured - gain.value)
        assert term.tasks * term.variance / term.range**2 * h(term.range * term.slack / term.variance) == pytest.approx(
            term.log_term
        )
    assert "both together with at least 0.9;" in said(replace(run, certificate=several))["certificates"][2]
    pair = replace(drawdown, by_gain=0.193)
    told = said(replace(run, certificate=replace(run.certificate, drawdown=pair)))["certificates"]
    assert "guaranteed: at most 19.3 points, by the gain's guarantee (the drawdown's own bound is " in told[1]
    assert "covers both: together they hold with probability 0.95; the conditions are the same." in told[2]
    one, *others = run.certificate.assumptions
    broken = replace(one, status="unmet", needed_for=("gain",))
    better = replace(gain, value=0.1)
    certificate = replace(run.certificate, gain=better, assumptions=(broken, *others))
    sure = overview(replace(run, certificate=certificate))[2]
    assert sure.answer == "At least +10.0 points, where what it rests on is met"
    assert f"Where “{one.name}” is unmet, it does not apply." in sure.why
    certificate = replace(run.certificate, gain=better)
    assert (
        overview(replace(run, certificate=certificate))[2].answer
        == "At least +10.0 points, if 2 unproven assumptions hold"
    )


def test_figures_draw_true_sizes_and_short_windows_apart(run: Run) -> None:
    rate, *_, size = next(f for f in figures([run]) if f.name == "stream").draw().axes
    ends = [s.position + 0.5 for s in run.sizes]
    for line, kind in zip(size.lines, ("principles", "skills"), strict=True):
        assert list(line.get_ydata())[:-1] == [getattr(s, kind) for s in run.sizes]
        assert list(line.get_xdata())[:-1] == ends
        assert line.get_xdata()[-1] == max(30, ends[-1])
        assert line.get_transform() == size.transData, "nothing moves it off its value"
    solid, dotted = rate.lines[:2]
    assert (list(solid.get_xdata()), list(dotted.get_xdata())) == (list(range(10, 31)), list(range(1, 11)))
    assert dotted.get_label() == "under 10 tasks"
    marks = next(line for line in rate.lines if line.get_label() == "accept")
    assert list(marks.get_xdata()) == [p.position + 0.5 for p in run.stream if p.accepted]


def test_the_dip_names_the_bank_in_use(run: Run) -> None:
    points = [
        StreamPoint(task_id=str(n), position=n + 1, passed=3 * (n < 12), graded=3, version=n // 5, rollouts=())
        for n in range(20)
    ]
    caption = next(f.caption for f in figures([replace(run, stream=tuple(points))]) if f.name == "stream")
    assert "The first 10 tasks count in no fall." in caption
    assert "at its deepest 80.0 points at task 20 (bank version 3 in use)" in caption
    assert BLAME in caption
    assert "to be seen" not in caption, "what is hatched is all of it"


def _falling(run: Run) -> Run:
    """Early tasks pass and later ones fail: within ten tasks, so that no fall counts."""
    passed = [0, 3, 3, 1, 0, 0, 0, 0]
    stream = tuple(
        StreamPoint(task_id=str(n), position=n + 1, passed=p, graded=3, version=n // 3, rollouts=())
        for n, p in enumerate(passed)
    )
    return replace(run, stream=stream, stream_whole=True)


def test_a_fall_that_counts_in_nothing_is_described(run: Run) -> None:
    one = _falling(run)
    assert (
        of_stream([one]).count("Dotted points counted, the furthest fall to be seen is from 67% at task 3 to 29%") == 1
    )
    assert "hatched" not in of_stream([one]), "nothing is"
    assert "Fewer than 10 tasks: no fall is counted." in of_stream([one])
    assert "A from 67% at task 3 to 29% at task 8, B from 67% at task 3" in of_stream([one, one])
    assert "to be seen" not in of_stream([replace(one, stream_whole=False)]), "mixed tasks alone say little"
    level = replace(one, stream=one.stream[:3])
    assert BLAME not in of_stream([level]), "it never falls"
    assert fall(level) == ""
    assert fall(one) == (
        "Over the window the rate falls from 67% at task 3 to 29% at task 8: versions 1 and 2 came into use between "
        "them."
    )


def test_the_stream_is_told_by_bank_version_beside_the_holdout(run: Run) -> None:
    lines = under(run)
    last = run.stream[-1]
    assert len(lines) == len({p.version for p in run.stream}) + (unused(run) > 0) > 1
    late = replace(run, stream=(*run.stream[:-1], replace(last, version=run.version - 1, accepted=True)))
    assert under(late)[-1].startswith(f"version {run.version}: came in after the last task, so none ran under it; ")
    assert unused(replace(late, version=run.version + 1)) == 0, "another moved the bank"
    first, *_ = lines
    mine = [p for p in run.stream if not p.version]
    told = f"version 0, tasks 1-{len(mine)}: {sum(p.passed for p in mine)} of {3 * len(mine)} attempts resolved"
    assert first == f"{told}; 40.0% of the holdout's"
    gate = next(g for g in run.gates if g.decision == "accept")
    names = [item.replace(": ", " ") for item in gate.items]
    assert lines[1].endswith(f"; came with {', '.join(names[:4])} and {len(names) - 4} more")
    assert under(replace(run, stream_whole=False)) == [], "only mixed tasks are known"
    assert f"<li>{first}</li>".replace("'", "&#39;") in page([run], {})


@given(st.lists(st.integers(0, 3), max_size=40))
def test_the_visible_fall_is_at_least_the_defined_one(passed: list[int]) -> None:
    points = [
        StreamPoint(task_id=str(n), position=n + 1, passed=p, graded=3, version=0, rollouts=())
        for n, p in enumerate(passed)
    ]
    depth, top, low = visible(points)
    rates = rolling(points)
    assert depth >= deepest(points)[0]
    assert depth == max((a - b for i, a in enumerate(rates) for b in rates[i:]), default=0.0)
    assert not depth or rates[top] - rates[low] == depth


def test_percent_says_of_what(run: Run) -> None:
    caption = next(f.caption for f in figures([run]) if f.name == "gates")
    assert "100 % being 24 rollouts" in caption
    twice = tuple(replace(g, total=48, again=24) if g.decision == "accept" else g for g in run.gates)
    caption = next(f.caption for f in figures([replace(run, gates=twice)]) if f.name == "gates")
    assert "100 % being 24 rollouts, 48 where an accept was repeated" in caption


@given(st.floats(0, 100))
def test_times_are_read_alike(hours: float) -> None:
    number, unit = duration(hours).split()
    least, _, part = number.partition(":")
    read = float(number) if unit == "s" else 60 * int(least) + int(part)
    assert read == pytest.approx(3600 * hours / (60 if unit == "h" else 1), abs=0.51)
    assert unit == "s" or (len(part), int(part) < 60, int(least) > 0) == (2, True, True)
