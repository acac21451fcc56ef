"""How much of a gate's panel exact early stopping runs, by the order of its tasks, and whether a verdict ever differs.

A SIMULATION of gates in numbers: 50 tasks x 3 rollouts, margin 0.02, runs of 100 gates (the default horizon). Of the
tasks about 28 in 100 are unstable, with chances from Beta(1.2, 1.2); the others always or never pass, so that the mean
is the base rate. A gate knows what a real run has on record: a complete baseline, then the prefixes of earlier gates;
an accept replaces the current outcomes, while the chances stay, so that each row keeps its base rate.

    random    any order                        ours     the product's: posterior means over all that is on record
    current   the current bank's outcomes      true     the candidate's true chances, which nobody knows

    oracle    no order: the least that can make each verdict certain. A reject takes as many failures as make the margin
              out of reach, all of them first; an accept takes the whole panel, which the next gate needs as its
              current outcomes (`gate_rule.decide` accepts no sooner)

`ours` is vectorised; one run of each row is compared with `theory.gate_rule` itself. Shares are of the 150 rollouts.

    python benchmarks/early_stop.py [--runs 100] [--gates 100]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from valve_plugin.records import Outcome, PanelOutcome
from valve_plugin.theory import gate_rule, panel_order

Array = NDArray[Any]

TASKS, ROLLOUTS, RHO = 50, 3, "0.02"
NEEDED = gate_rule.needed_passes(RHO, TASKS, ROLLOUTS)
EFFECTS = {"do-nothing": 0.0, "slightly harmful": -0.02, "helpful": 0.05}
BASES = (0.64, 0.75, 0.85, 0.92)
ORDERS = ("random", "current", "ours", "true")
UNSTABLE = 0.2075 * 1.35
FULL, AT_MOST = 10_000, {"4-6": 1.15, "20-": 1.03}
"""Gates a row from which on `ours` may take at most so many times the rollouts of the true order."""
SPANS = {"1": slice(0, 1), "4-6": slice(3, 6), "20-": slice(19, None), "all": slice(None)}


def panels(rng: np.random.Generator, runs: int, base: float) -> Array:
    """Return each task's chance to pass, runs x tasks."""
    unstable = rng.random((runs, TASKS)) < UNSTABLE
    chance = np.where(unstable, rng.beta(1.2, 1.2, (runs, TASKS)), 0.0)
    stable = np.maximum((~unstable).sum(1), 1)
    passing = np.clip((base * TASKS - chance.sum(1)) / stable, 0, 1)
    return np.where(unstable, chance, rng.random((runs, TASKS)) < passing[:, None])


def ours(passed: Array, known: Array, current: Array) -> Array:
    """Return `gate.task_order` for many runs at once, as indices into panel order."""
    # Equal rationals divide to equal floats, and these are too small to collide otherwise.
    chance = (3 + 10 * passed) / (6 + 10 * known)
    return np.lexsort((current, chance), axis=1)


def prefixes(failed: Array, order: Array, spare: Array) -> Array:
    """Return `gate.decisive_prefix` for many runs at once; a run that decides by no prefix takes everything.

    Args:
        failed: runs x tasks x rollouts.
        order: runs x tasks.
        spare: failures that an accept can afford, per run.
    """
    ordered = np.take_along_axis(failed, order[:, :, None], 1).reshape(len(failed), -1)
    open_after = np.cumsum(ordered, 1) <= spare[:, None]
    return np.where(spare < 0, 0, np.minimum(open_after.sum(1) + 1, ordered.shape[1]))


def cheapest(spare: Array, accept: Array) -> Array:
    """Return the fewest rollouts that can decide each run: all for an accept, else the failures it cannot afford."""
    return np.where(accept, TASKS * ROLLOUTS, np.maximum(spare + 1, 0))


class Gates(NamedTuple):
    """Many runs of many gates."""

    used: dict[str, Array]
    """Order, or "oracle" -> mean rollouts of each gate number."""
    accepted: float
    """Share."""
    mismatches: int
    """Verdicts that differ from the full panel's, and differences from `theory.gate_rule`."""


def simulate(rng: np.random.Generator, base: float, effect: float, runs: int, gates: int) -> Gates:
    """Run gates one after the other, all runs in step."""
    chance = panels(rng, runs, base)
    candidate = np.clip(chance + effect, 0, 1)
    outcomes = rng.random((runs, TASKS, ROLLOUTS)) < chance[:, :, None]
    current, passed, known = outcomes.sum(2), outcomes.sum(2), np.full((runs, TASKS), ROLLOUTS)
    check = Product(outcomes[0])
    used: dict[str, list[float]] = {name: [] for name in (*ORDERS, "oracle")}
    accepts = mismatches = 0
    for _ in range(gates):
        outcomes = rng.random((runs, TASKS, ROLLOUTS)) < candidate[:, :, None]
        spare = TASKS * ROLLOUTS - NEEDED - current.sum(1)
        accept = outcomes.sum((1, 2)) - current.sum(1) >= NEEDED
        orders = {
            "random": rng.permuted(np.tile(np.arange(TASKS), (runs, 1)), axis=1),
            "current": np.argsort(current, axis=1, kind="stable"),
            "ours": ours(passed, known, current),
            "true": np.argsort(candidate, axis=1, kind="stable"),
        }
        ran = {name: prefixes(~outcomes, order, spare) for name, order in orders.items()}
        for name, lengths in ran.items():
            used[name].append(float(lengths.mean()))
            mismatches += int((decided(outcomes, orders[name], lengths, current.sum(1)) != accept).sum())
        used["oracle"].append(float(cheapest(spare, accept).mean()))
        mismatches += check.differs(outcomes[0], orders["ours"][0], int(ran["ours"][0]), bool(accept[0]))
        seen = np.clip(ran["ours"][:, None] - ROLLOUTS * np.argsort(orders["ours"], axis=1), 0, ROLLOUTS)
        passed = passed + (outcomes & (np.arange(ROLLOUTS) < seen[:, :, None])).sum(2)
        known = known + seen
        current = np.where(accept[:, None], outcomes.sum(2), current)
        accepts += int(accept.sum())
    return Gates({name: np.array(means) for name, means in used.items()}, accepts / (runs * gates), mismatches)


def decided(outcomes: Array, order: Array, lengths: Array, current: Array) -> Array:
    """Return whether each run's prefix is an accept, from that prefix alone: what it did not run counts as passed."""
    ordered = np.take_along_axis(outcomes, order[:, :, None], 1).reshape(len(outcomes), -1)
    best = (ordered | (np.arange(TASKS * ROLLOUTS) >= lengths[:, None])).sum(1)
    return best - current >= NEEDED


class Product:
    """One run as the product itself sees it: records, `task_order`, `decisive_prefix` and `decide`."""

    def __init__(self, baseline: Array) -> None:
        self.tasks = [f"task-{n:02}" for n in range(TASKS)]
        self.current = self.records(baseline, range(TASKS))
        self.recorded = panel_order.add_counts({}, self.current)

    def records(self, outcomes: Array, order: Any) -> list[PanelOutcome]:
        """Return one run's outcomes in canonical order."""
        return [
            PanelOutcome(task_id=self.tasks[t], ordinal=j, outcome=outcome(outcomes[t, j]), context_hash="0" * 64)
            for t in order
            for j in range(ROLLOUTS)
        ]

    def differs(self, outcomes: Array, order: Array, length: int, accept: bool) -> bool:
        """Tell whether the product disagrees; then take the gate as the product does."""
        found = panel_order.task_order(self.tasks, self.recorded, self.current)
        candidate = self.records(outcomes, [self.tasks.index(task) for task in found])
        now, new = [o.outcome for o in self.current], [o.outcome for o in candidate]
        prefix = gate_rule.decisive_prefix(now, new, NEEDED)
        decision = gate_rule.decide(now, new[:prefix], NEEDED)
        panel_order.add_counts(self.recorded, candidate[:prefix])
        if decision == "accept":
            self.current = sorted(candidate, key=lambda o: (o.task_id, o.ordinal))
        wanted = tuple(self.tasks[t] for t in order)
        return (found, prefix, decision) != (wanted, length, "accept" if accept else "reject")


def outcome(resolved: bool) -> Outcome:
    """Return the word for it."""
    return "resolved" if resolved else "unresolved"


def main() -> None:
    """Print the table; exit with 1 when a verdict differs or, at full size, the order is not good enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--gates", type=int, default=100)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print("SIMULATION  share of 150 rollouts, by gate number of a run; x: ours against true\n")
    print(f"{'':<22} accept  gate " + "".join(f"{name:>9}" for name in (*ORDERS, "oracle")) + "       x")
    mismatches, worst, early = 0, dict.fromkeys(SPANS, 0.0), []
    for name, effect in EFFECTS.items():
        for base in BASES:
            done = simulate(rng, base, effect, args.runs, args.gates)
            mismatches += done.mismatches
            for label, span in SPANS.items():
                share = {order: float(means[span].mean()) / (TASKS * ROLLOUTS) for order, means in done.used.items()}
                ratio = share["ours"] / share["true"]
                worst[label] = max(worst[label], ratio)
                early += [f"{share['ours']:.2f}"] if label == "all" else []
                head = f"{name:<17} {base:.2f} {done.accepted:>7.2f}" if label == "1" else ""
                print(f"{head:<30} {label:>4} " + "".join(f"{s:>9.3f}" for s in share.values()) + f"  {ratio:>6.3f}")
    gates = args.runs * args.gates
    print(
        f"\n{gates:,} gates a row: shares {' '.join(early)}; at most {worst['4-6']:.3f} of the true order's at gates "
        f"4-6, {worst['20-']:.3f} from gate 20 on; {mismatches} verdicts differ from the full panel"
    )
    full = args.runs * args.gates >= FULL
    slow = [label for label, most in AT_MOST.items() if worst[label] > most]
    if slow and full:
        print(f"too many rollouts at gates {', '.join(slow)}: at most {AT_MOST} times the true order's are expected")
    sys.exit(bool(mismatches or (slow and full)))


if __name__ == "__main__":
    main()
