"""What faults, full disks, cut files and jumping clocks change in what `valve evolve` writes: nothing.

Each trial harms one run, starts it again where it stopped, and compares its ledger, byte for byte, with that of a run
nothing happened to. The model is a SIMULATION: real agents ask a scripted model through a proxy whose faults are real
HTTP (`provider`), else a plugin's hashes stand for agent and model. Bank, ledger, journal, panel runs, processes and
file systems are real; `clock` puts wrong the time that the program reads. Needs bubblewrap for `provider`, root for
`disk` and `readonly`.

    python benchmarks/reliability.py [--only provider,lost,disk,readonly,two,clock,cut] [--seeds 3]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.evolve import library  # noqa: E402
from tests.faults import campaign  # noqa: E402
from tests.faults.campaign import Trial, judged  # noqa: E402
from tests.faults.proxy import before  # noqa: E402
from valve_plugin.bank.entries import Judged  # noqa: E402
from valve_plugin.bank.store import BankStore  # noqa: E402
from valve_plugin.config import SCRIPTED_MODEL  # noqa: E402
from valve_plugin.lab.simulation.server import start  # noqa: E402
from valve_plugin.tasks.repository import prepare  # noqa: E402
from valve_plugin.tasks.task_set import load  # noqa: E402


class Field:
    """The small repository of the evolution tests, prepared, and banks evolved on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calc = library.write(folder / "calc")
        prepare(load(self.calc).repository)
        self.path = os.pathsep.join([str(library.toy_site(folder / "site")), os.environ.get("PYTHONPATH", "")])
        self.whole = folder / "whole"
        self.evolve(self.whole)

    def evolve(self, bank: Path, *arguments: str, check: bool = True, **env: str) -> library.Done:
        """Evolve a bank with the toy plugin."""
        return library.valve(
            "evolve", *library.TOY, self.calc, "--bank", bank, *arguments, check=check, PYTHONPATH=self.path, **env
        )

    def scratch(self, name: str) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))


def provider(field: Field, seeds: int) -> Iterator[Trial]:
    """Real agents with 30 % of all model calls failing, against the same without."""
    arguments = ("evolve", field.calc, "-c", f"model={SCRIPTED_MODEL}", "-c", "embedding=hashing", "-c", "rho=0.1",
                 "-c", "model_pause=0.05", "--panel-size", "4", "--rollouts", "1", "--workers", "2")  # fmt: skip
    injected, gates, open_ = Counter[str](), 0, 0
    for seed in range(seeds):
        scratch = field.scratch("provider")
        with start(load(field.calc), seed=seed) as server, before(server.base_url, seed, 0.3, slow=6.0) as proxy:
            environ = {**os.environ, **server.environment()}
            for name, where in (("whole", environ), ("faulty", proxy.environment(environ))):
                kwargs = f'model_kwargs={{"seed": {seed}, "timeout": {3 if name == "faulty" else 60}}}'
                library.valve(*arguments, "--bank", scratch / name, "--seed", str(seed), "-c", kwargs, **where)
            injected += proxy.injected
            share = sum(proxy.injected.values()) / (sum(proxy.injected.values()) + proxy.passed)
        verdicts = [e.verdict for e in BankStore.open(scratch / "faulty").entries() if isinstance(e, Judged)]
        gates, open_ = gates + len(verdicts), open_ + sum(v.decision == "indecisive" for v in verdicts)
        how = f"same ledger; {sum(proxy.injected.values())} faults, {share:.0%} of the calls, {len(verdicts)} gates"
        yield judged(f"provider faults, seed {seed}", scratch / "faulty", scratch / "whole", how)
    print("   injected:", ", ".join(f"{kind} {number}" for kind, number in sorted(injected.items())))
    yield Trial("gates left indecisive", open_ * 20 <= gates, f"{open_} of {gates}")


def lost(field: Field, seeds: int) -> Iterator[Trial]:
    """Whole rollouts lost: 30 % of all tries, whatever lost them."""
    for seed in range(seeds):
        bank = field.scratch("lost") / "bank"
        field.evolve(bank, "--workers", str(1 + 2 * seed), TOY_LOST="0.3")
        yield judged(f"30 % of all tries of rollouts lost, {1 + 2 * seed} workers", bank, field.whole)


def disk(field: Field, seeds: int) -> Iterator[Trial]:
    """Full disks, of the bank and of what the machine keeps for it."""
    for seed in range(seeds):
        rng = random.Random(seed)
        for of, sizes in (("bank", [12, 20, 28, 40]), ("attempts", [40, 100, 200, 400])):
            sizes = sorted(size + 4 * rng.randrange(3) for size in sizes)
            yield from campaign.full_disk(field.evolve, field.whole, field.scratch("disk"), sizes, of=of)


def readonly(field: Field, seeds: int) -> Iterator[Trial]:
    """A file system that turns read-only."""
    return campaign.read_only(field.evolve, field.whole, field.scratch("ro"))


def two(field: Field, seeds: int) -> Iterator[Trial]:
    """Two evolves on one bank."""
    for _ in range(seeds):
        yield from campaign.two_at_once(field.evolve, field.whole, field.scratch("two"), field.calc, field.path)


def clock(field: Field, seeds: int) -> Iterator[Trial]:
    """Clocks that jump by years."""
    yield from campaign.clocks(field.evolve, field.whole, field.scratch("clock"), random.Random(0), seeds)


def cut(field: Field, seeds: int) -> Iterator[Trial]:
    """Files cut at every class of byte boundary."""
    for seed in range(seeds):
        rng = random.Random(seed)
        yield from campaign.truncations(field.evolve, field.whole, field.scratch("cut"), rng, 1000)


CAMPAIGNS: dict[str, Callable[[Field, int], Iterator[Trial]]] = {
    f.__name__: f for f in (provider, lost, disk, readonly, two, clock, cut)
}


def main() -> int:
    """Run the campaigns; print each trial and the sums; 1 when one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CAMPAIGNS))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    failed, sums = 0, []
    with tempfile.TemporaryDirectory(prefix="valve-reliability-") as folder:
        os.environ["VALVE_DATA"] = f"{folder}/data"
        field = Field(Path(folder))
        for name in given.only.split(","):
            began, trials = time.monotonic(), []
            print(f"== {name}: {CAMPAIGNS[name].__doc__}")
            for trial in CAMPAIGNS[name](field, given.seeds):
                trials.append(trial)
                print(f"   {'ok  ' if trial.held else 'FAIL'} {trial.what}: {trial.how}", flush=True)
            held = sum(t.held for t in trials)
            failed += len(trials) - held
            sums.append(f"{name} {held}/{len(trials)} in {time.monotonic() - began:.0f} s")
    print("held: " + ", ".join(sums))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
