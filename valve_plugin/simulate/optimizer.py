"""The SIMULATED optimizer of SkillOpt's merging steps: keeps every edit once, in the order given."""

from __future__ import annotations

import json
import re
from typing import Any


def merged(prompt: str) -> str:
    """Return one patch with the edits of all patches that the prompt quotes."""
    edits: dict[str, Any] = {}
    for patch in _quoted(prompt):
        for edit in patch.get("edits", []):
            if isinstance(edit, dict):
                edits.setdefault(str(edit.get("content")), edit)
    return json.dumps({"reasoning": "united", "edits": list(edits.values())})


def ranked(prompt: str) -> str:
    """Return the edits in the order of the pool."""
    return json.dumps({"selected_indices": [int(n) for n in re.findall(r"^\[(\d+)\]", prompt, re.MULTILINE)]})


def _quoted(prompt: str) -> list[dict[str, Any]]:
    """Return the first JSON list of patches in the prompt."""
    for place in re.finditer(r"\[", prompt):
        try:
            found, _ = json.JSONDecoder().raw_decode(prompt, place.start())
        except ValueError:
            continue
        if isinstance(found, list) and found and all(isinstance(x, dict) and "edits" in x for x in found):
            return found
    return []
