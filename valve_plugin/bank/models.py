"""Embedding models on disk: where they may lie, what tells their weights, and that they bring no code.

A name is looked up in the caches of Hugging Face tools and nowhere else: the directory a command is typed in is
somebody's repository, and a folder `Qwen/Qwen3-Embedding-0.6B` there is not the model of that name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from valve_plugin.config import is_path
from valve_plugin.errors import ConfigError
from valve_plugin.reading import regular

_MAX_BYTES = 10_000_000
_CLASSES = ("type", "types", "activation_function", "tokenizer_class")
"""Keys under which sentence-transformers finds a class to import. (`auto_map` is transformers', which asks first.)"""
_OWN = ("sentence_transformers.", "torch.nn.")


def on_hub(name: str) -> str:
    """Return what a name is called on the Hugging Face hub, as owner/name; empty: it can be no model's."""
    part = r"(?![-.])(?!.*(?:--|\.\.))[A-Za-z0-9_.-]+(?<![-.])"
    label = name if "/" in name else f"sentence-transformers/{name}"
    return label if len(label) <= 96 and re.fullmatch(f"{part}/{part}", label) else ""


def find(name: str) -> Path | None:
    """Return the directory of a model on disk, else None.

    Args:
        name: a path (`config.is_path`), or a name on the Hugging Face hub; `name@fingerprint`, as recorded, asks
            for those weights.
    """
    if is_path(name):
        given = Path(name).expanduser()
        return given if (given / "config.json").is_file() else None
    label, _, wanted = name.partition("@")
    folder = f"models--{on_hub(label).replace('/', '--')}"
    for cache in caches() if on_hub(label) else ():
        for snapshot in _snapshots(cache / folder):
            whole = (snapshot / "config.json").is_file() and _weights(snapshot)
            if whole and wanted in ("", fingerprint(snapshot)):
                return snapshot
    return None


def fingerprint(directory: Path) -> str:
    """Return 12 hex digits that tell a model's weights: names, sizes and first mebibytes of their files."""
    seen = hashlib.sha256()
    for path in _weights(directory):
        start = regular(path, 1 << 20, start_only=True)
        seen.update(f"{path.name} {path.stat().st_size}\n".encode() + start)
    return seen.hexdigest()[:12]


def caches() -> list[Path]:
    """Return where Hugging Face tools keep models, as their documentation says, first match first."""
    env = os.environ.get
    home = env("HF_HOME") or os.path.join(env("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub = env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return [Path(p).expanduser() for p in (env("SENTENCE_TRANSFORMERS_HOME"), hub) if p]


def require_plain(directory: Path) -> None:
    """Refuse a model that would run code beside its weights, whichever sentence-transformers is installed.

    Raises:
        ConfigError: a class that is not sentence-transformers' or torch's own, or a configuration that cannot be read.
    """
    for path in sorted({*directory.glob("*.json"), *directory.glob("*/*.json")}):
        if "config" not in path.name and path.name != "modules.json":
            continue  # a vocabulary
        for named in _classes(_json(path)):
            if "." in named and not named.startswith(_OWN):
                raise ConfigError(
                    f"{path}: it names {named!r:.200}, code that is not sentence-transformers' own and is never run; "
                    "take a model without custom code"
                )


def _json(path: Path) -> Any:
    try:
        return json.loads(regular(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}") from e


def _classes(value: Any, key: str = "") -> Iterator[str]:
    """Yield what a configuration wants imported. Pure."""
    if isinstance(value, dict):
        for name, inner in value.items():  # a router's `types` are classes by the name of their folder
            yield from _classes(inner, key if key == "types" else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _classes(inner, key)
    elif key in _CLASSES:
        yield str(value)


def _snapshots(folder: Path) -> Iterator[Path]:
    """Yield a cached model's revisions: the one its main branch names first."""
    with suppress(OSError, UnicodeDecodeError):
        yield folder / "snapshots" / regular(folder / "refs" / "main", 1000).decode().strip()
    yield from sorted(folder.glob("snapshots/*"))


def _weights(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
