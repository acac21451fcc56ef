"""Notes in the files of coding agents: what is written reads back, and any Markdown is cut into notes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from valve_plugin.bank import exchange
from valve_plugin.bank.exchange import LIMIT, Note, place, read_file, section, sections, skill_files
from valve_plugin.errors import ConfigError
from valve_plugin.records import EVERY_TASK, Item

MARKS = st.sampled_from(
    [
        "<!-- valve:end -->",
        "<!-- valve:body -->",
        "<!-- \\valve:end-item -->",
        "---",
        "### x",
        "```",
        "Applies to: y",
        "a",
    ]
)
bodies = st.one_of(strategies.texts(1, 60), st.lists(MARKS, min_size=1, max_size=5).map("\n".join))


def _as_screened(item: Item, body: str) -> Item:
    """As `extract.screen` lets items through: one-line sentences, no control characters, no space around the body."""
    clean = re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u0085]", "", body).strip() or "body"
    text, scope = (" ".join(re.sub("[\x00-\x1f\x7f-\x9f]", "", t).split()) for t in (item.text, item.scope_hint))
    hint = scope if item.kind == "skill" else ""
    return replace(item, text=text or "text", scope_hint=hint, markdown=clean, name=item.name.lower())


items = st.builds(_as_screened, strategies.items(), bodies)
several = st.lists(items, max_size=4, unique_by=lambda item: item.key)


def _fields(item: Item) -> Note:
    return Note(item.kind, item.name, item.text, item.markdown, item.scope_hint)


def _judged(item: Item) -> str:
    return "taken by its owner, not judged" if item.support % 2 else ""


@given(several, st.text(alphabet="ab#\n -é", max_size=40), st.text(alphabet="ab#\n -é", max_size=40))
def test_instructions_read_back_and_leave_the_rest_alone(found: list[Item], before: str, after: str) -> None:
    once = place(before, section(found, _judged))
    assert once.startswith(before)
    assert place(once, section(found, _judged)) == once
    assert exchange.take_out(once) == before + "\n" * bool(before and not before.endswith("\n"))
    whole = once + after
    other = place(whole, section([], _judged))
    assert place(other, section(found, _judged)) == whole
    read = read_file("AGENTS.md", section(found, _judged).encode())
    assert read == [_fields(item) for item in found]


@given(several)
def test_skills_are_of_the_published_format_and_read_back(found: list[Item]) -> None:
    written = skill_files(found, _judged)
    assert len(written) == len(found)
    for (name, text), item in zip(written.items(), found, strict=True):
        head = yaml.safe_load(text.split("\n---\n")[0].removeprefix("---\n"))
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert head["name"] == name
        assert len(name) <= 64
        assert 1 <= len(head["description"]) <= 1024
        assert all(isinstance(value, str) for value in head["metadata"].values())
        assert ("not judged" in text) == bool(_judged(item)) or "not judged" in item.markdown + item.text
        assert exchange.is_ours(text)
        assert read_file("SKILL.md", text.encode(), folder=name) == [_fields(item)]


HAND_WRITTEN = """\
Read me first.

# Our rules

We build a parser.

## Setup

Run `make dev`. It takes a minute.

```sh
# not a heading
make dev
```

## Tests
### Fast

Use `pytest -x`.

## Tests

Other *tests*.
"""


def test_sections_become_notes_with_names_and_sentences() -> None:
    found = sections(HAND_WRITTEN, "AGENTS")
    assert [(n.name, n.text) for n in found] == [
        ("agents", "AGENTS: Read me first."),
        ("our-rules", "Our rules: We build a parser."),
        ("setup", "Our rules: Setup: Run make dev."),
        ("tests", "Our rules: Tests: Fast"),
        ("tests-2", "Our rules: Tests: Other tests."),
    ]
    assert "# not a heading\nmake dev" in found[2].markdown
    assert found[3].markdown == "### Fast\n\nUse `pytest -x`."


@given(
    st.lists(
        st.sampled_from(["# A", "## B", "### C", "word " * 30, "```\nx\n```", "- item", "y" * 300, ""]), max_size=25
    )
)
def test_no_word_is_lost_and_no_note_is_too_long(parts: list[str]) -> None:
    text = "\n\n".join(parts)
    found = sections(text, "rules", limit=200)
    assert all(0 < len(n.markdown) <= 200 and n.name and n.text for n in found)
    assert len({n.name for n in found}) == len(found)
    kept = "".join(n.markdown for n in found)
    for word, times in (("word", text.count("word")), ("y", text.count("y")), ("item", text.count("item"))):
        assert kept.count(word) == times


def test_a_long_section_is_cut_at_paragraphs_and_its_parts_are_named() -> None:
    text = "## Style\n\n" + "\n\n".join(f"Rule {n}. " + "word " * 200 for n in range(10))
    found = sections(text, "AGENTS")
    assert [n.name for n in found] == ["style-part-1", "style-part-2"]
    assert found[1].text.startswith("Style (part 2 of 2): Rule")
    assert all(n.markdown.startswith("Rule") and len(n.markdown) <= LIMIT for n in found)


def test_skill_of_others_and_rules_of_cursor() -> None:
    (skill,) = read_file(
        "SKILL.md", b"---\nname: pdf-forms\ndescription: Fill forms.\n---\n# Steps\n\nOne.\n", folder="x"
    )
    assert skill == Note("skill", "pdf-forms", "Fill forms.", "# Steps\n\nOne.")
    (rule,) = read_file(
        "api.mdc", b"---\ndescription: API style\nglobs: **/*.py\nalwaysApply: false\n---\nUse types.\n"
    )
    assert (rule.name, rule.text, rule.scope_hint) == ("api", "API style", "**/*.py")


@pytest.mark.parametrize(
    ("head", "scope"),
    [
        ("", EVERY_TASK),
        ("applyTo: '**'", EVERY_TASK),
        ("description: Our API\nalwaysApply: true", EVERY_TASK),
        ("description: Our API\nalwaysApply: false", ""),
        ("applyTo: src/**", "src/**"),
    ],
)
def test_rules_without_a_scope_are_for_every_task(head: str, scope: str) -> None:
    text = f"---\n{head}\n---\nUse types.\n" if head else "Use types.\n"
    assert [note.scope_hint for note in read_file("copilot-instructions.md", text.encode())] == [scope]


@pytest.mark.parametrize("spoilt", ["<!-- valve:begin -->\n", "<!-- valve:end -->\n", "both"])
def test_broken_marks_are_refused(spoilt: str) -> None:
    part = section([], _judged)
    with pytest.raises(ConfigError, match="expected one pair"):
        place(f"{part}\n{part}\n" if spoilt == "both" else spoilt, part)


def test_a_folder_of_skills_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no SKILL"):
        exchange.read_path(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\nBody.\n")
    assert [n.name for n in exchange.read_path(tmp_path)] == ["one", "two"]
    assert [n.name for n in exchange.read_path(tmp_path / "two")] == ["two"]


EARLIER = """\
# Ours

<!-- valve:begin: `valve bank export` writes this part; change the bank, not these lines -->

## Notes for this repository

Use a note where its first sentence matches the task. Where a note and the repository disagree, the repository is right.

### pages
<!-- valve:item skill pages -->
<!-- valve:text Pages: Pages count from 1. -->
Applies to: every task
(taken by its owner, not judged)
<!-- valve:body -->
Pages count from 1.

### no-note
<!-- \\valve:body -->
<!-- valve:end-item -->

### dates
<!-- valve:item principle dates -->
A date is off by hours
<!-- valve:body -->
Use UTC.
<!-- valve:end-item -->

<!-- valve:end -->
"""


def test_what_earlier_versions_wrote_is_read() -> None:
    body = "Pages count from 1.\n\n### no-note\n<!-- valve:body -->"
    assert read_file("AGENTS.md", EARLIER.encode())[:2] == [
        Note("skill", "pages", "Pages: Pages count from 1.", body, "every task"),
        Note("principle", "dates", "A date is off by hours", "Use UTC."),
    ]


@given(several)
def test_a_note_has_one_mark_and_says_a_text_of_its_file_once(found: list[Item]) -> None:
    assert section(found, _judged).count("\n<!-- valve:") == len(found) + 1
    imported = [
        Item(kind=note.kind, name=note.name, text=note.text, markdown=note.markdown, scope_hint=EVERY_TASK)
        for note in sections("# Rules\n\n## Pages\n\nPages count from 1. The first is no special case.\n", "notes")
    ]
    assert section(imported, _judged).count("Pages count from 1") == 1
    assert read_file("AGENTS.md", section(imported, _judged).encode()) == [_fields(item) for item in imported]
