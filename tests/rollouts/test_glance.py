"""What can be seen of a real process from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.tools import need
from valve_plugin.rollouts import glance


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def test_a_sleeper_wants_nothing_and_its_last_words_are_read(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = "import time; print('one\\n' * 9999 + 'two\\n\\n', flush=True); time.sleep(60)"
    with said.open("wb") as file, subprocess.Popen([sys.executable, "-c", code], stdout=file) as process:
        try:
            assert within(20, lambda: glance.last_words(process.pid) == "two")
            assert within(20, lambda: not glance.wants_cpu(process.pid))
        finally:
            process.kill()
    assert glance.last_words(process.pid) == ""
    assert not glance.wants_cpu(process.pid)


def test_threads_of_children_are_seen_and_pipes_are_left_alone() -> None:
    need("bash")
    busy = "import threading; t = threading.Thread(target=lambda: [0 for _ in iter(int, 1)]); t.start(); t.join()"
    command = ["bash", "-c", f'"{sys.executable}" -c "{busy}"; true']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert within(20, lambda: glance.wants_cpu(process.pid))
            assert glance.last_words(process.pid) == ""
        finally:
            glance.os.killpg(process.pid, 9)
