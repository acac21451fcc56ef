"""Reading a project's metadata: every way to declare things, and nothing that crashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.tasks.make.project import examine, find_cures, imported_modules, required_packages

NAMES = ("pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "PKG-INFO", "tests/test_a.py", "requirements-dev.txt")


def tree(**files: str) -> dict[str, bytes]:
    """Return files of a tree; in keys, __ stands for / and _dot_ for a dot."""
    named = {name.replace("__", "/").replace("_dot_", "."): text.encode() for name, text in files.items()}
    return {"acme/__init__.py": b"", "tests/test_a.py": b"", **named}


DECLARATIONS = [
    tree(pyproject_dot_toml='[project]\nname = "acme"\nversion = "1.2"\ndependencies = ["dep>=1"]\n'
         '[project.optional-dependencies]\ntest = ["tool[x]==3; python_version<\'3.9\'"]\n'),
    tree(pyproject_dot_toml='[project]\nname = "acme"\nversion = "1.2"\ndependencies = ["dep>=1"]\n'
         '[dependency-groups]\ntest = ["tool[x]", {include-group = "other"}]\n'),
    tree(pyproject_dot_toml='[tool.poetry]\nname = "acme"\nversion = "1.2"\n[tool.poetry.dependencies]\n'
         'python = ">=3.8"\ndep = "^1"\nmaybe = {version = "1", optional = true}\n'
         '[tool.poetry.group.dev.dependencies]\n"tool[x]" = "*"\n'),
    tree(setup_dot_cfg="[metadata]\nname = acme\n[options]\ninstall_requires =\n  dep>=1\n"
         "[options.extras_require]\ntest =\n  tool[x]\n"),
    tree(setup_dot_py="import x\nx.setup(name='acme', version='1.2', install_requires=['dep>=1'], "
         "tests_require=['tool[x]'], packages=x.find())"),
    tree(setup_dot_py="setup(name='acme', install_requires=['dep>=1'])",
         tox_dot_ini="[testenv]\ndeps =\n  py38: tool[x]\n"),
    tree(setup_dot_py="setup(name='acme', install_requires=['dep>=1'])",
         **{"requirements__dev_dot_txt": "# tools\n-r other.txt\ntool[x]==1 # why\nhttps://x/y.whl\n"}),
]  # fmt: skip


@pytest.mark.parametrize("files", DECLARATIONS)
def test_each_way_to_declare_requirements(files: dict[str, bytes]) -> None:
    project = examine(files)
    assert project.name == "acme"
    assert project.runtime == ("dep>=1",)
    assert project.declared == {"tool": "tool[x]"}
    assert (project.source_roots, project.test_roots) == ((".",), ("tests",))


def test_a_source_archive_says_what_its_metadata_computed() -> None:
    info = "Name: acme\nVersion: 3\nRequires-Dist: dep>=1\nRequires-Dist: other; extra == 'x'\n\nText"
    project = examine({**tree(), "PKG-INFO": info.encode()})
    assert (project.name, project.version, project.runtime) == ("acme", "3", ("dep>=1",))


@pytest.mark.parametrize(
    ("paths", "sources", "tests"),
    [
        (["src/acme/a.py", "tests/test_a.py"], ("src", "."), ("tests",)),
        (["acme/a.py", "acme/tests/test_a.py", "acme/tests/sub/tests/test_b.py"], (".",), ("acme/tests",)),
        (["acme.py", "test_acme.py", "more_test.py"], (".",), ("more_test.py", "test_acme.py")),
        (["acme/a.py", "tests/readme.txt"], (".",), ()),
    ],
)
def test_layouts(paths: list[str], sources: tuple[str, ...], tests: tuple[str, ...]) -> None:
    project = examine(dict.fromkeys(paths, b""))
    assert (project.source_roots, project.test_roots) == (sources, tests)


def test_pytest_is_believed_about_where_tests_are() -> None:
    files = {**tree(), "checks/test_b.py": b"", "pytest.ini": b"[pytest]\ntestpaths = checks gone\n"}
    assert examine(files).test_roots == ("checks",)


def test_a_package_that_holds_its_tests_stays_source() -> None:
    paths = ["acme/a.py", "acme/tests/test_a.py", "acme/x/tests/test_x.py", "acme/x/x_test.py", "acme/x/y.py"]
    files = {**dict.fromkeys(paths, b""), "pytest.ini": b"[pytest]\ntestpaths = acme\n"}
    assert examine(files).test_roots == ("acme/tests", "acme/x/tests", "acme/x/x_test.py")


def test_only_what_tests_need_and_only_known_packages() -> None:
    files = tree(
        pyproject_dot_toml='[project]\nname = "acme"\ndependencies = ["six", "odd-er"]\n'
        '[project.optional-dependencies]\ndev = ["sphinx", "Odd.Name>=2", "pytest-mock", "pytest-cov", "pytest<10"]\n',
        tests__test_a_dot_py="import _pytest, odd_name, odder, yaml, six, acme, os, evil_typo\nfrom .helper import x\n"
        "import helper\n",
        tests__helper_dot_py="from hypothesis import given",
    )
    needed, missing = required_packages(examine(files), files)
    assert sorted(needed) == ["Odd.Name>=2", "hypothesis", "pytest-mock", "pytest<10", "pytest<9", "pyyaml"]
    assert missing == ("evil_typo",)


SETS = tree(
    pyproject_dot_toml='[project]\nname = "acme"\n[project.optional-dependencies]\n'
    'full = ["itsdangerous", "python-multipart>=0.0.18", "pyyaml"]\n'
    '[dependency-groups]\ntest = ["trustme", {include-group = "Type_ing"}]\ntype-ing = ["httpx"]\n'
    'round = [{include-group = "round"}, "six"]\n',
    requirements_dot_txt="-e .[full]\nanyio==1\n",
)


def test_sets_of_requirements_with_included_groups() -> None:
    assert examine(SETS).sets == {
        "extra full": ("itsdangerous", "python-multipart>=0.0.18", "pyyaml"),
        "group test": ("trustme", "httpx"),
        "group type-ing": ("httpx",),
        "group round": ("six",),
        "requirements.txt": ("anyio",),
    }


@pytest.mark.parametrize(
    ("line", "about", "parts"),
    [
        ("ModuleNotFoundError: No module named 'itsdangerous'", "itsdangerous", ["extra full", "--with itsdangerous"]),
        (
            "ModuleNotFoundError: No module named 'multipart.x'",
            "multipart.x",
            ["--with python-multipart", "--auto-env"],
        ),
        ("AssertionError: The `python-multipart` library must be installed.", "python-multipart", ["extra full"]),
        ("ModuleNotFoundError: No module named 'msgspec._x'", "msgspec._x", ["--with msgspec"]),  # of our environment
        ("ModuleNotFoundError: No module named 'acme._fast'", "acme._fast", ["of the source itself", "--python VENV"]),
        ("ModuleNotFoundError: No module named 'evil_typo'", "evil_typo", ["no known package", "--with PACKAGE"]),
    ],
)
def test_what_is_missing_is_cured(line: str, about: str, parts: list[str]) -> None:
    cures = find_cures([line, "assert 1 == 2", line], examine(SETS), ["trustme==1"])
    assert list(cures) == [about]
    assert all(part in cures[about] for part in parts), cures


def test_what_is_installed_or_not_missing_needs_no_cure() -> None:
    lines = ["AssertionError: trustme must be installed", "AssertionError: pyyaml is 3, expected 4"]
    assert find_cures(lines, examine(SETS), ["trustme==1"]) == {}


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=60) | st.text(max_size=60).map(str.encode)))
def test_nothing_crashes(files: dict[str, bytes]) -> None:
    project = examine(files)
    required_packages(project, files)
    assert imported_modules(project, files).isdisjoint({"os", "sys"})
