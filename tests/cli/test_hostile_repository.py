"""A repository that somebody else wrote: looking at it runs nothing of it, and no command that is printed does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_doctor import BIN, SYSTEM, check, here, paste
from tests.tools import git
from valve_plugin.cli import output
from valve_plugin.cli.doctor import _set_variable
from valve_plugin.errors import TaskError
from valve_plugin.sandbox import engine
from valve_plugin.sandbox.git import find_git_dir
from valve_plugin.sandbox.supervisor import VALVE_MAIN
from valve_plugin.tasks import image
from valve_plugin.tasks.make import define


def planted(project: Path, ran: Path) -> Path:
    """A bank directory that is a bare repository too, and survives `git clone`; git runs what its config names."""
    bank = project / ".valve"
    for folder in ("objects", "refs"):
        (bank / folder).mkdir(parents=True)
        (bank / folder / ".keep").touch()
    watch = f'[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = "touch {ran}; false"\n'
    (bank / "config").write_text(watch)
    (bank / "HEAD").write_text("ref: refs/heads/main\n")
    return bank


@pytest.fixture
def victim(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a hostile repository, as the working directory; the file `ran` tells that its code was run."""
    evil = tmp_path / "evil"
    evil.mkdir()
    bank = planted(evil, tmp_path / "ran")
    (bank / "ledger.jsonl").write_text('{"x\n')
    git(evil, "init", "-q")
    git(evil, "add", "-A")
    git(evil, "commit", "-q", "-m", "bank")
    git(tmp_path, "clone", "-q", "evil", "victim")
    monkeypatch.chdir(tmp_path / "victim")
    return tmp_path / "victim"


def test_a_repository_inside_the_bank_is_never_asked(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(victim / ".valve", "status")  # the plant works: plain git runs it
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    for place in (victim, victim / ".valve"):
        monkeypatch.chdir(place)
        found = check("bank", here()._replace(bank=victim / ".valve"))
        assert found.state == "failed", found
        define._ignored(victim)
        find_git_dir(victim)
        with pytest.raises(TaskError):
            find_git_dir(victim / ".valve")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["panel.json", "ledger.jsonl", "valve.toml"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_a_bank_of_files_without_end(name: str, plant: Callable[[Path], None], victim: Path) -> None:
    (victim / ".valve" / name).unlink(missing_ok=True)
    plant(victim / ".valve" / name)
    found = check("bank", here()._replace(bank=victim / ".valve"))
    assert found.state == "failed"


def test_a_key_is_set_under_a_name_that_is_one() -> None:
    assert _set_variable("OPENAI_API_KEY", "KEY").endswith("mini-extra config set OPENAI_API_KEY KEY")
    for name in (". X;/X:AAAA_API_KEY", "$(X)_API_KEY", "X\n", "", "1A"):
        assert _set_variable(name, "KEY") == "", name


def test_odd_names_of_folders(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{SYSTEM}")
    for name in ("a\t\u202e\x1b[31mb", "-rf", "x; touch ran"):
        (project / name).mkdir()
        monkeypatch.chdir(project / name)
        hint = check("bank", here()._replace(bank=project / name / "bank")).hint
        assert output.one_line(hint) == hint
        paste(hint, monkeypatch)
        assert (project / name / "bank/ledger.jsonl").exists()
        assert not (project / name / "ran").exists()


def test_an_image_is_pulled_by_a_name_that_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "engine_problem", lambda name: "")
    assert image._missing("docker.io/a_b/c.d:1@sha256:0a", "auto").endswith(
        ": podman pull docker.io/a_b/c.d:1@sha256:0a"
    )
    for name in ("a;b", "a b", "--privileged", "a\nb", "$(x)", "a/`x`"):
        assert " pull " not in image._missing(name, "auto"), name


@pytest.mark.heavy
def test_variables_that_a_repository_brings(project: Path) -> None:
    """litellm reads `.env` when it is imported: our own processes, which are started with -c, from here."""
    (project / ".env").write_text("OPENAI_API_BASE=http://127.0.0.1:1\n")
    code = "import os, sys; sys.argv = ['valve', '--help']; from contextlib import suppress\n"
    code += f"with suppress(SystemExit):\n    exec({VALVE_MAIN!r})\n"
    code += "import litellm; print('base:', os.environ.get('OPENAI_API_BASE'))"
    env = {k: v for k, v in os.environ.items() if k not in ("LITELLM_MODE", "OPENAI_API_BASE")}
    env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "base: None", done
