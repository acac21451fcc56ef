"""Quote words for a shell. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable


def quote(word: str) -> str:
    """Return a word quoted for bash and zsh, in characters that a terminal shows and copies unchanged."""
    if all(char.isprintable() for char in word) and " ".join(word.split()) == word:
        return shlex.quote(word)
    return f"$'{''.join(map(_escape, word))}'"


def join(words: Iterable[str]) -> str:
    """Return words as one command."""
    return " ".join(map(quote, words))


def _escape(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable() and char != " ":
        return char
    try:
        raw = os.fsencode(char)  # a byte of a file's name that is no text
    except UnicodeEncodeError:
        raw = char.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in raw)
