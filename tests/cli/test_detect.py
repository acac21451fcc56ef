"""Language and test command, from the files that projects really have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import put
from valve_plugin.checkout import find
from valve_plugin.cli import init

NPM = '{"scripts": {"test": "vitest"}}'
NPM_DEFAULT = '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'

TREES = {
    "pytest by configuration": (
        {"a.py": "", "pyproject.toml": "[tool.pytest.ini_options]"},
        "Python",
        "python -m pytest",
    ),
    "pytest by its files": ({"a.py": "", "tests/test_a.py": ""}, "Python", "python -m pytest"),
    "tox without pytest": ({"a.py": "", "tox.ini": "[testenv]"}, "Python", "tox"),
    "npm": ({"a.js": "", "package.json": NPM}, "JavaScript", "npm test"),
    "npm's placeholder is no test": ({"a.js": "", "package.json": NPM_DEFAULT}, "JavaScript", ""),
    "broken package.json": ({"a.js": "", "package.json": "{"}, "JavaScript", ""),
    "go": ({"a.go": "", "go.mod": ""}, "Go", "go test ./..."),
    "rust": ({"src/a.rs": "", "Cargo.toml": ""}, "Rust", "cargo test"),
    "gradle wrapper": ({"A.java": "", "build.gradle": "", "gradlew": ""}, "Java", "./gradlew test"),
    "make": ({"a.c": "", "Makefile": "all:\n\ntest: all\n\t./run\n"}, "C", "make test"),
    "make, an assignment is no target": ({"a.c": "", "Makefile": "test := x\n"}, "C", ""),
    "the main language speaks first": (
        {"a.py": "", "b.py": "", "c.js": "", "package.json": NPM, "tests/test_a.py": ""},
        "Python",
        "python -m pytest",
    ),
    "others' code does not count": (
        {"a.go": "", "go.mod": "", "node_modules/x/a.js": "", "node_modules/b.js": ""},
        "Go",
        "go test ./...",
    ),
    "nothing": ({"README": ""}, "", ""),
}


@pytest.mark.parametrize(("files", "language", "command"), TREES.values(), ids=TREES)
def test_a_source_tree(tmp_path: Path, files: dict[str, str], language: str, command: str) -> None:
    found = init.detect_language(put(tmp_path, files))
    assert found.value == language
    tests = init.detect_tests(tmp_path, found.value)
    assert tests.value == command
    assert tests.how


def test_binary_files_are_survived(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\x00" * 100)
    (tmp_path / "package.json").symlink_to("/dev/zero")
    assert init.detect_tests(tmp_path, "Python").value == ""


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({"pyproject.toml": '[project]\nname = "isodate"\n'}, "isodate"),
        ({"pyproject.toml": '[tool.poetry]\nname = "tomlkit"\n'}, "tomlkit"),
        ({"setup.cfg": "[metadata]\nname = h2\n"}, "h2"),
        ({"setup.py": "from setuptools import setup\nsetup(name='toolz')\n"}, "toolz"),
        ({"PKG-INFO": "Metadata-Version: 2.1\nName: wcwidth\n"}, "wcwidth"),
        ({"pyproject.toml": '[project]\nname = "../up"\n'}, "isodate-0.7.2"),
        ({"pyproject.toml": "project = 1\ntool = 2\n"}, "isodate-0.7.2"),
        ({"pyproject.toml": "[project]\nname = 1\n[tool]\npoetry = []\npytest = 0\n"}, "isodate-0.7.2"),
        ({"pyproject.toml": "\xff["}, "isodate-0.7.2"),
        ({}, "isodate-0.7.2"),
    ],
)
def test_a_repository_without_a_remote_is_called_as_its_project(
    tmp_path: Path, files: dict[str, str], value: str
) -> None:
    folder = tmp_path / "isodate-0.7.2"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="latin-1")
    (folder / "x.py").write_text("")
    assert init.detect_name(find(folder)).value == value
    (folder / ".git").mkdir()
    assert init.detect_name(find(folder)).value == value
    (folder / ".git/config").write_text('[remote "origin"]\n\turl = https://example.org/owner/name.git\n')
    assert init.detect_name(find(folder)).value == "owner/name"
