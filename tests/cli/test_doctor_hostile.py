"""A repository that somebody else wrote: looking at it runs nothing of it, and no command that is printed does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.banks import sample
from tests.cli.conftest import Run
from tests.cli.test_doctor import BIN, SYSTEM, here, looked
from tests.cli.test_doctor_fixes import paste
from valve_plugin import config
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import doctor_sandbox, output
from valve_plugin.cli.doctor_rows import LOOKS, _variable
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.rollouts import engine
from valve_plugin.rollouts.processes import VALVE
from valve_plugin.shell_words import join
from valve_plugin.tasks import define, history, image


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["panel.json", "ledger.jsonl", "valve.toml"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_a_bank_of_files_without_end(name: str, plant: Callable[[Path], None], victim: Path) -> None:
    (victim / ".valve" / name).unlink(missing_ok=True)
    plant(victim / ".valve" / name)
    found = LOOKS["bank integrity"](here()._replace(bank=victim / ".valve"))
    assert found.state == "failed"
    assert "git does not hold this directory as it is" in found.detail


def test_the_older_copies_are_listed_by_git_alone(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    names = ("core.pager", "pager.log", "core.fsmonitor", "gpg.program", "core.sshCommand", "diff.external")
    fetching = ("remote.origin.promisor=true", f"remote.origin.url=ext::{program}", "extensions.partialClone=origin")
    more = ("log.showSignature=true", "protocol.ext.allow=always")
    for setting in (*(f"{name}={program}" for name in names), *fetching, *more):
        git("-C", str(victim), "config", *setting.split("=", 1))
    sign(victim)
    tree = subprocess.run(["git", "rev-parse", "HEAD~1:.valve"], capture_output=True, text=True, check=True).stdout
    found = LOOKS["bank integrity"](here()._replace(bank=victim / ".valve"))
    assert "git has older copies" in found.detail, found
    lost = victim / ".git/objects" / tree[:2] / tree[2:].strip()
    lost.unlink()  # what is lacking is not fetched
    subprocess.run(["/bin/bash", "-c", found.fix], capture_output=True)
    assert not ran.exists()
    subprocess.run(["git", "log", "--show-signature", "-1"], capture_output=True)
    assert ran.exists(), "the plants work"


def sign(victim: Path) -> None:
    """Two more commits of the bank's, the last with what git asks gpg about."""
    for text in ('{"y\n', '{"x\n'):
        (victim / ".valve/ledger.jsonl").write_text(text)
        git("-C", str(victim), "-c", "core.fsmonitor=false", "commit", "-q", "-a", "-m", "more")
    raw = subprocess.run(["git", "cat-file", "commit", "HEAD"], capture_output=True, text=True, check=True).stdout
    head, _, body = raw.partition("\n\n")
    signed = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----\n\n{body}"
    new = subprocess.run(["git", "hash-object", "-t", "commit", "-w", "--stdin"], input=signed, capture_output=True,
                         text=True, check=True).stdout.strip()  # fmt: skip
    git("-C", str(victim), "-c", "core.fsmonitor=false", "update-ref", "HEAD", new)


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
    assert _variable("OPENAI_API_KEY", "KEY").endswith("mini-extra config set OPENAI_API_KEY KEY")
    for name in (". X;/X:AAAA_API_KEY", "$(X)_API_KEY", "X\n", "", "1A"):
        assert _variable(name, "KEY") == "", name


odd_text = st.text("a ' \\\"$`\t\n\x1b\u202e\u200bé\xa0!#~-", max_size=12)
bytes_of_a_word = st.binary(max_size=12) | odd_text.map(os.fsencode)


@settings(max_examples=60)
@given(st.lists(bytes_of_a_word.filter(lambda word: 0 not in word), min_size=1, max_size=30))
def test_words_are_pasted_as_they_are(raw: list[bytes]) -> None:
    command = join(map(os.fsdecode, raw))
    assert output.one_line(command) == command, "a terminal shows and copies it as it is"
    script = f"printf '%s\\0' {command}".encode()
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == raw


@pytest.mark.parametrize(
    "name", ["a  b", "a\tb", "a\x1b[31mb", "a\u202eb", os.fsdecode(b"a\xff"), "-rf", "x; touch ran"]
)
def test_odd_names_of_folders(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{SYSTEM}")
    healthy = sample(project / "a b" / ".valve").dir / "valve.toml"
    was = healthy.read_bytes()
    odd = sample(project / name / ".valve").dir
    (odd / "valve.toml").write_text("rho = ")
    monkeypatch.chdir(project / name)
    said = looked("bank", here()._replace(trouble="no TOML"))
    paste(next(line.split(" $ ", 1)[1] for line in said.splitlines() if " $ mv " in line), monkeypatch)
    assert not (odd / "valve.toml").exists()
    assert healthy.read_bytes() == was
    assert not (project / name / "ran").exists()


def test_settings_are_never_moved_to_a_name_that_can_be_known(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = sample(project / ".valve").dir
    (bank / "valve.toml").write_text("rho = ")
    place = here()._replace(trouble="not TOML")
    fix = LOOKS["bank"](place).fix
    assert "mktemp" in fix
    paste(fix, monkeypatch)
    assert [path.read_text() for path in bank.glob(".valve.toml.aside-*/valve.toml")] == ["rho = "]


def test_what_stands_where_a_bank_goes(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = project / ".valve"
    for stand in (lambda: bank.write_text("mine"), lambda: bank.symlink_to(tmp_path / "gone")):
        stand()
        found = LOOKS["bank"](here())
        assert found.state == "failed"
        assert "chmod" not in found.fix
        paste(found.fix, monkeypatch)
        assert LOOKS["bank"](here()).state == "missing"


def test_a_model_of_items_that_cannot_be_fetched(project: Path) -> None:
    def fix(name: str) -> str:
        return LOOKS["embedding model"](here()._replace(settings=Settings(embedding=name))).fix

    odd = ("--token", "-x/y", "a/-x", "x/y/z", "x--y/z", "a/b..c", "a/b.", ".a/b", "\u0430/b", "a/b\n", f"a/{'b' * 99}")
    for name in (*odd, "../x", "/tmp/x", "a b", "a;b", "$(x)/y", "a/", "/", "a@b"):
        assert "hf download" not in fix(name), name
    assert fix("none/such").endswith("hf download none/such")
    assert fix("none-v2").endswith("hf download sentence-transformers/none-v2"), "where it is looked for"


def test_an_image_is_pulled_by_a_name_that_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "fails", lambda name: "")
    assert image._missing("docker.io/a_b/c.d:1@sha256:0a", "auto").endswith(
        ": podman pull docker.io/a_b/c.d:1@sha256:0a"
    )
    for name in ("a;b", "a b", "--privileged", "a\nb", "$(x)", "a/`x`"):
        assert " pull " not in image._missing(name, "auto"), name


def test_settings_that_never_end(project: Path, tmp_path: Path) -> None:
    path = tmp_path / "valve.toml"
    for target in ("/dev/zero", "/dev/stdin"):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(ConfigError, match="cannot be read"):
            config.load(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it is no regular file"):
        config.load(tmp_path)
    path.unlink()
    path.write_bytes(b"#" * (config.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="expected at most"):
        config.load(tmp_path)


@pytest.mark.heavy
def test_variables_that_a_repository_brings(project: Path) -> None:
    """litellm reads `.env` when it is imported: our own processes, which are started with -c, from here."""
    (project / ".env").write_text("OPENAI_API_BASE=http://127.0.0.1:1\n")
    code = "import os, sys; sys.argv = ['valve', '--help']; from contextlib import suppress\n"
    code += f"with suppress(SystemExit):\n    exec({VALVE!r})\n"
    code += "import litellm; print('base:', os.environ.get('OPENAI_API_BASE'))"
    env = {k: v for k, v in os.environ.items() if k not in ("LITELLM_MODE", "OPENAI_API_BASE")}
    env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "base: None", done


def test_a_setting_of_mini(project: Path) -> None:
    with pytest.raises(ConfigError, match="mini_config"):
        config.resolve({"environment_class": "local"})


def test_what_a_killed_doctor_left_is_swept(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "none"))
    left, held = tmp_path / ".valve-doctor-left", tmp_path / ".valve-doctor-held"
    for folder in (left, held):
        (folder / "workspaces").mkdir(parents=True)
    with doctor_sandbox._held(held), doctor_sandbox._user_data():
        assert (left.exists(), held.exists()) == (False, True)


def test_a_cut_ledger_is_told_as_json(bank: BankStore, valve: Run) -> None:
    ledger = bank.dir / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:3]))
    said = valve("bank", "verify", "--repair", "--json", code=1)
    assert said["intact"] is False
    assert any("cut off" in finding["message"] for finding in said["findings"])
