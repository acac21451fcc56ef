"""Whether a text is one sentence. Pure."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r"\n\s*\n|^\s*(?:[-*+\u2022>|]\s|#+\s|\d+[.)]\s|```)", re.MULTILINE)
"""A paragraph's end, or a line that begins a list, quotation, table, heading or block of code."""
_CODE = re.compile(r"`[^`]+`")
_END = re.compile(r"([.!?\u2026])[\"'\u2019\u201d)\]*_]*\s+(?=\S)")
_NEVER_ENDS = re.compile(r"e\.g|i\.e|a\.k\.a|w\.r\.t|vs|cf|dr|mr|mrs|ms|viz|resp|approx|incl|excl|ca")
_MAY_END = re.compile(r"etc|al|inc|ltd|co")
_NUMBERED = re.compile(r"nos?|figs?|eqs?|sec|ch|pp?|vol|ver|v")


def single(text: str) -> bool:
    """Whether a text is at most one sentence: it has no structure, and no end before its end.

    A period ends nothing within a word (utils.py, 3.11), between backticks, or where it abbreviates.
    """
    whole = "\n".join(text.strip().splitlines())
    plain = _CODE.sub("code", whole)
    return not _STRUCTURE.search(whole) and not any(_ends(plain, end) for end in _END.finditer(plain))


def _ends(text: str, end: re.Match[str]) -> bool:
    word = text[: end.end(1)].split()[-1].lower().lstrip("([{\"'")
    following = text[end.end()]
    if word.endswith(("...", "\u2026")):
        return following.isupper()
    if not any(map(str.isalnum, word)):
        return False  # "." and ".." are paths
    stem = word.removesuffix(".")
    if stem == word:
        return True
    goes_on = _NEVER_ENDS.fullmatch(stem)
    goes_on = goes_on or (_MAY_END.fullmatch(stem) if not following.isupper() else None)
    return not (goes_on or (_NUMBERED.fullmatch(stem) if following.isdigit() else None))
