"""Which vectors the cosine compares: the hashing representation, or a model that is already on disk.

Nothing is ever downloaded. A name is looked up in the caches of Hugging Face tools and nowhere else: the directory a
command is typed in is somebody's repository, and a folder of that name there is not the model. Models are loaded by
path, so no network is asked, no environment variable need be set, and no code beside the weights is run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from valve_plugin.codec import digest_bytes
from valve_plugin.config import FUSED, Settings, is_path, ranking_of
from valve_plugin.errors import ConfigError
from valve_plugin.files import read_regular
from valve_plugin.paths import data_dir
from valve_plugin.theory.similarity import Vector, hashing_vector, vector

HASHING = "hashing"
AUTO = "auto"
DEFAULT_MODEL = "Qwen/Qwen3-Embedding-0.6B"

_SCALE = 32_767  # a unit vector's components as 16-bit integers
_LOADING = threading.Lock()
_MAX_BYTES = 10_000_000
_CLASSES = ("type", "types", "activation_function", "tokenizer_class")
"""Keys under which sentence-transformers finds a class to import. (`auto_map` is transformers', which asks first.)"""
_SAFE_MODULES = ("sentence_transformers.", "torch.nn.")


class Embedding(Protocol):
    """Turns texts into vectors; `name` is what contexts and panels record."""

    name: str

    def __hash__(self) -> int:
        """There is one object for each model."""

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


def fused_name(name: str) -> str:
    """Return what the fused ranking records with vectors of this name: `fused`, or `fused:` and the model's name."""
    return FUSED if name == HASHING else f"{FUSED}:{name}"


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
    name = recorded.removeprefix(FUSED).removeprefix(":") or HASHING if ranking == FUSED else recorded
    return replace(settings, retrieval=ranking, embedding=_setting_for(name, settings.embedding))


def _setting_for(recorded: str, setting: str) -> str:
    """Return a setting that gives the recorded embedding on this machine.

    Raises:
        ConfigError: neither `setting` nor the recorded name gives it.
    """
    if recorded == HASHING:
        return HASHING
    names = [setting] if is_path(recorded) else [setting, recorded]  # a ledger names weights, and no place
    for possible in names:
        if choose(possible).name == recorded:
            return possible
    from valve_plugin.extras import install_command

    raise ConfigError(
        f"the recorded outcomes were measured with embedding {recorded!r}, which is not available here; run "
        f"`{install_command('semantic')}` and install the model (in a folder: -c embedding=/its/path), or open a new "
        "epoch"
    )


@functools.cache
def _choose(setting: str) -> Embedding:
    if setting == HASHING:
        return _hashing()
    name = DEFAULT_MODEL if setting == AUTO else setting
    directory = find_model(name)
    if setting == AUTO and (directory is None or not _has_extra()):
        return _hashing()
    if directory is None:
        return _fall_back(
            name, f"is not on disk (looked in {', '.join(map(str, model_caches()))}) and is not downloaded"
        )
    if not _has_extra():
        from valve_plugin.extras import install_command

        return _fall_back(name, f"needs the extra `semantic`; run: {install_command('semantic')}")
    try:
        return _semantic(_label(name, directory), directory)
    except Exception as e:  # noqa: BLE001  # damaged weights or a damaged torch raise whatever they like
        said = str(e).partition("\n")[0]
        return _fall_back(name, f"does not load from {directory} ({type(e).__name__}: {said})")


def _fall_back(name: str, reason: str) -> Embedding:
    import logging

    logging.getLogger(__name__).warning("embedding %r %s; ranking with the hashing vector instead", name, reason)
    return _hashing()


def _has_extra() -> bool:
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
        return _dense_vector(self._encode(text, prompt_name=self._prompt))

    def body(self, text: str) -> Vector:
        """Encode the rich body of an item, once per machine."""
        path = self._cache / digest_bytes(text.encode("utf-8", "surrogatepass"))
        known = _read_cache(path)
        if known is None or len(known) != self._size:  # not there, or cut short by a power failure
            known = self._encode(text)
            _write_cache(path, known)
        return _dense_vector(known)

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
    require_no_code(directory)
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


def _dense_vector(values: array[int]) -> Vector:
    return vector(range(len(values)), values)


def _read_cache(path: Path) -> array[int] | None:
    """Return cached values, or None when there are none."""
    values = array("h")
    try:
        values.frombytes(path.read_bytes())
    except (OSError, ValueError):
        return None
    return values


def _write_cache(path: Path, values: array[int]) -> None:
    """Cache values for other processes; without a sync, since a lost file is only encoded again."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with suppress(OSError):  # a cache: a read-only or full disk only costs time
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(values.tobytes())
        os.replace(new, path)


def hub_name(name: str) -> str:
    """Return what a name is called on the Hugging Face hub, as owner/name; empty: it can be no model's."""
    part = r"(?![-.])(?!.*(?:--|\.\.))[A-Za-z0-9_.-]+(?<![-.])"
    label = name if "/" in name else f"sentence-transformers/{name}"
    return label if len(label) <= 96 and re.fullmatch(f"{part}/{part}", label) else ""


def find_model(name: str) -> Path | None:
    """Return the directory of a model on disk, else None.

    Args:
        name: a path (`config.is_path`), or a name on the Hugging Face hub; `name@fingerprint`, as recorded, asks
            for those weights.
    """
    if is_path(name):
        given = Path(name).expanduser()
        return given if (given / "config.json").is_file() else None
    label, _, wanted = name.partition("@")
    folder = f"models--{hub_name(label).replace('/', '--')}"
    for cache in model_caches() if hub_name(label) else ():
        for snapshot in _snapshots(cache / folder):
            whole = (snapshot / "config.json").is_file() and _weights(snapshot)
            if whole and wanted in ("", fingerprint(snapshot)):
                return snapshot
    return None


def fingerprint(directory: Path) -> str:
    """Return 12 hex digits that tell a model's weights: names, sizes and first mebibytes of their files."""
    seen = hashlib.sha256()
    for path in _weights(directory):
        start = read_regular(path, 1 << 20, start_only=True)
        seen.update(f"{path.name} {path.stat().st_size}\n".encode() + start)
    return seen.hexdigest()[:12]


def model_caches() -> list[Path]:
    """Return where Hugging Face tools keep models, as their documentation says, first match first."""
    env = os.environ.get
    home = env("HF_HOME") or os.path.join(env("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub = env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return [Path(p).expanduser() for p in (env("SENTENCE_TRANSFORMERS_HOME"), hub) if p]


def require_no_code(directory: Path) -> None:
    """Refuse a model that would run code beside its weights, whichever sentence-transformers is installed.

    Raises:
        ConfigError: a class that is not sentence-transformers' or torch's own, or a configuration that cannot be read.
    """
    for path in sorted({*directory.glob("*.json"), *directory.glob("*/*.json")}):
        if "config" not in path.name and path.name != "modules.json":
            continue  # a vocabulary
        for named in _classes(_json(path)):
            if "." in named and not named.startswith(_SAFE_MODULES):
                raise ConfigError(
                    f"{path}: it names {named!r:.200}, code that is not sentence-transformers' own and is never run; "
                    "take a model without custom code"
                )


def _json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path, _MAX_BYTES))
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
        yield folder / "snapshots" / read_regular(folder / "refs" / "main", 1000).decode().strip()
    yield from sorted(folder.glob("snapshots/*"))


def _weights(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
