"""What is kept of live attempts: no secret in any form, and one queued extraction for each mixed group."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.conftest import FIX, QUICK, Project
from valve_plugin import instrument
from valve_plugin.bank.local import LocalStore
from valve_plugin.codec import digest
from valve_plugin.live.record import enqueue, group_of, keep_attempt, learn_from
from valve_plugin.records import Attempt
from valve_plugin.redact import Redactor

# Made up here, so that nothing in this repository looks like a key.
ENV_KEY = "envkey-" + digest("a")[:24]
DOTENV = "dot/env+value " + digest("b")[:20]
QUOTED = 'with "quotes" and \\ ' + digest("c")[:12]
MINI_KEY = "mini-" + digest("d")[:24]
CONFIG_KEY = "configured-" + digest("e")[:20]
SHAPED = "ghp_" + (digest("f") + digest("g"))[:36]
SECRETS = (ENV_KEY, DOTENV, QUOTED, MINI_KEY, CONFIG_KEY, SHAPED)


def forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    if secret == SHAPED:  # known by its shape alone, which other forms do not have
        return {raw}
    alone = {base64.b64encode(raw), base64.urlsafe_b64encode(raw), base64.b64encode(raw + b"\n").rstrip(b"=")[:-2]}
    escaped = {json.dumps(secret)[1:-1].encode(), json.dumps(json.dumps(secret)[1:-1])[1:-1].encode()}
    return {raw, *(q.encode() for q in (quote(secret), quote(secret, safe=""), quote_plus(secret))), *alone, *escaped}


def layers(data: bytes) -> list[bytes]:
    """What a file says, also once it is unpacked."""
    found = [data]
    for window in (31, 15, -15):
        try:
            found.append(zlib.decompressobj(window).decompress(data))
        except zlib.error:
            continue
    return found


def leaks(*folders: Path) -> list[str]:
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file()]
    assert files
    return [
        f"{path.name}: {form!r} in {layer[layer.index(form) - 60 : layer.index(form) + 80]!r}"
        for path in files
        for layer in layers(path.read_bytes())
        for secret in SECRETS
        for form in forms(secret)
        if form in layer
    ]


@pytest.mark.parametrize("attempts", [0, 2])
def test_no_secret_is_in_anything_that_is_written(
    project: Project, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", ENV_KEY)
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "mini"))
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / ".env").write_text(f"PROVIDER_API_KEY='{MINI_KEY}'\n")
    (project.root / ".env").write_text(f'HOST_NAME="{DOTENV}"\nOTHER={json.dumps(QUOTED)}\n')
    (project.root / "kept.env").write_text(f"export A={ENV_KEY}\n")
    script = (
        "import base64, json, pathlib, urllib.parse\n"
        f"values = {list(SECRETS)!r}\n"
        "for v in values:\n"
        "    print(v, json.dumps(v), base64.b64encode(v.encode()), urllib.parse.quote(v))\n"
        "    print(base64.b64encode(b'user:' + v.encode()), {'nested': json.dumps({'k': v})})\n"
        "pathlib.Path('leak.txt').write_text('\\n'.join(values))\n"
        "pathlib.Path('leak.bin').write_bytes(b'\\0' + '\\0'.join(values).encode())\n"
        "pathlib.Path('leak.latin').write_bytes(('caf\\xe9 ' + values[0]).encode('latin-1'))\n"
        "pathlib.Path('fine.bin').write_bytes(bytes(range(256)))\n"
    )
    (project.root / "show.py").write_text(script)
    agent = project.agent("cat .env; env; python show.py", FIX, "rm -f .env; cp show.py copy.py")
    settings = {"attempts": attempts, "check": f"{QUICK} # {ENV_KEY}", "model_kwargs": {"api_key": CONFIG_KEY}}
    instrument(agent, settings=settings).run(f"Use {SHAPED} and {ENV_KEY} to fix add")
    kept = project.attempts()
    assert len(kept) == max(1, attempts)
    assert leaks(data_dir, project.bank) == []
    for attempt in kept:
        touched = {line.split(" b/")[1] for line in attempt.patch.splitlines() if line.startswith("diff --git")}
        assert touched == {"calc.py", "copy.py", "fine.bin", "leak.txt"}
        assert "contain secrets: leak.bin, leak.latin" in attempt.reason
        trajectory = json.loads(project.local.trajectory(attempt))
        assert "[redacted:SERVICE_API_KEY]" in json.dumps(trajectory)


def attempt(outcome: str, number: int = 0, **fields: str) -> Attempt:
    same = {"task_text": "t", "base_tree": "b", "context_hash": "c"}
    return Attempt(
        id=f"a{number}", task_id="live-t", ordinal=number, source="live", outcome=outcome, **{**same, **fields}
    )  # type: ignore[arg-type]


outcomes = st.sampled_from(["resolved", "unresolved", "errored", "ungraded"])


@given(st.lists(outcomes, max_size=8))
def test_a_group_holds_what_was_graded(drawn: list[str]) -> None:
    attempts = [attempt(outcome, n) for n, outcome in enumerate(drawn)]
    graded = [o for o in drawn if o in ("resolved", "unresolved")]
    group = group_of(attempts, attempt("resolved"))
    assert [a.outcome for a in group] == graded


@pytest.mark.parametrize("field", ["task_text", "base_tree", "context_hash"])
def test_a_group_shares_task_tree_and_context(field: str) -> None:
    others = [attempt("unresolved", 1, **{field: "else"}), attempt("unresolved", 2)]
    assert [a.id for a in group_of(others, attempt("resolved"))] == ["a2"]


def keep_all(local: LocalStore, outcomes: list[str], mode: str = "queue", first: int = 0) -> list[str]:
    said: list[str] = []
    for n, outcome in enumerate(outcomes, first):
        kept = keep_attempt(local, attempt(outcome, n), {}, Redactor({}))
        learn_from(Path("bank"), local, kept, mode, said.append)
    return said


def test_a_mixed_group_is_queued_once(tmp_path: Path) -> None:
    assert keep_all(LocalStore(tmp_path / "alike"), ["resolved"] * 4) == []
    local = LocalStore(tmp_path)
    assert (keep_all(local, ["resolved", "ungraded", "unresolved", "errored"]), local.queue()) == ([], [])
    assert keep_all(local, ["unresolved"], first=4) == [
        "1 of 3 attempts passed: queued for learning (1 in the queue; `valve gate` judges them)"
    ]
    (job,) = local.queue()
    assert (job["kind"], job["task_id"], job["issue"]) == ("extract", "live-t", "t")
    assert sorted(job["attempts"]) == ["a0", "a2", "a4"]
    assert keep_all(local, ["resolved"], first=5) == []
    local.queue_done(job["id"])
    assert (keep_all(local, ["resolved"], first=6), local.queue()) == ([], [])


def test_inline_learning_judges_the_queue_at_once(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    local = project.local
    for n, outcome in enumerate(["resolved", "unresolved", "resolved"]):
        kept = keep_attempt(local, attempt(outcome, n), {}, Redactor({}))
        learn_from(project.bank, local, kept, "inline", lambda _: None)
    out, err = capfd.readouterr()
    assert out == ""
    assert "valve: " in err, "`valve gate` ran, and says what it lacks here: a task set to choose a panel from"
    assert len(local.queue()) == 1


def test_many_who_notice_at_once_queue_it_once(tmp_path: Path) -> None:
    group = [attempt("resolved", 1), attempt("unresolved", 2), attempt("resolved", 3)]
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(enqueue(LocalStore(tmp_path), group))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]
    assert len(LocalStore(tmp_path).queue()) == 1
