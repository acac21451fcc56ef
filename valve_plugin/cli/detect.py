"""What language a source tree is written in and how it runs its tests, found by looking at files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from valve_plugin.bank.checkout import Checkout, text_of
from valve_plugin.rollouts.foreign import walk

LANGUAGES = {
    ".py": "Python",
    ".js": "JavaScript",
    ".jsx": "JavaScript",
    ".mjs": "JavaScript",
    ".ts": "TypeScript",
    ".tsx": "TypeScript",
    ".go": "Go",
    ".rs": "Rust",
    ".java": "Java",
    ".kt": "Kotlin",
    ".rb": "Ruby",
    ".php": "PHP",
    ".ex": "Elixir",
    ".exs": "Elixir",
    ".swift": "Swift",
    ".cs": "C#",
    ".c": "C",
    ".cc": "C++",
    ".cpp": "C++",
}

# Directories that hold what others wrote or what a build made.
_SKIPPED = {"node_modules", "vendor", "third_party", "venv", "site-packages", "build", "dist", "target", "__pycache__"}
_METADATA = ("pyproject.toml", "setup.cfg", "setup.py", "PKG-INFO")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAX_FILES = 20_000
_MAX_BYTES = 500_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something found, and how; an empty value was not found."""

    value: str
    how: str


def name(here: Checkout) -> Finding:
    """Return what a repository is called: by its remote; where it has none, by its metadata, else by its folder."""
    from valve_plugin.tasks.project import examine

    if not (here.named_by.startswith("git remote") or here.package):
        files = {name: text_of(here.folder / name, _MAX_BYTES).encode() for name in _METADATA}
        if _NAME.fullmatch(said := examine(files).name):
            return Finding(
                value=said, how=f"the project's metadata; {here.named_by.replace('name of ', '', 1)}: {here.name}"
            )
    return Finding(value=here.name, how=here.named_by)


def language(folder: Path) -> Finding:
    """Return the language most source files are written in; at most 20,000 files are looked at."""
    counts = Counter(LANGUAGES[path.suffix] for path in _files(folder) if path.suffix in LANGUAGES)
    if not counts:
        return Finding(value="", how="no source file of a known language")
    name, n = min(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return Finding(value=name, how=f"{n} of {counts.total()} source files")


def tests(folder: Path, main_language: str) -> Finding:
    """Return the command that runs the tests: by the main language's own files first, then the others', then make."""
    rules = sorted(_RULES, key=lambda rule: main_language not in rule[0])
    for _, rule in rules:
        if found := rule(folder):
            return found
    return Finding(value="", how="nothing here says how tests are run; set test_command in valve.toml")


def _files(folder: Path) -> Iterator[Path]:
    seen = 0
    for found in walk(folder.resolve(), skip=True):
        for name in [n for n in found.folders if n in _SKIPPED or n.startswith(".")]:
            found.folders.remove(name)
        for name in found.others:
            seen += 1
            if seen > _MAX_FILES:
                return
            yield folder / found.path(name)


def _pytest(folder: Path) -> Finding | None:
    for name, section in (
        ("pyproject.toml", "[tool.pytest"),
        ("pytest.ini", ""),
        ("tox.ini", "[pytest]"),
        ("setup.cfg", "[tool:pytest]"),
        ("conftest.py", ""),
        ("tests/conftest.py", ""),
    ):
        if (folder / name).is_file() and section in _read(folder / name):
            return Finding(value="python -m pytest", how=f"pytest's settings in {name}" if section else name)
    for directory in ("tests", "test", "."):
        found = sorted((folder / directory).glob("test_*.py"))
        if found:
            return Finding(value="python -m pytest", how=found[0].relative_to(folder).as_posix())
    return None


def _npm(folder: Path) -> Finding | None:
    try:
        script = json.loads(_read(folder / "package.json"))["scripts"]["test"]
    except (ValueError, LookupError, TypeError):
        return None
    if not isinstance(script, str) or "no test specified" in script:  # what `npm init` writes
        return None
    lock = {"pnpm-lock.yaml": "pnpm test", "yarn.lock": "yarn test", "bun.lockb": "bun run test"}
    command = next((cmd for file, cmd in lock.items() if (folder / file).exists()), "npm test")
    return Finding(value=command, how="scripts.test in package.json")


def _file(name: str, command: str) -> Callable[[Path], Finding | None]:
    def rule(folder: Path) -> Finding | None:
        return Finding(value=command, how=name) if (folder / name).exists() else None

    return rule


def _make(folder: Path) -> Finding | None:
    for name in ("Makefile", "makefile", "GNUmakefile"):
        for target in ("test", "check"):
            if re.search(rf"^{target}\s*:(?!=)", _read(folder / name), re.MULTILINE):
                return Finding(value=f"make {target}", how=f"target {target!r} in {name}")
    return None


_RULES: tuple[tuple[tuple[str, ...], Callable[[Path], Finding | None]], ...] = (
    (("Python",), _pytest),
    (("Python",), _file("tox.ini", "tox")),
    (("Python",), _file("noxfile.py", "nox")),
    (("JavaScript", "TypeScript"), _npm),
    (("Go",), _file("go.mod", "go test ./...")),
    (("Rust",), _file("Cargo.toml", "cargo test")),
    (("Java", "Kotlin"), _file("pom.xml", "mvn test")),
    (("Java", "Kotlin"), _file("gradlew", "./gradlew test")),
    (("Java", "Kotlin"), _file("build.gradle", "gradle test")),
    (("Ruby",), _file(".rspec", "bundle exec rspec")),
    (("Ruby",), _file("Rakefile", "bundle exec rake test")),
    (("PHP",), _file("phpunit.xml", "vendor/bin/phpunit")),
    (("PHP",), _file("phpunit.xml.dist", "vendor/bin/phpunit")),
    (("Elixir",), _file("mix.exs", "mix test")),
    (("Swift",), _file("Package.swift", "swift test")),
    ((), _make),
)


def _read(path: Path) -> str:
    return text_of(path, _MAX_BYTES)
