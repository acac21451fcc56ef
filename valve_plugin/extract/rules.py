"""Finding wording that turns an agent against its user, its tests or its harness; the table is rules.toml.

A false alarm costs a person one look. A miss is still judged by executable outcomes, and read by whoever
shares the bank.
"""

from __future__ import annotations

import html
import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]")
_LOOKALIKES = str.maketrans("аеорсхуікԁѕјһ", "aeopcxyikdsjh")  # Cyrillic, on purpose
_MARKUP = re.compile(r"[*`\"]|~~|(?<=[a-z])_(?=[a-z])")
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n+")
_ANTI_PATTERN = re.compile(
    r"^[\s#*-]*anti-?patterns?\b.*?"
    r"(?=^[\s#*-]*(?:better pattern|code|procedure|scope|trigger|statement|when to apply)\b|\Z)",
    re.MULTILINE | re.DOTALL,
)
_NEGATED = re.compile(
    r"(?:\b(?:never|not|dont|avoid\w*|instead of|rather than|without|resist|wrong|mistake|beware of"
    r"|in (?:one|the failed|a failed) attempt)\b|n't\b)"
    r"(?!\W+(?:hesitate|forget|fail|neglect|be afraid|worry|stop at|bother|only|just))"
)
_DECRIED = re.compile(
    r"\b(?:hides? the|masks? the|is no fix|is not a fix|fixes nothing|proves nothing|will still fail|does not help)\b"
)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_OPAQUE = re.compile(
    r"(?<![\w+/=-])(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])(?=[\w+/]*\d)[A-Za-z0-9+/]{60,}={0,2}"
    r"|(?:\\x[0-9a-fA-F]{2}){8,}|(?:\\u[0-9a-fA-F]{4}){8,}"
)
_MANY_INVISIBLE = 3
_MIXED_SCRIPT = re.compile(r"[A-Za-z][\u0370-\u052f\u0530-\u058f]|[\u0370-\u052f\u0530-\u058f][A-Za-z]")
_DIGITS_FOR_LETTERS = re.compile(r"\b(?=[a-z0-9]*[a-z])[a-z]*[013457][a-z][a-z0134570]*\b")
_MANY_DISGUISED = 6
_COMMON = re.compile(
    r"(?:the|an?|of|to|in|is|it|and|or|not|that|with|for|on|as|be|by|from|when|which|if|this|are|no|only|at|into|than"
    r"|one|has|its|all|do|each|use|where|there|then)"
)
_FEWEST_WORDS, _COMMON_SHARE = 25, 0.1


class Rule(NamedTuple):
    """One line of defence."""

    name: str
    pattern: re.Pattern[str]
    negatable: bool
    """Whether advice against doing it is fine: "never delete tests"."""


@cache
def table() -> tuple[Rule, ...]:
    """Return the rules of rules.toml, compiled."""
    raw = tomllib.loads(files(__package__).joinpath("rules.toml").read_text("utf-8"))

    def compiled(pattern: str) -> re.Pattern[str]:
        joined = "".join(pattern.splitlines())
        return re.compile(re.sub(r"<([a-z]+)>", lambda m: raw["words"][m[1]], joined))

    return tuple(Rule(r["name"], compiled(r["pattern"]), r.get("negatable", False)) for r in raw["rule"])


def violations(text: str, *, sure: bool = False) -> list[str]:
    """Return the names of the rules that `text` breaks, each once; empty for ordinary text.

    With `sure`, only what hides from a reader: patterns misread some advice against the same thing.
    """
    found = ["hides its content"] if _OPAQUE.search(text) or _hidden(text) else []
    whole = plain(text)
    found += ["cannot be read by these rules"] if _foreign(whole) else []
    if sure:
        return found
    told = list(_sentences(whole))
    advised = list(_sentences(_ANTI_PATTERN.sub("\n", whole)))  # what not to do may be named there
    found += [r.name for r in table() if any(_breaks(r, s) for s in (advised if r.negatable else told))]
    return list(dict.fromkeys(found))


def plain(text: str) -> str:
    """Return `text` as a model reads it: entities, compatibility forms, look-alikes and markup undone, lower case."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).replace("’", "'")  # noqa: RUF001
    text = _INVISIBLE.sub("", text).casefold().translate(_LOOKALIKES)
    return _MARKUP.sub(lambda m: " " if m[0] == "_" else "", text)


def _breaks(rule: Rule, sentence: str) -> bool:
    """Whether the sentence breaks the rule, and does not merely warn of it."""
    return any(
        not (rule.negatable and (_NEGATED.search(sentence[: m.start()]) or _DECRIED.search(sentence[m.end() :])))
        for m in rule.pattern.finditer(sentence)
    )


def _sentences(text: str) -> Iterator[str]:
    return (" ".join(s.split()) for s in _SENTENCE.split(text) if s.strip())


def _hidden(text: str) -> bool:
    """Whether a reader sees something else than a model: invisible marks, or letters of two scripts in one word."""
    marks = _INVISIBLE.findall(text)
    if len(marks) > _MANY_INVISIBLE or any(m >= "\U000e0000" or "\u202a" <= m <= "\u202e" for m in marks):
        return True
    return bool(_MIXED_SCRIPT.search(text))


def _foreign(text: str) -> bool:
    """Whether the text is not the English these rules are about: another language, or digits in place of letters."""
    prose = _CODE.sub(" ", text)
    if len(_DIGITS_FOR_LETTERS.findall(prose)) >= _MANY_DISGUISED:
        return True
    words = re.findall(r"[^\W\d_]+", prose)
    return len(words) >= _FEWEST_WORDS and sum(bool(_COMMON.fullmatch(w)) for w in words) < _COMMON_SHARE * len(words)
