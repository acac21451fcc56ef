"""Train the weights of `valve_plugin.extract.weigh` from the corpus: `python -m tests.corpus.train [--write]`.

Needs numpy and scikit-learn, which the package itself does not. What decides comes from texts the model has not seen.
Each style that resembles an extraction (`STRANGERS`) is left out in turn: they say how the parts of a score are mixed,
and count more than the others in the training. Files that once measured the screen (`CUT`), of authors who never join
the training, say where a score is cut. The development files are left out likewise, to be reported. All else is for
training alone. Without `--write` it prints the figures. The held-out files are not read. Equal corpora give equal
bytes: the solver's order is fixed, and it goes on until rounding hides the rest.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from valve_plugin.extract import weigh
from valve_plugin.extract.rules import violations

CORPUS = Path(__file__).parent
WEIGHTS = Path(weigh.__file__).with_name("weights.bin")
STRANGERS = (
    "ash",
    "birch",
    "nettle",
    "thistle",
    "sorrel",
    "aspen",
    "bracken",
    "clover",
    "dogwood",
    "elder",
    "frost",
    "grove",
    "harbor",
    "iris",
    "kestrel",
    "larch",
    "marlin",
    "otter",
)
"""Styles that resemble what an extraction yields."""

UNSEEN = (*STRANGERS, "dev")
"""Styles that are left out in turn."""

CUT = ("fresh", "strangers", "visitors", "inventive")
"""Authors whose ordinary items say where a score is cut; in none of the training."""

FAVOUR = (3.0, 3.0, 1.5, 1.5)
"""How much more a text of `STRANGERS` counts, by table."""

WRONGLY = 0.015
"""Share of the ordinary items of `CUT` that rules and weight together may set aside: of 200 by somebody else at most
four should be, and 1.5 % of so few items are four or less four times in five."""

STRENGTHS = (0.2, 0.3, 0.2, 0.3)
"""Inverse regularization of each table; three times as much or as little makes little difference."""

_SINGLE = re.compile(r"(?:(\w): )?([-+]) (.+)")


class Example(NamedTuple):
    """One item of the corpus, or a single line."""

    style: str
    family: str
    attack: bool
    item: weigh.Features
    lines: tuple[weigh.Features, ...]
    bad: tuple[bool | None, ...]
    """Whether each line is; None where nobody says."""
    rules: bool
    """Whether a rule fires."""
    hidden: bool
    """Whether one fires that a light weight does not overrule."""


class Corpus(NamedTuple):
    """Examples as matrices, a row an example or one of its lines."""

    attack: Any
    strange: Any
    """Whether its style is one of `STRANGERS`."""
    rules: Any
    item: tuple[Any, ...]
    line: tuple[Any, ...]
    owner: Any
    """Which example a line is of."""
    bad: Any
    """1 or 0; -1 where nobody says."""


def load(path: Path) -> list[Example]:
    """Read a corpus file; the style is the file's name."""
    read = single if path.suffix == ".txt" else items
    return read(path.read_text("utf-8"), path.stem.partition("_")[2], path.stem.startswith("attacks"))


def items(content: str, style: str, attack: bool) -> list[Example]:
    """Read items, one JSON object a line."""
    return [example(json.loads(row), style, attack) for row in content.splitlines()]


def single(content: str, style: str, _: bool) -> list[Example]:
    """Read single lines: `- ` an attack's, `+ ` an ordinary item's, after `A: ` under Anti-pattern; `# ` a family."""
    found, family = [], ""
    for row in content.splitlines():
        if row.startswith("# "):
            family = row[2:]
        elif told := _SINGLE.fullmatch(row):
            line = weigh.features(weigh.Line(told[3], told[1] == "A"))
            found.append(Example(style, family, told[2] == "-", line, (line,), (told[2] == "-",), False, False))
        else:
            raise ValueError(f"{style}: {row!r}, expected '# family', '- attack' or '+ ordinary'")
    return found


def example(row: dict[str, Any], style: str, attack: bool) -> Example:
    """Compute the features of one item."""
    item = row["item"]
    text = "\n".join((item["name"], item["text"], item.get("scope_hint", ""), item["markdown"]))
    told = list(weigh.lines(text))
    top = {line.text for line in weigh.lines(f"{item['name']}\n{item['text']}")}
    bad = {line.text for entry in row.get("bad", ()) for line in weigh.lines(entry)}

    def judged(line: weigh.Line) -> bool | None:
        if line.text in bad or not attack:
            return attack
        return None if line.decried or line.text in top else False

    found = tuple(weigh.features(line) for line in told)
    judgements = tuple(judged(line) for line in told)
    fires = bool(violations(text)), bool(violations(text, sure=weigh.enough(told)))
    return Example(style, row["family"], attack, weigh.together(found), found, judgements, *fires)


def matrix(rows: Sequence[Collection[int]]) -> Any:
    """Return a sparse matrix, each row divided by the root of its number of features."""
    counts = [len(r) for r in rows]
    data = np.repeat([1 / np.sqrt(n or 1) for n in counts], counts)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    columns = np.concatenate([np.array(sorted(r), int) for r in rows])
    return csr_matrix((data, columns, pointers), (len(rows), weigh.BUCKETS))


def corpus(examples: Sequence[Example]) -> Corpus:
    """Return the matrices of examples."""
    told = [(n, line, bad) for n, e in enumerate(examples) for line, bad in zip(e.lines, e.bad, strict=True)]
    return Corpus(
        np.array([e.attack for e in examples]),
        np.array([e.style in STRANGERS for e in examples]),
        np.array([e.rules for e in examples], float),
        tuple(matrix([e.item[n] for e in examples]) for n in (0, 1)),
        tuple(matrix([line[n] for _, line, _ in told]) for n in (0, 1)),
        np.array([n for n, _, _ in told]),
        np.array([-1 if bad is None else bad for *_, bad in told]),
    )


def fit(x: Any, bad: Any, count: Any, strength: float, tolerance: float) -> Any:
    """Return a table of weights as floats, without bias; a feature seen once weighs nothing."""
    seen = np.asarray((x > 0).sum(axis=0)).ravel()
    rarity = np.where(seen > 1, np.log(x.shape[0] / np.maximum(seen, 1)) + 1, 0)
    solver = LogisticRegression(
        C=strength, solver="liblinear", dual=True, tol=tolerance, max_iter=10_000, random_state=0
    )
    return solver.fit(x.multiply(rarity).tocsr(), bad, sample_weight=count).coef_[0] * rarity


def tables(known: Corpus, chosen: Any, tolerance: float) -> list[Any]:
    """Return the tables of `weigh.TABLES`, made from the chosen examples."""
    judged = chosen[known.owner] & (known.bad >= 0)
    rows = [(x[chosen], known.strange[chosen], known.attack[chosen]) for x in known.item]
    rows += [(x[judged], known.strange[known.owner][judged], known.bad[judged]) for x in known.line]
    return [
        fit(x, bad, np.where(strange, favour, 1.0), strength, tolerance)
        for (x, strange, bad), favour, strength in zip(rows, FAVOUR, STRENGTHS, strict=True)
    ]


def parts(fitted: Sequence[Any], known: Corpus, chosen: Any) -> Any:
    """Return the parts of each chosen example's score: words, pieces, the heaviest line, how many lines, rules."""
    words, pieces = (x[chosen] @ table for x, table in zip(known.item, fitted[:2], strict=True))
    there = chosen[known.owner]
    line = sum(x[there] @ table for x, table in zip(known.line, fitted[2:], strict=True))
    counts = np.bincount(known.owner, minlength=len(chosen))[chosen]
    heaviest = [line[a:b].max() for a, b in pairwise(np.cumsum([0, *counts]))]
    return np.stack([words, pieces, heaviest, np.log(counts), known.rules[chosen]], axis=1)


def unseen(examples: Sequence[Example], known: Corpus) -> Any:
    """Return the parts of each example's score under a model that has not seen its style; zeros where all have."""
    styles, found = np.array([e.style for e in examples]), np.zeros((len(examples), 5))
    for style in UNSEEN:
        left_out = np.zeros(len(known.attack), bool)
        left_out[: len(styles)] = styles == style
        found[styles == style] = parts(tables(known, ~left_out, 1e-3), known, left_out)
        print(f"  {style}: {left_out.sum()} left out", file=sys.stderr, flush=True)
    return found


def by_rules(examples: Sequence[Example], score: Any, doubt: float) -> Any:
    """Return which examples rules set aside, as `screen.concerns` does."""
    light = score < doubt
    return np.array([e.hidden if ordinary else e.rules for ordinary, e in zip(light, examples, strict=True)])


def mixture(found: Any, attack: Any) -> Any:
    """Return what each part of a score counts."""
    spread = found.std(axis=0)
    return LogisticRegression(C=1, tol=1e-8, max_iter=1000).fit(found / spread, attack).coef_[0] / spread


def limit(examples: Sequence[Example], score: Any, rules: float) -> float:
    """Return the score from which an item is set aside, so that rules and weight err as often as they may."""
    last = float("inf")
    for threshold in np.sort(score)[::-1]:
        if ((score > threshold) | by_rules(examples, score, threshold - rules)).sum() > WRONGLY * len(examples):
            break
        last = threshold
    return last


def show(name: str, examples: Sequence[Example], score: Any, withheld: Any) -> None:
    """Print how many are set aside, by weight and in all."""
    for attack in (True, False):
        here = [n for n, e in enumerate(examples) if e.attack == attack]
        if here:
            what = "caught " if attack else "wrongly"
            weight, all_of_it = (score[here] > 0).sum(), withheld[here].sum()
            print(f"  {name:18} {what} {all_of_it:3} of {len(here):3}, {weight:3} by weight")


def report(examples: Sequence[Example], score: Any, doubt: float) -> None:
    """Print what to expect: over all, by style, by family."""
    withheld = (score > 0) | by_rules(examples, score, doubt)
    families = sorted({e.family for e in examples if e.attack and e.style in STRANGERS})
    groups = [("strangers", lambda e, _: e.style in STRANGERS)]
    groups += [(style, lambda e, g: e.style == g) for style in (*UNSEEN, *CUT)]
    groups += [(family, lambda e, g: e.style in STRANGERS and e.family == g) for family in families]
    for name, member in groups:
        here = [n for n, e in enumerate(examples) if member(e, name)]
        show(name, [examples[n] for n in here], score[here], withheld[here])


def main() -> None:
    """Train, say what to expect, and write the weights if asked to."""
    development = [CORPUS / "attacks_dev.jsonl", CORPUS / "ordinary_dev.jsonl"]
    examples = [e for path in [*sorted((CORPUS / "training").glob("*.jsonl")), *development] for e in load(path)]
    examples += [e for e in examples if e.style == "lessons"]  # the simulator's; twice, as all of them have to pass
    singles = [e for path in sorted((CORPUS / "training").glob("*.txt")) for e in load(path)]
    known = corpus([*examples, *singles])
    found, attack = unseen(examples, known), known.attack[: len(examples)]
    strange = known.strange[: len(examples)]
    factor = mixture(found[strange], attack[strange])
    factor[-1] = max(factor[-1], 0.0)  # a rule that fires never speaks for an item
    total = found[:, :-1] @ factor[:-1]
    fitted = tables(known, known.attack >= 0, 1e-6)
    others = [e for who in CUT for kind in ("attacks", "ordinary") for e in load(CORPUS / f"{kind}_{who}.jsonl")]
    weights = parts(fitted, corpus(others), np.ones(len(others), bool))[:, :-1] @ factor[:-1]
    plain = [n for n, e in enumerate(others) if not e.attack]
    threshold = limit([others[n] for n in plain], weights[plain], factor[-1])
    print(f"{attack.sum()} attacks, {(~attack).sum()} ordinary, {len(singles)} lines; parts count {factor.round(2)}")
    areas = [round(float(roc_auc_score(attack[strange], part[strange])), 3) for part in (total, *found.T)]
    print(f"unseen strangers: area {areas[0]}; of words, pieces, line, length, rules alone: {areas[1:]}")
    report([*examples, *others], np.concatenate([total, weights]) - threshold, -factor[-1])
    if "--write" in sys.argv:
        counts = factor[[0, 1, 2, 2]]
        weighed = [t * count for t, count in zip(fitted, counts, strict=True)]
        write(weighed, (-threshold, -factor[-1], factor[3]))


def write(weighed: Sequence[Any], head: Sequence[float]) -> None:
    """Write the tables as one byte a weight, each with a scale of its own."""
    scales = [abs(t).max() / 127 for t in weighed]
    rows = b"".join(
        (np.rint(t / scale).astype(int) + 128).astype(np.uint8).tobytes()
        for t, scale in zip(weighed, scales, strict=True)
    )
    numbers = " ".join([f"{n:.6f}" for n in head] + [f"{scale:.8f}" for scale in scales])
    WEIGHTS.write_bytes(f"{numbers}\n".encode() + zlib.compress(rows, 9))
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
