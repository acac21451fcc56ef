"""Records are decoded from several threads at once; what people and models write has each key once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.codec import decode_once, repeated_key
from valve_plugin.errors import RecordError

# Each child of one loaded process decodes a record for the first time, in two threads that switch as often as they can.
CHILDREN = """
import os, sys, threading
from valve_plugin.codec import convert, decode
from valve_plugin.agents.protocol import RolloutResult

sys.setswitchinterval(1e-6)
killed = 0
for number in range(300):
    pid = os.fork()
    if not pid:
        start = threading.Barrier(2)
        def read():
            start.wait()
            if number % 2:
                decode(b'{"ended": "submitted", "steps": 3}', RolloutResult, where="it")
            else:
                convert({"ended": "submitted", "steps": 3}, RolloutResult, where="it")
        threads = [threading.Thread(target=read) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os._exit(0)
    killed += os.waitpid(pid, 0)[1] != 0
print(killed)
"""


def test_first_decoded_in_two_threads_at_once():
    done = subprocess.run([sys.executable, "-c", CHILDREN], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "0\n"


JSON = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)


@given(value=JSON, key=st.text(max_size=5), first=JSON, depth=st.integers(0, 4))
def test_a_key_given_twice_is_named_wherever_it_stands(value, key, first, depth):
    plain = json.dumps(value)
    assert repeated_key(plain) is None
    twice = f"{{{json.dumps(key)}: {json.dumps(first)}, {json.dumps(key)}: {plain}}}"
    for _ in range(depth):
        twice = f'[{plain}, {{"around": {twice}}}]'
    assert repeated_key(twice) == key
    with pytest.raises(RecordError, match=r"it: the key .* is given twice"):
        decode_once(twice, object, where="it")
