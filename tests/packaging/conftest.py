"""Built distributions and the installers that are tried on them, made once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.host.harness import Mini, make_mini

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Tools:
    """uv and pipx in an environment of their own, and the distributions built with them."""

    bin: Path
    wheel: Path
    sdist: Path

    @property
    def uv(self) -> Path:
        """The uv command."""
        return self.bin / "uv"

    def venv(self, directory: Path, python: str = sys.executable) -> Path:
        """Make a virtual environment and return its bin directory."""
        run(self.uv, "venv", "--quiet", "--no-python-downloads", "--python", python, directory)
        return directory / "bin"

    def install(self, env: Path, *what: str | Path) -> None:
        """Install into the environment of that bin directory."""
        run(self.uv, "pip", "install", "--quiet", "--python", env / "python", *what)


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    """mini's commands, with the plugin `probe` and a scripted model."""
    return make_mini(tmp_path / "run")


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Install uv and pipx, then build the source archive, and the wheel from it."""
    home = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "venv", home / "venv")
    run(home / "venv/bin/python", "-m", "pip", "install", "--quiet", "uv", "pipx")
    run(home / "venv/bin/uv", "build", "--quiet", "--out-dir", home / "dist", ROOT)
    (wheel,), (sdist,) = (home / "dist").glob("*.whl"), (home / "dist").glob("*.tar.gz")
    return Tools(home / "venv/bin", wheel, sdist)
