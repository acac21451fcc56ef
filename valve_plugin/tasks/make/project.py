"""Metadata and layout of a Python project, from its files: names, requirements, source and test directories. Pure."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from email.parser import HeaderParser
from importlib.metadata import packages_distributions
from pathlib import PurePosixPath
from typing import Any

from msgspec import field

from valve_plugin.codec import parse_toml
from valve_plugin.errors import RecordError
from valve_plugin.records import Record
from valve_plugin.tasks.states import is_protected
from valve_plugin.tasks.syntax import parse

Files = Mapping[str, bytes]
PYTEST = "pytest<9"
"""pytest 9 refuses many existing conftest files."""
_PACKAGES = """
_pytest=pytest attr=attrs bs4=beautifulsoup4 cv2=opencv-python-headless dateutil=python-dateutil google=protobuf
jwt=pyjwt multipart=python-multipart OpenSSL=pyopenssl PIL=pillow pkg_resources=setuptools pytest_asyncio=pytest-asyncio
sklearn=scikit-learn time_machine=time-machine yaml=pyyaml
"""
PACKAGES: dict[str, str] = dict(pair.split("=") for pair in _PACKAGES.split())
"""Package names of modules whose name differs."""
_WELL_KNOWN = """
attrs babel beautifulsoup4 click cryptography docutils flaky freezegun html5lib httpx hypothesis jinja2 jsonschema lxml
markupsafe mock numpy packaging pandas parameterized pillow psutil pydantic pygments pyparsing pytest pytest-asyncio
pytest-benchmark pytest-mock python-dateutil pytz pyyaml requests responses setuptools simplejson six sortedcontainers
testfixtures time-machine toml tomli tomli-w typing-extensions tzdata ujson urllib3
"""
WELL_KNOWN = frozenset(_WELL_KNOWN.split())
"""Packages that may be installed because a test imports them, declared or not."""
_UNWANTED = """
black checkdocs codspeed cov cover enabler env flake8 forked github-actions home html icdiff instafail isort mypy
mypy-plugins parallel perf pretty profiling pylint random-order randomly repeat rerunfailures reverse ruff subtests
sugar travis-fold xdist
"""
UNWANTED_PLUGINS = frozenset(f"pytest-{name}" for name in _UNWANTED.split())
"""Plugins of pytest that check style, measure, reorder or repeat: a verdict must not depend on them."""
_TEST_DIRS = ("tests", "test", "testing", "testsuite")
_SOURCE_DIRS = ("src", "lib", "python")
_TEST_FILE = r"(test_[^/]*|[^/]*_test)\.py"
_REQUIREMENT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIREMENT_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_SAYS_MISSING = re.compile(r"install|requires? |required|not found|missing")
_REQUIREMENT_FILE = re.compile(
    r"(^|/)(requirements[^/]*|[^/]*requirements|requirements/[^/]+|requirements_[^/]+)\.(txt|in)$"
)


class Project(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata and layout of a project; unknown fields are empty."""

    name: str = ""
    version: str = ""
    runtime: tuple[str, ...] = ()
    """Requirements of the library itself."""
    declared: dict[str, str] = field(default_factory=dict)
    """Requirements of its extras, groups, tox and requirement files, by normalized name."""
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The same by where they are declared, like `extra full`, `group test` or `requirements-dev.txt`."""
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)
    source_roots: tuple[str, ...] = (".",)
    test_roots: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Importable names of the tree, tests included."""


def examine(files: Files) -> Project:
    """Read a project's metadata and layout from its files."""
    try:
        toml = parse_toml(_text(files, "pyproject.toml"))
    except RecordError:
        toml = {}
    core, poetry = _table(toml, "project"), _table(toml, "tool", "poetry")
    setup, keywords = _ini(files, "setup.cfg"), _setup_py(files)
    info = HeaderParser().parsestr(_text(files, "PKG-INFO"))
    roots = _source_roots(files)
    runtime = [*_strings(core.get("dependencies")), *_lines(setup, "options", "install_requires")]
    runtime += [*_strings(keywords.get("install_requires")), *_poetry(poetry.get("dependencies", {}))]
    shipped = [line for line in info.get_all("Requires-Dist") or [] if "extra ==" not in line]
    setup_name = setup.get("metadata", "name", fallback=None)
    names = (core.get("name"), poetry.get("name"), info["Name"], keywords.get("name"), setup_name)
    versions = (core.get("version"), poetry.get("version"), info["Version"], keywords.get("version"))
    sets = {
        label: tuple(found.values())
        for label, lines in _declared(files, toml, setup, keywords)
        if (found := _by_name(lines))
    }
    return Project(
        name=next((name for name in names if isinstance(name, str)), ""),
        version=next((v for v in versions if isinstance(v, str)), ""),
        runtime=tuple(dict.fromkeys(r for r in runtime or shipped if _REQUIREMENT.match(r))),
        declared=_by_name(line for lines in sets.values() for line in lines),
        sets=sets,
        entry_points=_entry_points(core, poetry),
        source_roots=roots,
        test_roots=_test_roots(files, toml),
        packages=_packages(files, roots),
    )


def required_packages(project: Project, files: Files) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (requirements of the tests beside the library's own, imported modules whose package is not known).

    These are the packages that the tests import, and declared pytest plugins. A package is used only if the project
    declares it or it is well known, because anybody can publish a package under a module's name.
    """
    needed, missing = {"": PYTEST, "pytest": project.declared.get("pytest", "pytest")}, []
    own = {requirement_name(r) for r in project.runtime}
    joined = {name.replace("-", "") for name in own}  # `minisweagent` is of mini-swe-agent
    for module in sorted(imported_modules(project, files)):
        names = [normalize_name(name) for name in (PACKAGES.get(module, module), module)]
        if own.intersection(names) or module.lower() in joined:
            continue
        if found := next((name for name in names if name in project.declared), None):
            needed.setdefault(found, project.declared[found])
        elif found := next((name for name in names if name in WELL_KNOWN), None):
            needed.setdefault(found, found)
        else:
            missing.append(module)
    for name, requirement in sorted(project.declared.items()):
        if name.startswith("pytest-") and name not in UNWANTED_PLUGINS:
            needed.setdefault(name, requirement)
    return tuple(needed.values()), tuple(missing)


def imported_modules(project: Project, files: Files) -> set[str]:
    """Return the top-level modules that tests import and that are neither in Python nor in the project itself."""
    tests = {path: content for path, content in files.items() if is_protected(path, project.test_roots)}
    found = {module for path, content in tests.items() if path.endswith(".py") for module in _imports(content)}
    helpers = {PurePosixPath(path).stem for path in tests}
    parts = {part for root in project.test_roots for part in PurePosixPath(root).parts}
    return found - sys.stdlib_module_names - set(project.packages) - helpers - parts


def normalize_name(name: str) -> str:
    """Return the normalized form of a package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """Return the normalized package name of a requirement, or "" if it is not a requirement."""
    match = _REQUIREMENT.match(requirement)
    return normalize_name(match.group()) if match else ""


def _source_roots(files: Files) -> tuple[str, ...]:
    for root in _SOURCE_DIRS:
        depths = [path.count("/") for path in files if path.startswith(f"{root}/") and path.endswith(".py")]
        if f"{root}/__init__.py" not in files and any(depth <= 2 for depth in depths):
            return root, "."
    return (".",)


def _test_roots(files: Files, toml: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the test paths: those in pytest's settings, else directories with usual names, else test files."""
    given = _table(toml, "tool", "pytest", "ini_options").get("testpaths", [])
    for name, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        given = given or _lines(_ini(files, name), section, "testpaths")
    words = " ".join([given] if isinstance(given, str) else _strings(given)).split()
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    roots = dict.fromkeys(str(PurePosixPath(word)) for word in words)
    found = [root for root in roots if root in folders and _has_tests(files, root)]
    if found and "." not in found:
        return tuple(dict.fromkeys(path for root in found for path in _tests_below(files, folders, root)))
    everywhere = _test_folders(files, folders)
    return tuple(everywhere) or tuple(sorted(path for path in files if re.fullmatch(_TEST_FILE, path)))


def _tests_below(files: Files, folders: set[str], root: str) -> list[str]:
    """Return a root that pytest's settings name; for a package with test folders in it, these and its other tests."""
    if PurePosixPath(root).name in _TEST_DIRS:
        return [root]
    inside = _test_folders(files, {folder for folder in folders if folder.startswith(f"{root}/")})
    if not inside:
        return [root]
    below = tuple(f"{folder}/" for folder in inside)
    tests = re.compile(rf"{re.escape(root)}/(.*/)?{_TEST_FILE}")
    return inside + sorted(path for path in files if tests.fullmatch(path) and not path.startswith(below))


def _test_folders(files: Files, folders: Iterable[str]) -> list[str]:
    """Return the outermost folders with usual names that hold tests."""
    outer: list[str] = []
    for folder in sorted(folders, key=lambda f: (f.count("/"), f)):
        inside = any(folder.startswith(f"{o}/") for o in outer)
        if PurePosixPath(folder).name in _TEST_DIRS and _has_tests(files, folder) and not inside:
            outer.append(folder)
    return outer


def _has_tests(files: Files, root: str) -> bool:
    pattern = re.compile(rf"{re.escape(root)}/(.*/)?{_TEST_FILE}")
    return any(pattern.fullmatch(path) for path in files)


def _packages(files: Files, roots: Iterable[str]) -> tuple[str, ...]:
    found = set[str]()
    for root in roots:
        prefix = "" if root == "." else f"{root}/"
        inside = (path.removeprefix(prefix) for path in files if path.startswith(prefix) and path.endswith(".py"))
        found.update(path.split("/")[0].removesuffix(".py") for path in inside)
    return tuple(sorted(name for name in found if name.isidentifier()))


def _declared(
    files: Files, toml: Mapping[str, Any], setup: configparser.RawConfigParser, keywords: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    """Yield (where, requirements) of extras, dependency groups, setup.cfg, tox, Poetry and requirement files."""
    extras = _table(toml, "project", "optional-dependencies") | _table(keywords, "extras_require")
    for name in extras:
        yield f"extra {name}", _strings(extras[name])
    if setup.has_section("options.extras_require"):
        for name in setup["options.extras_require"]:
            yield f"extra {name}", _lines(setup, "options.extras_require", name)
    groups = _table(toml, "dependency-groups")
    for name in groups:
        yield f"group {name}", _group(groups, name)
    for name, group in _table(toml, "tool", "poetry", "group").items():
        yield f"group {name}", _poetry(_table(group, "dependencies"))
    yield "group dev", _poetry(_table(toml, "tool", "poetry", "dev-dependencies"))
    yield "tests_require", _strings(keywords.get("tests_require")) + _lines(setup, "options", "tests_require")
    tox = _ini(files, "tox.ini")
    yield "tox.ini", [line for section in tox.sections() for line in _lines(tox, section, "deps")]
    for path in sorted(files):
        if _REQUIREMENT_FILE.search(path) and path.count("/") <= 2:
            yield path, _text(files, path).splitlines()


def _group(groups: Mapping[str, Any], name: str, above: tuple[str, ...] = ()) -> list[str]:
    """Return the requirements of a dependency group with those of the groups that it includes (PEP 735)."""
    found = []
    for entry in groups[name] if isinstance(groups[name], list) else ():
        included = normalize_name(str(entry.get("include-group"))) if isinstance(entry, dict) else ""
        for other in groups if included else ():
            if normalize_name(other) == included and other not in (name, *above):
                found += _group(groups, other, (*above, name))
        found += [entry] if isinstance(entry, str) else []
    return found


def find_cures(failures: Iterable[str], project: Project, installed: Collection[str]) -> dict[str, str]:
    """Return, for each module or package that failures say is missing, the sentence that says what to do."""
    there, cures = {requirement_name(pin) for pin in installed}, dict[str, str]()
    for line in dict.fromkeys(failures):
        if found := _NO_MODULE.search(line):
            module = found[1].partition(".")[0]
            cures.setdefault(found[1], f"the module {found[1]} is missing{_cure(module, project)}")
        elif _SAYS_MISSING.search(line):
            for word in map(normalize_name, _REQUIREMENT_WORD.findall(line)):
                if word in project.declared and word not in there:
                    cures.setdefault(word, f"the package {word} is missing{_cure(word, project)}")
    return cures


def _cure(module: str, project: Project) -> str:
    if module in project.packages:
        return ", which is of the source itself: its build makes it; build it in an environment and give --python VENV"
    carriers = packages_distributions().get(module, [])
    names = [normalize_name(name) for name in (PACKAGES.get(module, module), module, *carriers)]
    for name in names:
        if place := next((place for place, lines in project.sets.items() if name in map(requirement_name, lines)), ""):
            return f": {place} declares {name}; add --with {name}, or --auto-env"
    if PACKAGES.get(module) or names[0] in WELL_KNOWN or carriers:
        return f": {(carriers or names)[0]} has it; add --with {(carriers or names)[0]}"
    return ", and no known package has it; find out which does and add --with PACKAGE"


def _by_name(lines: Iterable[str]) -> dict[str, str]:
    """Return requirements by name, without the pins and Python versions of the project's test matrix."""
    found: dict[str, str] = {}
    for line in lines:
        requirement = re.split(r"\s+#|\s+--|\s*\\$|;|\s*===?", line.strip())[0].strip()
        if (name := requirement_name(requirement)) and not re.search("@|://", requirement) and "{" not in requirement:
            found.setdefault(name, requirement)
    return found


def _poetry(table: Mapping[str, Any]) -> list[str]:
    """Return Poetry's requirements with lower bounds only, without optional ones."""
    found = []
    for name, wish in table.items() if isinstance(table, dict) else ():
        about = wish if isinstance(wish, dict) else {"version": wish}
        low = re.match(r"[\^~]?(\d[\w.]*)$", str(about.get("version", "")))
        if normalize_name(name) != "python" and not about.get("optional"):
            found.append(f"{name}>={low[1]}" if low else name)
    return found


def _entry_points(core: Mapping[str, Any], poetry: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    tables = {"console_scripts": core.get("scripts") or poetry.get("scripts"), **_table(core, "entry-points")}
    tables |= _table(poetry, "plugins")
    return {
        group: {name: target for name, target in table.items() if isinstance(target, str)}
        for group, table in tables.items()
        if isinstance(table, dict)
    }


def _setup_py(files: Files) -> dict[str, Any]:
    """Return the literal arguments of the call of setup(); other arguments need running it, so they are left out."""
    tree = parse(files.get("setup.py", b""))
    found: dict[str, Any] = {}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            for keyword in node.keywords:
                try:
                    found[keyword.arg or ""] = ast.literal_eval(keyword.value)
                except ValueError:
                    continue
    return found


def _imports(content: bytes) -> Iterator[str]:
    tree = parse(content)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _table(found: Any, *names: str) -> dict[str, Any]:
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


def _strings(value: object) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, (list, tuple)) else []


def _text(files: Files, name: str) -> str:
    return files.get(name, b"").decode("utf-8", "replace")
