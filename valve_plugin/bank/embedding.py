"""Which vectors the cosine compares: the hashing representation, or a model that is already on disk.

Nothing is ever downloaded. Models are looked up where Hugging Face tools keep them and loaded by path, so no
network is asked and no environment variable, which the agent's own commands would inherit, need be set.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import sys
import threading
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from valve_plugin.bank.models import caches, find, fingerprint, require_plain
from valve_plugin.bank.paths import data_dir
from valve_plugin.codec import digest_bytes
from valve_plugin.config import is_path
from valve_plugin.errors import ConfigError
from valve_plugin.extras import install
from valve_plugin.theory.similarity import Vector, hashing_vector, vector

HASHING = "hashing"
AUTO = "auto"
DEFAULT_MODEL = "Qwen/Qwen3-Embedding-0.6B"

_SCALE = 32_767  # a unit vector's components as 16-bit integers
_LOG = logging.getLogger(__name__)
_LOADING = threading.Lock()


class Embedding(Protocol):
    """Turns texts into vectors; `name` is what contexts and panels record."""

    name: str

    def query(self, text: str) -> Vector:
        """Encode task id and issue."""

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item."""


def choose(setting: str) -> Embedding:
    """Return the embedding that `settings.embedding` names, loaded; the same object for the same setting.

    "auto" is the default model when the `semantic` extra and the model are on disk, else hashing. A model
    named explicitly that is missing or does not load is replaced by hashing, with one line of warning.
    """
    with _LOADING:
        return _choose(setting)


def mismatch(judged: str, now: str) -> str:
    """Return one line of warning when a bank judged under one embedding is used under another, else ""."""
    if judged == now:
        return ""
    return (
        f"this bank was judged with embedding {judged!r} and is now ranked with {now!r}: other items may be "
        f"injected than those that were judged; set `embedding` in valve.toml or install what it names"
    )


def pinned(recorded: str, setting: str) -> str:
    """Return a setting that gives the recorded embedding on this machine: what judging on goes on under.

    Raises:
        ConfigError: neither `setting` nor the recorded name gives it; under another, outcomes do not compare.
    """
    if recorded == HASHING:
        return HASHING
    names = [setting] if is_path(recorded) else [setting, recorded]  # a ledger names weights, and no place
    for possible in names:
        if choose(possible).name == recorded:
            return possible
    raise ConfigError(
        f"outcomes so far were measured with embedding {recorded!r}, which is not available here: install what it "
        f"takes ({install('semantic')}) and the model (in a folder: -c embedding=/its/path), or open a new epoch"
    )


@functools.cache
def _choose(setting: str) -> Embedding:
    if setting == HASHING:
        return _hashing()
    name = DEFAULT_MODEL if setting == AUTO else setting
    directory = find(name)
    if setting == AUTO and (directory is None or not _extra()):
        return _hashing()
    if directory is None:
        return _instead(name, f"is not on disk (looked in {', '.join(map(str, caches()))}) and is not downloaded")
    if not _extra():
        return _instead(name, f"needs the extra `semantic`; run: {install('semantic')}")
    try:
        return _semantic(_label(name, directory), directory)
    except Exception as e:  # noqa: BLE001  # damaged weights or a damaged torch raise whatever they like
        said = str(e).partition("\n")[0]
        return _instead(name, f"does not load from {directory} ({type(e).__name__}: {said})")


def _instead(name: str, reason: str) -> Embedding:
    _LOG.warning("embedding %r %s; ranking with the hashing vector instead", name, reason)
    return _hashing()


def _extra() -> bool:
    return importlib.util.find_spec("sentence_transformers") is not None


class Hashing:
    """The deterministic fallback: no model, no dependency."""

    name = HASHING

    def query(self, text: str) -> Vector:
        """Encode task id and issue."""
        return hashing_vector(text)

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item."""
        return hashing_vector(text)


class Semantic:
    """A sentence-transformers model, its vectors rounded to integers so that cosines are exact.

    Texts are encoded one at a time: in a batch, padding changes the last digits, and a ranking would depend
    on what was encoded together. Vectors of bodies are kept in user data, by model and body.
    """

    def __init__(self, label: str, directory: Path) -> None:
        self.name = f"{label}@{fingerprint(directory)}"
        self._model = _load(directory)
        self._prompt = "query" if "query" in self._model.prompts else None
        self._size = len(self._encode("size"))
        self._cache = data_dir() / "vectors" / hashlib.sha256(self.name.encode()).hexdigest()[:16]

    def query(self, text: str) -> Vector:
        """Encode task id and issue, with the model's query prompt where it has one."""
        return _dense(self._encode(text, prompt_name=self._prompt))

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item, once per machine."""
        path = self._cache / digest_bytes(text.encode("utf-8", "surrogatepass"))
        known = _recall(path)
        if known is None or len(known) != self._size:  # not there, or cut short by a power failure
            known = self._encode(text)
            _remember(path, known)
        return _dense(known)

    def _encode(self, text: str, **options: Any) -> array[int]:
        text = text.encode("utf-8", "replace").decode("utf-8")  # tokenizers refuse lone surrogates
        values = self._model.encode(text, normalize_embeddings=True, show_progress_bar=False, **options)
        return array("h", [round(float(v) * _SCALE) for v in values])


_hashing = functools.cache(Hashing)  # one object each, however it was named
_semantic = functools.cache(Semantic)


def _load(directory: Path) -> Any:
    """Load a model by path, from disk alone, without a progress bar, and without running what lies beside it.

    Raises:
        ConfigError: it asks for code that is not sentence-transformers' own.
    """
    require_plain(directory)
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as display

    shown = display.is_progress_bar_enabled()
    display.disable_progress_bar()
    try:
        return SentenceTransformer(str(directory), local_files_only=True, trust_remote_code=False)
    finally:
        if shown:
            display.enable_progress_bar()


def _label(name: str, directory: Path) -> str:
    """Return what a person calls a model, without this machine's path to it."""
    return directory.resolve().name if is_path(name) else name.partition("@")[0]


def _dense(values: array[int]) -> Vector:
    return vector(range(len(values)), values)


def _recall(path: Path) -> array[int] | None:
    """Return cached values, or None when there are none."""
    values = array("h")
    try:
        values.frombytes(path.read_bytes())
    except (OSError, ValueError):
        return None
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _remember(path: Path, values: array[int]) -> None:
    """Cache values for other processes; without a sync, since a lost file is only encoded again."""
    stored = array("h", values)
    if sys.byteorder == "big":
        stored.byteswap()
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with suppress(OSError):  # a cache: a read-only or full disk only costs time
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(stored.tobytes())
        os.replace(new, path)
