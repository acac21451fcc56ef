"""Which notes are injected for an issue: the paper's ranking, the fused one, BM25, and embedding models on disk.

75 issues over 42 notes of three libraries, labelled by hand (`benchmarks/relevance/README.md`). MRR and recall@5
count issues with a relevant note; precision and bytes count all that is injected, for issues that no note fits, too.

    python benchmarks/relevance.py [--model NAME-OR-PATH ...]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from valve_plugin.config import FUSED, STEMMED, Settings
from valve_plugin.records import Bank, Item
from valve_plugin.retrieval import embedding
from valve_plugin.retrieval.ranking import FusedIndex, PaperIndex

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LABELS = Path(__file__).parent / "relevance"
EXAMPLES = Path(__file__).parents[1] / "examples"
HELD_OUT = "pygments"
"""The library that the ranking's thresholds were chosen without."""


class Case(NamedTuple):
    """One issue, the bank of its library, and the names of the notes that fit it."""

    bank: Bank
    task_id: str
    issue: str
    relevant: frozenset[str]


class Figures(NamedTuple):
    """Means over issues."""

    mrr: float
    recall: float
    precision: float
    items: float
    size: float


Select = Callable[[Case], Sequence[Item]]
"""What a ranking injects, best first."""


def cases() -> list[Case]:
    """Return all issues with their labels."""
    items = tomllib.loads((LABELS / "items.toml").read_text("utf-8"))
    issues = tomllib.loads((LABELS / "issues.toml").read_text("utf-8"))
    found = []
    for library, rows in issues.items():
        bank = make_bank(library, items[library])
        lines = (EXAMPLES / library / "tasks.jsonl").read_text("utf-8").splitlines()
        tasks = {task["instance_id"].split("__")[-1]: task for task in map(json.loads, lines)}
        for row in rows:
            text, name = row.get("text", "").strip(), "issue"
            if "task" in row:
                text, name = tasks[row["task"]]["problem_statement"], tasks[row["task"]]["instance_id"]
            found.append(Case(bank, name, text, frozenset(row["relevant"])))
    return found


def make_bank(library: str, rows: dict[str, dict[str, str]]) -> Bank:
    """Return the notes of one library as a bank."""
    kinds: dict[str, list[Item]] = {"principle": [], "skill": []}
    for step, (name, row) in enumerate(rows.items()):
        kind = "skill" if row["kind"] == "skill" else "principle"
        kinds[kind].append(
            Item(
                kind=kind, name=name, text=row["text"], markdown=row["body"], scope_hint=row.get("scope", ""),
                created_step=step, passes=2, attempts=3,
            )
        )  # fmt: skip
    return Bank(repo=f"labels/{library}", principles=tuple(kinds["principle"]), skills=tuple(kinds["skill"]))


def paper(case: Case) -> Sequence[Item]:
    """Select by eq:impl-retrieval, ten of each kind."""
    index = PaperIndex(case.bank, embedding.choose("hashing"))
    ranked = index.explain(Settings(), case.task_id, case.issue)
    return [r.item for r in sorted(ranked, key=lambda r: -r.score.total)]


def fused(model: str = "hashing", ranking: Literal["stemmed", "fused"] = STEMMED) -> Select:
    """Select by the fused ranking, in either form."""

    def select(case: Case) -> Sequence[Item]:
        index = FusedIndex(case.bank, embedding.choose(model), ranking)
        chosen = index.select(Settings(), case.task_id, case.issue)
        return [item for item in index.ranked(case.issue) if item in chosen]

    return select


def bm25(case: Case) -> Sequence[Item]:
    """Select the ten best of each kind by bm25s over the whole text."""
    import bm25s

    found: list[tuple[float, Item]] = []
    for kind in (case.bank.principles, case.bank.skills):
        index = bm25s.BM25(backend="numpy")
        texts = [f"{i.name} {i.text} {i.scope_hint} {i.markdown}" for i in kind]
        index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
        query = bm25s.tokenize(case.issue, return_ids=False, show_progress=False)
        positions, scores = index.retrieve(query, k=min(10, len(kind)), show_progress=False)
        found += [(float(s), kind[int(p)]) for p, s in zip(positions[0], scores[0], strict=True)]
    return [item for _, item in sorted(found, key=lambda entry: -entry[0])]


def measure(chosen: Sequence[Case], select: Select) -> Figures:
    """Return the figures of one ranking."""
    ranks, recalls, injected, hits, size = [], [], 0, 0, 0
    for case in chosen:
        items = select(case)
        names = [item.name for item in items]
        injected, size = injected + len(names), size + sum(len(i.markdown.encode()) for i in items)
        hits += len(case.relevant.intersection(names))
        if case.relevant:
            ranks.append(next((1 / (i + 1) for i, name in enumerate(names) if name in case.relevant), 0.0))
            recalls.append(len(case.relevant.intersection(names[:5])) / len(case.relevant))
    n = len(chosen)
    mrr, recall = sum(ranks) / len(ranks), sum(recalls) / len(recalls)
    return Figures(mrr, recall, hits / max(1, injected), injected / n, size / n)


def main(models: Iterable[str]) -> None:
    """Print the table; the last line is the default ranking over all issues."""
    everything = cases()
    held_out = [case for case in everything if case.bank.repo.endswith(HELD_OUT)]
    rankings = {"paper": paper, "BM25": bm25, "stemmed": fused(), "fused": fused(ranking=FUSED)}
    rankings |= {f"stemmed, {Path(name).name}": fused(name) for name in models}
    print(f"{len(everything)} issues; held out: the {len(held_out)} of {HELD_OUT}\n")
    print(f"{'ranking':28} {'issues':9} {'MRR':>5} {'recall@5':>9} {'precision':>10} {'items':>6} {'bytes':>6}")
    for name, select in rankings.items():
        for label, part in (("all", everything), ("held out", held_out)):
            f = measure(part, select)
            print(f"{name:28} {label:9} {f.mrr:5.2f} {f.recall:9.2f} {f.precision:10.2f} {f.items:6.1f} {f.size:6.0f}")
    f = measure(everything, fused())
    print(f"\nstemmed: MRR {f.mrr:.2f}, recall@5 {f.recall:.2f}, {f.precision:.0%} of what is injected is relevant")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], help="an embedding model on disk")
    main(parser.parse_args().model)
