"""The simulation's numbers and texts, read strictly from the two files beside this one."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.resources import files
from string import Template
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from valve_plugin.codec import convert
from valve_plugin.records import Body, Item, Kind, Sentence

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

BugClass = Literal["operators", "control", "removed", "structure", "other"]
Failure = Literal["partial", "operator", "elsewhere", "giveup"]
Quality = Literal["good", "useless", "harmful"]
ProposalKind = Literal["good", "useless", "harmful", "duplicate", "malformed"]

Chance = Annotated[float, Meta(ge=0, le=1)]
Weight = Annotated[float, Meta(ge=0)]
_WORD = r"(?<![\w.\-]){}(?![\w\-])"


class SolverParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a solver succeeds and what it does when it fails."""

    spread: Weight
    floor: Chance
    ceiling: Chance
    effect_cap: Weight
    looks: Annotated[int, Meta(ge=2, le=8)]
    check: Chance
    base: dict[BugClass, Chance]
    classes: dict[str, BugClass]
    failures: dict[Failure, Weight]


class ExtractorParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an extractor proposes."""

    second: Chance
    padding: Chance
    verbatim: Chance
    proposals: dict[ProposalKind, Weight]


class Effects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logits that one lesson in the prompt adds."""

    own: float
    any: float
    harmful: float


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of parameters.toml, where each number is explained."""

    solver: SolverParameters
    effects: Effects
    extractor: ExtractorParameters


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

    def effect(self, effects: Effects, bug_class: BugClass) -> float:
        """Logits this lesson adds to the chance of solving a bug of that class."""
        if self.quality != "good":
            return effects.harmful if self.quality == "harmful" else 0.0
        if self.about == "any":
            return effects.any
        return effects.own if self.about == bug_class else 0.0

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
        return len(set(re.findall(_WORD.format(pattern), text)))


def named(name: str, text: str) -> bool:
    """True when `name` stands in `text` as a word of its own."""
    return re.search(_WORD.format(re.escape(name)), text) is not None


@cache
def defaults() -> Parameters:
    """Return parameters.toml as shipped."""
    return parse(_read("parameters.toml"))


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons, in file order."""
    raw = _read("lessons.toml")["lesson"]
    return convert(raw, tuple[Lesson, ...], where="lessons.toml")


def parse(raw: dict[str, Any]) -> Parameters:
    """Turn the plain form into parameters, refusing unknown names and values out of range.

    Raises:
        RecordError: with the place inside the file.
    """
    return convert(raw, Parameters, where="parameters.toml")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))
