"""Pages in these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools import TEST_ALL


@pytest.fixture
def drawn() -> None:
    """The pages of this test have their figures; so have all in continuous integration."""


@pytest.fixture(autouse=True)
def _words(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw no figures into the pages of other tests: it takes ten times as long as all the rest of a page."""
    with pytest.MonkeyPatch.context() as patch:
        if not TEST_ALL and "drawn" not in request.fixturenames:
            patch.setattr("valve_plugin.report.page.inline", lambda figure: "<svg></svg>")
        yield
