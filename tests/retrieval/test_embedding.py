"""Which vectors are used, and what is said when a model is missing. The real model: test_semantic.py."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from valve_plugin.bank import embedding
from valve_plugin.errors import ConfigError


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
    start = time.process_time()
    assert [embedding.choose(name).name for _ in range(3)] == ["hashing"] * 3
    assert time.process_time() - start < 0.1
    (line,) = said(caplog)
    assert name in line
    assert "is not on disk" in line
    assert "\n" not in line


def test_the_line_reaches_the_terminal_of_a_process_that_configured_no_logging(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from valve_plugin.bank.embedding import choose; choose('no/model')"],
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
    assert "pip install 'valve-plugin[semantic]', or '.[semantic]' in a clone" in line


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
    assert embedding.find("a/b") == first
    main = plant(folder, "222", main=True)
    assert embedding.find("a/b") == main
    assert embedding.find(str(first)) == first
    short = plant(hub / "models--sentence-transformers--mini", "1")
    assert embedding.find("mini") == short

    elsewhere = hub.parent / "elsewhere"
    found = plant(elsewhere / "models--c--d", "1")
    assert embedding.find("c/d") is None
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(elsewhere))
    assert embedding.find("c/d") == found


def test_a_download_that_was_cut_short_is_not_a_model(hub: Path) -> None:
    plant(hub / "models--a--b", "111", weights=b"")
    assert embedding.find("a/b") is None


def test_a_fingerprint_tells_weights_not_places(hub: Path) -> None:
    one, copy, other = (
        plant(hub / f"models--a--{n}", "1", weights=w) for n, w in (("b", b"x"), ("c", b"x"), ("d", b"y"))
    )
    assert embedding.fingerprint(one) == embedding.fingerprint(copy) != embedding.fingerprint(other)


def test_cached_vectors_survive_and_failures_to_cache_do_not_matter(tmp_path: Path) -> None:
    values = array("h", [1, -2, 32_767, -32_767])
    path = tmp_path / "model" / "body"
    assert embedding._recall(path) is None
    embedding._remember(path, values)
    assert embedding._recall(path) == values
    assert [p.name for p in path.parent.iterdir()] == ["body"]
    path.write_bytes(b"odd")
    assert embedding._recall(path) is None
    (tmp_path / "file").write_text("")
    embedding._remember(tmp_path / "file" / "body", values)


def test_a_recorded_name_finds_those_weights_again_whichever_revision_is_current(hub: Path) -> None:
    old = plant(hub / "models--a--b", "1", weights=b"old")
    new = plant(hub / "models--a--b", "2", main=True, weights=b"new")
    assert embedding.find("a/b") == new
    assert embedding.find(f"a/b@{embedding.fingerprint(old)}") == old
    assert embedding.find(f"a/b@{embedding.fingerprint(new)}") == new
    assert embedding.find("a/b@0123456789ab") is None


def test_a_panel_goes_on_only_under_the_embedding_it_was_measured_with() -> None:
    assert embedding.pinned("hashing", "auto") == "hashing"
    assert embedding.pinned("hashing", "no/such-model") == "hashing"
    with pytest.raises(ConfigError, match="'a/b@0123456789ab', which is not available here"):
        embedding.pinned("a/b@0123456789ab", "auto")


def test_a_change_of_embedding_is_named() -> None:
    assert embedding.mismatch("hashing", "hashing") == ""
    line = embedding.mismatch("a/b@123456789abc", "hashing")
    assert "'a/b@123456789abc'" in line
    assert "'hashing'" in line
