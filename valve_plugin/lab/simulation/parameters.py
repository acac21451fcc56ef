"""Every number of the SIMULATED model, the draws that they rule, and the lessons that its extractor proposes.

Chances are in [0, 1], weights are relative, effects are in logits (+0.7 turns a chance of 50 % into 67 %).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from valve_plugin.codec import canonical, convert, parse_toml
from valve_plugin.records import Body, Item, Kind, Sentence

BugClass = Literal["operators", "control", "removed", "structure", "other"]
Failure = Literal["partial", "operator", "elsewhere", "giveup"]
Quality = Literal["good", "useless", "harmful"]
ProposalKind = Literal["good", "useless", "harmful", "duplicate", "malformed"]

BASE: dict[BugClass, float] = {"operators": 0.55, "control": 0.45, "removed": 0.40, "structure": 0.35, "other": 0.50}
"""Chance to solve a task of average difficulty with no lesson in the prompt."""
CLASSES: dict[str, BugClass] = {
    "func_pm_op_": "operators",
    "func_pm_flip_operators": "operators",
    "func_pm_ctrl_": "control",
    "func_pm_remove_": "removed",
    "func_pm_class_": "structure",
}
"""Class of bug by the start of SWE-smith's modifier, which is the last part of an instance id. No match: other."""
SPREAD = 1.4
"""A task's difficulty is fixed by its id alone: uniform in [-SPREAD, +SPREAD] logits around its class."""
FLOOR, CEILING = 0.03, 0.97
"""No task is hopeless and none is certain."""
OWN, ANY, HARMFUL = 1.4, 0.6, -1.1
"""What an item made from a lesson adds: a good one about this class of bug, one about all, a harmful one on each."""
EFFECT_CAP = 2.5
"""The sum of all lessons' effects lies within so much of 0."""
LOOKS = 4
"""Most looks (ls, grep, sed) before the edit; at least two."""
CHECK = 0.6
"""Chance that the edited file is checked before the submission."""
FAILURES: dict[Failure, float] = {"partial": 4.0, "operator": 3.0, "elsewhere": 2.0, "giveup": 1.0}
"""What a failed attempt does: restores one of several changes, restores the code with one operator or constant wrong,
adds code where it changes nothing, or submits without an edit."""
PROPOSALS: dict[ProposalKind, float] = {"good": 5.0, "useless": 2.0, "harmful": 2.0, "duplicate": 1.0, "malformed": 1.0}
"""What one answer of the extractor is. A duplicate repeats a lesson that is already known."""
BAITED: dict[ProposalKind, float] = {**PROPOSALS, "good": 4.0, "harmful": 4.0}
"""The same in the demo: harmful lessons, the baits, come as often as good ones, so that minutes show what gates do."""
SECOND, PADDING, VERBATIM = 0.5, 0.3, 0.5
"""Chance of a second lesson of the same quality, of a useless one on top, and that a duplicate is word for word."""
REWORDED = "always_"
"""How the name of a lesson in other words begins; it has the same effect."""
_WORD = r"(?<![\w.\-]){}(?![\w\-])"
T = TypeVar("T")
Part = str | int


class Lesson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text the extractor may propose. `${function}` and `$file` are filled in from the task."""

    name: Annotated[str, Meta(pattern=r"^[a-z_${}]+$(?!\n)")]
    kind: Kind
    quality: Quality
    about: BugClass | Literal["any"] = "any"
    """The class of bug a good lesson helps with; "any" helps a little everywhere."""
    text: Sentence
    scope_hint: str = ""
    markdown: Body

    def effect(self, bug_class: BugClass) -> float:
        """Logits this lesson adds to the chance of solving a bug of that class."""
        if self.quality != "good":
            return HARMFUL if self.quality == "harmful" else 0.0
        if self.about == "any":
            return ANY
        return OWN if self.about == bug_class else 0.0

    def item(self, function: str, file: str) -> Item:
        """This lesson as a proposed item, written for one task."""

        def fill(text: str) -> str:
            return Template(text).safe_substitute(function=function, file=file)

        spoken = "_".join(re.findall(r"[a-z0-9]+", function.lower())) or "it"  # names are lower case words
        return Item(
            kind=self.kind,
            name=Template(self.name).substitute(function=spoken),
            text=fill(self.text),
            scope_hint=fill(self.scope_hint),
            markdown=fill(self.markdown).strip(),
        )

    def count_in(self, text: str) -> int:
        """How many items made from this lesson `text` names: one at most, unless it is written for each task anew."""
        # A bank numbers names that clash: name-2.
        pattern = re.escape(self.name).replace(re.escape("${function}"), r"\w+") + r"(?:-\d+)?"
        found = re.findall(_WORD.format(f"(?:{REWORDED})?{pattern}"), text)
        return len({name.removeprefix(REWORDED) for name in found})


def named(name: str, text: str) -> bool:
    """True when `name` stands in `text` as a word of its own."""
    return re.search(_WORD.format(re.escape(name)), text) is not None


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons, in file order."""
    raw = parse_toml(files(__package__).joinpath("lessons.toml").read_text("utf-8"))
    return convert(raw["lesson"], tuple[Lesson, ...], where="lessons.toml")


class Draw:
    """Draws that share a key, for example (seed, task, ordinal, role, hash of the block)."""

    def __init__(self, *key: Part) -> None:
        self._key = key

    def uniform(self, *what: Part) -> float:
        """Return a number in [0, 1) that belongs to `what`; the same `what` gives the same number."""
        raw = hashlib.sha256(canonical([*self._key, *what])).digest()
        return (int.from_bytes(raw[:8], "big") >> 11) / 2**53

    def chance(self, probability: float, *what: Part) -> bool:
        """Return True with that probability."""
        return self.uniform(*what) < probability

    def pick(self, options: Sequence[T], *what: Part) -> T:
        """Return one of the options, all equally likely."""
        return options[math.floor(self.uniform(*what) * len(options))]

    def weighted(self, weights: Mapping[T, float], *what: Part) -> T:
        """Return a key, as likely as its weight; ties and order follow the mapping.

        Raises:
            ValueError: no weight is positive.
        """
        likely = {option: weight for option, weight in weights.items() if weight > 0}
        if not likely:
            raise ValueError(f"no positive weight among {dict(weights)!r}; give at least one option a weight above 0")
        left = self.uniform(*what) * sum(likely.values())
        for option, weight in likely.items():
            left -= weight
            if left < 0:
                return option
        return option  # the sum of the weights was rounded down

    def shuffled(self, options: Sequence[T], *what: Part) -> list[T]:
        """Return the options in a drawn order."""
        return [option for _, _, option in sorted((self.uniform(*what, i), i, o) for i, o in enumerate(options))]
