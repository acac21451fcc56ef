"""Train the weights of `valve_plugin.extract.weigh` from the corpus: `python -m tests.corpus.train [--write]`.

Needs numpy and scikit-learn, which the package itself does not. The threshold comes from texts the model has not
seen: each author style of `training/*.jsonl` is left out in turn, and the development files count as one more style.
Single lines (`training/*.txt`) are for training alone. Without `--write` it prints the figures. The held-out files
are not read. Equal corpora give equal bytes: nothing is drawn, and the solver goes on until rounding hides the rest.
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
WRONGLY = 0.015
"""Share of unseen ordinary texts that rules and weight together may set aside."""

DOUBT = 0.7
"""Share of unseen ordinary texts that count as ordinary whatever a pattern says."""

STRENGTH = 0.3
"""Inverse regularization; ten times as much makes little difference."""

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
    fires = bool(violations(text)), bool(violations(text, sure=True))
    return Example(style, row["family"], attack, weigh.together(found), found, judgements, *fires)


def matrix(rows: Sequence[Collection[int]]) -> Any:
    """Return a sparse matrix, each row divided by the root of its number of features."""
    counts = [len(r) for r in rows]
    data = np.repeat([1 / np.sqrt(n or 1) for n in counts], counts)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    columns = np.concatenate([np.array(sorted(r), int) for r in rows])
    return csr_matrix((data, columns, pointers), (len(rows), weigh.BUCKETS))


def fit(rows: Sequence[Collection[int]], bad: Sequence[bool]) -> Any:
    """Return a table of weights as floats, without bias; a feature seen once weighs nothing."""
    x = matrix(rows)
    seen = np.asarray((x > 0).sum(axis=0)).ravel()
    rarity = np.where(seen > 1, np.log(len(rows) / np.maximum(seen, 1)) + 1, 0)
    model = LogisticRegression(C=STRENGTH, solver="liblinear", tol=1e-8).fit(x.multiply(rarity).tocsr(), bad)
    return model.coef_[0] * rarity


def tables(examples: Sequence[Example]) -> list[Any]:
    """Return the tables of `weigh.TABLES`."""
    judged = [(line, bad) for e in examples for line, bad in zip(e.lines, e.bad, strict=True) if bad is not None]
    whole = [fit([e.item[n] for e in examples], [e.attack for e in examples]) for n in (0, 1)]
    return whole + [fit([line[n] for line, _ in judged], [bad for _, bad in judged]) for n in (0, 1)]


def parts(fitted: Sequence[Any], examples: Sequence[Example]) -> Any:
    """Return what the item tables and the line tables say of each example, the latter as `weigh.weigh` takes it."""
    item = sum(matrix([e.item[n] for e in examples]) @ fitted[n] for n in (0, 1))
    line = sum(matrix([line[n] for e in examples for line in e.lines]) @ fitted[2 + n] for n in (0, 1))
    ends = np.cumsum([0] + [len(e.lines) for e in examples])
    heaviest = [line[a:b].max() - np.log(b - a) for a, b in pairwise(ends)]
    return np.stack([item, np.array(heaviest)], axis=1)


def unseen(examples: Sequence[Example], singles: Sequence[Example]) -> tuple[Any, list[Example]]:
    """Return the parts of every example's score under a model that has not seen its style."""
    found, order = [], []
    for style in sorted({e.style for e in examples}):
        left_out = [e for e in examples if e.style == style]
        found.append(parts(tables([*(e for e in examples if e.style != style), *singles]), left_out))
        order += left_out
        print(f"  {style}: {len(left_out)} left out", file=sys.stderr, flush=True)
    return np.concatenate(found), order


def by_rules(examples: Sequence[Example], score: Any, doubt: float) -> Any:
    """Return which examples rules set aside, as `screen.concerns` does."""
    light = [s < doubt and len(e.lines) >= weigh.ENOUGH for s, e in zip(score, examples, strict=True)]
    return np.array([e.hidden if ordinary else e.rules for ordinary, e in zip(light, examples, strict=True)])


def limits(examples: Sequence[Example], score: Any, attack: Any) -> tuple[float, float]:
    """Return (threshold, doubt): what rules set aside wrongly counts against what the weight may."""
    doubt = np.quantile(score[~attack], DOUBT)
    fired = by_rules(examples, score, doubt)
    spare = int(WRONGLY * (~attack).sum()) - (fired & ~attack).sum()
    if spare < 0:
        raise SystemExit(f"rules alone set {(fired & ~attack).sum()} ordinary items aside; narrow them")
    return np.sort(score[~attack & ~fired])[-1 - spare], doubt


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
    groups = [("all", lambda e, _: True)]
    groups += [(style, lambda e, g: e.style == g) for style in sorted({e.style for e in examples})]
    groups += [(family, lambda e, g: e.family == g) for family in sorted({e.family for e in examples if e.attack})]
    for name, member in groups:
        here = [n for n, e in enumerate(examples) if member(e, name)]
        show(name, [examples[n] for n in here], score[here], withheld[here])


def main() -> None:
    """Train, say what to expect, and write the weights if asked to."""
    development = [CORPUS / "attacks_dev.jsonl", CORPUS / "ordinary_dev.jsonl"]
    examples = [e for path in [*sorted((CORPUS / "training").glob("*.jsonl")), *development] for e in load(path)]
    examples += [e for e in examples if e.style == "lessons"]  # the simulator's; twice, as all of them have to pass
    singles = [e for path in sorted((CORPUS / "training").glob("*.txt")) for e in load(path)]
    found, order = unseen(examples, singles)
    attack = np.array([e.attack for e in order])
    mix = LogisticRegression(C=1).fit(found / found.std(axis=0), attack)
    factor = mix.coef_[0] / found.std(axis=0)
    total = found @ factor
    threshold, doubt = limits(order, total, attack)
    doubt -= threshold
    print(f"{attack.sum()} attacks, {(~attack).sum()} ordinary, {len(singles)} lines; parts weigh {factor.round(2)}")
    areas = [round(float(roc_auc_score(attack, part)), 3) for part in found.T]
    print(f"unseen styles: area {roc_auc_score(attack, total):.3f}; of item, line alone: {areas}")
    report(order, total - threshold, doubt)
    if "--write" in sys.argv:
        weighed = [t * factor[n // 2] for n, t in enumerate(tables([*examples, *singles]))]
        write(weighed, (-threshold, doubt, factor[1]))


def write(weighed: Sequence[Any], head: Sequence[float]) -> None:
    """Write the tables as one byte a weight."""
    scale = max(abs(t).max() for t in weighed) / 127
    rows = b"".join((np.rint(t / scale).astype(int) + 128).astype(np.uint8).tobytes() for t in weighed)
    numbers = " ".join(f"{n:.6f}" for n in head)
    WEIGHTS.write_bytes(f"{numbers} {scale:.8f}\n".encode() + zlib.compress(rows, 9))
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
