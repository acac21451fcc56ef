"""A commit is taken back in a store of our own: the history's configuration runs nothing."""

from __future__ import annotations

from pathlib import Path

from tests.tools import git
from valve_plugin.sandbox.git import read_log
from valve_plugin.tasks.make.candidates import revert

LINES = [f"line {n}\n" for n in range(12)]


def commit(where: Path, lines: list[str]) -> None:
    (where / "file.py").write_text("".join(lines))
    git(where, "add", "-A")
    git(where, "commit", "-qm", "a change")


def test_a_three_way_merge_runs_no_driver(tmp_path: Path) -> None:
    history, ran = tmp_path / "history", tmp_path / "ran"
    git(tmp_path, "init", "-q", "history")
    driver = f'[merge "evil"]\n\tdriver = touch {ran}\n[merge]\n\tdefault = evil\n'
    with (history / ".git" / "config").open("a") as file:
        file.write(driver)
    for attributes in (history / ".gitattributes", history / ".git" / "info" / "attributes"):
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text("* merge=evil\n")
    commit(history, LINES)
    fixed = [*LINES[:4], "fixed\n", *LINES[5:]]
    commit(history, fixed)
    commit(history, [*fixed[:6], "near\n", *fixed[7:]])  # the fix's patch does not apply any more without a merge
    last, fix, *_ = read_log(history / ".git", "HEAD", 5)
    patch = revert(history / ".git", last.id, fix, ["file.py"])
    assert "-fixed\n+line 4\n" in patch
    assert not ran.exists()
