"""A person's project with a failing test and a bank, and mini agents that do as they are told in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.bank import build
from tests.tools import git as run_git
from tests.tools import put
from valve_plugin import instrument
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.paths import local_dir
from valve_plugin.records import Attempt, Bank, Item, Proposal

FIX = "sed -i 's/a - b/a + b/' calc.py"
FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CHECK = "python -m pytest -q test_calc.py"
QUICK = "python -c 'from test_calc import test_add; test_add()'"
"""The same test without pytest's start-up time."""
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 2) == 4\n",
    "test_fine.py": "def test_fine():\n    assert True\n",
    ".gitignore": "__pycache__/\n.env\n",
}


def item(name: str = "use-plus", body: str = "Check {{ the }} {% operator %} {# first #} \\n", **fields: Any) -> Item:
    """A skill that retrieval finds for the task of these tests."""
    about = {
        "text": "Sums that come out wrong",
        "scope_hint": "add",
        "source_tasks": ("t",),
        "passes": 2,
        "attempts": 3,
    }
    return Item(kind="skill", name=name, markdown=body, **{**about, **fields})


def make_bank(path: Path, *items: Item) -> BankStore:
    """A bank that accepted these items, verdict and all."""
    store = BankStore.create(path, build.REPO)
    if items:
        for entry in [*build.opening(), *build.accepting(Bank(repo=build.REPO), Proposal(task_id="t", items=items))]:
            store.append(entry)
    return store


def simulate(store: BankStore) -> None:
    """Let a simulation go on in the bank: the scripted model proposes something."""
    store.append(Proposed(proposal=Proposal(task_id="s", items=(item("scripted"),), model=SCRIPTED_MODEL)))


@dataclass
class Project:
    """One person's directory."""

    root: Path
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def bank(self) -> Path:
        return self.root / ".valve"

    @property
    def local(self) -> LocalStore:
        return LocalStore(local_dir(self.bank))

    def attempts(self) -> list[Attempt]:
        return self.local.attempts()

    def attempt(self) -> Attempt:
        (one,) = self.attempts()
        return one

    def agent(self, *commands: str, **config: Any) -> Any:
        """A real mini agent on mini's scripted model: it runs the commands, then submits."""
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.environments.local import LocalEnvironment
        from minisweagent.models.test_models import DeterministicModel, make_output

        outputs = [make_output(f"step {n}", [{"command": c}], cost=0.5) for n, c in enumerate([*commands, FINISH])]
        templates = {"system_template": "You fix code.", "instance_template": "{{ task }}"}
        return DefaultAgent(DeterministicModel(outputs=outputs), LocalEnvironment(), **{**templates, **config})

    def run(self, *commands: str, task: str = "add gives wrong sums", **settings: Any) -> Any:
        """Run an agent under the plugin and return it."""
        agent = instrument(self.agent(*commands), settings={**self.settings, **settings})
        agent.run(task)
        return agent

    def git(self, *arguments: str) -> str:
        return run_git(self.root, *arguments)


def make_project(root: Path, *, git: bool = True) -> Project:
    project = Project(put(root, FILES))
    if git:
        project.git("init", "-q")
        project.git("add", "-A")
        project.git("commit", "-qm", "start")
    return project


@pytest.fixture
def project(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A checkout with one failing test and a bank of one skill, as the working directory."""
    made = make_project(tmp_path / "project")
    make_bank(made.bank, item())
    monkeypatch.chdir(made.root)
    return made
