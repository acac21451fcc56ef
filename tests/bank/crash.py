"""Dying at every instant: a forked child runs an action and disappears at its n-th system call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from tests.tools import TEST_ALL

# Everything through which valve_plugin.files changes a disk. Replacing them in a child that dies is safe.
_CALLS = ("open", "write", "fsync", "replace", "link", "unlink", "ftruncate", "mkdir", "close")
_DIED, _DONE = 9, 0


def die_at(point: int, action: Callable[[], object]) -> bool:
    """Run `action` in a child that dies like by kill -9 at system call number `point`; False if it got to its end.

    A write that dies has written half of its bytes.
    """
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (_DIED, _DONE), f"the action itself failed (exit status {status}); its traceback is above"
        return status == _DIED
    try:
        left = [point]
        for name in _CALLS:
            setattr(os, name, _counted(name, getattr(os, name), left))
        action()
        os._exit(_DONE)
    except BaseException:  # noqa: BLE001 - this is the bottom of a process
        import traceback

        traceback.print_exc()
        os._exit(1)


def every_point(prepare: Callable[[], Callable[[], object]]) -> Iterator[int]:
    """Die at each system call of an action in turn, each time on what `prepare` makes anew; yields after each death.

    Without the heavy tests it is every third.
    """
    for point in range(1, 500, 1 if TEST_ALL else 3):
        if not die_at(point, prepare()):
            assert point > 3, "the action makes no system calls: nothing was tested"
            return
        yield point
    raise AssertionError("the action never ends")


def _counted(name: str, call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if name == "write":
                call(args[0], bytes(args[1])[: len(args[1]) // 2])
            os._exit(_DIED)
        return call(*args, **kwargs)

    return counted
