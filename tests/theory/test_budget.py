"""Budgets: limits hold whatever runs side by side, and the number that is said to suffice does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.budget import (
    MIN_HOURS,
    BudgetLimits,
    RolloutCost,
    Spending,
    gate_cost,
    max_rollout_cost,
    mean_rollout_cost,
    reached_limit,
    remaining_limits,
    spending_by_role,
    sufficient_options,
)
from valve_plugin.theory.budget import describe_spending as started

MONEY = st.floats(0, 1e6, allow_subnormal=False)
LIMITS = st.builds(BudgetLimits, MONEY, st.integers(0, 10_000), MONEY)
SPENT = st.builds(Spending, MONEY, st.integers(0, 10_000), MONEY)


@pytest.mark.parametrize(
    ("running", "said"),
    [
        (0, "10 rollouts started, $1.00 spent, another is expected to cost $0.10"),
        (2, "12 rollouts started, $1.00 spent, 2 under way expected to cost $0.20, another is expected to cost $0.10"),
    ],
)
def test_what_is_said_of_a_used_up_budget_adds_up(running, said):
    assert started(Spending(1.0, 10), running, 0.1) == said
    assert started(Spending(0.0, 10), running, 0.0) == f"{10 + running} rollouts started", "no limit in dollars"


@given(st.integers(1, 50), st.integers(1, 8))
def test_never_more_rollouts_than_allowed_whatever_runs_side_by_side(limit, workers):
    limits, spent, running, started = BudgetLimits(rollouts=limit), Spending(), 0, 0
    while not reached_limit(limits, spent, running, 0.0):
        started, running = started + 1, running + 1
        if running == workers:
            spent, running = spent.plus(rollouts=1), running - 1
    assert started == limit


@given(MONEY, st.floats(0.01, 10), st.integers(1, 8))
def test_dollars_are_not_exceeded_where_every_rollout_costs_the_same(limit, usd, workers):
    limits, spent, running = BudgetLimits(usd=limit), Spending(), 0
    for _ in range(300):
        if not limit or reached_limit(limits, spent, running, usd):
            break
        running += 1
        if running == workers:
            spent, running = spent.plus(usd, 1), running - 1
    assert not limit or spent.usd + running * usd <= limit + 1e-6


@given(st.integers(1, 500), st.integers(1, 300))
def test_what_is_said_to_suffice_is_not_refused_and_lets_all_of_it_run(rollouts, cents):
    usd = sum([cents / 100] * 7) / 7  # a mean as it is computed
    needed = gate_cost(rollouts, RolloutCost(usd, None), 1)
    enough = BudgetLimits(usd=-(-round(needed.usd * 1e6) // 10_000) / 100)
    assert sufficient_options(enough, needed) == []
    spent = Spending()
    for _ in range(rollouts):
        assert reached_limit(enough, spent, 0, usd) == ""
        spent = spent.plus(cents / 100, 1)


@given(LIMITS, SPENT)
def test_what_is_left_keeps_what_is_unlimited(limits, spent):
    rest = remaining_limits(limits, spent)
    assert [not a for a in rest] == [not a for a in limits]
    if not reached_limit(limits, spent, 0, 0.0):
        assert not reached_limit(rest, Spending(), 0, 0.0)


@given(LIMITS, st.integers(0, 5000), st.none() | st.floats(0, 100), st.none() | st.floats(0, 1e5), st.integers(1, 16))
def test_the_options_that_are_said_to_do_do(limits, rollouts, usd, seconds, workers):
    needed = gate_cost(rollouts, RolloutCost(usd, seconds), workers)
    told = dict(option.split() for option in sufficient_options(limits, needed))
    enough = BudgetLimits(
        float(told.get("--budget-usd", limits.usd)), int(told.get("--max-rollouts", limits.rollouts)),
        float(told.get("--max-hours", limits.hours)),
    )  # fmt: skip
    again = sufficient_options(
        enough._replace(usd=enough.usd * (1 + 1e-9) + 1e-6, hours=enough.hours * (1 + 1e-9) + 1e-6), needed
    )
    assert not [o for o in again if o.split()[0] in told]


@given(st.floats(1e-300, 1e-2, exclude_max=True), st.none() | st.floats(0, 1e-3))
def test_hours_in_which_nothing_runs_are_never_said_to_do(hours, seconds):
    (told,) = sufficient_options(BudgetLimits(hours=hours * 0.999), gate_cost(1, RolloutCost(None, seconds), 1))
    assert float(told.split()[1]) >= MIN_HOURS


def test_means_leave_out_what_the_infrastructure_ended():
    seen = [{"outcome": "resolved", "cost_usd": 0.4, "seconds": 10.0}, {"outcome": "unresolved", "cost_usd": 0.2,
            "seconds": 30.0}, {"outcome": "errored", "cost_usd": 9.0, "seconds": 999.0}]  # fmt: skip
    assert mean_rollout_cost(seen)[:2] == (pytest.approx(0.3), pytest.approx(20.0))
    assert mean_rollout_cost([{"outcome": "resolved", "cost_usd": 0.0, "seconds": 1.0}]).usd is None, (
        "0 throughout is unknown"
    )
    assert mean_rollout_cost([]) == RolloutCost()


def test_roles():
    records = [
        {"source": s, "cost_usd": 1.0, "seconds": 3600.0}
        for s in ("evolve", "panel", "panel", "extract", "review", "eval")
    ]
    assert spending_by_role(records) == {
        "solver": Spending(1.0, 1, 1.0), "extractor": Spending(2.0, 2, 2.0), "gate": Spending(2.0, 2, 2.0),
        "evaluation": Spending(1.0, 1, 1.0),
    }  # fmt: skip


def test_a_known_price_bounds_a_rollout():
    assert max_rollout_cost(1e-6, 1e-5, 50, 3.0).usd == pytest.approx(50 * (10_000e-6 + 500e-5))
    assert max_rollout_cost(1e-3, 1e-3, 50, 3.0).usd == 3.0
