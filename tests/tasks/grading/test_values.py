"""What tests compare, as raw values: equal ones look equal, no tested code is called, and changed tests do the same."""

from __future__ import annotations

import collections
import contextlib
import decimal
import enum
import fractions
import pathlib
import types
import unittest
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.tasks.grading.differences import compared, read_seen
from valve_plugin.tasks.grading.testrun import TestRun
from valve_plugin.tasks.grading.values import Values, compiled

numbers = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.fractions(), st.decimals(allow_nan=False)
)
leaves = st.one_of(numbers, st.none(), st.text(max_size=5), st.binary(max_size=5))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=3),
        st.sets(st.integers(0, 5)),
    ),
    max_leaves=12,
)


def digest(value: object) -> str:
    return Values("/nowhere", []).look(value)[1]


@given(values, values)
def test_values_are_equal_as_their_digests_are(one: Any, other: Any) -> None:
    assert (one == other) == (digest(one) == digest(other))


@given(st.integers(-(10**20), 10**20))
def test_numbers_of_each_kind_are_equal(number: int) -> None:
    same = [decimal.Decimal(number), fractions.Fraction(number), *([float(number)] if float(number) == number else [])]
    assert {digest(one) for one in same} == {digest(number)}


def test_containers_of_the_standard_library_look_like_what_they_equal() -> None:
    assert digest(collections.OrderedDict(b=1, a=2)) == digest({"a": 2, "b": 1})
    assert digest(collections.Counter(a=1, b=0)) == digest({"a": 1})
    assert digest(collections.defaultdict(list, a=[])) == digest({"a": []})
    assert digest({1: 2}.keys()) == digest(frozenset([1]))
    assert digest([1]) != digest((1,)) != digest({1}) != digest(b"1") != digest("1")


@given(values)
def test_iterators_are_not_used_up_and_large_values_end(value: Any) -> None:
    steps = iter([value])
    digest(steps)
    assert list(steps) == [value]
    held: list[Any] = [value] * 100_000
    held.append(held)
    digest({"held": held, "more": "x" * 1_000_000})


def hostile(base: type) -> type:
    """Return a class below a builtin one all of whose methods end the test, and whose class does so too."""

    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("tested code was called")

    names = {name for one in (base, type, object, int, str, dict, list, float) for name in dir(one)}
    names |= {"__getattr__", "__bool__", "__index__", "__fspath__", "__buffer__", "__reduce_ex__", "__class_getitem__"}
    kept = {"__new__", "__init__", "__class__", "__init_subclass__", "__prepare__", "__set_name__", "__dict__", "mro"}
    kept |= {"__slots__", "__weakref__", "__module__", "__qualname__", "__name__", "__doc__", "__call__", "__mro__"}
    kept |= {
        "__bases__",
        "__base__",
        "__flags__",
        "__itemsize__",
        "__basicsize__",
        "__dictoffset__",
        "__abstractmethods__",
    }
    kept |= {"__weakrefoffset__", "__text_signature__", "__annotations__", "__type_params__", "__subclasses__"}
    space: dict[str, Any] = dict.fromkeys(names - kept, fail)
    kind = type("Kind", (type,), {name: fail for name in space if name not in {"__setattr__", "__delattr__"}})
    space |= {"__class__": property(fail), "__dict__": property(fail)}
    return type.__call__(kind, "Hostile", (base,), space)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("base", "given"),
    [
        *[(int, (9,)), (str, ("x",)), (float, (1.5,)), (bytes, (b"x",)), (list, ([1, 2],)), (dict, ({1: 2},))],
        *[(set, ({1},)), (tuple, ((1, 2),)), (object, ()), (Exception, ("x",)), (decimal.Decimal, ("1.5",))],
        *[(complex, (1j,)), (collections.deque, ([1],)), (frozenset, ([1],)), (bytearray, (b"x",))],
        (types.ModuleType, ("x",)),
    ],
)
def test_no_tested_code_is_called(base: type, given: tuple[Any, ...]) -> None:
    made = type.__call__(hostile(base), *given)
    eyes = Values("/nowhere", [])
    assert eyes.see("t.py:1.1=", 0, made) is made
    eyes.see("t.py:1.1=", 1, {"x": [made]})
    eyes.see("t.py:2.2?", 0, type(made))
    entries = eyes.taken("t.py")
    assert "Hostile" in entries[0]
    assert "Kind" in entries[1]
    if base not in {object, types.ModuleType, Exception}:
        assert eyes.look(made)[1] == eyes.look(base(*given))[1]


def test_what_an_object_holds_is_its_value() -> None:
    class Slots:
        __slots__ = ("x",)

        def __init__(self, x: int) -> None:
            self.x = x

    class Open(Slots):
        def __init__(self, x: int, y: int) -> None:
            super().__init__(x)
            self.y = y

    assert digest(Open(1, 2)) == digest(Open(1, 2))
    assert len({digest(one) for one in (Open(1, 2), Open(1, 3), Open(2, 2), Slots(1), Slots(2))}) == 5


def test_slots_are_read_like_a_dictionary() -> None:
    slots = type("Thing", (), {"__slots__": ("x", "y"), "__init__": lambda self: setattr(self, "x", 1)})
    plain = type("Thing", (), {"__init__": lambda self: setattr(self, "x", 1)})
    assert digest(slots()) == digest(plain())


def test_what_cannot_be_read_is_of_the_tested_code() -> None:
    class Number(int):
        def __abs__(self) -> int:
            raise AssertionError("tested code was called")

        __eq__ = __hash__ = __abs__  # type: ignore[assignment]

    fraction, path, other = fractions.Fraction(0), pathlib.PurePosixPath("a/b"), pathlib.PurePosixPath("a/b")
    object.__setattr__(fraction, "_numerator", Number(1))
    str(path)
    object.__setattr__(path, "_str", "a/c")
    object.__setattr__(other, "_hash", Number(1))
    odd = type("Odd", (int,), {1: 2})  # type: ignore[dict-item]
    for value, name in ((fraction, "Fraction"), (path, "PurePosixPath"), (other, "PurePosixPath")):
        found, _ = Values("/nowhere", []).look([value])
        assert [kind.shown() for kind in found.values() if not kind.valued] == [name]
    assert [kind.shown() for kind in Values("/nowhere", []).look(odd(1))[0].values()] == ["Odd="]
    assert Values("/nowhere", []).look([fractions.Fraction(1, 2), pathlib.PurePosixPath("a/b")])[0] == {}
    assert digest(pathlib.PurePosixPath("a//b")) == digest(pathlib.PurePosixPath("a/b"))


def test_long_values_are_looked_at_whole_or_are_undecided() -> None:
    assert digest("a" * 25_000 + "1") != digest("a" * 25_000 + "2")
    assert digest([*range(6_000), 1]) != digest([*range(6_000), 2])
    assert digest(1 << 70) != digest((1 << 70) + (1 << 61) - 1)
    assert digest("0x0000000a") != digest("0x0000000b")
    nested: Any = 1
    for _ in range(60):
        nested = [nested]
    for value in (nested, [[]] * 6_000, [*range(6_000), fractions.Fraction(1, 2)]):
        found, _ = Values("/nowhere", []).look(value)
        assert [kind.shown() for kind in found.values()] == ["undecided"]
    assert Values("/nowhere", []).look([*range(6_000), 1.5, "x", None])[0] == {}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda one: slice(0, one),
        lambda one: types.MappingProxyType({"a": one}),
        lambda one: types.SimpleNamespace(a=one),
        lambda one: types.GenericAlias(list, (one,)),
    ],
)
def test_what_values_of_c_hold_is_looked_at(wrap: Callable[[Any], Any]) -> None:
    assert digest(wrap(1)) != digest(wrap(2))
    same = type("Same", (int,), {"__eq__": lambda one, other: True})
    assert [kind.name for kind in Values("/nowhere", []).look(wrap(same(1)))[0].values()] == ["Same"]


def test_which_classes_compare_like_their_values() -> None:
    class Plain(int):
        pass

    class Same(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Shown(int):
        def __repr__(self) -> str:
            return "?"

        def last(self) -> int:
            return 1

    color = enum.IntEnum("color", "RED")  # type: ignore[misc]
    eyes = Values("/nowhere", [])
    for number, one in enumerate((Plain(1), Same(1), color(1), Shown(1), object())):
        eyes.see(f"t.py:{number}.1=", 0, one)
    kinds = [sorted(read_seen(entry, "t.py").kinds[0]) for entry in eyes.taken("t.py")]
    assert [[one.rpartition(".")[2] for one in held] for held in kinds] == [
        ["Plain="],
        ["Same!"],
        ["color="],
        ["Shown:"],
        [],
    ]


SOURCE = '''
"""A test file."""
from __future__ import annotations
import unittest

log = []

def note(x, y=None):
    log.append(x)
    return x

def test_order():
    "Told."
    assert note(1) == note(1) and not note(0), note("never")
    assert note(1) < note(2) < note(3) or note("never")
    assert (held := note([1])) and held in [[1]] and held is not None
    assert all(x == y for x, y in zip(note("ab"), "ab")), "all"
    assert isinstance(note(3), int) and abs(note(3) - 2) == 1

def test_messages():
    for test in (lambda: check(1 == 2), lambda: None):
        try:
            assert not test(), "told"
        except AssertionError as e:
            assert e.args == ("inside",), e.args

def check(right):
    assert right, "inside"

def test_block():
    class Block:
        def __enter__(self): return self
        def __exit__(self, *raised): return raised[0] is KeyError
    def raises(kind): return Block()
    with raises(KeyError):
        raise KeyError("x")
    with raises((KeyError, ValueError)) as held, raises(KeyError):
        log.append(held is not None)

def test_generator():
    def steps():
        got = yield 1
        assert (yield got) == 2
    made = steps()
    assert [next(made), made.send(5)] == [1, 5]
    try: made.send(2)
    except StopIteration: log.append("end")

def test_what_looks_around():
    here, it = 5, [1, 2, 3]
    assert locals()["here"] == eval("here") == 5 and "note" in globals()
    assert [x for x in it if x > 1 and not x == 3] == [2] and f"{here:>{len(it)}}" == "  5"
    assert note(*it[:1], **{"y": note(2)}) == 1 if here else note("never")
    assert 2 in (note(x) for x in it) and any(map(note, it)) and sorted(reversed(it)) == it
    steps = iter(it)
    assert 1 in steps and list(steps) == [2, 3]
    total: int = 0
    while total < 3: total += note(1)
    check((lambda x=2: x if x else 0)() == 2)
    match 1 + 2j:
        case 1 + 2j if it: note("matched")

class Case(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(note, "clean")

    def test(self):
        self.assertEqual(*(1, 1))
        self.assertEqual(note(1), 1, msg="x")
        self.assertTrue(note(1) == 1, "x")
        self.assertRaises(KeyError, lambda: {}[note(1)])
        with self.assertRaisesRegex(ValueError, "x"):
            raise ValueError("x")
        with self.subTest(x=1):
            self.assertIn(1, [note(1)])
'''


def outcome(code: types.CodeType) -> list[Any]:
    """Return what the tests of a file did, in order."""
    space: dict[str, Any] = {"__name__": "sample"}
    exec(code, space)
    found: list[Any] = []
    for name, test in space.items():
        if name.startswith("test"):
            test()
            found.append((name, test.__code__.co_firstlineno, [line for _, _, line in test.__code__.co_lines()][-1:]))
    result = unittest.TestResult()
    space["Case"]("test").run(result)
    assert (result.failures, result.errors) == ([], [])
    return [*found, space["log"], space["__doc__"], space["check"].__annotations__]


def test_changed_tests_do_the_same() -> None:
    eyes = Values("/nowhere", [])
    plain = outcome(compile(SOURCE, "/tree/test_it.py", "exec", dont_inherit=True))
    changed = outcome(compiled(SOURCE, "/tree/test_it.py", "test_it.py", eyes))
    assert [one[:2] if isinstance(one, tuple) else one for one in changed] == [
        one[:2] if isinstance(one, tuple) else one for one in plain
    ]
    seen = [read_seen(entry, "test_it.py") for entry in eyes.taken("test_it.py")]
    assert len(seen) > 25
    assert {one.line for one in seen if one.failed} == {28}
    assert any("KeyError" in one.wanted and one.errors for one in seen)


@pytest.mark.parametrize("error", [KeyError, ValueError])
def test_what_ends_a_test_ends_a_changed_one(error: type[Exception]) -> None:
    space: dict[str, Any] = {"__name__": "sample", "error": error}
    source = "def test():\n    try:\n        raise error('x')\n    except KeyError:\n        assert 1 == 2, 'three'\n"
    exec(compiled(source, "/tree/t.py", "t.py", Values("/nowhere", [])), space)
    with pytest.raises(AssertionError if error is KeyError else error, match=r"three|x") as caught:
        space["test"]()
    assert caught.traceback[-1].lineno == (4 if error is KeyError else 2)


def seen(site: str, *fields: str) -> str:
    return "\t".join([site, *fields, *[""] * (7 - len(fields))])


def runs(*entries: str) -> TestRun:
    return TestRun(tests={"t.py::a": "passed"}, values={"t.py::a": entries})


MRO = "Lookup,Exception,BaseException,object"


@pytest.mark.parametrize(
    ("ours", "gold", "wrong", "odd"),
    [
        (("1 0 0", "a", "a"), ("1 0 0", "a", "a"), "", ""),
        (("1 0 0", "b", "b"), ("1 0 0", "a", "a"), "", "compares other values"),
        (("1 0 0", "a", "a", "A"), ("1 0 0", "a", "a"), "", ""),
        (("1 0 0", "b", "a", "A"), ("1 0 0", "a", "a"), "compares A, which is a plain value", "compares A"),
        (("1 0 0", "a", "a", "A!"), ("1 0 0", "a", "a"), "", ""),
        *((("1 0 0", "b", "a", f"A{how}"), ("1 0 0", "a", "a"), "", "") for how in ":=!"),
        (("1 0 0", "b", "a"), ("1 0 0", "a", "a"), "", ""),
        (("1 0 0", "a", "a", "undecided"), ("1 0 0", "a", "a"), "not all can be looked at", ""),
        (("1 0 0", "a", "a", "undecided"), ("1 0 0", "a", "a", "undecided"), "", ""),
        (("1 0 1", "b", "a", "A!"), ("1 0 0", "a", "a"), "raw values are equal which differ (A)", "other values"),
        (("1 0 1", "b", "a", "A!"), ("1 0 1", "b", "a", "A!"), "", ""),
        (("1 0 0", "a", "b", "A", "B"), ("1 0 0", "a", "a", "A", "A"), "", "compares B, another class"),
        (("1 1 0", "a", "a"), ("1 0 0", "a", "a"), "an assertion that failed", ""),
        (("2 0 0", "c", "c"), ("1 0 0", "a", "a"), "", "compares other values"),
        (("1 0 0", "", "", "", "", "E", f"Type,{MRO}"), ("1 0 0", "", "", "", "", "E", f"E,{MRO}"), "no E", ""),
        (("1 0 0", "", "", "", "", "E", f"N,E,{MRO}"), ("1 0 0", "", "", "", "", "E", f"E,{MRO}"), "", ""),
    ],
)
def test_what_is_said_of_a_difference(ours: tuple[str, ...], gold: tuple[str, ...], wrong: str, odd: str) -> None:
    bad, look = compared(runs(seen(":7.1=", *ours)), runs(seen(":7.1=", *gold)), ["t.py::a"])
    assert (bool(bad), bool(look)) == (bool(wrong), bool(odd))
    assert all(one.startswith("t.py:7 ") for one in bad + look)
    assert wrong in "".join(bad)
    assert odd in "".join(look)


def test_places_that_are_not_reached_and_new_failures() -> None:
    one, other = seen(":7.1=", "1 0 0", "a", "a"), seen(":8.2?", "0 1 0")
    assert compared(runs(), runs(one), ["t.py::a"]) == (["t.py:7 was not reached"], [])
    assert compared(runs(one, other), runs(one), ["t.py::a"])[0] == [
        "t.py:8 is an assertion that failed, and its test passed"
    ]
    assert compared(runs(one), runs(one, seen(":1.1^", "1 0 0", "a")), ["t.py::a"])[0] == [
        "t.py:1 is a test that was reported, but not called"
    ]
    begun = seen(":1.1^", "1 0 0", "a")
    assert compared(runs(begun), runs(begun, one), ["t.py::a"]) == (["t.py:7 was not reached"], [])
    assert compared(runs(one), runs(one, other), ["t.py::a"]) == ([], ["t.py:8 was not reached"])


entries = st.lists(
    st.builds(
        lambda line, kind, fields, left, right: seen(f":{line}.{line}{kind}", fields, left, right),
        st.integers(1, 5),
        st.sampled_from("=?~^"),
        st.sampled_from(["1 0 0", "1 1 0", "2 0 1"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=5,
    unique_by=lambda entry: entry.split("\t")[0],
)


@given(entries, entries)
def test_what_varies_by_itself_is_not_said(ours: list[str], gold: list[str]) -> None:
    assert compared(runs(*gold), runs(*gold), ["t.py::a"]) == ([], [])
    assert compared(runs(*ours), runs(*gold), []) == ([], [])
    again = runs(*(entry.replace("a", "z").replace("b", "z") for entry in gold))
    bad, odd = compared(runs(*ours), runs(*gold), ["t.py::a"], again)
    said = ("its test passed", "was not reached", "but not called", "which differ ()")
    assert all(one.endswith(said) for one in bad + odd)


def test_of_what_varies_all_but_digests_is_compared() -> None:
    gold, again = runs(seen(":7.1=", "1 0 0", "a", "a")), runs(seen(":7.1=", "1 0 0", "b", "b"))
    bad, _ = compared(runs(seen(":7.1=", "1 0 1", "c", "d", "Same!")), gold, ["t.py::a"], again)
    assert bad == ["t.py:7 says that raw values are equal which differ (Same)"]
    assert compared(runs(seen(":7.1=", "1 0 0", "c", "c")), gold, ["t.py::a"], again) == ([], [])


def test_texts_are_answers_only_where_they_are_asked_for() -> None:
    ours, gold = runs(seen(":7.1'", "1 0 0", "b", "", "A:")), runs(seen(":7.1'", "1 0 0", "a"))
    assert compared(ours, gold, ["t.py::a"]) == ([], ["t.py:7 compares A, which is a plain value with the known fix"])


def test_nothing_held_is_kept_alive() -> None:
    import weakref

    class Thing:
        pass

    thing = Thing()
    held = weakref.ref(thing)
    Values("/nowhere", []).see("t.py:1.1=", 0, thing)
    del thing
    assert held() is None


def test_a_raise_in_a_block_is_raised() -> None:
    call: Callable[..., Any] = contextlib.suppress
    space: dict[str, Any] = {"raises": call}
    source = "def test():\n    with raises(KeyError):\n        raise ValueError('x')\n"
    exec(compiled(source, "/tree/t.py", "t.py", Values("/nowhere", [])), space)
    with pytest.raises(ValueError, match="x"):
        space["test"]()
