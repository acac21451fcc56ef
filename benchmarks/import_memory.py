"""Peak memory of `valve tasks import`, over files with more and more rows of which one repository's are wanted.

Each import is a process of its own. Rows have about 10 KB, as SWE-smith's have. A second measurement only reads the
largest file, without a choice of repository, so that every row is looked at.

    python benchmarks/import_memory.py [--rows 600 6000 60000] [--kinds jsonl jsonl.gz json parquet]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WANTED = 5
SOURCE = {
    "calc/ops.py": "def add(a, b):\n    return a + b\n",
    "tests/test_ops.py": "",
}


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield rows of repositories with 500 rows each, and a few of the wanted one among them."""
    passing = [f"tests/test_ops.py::TestOfSomeLength::test_number_{n}[case]" for n in range(180)]
    every = count // WANTED
    for n in range(count):
        repo = "acme/calc" if n % every == every // 2 else f"swesmith/owner__other{n // 500}.0123abcd"
        patch = "--- a/calc/ops.py\n+++ b/calc/ops.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a + b\n"
        patch += f"+    return {n}\n"
        yield {
            "instance_id": f"row{n}", "repo": repo, "patch": patch, "FAIL_TO_PASS": ["tests/test_ops.py::test_add"],
            "PASS_TO_PASS": passing, "problem_statement": "add is wrong", "image_name": "none",
        }  # fmt: skip


def write(path: Path, count: int) -> None:
    """Write a file of the kind that its name ends with."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        schema = pyarrow.Table.from_pylist(list(rows(WANTED))).schema
        with ParquetWriter(path, schema) as writer:
            batch = []
            for row in rows(count):
                batch.append(row)
                if len(batch) == 1000:
                    writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                    batch.clear()
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))
        return
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as file:
        comma = b",\n" if path.suffix == ".json" else b"\n"
        file.write(b"[" if path.suffix == ".json" else b"")
        for n, row in enumerate(rows(count)):
            file.write((comma if n else b"") + json.dumps(row).encode())
        file.write(b"]" if path.suffix == ".json" else b"\n")


def peak(command: list[str], env: dict[str, str]) -> float:
    """Run a command; return its peak memory in MB."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, env={**os.environ, **env}, stdout=output, stderr=output)
        _, status, used = os.wait4(child.pid, 0)
        output.seek(0)
        assert status == 0, output.read().decode()[-2000:]
    return used.ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[600, 6000, 60000])
    parser.add_argument("--kinds", nargs="+", default=["jsonl", "jsonl.gz", "json", "parquet"])
    parser.add_argument("--python", default=sys.prefix, help="a virtual environment with pytest")
    given = parser.parse_args()
    read = "import sys\nfrom valve_plugin.tasks.import_rows import open_rows\n"
    read += "print(sum(isinstance(row, dict) for _, row in open_rows(sys.argv[1], 'train').read()))"
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for path, text in SOURCE.items():
            (place / "source" / path).parent.mkdir(parents=True, exist_ok=True)
            (place / "source" / path).write_text(text)
        for kind in given.kinds:
            peaks = []
            for count in given.rows:
                file = place / f"rows.{kind}"
                write(file, count)
                words = ["tasks", "import", str(file), "--repo", "acme/calc", "--source", str(place / "source")]
                words += ["--python", given.python, "--out", str(place / f"out-{kind}-{count}")]
                env = {"VALVE_DATA": str(place / "data")}
                peaks.append(peak([sys.executable, "-m", "valve_plugin", *words], env))
                only = peak([sys.executable, "-c", read, str(file)], env)
                size = file.stat().st_size / 2**20
                print(
                    f"{kind:9} {count:6} rows  {size:6.0f} MB  import {peaks[-1]:5.0f} MB  only reading {only:5.0f} MB"
                )
                file.unlink()
            ratios.append(peaks[-1] / peaks[0])
    print(f"peak memory, {max(given.rows):,} rows against {min(given.rows):,}: ratio {max(ratios):.2f} at most")


if __name__ == "__main__":
    main()
