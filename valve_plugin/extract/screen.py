"""What a model wrote is untrusted: clean it, refuse secrets, and withhold what breaks a rule of rules.toml.

The rules are short and read English wording. A false alarm costs a person one look; what the rules miss is judged by
the model's review, by tests, and by whoever reads the bank. `lint` applies them to the items a bank already has.
"""

from __future__ import annotations

import html
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from msgspec import UNSET

from valve_plugin.codec import convert, digest, parse_toml, plain
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.extract.duplicates import nearest_before
from valve_plugin.extract.parse import Draft
from valve_plugin.records import Bank, Item, Kind, Withheld
from valve_plugin.redact import Redactor
from valve_plugin.words import hiding_places, visible

_LOOKALIKES = str.maketrans("аеорсхуікԁѕјһ", "aeopcxyikdsjh")  # Cyrillic, on purpose
_MARKUP = re.compile(r"[*\"]|~~|(?<=[a-z])_(?=[a-z])")
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
_CRITICIZED = re.compile(
    r"\b(?:hides? the|masks? the|is no fix|is not a fix|fixes nothing|proves nothing|will still fail|does not help)\b"
)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_OPAQUE = re.compile(
    r"(?<![\w+/=-])(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])(?=[\w+/]*\d)[A-Za-z0-9+/]{60,}={0,2}"
    r"|(?:\\x[0-9a-fA-F]{2}){8,}|(?:\\u[0-9a-fA-F]{4}){8,}"
)
_MIXED_SCRIPT = re.compile(r"[A-Za-z][\u0370-\u052f\u0530-\u058f]|[\u0370-\u052f\u0530-\u058f][A-Za-z]")
_DIGITS_IN_WORDS = re.compile(r"\b[a-z]+(?:[013457]+[a-z]+)+\b")
_LETTERS = str.maketrans("013457", "oleast")
_COMMON = re.compile(
    r"(?:the|an?|of|to|in|is|it|and|or|not|that|with|for|on|as|be|by|from|when|which|if|this|are|no|only|at|into|than"
    r"|one|has|its|all|do|each|use|where|there|then)"
)
_FEWEST_WORDS, _COMMON_SHARE = 15, 0.1
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME_LENGTH = 120
LARGE = 6_000
"""Characters of a body from which `lint` reports its size: ten items are injected before every task."""


class Source(NamedTuple):
    """Where items come from; every new item gets it."""

    tasks: tuple[str, ...]
    passes: int
    """Resolved source attempts."""
    attempts: int
    """Graded source attempts."""


class ScreenResult(NamedTuple):
    """What is left of a model's items."""

    items: tuple[Item, ...]
    withheld: tuple[Withheld, ...]


def screen(drafts: Sequence[tuple[Kind, Draft]], source: Source, redactor: Redactor | None = None) -> ScreenResult:
    """Turn drafts into items; withhold, with the reason, what holds a secret, breaks a rule or is empty.

    Args:
        redactor: what counts as a secret; by default the environment's values and the known formats.
    """
    redactor = redactor or Redactor.of(os.environ)
    provenance = {"source_tasks": source.tasks, "passes": source.passes, "attempts": source.attempts}
    items: list[Item] = []
    withheld: list[Withheld] = []
    for kind, draft in drafts:
        name = normal_name(draft.name)
        if not name and any(map(str.isalnum, draft.name)):  # of a script that names of files do not have
            name = f"{kind}_{digest([draft.text, draft.markdown])[:8]}"
        try:
            item = convert({**_clean(kind, draft), "name": name, **provenance}, Item, where="item")
        except RecordError:
            withheld.append(Withheld(kind=kind, name=name or "unnamed", why="nothing printable left"))
            continue
        whole = "\n".join((draft.name, text_of(item)))
        if redactor(whole) != whole:
            withheld.append(Withheld(kind=kind, name="withheld", why="holds a secret"))
        elif why := violations(whole):
            withheld.append(withhold(item, "; ".join(why)))
        else:
            items.append(item)
    return ScreenResult(tuple(items), tuple(withheld))


def withhold(item: Item, why: str, reason: str = "") -> Withheld:
    """Return an item as withheld, with its text, for a person to decide about."""
    told = reason or UNSET
    return Withheld(kind=item.kind, name=item.name, why=why, content_hash=digest(item), item=item, reason=told)


def written(item: Item) -> str:
    """Return an item as a person edits it; `edited` reads it back."""
    return f"name: {item.name}\ntext: {item.text}\nscope_hint: {item.scope_hint}\n---\n{item.markdown}\n"


def edited(item: Item, text: str) -> Item:
    """Return the item as a person saved it.

    Raises:
        ConfigError: it is no item, or holds a secret.
    """
    head, _, body = text.partition("\n---\n")
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in head.splitlines())}
    draft = Draft(fields.get("name", ""), fields.get("text", ""), body, fields.get("scope_hint", ""))
    found = {**plain(item), **_clean(item.kind, draft), "name": normal_name(draft.name)}
    try:
        changed = convert(found, Item, where="what was saved")
    except RecordError as e:
        raise ConfigError(f"{e}; expected the lines name, text and scope_hint, a line ---, and the body") from e
    if Redactor.of(os.environ)(text_of(changed)) != text_of(changed):
        raise ConfigError("what was saved holds a secret; nothing changed. Save it without")
    return changed


def text_of(item: Item) -> str:
    """Return everything of an item that a model or a search reads."""
    return "\n".join((item.name, item.text, item.scope_hint, item.markdown))


def safe_line(text: str) -> str:
    """Return model text that may be kept as a remark: one line, or nothing when it holds a secret or an attack."""
    line = redacted_line(text, 2_000)
    return "" if line != " ".join(strip_control(text).split())[:2_000] or violations(line) else line


def redacted_line(text: str, limit: int) -> str:
    """Return model text as one line without control characters and secrets, for a person on this machine."""
    return Redactor.of(os.environ)(" ".join(strip_control(text).split())[:limit])


def strip_control(text: str) -> str:
    """Return `text` without control characters and lone surrogates; line breaks and tabs stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def normal_name(name: str) -> str:
    """Return a name as the bank keeps it: lower case ASCII words joined by underscores; empty when none is left."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9.\-]+", "_", ascii_name.lower().removesuffix(".md"))
    return re.sub(r"_{2,}", "_", words).strip("_.-")[:_NAME_LENGTH].rstrip("_.-")


def _clean(kind: Kind, draft: Draft) -> dict[str, object]:
    return {
        "kind": kind,
        "text": " ".join(strip_control(draft.text).split()),
        "markdown": strip_control(draft.markdown).strip(),
        "scope_hint": " ".join(strip_control(draft.scope_hint).split()) if kind == "skill" else "",
    }


class LintFinding(NamedTuple):
    """One thing a person should look at."""

    kind: Kind
    name: str
    check: str
    """screen, secret, hidden, size or duplicate."""
    message: str


def lint(bank: Bank, redactor: Redactor) -> list[LintFinding]:
    """Return what is wrong with the items of a bank today, one's own or somebody else's, in the bank's order."""
    found = []
    for item, near in zip(bank.items, nearest_before(bank.items), strict=True):
        text, size = text_of(item), len(item.markdown)
        checks = [("screen", rule) for rule in violations(text)]
        if redactor(text) != text:
            checks.append(("secret", "holds what looks like a key; retire the item and revoke the key"))
        if item.hidden:
            hides = f"hides what it says ({', '.join(item.hidden)})"
            checks.append(("hidden", f"{hides}, so it is not injected; edit or remove it"))
        if size > LARGE:
            checks.append(("size", f"body of {size} characters; above {LARGE} it crowds out what the task needs"))
        if near:
            alike = f"(similarity {near.similarity:.2f}; limit 0.45)"
            checks.append(("duplicate", f"says the same as {near.duplicate_of} {alike}"))
        found += [LintFinding(item.kind, item.name, check, message) for check, message in checks]
    return found


class Rule(NamedTuple):
    """One row of rules.toml."""

    name: str
    pattern: re.Pattern[str]
    advice: bool
    """Whether advice against doing it is fine: "never delete tests"."""
    code: bool
    """Whether code is looked at, too."""


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of rules.toml, compiled."""
    raw = parse_toml(files(__package__).joinpath("rules.toml").read_text("utf-8"))

    def compiled(row: dict[str, Any]) -> Rule:
        verbs, objects, phrases = (_either(row.get(key, ())) for key in ("verbs", "objects", "phrases"))
        both = rf"(?:{verbs})\b.{{0,60}}?(?:{objects})" if verbs else ""
        pattern = re.compile("|".join(filter(None, (phrases, both))))
        return Rule(row["name"], pattern, row.get("advice", False), row.get("code", False))

    return tuple(map(compiled, raw["rule"]))


def _either(entries: Sequence[str]) -> str:
    """Return entries of rules.toml as one regular expression, which looks for the start of a word once for all."""
    words, others = list[str](), list[str]()
    for entry in entries:
        pattern = "".join(map(_translated, re.split(r"(\([^)]*\)\??| \.\.\. |[* ])", entry)))
        (words if entry[0].isalnum() or entry[0] == "(" else others).append(pattern)
    return "|".join([rf"(?<!\w)(?:{'|'.join(words)})"] * bool(words) + others)


def _translated(part: str) -> str:
    if part.startswith("("):
        inside, _, optional = part[1:].rpartition(")")
        either = ("".join(map(_translated, re.split("([* ])", one))) for one in inside.split("|"))
        return f"(?:{'|'.join(either)}){optional}"
    return {" ... ": r"\b.{0,60}?", "*": r"\w*", " ": r"[\s_]+"}.get(part, re.escape(part))


def violations(text: str) -> list[str]:
    """Return the names of the rules that `text` breaks, each once; empty for ordinary text."""
    # A reader sees something else than a model: what a page does not show, or letters of two scripts in one word.
    found = ["hides its content"] if hiding_places(text) or _OPAQUE.search(text) or _MIXED_SCRIPT.search(text) else []
    return list(dict.fromkeys(found + [name for name, _ in _broken_rules(text)]))


def suspicious_sentences(text: str) -> list[str]:
    """Return the sentences of `text` (as `normalize` reads them) that break a rule, each once, for a person to see."""
    return list(dict.fromkeys(sentence for _, sentence in _broken_rules(text)))


def _broken_rules(text: str) -> Iterator[tuple[str, str]]:
    """Yield (rule, sentence) wherever a sentence breaks a rule, in the order of the table."""
    whole = normalize(text)
    texts = (False, whole), (True, _ANTI_PATTERN.sub("\n", whole))  # what not to do may be named there
    lines = {(a, code): _sentences(t if code else _CODE.sub(" ` ", t)) for a, t in texts for code in (True, False)}
    for rule in rules():
        looked_at = lines[rule.advice, rule.code]
        if not rule.pattern.search(looked_at):  # faster than sentence by sentence, and no sentence is in two lines
            continue
        for sentence in looked_at.split("\n"):
            for m in rule.pattern.finditer(sentence):
                # Does it merely warn of it?
                warns = _NEGATED.search(sentence[: m.start()]) or _CRITICIZED.search(sentence[m.end() :])
                if not (rule.advice and warns):
                    yield rule.name, sentence
                    break


def _sentences(text: str) -> str:
    """Return the sentences of a text, one a line."""
    return "\n".join(" ".join(s.split()) for s in _SENTENCE.split(text) if s.strip())


def normalize(text: str) -> str:
    """Return `text` as a model reads it: entities, compatibility forms, look-alikes and markup undone, lower case."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).replace("’", "'")  # noqa: RUF001
    text = visible(text, "").casefold().translate(_LOOKALIKES)
    text = _MARKUP.sub(lambda m: " " if m[0] == "_" else "", text)
    return _DIGITS_IN_WORDS.sub(lambda m: m[0].translate(_LETTERS), text)


def is_english(text: str) -> bool:
    """Whether the rules can read a text: they know English. A text of few words counts as English."""
    words = re.findall(r"[^\W\d_]{2,}", _CODE.sub(" ", text).lower())
    letters = sum(len(word) for word in words)
    foreign = sum(not c.isascii() for word in words for c in word)
    if foreign * 4 > letters:
        return False
    return len(words) < _FEWEST_WORDS or sum(bool(_COMMON.fullmatch(w)) for w in words) >= _COMMON_SHARE * len(words)
