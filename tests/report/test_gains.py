"""A reject's gain: the most it could still have reached, and what ran of it; what did not run is no failure."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.facts import run_facts
from valve_plugin.report.gains import at_best, bounded, gain, open_, rest, stopped, told


def test_a_reject_that_stopped_says_what_it_could_reach_and_what_ran(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    run = run_facts(maker.store, words)
    rejects = [g for g in run.gates if bounded(g)]
    assert rejects
    for gate in run.gates:
        outcomes = run.ledger[gate.line - 1].data["verdict"]["outcomes"]
        passes = sum(o["outcome"] == "resolved" for o in outcomes)
        assert open_(gate) == gate.total - len(outcomes)
        if gate not in rejects:
            assert (stopped(run, gate), gain(gate)[:7] == "at best") == ("", False)
            continue
        most = 100 * (passes + open_(gate) - gate.reference) / gate.total
        assert gain(gate) == f"at best {most:+.1f}".replace("+0.0", "0.0")
        assert at_best(gate).startswith(
            f"even if all {open_(gate)} other rollouts had passed, the gain would have been "
        )
        tasks = {o["task_id"] for o in outcomes}
        assert stopped(run, gate).startswith(f"of what ran, {passes} of {len(outcomes)} passed; the reference ")
        assert stopped(run, gate).endswith(f" of {3 * len(tasks)} on the same {len(tasks)} tasks")
        alone = replace(run, columns=tuple(c for c in run.columns if c.line == gate.line))
        assert stopped(alone, gate) == f"of what ran, {passes} of {len(outcomes)} passed", "its reference is unknown"
        assert told(run, gate).startswith("Of what ran, "), "no reject says only the most it could have reached"


def test_what_became_of_the_other_rollouts_is_said_below_the_row(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(4, 2)
    gate = replace(run_facts(maker.store, words).gates[0], beyond=0, saved=0, saved_usd=0.0, kept=0, unknown=0)
    assert rest(gate, 0) == ""
    more = replace(gate, beyond=2, saved=8, saved_usd=1.5, kept=3, unknown=1)
    on = "2 more ran on when the verdict was certain"
    assert rest(more, 0) == f"{on}, 8 rollouts saved (about $1.50), 3 kept, 1 lost"
    assert rest(replace(more, kept=0, saved=0), 1) == (
        f"{on} (1 not kept on this machine, so the panel does not show it), 1 lost"
    )


def test_a_repeat_is_said_beside_the_first_and_an_open_gate_keeps_its_interval(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(4, 2)
    gate = replace(run_facts(maker.store, words).gates[0], decision="reject", total=120, again=59, low=0.0, high=1 / 60)
    assert open_(gate) == 1
    again = replace(gate, first=0.1)
    assert gain(again, " points") == "+10.0 at first, at best +1.7 points when repeated"
    assert at_best(again).startswith("+10.0 points at first; repeated, even if the other rollout had passed, the gain")
    assert gain(replace(gate, decision="indecisive")) == "0.0 to +1.7"
    assert gain(replace(gate, high=0.0)) == "0.0", "measured whole"
