"""A real Ray cluster as processes of this machine, whose workers, nodes and head can be killed."""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

_ENVIRON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or Ray listens on all addresses
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}
_WORKER = "ray::rollout"


class RayCluster:
    """Nodes with one core each, the head among them; each has user data of its own. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nodes: dict[str, Any] = {}
        self._environ: dict[str, dict[str, str]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._temp = tempfile.mkdtemp(prefix="ray")  # short: it holds sockets

    @property
    def arguments(self) -> list[str]:
        """How `valve` uses it."""
        return ["-c", "executor=ray", "-c", f"ray_address={self.address}"]

    @property
    def address(self) -> str:
        """Of the head."""
        return f"127.0.0.1:{self._port}"

    def start(self, *names: str, **environ: str) -> None:
        """Start nodes with these variables; the first of all is the head. Does nothing for those that run."""
        os.environ.update(_ENVIRON)
        from ray.cluster_utils import Cluster

        if not self._nodes:
            self._cluster = Cluster()
        for name in names:
            if name not in self._nodes:
                own = self._environ.setdefault(name, {"VALVE_DATA": str(self.folder / name), **environ})
                more = {} if self._nodes else {"gcs_server_port": self._port, "include_dashboard": False}
                self._nodes[name] = self._cluster.add_node(
                    num_cpus=1, object_store_memory=80_000_000, env_vars=own, temp_dir=self._temp, **more
                )

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kill -9 a worker in the middle of a rollout, a node other than the head, or the head and so all nodes.

        Returns:
            False if no worker has a rollout.
        """
        if kind == "worker":
            found = self._workers()
            for worker in chance.sample(found, min(1, len(found))):
                worker.kill()
            return bool(found)
        if kind == "node":
            self._remove(chance.choice(list(self._nodes)[1:]))
        while kind == "head" and self._nodes:
            self._remove(next(iter(self._nodes)))
        return True

    def _remove(self, name: str) -> None:
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def await_rollout(self) -> None:
        """Wait until a node runs a rollout."""
        deadline = time.monotonic() + 120
        while not self._workers() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _workers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if _WORKER in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def rollouts(self, name: str) -> int:
        """Number of rollouts that a node has run."""
        return len(list((self.folder / name / "rollouts").glob("*")))

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill("head", random.Random(0))
        shutil.rmtree(self._temp, ignore_errors=True)


def path_without(tool: str, folder: Path) -> str:
    """Return a PATH that has all but one program."""
    folder.mkdir()
    for place in reversed(os.get_exec_path()):
        for program in Path(place).glob("*"):
            (folder / program.name).unlink(missing_ok=True)
            (folder / program.name).symlink_to(program)
    (folder / tool).unlink()
    return str(folder)
