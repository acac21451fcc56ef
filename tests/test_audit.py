"""What the audit says of pip-audit's answers."""

from __future__ import annotations

import json

from tests.audit import lowest, report


def test_the_lowest_allowed_versions_are_asked_for() -> None:
    given = ["filelock>=3.20.3", "mini-swe-agent>=2.4,<3", "tomli>=2; python_version < '3.11'", "swebench==4.1.0", "x"]
    assert lowest(given) == ["filelock==3.20.3", "mini-swe-agent==2.4", "tomli==2"]


def test_holes_are_told_from_packages_without_an_answer() -> None:
    hole = {"id": "GHSA-x", "aliases": ["CVE-1"], "fix_versions": ["3.1.6"]}
    answer = {
        "dependencies": [
            {"name": "jinja2", "version": "3.1.0", "vulns": [hole]},
            {"name": "rich", "version": "13.7", "vulns": []},
            {"name": "other", "skip_reason": "not found"},
        ]
    }
    assert report(json.dumps(answer)) == (["jinja2 3.1.0: GHSA-x CVE-1; fixed in 3.1.6"], ["other"])
    assert report("") == ([], [])
