"""Where banks and local data live."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin import paths


@pytest.fixture
def checkout(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VALVE_BANK", raising=False)
    path = tmp_path / "checkout"
    path.mkdir()
    return path


def test_the_first_place_that_applies(checkout: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.locate("", checkout, "owner/name") == data_dir / "banks" / "owner__name"
    (checkout / ".valve").mkdir()
    assert paths.locate("", checkout, "owner/name") == checkout / ".valve"
    monkeypatch.setenv("VALVE_BANK", str(checkout / "shared"))
    assert paths.locate("", checkout, "owner/name") == checkout / "shared"
    assert paths.locate(str(checkout / "mine"), checkout, "owner/name") == checkout / "mine"


def test_paths_from_a_person(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("HOME", str(checkout / "home"))
    assert paths.locate("here", checkout) == checkout / "here"
    assert paths.locate("~/bank", checkout) == checkout / "home" / "bank"
    monkeypatch.setenv("VALVE_DATA", "data")
    assert paths.data_dir() == checkout / "data"


@given(repo=st.text())
def test_no_name_leads_outside(repo: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The name comes from a remote's URL."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALVE_DATA", str(base / "data"))
        patch.delenv("VALVE_BANK", raising=False)
        found = paths.locate("", base / "none", repo)
    assert found.parent == base / "data" / "banks"
    assert found.name not in ("", ".", "..")
    assert found.resolve() == found


def test_local_data_belongs_to_the_place(checkout: Path, tmp_path: Path, data_dir: Path) -> None:
    """However the place is reached; and two checkouts of one repository are two places."""
    bank = checkout / ".valve"
    bank.mkdir()
    (tmp_path / "link").symlink_to(bank)
    assert (
        paths.local_dir(bank) == paths.local_dir(tmp_path / "link") == paths.local_dir(checkout / "x" / ".." / ".valve")
    )
    assert paths.local_dir(bank) != paths.local_dir(tmp_path / "other" / ".valve")
    assert paths.local_dir(bank).parent == data_dir / "local"
    assert paths.local_dir(bank).name.startswith("checkout-")
