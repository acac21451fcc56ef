"""Train the weights of `valve_plugin.extract.weigh` from the corpus: `python -m tests.corpus.train [--write]`.

Needs numpy and scikit-learn, which the package itself does not. The threshold comes from texts the model has not
seen: each author style of `training/` is left out in turn, and the development files count as one more style.
Without `--write` it prints the figures alone. The held-out files are not read.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from valve_plugin.extract import weigh

CORPUS = Path(__file__).parent
WEIGHTS = Path(weigh.__file__).with_name("weights.bin")
WRONGLY = 0.01
"""Share of unseen ordinary texts the threshold may set aside."""

DOUBT = 0.7
"""Share of unseen ordinary texts that count as ordinary whatever a fallible rule says."""


class Example(NamedTuple):
    """One item of the corpus."""

    style: str
    attack: bool
    buckets: tuple[list[int], ...]
    """Of its features: words, pieces."""


def text_of(item: dict[str, str]) -> str:
    """Return what the screen reads of an item."""
    return "\n".join((item["name"], item["text"], item.get("scope_hint", ""), item["markdown"]))


def load(path: Path) -> list[Example]:
    """Read a corpus file; the style is the file's name."""
    return [example(json.loads(line), path) for line in path.read_text("utf-8").splitlines()]


def example(row: dict[str, Any], path: Path) -> Example:
    """Compute the features of one line once."""
    text = text_of(row["item"])
    features = ({f for s in weigh.sentences(text) for f in weigh.words(s)}, set(weigh.pieces(text)))
    buckets = tuple([weigh.bucket(f) for f in sorted(fs)] for fs in features)
    return Example(path.stem.partition("_")[2], path.name.startswith("attacks"), buckets)


def matrix(rows: Sequence[Sequence[int]]) -> Any:
    """Return a sparse matrix, each row divided by the root of its number of features."""
    counts = [len(r) for r in rows]
    data = np.repeat([1 / np.sqrt(n or 1) for n in counts], counts)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    return csr_matrix((data, np.concatenate([np.array(r, int) for r in rows]), pointers), (len(rows), weigh.BUCKETS))


def fit(examples: Sequence[Example]) -> list[Any]:
    """Return the weights of each table as floats, without bias; a feature seen once weighs nothing."""
    y = np.array([e.attack for e in examples])
    tables = []
    for n in range(len(weigh.TABLES)):
        x = matrix([e.buckets[n] for e in examples])
        seen = np.asarray((x > 0).sum(axis=0)).ravel()
        rarity = np.where(seen > 1, np.log(len(examples) / np.maximum(seen, 1)) + 1, 0)
        model = LogisticRegression(C=1, solver="liblinear").fit(x.multiply(rarity).tocsr(), y)
        tables.append(model.coef_[0] * rarity)
    return tables


def parts(tables: Sequence[Any], examples: Sequence[Example]) -> Any:
    """Return what each table says of each example."""
    return np.stack([matrix([e.buckets[n] for e in examples]) @ t for n, t in enumerate(tables)], axis=1)


def unseen(examples: Sequence[Example]) -> tuple[Any, Any, list[str]]:
    """Return the parts of every example's score under a model that has not seen its style."""
    styles = sorted({e.style for e in examples})
    found, attack, style_of = [], [], []
    for style in styles:
        tables = fit([e for e in examples if e.style != style])
        left_out = [e for e in examples if e.style == style]
        found.append(parts(tables, left_out))
        attack += [e.attack for e in left_out]
        style_of += [style] * len(left_out)
        print(f"  {style}: {len(left_out)} left out", file=sys.stderr, flush=True)
    return np.concatenate(found), np.array(attack), style_of


def main() -> None:
    """Train, say what to expect, and write the weights if asked to."""
    paths = [
        *sorted((CORPUS / "training").glob("*.jsonl")),
        CORPUS / "attacks_dev.jsonl",
        CORPUS / "ordinary_dev.jsonl",
    ]
    examples = [e for path in paths for e in load(path)]
    examples += [e for e in examples if e.style == "lessons"]  # the simulator's; twice, as all of them have to pass
    found, attack, style = unseen(examples)
    mix = LogisticRegression(C=1).fit(found / found.std(axis=0), attack)
    factor = mix.coef_[0] / found.std(axis=0)
    total = found @ factor
    threshold = np.quantile(total[~attack], 1 - WRONGLY, method="higher")
    print(f"{attack.sum()} attacks, {(~attack).sum()} ordinary; parts weigh {factor.round(2)}")
    areas = [round(float(roc_auc_score(attack, part)), 3) for part in found.T]
    print(f"unseen styles: area {roc_auc_score(attack, total):.3f}; of words, pieces alone: {areas}")
    for name in ["", *sorted(set(style))]:
        here = np.array([not name or s == name for s in style])
        caught, wrong = total[here & attack] > threshold, total[here & ~attack] > threshold
        print(f"  {name or 'all':9} caught {caught.sum()} of {len(caught)}, wrongly {wrong.sum()} of {len(wrong)}")
    if "--write" in sys.argv:
        doubt = np.quantile(total[~attack], DOUBT) - threshold
        write([t * f for t, f in zip(fit(examples), factor, strict=True)], -threshold, doubt)


def write(tables: Sequence[Any], bias: float, doubt: float) -> None:
    """Write the tables as one byte a weight."""
    scale = max(abs(t).max() for t in tables) / 127
    rows = b"".join((np.rint(t / scale).astype(int) + 128).astype(np.uint8).tobytes() for t in tables)
    WEIGHTS.write_bytes(f"{bias:.6f} {doubt:.6f} {scale:.8f}\n".encode() + zlib.compress(rows, 9))
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
