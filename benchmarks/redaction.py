"""Redaction: how its time grows with the text, and how many lines of ordinary program output it changes.

    python benchmarks/redaction.py                 # both; texts of up to 16 MB, a few minutes
    python benchmarks/redaction.py --megabytes 2   # quick
    python benchmarks/redaction.py --show 40       # and some of the lines that changed

The texts are hostile (parts of patterns, repeated) or ordinary. The ordinary output is made on this machine: logs and
diffs of this repository, test runs, pip, tracebacks, the source of installed libraries, and records with hashes.
The last line is the growth exponent: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

from valve_plugin.redact import Redactor
from valve_plugin.secret_shapes import table

ROOT = Path(__file__).parent.parent
CORPUS_BYTES = 10_000_000
KNOWN = {f"Kq{n}vX7pLm2Zt9Rw{n}aB4": f"KEY_{n}" for n in range(10)}
EXPONENT_SECONDS = 0.02
"""Shorter times are not compared: they are mostly noise."""


def hostile() -> dict[str, str]:
    """Return texts to repeat: what begins like a secret and goes on or fails as late as it can."""
    begins = [begin for kind in table().kinds for begin in kind.begins]
    return {
        "key=a": "key=a",
        "names": "password_token_secret_key_",
        "signs": "key='\"\\':= ",
        "assignments": "password: x1y2z3\n",
        "eyJ": "eyJ",
        "-eyJ.": "-eyJ.",
        "begin key": "-----BEGIN RSA PRIVATE KEY-----\n",
        "end key": "AbC1+/\n-----END RSA PRIVATE KEY-----",
        "urls": "://a:b",
        "beginnings": " ".join(begins),
        "prefixes": " ".join(table().prefixes),
        "known, cut": next(iter(KNOWN))[:9] + " ",
        "known, spaced": " ".join(next(iter(KNOWN))) + " ",
        "digits": "0",
        "escapes": "\x1b[0;",
        "spaces": "key" + " " * 19,
        "netrc": "machine login a ",
        "pgpass": r"h\:5432:*:u:",
        "options": "curl -u a:b ",
        "commands": "mysql htpasswd -b a ",
        "bytes": r"key=b'\x00",
        "colours": "\x1b[31mkey\x1b[0m=",
        "lower that grows": "İpassword=x1",
    }


def grown(unit: str, size: int) -> str:
    """Return a text of `size` characters made of a unit."""
    return (unit * (size // len(unit) + 1))[:size]


def seconds(redactor: Redactor, text: str) -> float:
    """Return the CPU time of redacting a text."""
    start = time.process_time()
    redactor(text)
    return time.process_time() - start


def growth(megabytes: float) -> float:
    """Print a row of times per text, and return the largest exponent between the last sizes."""
    sizes = [int(megabytes * 1e6) >> n for n in (4, 3, 2, 1, 0)]
    redactor, worst = Redactor(KNOWN), 0.0
    rng = random.Random(7)
    base64 = "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=100_003))
    ordinary = {"ordinary: source": "".join(islice(sources(), 60)), "ordinary: base64": base64}
    print("seconds of CPU for " + ", ".join(f"{size / 1e6:g}" for size in sizes) + " MB; the exponent; MB/s")
    for name, unit in (hostile() | ordinary).items():
        times = [seconds(redactor, grown(unit, size)) for size in sizes]
        pairs = [(a, b) for a, b in pairwise(times) if a > EXPONENT_SECONDS]
        exponent = math.log2(pairs[-1][1] / pairs[0][0]) / len(pairs) if pairs else 0.0
        worst = max(worst, exponent)
        print(f"{name:20} {' '.join(f'{t:7.2f}' for t in times)}  {exponent:.2f}  {sizes[-1] / 1e6 / times[-1]:.1f}")
    return worst


def run(*command: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def sources() -> Iterator[str]:
    """Yield source files of installed libraries, in a mixed but constant order."""
    paths = sorted(Path(sysconfig.get_path("purelib")).rglob("*.py"))
    random.Random(1).shuffle(paths)
    for path in paths:
        yield path.read_text("utf-8", "replace")


def tracebacks() -> Iterator[str]:
    """Yield tracebacks of real errors, with the values of arguments that pytest shows."""
    for module in ("json", "email.message", "configparser", "http.client", "urllib.request", "ssl", "smtplib"):
        yield run(sys.executable, "-X", "dev", "-c", f"import {module} as m; [m.__dict__[n](n) for n in dir(m)]")
        yield run(sys.executable, "-c", f"import {module} as m, inspect; print(inspect.getsource(m)); m.password.key")


def corpus() -> dict[str, str]:
    """Return at least 10 MB of ordinary program output, by where it is from."""
    pytest = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    records = [p.read_text("utf-8") for p in sorted(Path(sysconfig.get_path("purelib")).glob("*.dist-info/RECORD"))]
    made = {
        "git log, diffs": run("git", "log", "-p", "-n", "60")[:3_000_000],
        "git log": run("git", "log", "--stat", "--format=fuller", "-n", "1000")[:1_000_000],
        "pytest": run(*pytest, "-v", "tests/theory", "tests/test_codec.py", "tests/test_config.py")
        + run(*pytest, "--collect-only", "-q", "tests"),
        "pip": run(*pip, "list", "-v") + run(*pip, "freeze") + run(*pip, "inspect")[:1_500_000],
        "tracebacks": "".join(tracebacks()),
        "hashes": "".join(records)[:1_000_000],
        "JSON with hashes": "".join(json.dumps(r.splitlines()[:200], indent=1) for r in records)[:1_000_000],
    }
    rest = CORPUS_BYTES - sum(map(len, made.values()))
    text, size = [], 0
    for source in sources():
        if size > max(rest, 2_000_000):
            break
        text.append(source)
        size += len(source)
    return made | {"source code": "".join(text)}


def false_alarms(show: int) -> float:
    """Print, by source, how many lines change, and return the share."""
    redactor, lines, changed, size = Redactor(KNOWN), 0, 0, 0
    for name, text in corpus().items():
        different = [line for line in text.split("\n") if redactor(line) != line]
        # A text as a whole may change where no line alone does.
        whole = redactor(text).count("[redacted:") - text.count("[redacted:")
        count = max(len(different), whole)
        lines, changed, size = lines + text.count("\n") + 1, changed + count, size + len(text)
        print(f"{name:18} {len(text) / 1e6:5.1f} MB  {count:4} of {text.count(chr(10)) + 1:,} lines")
        for line in random.Random(3).sample(different, min(show, len(different))):
            print(f"    {line.strip()[:150]}\n    {redactor(line).strip()[:150]}")
    print(f"false alarms: {changed} of {lines:,} lines in {size / 1e6:.1f} MB, {1000 * changed / lines:.2f} in 1,000")
    return changed / lines


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=16, help="size of the largest text")
    parser.add_argument("--show", type=int, default=0, help="changed lines to print per source")
    parser.add_argument("--only", choices=("growth", "alarms"))
    options = parser.parse_args()
    if options.only != "growth":
        false_alarms(options.show)
    if options.only != "alarms":
        print(f"growth exponent, at most: {growth(options.megabytes):.2f}")


if __name__ == "__main__":
    main()
