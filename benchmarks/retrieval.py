"""Time of one retrieval at 100, 1,000 and 5,000 items, next to bm25s on the same queries in the same run.

Both sides are timed from the text of a task to its best ten principles and ten skills, tokenization
included, with their index already built and in turn for each query, on one thread. A query is timed three times
and counts with the smallest, so that what else the machine does weighs less; the column `first` is the
99th percentile of each query's first time, when bodies it is the first to compare are read as well.

    python benchmarks/retrieval.py [--queries 300] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import bm25s

from valve_plugin.bank.retrieval import retrieve
from valve_plugin.config import Settings
from valve_plugin.records import Bank, Item

SIZES = (100, 1000, 5000)
BUDGET_MS = 10.0


def vocabulary(text: str) -> list[str]:
    return text.split()


VERBS = vocabulary(
    "check compare trace reproduce isolate narrow rerun inspect restore guard normalize validate bisect log"
)
AREAS = vocabulary(
    "parser lexer delta diff hash cache token path index iterator encoder serializer exclude ignore order type "
    "config option report tree node visitor formatter filter style schema dataset element sequence pixel rule "
    "dialect segment fixture import module boundary regex unicode bytes date decimal numpy set tuple enum slot"
)
FILLER = vocabulary(
    "the a of to in and is when that it for with not on as be by this are from or an if at which before after only "
    "every each one two first last value result call function method class test case error exception argument"
)
FIELD = [area + ending for ending in ("", "s", "ed", "ing", "map", "state", "name", "info") for area in AREAS]


def words(rng: random.Random, count: int) -> str:
    """Return prose-like words: function words, words of the field (few common, most rare), identifiers."""

    def rare(vocabulary: list[str]) -> str:
        return vocabulary[int(rng.paretovariate(0.5) - 1) % len(vocabulary)]

    def word() -> str:
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(FILLER)
        if kind < 0.8:
            return rare(FIELD)
        if kind < 0.9:
            return rng.choice(VERBS)
        if kind < 0.96:
            return f"{rng.choice(VERBS)}_{rare(FIELD)}"
        return f"{rare(FIELD).title()}{rare(FIELD).title()}Error"

    return " ".join(word() for _ in range(count))


def make_bank(rng: random.Random, size: int) -> Bank:
    """Return a bank of `size` items, half of each kind, of the lengths that real ones have."""

    def item(i: int) -> Item:
        skill = i % 2 == 1
        steps = "\n".join(f"{n}. {words(rng, 18)}." for n in range(1, rng.randint(4, 8)))
        return Item(
            kind="skill" if skill else "principle",
            name=f"{rng.choice(VERBS)}-{rng.choice(AREAS)}-{i}",
            text=words(rng, rng.randint(10, 25)),
            scope_hint=words(rng, rng.randint(4, 12)) if skill else "",
            markdown=f"**Trigger**: {words(rng, 20)}\n\n**Procedure**\n{steps}\n",
            created_step=i // 6 + 1,
            passes=rng.randint(1, 2),
            attempts=3,
        )

    items = [item(i) for i in range(size)]
    return Bank(
        repo="benchmark/benchmark",
        version=size // 6 + 1,
        principles=tuple(i for i in items if i.kind == "principle"),
        skills=tuple(i for i in items if i.kind == "skill"),
    )


def make_queries(rng: random.Random, count: int) -> list[str]:
    """Return issue texts: most of 50 to 400 words, one in fifty with a traceback of 5,000."""
    return [words(rng, 5000 if i % 50 == 49 else rng.randint(50, 400)) for i in range(count)]


def ours(bank: Bank) -> Callable[[str], object]:
    settings = Settings(embedding="hashing")
    retrieve(settings, bank, "warm", "up")
    return lambda issue: retrieve(settings, bank, "benchmark__task", issue)


def peer(bank: Bank) -> Callable[[str], object]:
    def shelf(items: tuple[Item, ...]) -> bm25s.BM25:
        index = bm25s.BM25(backend="numpy")
        texts = [f"{i.text} {i.scope_hint} {i.markdown}" for i in items]
        index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
        return index

    shelves = [shelf(bank.principles), shelf(bank.skills)]

    def search(issue: str) -> object:
        query = bm25s.tokenize(f"benchmark__task\n{issue}", return_ids=False, show_progress=False)
        return [s.retrieve(query, k=10, show_progress=False) for s in shelves]

    return search


def timed(ask: Callable[[str], object], query: str) -> float:
    start = time.perf_counter()
    ask(query)
    return (time.perf_counter() - start) * 1000


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print(f"{args.queries} queries, milliseconds; bm25s {bm25s.__version__}, numpy backend\n")
    print(f"{'items':>6}  {'':<6} {'build':>8} {'p50':>8} {'p99':>8} {'first':>8}")
    for size in SIZES:
        rng = random.Random(args.seed)
        bank = make_bank(rng, size)
        queries = make_queries(rng, args.queries)
        p50: dict[str, float] = {}
        p99: dict[str, float] = {}
        for name, build in (("valve", ours), ("bm25s", peer)):
            start = time.perf_counter()
            ask = build(bank)
            built = (time.perf_counter() - start) * 1000
            runs = [[timed(ask, query) for _ in range(3)] for query in queries]
            best, first = [min(r) for r in runs], [r[0] for r in runs]
            p50[name], p99[name] = percentile(best, 50), percentile(best, 99)
            print(
                f"{size:>6}  {name:<6} {built:>8.1f} {p50[name]:>8.2f} {p99[name]:>8.2f} {percentile(first, 99):>8.2f}"
            )
        print(f"{'':>6}  ratio  {'':>8} {p50['valve'] / p50['bm25s']:>8.2f} {p99['valve'] / p99['bm25s']:>8.2f}")
    verdict = "within" if p99["valve"] < BUDGET_MS else "OVER"
    print(
        f"\nvalve p99 at {SIZES[-1]:,} items: {p99['valve']:.2f} ms ({verdict} the budget of {BUDGET_MS:.0f} ms), "
        f"{p99['valve'] / p99['bm25s']:.2f} of bm25s"
    )


if __name__ == "__main__":
    main()
