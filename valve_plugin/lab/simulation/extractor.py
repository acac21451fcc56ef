"""The SIMULATED extractor: answers a contrastive prompt with good, useless, harmful, repeated or malformed lessons."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from valve_plugin.lab.simulation import parameters as p
from valve_plugin.lab.simulation import solver
from valve_plugin.lab.simulation.parameters import Draw, Lesson, Quality, named
from valve_plugin.lab.simulation.solver import bug_class
from valve_plugin.records import Item, Task


def answer(task: Task, prompt: str, draw: Draw, proposals: Mapping[p.ProposalKind, float] = p.PROPOSALS) -> str:
    """Return the extractor's reply: JSON of the asked shape, or something malformed when the draw says so.

    Args:
        task: whose attempts are contrasted; its class of bug decides which good lessons fit.
        prompt: all messages as one text; lessons named in it count as known.
        draw: keyed by seed, task and role.
        proposals: how often which kind of answer comes.
    """
    function = solver.function_of(task.patch) or _tested(task)
    file = next((c.path for c in solver.changes(task.patch)), "the module")
    new = [x for x in p.lessons() if not named(x.item(function, file).name, prompt)]
    known = [x for x in p.lessons() if x not in new]
    kind = draw.weighted(proposals, "proposal")
    shape = AnswerFormat.asked(prompt)
    if kind == "malformed":
        chosen = _chosen(new, known, "useless", task, draw)
        return _malformed([x.item(function, file) for x in chosen], draw)
    if kind == "duplicate" and known:
        repeated = draw.pick(known, "repeat").item(function, file)
        return shape.reply([repeated if draw.chance(p.VERBATIM, "verbatim") else _reworded(repeated)])
    quality: Quality = "good" if kind == "duplicate" else kind
    return shape.reply([x.item(function, file) for x in _chosen(new, known, quality, task, draw)])


def _tested(task: Task) -> str:
    """Return what the first failing test is about, by its name, for a patch that does not show its function."""
    name = task.fail_to_pass[0].rpartition("::")[2].partition("[")[0]
    return name.removeprefix("test_") or name


def _chosen(new: list[Lesson], known: list[Lesson], quality: Quality, task: Task, draw: Draw) -> list[Lesson]:
    """Return one or two lessons of that quality, new ones about the task's bug first; perhaps a useless one as well."""
    kind = bug_class(task.instance_id)
    of_quality = [x for x in new if x.quality == quality]
    fitting = [x for x in of_quality if quality != "good" or x.about in (kind, "any")]
    # Where there is nothing new, a known lesson is repeated.
    ordered = draw.shuffled(fitting or of_quality or [x for x in known if x.quality == quality], "lesson")
    chosen = ordered[: 1 + draw.chance(p.SECOND, "second")]
    spare = [x for x in new if x.quality == "useless" and x not in chosen]
    if spare and draw.chance(p.PADDING, "padding"):
        chosen.append(draw.pick(spare, "pad"))
    return chosen


def _reworded(item: Item) -> Item:
    """Return the same lesson under another name, as models often do."""
    return msgspec.structs.replace(
        item,
        name=f"{p.REWORDED}{item.name}",
        text=f"Remember: {item.text[0].lower()}{item.text[1:]}",
        markdown=f"{item.markdown}\n\nThis has helped before.",
    )


class AnswerFormat(NamedTuple):
    """Which form of answer a prompt asks for."""

    bodies: bool = True
    """Rich bodies, not sentences alone."""
    principles: bool = True
    sections: bool = False
    """Edits of sections in place of items."""
    patch: bool = False
    """A patch of one document, as SkillOpt's optimizer writes it."""

    @classmethod
    def asked(cls, prompt: str) -> AnswerFormat:
        """Return the form that the example in the prompt has."""
        patch = '"patch"' in prompt and '"edits"' in prompt
        bodies = patch or '"markdown"' in prompt
        return cls(bodies, '"principles": [],' not in prompt, '"operation"' in prompt, patch)

    def row(self, item: Item) -> dict[str, str]:
        """Return one item as asked for."""
        found = {"name": item.name, "text": item.text}
        if self.bodies:
            found["markdown"] = item.markdown
        if item.kind == "skill":
            found["scope_hint"] = item.scope_hint
        return {"operation": "add", "target": "", **found} if self.sections else found

    def object(self, items: Sequence[Item]) -> dict[str, Any]:
        """Return a whole answer."""
        if self.patch:
            edits = [{"op": "append", "target": "", "content": f"## {x.name}\n\n{x.markdown}"} for x in items]
            return {"patch": {"reasoning": "What these attempts have in common.", "edits": edits}}
        return {
            "issue_summary": "Some attempts found the cause and some did not; the difference is in how they searched.",
            "principles": [self.row(x) for x in items if x.kind == "principle" and self.principles],
            "skills": [self.row(x) for x in items if x.kind == "skill"],
        }

    def reply(self, items: Sequence[Item]) -> str:
        """Return it as text."""
        return json.dumps(self.object(items), indent=2)


def _malformed(items: Sequence[Item], draw: Draw) -> str:
    """Return a reply with which nobody can do anything, as real models give them: cut off, two answers, other keys."""
    good = AnswerFormat().object(items)
    forms = (
        AnswerFormat().reply(items)[:-20],
        f"Here is what I learned:\n\n{AnswerFormat().reply(items)}\n\nOr rather:\n\n{AnswerFormat().reply([])}",
        json.dumps({"lessons": good["principles"] + good["skills"]}),
        json.dumps({"skills": "none this time", "confidence": 0.9}),
    )
    return draw.pick(forms, "malformed")


def merged_patches(prompt: str) -> str:
    """Return one patch with the edits of all patches that the prompt quotes."""
    edits: dict[str, Any] = {}
    for patch in _quoted_patches(prompt):
        for edit in patch.get("edits", []):
            if isinstance(edit, dict):
                edits.setdefault(str(edit.get("content")), edit)
    return json.dumps({"reasoning": "united", "edits": list(edits.values())})


def ranked_edits(prompt: str) -> str:
    """Return the edits in the order of the pool."""
    return json.dumps({"selected_indices": [int(n) for n in re.findall(r"^\[(\d+)\]", prompt, re.MULTILINE)]})


def _quoted_patches(prompt: str) -> list[dict[str, Any]]:
    """Return the first JSON list of patches in the prompt."""
    for place in re.finditer(r"\[", prompt):
        try:
            found, _ = json.JSONDecoder().raw_decode(prompt, place.start())
        except ValueError:
            continue
        if isinstance(found, list) and found and all(isinstance(x, dict) and "edits" in x for x in found):
            return found
    return []
