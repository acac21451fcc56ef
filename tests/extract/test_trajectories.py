"""What a digest keeps of attempts of 5 to 50 steps, made by running the real agent on a real repository."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pluggy
import pytest
from msgspec.structs import replace

from tests.agents.support import SUBMIT, saying, shop
from tests.lab.simulation.rows import FIXED
from valve_plugin.config import Settings
from valve_plugin.extract.digest import BYTES_PER_TOKEN, digest, digests
from valve_plugin.records import Attempt, Context
from valve_plugin.rollouts.attempt import attempt, read_trajectory
from valve_plugin.tasks.task_set import TaskSet

LISTINGS = (
    "ls -la && find . -name '*.py' | head -50",
    "cat vendor/_manager.py",
    "grep -rn 'def ' vendor | head -120",
    "sed -n 1,200p vendor/_hooks.py",
    "cat shop/cart.py",
    "grep -n 'class ' -A 12 vendor/_hooks.py",
    "head -150 vendor/_callers.py",
)
OWN_TEST = """cat > test_own.py <<'EOF'
from shop.cart import in_stock, total


def test_discount():
    assert total([1, 2], 1) == 4


def test_nothing():
    assert total([], 0) == 0


def test_stock():
    assert in_stock(1)
EOF"""
RUN = "python -m pytest -q --tb=long test_own.py 2>&1; echo LAST-RUN"
TRACE = 'python -c "from shop.cart import total; total(None, 1)"; echo LAST-TRACE'
CHECK = """python -c "
from shop.cart import total
for n in range(20):
    print('check', n, total([n], n))
" """
WRONG = "sed -i 's/len(prices)/len(prices) + 0/; s/ - / + /' shop/cart.py"
GUARD = """python - <<'EOF'
from pathlib import Path
path = Path("shop/cart.py")
path.write_text("# totals and stock\\n" + path.read_text())
EOF"""
THOUGHT = "I look at how the totals are computed before I change anything; the issue says that one of them is off. " * 2


def commands(steps: int) -> list[str]:
    """Return the commands of an attempt with so many steps, most of which list things."""
    keys = [WRONG, GUARD, OWN_TEST, TRACE, CHECK, RUN] if steps > 8 else [WRONG, CHECK, RUN]
    fill = [LISTINGS[n % len(LISTINGS)] for n in range(steps - len(keys) - 1)]
    middle = len(fill) // 2
    return [*fill[:middle], *keys[:2], *fill[middle:], *keys[2:], SUBMIT]


def thinking(settings: Settings) -> Settings:
    """Let the model think aloud before each command."""
    outputs = json.loads(settings.mini_config[0].removeprefix("model.outputs="))
    said = [{**output, "content": THOUGHT} for output in outputs]
    return replace(settings, mini_config=(f"model.outputs={json.dumps(said)}",), step_limit=60)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The shop with a library in it, as a task set."""
    folder = tmp_path_factory.mktemp("shop")
    vendor = folder / "source" / "vendor"
    vendor.mkdir(parents=True)
    for path in Path(pluggy.__file__).parent.glob("_*.py"):
        (vendor / path.name).write_bytes(path.read_bytes())
    return folder


def run(taskset: TaskSet, given: list[str], ordinal: int = 0) -> tuple[Attempt, bytes]:
    made = attempt(thinking(saying(*given)), taskset.tasks[0], Context(text=""), ordinal, "evolve")
    assert made.outcome in ("resolved", "unresolved"), made.reason
    return made, read_trajectory(made)


def output(trajectory: bytes, command: str) -> str:
    """Return what the last run of a command printed."""
    messages = json.loads(trajectory)["messages"]
    found = ""
    for said, seen in pairwise(messages):
        actions = (said.get("extra") or {}).get("actions") or []
        if [a["command"] for a in actions] == [command]:
            found = seen["extra"]["raw_output"]
    return str(found).strip("\n")


@pytest.mark.parametrize("steps", [5, 15, *(pytest.param(n, marks=pytest.mark.heavy) for n in (25, 50))])
def test_what_tells_why_survives_and_listings_go_first(repository: Path, data_dir: Path, steps: int) -> None:
    made, trajectory = run(shop(repository), commands(steps))
    assert made.steps == steps
    tokens = Settings().digest_tokens // 3
    text = digest(trajectory, made, tokens=tokens)
    assert len(text.encode()) <= tokens * BYTES_PER_TOKEN
    for command in (RUN, CHECK, *([TRACE] if steps > 8 else [])):
        assert output(trajectory, command) in text, "kept whole"
    for edit in (WRONG, *([GUARD, OWN_TEST] if steps > 8 else [])):
        assert edit.splitlines()[0] in text
    assert "-" in made.patch
    assert made.patch.strip().splitlines()[-1] in text
    assert "Tests that fail with this patch" in text
    assert len(trajectory) > len(text)


def test_a_failing_attempt_names_its_first_edit_that_no_passing_one_made(repository: Path, data_dir: Path) -> None:
    taskset = shop(repository)
    repair = f"cat > shop/cart.py <<'EOF'\n{FIXED}EOF"
    right, first = run(taskset, ["cat shop/cart.py", GUARD, repair, SUBMIT])
    wrong, second = run(taskset, ["cat shop/cart.py", GUARD, WRONG, SUBMIT], 1)
    assert (right.outcome, wrong.outcome) == ("resolved", "unresolved")
    passing, failing = digests([first, second], [right, wrong], tokens=8_000)
    assert "no passing attempt made" not in passing
    told = failing.partition("First edit that no passing attempt made: ")[2]
    assert told.startswith(f"step 3:\n$ {WRONG}\n")
    assert f"Attempt 1, which passed, made instead, at step 3:\n$ {repair.splitlines()[0]}" in told
