"""Records are decoded from several threads at once."""

from __future__ import annotations

import subprocess
import sys

# Each child of one loaded process decodes a record for the first time, in two threads that switch as often as they can.
CHILDREN = """
import os, sys, threading
from valve_plugin.codec import convert, decode
from valve_plugin.rollouts.worker import RolloutResult

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
