"""A real Ray cluster as processes of this machine, whose workers, nodes and head can be killed.

Ray may end the process that holds its nodes, so that is one of their own: this file as a program.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_ENVIRON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or Ray listens on all addresses
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}
_WORKER = "ray::there"
HEAD = "head"
_STARTS = 4
_PAUSE_SECONDS = 10.0


class StartError(RuntimeError):
    """A node did not start, or end, in the time that Ray gives it."""


class RayCluster:
    """Nodes with one core each, one of them the head; each has user data of its own. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holder: subprocess.Popen[str] | None = None
        self._nodes: set[str] = set()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._temp = tempfile.mkdtemp(prefix="ray")  # short: it holds sockets

    @property
    def arguments(self) -> list[str]:
        """How `valve` uses it."""
        return ["-c", "executor=ray", "-c", f"ray_address={self.address}"]

    def start(self, *names: str, **environ: str) -> None:
        """Start nodes with these variables, the head first. Does nothing for those that run."""
        os.environ.update(_ENVIRON)  # of all that uses the cluster, too
        if self._holder is None:
            command = [sys.executable, __file__]
            self._holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        for name in names:
            if name not in self._nodes:
                port = int(self.address.rpartition(":")[2])
                more = {"gcs_server_port": port, "include_dashboard": False} if name == HEAD else {}
                own = {"VALVE_DATA": str(self.folder / name), **environ}
                self._ask(name, {"num_cpus": 1, "env_vars": own, "temp_dir": self._temp, **more})
                self._nodes.add(name)

    def start_again(self, *names: str) -> None:
        """Start nodes, as `start` does; where one is too slow for Ray, everything starts anew, a few times."""
        for tried in range(1, _STARTS + 1):
            try:
                return self.start(*names)
            except StartError:
                self.kill(HEAD, random.Random(0))
                if tried == _STARTS:
                    raise
                time.sleep(_PAUSE_SECONDS * tried)
        return None

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kill -9 a worker in the middle of a rollout, a node other than the head, or the head and so all nodes.

        The kind `hang` stops a worker (SIGSTOP), which then says nothing any more.

        Returns:
            False if no worker has a rollout.
        """
        if kind in ("worker", "hang"):
            found = self._workers()
            for worker in chance.sample(found, min(1, len(found))):
                worker.kill() if kind == "worker" else worker.suspend()
            return bool(found)
        if kind == "node":
            self._ask(name := chance.choice(sorted(self._nodes - {HEAD})), None)
            self._nodes.remove(name)
        elif self._holder is not None:
            for process in (psutil.Process(self._holder.pid), *self._children()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._holder.communicate()
            self._holder, self._nodes = None, set()
        return True

    def await_rollout(self) -> None:
        """Wait until a node runs a rollout."""
        while not self._workers():
            time.sleep(0.1)

    def await_end(self) -> None:
        """Wait until no node runs a rollout."""
        while self._workers():
            time.sleep(0.1)

    def _ask(self, name: str, options: dict[str, Any] | None) -> None:
        assert self._holder is not None
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(json.dumps([name, options]) + "\n")
        self._holder.stdin.flush()
        said = self._holder.stdout.readline().strip()
        if said != "done":
            raise StartError(
                f"the node {name!r} did not {'start' if options else 'end'}: {said or 'its process ended'}"
            )

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self._holder.pid).children(recursive=True) if self._holder else []

    def _workers(self) -> list[psutil.Process]:
        found = []
        for process in self._children():
            with suppress(psutil.Error):
                found += [process] * (_WORKER in " ".join(process.cmdline()))
        return found

    def rollouts(self, name: str) -> int:
        """Number of rollouts that a node has run."""
        return len(list((self.folder / name / "rollouts").glob("*")))

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill(HEAD, random.Random(0))
        shutil.rmtree(self._temp, ignore_errors=True)


def path_without(folder: Path, *tools: str) -> str:
    """Return a PATH that has all programs but these."""
    folder.mkdir()
    for place in reversed(os.get_exec_path()):
        for program in Path(place).glob("*"):
            (folder / program.name).unlink(missing_ok=True)
            (folder / program.name).symlink_to(program)
    for tool in tools:
        (folder / tool).unlink(missing_ok=True)
    return str(folder)


def hold() -> None:
    """Start and kill nodes as the lines of standard input say; the end of it ends them all."""
    from ray.cluster_utils import Cluster

    Path("/tmp/ray").mkdir(exist_ok=True)  # the cluster notes its address there, and does not make the folder
    replies, sys.stdout = sys.stdout, sys.stderr
    cluster, nodes = Cluster(), {}
    for line in sys.stdin:
        name, options = json.loads(line)
        if options is None:
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
        else:
            try:
                nodes[name] = cluster.add_node(object_store_memory=80_000_000, **options)
            except Exception as e:  # noqa: BLE001  # Ray raises Exception itself where a node needs more than 30 s
                print(f"{type(e).__name__}: {e}".splitlines()[0], file=replies, flush=True)
                continue
        print("done", file=replies, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    hold()
