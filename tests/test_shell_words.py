"""Words are pasted into a shell as they are."""

from __future__ import annotations

import os
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.cli import output
from valve_plugin.shell_words import join

odd_text = st.text("a ' \\\"$`\t\n\x1b\u202e\u200bé\xa0!#~-", max_size=12)
bytes_of_a_word = st.binary(max_size=12) | odd_text.map(os.fsencode)


@given(st.lists(bytes_of_a_word.filter(lambda word: 0 not in word), min_size=1, max_size=30))
def test_words_are_pasted_as_they_are(raw: list[bytes]) -> None:
    command = join(map(os.fsdecode, raw))
    assert output.one_line(command) == command, "a terminal shows and copies it as it is"
    script = f"printf '%s\\0' {command}".encode()
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == raw
