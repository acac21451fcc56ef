"""Settings from files that come with a repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from valve_plugin import config
from valve_plugin.config import user_file
from valve_plugin.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("unsafe_local = true", "unsafe_local"),
        ('plugins = ["valve", "other"]', "plugins"),
        ('model_class = "evil.Model"', "model_class"),
        ('model_kwargs = {api_base = "http://127.0.0.1:1"}', "model_kwargs.api_base"),
        ('tasks = "tasks"', "tasks"),
        ("model_kwargs = {extra_headers = {}}", "model_kwargs.extra_headers"),
        ('model = "huggingface/https://127.0.0.1:1/v1"', "model"),
        ('embedding = "./model"', "embedding"),
        ('embedding = "/proc/self/cwd/model"', "embedding"),
    ],
)
def test_what_could_run_code_or_leak_keys_is_not_taken_from_a_file(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / config.FILE_NAME).write_text(line)
    with pytest.raises(ConfigError, match=rf"valve\.toml: {name} is not taken from a file.*-c {name}=VALUE"):
        config.load(tmp_path)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        *(('model = "openai/dear"', "model"), ("workers = 64", "workers"), ('review = "off"', "review")),
        *(("keep_history = true", "keep_history"), ("speculate = 5", "speculate"), ("cost_limit = 0", "cost_limit")),
        *(("cost_limit = 1e9", "cost_limit"), ("step_limit = 100000", "step_limit")),
        ("check_timeout = 1000000", "check_timeout"),
        *((f"{name} = {most + 1}", name) for name, most in config.AT_MOST.items()),
    ],
)
def test_a_file_of_a_repository_spends_nothing_and_weakens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, name: str
) -> None:
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "data"))
    bank = tmp_path / "clone" / "packages" / ".valve"
    bank.mkdir(parents=True)
    (tmp_path / "clone" / ".git").mkdir()
    (bank / config.FILE_NAME).write_text(line)
    with pytest.raises(ConfigError, match=rf"valve\.toml: {name} is .*-c {name}=VALUE.*{user_file()}"):
        config.load(bank)
    (bank / config.FILE_NAME).write_text(config.to_toml(config.AT_MOST))
    assert config.load(bank).rollouts == config.AT_MOST["rollouts"]
    (bank / config.FILE_NAME).write_text("cost_limit = 0.5\nstep_limit = 20\n")
    assert config.load(bank).cost_limit == 0.5
    (tmp_path / "data").mkdir()
    user_file().write_text(line)
    assert config.load(bank) == config.resolve({"step_limit": 20, "cost_limit": 0.5}, config.read_file(user_file()))
    elsewhere = tmp_path / "own"  # no repository's, so the person's own
    elsewhere.mkdir()
    (elsewhere / config.FILE_NAME).write_text(line)
    assert config.load(elsewhere) == config.load(None)


@pytest.mark.parametrize("where", ["unpacked/.valve", "clone/notes", "clone/.valve", "link"])
def test_every_bank_that_may_have_come_with_a_repository_is_read_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "clone" / "data"))
    for bank in (tmp_path / "unpacked" / ".valve", tmp_path / "clone" / "notes", config.data_dir() / "banks" / "own"):
        bank.mkdir(parents=True)
        (bank / config.FILE_NAME).write_text("workers = 64")
    (tmp_path / "clone" / ".git").mkdir()
    (tmp_path / "clone" / ".valve").symlink_to("notes")
    (tmp_path / "link").symlink_to(tmp_path / "clone" / "notes")
    with pytest.raises(ConfigError, match="workers is not taken from a file"):
        config.load(tmp_path / where)
    assert config.load(config.data_dir() / "banks" / "own").workers == 64  # in user data, whatever is above


@pytest.mark.parametrize(
    ("name", "said"),
    [("nope", "there are "), ("usd", "there are "), ("modl", "did you mean 'model'?"), ("roh", "did you mean 'rho'?")],
)
def test_a_name_is_proposed_only_where_it_is_near(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting {name!r}; {re.escape(said)}"):
        config.resolve({name: 1})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"top_skills": "abc"}, "top_skills is 'abc', expected a whole number of at least 0;"),
        ({"learn": "never"}, "learn is 'never', expected one of inline, off, queue;"),
        ({"unsafe_local": "1"}, "unsafe_local is '1', expected true or false;"),
        (
            {"budget_usd": float("inf")},
            "budget_usd is inf, expected a number of more than 0; leave it out for no limit",
        ),
        (
            {"max_hours": float("nan")},
            "max_hours is nan, expected a number of more than 0 and at most 1000000; leave it out for no limit",
        ),
        ({"max_hours": 1e306}, "max_hours is 1e+306, expected a number of more than 0 and at most 1000000"),
    ],
)
def test_a_value_that_does_not_fit_is_shown_with_what_would(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.resolve(given)
    assert said in str(raised.value)


def test_settings_that_never_end(tmp_path: Path) -> None:
    path = tmp_path / "valve.toml"
    for target in ("/dev/zero", "/dev/stdin"):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(ConfigError, match="cannot be read"):
            config.load(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="regular file"):
        config.load(tmp_path)
    path.unlink()
    path.write_bytes(b"#" * (config.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="expected at most"):
        config.load(tmp_path)
