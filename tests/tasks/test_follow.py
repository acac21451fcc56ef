"""Long runs followed: what is said of them, when they wait, and which are ended. Only real runs have a clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.rollouts import sandbox as sandboxes
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.glance import Glance
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.testrun import run_tests
from valve_plugin.tasks import follow, make, screen
from valve_plugin.tasks.follow import Follow, Following, Idle
from valve_plugin.tasks.generate import stable_suite
from valve_plugin.tasks.repository import prepare, read

GOLDEN = Path(__file__).parent / "golden" / "follow.txt"
AGAIN = "valve tasks generate --n 5"
RETRYING = "refused: retrying in 3 seconds...  Installing the `requests` package may help"


def line(**said: object) -> bytes:
    return b"\n@valve-now " + json.dumps(said).encode() + b"\n"


class Acted:
    """A run that was made up: each call lets seconds pass, four glances in each, and CPU time with them."""

    def __init__(self, **options: object) -> None:
        self.said: list[str] = []
        self.now = self.cpu = 0.0
        self.following = Following(self.said.append, clock=lambda: self.now, **options)  # type: ignore[arg-type]

    def __call__(
        self,
        run: Follow,
        seconds: float,
        output: bytes = b"",
        *,
        share: float = 0.0,
        wants: bool = False,
        words: str = "",
    ) -> None:
        for _ in range(max(1, round(4 * seconds))):
            run(Glance(output, self.cpu, lambda: wants, lambda: words))
            output = b""
            self.now += min(0.25, seconds)
            self.cpu += share * 0.25


def test_the_lines_of_a_suite_that_waits() -> None:
    act = Acted(again=AGAIN, gives_up=True)
    first = act.following.run("first run")
    act(first, 31, line(collect="tests/test_slow.py"), share=1)
    act(first, 20, line(tests=3) + line(test="tests/test_slow.py::test_a"), share=0.9)
    act(first, 1, line(ended=True) + line(test="tests/test_slow.py::test_b"), share=0.9)
    act(first, 99, line(ended=True) + line(test="tests/test_slow.py::test_\x1b[31m\u202ec"), share=0.9)
    act(first, 0.25, line(ended=True))
    second = act.following.run("second run", first.ends)
    act(
        second,
        25,
        line(collect="tests/test_slow.py") + line(tests=3) + line(test="tests/test_slow.py::test_a"),
        share=1,
    )
    act(second, 25, line(ended=True) + line(test="tests/test_slow.py::test_b"), share=1)
    waits = line(ended=True) + line(test="tests/test_slow.py::test_\x1b[31m\u202ec")
    with pytest.raises(TaskError) as caught:
        act(second, 400, waits, words=f"\x1b]0;mine\x07{RETRYING}")
    act.following.run("watched run")(Glance(b"", 0.0, lambda: False, str))
    assert "\n".join([*act.said, "", str(caught.value), ""]) == GOLDEN.read_text()


def test_files_that_wait_one_after_the_other_are_all_named() -> None:
    act = Acted(again=AGAIN, gives_up=True)
    run = act.following.run("first run")
    act(run, 70, line(collect="tests/test_busy.py"), share=1)
    for name in "abc":
        act(run, 80 if name != "b" else 2, line(collect=f"tests/test {name}.py"))
    with pytest.raises(TaskError) as caught:
        act(run, 400, line(collect="tests/test_d.py"))
    assert (
        "waited 300 s while tests/test_d.py is collected, before that in tests/test a.py, tests/test c.py, using"
        in str(caught.value)
    )
    ignore = "--ignore 'tests/test a.py' --ignore 'tests/test c.py' --ignore tests/test_d.py"
    assert f"`{AGAIN} {ignore}` leaves them out" in str(caught.value)


def test_each_test_waits_and_ends() -> None:
    act = Acted(again=AGAIN, gives_up=True)
    run = act.following.run("first run")
    for n in range(40):
        act(run, 21, line(test=f"tests/test_{n // 20}.py::test[{n}]"), words=RETRYING)
        act(run, 0.25, line(ended=True))
    assert (
        len([said for said in act.said if "its tests wait more than they compute, now in tests/test_0.py" in said]) == 1
    )
    assert len([said for said in act.said if "--ignore tests/test_0.py` leaves the file out" in said]) == 1
    assert not any("no CPU time used for" in said for said in act.said)


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize(("share", "wants"), [(0.0, True), (0.03, False), (0.3, True)])
def test_who_uses_or_wants_cpu_time_is_never_ended(share: float, wants: bool, gives_up: bool) -> None:
    """A machine that is too busy for a test lets it stand for hours without the test being at fault."""
    act = Acted(gives_up=gives_up)
    run = act.following.run("first run")
    act(run, 4000, line(test="t.py::t"), share=share, wants=wants)
    assert all("tests ended" in said for said in act.said)
    assert len(act.said) in range(125, 134)


def test_where_it_may_not_be_ended_it_waits() -> None:
    act = Acted()
    act(act.following.run("with the fix, run 1 of 3"), 2000, line(test="t.py::t"))
    waits = [said for said in act.said if "no CPU time used for" in said]
    assert [said.split(" for ")[1].split(",")[0] for said in waits] == [
        "1:00",
        "2:00",
        "4:00",
        "8:00",
        "16:00",
        "32:00",
    ]
    assert any("--ignore t.py` leaves the file out" in said and "that makes the tasks" in said for said in act.said)


def test_a_run_begins_when_it_is_first_seen_and_ends_with_the_others() -> None:
    act = Acted(gives_up=True)
    watched = act.following.run("watched run")  # which no worker has taken up yet
    act.now += 1000
    act(watched, 19)
    assert act.said == []
    act.following.stopped = True
    with pytest.raises(TaskError, match="another run of the same tests has failed"):
        act(watched, 1)


CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.builds(lambda name: line(test=name), st.text(max_size=300)),
        st.builds(lambda name: line(collect=name), st.text()),
        st.builds(lambda n: line(tests=n), st.integers()),
        st.just(line(ended=True)),
        st.sampled_from(
            [b"\n@valve-now {}\n", b"\n@valve-now {\n", b'\n@valve-now {"test":1}\n', b"@valve-now " * 999]
        ),
    )
)


@given(CHUNKS, st.lists(st.integers(min_value=1, max_value=100), min_size=1))
def test_whatever_a_suite_prints_and_wherever_it_is_cut(chunks: list[bytes], cuts: list[int]) -> None:
    def told(parts: Iterable[bytes]) -> tuple[object, ...]:
        run = Acted().following.run("first run")
        for part in parts:
            run.read(part, 1.0)
            assert len(run._rest) <= follow._LONGEST_LINE
        assert len(run.place) <= follow._LONGEST
        assert run.place.isprintable()
        return run.place, run.tests, run.ends

    whole, pieces, at = b"".join(chunks) + b"\n", [], 0
    while at < len(whole):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(whole[at : at + size])
        at += size
    if len(max(whole.split(b"\n"), key=len)) < follow._LONGEST_LINE:
        assert told([whole]) == told(pieces)
    told(chunks)


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 10), st.booleans()), max_size=50))
def test_idle_is_never_longer_than_what_passed_since_it_began(steps: list[tuple[float, float, bool]]) -> None:
    idle, now, cpu = Idle(0.0), 0.0, 0.0
    for passed, used, wants in steps:
        now, cpu = now + passed, cpu + used
        seconds = idle.look(now, cpu, lambda wants=wants: wants)
        assert 0 <= seconds <= now
        assert not (seconds and used > 1 + 0.02 * now)


@given(st.text())
def test_a_name_is_one_short_line_that_can_be_seen(text: str) -> None:
    seen = follow.cleaned(text)
    assert len(seen) <= 200
    assert seen.isprintable()
    assert follow.cleaned(seen) == seen


SLEEPS = """\
import time


def test_a():
    pass


def test_b():
    print("asked \\x1b[1mnobody", flush=True)
    time.sleep(60)
"""
IMPORTS = "import time\n\ntime.sleep(60)\n"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "WAITING", 1.0)
    monkeypatch.setattr(follow, "ENDLESS", 3.0)
    monkeypatch.setattr(follow, "_LOOK_AFTER", 0.0)


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (
            {"tests/test_b.py": SLEEPS},
            "in tests/test_b.py::test_b, using no CPU time; the last line it printed: asked [1mnobody; 1 test had",
        ),
        (
            {"tests/test_a.py": "def test():\n    pass\n", "tests/test_b.py": IMPORTS},
            "while tests/test_b.py is collected, using no CPU time; 0 tests had",
        ),
    ],
    ids=["a test", "a file"],
)
@pytest.mark.usefixtures("data_dir", "hurried")
def test_a_suite_that_waits_is_ended_with_the_place_and_what_to_do(
    tmp_path: Path, files: dict[str, str], place: str
) -> None:
    said: list[str] = []
    repository = read(calc.write(tmp_path, files=files) / "repository.toml")
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    with pytest.raises(TaskError) as caught:
        make.survey(tmp_path / "out", repository, "valve tasks generate", sandbox, said.append, 2, again=AGAIN)
    assert place in str(caught.value)
    assert f"{AGAIN} --ignore tests/test_b.py` leaves the file out" in str(caught.value)
    assert any(line.startswith("first run: no CPU time used for 0:0") for line in said)
    assert not (tmp_path / "out").exists()


def test_a_watched_run_that_is_ended_tells_nothing(tmp_path: Path, data_dir: Path) -> None:
    where = prepare(read(calc.write(tmp_path) / "repository.toml"))
    following = Following(lambda _: None)
    watched = following.run("watched run")
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    found = screen.watch(where, sandbox, watched)
    assert found
    assert len(watched.ends) == watched.tests == sum(found.counts.values())
    following.stopped = True
    assert screen.watch(where, sandbox, following.run("watched run")) is None


@pytest.mark.timeout(100)
def test_who_follows_changes_no_verdict(tmp_path: Path, data_dir: Path) -> None:
    """Not even where tests put something else in the place of what is used to tell of them."""
    hostile = {"tests/test_json.py": "import json, os\n\n\ndef test_it():\n    json.dumps = os.write = None\n"}
    where = prepare(read(calc.write(tmp_path, files={**calc.FILES, **hostile}) / "repository.toml"))
    sandbox = sandboxes.choose(Settings(unsafe_local=True))
    with workspaces.at_commit(where, where.base) as workspace:  # as grading runs them
        alone = run_tests(sandbox, workspace, where, where.repository.test_roots, Limits()).tests
    runs: list[Follow] = []

    class Kept(Following):
        def run(self, label: str, before: Sequence[float] = ()) -> Follow:
            runs.append(super().run(label, before))
            return runs[-1]

    suite = stable_suite(where, sandbox, Kept(lambda _: None))
    assert suite == sorted(test for test, outcome in alone.items() if outcome == "passed")
    assert [run.tests for run in runs] == [12, 12]
    assert [len(run.ends) for run in runs] == [12, 12]
