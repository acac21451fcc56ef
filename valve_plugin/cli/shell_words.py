"""Which programs a line for the shell starts, as far as that can be told without running it. Pure."""

from __future__ import annotations

import re
import shlex

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
