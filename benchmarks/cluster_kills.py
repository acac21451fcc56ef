"""One ledger on a Ray cluster of three nodes, whatever is killed: workers, nodes, the head and with it all nodes.

The cluster is real, of processes of this machine; agents are mini's own in bubblewrap, the model is the scripted one: a
SIMULATION. Kills come at random times of a run. A node or a cluster that was killed starts again; a run that paused
meanwhile (exit code 3) does, too.

    python benchmarks/cluster_kills.py --kills 20 --folder kills --hours 1    # again and again, until it is done
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import once
from tests.evolve import library
from tests.lean import lean
from tests.rollouts.cluster import RayCluster

KINDS = ("worker", "node", "head")
NODES = ("head", "second", "third")
RUN = (
    "--simulate", "-c", "embedding=hashing", "-c", "rho=0.1", "--panel-size", "2", "--rollouts", "2", "--limit", "4",
    "--workers", "3",
)  # fmt: skip
PER_RUN = 9
"""Kills a run gets, at most."""
PAUSED = 3
_END_SECONDS = 60.0


def start(tasks: Path, bank: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start a run; it goes on where the last one of this bank ended."""
    command = [sys.executable, "-m", "valve_plugin", "evolve", str(tasks), "--bank", str(bank), *RUN, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(run: subprocess.Popen[bytes]) -> bool:
    """Wait for a run; return whether it came to its end, and did not pause."""
    said = run.communicate()[1].decode("utf-8", "replace")
    assert run.returncode in (0, PAUSED), f"the run failed ({run.returncode}): {said[-2000:]}"
    return run.returncode == 0


def struck(
    tasks: Path,
    bank: Path,
    cluster: RayCluster,
    hits: Counter[str],
    most: int,
    seconds: float,
    chance: random.Random,
    keep: Callable[[], object],
) -> None:
    """Run to the end, under so many kills of each kind altogether and PER_RUN in this run at most; count and keep them.

    What is started here ends with it, also where it fails.
    """
    run, kills = start(tasks, bank, *cluster.arguments), 0
    try:
        while True:
            kind = min(KINDS, key=lambda kind: hits[kind])
            try:
                run.wait(chance.uniform(0, 2 * seconds / PER_RUN) if kills < PER_RUN and hits[kind] < most else None)
            except subprocess.TimeoutExpired:
                struck = cluster.kill(kind, chance)
                hits[kind] += struck
                kills += struck
                keep()
                cluster.start_again(*NODES)
            if run.poll() is not None:
                if ended(run):
                    return
                run = start(tasks, bank, *cluster.arguments)
    finally:
        run.terminate()  # nothing where it has ended
        with suppress(subprocess.TimeoutExpired):
            run.communicate(timeout=_END_SECONDS)
        run.kill()


def main() -> None:
    """Run everything; the figures come last."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=20, help="of each kind")
    options.add_argument("--hours", type=float, default=24.0, help="after which no further run starts")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--folder", type=Path, help="what is done is kept here, and the next start goes on with it")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name, RayCluster(folder := (given.folder or Path(name)).resolve()) as cluster:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["VALVE_DATA"] = str(folder / "data")
        once.root = folder / "once"
        state, began = folder / "state.json", time.monotonic()
        tasks, expected, seconds = measured(folder, cluster)
        done = json.loads(state.read_text()) if state.exists() else {"hits": {}, "banks": 0, "equal": 0}
        hits = Counter(dict.fromkeys(KINDS, 0) | done["hits"])
        while min(hits.values()) < given.kills and time.monotonic() - began < given.hours * 3600:
            bank = folder / f"bank-{done['banks']}"
            chance = random.Random(f"{given.seed} {bank.name} {sum(hits.values())}")
            struck(tasks, bank, cluster, hits, given.kills, seconds, chance, lambda: keep(state, done, hits))
            done["banks"] += 1
            done["equal"] += (bank / "ledger.jsonl").read_bytes() == expected
            keep(state, done, hits)
            ledgers = f"{done['equal']} of {done['banks']}"
            print(f"{time.monotonic() - began:.0f} s: kills {dict(hits)}, ledgers {ledgers}", flush=True)
    print(f"ledgers equal: {done['equal']} of {done['banks']}")


def keep(state: Path, done: Mapping[str, object], hits: Mapping[str, int]) -> None:
    """Write what is done; the next start goes on with it, also in the middle of a run."""
    new = state.with_suffix(".new")
    new.write_text(json.dumps({**done, "hits": hits}))
    new.replace(state)


def measured(folder: Path, cluster: RayCluster) -> tuple[Path, bytes, float]:
    """Return the tasks, the ledger of a run here, and the seconds of one on the cluster, which has the same ledger."""
    tasks = folder / "calc"
    if not tasks.exists():
        library.write(tasks, lean())
    assert ended(start(tasks, folder / "local"))
    expected = (folder / "local" / "ledger.jsonl").read_bytes()
    cluster.start_again(*NODES)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as bank:
        assert ended(start(tasks, Path(bank, "bank"), *cluster.arguments))
        assert Path(bank, "bank", "ledger.jsonl").read_bytes() == expected
    return tasks, expected, time.monotonic() - began


if __name__ == "__main__":
    main()
