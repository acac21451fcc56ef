"""From a source tree to a definition: what is copied, what is left out, which environment is taken."""

from __future__ import annotations

import subprocess
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import msgspec
import pytest

from tests import calc, tools
from tests.lean import lean
from valve_plugin.errors import TaskError
from valve_plugin.sandbox.bubblewrap import UnsafeLocal
from valve_plugin.sandbox.git import create_store, git, read_files
from valve_plugin.tasks.make.define import SuiteNeeds, add_declared, collection_errors, define, read_source
from valve_plugin.tasks.repository import Repository, prepare, read_definition


def tree(where: Path) -> Path:
    """Write the little repository as a source tree."""
    return calc.write(where) / "source"


def test_a_checkout_without_what_git_ignores(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / ".gitignore").write_text("*.log\n_version.py\n")
    tools.put(root, dict.fromkeys(("x.log", "calc/_version.py", ".valve/bank.json", "new.txt"), "x"))
    tools.git(root, "init", "-q")
    found = {path for path, _, _ in read_source(str(root))}
    assert found == {*calc.FILES, ".gitignore", "calc/_version.py", "new.txt"}


def test_a_definition_is_a_snapshot_and_is_kept_while_it_holds(tmp_path: Path, data_dir: Path) -> None:
    root, out = tree(tmp_path), tmp_path / "out"
    venv = str(lean())
    needs = SuiteNeeds(python=f"{venv}/bin/python")
    files = read_source(str(root))
    first = define("acme/calc", files, out, needs)
    assert first.environment == venv
    assert (first.source_roots, first.test_roots) == ((".",), ("tests",))
    assert Path(first.source.removeprefix("path:"), "calc/ops.py").read_text() == calc.OPS
    kept = Repository(**{f: getattr(first, f) for f in first.__struct_fields__} | {"cpu_seconds": 7})
    assert define("acme/calc", files, out, needs, known=kept) is kept
    fewer = define("acme/calc", files, out, needs._replace(ignored=["tests/test_other.py"]), known=kept)
    assert fewer.pytest_args[-1] == "--ignore=tests/test_other.py"
    changed = [*files, ("new.py", "100755", b"")]
    second = define("acme/calc", changed, out, needs, known=kept)
    assert second.source != first.source
    assert [p.name for p in out.iterdir()] == [Path(second.source).name]


def test_metadata_is_left_where_an_installation_would(tmp_path: Path, data_dir: Path) -> None:
    toml = b'[project]\nname = "calc-it"\nversion = "2"\n[project.scripts]\ncalc = "calc:main"\n'
    built = ("calc.egg-info/SOURCES.txt", "build/lib/calc/ops.py", "dist/calc-1.tar.gz", "src/x.egg-info/PKG-INFO")
    files = [*read_source(str(tree(tmp_path))), ("pyproject.toml", "100644", toml)]
    files += [(path, "100644", b"x") for path in built]
    plain = define("acme/calc", files, tmp_path / "out", SuiteNeeds(python=str(lean())))
    found = {str(path.relative_to(plain.source[5:])) for path in Path(plain.source[5:]).rglob("*") if path.is_file()}
    assert found == {*calc.FILES, "pyproject.toml"}
    files.append(("calc/version.py", "100644", b"import importlib.metadata"))
    made = define("acme/calc", files, tmp_path / "out", SuiteNeeds(python=str(lean())))
    code = "from importlib.metadata import version, entry_points as e; print(version('calc-it'), *e(name='calc'))"
    python = Path(made.environment) / "bin/python"
    done = subprocess.run([python, "-c", code], cwd=made.source[5:], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 EntryPoint(name='calc', value='calc:main'")


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no test file found; expected a directory tests/ or"):
        define("acme/calc", [("a.py", "100644", b"")], tmp_path / "out")
    with pytest.raises(TaskError, match=r"--ignore tests/x: no such path; expected one in the source tree"):
        define("acme/calc", read_source(str(tree(tmp_path))), tmp_path / "out", SuiteNeeds(ignored=["tests/x"]))
    with pytest.raises(TaskError, match=r"expected a virtual environment, like \.venv"):
        define("acme/calc", read_source(str(tree(tmp_path))), tmp_path / "out", SuiteNeeds(python=str(tmp_path)))


def wheel(folder: Path, name: str) -> None:
    """Write a package that pip can install."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def rewheel(folder: Path, name: str) -> None:
    """Write a package of this environment."""
    found = distribution(name)
    with zipfile.ZipFile(folder / f"{name}-{found.version}-py3-none-any.whl", "w") as file:
        for path in found.files or ():
            if ".." not in path.parts and path.suffix != ".pyc":
                file.write(path.locate(), path)


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_declared_sets_are_added_until_all_tests_are_collected(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    for name in ("odd_one", "odd_two", "odd_three"):
        wheel(packages, name)
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        rewheel(packages, name)
    for name, value in (("PIP_FIND_LINKS", str(packages)), ("PIP_NO_INDEX", "1")):
        monkeypatch.setenv(name, value)
    toml = (
        '[project]\nname = "calc"\n[project.optional-dependencies]\nother = ["odd-three"]\nbad = ["odd-none"]\n'
        'full = ["odd-one"]\n[dependency-groups]\ntest = [{include-group = "more"}]\nmore = ["odd-two"]\n'
    )
    more = {
        "pyproject.toml": toml,
        "calc/extra.py": "import odd_one\n",
        "tests/test_extra.py": "from calc import extra\ndef test(): pass\n",
        "tests/conftest.py": "import odd_two\n",
    }
    folder = calc.write(tmp_path / "set", files=calc.FILES | more)
    known = read_definition(folder / "repository.toml")
    pin = f"pytest=={version('pytest')}"
    said: list[str] = []
    start = msgspec.structs.replace(known, environment="", requirements=(pin,))
    found = add_declared(start, UnsafeLocal(), said.append)
    assert {line.replace("_", "-") for line in found.requirements} > {"odd-one==1", "odd-two==1", pin}
    assert not any("odd-three" in line for line in said)
    assert said[-1] == "pytest collects all tests"
    assert collection_errors(prepare(found), UnsafeLocal()) == []


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
        read_files(store, oid)


def test_a_snapshot_is_not_written_through_a_link_of_its_tree(tmp_path: Path, data_dir: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    files = [(path, "100644", text.encode()) for path, text in calc.FILES.items()]
    link = ("src", "120000", str(outside).encode())
    for more in ([link, ("src/x.py", "100644", b"")], [link, ("src", "100644", b"")]):
        with pytest.raises(TaskError, match=r"src.*: another file or a link of the same tree is in the way"):
            define("acme/calc", [*files, *more], tmp_path / "out")
    assert list(outside.iterdir()) == []
