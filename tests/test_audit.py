"""What `make audit` asks about."""

from __future__ import annotations

from tests.audit import declared, lowest


def test_extras_are_audited_too_at_their_lowest_versions() -> None:
    extras = {"a": ["two[x,y]==2.1", "one>=1", "three"], "dev": ["four>=4"]}
    wanted = declared({"dependencies": ["one>=1; python_version < '3.11'"], "optional-dependencies": extras})
    assert lowest(wanted) == ["one==1", "two==2.1"]
