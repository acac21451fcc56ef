"""Words of a line for the shell: how they are written, and which programs a line starts. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable

_ENDS, _REDIRECTS = set(";&|()\n"), set("<>")
_BEFORE = frozenset(["!", "{", "if", "elif", "then", "else", "while", "until", "do", "time"])
"""Words a command follows."""
_WORDS = (
    ": [ [[ ]] alias bg break builtin cd command continue declare dirs done echo esac eval exec exit export false fg "
    "fi for function getopts hash in jobs let local mapfile popd printf pushd pwd read readonly return select set "
    "shift shopt test times trap true type typeset ulimit umask unalias unset wait }"
)
_BUILTINS = frozenset(_WORDS.split())
_CHANGES_PATH = frozenset({"source", ".", "eval", "exec", "export", "case", "function"})
"""What follows these may be found elsewhere than here, or is no command."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=")


def quote(word: str) -> str:
    """Return a word as it is typed for bash and zsh, in characters that a terminal shows and copies as they are."""
    if all(char.isprintable() for char in word) and " ".join(word.split()) == word:
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def join(words: Iterable[str]) -> str:
    """Return words as one command."""
    return " ".join(map(quote, words))


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable() and char != " ":
        return char
    try:
        raw = os.fsencode(char)  # what was no text in a file's name is the bytes again
    except UnicodeEncodeError:
        raw = char.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in raw)


def programs(line: str) -> list[str]:
    """Return the names and paths of programs that a line starts, in order; what cannot be told is left out.

    Raises:
        ValueError: it is no line for the shell, as with a quotation that does not end.
    """
    found: list[str] = []
    moved = False
    for words in _commands(line):
        name, sets_path = _name(words)
        if sets_path or name in _CHANGES_PATH:
            break
        moved = moved or name in ("cd", "pushd")
        plain = re.fullmatch(r"[\w./+-]+", name) and name not in _BUILTINS
        if plain and not (moved and "/" in name) and name not in found:
            found.append(name)
    return found


def _commands(line: str) -> list[list[str]]:
    """The words of each simple command, without what is redirected."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if word and set(word) <= _ENDS | _REDIRECTS:
            redirected = bool(set(word) & _REDIRECTS)
            commands += [] if redirected else [[]]
        elif redirected:
            redirected = False
        else:
            commands[-1].append(word)
    return commands


def _name(words: list[str]) -> tuple[str, bool]:
    """The first word that is no assignment and no word of the shell's grammar; whether PATH is set before it."""
    sets_path = False
    for word in words:
        assigned = _ASSIGNMENT.match(word)
        if assigned is None and word not in _BEFORE:
            return word, sets_path
        sets_path = sets_path or (assigned is not None and assigned[1] == "PATH")
    return "", sets_path
