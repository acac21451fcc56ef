"""What a secret looks like that this process never knew, such as a key printed by a command.

The kinds are a table, `secret_shapes.toml`. The time is linear in the text whatever it holds: a kind begins with a
literal, which is searched at memory speed; what follows is bounded, but for a last run of characters, which is
consumed whether or not it is a secret. Functions decide about what was found, each looking at it once.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

from valve_plugin.codec import parse_toml

Span = tuple[int, int, str]
"""Start, end and label of a secret in a text."""
Check = Callable[[str, "re.Match[str]"], bool]
"""Decides whether what a pattern found is a secret; gets the value and the match."""

_HEX_PREFIXES = ("sk-", "SK", "fc-")
"""Short prefixes after which also small hex digits make a key."""
_LONG_WORD = re.compile(r"(?<![A-Za-z0-9_.~-])[A-Za-z][A-Za-z0-9_.~-]{19,}")
_NEW_PREFIX = re.compile(
    r"(?!diff|sha\d|md5|h1)(?:[a-z]{2,10}\d?[_-]){1,3}([A-Za-z0-9]{24,})\Z|[MNO][\w-]{22,27}\.[\w-]{6}\.([\w-]{27,40})\Z"
)
_SOURCE = re.compile(
    r"\A[^/]+/|\.(?:pyi?|[ch](?:pp|c)?|[jt]sx?|go|rs|java|rb|php|sh|ya?ml|toml|json|md|rst|txt|cfg|ini|log|html|css)\Z"
)
_AFTER_PAIR = re.compile(r"\w=[^\s\"'(),;&]{1,60} \Z")
_HEX_KEY = re.compile(r"(?=.{0,100}[a-fA-F])(?:[0-9a-fA-F]{32}){1,4}|[0-9a-fA-F]{48}")
_FED = re.compile(r"chpasswd|kinit|cryptsetup|--with-token|--password-stdin|sudo -s")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_DIGEST_OF = re.compile(r"(?i)(?:sha\d{1,3}|md5|digest|hash)[\"']?[:=-][ \"']{0,2}\Z")
_PLACEHOLDER = re.compile(
    r"(?i)(?:[x*.•#_?0-]+|(?:my|some|the|a|an)\b\D*|(?:your|insert|replace|enter|example|sample|dummy|fake|mock|placeholder"
    r"|redacted|masked|hidden|omitted|change)\b.*|.*(?:[-_ ]here|change[-_]?me|example|placeholder|redacted)"
    r"|(?:user(?:name)?|pass(?:word|wd)?|pwd|secret|token|key|api_?key|credentials?|auth)s?[\d_]{0,2})"
)
_TEST_ID = re.compile(r"[\w./-]{1,200}\.py(?:::|\Z)")
_STEMS = ("pass", "pwd", "secret", "credential", "token", "key", "auth", "sig", "sess", "cookie", "salt", "pw", "psk")
# After the stem: the rest of the name, perhaps a type, a sign, and the value in quotes or without.
_ASSIGNED = (
    r"[a-z0-9_.-]{0,40}[\"'\]) ]{0,4}(?:[ \t]{0,8}:[ \t]{0,4}(?:str|string|bytes|secretstr)(?=[ \t]{0,4}=))?"
    r"(?:>|[ \t]{0,20}(?::=|=>|={1,2}|:|,(?=[ ]?[\"'])|[ ]is(?=[ ]))|\s{1,40}value[ ]{0,2}[:=]|(?=[ \t]))[ \t]{0,20}"
    r"(?:\r?\n[ \t]{0,40}(?:string\(\d{1,5}\) )?(?=[\"']))?"
    r"(?:[rbuf]{0,2}(?:\"([^\"\r\n]+)|'([^'\r\n]+)|`([^`\r\n]+))|([^\s\"'`,;&<>(){}\[\]|]+))"
)
# A line of a private key, with what a program may print before it; and the last one.
_KEY_LINE = re.compile(
    r"[\s+\">|,'-]{0,60}(?:(?:Proc-Type|DEK-Info|Version|Comment):[^\n]{0,80}|[A-Za-z0-9+/]{16,}={0,2})"
)
_KEY_END = re.compile(r"[\s+\">|,'-]{0,60}[A-Za-z0-9+/=]{0,80}[\s+\">|,'-]{0,60}-----END [A-Z ]{0,40}-----")
_KEY_LINE_BACKWARDS = re.compile(r"[\s+\">|,'-]{0,60}={0,2}[A-Za-z0-9+/]{16,}")
_KEY_BODY = r"MII\w[\w+/]{2}IBA(?:AK|DANBgkqhki)|M[HIC][^I]|b3BlbnNzaC1rZXktdj"
_OF_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_REST = re.compile(r"[^\s\"'`]*(?:[ ][a-z0-9]{1,30}){0,7}(?![^\s\"'`])|")  # signs, and words up to the line's end
# A bare value that is an expression: names joined by dots or operators, or a name of several words.
_CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+[.:]?|[A-Za-z]*_\w*|[\d.,:]+|(?:[A-Z][a-z]+)+")
_WORD_BEFORE = re.compile(r"([A-Za-z]{3,12}) \Z")
_PHRASE = re.compile(r"[a-z]{2,30}(?: [a-z0-9]{1,30}){2,7}(?=\s*(?:\n|\Z|\"))")
_ONE_WORD = re.compile(r"[a-z]{6,30}(?=[ \t]*(?:\r?\n|\Z|\"))")
_INDENT = re.compile(r"(?:^|[\n\"])[+>-]?[ \t]{0,16}\Z")
_WORD_FOLLOWS = re.compile(r"(?:^|[\n+>$#\"'-])[ \t]{0,8}(?:ENV|ARG|setx|setenv|set(?: -\w{1,3}){1,3}) \Z")
# The first line of a table, with its separator; and the fields of a line, in quotes or without.
_HEADER = re.compile(
    r"(?:[^\n]{0,300}?\")??[+>-]?\s{0,8}(?P<names>\"? ?[\w.-]{0,40}\"? ?(?P<sign>[,;|\t])"
    r"(?: ?\"? ?[\w.-]{0,40}\"? ?(?P=sign)){0,60} ?\"? ?[\w.-]{0,40}\"?)\s{0,8}"
)
_FIELDS = {
    sign: re.compile(rf"(?:^|(?<=[{sign}])) ?(?:\"((?:[^\"]|\"\")*)\" ?(?=[{sign}]|$)|([^{sign}\"]*)[^{sign}]*)")
    for sign in ",;|\t"
}
_LINE_BEGINS = re.compile(r"(?:^|[\n\"'`>|;]|[-+#$%:] ?|\b(?:export|set|env|ENV|-e|--env) )[ \t]*\Z")


_VALUE = re.compile(r"[^\s\"'`<>(){}\[\],;|=:]{6,}={0,2}")
_LONE = re.compile(r"(?<!\w)[\w-]([\s\"',;|]{1,8})[\w-](?:\1[\w-]){14,}(?!\w)")
"""A key with something between each two of its characters."""
_DIGIT, _PATH = re.compile(r"\d"), re.compile(r"^[./~]|/.*/.*/|\.\w{1,4}$")
_NEAR = 80
"""Characters before a value in which its name is looked for."""
_NAME_WORD, _GLUE_WORD = re.compile(r"[A-Za-z][\w.-]*"), re.compile(r"[A-Za-z]\w*")
_QUOTES = ('"', "'", "`")
_ANY_STEM = re.compile("|".join(_STEMS), re.IGNORECASE)


class Kind(NamedTuple):
    """One kind of secret, a row of the table."""

    label: str
    begins: tuple[str, ...]
    pattern: str
    check: str = ""


class Table(NamedTuple):
    """The table, read once."""

    prefixes: dict[str, str]
    """Prefix -> label."""
    words: dict[str, frozenset[str]]
    kinds: tuple[Kind, ...]


@cache
def table() -> Table:
    """Return the table of kinds."""
    raw = parse_toml(files(__package__).joinpath("secret_shapes.toml").read_text("utf-8"))
    return Table(
        {prefix: label for label, row in raw["prefixes"].items() for prefix in row.split()},
        {name: frozenset(row.split()) for name, row in raw["words"].items()},
        tuple(Kind(k["label"], tuple(k["begins"]), k["pattern"], k.get("check", "")) for k in raw["kind"]),
    )


def find(flat: str) -> Iterator[Span]:
    """Yield the secrets of known kinds in an ASCII text without escapes (`readings.Reading`); they may overlap."""
    lower = flat.lower()
    yield from _tokens(flat)
    yield from _private_keys(flat)
    for row in _LONE.finditer(flat):
        if is_random(row[0][:: 1 + len(row[1])], 16, strict=True):
            yield *row.span(), "token"
    for kind in table().kinds:
        for begin in kind.begins:
            if begin in lower:
                for match in _compiled(begin, kind.pattern).finditer(lower):
                    start, end = match.span(match.re.groups)
                    value = flat[start:end]
                    if "[redacted:" not in value and (not kind.check or CHECKS[kind.check](value, match)):
                        yield start, end, kind.label
    stems = [stem for stem in _STEMS if stem in lower]
    for stem in stems:
        yield from _assignments(stem, flat, lower)
    if stems:
        yield from _columns(flat)
        yield from _near_names(flat)


@cache
def _compiled(literal: str, pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(literal) + pattern)


@cache
def _prefix() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(table().prefixes, key=len, reverse=True))))


def _tokens(text: str) -> Iterator[Span]:
    """Yield long words that begin like a provider's keys, or with any short prefix before a random rest."""
    for match in _LONG_WORD.finditer(text):
        word = match[0].rstrip(".~-")
        if word.startswith("eyJ"):
            head, dot, _ = word.partition(".")
            with suppress(binascii.Error):
                if dot and len(word) > 30 and b64decode(head[:8] + "====", b"-_")[:1] == b"{":
                    yield match.start(), match.start() + len(word), "JSON web token"
        elif _DIGEST_OF.search(text, max(match.start() - 12, 0), match.start()):
            continue
        elif (known := _prefix().match(word)) and _is_rest_of_key(known[0], word[known.end() :]):
            yield match.start(), match.start() + len(word), table().prefixes[known[0]]
        elif (new := _NEW_PREFIX.match(word)) and is_random(new[new.lastindex or 0], 24, strict=True):
            yield match.start(), match.end(), "token"


def _is_rest_of_key(prefix: str, rest: str) -> bool:
    if re.fullmatch(r"[\d-]{16,}", rest):
        return len(prefix) > 4
    return is_random(rest, strict=len(prefix) < 4 and prefix not in _HEX_PREFIXES)


def _private_keys(text: str) -> Iterator[Span]:
    """Yield private keys: whole, on one line, or cut at either end; certificates and public keys are none."""
    done = 0
    for mark in re.finditer(r"PRIVATE KEY(?: BLOCK)?-----|Private-Lines: \d{1,4}", text):
        if mark.start() < done:
            continue
        line = text[max(mark.start() - 40, 0) : mark.start()]
        start = mark.start() - len(line) + max(line.rfind("-----BEGIN "), line.rfind("-----END "), 0)
        if "-----END " not in line:
            done = mark.end()
            while of_key := _KEY_LINE.match(text, done):
                done = of_key.end()
            last = _KEY_END.match(text, done)
            done = last.end() if last else done
        else:
            before, done = text[max(done, start - 20_000) : start][::-1], mark.end()
            first = re.match(r"[\s\">|,'+]{0,60}[A-Za-z0-9+/=]{0,80}", before)
            length = first.end() if first else 0
            while line_before := _KEY_LINE_BACKWARDS.match(before, length):
                length = line_before.end()
            start -= length
        yield start, done, "private key"


def _assignments(stem: str, text: str, lower: str) -> Iterator[Span]:
    for match in _compiled(stem, _ASSIGNED).finditer(lower):
        start, end = match.span(match.lastindex or 0)
        quoted = match.lastindex != 4 or (text[start - 1] == ">" and text.startswith("</", end))
        before = text[max(match.start() - 40, 0) : match.start()]
        at = match.start() - len(before) + len(before.rstrip(_OF_NAMES))
        rest = text[at:start].lstrip(_OF_NAMES)
        name, sign = text[at : start - len(rest)], rest.strip(" \t\r\n\"'`])rRbBuUfF")
        # Without a sign, the value comes after a space: of an option, or in a line of a Dockerfile or shell.
        if not sign and not name.startswith("--") and not _WORD_FOLLOWS.search(text, max(at - 20, 0), at):
            continue
        if _strength(name) == 1 and (word := _WORD_BEFORE.search(text, max(at - 20, 0), at)) and not _is_glue(word[1]):
            name = f"{word[1]}_{name}"  # "encryption key"
        option = name.startswith("--") and not quoted and text[start:end].lower() not in _words_of_text()
        env = option or _is_env_line(text, at, start, end) or text[max(at - 1, 0) : at] in ("?", "&")
        if env and not quoted:
            end = _REST.match(text, end).end()  # type: ignore[union-attr]
        if not quoted and not env and _strength(name) == 3 and (phrase := _PHRASE.match(text, start)):
            quoted, end = text[at - 1 : at] in ("", "\n"), phrase.end()
        if not quoted and sign == ":" and _strength(name) == 3 and _ONE_WORD.match(text, start):
            quoted = bool(_INDENT.search(text, max(at - 20, 0), at))
        value = text[start:end]
        if sign == "," and not re.search(r"\d", value):
            continue  # two texts in a list
        if is_assigned_secret(name, value, quoted=quoted, env=env, end=text[end : end + 1]):
            start += len(value) - len(value.lstrip())
            yield start, start + len(value.strip()), "assigned secret"


def _near_names(text: str) -> Iterator[Span]:
    """Yield the values that stand near a key-like name, in the syntax of any language.

    What looks like a key by itself needs only the name on its line, before or after it. Else signs, and words of
    declarations and markup (`words.glue`), may stand between, and the value has to pass as one that is assigned.
    """
    for match in _VALUE.finditer(text):
        if not _DIGIT.search(match[0]):
            continue
        start, end = match.span()
        if text[end : end + 1] not in _QUOTES:
            end -= len(match[0]) - len(match[0].rstrip(".!?:"))
        value, before = text[start:end], text[max(start - _NEAR, 0) : start]
        strong = _is_key(value) and not _DIGEST_OF.search(before)
        if name := _name_before(before, 1 if _HEX_KEY.fullmatch(value) else 2):
            glue = before[name.end :]
            option = before[: name.start].endswith("-")
            near = strong and name.strength > 1 and "\n" not in glue
            if near or _is_declared(name.text, glue, text[end : end + 1], value, option):
                yield start, end, "assigned secret"
        elif strong:
            after = text[end : end + _NEAR]
            whole = (m for m in _NAME_WORD.finditer(after) if m.end() < _NEAR)  # a cut `token_count` is no token
            names = (_name(m) for m in whole if after[m.end() : m.end() + 1] != "=")  # that one has its own
            name = next((n for n in names if n.strength > 1), None)
            if name and ("\n" not in (glue := after[: name.start]) or _is_glue(glue)):
                yield start, end, "assigned secret"


def _is_key(value: str) -> bool:
    """Whether a text looks like a key whatever stands around it; no path, and no hash of the usual lengths."""
    if len(value) < 20 or len(value) > 400 or _PATH.search(value) or _ANY_STEM.search(value):
        return False
    if re.fullmatch(r"[0-9a-fA-F]{32,}", value):
        return len(value) not in (40, 64) and bool(re.search("[a-fA-F]", value))
    return is_random(value, 20, strict=True)


class _Name(NamedTuple):
    text: str
    start: int
    end: int
    strength: int


def _name(word: re.Match[str], before: str = "") -> _Name:
    """Return a word as a name, with its strength; the name of a file has none."""
    ending = re.search(r"\.([a-z]{1,4})\Z", word[0])
    text = f"{before}_{word[0]}" if before else word[0]
    return _Name(text, *word.span(), 0 if ending and not _strength(ending[1]) else _strength(text))


def _name_before(before: str, least: int) -> _Name | None:
    """Return the last key-like name in what stands before a value, no more than two lines above it."""
    if not _ANY_STEM.search(before):
        return None
    words = list(_NAME_WORD.finditer(before))
    for n in range(len(words) - 1, -1, -1):
        name = _name(words[n])
        if name.strength == 1 and n and name.start - words[n - 1].end() == 1 and not _is_glue(words[n - 1][0]):
            name = _name(words[n], words[n - 1][0])  # "encryption key"
        if name.strength >= least:
            return name if before.count("\n", name.end) < 3 else None
    return None


def _is_glue(text: str) -> bool:
    return all(word.lower() in table().words["glue"] for word in _GLUE_WORD.findall(text))


def _is_declared(name: str, glue: str, end: str, value: str, option: bool) -> bool:
    """Whether what stands between a name and a value gives the one to the other."""
    if not _is_glue(glue):
        return False
    quoted = glue[-1:] in ('"', "'", "`", ">") and end in ('"', "'", "`", "<")
    sign = option or bool(re.search(r"[:=(\[{>~|?]|<[-<]| - ", glue))
    column = bool(re.fullmatch(r"[ \t]*(?:  |\t)[ \t]*", glue)) and is_random(value, 10)
    alone = "\n" in glue and end in ("", "\n", "\r")
    if not quoted and _ANY_STEM.search(value):
        return False  # another name
    return (quoted or sign or column or alone) and is_assigned_secret(name, value, quoted=quoted, end=end)


def _columns(text: str) -> Iterator[Span]:
    """Yield what stands under a key-like name in a table whose first line names the columns, as CSV has them."""
    at, sign, count, names = 0, "", 0, dict[int, str]()
    for line in text.splitlines(keepends=True):
        if names and line.count(sign) >= count - 1:
            fields = list(_FIELDS[sign].finditer(line.rstrip("\r\n")))
            for n, name in names.items() if len(fields) == count else ():
                quoted, bare = fields[n].span(1), fields[n].span(2)
                start, end = quoted if quoted[0] >= 0 else bare
                value = line[start:end]
                if not re.search(r"[()]", line) and is_assigned_secret(name, value, quoted=quoted[0] >= 0, env=True):
                    start += len(value) - len(value.lstrip())
                    yield at + start, at + start + len(value.strip()), "assigned secret"
        elif header := _HEADER.fullmatch(line):
            sign = header["sign"]
            parts = [part.strip(' "') for part in header["names"].split(sign)]
            several = sum(map(bool, parts)) > 1  # a list with a comma after each line is no table
            count, names = len(parts), {n: part for n, part in enumerate(parts) if several and _strength(part) > 1}
        else:
            names = {}
        at += len(line)


def _is_env_line(text: str, name: int, value: int, end: int) -> bool:
    """Whether a line is NAME=value, as in an environment file, or name=value and nothing else."""
    given = text[name:value].rstrip("\"' ")
    if re.fullmatch(r"[A-Z][A-Z0-9_]*[=:]", given):
        return given[-1] == "=" and bool(_LINE_BEGINS.search(text, max(name - 20, 0), name))
    first = text[max(name - 1, 0) : name] in ("", "\n", "+", '"') or bool(
        _AFTER_PAIR.search(text, max(name - 80, 0), name)
    )
    alone = first and text[end : end + 1] in ("", "\n", "\r", '"', "'")
    return alone and bool(re.fullmatch(r"[a-z][\w.-]*=", given))


@cache
def _words_of_text() -> frozenset[str]:
    """Return words of sentences and of help texts."""
    return table().words["prose"] | table().words["glue"] | table().words["harmless"]


def is_assigned_secret(name: str, value: str, *, quoted: bool = True, env: bool = False, end: str = "") -> bool:
    """Tell whether the value given to a name is a secret.

    Args:
        quoted: whether it stood in quotes; else it may be code.
        env: whether its line is NAME=value, as in an environment file.
        end: the character after the value; brackets and dots tell code.
    """
    value = value.strip()
    strength = _strength(name)
    if strength and quoted and value.count("\x7f") > 3:
        return True  # bytes
    if not strength or "[redacted:" in value or is_placeholder(value) or _TEST_ID.match(value):
        return False
    if re.fullmatch(r"\d{16,}" if strength < 3 else r"\d{6,}", value):
        return strength > 1
    if not quoted and not env and ((end and end in "([{") or _CODE.fullmatch(value)):
        return False
    if strength == 3:  # a password may be short, a word, or several
        return _is_password(value, quoted=quoted, env=env)
    if strength == 2 and re.fullmatch(r"[0-9a-fA-F-]{16,}", value):
        # A git hash may be called a token in prose.
        likely = quoted or env or len(value) != 40 or name.lower() != "token"
        return likely and bool(re.search(r"\d", value)) and bool(re.search("[a-fA-F]", value))
    if not re.search(r"\d", value):
        return is_user_and_password(value)
    if strength == 1 and (re.fullmatch(r"[0-9a-fA-F]{32,}", value) if env else _HEX_KEY.fullmatch(value)):
        return env or not re.search(r"(?i)sig", name)
    if strength == 2 and " " not in value:
        return is_random(value, 8) or is_user_and_password(value)
    return (is_random(value, 16) and not re.fullmatch(r"[0-9a-f-]+|[0-9A-F-]+", value)) or is_user_and_password(value)


def _is_password(value: str, *, quoted: bool, env: bool) -> bool:
    """A password may be short, a word in an environment file, or several words that are no sentence."""
    if len(value) < 3 or (value[0] == "/" and "/" in value[1:]):
        return False
    if not quoted:
        return env or bool(
            (re.search(r"\d", value) and re.search(r"[A-Za-z]", value)) or re.search(r"[!@#$%^~?]|\w={1,2}\Z", value)
        )
    words = re.findall(r"\b[a-z]+\b", value.lower().replace("_", " "))  # parts of a hexadecimal number are none
    if table().words["prose"].intersection(words):
        return False
    if re.fullmatch(r"[A-Za-z_. :-]+", value):
        several = len(words) > 2 and not re.search(r"[.:]", value)
        one = re.fullmatch(r"[a-z]{6,}", value) and value not in _words_of_text()
        return several or bool(one) or bool(re.search(r"[a-z][A-Z][a-zA-Z]{4,}", value))
    return True


@lru_cache(maxsize=65_536)
def _strength(name: str) -> int:
    """Return 3 for a password's name, 2 for a key's, 1 for what often is one, 0 for all others."""
    # What stands after the last dot may be it alone, as in `process.env.TOKEN`, and `-D` gives Java properties.
    return max(map(_word_strength, (name, name.rpartition(".")[2], re.sub(r"\AD(?=[a-z])", "", name))))


def _word_strength(name: str) -> int:
    rows = table().words
    parts = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    words = set(parts[1:] if parts[:1] in (["id"], ["set"]) else parts)  # an id_token is one, a token_id is none
    if parts and parts[-1] in rows["password"]:
        words -= {"store", "var", "index", "text"}  # keyStorePassword, TF_VAR_password, ClearTextPassword
    if not words or words & rows["harmless"]:
        return 0
    if words & rows["password"] or any(w.endswith(("password", "passwd", "passphrase")) for w in words):
        return 3
    if words & rows["secret"] or any(w.endswith(("apikey", "token", "secret")) for w in words):
        return 2
    weak = words & rows["weak"]
    return 2 if weak and words & rows["whose"] else int(bool(weak))


def is_placeholder(value: str) -> bool:
    """Tell whether a value stands for one: `<token>`, `$TOKEN`, `xxxx`, `your-key`, `PASSWORD`."""
    return bool(
        value[:1] in tuple("<{$%[(=&:")
        or "${" in value
        or "{{" in value
        or value.endswith(("...", "…"))
        or value.lower() in table().words["placeholder"]
        or _PLACEHOLDER.fullmatch(value)
        or re.fullmatch(r"[A-Z]+(?:[_-][A-Z]+)*", value)
        or len(set(value)) < 3
    )


def is_random(value: str, least: int = 16, *, strict: bool = False) -> bool:
    """Tell whether a text of at least `least` characters changes often between small, capital and digit, as keys do."""
    bare = re.sub(r"[^A-Za-z0-9]", "", value[:400])
    if len(bare) < least or len(set(bare)) < min(8, least - 1):
        return False
    kinds = "".join("d" if c.isdigit() else "u" if c.isupper() else "l" for c in bare)
    changes = sum(map(str.__ne__, kinds, kinds[1:]))
    return len(set(kinds)) > (2 if strict else 1) and changes >= (0.3 if strict else 0.2) * (len(bare) - 1)


def is_user_and_password(value: str) -> bool:
    """Tell whether a text is base64 of `user:password`, or of both after NUL as SMTP has them."""
    if not re.fullmatch(r"[A-Za-z0-9+/_-]{8,}={0,2}", value):
        return False
    try:
        plain = b64decode(value + "=" * (-len(value) % 4), b"-_" if "-" in value or "_" in value else None)
        return bool(re.fullmatch(r"[ -9;-~]{1,100}:[ -~]{2,}|\0[ -~]{1,100}\0[ -~]{2,}", plain.decode("ascii")))
    except (binascii.Error, ValueError):
        return False


def _odd(value: str, _: re.Match[str]) -> bool:
    """A word with a digit or a sign in it, so that sentences are not taken for secrets."""
    return _is_given(value) and bool(re.search(r"\d|[^\w.,:;()\[\]\"'`\s-]", value))


def _before(match: re.Match[str]) -> str:
    """Return what stands on the line before a match, and on those that it goes on from."""
    before = match.string[max(match.start() - 400, 0) : match.start()]
    return re.sub(r"\n[ \t]+", " ", before).rpartition("\n")[2]


def _of_web_command(value: str, match: re.Match[str]) -> bool:
    before = _before(match)
    option = match[0].lstrip("'\" ").startswith("-") or bool(re.search(r"(?:^|[\s\"'])-[a-z#]{0,12}\Z", before))
    return option and _is_given(value) and bool(re.search(r"curl|http|wget", before))


def _is_given(value: str) -> bool:
    return not (is_placeholder(value) or value.isdigit())


def _in_pgpass(value: str, match: re.Match[str]) -> bool:
    """The first of five fields stands alone, and is no source file as tools that name lines print it."""
    before = match.string[max(match.start() - 200, 0) : match.start()]
    host = re.search(r"(?:^|[\s\"'])[+-]?((?:[^:\s\"']|(?<=\\):)+)\Z", before)
    return bool(host and not _SOURCE.search(host[1])) and _is_given(value) and not re.search(r"[()\[\]{}<>,;]", value)


def _session(value: str, _: re.Match[str]) -> bool:
    """A header of cookies of which one holds more than a word."""
    some = value[:10_000]
    return any(is_random(part, 12) for part in re.findall(r"=([\w%+/.=~|:-]{8,})", some)) or bool(
        re.search(r"(?i)(?:sess|sid|token|auth|jwt|csrf)\w{0,20}=[^;\s]{0,100}\d", some)
    )


CHECKS: dict[str, Check] = {
    "whole name": lambda value, m: is_random(value) and m.string[max(m.start() - 1, 0) : m.start()] in ('"', " "),
    "after digits": lambda _, m: m.string[max(m.start() - 8, 0) : m.start()].isdigit(),
    "capitals": lambda value, m: value.isupper() and not m.string[max(m.start() - 1, 0) : m.start()].isalnum(),
    "given": lambda value, _: not is_placeholder(value),
    "key body": lambda value, _: bool(re.match(_KEY_BODY, value)),
    "fed": lambda value, m: _is_given(value) and bool(_FED.search(_before(m))),
    "odd": _odd,
    "option": lambda value, _: _is_given(value) and value not in table().words["prose"],
    "pair": lambda value, _: is_user_and_password(value),
    "random": lambda value, _: is_random(value),
    "pgpass": _in_pgpass,
    "session": _session,
    "session id": lambda value, _: is_random(value) and not _UUID.fullmatch(value),
    "web": _of_web_command,
}
