"""Time of one retrieval at 100, 1,000 and 5,000 items, next to bm25s on the same queries in the same run.

Both sides are timed from the text of a task to its best ten principles and ten skills, tokenization
included, with their index already built, on one thread, in CPU time: on an idle machine that is the time that
passes, and on a busy one it does not measure the neighbours. A query is timed three times and counts with the
smallest; the column `first` is the 99th percentile of first times, when bodies that no query had compared
before are read as well.

    python benchmarks/retrieval.py [--queries 300] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

try:
    import bm25s
except ImportError:
    raise SystemExit("bm25s is not installed; in the clone: pip install '.[dev]'") from None
from samples import make_bank, words

from valve_plugin.config import Settings
from valve_plugin.records import Bank, Item
from valve_plugin.retrieval.contexts import retrieve

SIZES = (100, 1000, 5000)


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
    start = time.process_time()
    ask(query)
    return (time.process_time() - start) * 1000


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    print(f"{args.queries} queries, milliseconds of CPU time; bm25s {bm25s.__version__}, numpy backend\n")
    print(f"{'items':>6}  {'':<6} {'build':>8} {'p50':>8} {'p99':>8} {'first':>8}")
    for size in SIZES:
        rng = random.Random(args.seed)
        bank = make_bank(rng, size)
        queries = make_queries(rng, args.queries)
        p50: dict[str, float] = {}
        p99: dict[str, float] = {}
        for name, build in (("valve", ours), ("bm25s", peer)):
            start = time.process_time()
            ask = build(bank)
            built = (time.process_time() - start) * 1000
            runs = [[timed(ask, query) for _ in range(3)] for query in queries]
            best, first = [min(r) for r in runs], [r[0] for r in runs]
            p50[name], p99[name] = percentile(best, 50), percentile(best, 99)
            print(
                f"{size:>6}  {name:<6} {built:>8.1f} {p50[name]:>8.2f} {p99[name]:>8.2f} {percentile(first, 99):>8.2f}"
            )
        print(f"{'':>6}  ratio  {'':>8} {p50['valve'] / p50['bm25s']:>8.2f} {p99['valve'] / p99['bm25s']:>8.2f}")
    print(f"\nvalve p99 at {SIZES[-1]:,} items: {p99['valve']:.1f} ms, {p99['valve'] / p99['bm25s']:.2f} of bm25s")


if __name__ == "__main__":
    main()
