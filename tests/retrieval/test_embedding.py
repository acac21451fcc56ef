"""Which vectors are used, and what is said when a model is missing. The real model: test_semantic.py."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import cost
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.retrieval import embedding
from valve_plugin.retrieval import embedding as models

PLAIN = {"activation_function": "torch.nn.modules.activation.Tanh", "type": "text", "tokenizer_class": "BertTokenizer"}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty model cache, and no network: whoever asks it fails the test."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "SENTENCE_TRANSFORMERS_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    embedding._choose.cache_clear()
    yield tmp_path / "hub"
    embedding._choose.cache_clear()


def plant(folder: Path, revision: str, *, main: bool = False, weights: bytes = b"weights") -> Path:
    """Lay out a cached model as Hugging Face tools do."""
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    if weights:
        (snapshot / "model.safetensors").write_bytes(weights)
    if main:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(revision)
    return snapshot


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("valve_plugin")]


def test_auto_is_silently_hashing_where_there_is_no_model(caplog: pytest.LogCaptureFixture) -> None:
    assert embedding.choose("auto").name == "hashing"
    assert not said(caplog)


@pytest.mark.parametrize("name", ["someone/some-model", "all-MiniLM-L6-v2", "/no/such/folder", "~/no-model", "../x"])
def test_a_missing_model_is_one_line_at_once_and_never_the_network(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert [embedding.choose(name).name for _ in range(3)] == ["hashing"] * 3
    assert cost(lambda: embedding.choose(name)) < 10
    (line,) = said(caplog)
    assert name in line
    assert "is not on disk" in line
    assert "\n" not in line


def test_the_line_reaches_the_terminal_of_a_process_that_configured_no_logging(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from valve_plugin.retrieval.embedding import choose; choose('no/model')"],
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stderr.splitlines()
    assert "'no/model' is not on disk" in line


def test_a_model_without_the_extra_is_one_line_naming_it(
    hub: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    plant(hub / "models--a--b", "123")
    assert embedding.choose("a/b").name == "hashing"
    (line,) = said(caplog)
    assert "needs the extra `semantic`; run: " in line
    assert line.endswith("install 'sentence-transformers>=6'") or "'sentence-transformers>=6'" in line


def test_a_model_that_does_not_load_is_one_line(
    hub: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(directory: Path) -> None:
        raise RuntimeError("damaged\nin many lines")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(embedding, "_load", broken)
    snapshot = plant(hub / "models--Qwen--Qwen3-Embedding-0.6B", "123")
    assert embedding.choose("auto").name == "hashing"
    (line,) = said(caplog)
    assert str(snapshot) in line
    assert "damaged" in line
    assert "\n" not in line


def test_models_are_found_where_hugging_face_tools_keep_them(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub / "models--a--b"
    first = plant(folder, "111")
    assert models.find_model("a/b") == first
    main = plant(folder, "222", main=True)
    assert models.find_model("a/b") == main
    assert models.find_model(str(first)) == first
    short = plant(hub / "models--sentence-transformers--mini", "1")
    assert models.find_model("mini") == short

    elsewhere = hub.parent / "elsewhere"
    found = plant(elsewhere / "models--c--d", "1")
    assert models.find_model("c/d") is None
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(elsewhere))
    assert models.find_model("c/d") == found


@pytest.mark.parametrize("name", [embedding.DEFAULT_MODEL, "model", "a/../model", f"{embedding.DEFAULT_MODEL}@0123"])
def test_a_name_is_never_a_folder_where_a_command_is_typed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    for folder in (name, embedding.DEFAULT_MODEL, "model", "a/b"):
        (clone / folder).mkdir(parents=True, exist_ok=True)
        (clone / folder / "config.json").write_text("{}")
        (clone / folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(clone)
    assert models.find_model(name) is None
    assert models.find_model("./model") == Path("model")  # typed as a path: what a person gives with -c


def test_a_ledger_names_weights_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    choose = embedding.choose
    monkeypatch.setattr(embedding, "choose", lambda name: asked.append(name) or choose(name))
    for recorded in ("./model", "/proc/self/cwd/model", "~/model"):
        with pytest.raises(ConfigError, match="not available here"):
            embedding.as_recorded(recorded, Settings(embedding="hashing"))
    assert set(asked) == {"hashing"}


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("modules.json", [{"path": "", "type": "sentence_transformers.models.Transformer"}, {"type": "evilmod.Evil"}]),
        ("1_Router/router_config.json", {"types": {"query": "evilmod.Evil"}, "structure": {}}),
        ("2_Dense/config.json", {"activation_function": "os.abort"}),
        ("word_embedding_config.json", {"tokenizer_class": "evilmod.Evil"}),
        ("modules.json", "[" * 100_000),
        ("modules.json", "\udcff"),
    ],
)
def test_a_model_that_names_code_or_cannot_be_read_is_refused(tmp_path: Path, file: str, value: object) -> None:
    plain = {"modules.json": [{"type": "sentence_transformers.models.Transformer"}], "1_D/config.json": PLAIN}
    for name, content in plain.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    models.require_no_code(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value)
    (tmp_path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"never run|cannot be read"):
        embedding._load(tmp_path)  # before anything of the extra is imported


def test_a_model_of_devices_and_pipes_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "modules.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="cannot be read"):
        models.require_no_code(tmp_path)
    (tmp_path / "modules.json").unlink()
    os.mkfifo(tmp_path / "modules.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        models.require_no_code(tmp_path)


def test_a_download_that_was_cut_short_is_not_a_model(hub: Path) -> None:
    plant(hub / "models--a--b", "111", weights=b"")
    assert models.find_model("a/b") is None


def test_a_fingerprint_tells_weights_not_places(hub: Path) -> None:
    one, copy, other = (
        plant(hub / f"models--a--{n}", "1", weights=w) for n, w in (("b", b"x"), ("c", b"x"), ("d", b"y"))
    )
    assert models.fingerprint(one) == models.fingerprint(copy) != models.fingerprint(other)


def test_cached_vectors_survive_and_failures_to_cache_do_not_matter(tmp_path: Path) -> None:
    values = array("h", [1, -2, 32_767, -32_767])
    path = tmp_path / "model" / "body"
    assert embedding._read_cache(path) is None
    embedding._write_cache(path, values)
    assert embedding._read_cache(path) == values
    assert [p.name for p in path.parent.iterdir()] == ["body"]
    path.write_bytes(b"odd")
    assert embedding._read_cache(path) is None
    (tmp_path / "file").write_text("")
    embedding._write_cache(tmp_path / "file" / "body", values)


def test_a_recorded_name_finds_those_weights_again_whichever_revision_is_current(hub: Path) -> None:
    old = plant(hub / "models--a--b", "1", weights=b"old")
    new = plant(hub / "models--a--b", "2", main=True, weights=b"new")
    assert models.find_model("a/b") == new
    assert models.find_model(f"a/b@{models.fingerprint(old)}") == old
    assert models.find_model(f"a/b@{models.fingerprint(new)}") == new
    assert models.find_model("a/b@0123456789ab") is None


def test_a_panel_goes_on_only_under_the_embedding_it_was_measured_with() -> None:
    assert embedding.as_recorded("hashing", Settings()) == Settings(retrieval="paper", embedding="hashing")
    assert embedding.as_recorded("fused", Settings()) == Settings(retrieval="fused", embedding="hashing")
    with pytest.raises(ConfigError, match="'a/b@0123456789ab', which is not available here"):
        embedding.as_recorded("a/b@0123456789ab", Settings())


def test_a_change_of_embedding_is_named() -> None:
    assert embedding.mismatch("hashing", "hashing") == ""
    line = embedding.mismatch("a/b@123456789abc", "hashing")
    assert "'a/b@123456789abc'" in line
    assert "'hashing'" in line
