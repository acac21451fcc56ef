"""The same bugs, in SWE-smith's container image and in bubblewrap: the scripted model comes to the same verdicts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import images
from tests.evolve.library import valve
from tests.rollouts.cluster import RayCluster
from tests.tools import need, need_module
from valve_plugin.bank.entries import Judged
from valve_plugin.bank.store import BankStore
from valve_plugin.sandbox.engine import OWNER_LABEL, owner

SMALL = (
    "--simulate", "-c", "embedding=hashing", "-c", "rho=0.1", "-c", "screen=0", "-c", "pairing=paper",
    "--panel-size", "2", "--rollouts", "1",
)  # fmt: skip


@pytest.mark.heavy
def test_an_evolution_in_containers_here_or_on_nodes_gives_the_verdicts_of_one_in_bubblewrap(
    calc: Path, tmp_path: Path
) -> None:
    need("bwrap")
    need("podman")
    need_module("ray")
    name = images.IMAGE.replace("calc", "evolved")
    source = {str(p.relative_to(calc / "source")): p.read_text() for p in (calc / "source").rglob("*.py")}
    (tmp_path / "image").mkdir()
    images.build(tmp_path / "image", name, {"main": [source]}, {})
    rows = [{**json.loads(line), "image_name": name} for line in (calc / "tasks.jsonl").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    valve("tasks", "import", tmp_path / "rows.jsonl", "--out", tmp_path / "tasks")
    assert f'source = "image:{name}"' in (tmp_path / "tasks" / "repository.toml").read_text()
    found = []
    with RayCluster(tmp_path / "nodes") as cluster:
        cluster.start("head")
        for number, (kind, tasks, where) in enumerate((
            ("bwrap", calc, []), ("podman", tmp_path / "tasks", []), ("podman", tmp_path / "tasks", cluster.arguments)
        )):  # fmt: skip
            bank, more = tmp_path / f"bank-{number}", ("--limit", "1", "--workers", "2", "-c", f"sandbox={kind}")
            valve("evolve", tasks, "--bank", bank, *SMALL, *more, *where)
            found.append(verdicts(BankStore.open(bank)))
        assert cluster.rollouts("head") > 0
    assert found[0] == found[1] == found[2]
    assert found[0][1], "some task was mixed and its proposal was judged"
    label = f"label={OWNER_LABEL}={owner()}"
    assert not subprocess.run(["podman", "ps", "-aq", "--filter", label], capture_output=True, check=True).stdout


def verdicts(store: BankStore) -> tuple[list[tuple[str, int, str]], list[object]]:
    """Return the outcome of every attempt, and of every gate with all its rollouts."""
    attempts = sorted((a.task_id, a.ordinal, a.outcome) for a in store.local.attempts())
    gates = [e.verdict for e in store.entries() if isinstance(e, Judged)]
    judged = [(v.decision, [(o.task_id, o.ordinal, o.outcome) for o in v.outcomes]) for v in gates]
    assert {outcome for _, _, outcome in attempts} <= {"resolved", "unresolved"}
    return attempts, [*judged]
