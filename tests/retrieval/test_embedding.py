"""Which vectors are used, and what is said when a model is missing. The real model: test_semantic.py."""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, RecordError
from valve_plugin.retrieval import embedding


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty model cache, an extra that looks installed, and no network: whoever asks it fails the test."""

    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    embedding._choose.cache_clear()
    yield tmp_path
    embedding._choose.cache_clear()


def plant(folder: Path, weights: bytes = b"weights") -> Path:
    """Lay out a cached model as Hugging Face tools do."""
    snapshot = folder / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(weights)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1")
    return snapshot


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("valve_plugin")]


def test_auto_is_silently_hashing_where_there_is_no_model(caplog: pytest.LogCaptureFixture) -> None:
    assert embedding.choose("auto").name == "hashing"
    assert not said(caplog)


@pytest.mark.parametrize("name", ["someone/some-model", "all-MiniLM-L6-v2", "/no/folder", "../x", "--token", "x/y/z"])
def test_a_missing_model_is_one_line_at_once_and_never_the_network(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert [embedding.choose(name).name for _ in range(3)] == ["hashing"] * 3
    (line,) = said(caplog)
    assert f"{name!r} is not on disk" in line


def test_a_model_without_the_extra_is_one_line_naming_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert embedding.choose("a/b").name == "hashing"
    (line,) = said(caplog)
    assert "needs the extra `semantic`; run: " in line


def test_a_model_that_does_not_load_is_one_line(
    hub: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(directory: Path) -> None:
        raise RuntimeError("damaged\nin many lines")

    monkeypatch.setattr(embedding, "_load", broken)
    snapshot = plant(hub / "models--Qwen--Qwen3-Embedding-0.6B")
    assert embedding.choose("auto").name == "hashing"
    (line,) = said(caplog)
    assert str(snapshot) in line
    assert "damaged" in line
    assert "\n" not in line


def test_models_are_found_by_name_and_never_where_a_command_is_typed(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plant(hub / "models--a--b")
    short = plant(hub / "models--sentence-transformers--mini")
    clone = hub / "clone"
    for folder in (embedding.DEFAULT_MODEL, "model"):
        plant(clone / folder)
        (clone / folder / "config.json").write_text("{}")
    monkeypatch.chdir(clone)
    assert (embedding.find_model("a/b"), embedding.find_model("mini")) == (plain, short)
    for name in (embedding.DEFAULT_MODEL, "model", "a/../model"):
        assert embedding.find_model(name) is None
    assert embedding.find_model("./model") == Path("model")  # typed as a path: what a person gives with -c


@pytest.mark.parametrize("text", [json.dumps([{"type": "evilmod.Evil"}]), "[" * 100_000, "\udcff", '["x"]'])
def test_a_model_that_names_code_or_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises((ConfigError, RecordError)):
        embedding._load(tmp_path)  # before anything of the extra is imported


def test_a_fingerprint_tells_weights_not_places(hub: Path) -> None:
    one, copy, other = (plant(hub / f"models--a--{n}", w) for n, w in (("b", b"x"), ("c", b"x"), ("d", b"y")))
    assert embedding.fingerprint(one) == embedding.fingerprint(copy) != embedding.fingerprint(other)


def test_a_panel_goes_on_only_under_the_embedding_it_was_measured_with() -> None:
    assert embedding.as_recorded("hashing", Settings()) == Settings(retrieval="paper", embedding="hashing")
    assert embedding.as_recorded("fused", Settings()) == Settings(retrieval="fused", embedding="hashing")
    for recorded in ("a/b@0123456789ab", "./model", "~/model"):  # a ledger names weights and no folder
        with pytest.raises(ConfigError, match=f"'{recorded}', which is not available here"):
            embedding.as_recorded(recorded, Settings())
