"""A sandbox that cannot be had is refused for its real reason, before a bank is made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import images
from tests.cli.conftest import Run
from tests.evolve import library
from valve_plugin.sandbox import engine

GIVEN = ("-c", "model=any", "--bank", "bank")


@pytest.fixture
def down(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project with a task set whose tasks have images, and engines that do not answer."""
    for name in engine.ENGINES:
        (tmp_path / name).write_text("#!/bin/sh\necho 'cannot connect to the daemon' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine.engine_problem.cache_clear()
    library.write(project / "calc")
    rows = (project / "calc/tasks.jsonl").read_text().splitlines()
    lines = [json.dumps({**json.loads(row), "image_name": images.IMAGE}) + "\n" for row in rows]
    (project / "calc/tasks.jsonl").write_text("".join(lines))
    yield project
    engine.engine_problem.cache_clear()


def test_an_engine_that_does_not_answer_is_the_reason(down: Path, valve: Run) -> None:
    valve("evolve", "calc", *GIVEN, "-c", "sandbox=docker", code=3)
    said = (
        f"the image {images.IMAGE} needs a container engine: docker version ended with 1: cannot connect to the daemon"
    )
    assert said in valve.err
    assert not (down / "bank").exists()


def test_bubblewrap_for_tests_that_run_in_an_image_alone_is_wrong_use(down: Path, valve: Run) -> None:
    path = down / "calc/repository.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("source =", "environment ="))]
    path.write_text("\n".join([*lines, f'source = "image:{images.IMAGE}"', ""]))
    valve("evolve", "calc", *GIVEN, "-c", "sandbox=bwrap", code=2)
    assert "need the image" in valve.err
    assert not (down / "bank").exists()
