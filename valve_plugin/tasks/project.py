"""What a Python project's own files say: names, requirements, where source and tests are. Pure."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from email.parser import HeaderParser
from pathlib import PurePosixPath
from typing import Any

from msgspec import field

from valve_plugin.records import Record
from valve_plugin.rollouts.protect import is_protected
from valve_plugin.tasks.syntax import parsed
from valve_plugin.tasks.testing_tools import MODULES, WELL_KNOWN, is_unwanted_plugin

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Files = Mapping[str, bytes]
PYTEST = "pytest<9"
"""9 refuses what conftest files did for years."""
_TEST_DIRS = ("tests", "test", "testing", "testsuite")
_SOURCE_DIRS = ("src", "lib", "python")
_REQUIREMENT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIREMENT_FILE = re.compile(
    r"(^|/)(requirements[^/]*|[^/]*requirements|requirements/[^/]+|requirements_[^/]+)\.(txt|in)$"
)
_NOT_PACKAGES = {*_TEST_DIRS, "docs", "doc", "examples", "benchmarks", "scripts", "tools", "bin", "build", "dist"}


class Project(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found; empty where nothing says it."""

    name: str = ""
    version: str = ""
    runtime: tuple[str, ...] = ()
    """Requirements of the library itself."""
    declared: dict[str, str] = field(default_factory=dict)
    """Requirements of its extras, groups, tox and requirement files, by normalized name."""
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)
    source_roots: tuple[str, ...] = (".",)
    test_roots: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Importable names of the tree, tests included."""


def examine(files: Files) -> Project:
    """Read a project's metadata and layout from its files."""
    toml = _toml(files, "pyproject.toml")
    core, poetry = _table(toml, "project"), _table(toml, "tool", "poetry")
    setup, keywords = _ini(files, "setup.cfg"), _setup_py(files)
    info = HeaderParser().parsestr(_text(files, "PKG-INFO"))
    roots = _source_roots(files)
    runtime = [*_strings(core.get("dependencies")), *_lines(setup, "options", "install_requires")]
    runtime += [*_strings(keywords.get("install_requires")), *_poetry(poetry.get("dependencies", {}))]
    shipped = [line for line in info.get_all("Requires-Dist") or [] if "extra ==" not in line]
    names = (core.get("name"), poetry.get("name"), info["Name"], keywords.get("name"), _value(setup, "name"))
    versions = (core.get("version"), poetry.get("version"), info["Version"], keywords.get("version"))
    return Project(
        name=next((name for name in names if isinstance(name, str)), ""),
        version=next((v for v in versions if isinstance(v, str)), ""),
        runtime=tuple(dict.fromkeys(r for r in runtime or shipped if _REQUIREMENT.match(r))),
        declared=_declared(files, toml, setup, keywords),
        entry_points=_entry_points(core, poetry),
        source_roots=roots,
        test_roots=_test_roots(files, toml),
        packages=_packages(files, roots),
    )


def wanted(project: Project, files: Files) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (what the tests need beside the library's own requirements, modules nothing names a package for).

    Needed is what the tests import, and plugins of pytest that are declared. A package is taken only if the project
    declares it or it is well known: installing whatever has a module's name would be asking for trouble.
    """
    needed, missing = {"": PYTEST, "pytest": project.declared.get("pytest", "pytest")}, []
    own = {requirement_name(r) for r in project.runtime}
    run_together = {name.replace("-", "") for name in own}  # `minisweagent` is of mini-swe-agent
    for module in sorted(imported(project, files)):
        names = [normalize(name) for name in (*MODULES.get(module, ()), module)]
        if own.intersection(names) or module.lower() in run_together:
            continue
        if found := next((name for name in names if name in project.declared), None):
            needed.setdefault(found, project.declared[found])
        elif found := next((name for name in names if name in WELL_KNOWN), None):
            needed.setdefault(found, found)
        else:
            missing.append(module)
    for name, requirement in sorted(project.declared.items()):
        if name.startswith("pytest-") and not is_unwanted_plugin(name):
            needed.setdefault(name, requirement)
    return tuple(needed.values()), tuple(missing)


def imported(project: Project, files: Files) -> set[str]:
    """Return the top-level modules that tests import and neither Python nor the project itself has."""
    found: set[str] = set()
    helpers = {PurePosixPath(path).stem for path in files if is_protected(path, project.test_roots)}
    for path, content in files.items():
        if path.endswith(".py") and is_protected(path, project.test_roots):
            found.update(_imports(content))
    parts = {part for root in project.test_roots for part in PurePosixPath(root).parts}
    return found - sys.stdlib_module_names - set(project.packages) - helpers - parts


def normalize(name: str) -> str:
    """Return a package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """Return the normalized package name of a requirement; empty when it is none."""
    match = _REQUIREMENT.match(requirement)
    return normalize(match.group()) if match else ""


def _source_roots(files: Files) -> tuple[str, ...]:
    for root in _SOURCE_DIRS:
        below = [
            PurePosixPath(path).parts[1:] for path in files if path.startswith(f"{root}/") and path.endswith(".py")
        ]
        if f"{root}/__init__.py" not in files and any(len(parts) <= 2 for parts in below):
            return root, "."
    return (".",)


def _test_roots(files: Files, toml: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where tests are: what pytest is told, else directories called so, else test files at the top."""
    pytest = _table(toml, "tool", "pytest", "ini_options")
    told = pytest.get("testpaths", [])
    for name, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        told = told or _lines(_ini(files, name), section, "testpaths")
    told = told.split() if isinstance(told, str) else [word for line in _strings(told) for word in line.split()]
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    found = [root for root in (str(PurePosixPath(t)) for t in told) if root in folders and _has_tests(files, root)]
    if found and "." not in found:
        return tuple(dict.fromkeys(found))
    named = [f for f in sorted(folders, key=lambda f: (f.count("/"), f)) if PurePosixPath(f).name in _TEST_DIRS]
    outer: list[str] = []
    for folder in named:
        if _has_tests(files, folder) and not any(folder.startswith(f"{o}/") for o in outer):
            outer.append(folder)
    return tuple(outer) or tuple(sorted(p for p in files if re.fullmatch(r"(test_[^/]*|[^/]*_test)\.py", p)))


def _has_tests(files: Files, root: str) -> bool:
    pattern = re.compile(rf"{re.escape(root)}/(.*/)?(test_[^/]*|[^/]*_test)\.py")
    return any(pattern.fullmatch(path) for path in files)


def _packages(files: Files, roots: Iterable[str]) -> tuple[str, ...]:
    found = set()
    for path in files:
        for root in roots:
            inside = path.removeprefix(f"{root}/") if root != "." else path
            if path.endswith(".py") and (root == "." or inside != path):
                found.add(inside.split("/")[0].removesuffix(".py"))
    return tuple(sorted(name for name in found if name.isidentifier()))


def _declared(files: Files, toml: Mapping[str, Any], setup: Any, keywords: Mapping[str, Any]) -> dict[str, str]:
    core, poetry = _table(toml, "project"), _table(toml, "tool", "poetry")
    lines: list[str] = []
    for table in (
        core.get("optional-dependencies", {}),
        toml.get("dependency-groups", {}),
        keywords.get("extras_require"),
    ):
        lines += [line for group in _values(table) for line in _strings(group)]
    lines += _strings(keywords.get("tests_require")) + _lines(setup, "options", "tests_require")
    if setup.has_section("options.extras_require"):
        lines += [
            line for key in setup["options.extras_require"] for line in _lines(setup, "options.extras_require", key)
        ]
    tox = _ini(files, "tox.ini")
    lines += [line for section in tox.sections() for line in _lines(tox, section, "deps")]
    lines += _poetry(poetry.get("dev-dependencies", {}))
    for group in _values(poetry.get("group", {})):
        lines += _poetry(group.get("dependencies", {}) if isinstance(group, dict) else {})
    for path in sorted(files):
        if _REQUIREMENT_FILE.search(path) and path.count("/") <= 2:
            lines += _text(files, path).splitlines()
    return _by_name(lines)


def _by_name(lines: Iterable[str]) -> dict[str, str]:
    """Return requirements by name: without the pins and the Python versions of the project's own test matrix."""
    found: dict[str, str] = {}
    for line in lines:
        requirement = re.split(r"\s+#|\s+--|\s*\\$|;|\s*===?", line.strip())[0].strip()
        if (name := requirement_name(requirement)) and not re.search("@|://", requirement) and "{" not in requirement:
            found.setdefault(name, requirement)
    return found


def _poetry(table: Mapping[str, Any]) -> list[str]:
    """Return Poetry's requirements with their lower bounds only; the optional ones are left out."""
    found = []
    for name, wish in table.items() if isinstance(table, dict) else ():
        about = wish if isinstance(wish, dict) else {"version": wish}
        low = re.match(r"[\^~]?(\d[\w.]*)$", str(about.get("version", "")))
        if normalize(name) != "python" and not about.get("optional"):
            found.append(f"{name}>={low[1]}" if low else name)
    return found


def _entry_points(core: Mapping[str, Any], poetry: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    tables = {"console_scripts": core.get("scripts") or poetry.get("scripts"), **(core.get("entry-points") or {})}
    tables |= poetry.get("plugins") or {}
    return {
        group: {name: target for name, target in table.items() if isinstance(target, str)}
        for group, table in tables.items()
        if isinstance(table, dict)
    }


def _setup_py(files: Files) -> dict[str, Any]:
    """Return the literal arguments of the call of setup()."""
    tree = parsed(files.get("setup.py", b""))
    if tree is None:
        return {}
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            for keyword in node.keywords:
                try:
                    found[keyword.arg or ""] = ast.literal_eval(keyword.value)
                except ValueError:
                    continue  # computed: nothing to read without running it
    return found


def _imports(content: bytes) -> Iterator[str]:
    tree = parsed(content)
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _toml(files: Files, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(files, name))
    except tomllib.TOMLDecodeError:
        return {}


def _table(tables: Mapping[str, Any], *names: str) -> dict[str, Any]:
    found: Any = tables
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _ini(files: Files, name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_text(files, name))
    except configparser.Error:
        return configparser.RawConfigParser()
    return parser


def _lines(parser: configparser.RawConfigParser, section: str, key: str) -> list[str]:
    text = parser.get(section, key, fallback="") or ""
    # tox prefixes a line with the environments it is for
    return [re.sub(r"^[a-z0-9{},_!-]+:\s+", "", line.strip()) for line in text.splitlines() if line.strip()]


def _value(parser: configparser.RawConfigParser, key: str) -> str | None:
    return parser.get("metadata", key, fallback=None)


def _values(table: object) -> list[Any]:
    return list(table.values()) if isinstance(table, dict) else []


def _strings(value: object) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, (list, tuple)) else []


def _text(files: Files, name: str) -> str:
    return files.get(name, b"").decode("utf-8", "replace")
