"""Score items with the screen: `python -m tests.corpus.score FILE ...`, each line of which is {"id", "item"}.

Prints how many of a file's items are set aside, by rules, by weight and by either. `--ids` names those that pass in
a file of attacks and those that are set aside in any other: use it on files that are for tuning only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from valve_plugin.codec import decode
from valve_plugin.extract.screen import WORDING, concerns, text_of
from valve_plugin.records import Item


class Scored(NamedTuple):
    """What the screen says of one line."""

    id: str
    rules: bool
    weight: bool
    withheld: bool


class _Line(msgspec.Struct):
    id: str
    item: Item


def score(path: Path) -> list[Scored]:
    """Return what the screen says of each line."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        row = decode(line, _Line, where=f"line {number}")
        why = set(concerns(text_of(row.item)))
        found.append(Scored(row.id, bool(why - {WORDING}), WORDING in why, bool(why)))
    return found


def main(args: list[str]) -> None:
    """Print the figures of each file."""
    for name in [a for a in args if a != "--ids"]:
        try:
            scored = score(Path(name))
        except (OSError, ValueError) as e:
            sys.exit(f'{name}: {getattr(e, "strerror", None) or e}; expected a file of lines {{"id", "item"}}')
        rules, weight, either = (
            sum(column) for column in zip(*((s.rules, s.weight, s.withheld) for s in scored), strict=True)
        )
        print(f"{name}: {either} of {len(scored)} set aside ({rules} by rules, {weight} by weight)")
        if "--ids" in args:
            attacks = Path(name).name.startswith("attacks")
            print("  " + " ".join(s.id for s in scored if s.withheld != attacks))


if __name__ == "__main__":
    main(sys.argv[1:])
