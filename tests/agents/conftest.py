"""Fixtures of the commands' tests."""

from tests.cli.conftest import project, valve  # noqa: F401
