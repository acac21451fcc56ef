"""A repository that somebody else wrote: looking at it runs nothing of it, and no command that is printed does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.banks import sample
from tests.cli.test_doctor import BIN, SYSTEM, here
from tests.cli.test_doctor_fixes import paste
from valve_plugin import config
from valve_plugin.cli.doctor_rows import LOOKS, _key
from valve_plugin.errors import TaskError
from valve_plugin.tasks import define, history


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


def git(*words: str) -> None:
    subprocess.run(["git", *words], check=True, capture_output=True)


@pytest.fixture
def victim(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a hostile repository, as the working directory; the file `ran` tells that its code was run."""
    evil = tmp_path / "evil"
    evil.mkdir()
    bank = planted(evil, tmp_path / "ran")
    (bank / "ledger.jsonl").write_text('{"x\n')
    git("init", "-q", str(evil))
    git("-C", str(evil), "add", "-A")
    git("-C", str(evil), "commit", "-q", "-m", "bank")
    git("clone", "-q", str(evil), str(tmp_path / "victim"))
    monkeypatch.chdir(tmp_path / "victim")
    return tmp_path / "victim"


def test_a_repository_inside_the_bank_is_never_asked(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("-C", str(victim / ".valve"), "status")  # the plant works: plain git runs it
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    for place in (victim, victim / ".valve"):
        monkeypatch.chdir(place)
        found = LOOKS["bank integrity"](here()._replace(bank=victim / ".valve"))
        assert "git has older copies" in found.detail, found
        paste(found.fix, monkeypatch)
        define._ignored(victim)
        history.git_dir(victim)
        with pytest.raises(TaskError):
            history.git_dir(victim / ".valve")
    assert not (tmp_path / "ran").exists()


def test_a_check_command_is_not_written_through_planted_names(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "bashrc"
    mine.write_text("mine\n")
    bank = sample(project / ".valve").dir
    (bank / "valve.toml").write_text("[model_kwargs]\ntemperature = 0\n")
    (bank / "valve.toml.new").symlink_to(mine)
    fix = LOOKS["check command"](here()).fix
    assert ">" not in fix, fix
    monkeypatch.setenv("PATH", f"{BIN}:{SYSTEM}")
    paste(fix, monkeypatch)
    assert mine.read_text() == "mine\n"
    assert (bank / "valve.toml").read_text().endswith("[model_kwargs]\ntemperature = 0\n")
    assert config.load(bank).test_command


def test_a_key_is_set_under_a_name_that_is_one() -> None:
    assert _key("OPENAI_API_KEY") == "mini-extra config set OPENAI_API_KEY KEY"
    for name in (". X;/X:AAAA_API_KEY", "$(X)_API_KEY", "X\n", "", "1A"):
        assert _key(name) == "", name
