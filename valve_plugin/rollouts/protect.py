"""Which paths belong to the tests: taken from the hidden state, never from a submission. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

# What configures a test run, in any directory. setup.cfg and pyproject.toml hold more than that, but nothing else
# in them changes a run in an environment that is already installed.
CONFIG_NAMES = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    }
)
TEST_PATTERNS = ("test_*.py", "*_test.py")


def is_protected(path: str, test_roots: Sequence[str]) -> bool:
    """True for test files, whatever lies under a test root, and test configuration; `path` is relative, with `/`."""
    pure = PurePosixPath(path)
    if pure.name in CONFIG_NAMES or any(fnmatchcase(pure.name, p) for p in TEST_PATTERNS):
        return True
    ancestors = {str(p) for p in (pure, *pure.parents)} - {"."}
    return any(str(PurePosixPath(root)) in ancestors for root in test_roots)


def test_files(test_ids: Sequence[str]) -> list[str]:
    """Return the files that hold these tests, sorted, each once."""
    return sorted({test_id.split("::", 1)[0] for test_id in test_ids})
