"""CPU time that `mini --plugin valve` adds to a run of mini, on a bank of 200 items with a history of gates.

Stock mini and mini with the plugin run in turn on the same task, mini's own scripted model and a git repository
of 100 files; the model costs no time, and litellm, which takes mini seconds to import, is not loaded, so that the
stock run is as short as a run can be. Two independent measurements, user and system time together:

- inside the process, a meter at our entry points (start-up line, option, imports, hooks) adds up what passes
  before mini's own code goes on, and for the git processes that our hooks start, separately. Modules that a stock
  run imports as well are imported before, so that nobody is charged for them;
- from outside, the whole process with its children, with the plugin less without. This holds what mini itself spends
  on the longer system message as well: it prints it, and saves it with every step.

    python benchmarks/overhead.py [--runs 30] [--items 200]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from samples import History, make_bank, words

BUDGET_MS = 50.0
PTH = "minisweagent_valve.pth"

# Runs mini as its script does. With METER, there is a meter around our entry points; the start-up line runs under it
# as well (VALVE_STARTUP=0 keeps `site` from running it first). STOCK is where a stock run leaves its modules' names.
CHILD = '''
import atexit, contextlib, importlib, json, os, resource, sys, time

def children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

class Meter:
    """Adds up the time between entering our code and leaving it; nested entries count once."""
    depth, spent, children = 0, 0.0, 0.0
    parts = {}

    def __call__(self, function, name):
        def metered(*args, **kwargs):
            if self.depth:
                return function(*args, **kwargs)
            self.depth, before, start = 1, children(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                own = time.process_time() - start
                self.depth, self.spent = 0, self.spent + own
                self.children += children() - before
                self.parts[name] = self.parts.get(name, 0.0) + own
        return metered

meter = Meter()
stock = os.environ["STOCK"]
if "METER" not in os.environ:
    atexit.register(lambda: open(stock, "w").write(json.dumps(list(sys.modules))))
else:
    for name in json.load(open(stock)):
        if name not in ("__main__", "minisweagent.run.mini"):
            with contextlib.suppress(ImportError):  # some are no modules, as those of six.moves
                importlib.import_module(name)
    sys.orig_argv = [sys.executable, "/bin/mini"]
    del os.environ["VALVE_STARTUP"]
    line = open(os.environ["METER_PTH"]).read()
    meter(exec, "start-up line")(line, {})
    from valve_plugin import _boot
    _boot.extend = meter(_boot.extend, "option")
    prepare = _boot._prepare

    def prepared(*args):
        """Meter what becomes reachable once the host is imported."""
        request = meter(prepare, "imports and plugins")(*args)
        from valve_plugin.host import instrument, option
        from valve_plugin.host.events import Host
        option.config_specs = meter(option.config_specs, "settings")
        option.attach = meter(option.attach, "attach")
        for event in ("configure", "pre_run", "run", "post_run"):
            setattr(Host, event, meter(getattr(Host, event), event))
        return request

    _boot._prepare = prepared
    report = lambda: {"spent": meter.spent, "children": meter.children, "parts": meter.parts}
    atexit.register(lambda: open(os.environ["METER"], "w").write(json.dumps(report())))
sys.argv[0] = "mini"
from minisweagent.run.mini import app
app()
'''


class Run(NamedTuple):
    """CPU milliseconds of one run."""

    whole: float
    inside: float
    children: float
    parts: dict[str, float]


def make_project(directory: Path) -> None:
    """A git repository of 100 files with one edit in it, and mini's configuration for a scripted model."""
    rng = random.Random(1)
    for n in range(100):
        file = directory / "project" / f"package_{n % 10}" / f"module_{n}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(f"# {words(rng, 12)}" for _ in range(100)))
    git = ["git", "-c", "user.name=b", "-c", "user.email=b@example.org"]
    remote = ["remote", "add", "origin", "git@example.org:benchmark/benchmark.git"]
    for command in (["init", "-q"], remote, ["add", "."], ["commit", "-q", "-m", "start"]):
        subprocess.run([*git, *command], cwd=directory / "project", check=True)
    commands = ["ls", "echo changed >> package_3/module_3.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    outputs = [
        {"role": "assistant", "content": words(rng, 40), "extra": {"actions": [{"command": c}], "cost": 0.01}}
        for c in commands
    ]
    model = {"model_class": "deterministic", "model_name": "scripted", "outputs": outputs}
    (directory / "model.yaml").write_text(json.dumps({"model": model}))
    (directory / "child.py").write_text(CHILD)


def run(directory: Path, bank: Path, task: str, *, plugin: bool, own_script: bool = False) -> Run:
    """Run mini once in a fresh process: its own script, or ours (with the plugin: metered)."""
    metered = plugin and own_script
    subprocess.run(["git", "checkout", "-q", "."], cwd=directory / "project", check=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VALVE_", "MSWEA_", "METER", "PYTHON"))}
    env |= {
        "PYTHONPYCACHEPREFIX": str(directory / "pycache"),  # compiled once, whatever this environment allows
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(directory / "mini"),
        "VALVE_DATA": str(directory / "data"),
        "VALVE_BANK": str(bank),
        "STOCK": str(directory / "modules.json"),
    }
    meter = directory / "meter.json"
    if metered:
        env |= {"METER": str(meter), "METER_PTH": str(Path(__file__).parents[1] / PTH)}
    if metered or not plugin:
        env["VALVE_STARTUP"] = "0"
    script = directory / "child.py" if own_script else Path(sys.executable).parent / "mini"
    command = [sys.executable, str(script)]
    command += [*(["--plugin", "valve"] if plugin else []), "-y", "--exit-immediately", "-t", task]
    command += ["-c", "mini.yaml", "-c", str(directory / "model.yaml"), "-o", str(directory / "t.json")]
    with (directory / "out").open("w") as out:
        process = subprocess.Popen(
            command, cwd=directory / "project", env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((directory / "out").read_text())
    found = json.loads(meter.read_text()) if metered else {"spent": 0.0, "children": 0.0, "parts": {}}
    parts = {name: seconds * 1000 for name, seconds in found["parts"].items()}
    whole = (usage.ru_utime + usage.ru_stime) * 1000
    return Run(whole, found["spent"] * 1000, found["children"] * 1000, parts)


def median(values: list[float]) -> float:
    return statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--items", type=int, default=200)
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        os.environ["VALVE_DATA"] = str(directory / "data")
        make_project(directory)
        bank = make_bank(rng, args.items)
        history = History(directory / "bank")
        (directory / "bank" / "valve.toml").write_text('repo = "benchmark/benchmark"\ntest_command = "pytest"\n')
        history.grow(tuple(item for pair in zip(bank.principles, bank.skills, strict=True) for item in pair))
        run(directory, directory / "bank", "look around", plugin=False, own_script=True)
        stock, ours, metered = [], [], []
        for n in range(args.runs + 1):
            task = words(rng, 200)
            runs = (
                run(directory, directory / "bank", task, plugin=False),
                run(directory, directory / "bank", task, plugin=True),
                run(directory, directory / "bank", task, plugin=True, own_script=True),
            )
            if n:  # the first round compiles and fills caches
                for kept, one in zip((stock, ours, metered), runs, strict=True):
                    kept.append(one)
        report(args, len(history.store.bank.items), history.query, stock, ours, metered)


def report(
    args: argparse.Namespace, items: int, gates: int, stock: list[Run], ours: list[Run], metered: list[Run]
) -> None:
    """Print the parts, both measurements, and the figure last."""
    base = median([r.whole for r in stock])
    inside = median([r.inside for r in metered])
    children = median([r.children for r in metered])
    outside = [b.whole - a.whole for a, b in zip(stock, ours, strict=True)]
    low, high = statistics.quantiles([r.inside for r in metered], n=10, method="inclusive")[::8]
    print(f"{items} items, {gates} gates, {args.runs} runs of each, in turn; CPU milliseconds, medians\n")
    for name in metered[0].parts:
        print(f"  {name:<22} {median([r.parts.get(name, 0.0) for r in metered]):7.2f}")
    print(f"\nour imports and hooks       {inside:7.1f}   (10 % and 90 %: {low:.1f}, {high:.1f})")
    print(f"git processes they start    {children:7.1f}")
    print(f"whole runs, with less without {median(outside):5.1f}")
    print(f"stock run                   {base:7.1f}\n")
    verdict = "within" if inside < BUDGET_MS else "OVER"
    print(
        f"overhead: {inside:.1f} ms CPU in our imports and hooks, {100 * inside / base:.1f} % of a stock run"
        f" ({verdict} the budget of {BUDGET_MS:.0f} ms)"
    )


if __name__ == "__main__":
    main()
