"""Issue text by a model: the same facts in a reporter's words; kept only if it does not give the fix away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.bank.files import append_durable
from valve_plugin.client import client
from valve_plugin.errors import InfrastructureError, RecordError
from valve_plugin.tasks.folder import journal
from valve_plugin.tasks.issue_text import leaks
from valve_plugin.tasks.load import Row

_MOST_CHARACTERS = 8_000
_PROMPT = """\
Below is what is known about a bug in a Python library: code that shows it, and what came of it. Write the issue a
user of the library would file about it, in Markdown: a title line, what they did (a short example that runs, in your
own words rather than as a test), what happened, what they expected. State only what follows from these facts. Do not
guess at the cause, do not name files, functions or lines of the library's own source beyond its public interface, and
do not mention tests. Answer with the issue alone.

"""

Ask = Callable[[str], str]


def rewrite(rows: Iterable[Row], ask: Ask, model: str, journal: Path, told: Callable[[str], None]) -> list[Row]:
    """Return the rows with issue texts by a model; a text that gives the fix away, or is empty, is not taken.

    Args:
        ask: sends a prompt, returns the answer.
        journal: file of the answers so far, so that none is paid for twice.
    """
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.touch()
    known = _read(journal)
    done = []
    for row in rows:
        key = codec.digest([model, _PROMPT, row.problem_statement])
        if key not in known:
            known[key] = ask(_PROMPT + row.problem_statement).strip()[:_MOST_CHARACTERS]
            append_durable(journal, codec.canonical([key, known[key]]) + b"\n")
        text = known[key]
        if bad := leaks(text, row.patch):
            told(f"{row.instance_id}: the model's text names {bad[0]}; the plain one stays")
        elif not text:
            told(f"{row.instance_id}: the model's text is empty; the plain one stays")
        else:
            row = replace(row, problem_statement=text + "\n")
        done.append(row)
    return done


def by_litellm(model: str) -> Ask:
    """Return a function that asks a model through litellm, at temperature 0."""

    def ask(prompt: str) -> str:
        litellm = client()
        try:
            answer = litellm.completion(model=model, messages=[{"role": "user", "content": prompt}], temperature=0)
        except Exception as e:
            raise InfrastructureError(f"{model} did not answer: {type(e).__name__}: {e}; run it again to go on") from e
        return answer.choices[0].message.content or ""

    return ask


def _read(path: Path) -> dict[str, str]:
    known: dict[str, str] = {}
    for line in journal(path):
        try:
            key, text = codec.decode(line, tuple[str, str], where=str(path))
        except RecordError:
            continue  # torn
        known[key] = text
    return known
