"""The slot at the end of a system template: text reaches the system message as a Jinja *value*, never as syntax."""

from __future__ import annotations

import re
from collections.abc import Sequence

VARIABLE = "plugin_system_block"
SLOT = "{{ " + VARIABLE + " | default('') }}"


def with_slot(template: str) -> str:
    """Return a Jinja template that renders as `template` does, followed by the slot's value."""
    if template.endswith(SLOT):
        return template
    # Jinja drops one newline at the end of a template; with the slot after it that newline would show.
    body = re.sub(r"(\r\n|\r|\n)\Z", "", template)
    if re.search(r"\{#[-+]?\Z", body):  # a comment opened at the very end: Jinja takes it as closed
        body += "#}"
    elif body.endswith("{"):  # plain text at the very end, but not before the slot's own braces
        body = body[:-1] + "{{ '{' }}"
    return body + SLOT


def filled(blocks: Sequence[str]) -> dict[str, str]:
    """Return the variables that put these blocks, verbatim and each after a blank line, into the slot."""
    return {VARIABLE: "".join(f"\n\n{block}" for block in blocks if block)}
