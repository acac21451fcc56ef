"""The start-up guard: when it acts, that it acts once, and that nothing it meets stops stock mini."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.harness import Mini
from valve_plugin import _boot

ROOT = Path(__file__).parents[2]
PTH = (ROOT / "minisweagent_valve.pth").read_text()

COMMAND_LINES = [
    (["python", "/venv/bin/mini", "-t", "x"], True),
    (["python", "/venv/bin/mini-swe-agent"], True),
    (["python", "/venv/bin/mini-extra", "swebench"], True),
    (["python", "/venv/bin/mini-e"], True),
    (["python", "-m", "minisweagent"], True),
    (["python", "-X", "utf8", "-W", "ignore", "-m", "minisweagent.run.mini"], True),
    (["python.exe", r"C:\venv\Scripts\mini.exe", "-t", "x"], True),
    (["python", "-c", "from minisweagent.run.mini import app; app()"], True),
    (["python", "gemini.py", "--admin"], False),
    (["/opt/minisweagent/bin/python", "server.py"], False),
    (["python", "/venv/bin/minify", "mini.css"], False),
    (["python"], False),
    ([], False),
]


def run_pth(argv: list[str], **variables: str) -> list[str]:
    """Execute the start-up line twice in a bare interpreter, as a virtual environment does; return our modules."""
    code = (
        "import sys; sys.orig_argv = sys.argv[2:]\n"
        "line = sys.argv[1]\n"
        "exec(line); exec(line)\n"
        "print(*[m for m in sys.modules if m.startswith('valve')], 'finders',"
        " sum(type(f).__module__ == 'valve_plugin._boot' for f in sys.meta_path))"
    )
    env = {k: v for k, v in os.environ.items() if k != "VALVE_STARTUP"} | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, PTH, *argv], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(("argv", "expected"), COMMAND_LINES)
def test_acts_in_minis_processes_only(argv: list[str], expected: bool) -> None:
    assert _boot.is_mini(argv) is expected


@pytest.mark.parametrize(("argv", "expected"), [COMMAND_LINES[i] for i in (0, 4, 6, 8, 9, 12)])
def test_start_up_line_agrees_and_is_idempotent(argv: list[str], expected: bool) -> None:
    modules = ["valve_plugin", "valve_plugin._boot", "finders", "1"] if expected else ["finders", "0"]
    assert run_pth(argv) == modules


def test_switch_leaves_nothing_of_ours() -> None:
    assert run_pth(COMMAND_LINES[0][0], VALVE_STARTUP="0") == ["finders", "0"]


def test_start_file_names_the_same_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, function = (ROOT / "minisweagent_valve.start").read_text().strip().partition(":")
    assert (module, getattr(_boot, function)) == (_boot.__name__, _boot.start)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _boot.Finder)]
    for argv, expected in (["python", "x.py"], 0), (["python", "/bin/mini"], 1), (["python", "/bin/mini"], 1):
        monkeypatch.setattr(sys, "orig_argv", argv)
        _boot.start()
        assert sum(isinstance(f, _boot.Finder) for f in sys.meta_path) == expected


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], []),
        (["--plugin", "a", "-t", "x", "--plugin=b"], ["a", "b"]),
        (["--plugin"], []),
        (["--plugin="], []),
        (["--", "--plugin", "a"], []),
        (["--plugins", "a"], []),
    ],
)
def test_names_on_a_command_line(argv: list[str], names: list[str]) -> None:
    assert _boot.plugin_names(argv) == names


# What a later or damaged mini-SWE-agent might look like, imposed on the real one before its command starts.
NEWER = "import minisweagent; minisweagent.__version__ = '3.0.0'"
ODD = "import minisweagent; minisweagent.__version__ = 'main'"
NO_FACTORY = (
    "import minisweagent.utils.serialize as s, minisweagent.run.mini as m; del m.recursive_merge;"
    "from valve_plugin import _boot; _boot.extend(m); m.recursive_merge = s.recursive_merge"
)


@pytest.mark.parametrize(
    ("damage", "plugin", "message"),
    [
        (NEWER, ["--plugin", "probe"], "mini-SWE-agent 3.0.0 is not supported"),
        pytest.param(ODD, [], "mini-SWE-agent main is not supported", marks=pytest.mark.heavy),
        (NO_FACTORY, ["--plugin", "probe"], "has no minisweagent.run.mini.recursive_merge"),
    ],
)
def test_unsupported_mini_goes_on_as_stock(mini: Mini, damage: str, plugin: list[str], message: str) -> None:
    env = {"VALVE_STARTUP": "0"} if damage == NO_FACTORY else {}
    start = f"{damage}; from minisweagent.run.mini import app; app()"
    done = mini.task("-c", "mini.yaml", "-c", "model.yaml", *plugin, program=("python", "-c", start), env=env)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("valve:")]
    assert len(ours) == 1
    assert message in ours[0]
    assert "Saved trajectory" in done.stdout
    assert mini.events() == []
    assert "plugins" not in mini.trajectory()["info"]


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("valve_plugin.host.option", ["--plugin", "probe"]),
        pytest.param("valve_plugin.host.option", [], marks=pytest.mark.heavy),
        pytest.param("msgspec", ["--plugin", "probe"], marks=pytest.mark.heavy),
    ],
)
def test_damaged_installation_goes_on_as_stock(mini: Mini, module: str, args: list[str]) -> None:
    start = f"import sys; sys.modules[{module!r}] = None; from minisweagent.run.mini import app; app()"
    done = mini.task("-c", "mini.yaml", "-c", "model.yaml", *args, program=("python", "-c", start))
    assert done.returncode == 0, done.stderr
    assert "Saved trajectory" in done.stdout
    ours = [line for line in done.stderr.splitlines() if line.startswith("valve:")]
    assert len(ours) == bool(args)
    assert all(f"--plugin probe is ignored: ModuleNotFoundError: import of {module} halted" in o for o in ours)
