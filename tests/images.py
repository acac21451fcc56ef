"""Container images with SWE-smith's layout, made from this machine's own files: no registry, no network.

`/testbed` is a clone with one branch for each bug, `/opt/miniconda3` has an environment `testbed` with pytest in which
the source is installed in editable form, `/opt/miniconda3/bin/activate` and `conda activate` work as far as test
commands use them.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.tools import need
from valve_plugin.codec import digest

Branches = Mapping[str, Sequence[Mapping[str, "str | None"]]]
IMAGE = f"swebench/swesmith.x86_64.acme_1776_calc.{digest(os.environ.get('PYTEST_XDIST_WORKER', ''))[:8]}"
"""SWE-smith's name for the image of acme/calc; each test process makes and removes its own."""

# fmt: off
_TOOLS = (
    "bash", "cat", "ls", "cp", "mv", "rm", "mkdir", "chmod", "chown", "ln", "env", "sleep", "tail", "head", "grep",
    "sed", "find", "xargs", "sort", "uniq", "wc", "tr", "cut", "tee", "touch", "true", "false", "pwd", "id",
    "kill", "timeout", "git", "patch", "tar", "gzip", "diff", "prlimit", "dd", "date", "basename", "dirname",
    "readlink", "setsid", "flock", "seq", "truncate", "mkfifo", "rmdir", "chattr",
)
# fmt: on
_PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "typing_extensions")
_UNUSED = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "ensurepip", "lib2to3", "tkinter", "turtledemo",
    "config-*", "pydoc_data", "*.a",
)  # fmt: skip
_LABEL = "valve.tests=image"
_CONDA = "/opt/miniconda3"
_ACTIVATE = f'conda() {{ export CONDA_DEFAULT_ENV="$2" PATH="{_CONDA}/envs/$2/bin:$PATH"; }}\n'
_GIT = {"GIT_AUTHOR_NAME": "swesmith", "GIT_AUTHOR_EMAIL": "s@localhost"}
_GIT |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in _GIT.items()}


def build(folder: Path, name: str, branches: Branches, built: Mapping[str, str]) -> str:
    """Make an image, which is gone when this process ends; return its name.

    Args:
        folder: scratch.
        branches: for each branch its commits on top of the one before; a commit is {path: content, None: removed}.
            "main" comes first and is where the others start.
        built: files beside the source that git does not track.
    """
    root = folder / "root"
    _system(root)
    _python(root)
    _testbed(root / "testbed", branches)
    _write(root / "testbed", built)
    subprocess.run([need_tool("ldconfig"), "-r", str(root)], check=True, stderr=subprocess.DEVNULL)
    tar = subprocess.Popen(["tar", "-C", str(root), "--numeric-owner", "-cf", "-", "."], stdout=subprocess.PIPE)
    path = f"PATH={_CONDA}/bin:/usr/local/bin:/usr/bin:/bin"
    changes = ["--change", f"ENV {path}", "--change", f"LABEL {_LABEL}"]
    command = [need("podman"), "import", "-q", *changes, "-", f"docker.io/{name}:latest"]
    made = subprocess.run(command, stdin=tar.stdout, check=True, capture_output=True, text=True).stdout.strip()
    atexit.register(_podman, "rmi", made)
    _podman(
        "image", "prune", "-f", "--filter", f"label={_LABEL}", "--filter", "until=2h"
    )  # of sessions that were killed
    assert tar.wait() == 0
    shutil.rmtree(root)
    return name


def _podman(*words: str) -> None:
    """Clean up, as far as nobody uses it."""
    subprocess.run(["podman", *words], check=False, capture_output=True)


def _system(root: Path) -> None:
    places = "usr/bin usr/lib usr/lib64 usr/local/bin etc tmp proc sys dev run root var/tmp"
    for name in places.split():
        (root / name).mkdir(parents=True, exist_ok=True)
    for link, place in {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/bin"}.items():
        (root / link).symlink_to(place)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/ld.so.conf").write_text("/usr/lib\n")
    for tool in _TOOLS:
        _binary(root, Path(need_tool(tool)), root / "usr/bin" / tool)
    libc = Path(next(one for one in _needed(need_tool("bash")) if "libc.so" in one))
    for name in ("librt.so.1", "libdl.so.2", "libpthread.so.0", "libm.so.6"):  # the rest of glibc
        if (libc.with_name(name)).exists() and not (root / "usr/lib" / name).exists():
            shutil.copy(libc.with_name(name), root / "usr/lib" / name)
    (root / "usr/bin/sh").symlink_to("bash")
    (root / "usr/bin/awk").symlink_to("true")


def _python(root: Path) -> None:
    base, env = root / _CONDA[1:], root / _CONDA[1:] / "envs/testbed"
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for place in (base / "bin", env / "bin"):
        place.mkdir(parents=True)
    executable = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    _binary(root, executable, base / "bin" / minor)
    stdlib = base / "lib" / minor
    shutil.copytree(sysconfig.get_path("stdlib"), stdlib, ignore=_UNUSED, symlinks=False)
    for module in (stdlib / "lib-dynload").glob("*.so"):
        _libraries(root, module)
    (env / "pyvenv.cfg").write_text(f"home = {_CONDA}/bin\ninclude-system-site-packages = false\n")
    for link in ("python", "python3"):
        (env / "bin" / link).symlink_to(f"{_CONDA}/bin/{minor}")
    site = env / "lib" / minor / "site-packages"
    for name in _PACKAGES:
        _package(name, site)
    (site / "editable.pth").write_text("/testbed\n")
    script = f"#!{_CONDA}/envs/testbed/bin/python\nimport sys\nimport pytest\nsys.exit(pytest.main())\n"
    (env / "bin/pytest").write_text(script)
    (env / "bin/pytest").chmod(0o755)
    (base / "bin/activate").write_text(_ACTIVATE)


def _package(name: str, site: Path) -> None:
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if ".." not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), target)


def _testbed(path: Path, branches: Branches) -> None:
    path.mkdir()

    def git(*arguments: str) -> None:
        quiet = ["git", "-c", "gc.auto=0", "-c", "commit.gpgsign=false", *arguments]
        subprocess.run(quiet, cwd=path, check=True, capture_output=True, env=os.environ | _GIT)

    git("init", "-q", "-b", "main")
    for branch, commits in branches.items():
        if branch != "main":
            git("checkout", "-q", "-b", branch, "main")
        for number, files in enumerate(commits):
            _write(path, files)
            git("add", "-A", "-f")
            message = "Initial commit" if branch == "main" else ("Bug Patch", "Remove F2P Tests")[number]
            git("commit", "-q", "-m", message)
    git("checkout", "-q", "main")


def _write(root: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text) if text is not None else (root / name).unlink()


def _binary(root: Path, source: Path, target: Path) -> None:
    shutil.copy(os.path.realpath(source), target)
    _libraries(root, source)


def _libraries(root: Path, binary: Path) -> None:
    for library in _needed(str(binary)):
        loader = "ld-linux" in library
        target = root / library[1:] if loader else root / "usr/lib" / Path(library).name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), target)


@functools.cache
def _needed(binary: str) -> list[str]:
    said = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
    words = [line.split() for line in said.splitlines()]
    return [w[2] if "=>" in w else w[0] for w in words if len(w) > 1 and w[-2].startswith("/")]


def need_tool(name: str) -> str:
    """Return the path of a program, also where only root looks for it."""
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    assert found, f"{name} is not installed"
    return found
