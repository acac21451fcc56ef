"""Which vectors the cosine compares: the hashing representation, or a model that is already on disk.

Nothing is ever downloaded. A name is looked up in the cache of the Hugging Face tools and nowhere else: the directory a
command is typed in is somebody's repository, and a folder of that name there is not the model. Models are loaded by
path, so no network is asked, and no code beside the weights is run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import threading
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from valve_plugin.codec import decode, digest_bytes
from valve_plugin.config import Ranking, Settings, is_path, ranking_of
from valve_plugin.errors import ConfigError
from valve_plugin.files import read_regular
from valve_plugin.paths import data_dir
from valve_plugin.theory.similarity import Vector, hashing_vector, vector

HASHING = "hashing"
AUTO = "auto"
DEFAULT_MODEL = "Qwen/Qwen3-Embedding-0.6B"

_SCALE = 32_767  # a unit vector's components as 16-bit integers
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


def recorded_as(ranking: Ranking, name: str) -> str:
    """Return what a ranking records with vectors of this name: `stemmed`, or `stemmed:` and the model's name."""
    if ranking == "paper":
        return name
    return ranking if name == HASHING else f"{ranking}:{name}"


def mismatch(judged: str, now: str) -> str:
    """Return one line of warning when a bank judged under one ranking is used under another, else ""."""
    if judged == now:
        return ""
    return (
        f"this bank was judged with items ranked by {judged!r} and they are now ranked by {now!r}: other items may be "
        f"injected than those that were judged; set `retrieval` and `embedding` in valve.toml, or install what it names"
    )


def as_recorded(recorded: str, settings: Settings) -> Settings:
    """Return settings with the ranking that a panel recorded: what judging goes on under.

    Raises:
        ConfigError: this machine does not have its embedding; under another, outcomes do not compare.
    """
    ranking = ranking_of(recorded)
    name = recorded if ranking == "paper" else recorded.removeprefix(ranking).removeprefix(":") or HASHING
    label = name.partition("@")[0]
    # A ledger names weights, and no place on this machine.
    for possible in (settings.embedding,) if is_path(name) else (label, settings.embedding):
        if choose(possible).name == name:
            return replace(settings, retrieval=ranking, embedding=possible)
    from valve_plugin.extras import install_command

    raise ConfigError(
        f"the recorded outcomes were measured with embedding {name!r}, which is not available here; run "
        f"`{install_command('semantic')}` and install the model (in a folder: -c embedding=/its/path), or open a new "
        "epoch"
    )


@functools.cache
def _choose(setting: str) -> Embedding:
    if setting == HASHING:
        return _hashing()
    name = DEFAULT_MODEL if setting == AUTO else setting
    extra = importlib.util.find_spec("sentence_transformers") is not None
    directory = find_model(name) if extra else None
    if directory is None and setting == AUTO:
        return _hashing()
    if not extra:
        from valve_plugin.extras import install_command

        return _fall_back(name, f"needs the extra `semantic`; run: {install_command('semantic')}")
    if directory is None:
        return _fall_back(name, "is not on disk and is not downloaded")
    try:
        return Semantic(directory.resolve().name if is_path(name) else name, directory)
    except Exception as e:  # noqa: BLE001  # damaged weights or a damaged torch raise whatever they like
        said = str(e).partition("\n")[0]
        return _fall_back(name, f"does not load from {directory} ({type(e).__name__}: {said})")


def _fall_back(name: str, reason: str) -> Embedding:
    import logging

    logging.getLogger(__name__).warning("embedding %r %s; ranking with the hashing vector instead", name, reason)
    return _hashing()


class Hashing:
    """The deterministic fallback: no model, no dependency."""

    name = HASHING

    def query(self, text: str) -> Vector:
        """Encode task id and issue."""
        return hashing_vector(text)

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item."""
        return hashing_vector(text)


_hashing = functools.cache(Hashing)  # one object, however it was named


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
        return vector(range(self._size), self._encode(text, prompt_name=self._prompt))

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item, once per machine."""
        path = self._cache / digest_bytes(text.encode("utf-8", "surrogatepass"))
        known = array("h")
        with suppress(OSError, ValueError):
            known.frombytes(path.read_bytes())
        if len(known) != self._size:  # not there, or cut short by a power failure
            known = self._encode(text)
            with suppress(OSError):  # a read-only or full disk only costs time
                path.parent.mkdir(parents=True, exist_ok=True)
                new = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
                new.write_bytes(known.tobytes())
                new.replace(path)
        return vector(range(self._size), known)

    def _encode(self, text: str, **options: Any) -> array[int]:
        text = text.encode("utf-8", "replace").decode("utf-8")  # tokenizers refuse lone surrogates
        values = self._model.encode(text, normalize_embeddings=True, show_progress_bar=False, **options)
        return array("h", [round(float(v) * _SCALE) for v in values])


def _load(directory: Path) -> Any:
    """Load a model by path, from disk alone, without a progress bar, and without running what lies beside it.

    Raises:
        ConfigError: it asks for code that is not sentence-transformers' own, which would load it from the folder.
        RecordError: its list of modules cannot be read.
        OSError: the same.
    """
    modules = directory / "modules.json"
    if modules.exists():
        for module in decode(read_regular(modules, 1_000_000), list[dict[str, Any]], where=str(modules)):
            if not str(module.get("type")).startswith("sentence_transformers."):
                raise ConfigError(
                    f"{modules}: it names {module.get('type')!r:.200}, code that is not sentence-transformers' own and "
                    "is never run; take a model without custom code"
                )
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as display

    display.disable_progress_bar()
    return SentenceTransformer(str(directory), local_files_only=True, trust_remote_code=False)


def find_model(name: str) -> Path | None:
    """Return the directory of a model on disk, else None.

    Args:
        name: a path (`config.is_path`), or a name on the Hugging Face hub.
    """
    if is_path(name):
        given = Path(name).expanduser()
        return given if (given / "config.json").is_file() else None
    from huggingface_hub import snapshot_download

    with suppress(OSError, ValueError):  # it is not there, or it can be no model's name
        place = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        called = name if "/" in name else f"sentence-transformers/{name}"
        return Path(snapshot_download(called, cache_dir=place, local_files_only=True))
    return None


def fingerprint(directory: Path) -> str:
    """Return 12 hex digits that tell a model's weights: names, sizes and first mebibytes of their files."""
    seen = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin")):
        start = read_regular(path, 1 << 20, start_only=True)
        seen.update(f"{path.name} {path.stat().st_size}\n".encode() + start)
    return seen.hexdigest()[:12]
