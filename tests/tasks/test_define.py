"""From a source tree to a definition: what is copied, what is left out, which environment is taken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lean import lean
from tests.rollouts import calc
from valve_plugin.errors import TaskError
from valve_plugin.tasks import history
from valve_plugin.tasks.define import define, read_source
from valve_plugin.tasks.git import create_store, git
from valve_plugin.tasks.repository import Repository


def tree(where: Path) -> Path:
    """Write the little repository as a source tree."""
    return calc.write(where) / "source"


def test_a_checkout_without_what_git_ignores(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / ".gitignore").write_text("*.log\n_version.py\n")
    for name in ("x.log", "calc/_version.py", ".valve/bank.json", "new.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    found = {path for path, _, _ in read_source(str(root))}
    assert found == {*calc.FILES, ".gitignore", "calc/_version.py", "new.txt"}


def test_a_definition_is_a_snapshot_and_is_kept_while_it_holds(tmp_path: Path, data_dir: Path) -> None:
    root, out = tree(tmp_path), tmp_path / "out"
    venv = str(lean())
    options = {"python": f"{venv}/bin/python"}
    files = read_source(str(root))
    first = define("acme/calc", files, out, **options)  # type: ignore[arg-type]
    assert first.environment == venv
    assert (first.source_roots, first.test_roots) == ((".",), ("tests",))
    assert Path(first.source.removeprefix("path:"), "calc/ops.py").read_text() == calc.OPS
    kept = Repository(**{f: getattr(first, f) for f in first.__struct_fields__} | {"cpu_seconds": 7})
    assert define("acme/calc", files, out, known=kept, **options) is kept  # type: ignore[arg-type]
    fewer = define("acme/calc", files, out, known=kept, ignored=["tests/test_other.py"], **options)  # type: ignore[arg-type]
    assert fewer.pytest_args[-1] == "--ignore=tests/test_other.py"
    changed = [*files, ("new.py", "100755", b"")]
    second = define("acme/calc", changed, out, known=kept, **options)  # type: ignore[arg-type]
    assert second.source != first.source
    assert [p.name for p in out.iterdir()] == [Path(second.source).name]


def test_metadata_is_left_where_an_installation_would(tmp_path: Path, data_dir: Path) -> None:
    toml = b'[project]\nname = "calc-it"\nversion = "2"\n[project.scripts]\ncalc = "calc:main"\n'
    files = [*read_source(str(tree(tmp_path))), ("pyproject.toml", "100644", toml)]
    made = define("acme/calc", files, tmp_path / "out", python=str(lean()))
    code = "from importlib.metadata import version, entry_points as e; print(version('calc-it'), *e(name='calc'))"
    python = Path(made.environment) / "bin/python"
    done = subprocess.run([python, "-c", code], cwd=made.source[5:], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 EntryPoint(name='calc', value='calc:main'")


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no test file found; expected a directory tests/ or"):
        define("acme/calc", [("a.py", "100644", b"")], tmp_path / "out")
    with pytest.raises(TaskError, match=r"--ignore tests/x: nothing there; expected a path of the source tree"):
        define("acme/calc", read_source(str(tree(tmp_path))), tmp_path / "out", ignored=["tests/x"])
    with pytest.raises(TaskError, match=r"expected a virtual environment, like \.venv"):
        define("acme/calc", read_source(str(tree(tmp_path))), tmp_path / "out", python=str(tmp_path))


@pytest.mark.parametrize("folder", ["..", ".git", ".GIT"])
def test_a_path_that_git_would_not_write_is_refused(tmp_path: Path, folder: str) -> None:
    store = tmp_path / "store"
    create_store(store)
    oid = git("hash-object", "-w", "--stdin", git_dir=store, data=b"x").decode().strip()
    for mode, name in (("100644", "x.py"), ("40000", folder)):
        entry = f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid)
        words = ["hash-object", "-w", "-t", "tree", "--literally", "--stdin"]
        oid = git(*words, git_dir=store, data=entry).decode().strip()
    with pytest.raises(TaskError, match=rf"has the path '{folder}/x.py', which git refuses to check out"):
        history.files_at(store, oid)


def test_a_snapshot_is_not_written_through_a_link_of_its_tree(tmp_path: Path, data_dir: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    files = [(path, "100644", text.encode()) for path, text in calc.FILES.items()]
    link = ("src", "120000", str(outside).encode())
    for more in ([link, ("src/x.py", "100644", b"")], [link, ("src", "100644", b"")]):
        with pytest.raises(TaskError, match=r"src.*: a link or another file of its tree is in its way"):
            define("acme/calc", [*files, *more], tmp_path / "out")
    assert list(outside.iterdir()) == []
