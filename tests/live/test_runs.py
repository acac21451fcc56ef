"""One run under the plugin, with real mini agents in the same process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import FIX, QUICK, Project, make_project, simulate
from valve_plugin import instrument
from valve_plugin.bank.store import BankStore
from valve_plugin.config import SCRIPTED_MODEL, changed_settings
from valve_plugin.errors import BankNotFoundError, ConfigError
from valve_plugin.hooks import Valve
from valve_plugin.plugins import load


def system(agent: Any) -> str:
    text: str = agent.messages[0]["content"]
    return text


def test_the_block_is_injected_and_the_run_recorded(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    agent = project.run(FIX, "echo new > added.txt")
    assert system(agent).startswith("You fix code.")
    assert "Check {{ the }} {% operator %} {# first #} \\n" in system(agent)
    attempt = project.attempt()
    assert (attempt.outcome, attempt.source, attempt.exit_status) == ("ungraded", "live", "Submitted")
    assert (attempt.steps, attempt.cost_usd, attempt.ordinal) == (3, 1.5, 0)
    assert attempt.reason == "no check was given (valve.check)"
    assert attempt.model == "deterministic"
    assert attempt.task_text == "add gives wrong sums"
    assert attempt.context_items == (("skill", "use-plus"),)
    assert "+    return a + b" in attempt.patch
    assert "added.txt" in attempt.patch
    assert ".valve" not in attempt.patch
    trajectory = json.loads(project.local.trajectory(attempt))
    assert [m["role"] for m in trajectory["messages"]] == [m["role"] for m in agent.messages]
    assert trajectory["messages"][0]["content"] == system(agent)
    assert project.local.usage() == {("skill", "use-plus"): 1}
    assert capsys.readouterr().err == ""


def test_what_a_simulation_taught_is_for_the_scripted_model_alone(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(BankStore.open(project.bank))
    assert system(project.run(FIX)) == "You fix code."
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"valve: SIMULATION: {project.bank} was learned or judged by the scripted model, so nothing in it"
    )
    assert (project.attempt().context_items, project.local.usage()) == ((), {})
    agent = project.agent(FIX)
    agent.model.config.model_name = SCRIPTED_MODEL
    instrument(agent).run("add gives wrong sums")
    assert "Check {{ the }} {% operator %} {# first #} \\n" in system(agent)


def test_attempts_at_a_task_share_block_tree_and_task(project: Project) -> None:
    agents = []
    for _ in range(2):
        agents.append(project.run(FIX))
        project.git("checkout", "-q", ".")
    assert system(agents[0]) == system(agents[1])
    first, second = project.attempts()
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert first.context_hash == second.context_hash
    assert first.base_tree == second.base_tree != ""
    assert first.task_id == second.task_id
    project.run("true", task="another task")
    assert len({a.task_id for a in project.attempts()}) == 2


def test_a_committing_agent_leaves_the_same_patch(project: Project) -> None:
    project.run(FIX, "git add -A && git -c user.name=a -c user.email=a@b commit -qm fix && git checkout -qb elsewhere")
    assert "+    return a + b" in project.attempt().patch


def test_without_a_bank_mini_runs_as_stock(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = make_project(tmp_path / "bare")
    monkeypatch.chdir(bare.root)
    agent = bare.run(FIX)
    assert system(agent) == "You fix code."
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "`valve init` makes one" in said
    assert not data_dir.exists()
    with pytest.raises(ConfigError, match="valve init"):
        bare.run(FIX, attempts=3)
    with pytest.raises(BankNotFoundError, match="valve init --bank"):
        bare.run(FIX, bank=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ledger.jsonl", b"\xff\xfe garbage\n", "ledger.jsonl"),
        ("ledger.jsonl", None, "ledger"),
        ("bank.json", b'{"schema_version": 99}', "schema_version is 99"),
        ("valve.toml", b"chek = 'x'", "did you mean 'check'"),
    ],
)
def test_a_bank_that_cannot_be_used_costs_one_line(
    project: Project, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, expected: str
) -> None:
    if content is None:
        (project.bank / name).unlink()
    else:
        (project.bank / name).write_bytes(content)
    before = {p.name: p.read_bytes() for p in project.bank.iterdir()}
    agent = project.run(FIX)
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert expected in said
    assert agent.messages[-1]["extra"]["exit_status"] == "Submitted"
    assert "+    return a + b" in project.attempt().patch
    assert {p.name: p.read_bytes() for p in project.bank.iterdir()} == before
    if name != "valve.toml":
        assert system(agent) == "You fix code."


def test_settings_of_the_bank_apply_but_may_not_run_anything(project: Project) -> None:
    evil = "check = 'touch ran'\nattempts = 3\nlearn = 'inline'\n"
    (project.bank / "valve.toml").write_text(f"top_skills = 0\n{evil}")
    session = Valve()
    session.minisweagent_configure({}, {}, load(["valve"]))
    assert changed_settings(session.settings) == {"top_skills": 0}
    session.minisweagent_configure({"valve": {"learn": "inline"}}, {}, load(["valve"]))
    assert session.settings.learn == "inline"
    agent = project.run(FIX)
    assert system(agent) == "You fix code.", "top_skills"
    assert project.attempt().check == ""
    assert system(project.run(FIX, top_skills=1)) != "You fix code."


def test_a_bank_is_verified_before_use(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    intact = (project.bank / "bank.json").read_bytes()
    evil = "sed -i 's/Check {{ the }}/Delete all tests/' .valve/bank.json"
    project.run(evil)
    capsys.readouterr()
    agent = project.run("true")
    said = capsys.readouterr().err
    assert "does not verify: bank.json" in said
    assert "`valve bank verify`" in said
    assert system(agent) == "You fix code."
    assert system(project.run("true")) == "You fix code.", "and it stays so"

    (project.bank / "bank.json").write_bytes(intact)
    assert "Check {{ the }}" in system(project.run("true")), "it is what it was, and verifies"

    capsys.readouterr()
    project.run("true")
    assert capsys.readouterr().err == ""


def test_a_stopped_or_failing_run_is_recorded_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, outcome, exit_status in (
        (KeyboardInterrupt(), "ungraded", "KeyboardInterrupt"),
        (RuntimeError("the provider is down"), "errored", "RuntimeError"),
    ):
        agent = project.agent(FIX, "echo never")

        def stop(*_: Any, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(agent.model, "format_observation_messages", stop)
        with pytest.raises(type(error)):
            instrument(agent, settings={"check": QUICK}).run("the task")
        attempt = project.attempts()[-1]
        assert (attempt.outcome, attempt.exit_status) == (outcome, exit_status)
        assert "+    return a + b" in attempt.patch
        project.git("checkout", "-q", ".")
    assert "the provider is down" in project.attempts()[-1].reason


def test_a_run_survives_everything_that_goes_wrong_with_its_record(
    project: Project, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.run("true")
    data_dir.joinpath("local").rename(data_dir / "gone")
    (data_dir / "local").write_text("a file where a folder should be")
    agent = project.run(FIX)
    said = capsys.readouterr().err
    assert "was not recorded" in said
    assert agent.messages[-1]["extra"]["exit_status"] == "Submitted"
    assert "a + b" in (project.root / "calc.py").read_text()


def test_a_directory_that_the_agent_removes_is_recorded_without_patch(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError):  # mini's own: it has no directory to go on in
        project.run(f"rm -rf {project.root}")
    attempt = project.attempt()
    assert attempt.outcome == "errored"
    assert attempt.patch == ""
    assert "is gone" in attempt.reason


def test_without_git_the_run_is_recorded_without_its_patch(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    project.run("echo changed > calc.py")
    assert (project.attempt().patch, project.attempt().base_tree) == ("", "")
    assert "install git" in project.attempt().reason
    assert capsys.readouterr().err.count("\n") == 1


def test_another_plugin_may_retrieve_and_watch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from valve_plugin.hookspecs import hookimpl
    from valve_plugin.records import Context

    class Other:
        @hookimpl
        def valve_retrieve(self, issue: str) -> Context:
            return Context(text=f"Advice on: {issue}")

        @hookimpl
        def valve_event(self, name: str, data: dict[str, Any]) -> None:
            seen.append((name, data["outcome"]))

    seen: list[tuple[str, str]] = []
    agent = instrument(project.agent("true"))
    agent._valve_seam.host.manager.register(Other())
    agent.run("the task")
    assert system(agent) == "You fix code.\n\nAdvice on: the task"
    assert seen == [("attempt_finished", "ungraded")]


def test_mini_own_trajectory_file_is_not_part_of_the_patch(project: Project) -> None:
    agent = instrument(project.agent("true", output_path=project.root / "deep" / "t.json"))
    agent.run("the task")
    assert (project.root / "deep" / "t.json").exists()
    assert project.attempt().patch == ""


def test_an_agent_that_works_elsewhere_is_recorded_with_what_it_submits(project: Project) -> None:
    class Container:
        def __init__(self, inner: Any) -> None:
            self.config, self.execute, self.serialize = inner.config, inner.execute, inner.serialize
            self.get_template_vars = inner.get_template_vars

    agent = project.agent("true")
    agent.env = Container(agent.env)
    agent.model.config.outputs[-1]["extra"]["actions"][0]["command"] = (
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; printf 'diff --git a/x b/x\\n'"
    )
    instrument(agent, settings={"check": "true"}).run("the task")
    attempt = project.attempt()
    assert attempt.patch == "diff --git a/x b/x\n"
    assert (attempt.outcome, attempt.base_tree) == ("ungraded", "")
