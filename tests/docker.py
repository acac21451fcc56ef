"""A docker daemon of a test's own, beside whatever this machine runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools import missing, need, until


@contextmanager
def daemon(folder: Path, image: str) -> Iterator[dict[str, str]]:
    """Start a daemon that has one of podman's images; yields the environment that leads docker's client to it.

    It changes nothing outside the folder: no bridge, no firewall rules.
    """
    podman, docker, dockerd = need("podman"), need("docker"), need("dockerd")
    with tempfile.TemporaryDirectory(prefix="valve-docker-") as short, (folder / "log").open("wb") as log:
        socket = f"unix://{short}/socket"  # a socket's path has to be short
        places = {"data-root": f"{folder}/data", "exec-root": f"{short}/exec", "pidfile": f"{short}/pid"}
        words = [f"--{name}={place}" for name, place in places.items()]
        words += ["--bridge=none", "--iptables=false", "--ip6tables=false", f"--host={socket}"]
        process = subprocess.Popen([dockerd, *words], stdout=log, stderr=log)
        try:
            environ = {"DOCKER_HOST": socket}
            _await(process, [docker, "version"], environ, folder / "log")
            saved = subprocess.Popen([podman, "save", f"docker.io/{image}:latest"], stdout=subprocess.PIPE)
            subprocess.run([docker, "load", "-q"], stdin=saved.stdout, check=True, env=os.environ | environ)
            assert saved.wait() == 0
            yield environ
        finally:
            process.terminate()
            process.wait(60)
            shutil.rmtree(folder / "data", ignore_errors=True)


def _await(process: subprocess.Popen[bytes], question: list[str], environ: dict[str, str], log: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            missing(f"dockerd does not work here: {log.read_text()[-500:]}")
        return not subprocess.run(question, env=os.environ | environ, capture_output=True, check=False).returncode

    until(answers, 300)
