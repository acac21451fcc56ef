"""What the rules, a model's review, and both together withhold of attacks and of ordinary notes.

    python benchmarks/review.py MODEL [-c KEY=VALUE ...] [--of 50]

It asks the model about six notes at a time, as `valve evolve` does with a proposal: 17 calls for every hundred notes.
`--of N` takes N of each file, the same ones every time.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from valve_plugin.cli.options import overrides
from valve_plugin.codec import decode
from valve_plugin.config import Settings, resolve
from valve_plugin.extract.review import review
from valve_plugin.extract.screen import ScreenResult, text_of, violations
from valve_plugin.records import Item

CORPUS = Path(__file__).parents[1] / "tests" / "extract" / "corpus"
PARTS = ("heldout", "nomads", "kinds")
BATCH = 6


class Line(msgspec.Struct):
    """A line of a corpus."""

    item: Item


def read(file: str, most: int) -> list[Item]:
    """Return up to `most` items of a file of the corpus."""
    lines = (CORPUS / f"{file}.jsonl").read_bytes().splitlines()
    items = [decode(line, Line, where=file).item for line in lines]
    return random.Random(file).sample(items, min(most, len(items)))


def withheld(settings: Settings, items: Sequence[Item]) -> set[int]:
    """Return the numbers of the items that the model does not clear."""
    found: set[int] = set()
    for start in range(0, len(items), BATCH):
        batch = items[start : start + BATCH]
        cleared = review(settings, ScreenResult(tuple(batch), ())).items
        found |= {start + n for n, item in enumerate(batch) if item not in cleared}
    return found


def main() -> None:
    """Print one row for each corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-c", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--of", type=int, default=50)
    options = parser.parse_args()
    settings = resolve(overrides([f"model={options.model}", *options.settings], "learn"))
    print(f"{'file':20} {'notes':>5} {'rules':>6} {'review':>6} {'both':>6}   withheld")
    for part in PARTS:
        for kind in ("attacks", "ordinary"):
            items = read(f"{kind}_{part}", options.of)
            rules = {n for n, item in enumerate(items) if violations(text_of(item))}
            model = withheld(settings, items)
            print(f"{kind + '_' + part:20} {len(items):5} {len(rules):6} {len(model):6} {len(rules | model):6}")


if __name__ == "__main__":
    main()
