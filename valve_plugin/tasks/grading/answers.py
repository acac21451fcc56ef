"""Runs inside the sandbox: gives tests other inputs, and notes what they see. A script of the standard library only.

`other_inputs.py` rewrites the tests so that they ask here for what they give to the tested code, and show here what
they get. A forgery can change all of this; but the answers that the fix gives to other inputs it cannot know.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import operator
import os
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valve_plugin.tasks.grading import signed, words

VARIANTS = 24
"""How often a test runs with other inputs; run 0 has its own."""
_ALL, _THIRD = 4, 8
"""The last run of those that change every value, and of those that change a third of them."""
_LONGEST = (2.0, 10.0)
"""CPU seconds (or a fifth of the seconds that pass) after which a test gets only `_ALL` runs, all tests none."""
_LATE = (2.0, 2.0)
"""CPU seconds, and seconds, after which a run with other inputs is ended."""
_LATE_END = "Late"
_KINDS = 3
"""Kinds of modules from which tested code is called; see `words.Caller`."""
_TOO_OFTEN = 3
"""Runs of a test that are ended so; then it gets no more."""
_MOST = (1000, 60_000)
"""Values that are noted of one run of a test, and of all."""
_NODES = 10_000
_DEPTH = 40
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_PLAIN: tuple[Any, ...] = (bool, int, complex, str, bytes, type(None))
_SETS: tuple[Any, ...] = (set, frozenset, type({}.keys()), type({}.items()))
_SCALARS = (bool, int, float, str, bytes, tuple)
"""Classes of values that nobody can change, so that an equal one is as good."""
_OTHERS: tuple[tuple[Any, Any], ...] = (
    *((int, 1009), (float, 1009.5), (str, "~q"), (bytes, b"~q")),
    *((list, [object()]), (tuple, (object(),))),
)
"""What makes a value of a kind another one that nothing expects."""
_flags: Callable[[type], int] = type.__dict__["__flags__"].__get__  # no class can answer for it
_MADE_BY_CODE, _FIXED = 1 << 9, 1 << 8
"""Flags of classes that are made as code runs, and of those that no code can change.

Python's own, as int and list, compare as they always do; code makes none that is fixed.
"""
GIVEN = "given"
"""The note of a side of a comparison that the test itself gave."""
CALLED = "called"
"""The place of a note which says that a run calls other code than Python's own."""
NOTHING = "nothing"
"""The note of an object that shows nothing but its parts, which have notes of their own."""
REACHES = "reaches"
"""In the place of a test: what code of the tree reaches of the interpreter, whatever it calls it."""
_REACHED = frozenset(
    {"tb_frame", "gi_frame", "cr_frame", "ag_frame", "sys._getframe", "sys._getframemodulename", "sys._current_frames"}
    | {"sys.settrace", "sys.setprofile", "sys.addaudithook", "gc.get_objects", "gc.get_referrers", "gc.get_referents"}
    | {"compile", "exec", "ctypes.dlopen", "sys.monitoring.register_callback"}
)
_FOR_THREADS = frozenset({"sys.settrace", "sys.setprofile"})
"""What new threads call, without code of the tree in sight."""
_THREAD_HOOKS = ("_trace_hook", "_profile_hook")
_handler, _SIGNALS = signal.getsignal, sorted(signal.valid_signals())
_BUSY = ""
_RUNS = {"compile", "exec", "eval"}
_PYTHON = (os.path.dirname(os.__file__), sys.prefix, sys.base_prefix)
"""Where the files of Python, and of what is installed, are."""
_NOT_MADE = frozenset({"__import__", "_getframe", "modules", "environ", "exec", "eval", "globals", "locals"})
"""Names that no text has which a library makes and runs."""
_OPENS = frozenset({"open", "os.listdir", "os.scandir"})
_OF_SYSTEM = re.compile(r"/(proc|sys|etc/(passwd|group|hosts|hostname|machine-id|mtab|resolv\.conf))(/|$)")
"""Files that tell about the machine and its processes."""
PLAIN = "~"
"""Ends the notes of values of Python's own classes."""
_PURE = ("builtins", "math", "json", "re", "operator", "itertools", "textwrap", "string", "datetime", "decimal")
"""Modules of Python's own functions that answer from what they are given."""
_ANY_ERROR = (Exception, BaseException, object)
_CALLED: tuple[Any, ...] = (
    *(types.FunctionType, classmethod, staticmethod, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.BuiltinFunctionType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
)
_STARTS = ("_start_joinable_thread", "_start_new_thread")
"""What starts a thread, by Python's version."""
_OWN_CALLS = 1
"""What `deep` adds to the calls in a thread."""
_DEEPER = 40
"""Calls by which others may call from deeper than a script."""
_clock, _wall, _limit = time.process_time, time.monotonic, sys.getrecursionlimit
_abspath, _fsdecode = os.path.abspath, os.fsdecode


def deep(calls: int, run: Callable[..., Any], *given: Any) -> Any:
    """Call something below so many calls."""
    return deep(calls - 1, run, *given) if calls else run(*given)


@contextmanager
def uncounted() -> Iterator[None]:
    """Let the calls above a test not count for Python's limit, so that their number tells nothing."""
    frame, above, limit, said = sys._getframe(), 0, sys.getrecursionlimit(), sys.getrecursionlimit
    while frame.f_back:
        frame, above = frame.f_back, above + 1
    sys.setrecursionlimit(limit + above)
    sys.getrecursionlimit = limit.conjugate  # says what it was
    name = next(name for name in _STARTS if hasattr(threading, name))
    start = getattr(threading, name)

    def start_deep(run: Callable[..., Any], *given: Any, **named: Any) -> Any:
        more = max(0, _limit() - limit - _OWN_CALLS)  # the limit is that of all threads
        return start(functools.partial(deep, more, run), *given, **named)

    setattr(threading, name, start_deep)
    try:
        yield
    finally:
        setattr(threading, name, start)
        sys.getrecursionlimit = said
        sys.setrecursionlimit(limit)


class Late(BaseException):
    """A run with other inputs goes on for too long: it waits, or goes round for ever."""


_waits = threading.local()


def called(lines: Any, names: dict[str, Any], gets: str, calls: str) -> Any:
    """Call what waits from lines of a script. No name there holds what it is given: code may look at all of them."""
    held = {**names, calls: vars(_waits).pop("call")}
    exec(lines, held)  # noqa: S102
    return held[gets]


class Answers:
    """Runs a test several times; rewritten tests call its `vary`, `call`, `seen`, `side`, `holds` and `checks`."""

    def __init__(self, report: signed.Report, variants: int, caller: words.Caller | None = None) -> None:
        """Begin.

        Args:
            caller: where tested code is called from.
        """
        self._caller: Any = caller
        self._script, self._above, self._less = (), None, 0
        self._report, self._variants, self._variant, self._noted = report, variants, 0, list[str]()
        self._spent, self._left, self._places, self._given = 0.0, _MOST[1], dict[str, int](), set[str]()

    uncounted, late = staticmethod(uncounted), Late

    def names(self) -> dict[str, Any]:
        """Return what rewritten tests call, by the names that they use."""
        return {
            "_vary": self.vary,
            "_call": self.call,
            "_seen": self.seen,
            "_side": self.side,
            "_holds": self.holds,
            "_checks": self.checks,
        }

    def runs(self, test: str, run: Callable[[int], str]) -> list[str]:
        """Run a test with its own inputs and then with others; return how each run ended, and report what it saw.

        Args:
            run: gets the number of the run.
        """
        begin, started, ends, end = _clock(), _wall(), list[str](), ""
        self._places = {}
        for variant in range(self._variants + 1):
            self._given.clear()
            self._variant, spent = variant, max(_clock() - begin, (_wall() - started) / 5)
            long = variant > _ALL and spent > _LONGEST[0]
            if variant and (long or self._spent + spent > _LONGEST[1] or self._left < 0):
                break
            end = self._end_of(test, run, variant)
            noted, self._noted = [*self._noted, f"end {digest(end)}"], []
            self._left -= len(noted)
            self._report.record(event="answers", test=test, variant=str(variant), answers=noted)
            ends.append(end)
            if sum(one.endswith(_LATE_END) for one in ends) >= _TOO_OFTEN:
                break
        self._variant, self._spent = 0, self._spent + max(_clock() - begin, (_wall() - started) / 5)
        if self._caller:
            self._script = self._caller.turn(1)
        return ends

    def _end_of(self, test: str, run: Callable[[int], str], variant: int) -> str:
        """Return how a run ends, called from a module of each kind in turn; with its own inputs, from all of them."""
        if not self._caller:
            return self._in_time(run, variant)
        begin, found = _clock(), set[str]()
        # What a test of a repair sees may depend on the first one, so that is the same each time.
        kinds = [variant % _KINDS] if variant else sorted(range(_KINDS), key=functools.partial(number, test))
        for nth, kind in enumerate(kinds):
            if nth and (_clock() - begin > _LONGEST[0] / 4 or self._spent > _LONGEST[1]):
                break
            noted = list(self._noted)
            self._script, self._above = self._caller.turn(kind), None
            self._less = number(test, variant) % _DEEPER if nth or variant % _KINDS else 0
            found.add(self._in_time(run, variant))
            self._noted = noted if nth else self._noted  # the others see the same, or end otherwise
        return ",".join(sorted(found))

    def _in_time(self, run: Callable[[int], str], variant: int) -> str:
        try:
            with in_time(*_LATE) if variant else nullcontext():
                return run(variant)
        except Late:
            return _LATE_END

    def vary(self, place: str, value: Any) -> Any:
        """Return the value, or another one of its kind, as the number of the run and the place say."""
        value = self._other(place, value)
        self._given |= {text_of(one) for one in itertools.islice(held_by(value), 1000) if type(one) in _SCALARS}
        return value

    def _other(self, place: str, value: Any) -> Any:
        run, nth = self._variant, self._places.setdefault(place, len(self._places))
        if run <= _ALL:  # every value is another one; equal ones stay equal
            return others(value, run) if run else value
        chance = number(place, run)  # about a third of the values; then a sixteenth in turn, as some have to stay
        return other(value, chance) if (chance % 3 if run <= _THIRD else (nth + run) % 16) == 0 else value

    def side(self, place: str, value: Any) -> Any:
        """Note a side of a comparison; what the test itself gave says nothing of the tested code."""
        if type(value) not in _SCALARS or text_of(value) not in self._given:
            return self.seen(place, value)
        self._note(place, GIVEN, PLAIN)
        return value

    def call(self, place: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call what is tested, and note what it is given and what it returns."""
        # What a method's object holds is not known; others may say what they want, or note that they are asked.
        kind = type(function)
        this = getattr(function, "__self__", None) if kind is types.BuiltinMethodType else None
        inputs = "" if kind is types.MethodType else inputs_of([this, given, named])
        if inputs and is_pure(function):  # what it gives, its inputs say already
            self._note(f"{place}{inputs}", "")
            return function(*given, **named)
        self._note(CALLED, "")
        try:
            vars(_waits)["call"] = functools.partial(function, *given, **named)
            answer = self._called()
        except Exception as e:
            self.seen(f"{place}{inputs}", e)
            raise
        return self.seen(f"{place}{inputs}", answer)

    def _called(self) -> Any:
        """Call what waits, with as many calls left as a script has, or fewer, as from deeper in a program."""
        if not self._script:
            return vars(_waits).pop("call")()
        limit, depth = _limit(), 0
        frame = sys._getframe()
        while frame.f_back:
            frame, depth = frame.f_back, depth + 1
        if self._above is None:  # calls of C count, too, and Python counts fewer of them once code has run
            call, vars(_waits)["call"] = vars(_waits)["call"], self._caller.room
            self._above = limit - deep(0, called, *self._script) - depth
            vars(_waits)["call"] = call
        sys.setrecursionlimit(self._caller.left + self._above + depth)
        try:
            return deep(self._less, called, *self._script)
        finally:
            sys.setrecursionlimit(limit)

    def seen(self, place: str, value: Any) -> Any:
        """Note a value, and return it; an iterator as another one that gives the same."""
        if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
            try:
                items = list(itertools.islice(value, 1000))
            except Exception as e:
                self._note(place, "raises " + type(e).__qualname__)
                raise
            self._note(place, text_of(items))
            return itertools.chain(items, value)
        if isinstance(value, BaseException):  # an error of a class is one of the classes above it, too
            kinds = [one.__qualname__ for one in type(value).__mro__ if one not in _ANY_ERROR] or ["Exception"]
            for kind in kinds:
                self._note(f"{place}.{kind}", several_of(type(value)) or "raised")
        elif not hasattr(type(value), "__enter__"):
            self._note_parts(place, value)
        return value

    def _note_parts(self, place: str, value: Any) -> None:
        text, plain = text_and_kind(value)
        if not plain:
            text = f"{text}{' equals others' * equals_others(value)}"
        if says_what_its_parts_say(value) and "equals others" not in text:
            text = NOTHING
        self._note(place, text, PLAIN * plain)
        if type(value).__module__ not in sys.builtin_module_names:
            for name, part in parts_of(value).items():
                self._note(f"{place}.{name}", text_of(part), PLAIN * plain)

    def holds(self, place: str, value: Any) -> None:
        """Note whether an assertion holds. Other inputs may not fit what it expects, so only with its own it fails."""
        self.checks(place, lambda: fail() if not value else None)

    def checks(self, place: str, check: Callable[[], Any]) -> Any:
        """Note whether a call that asserts passes."""
        try:
            answer = check()
        except AssertionError:
            self._note(place, "fails")
            if not self._variant:
                raise
            return None
        self._note(place, "")  # it was asked
        return answer

    def _note(self, place: str, text: str, mark: str = "") -> None:
        if len(self._noted) < _MOST[0]:
            self._noted.append(f"{place.replace(' ', '')[:80]} {digest(text)}{mark}")


def standing(kinds: Sequence[type]) -> dict[str, list[Any]]:
    """Return what code may replace for the whole process, under the name of what replaces it."""
    hooks = sys.gettrace(), sys.getprofile(), *(getattr(threading, one, None) for one in _THREAD_HOOKS)
    found: dict[str, list[Any]] = {"gc.callbacks": list(gc.callbacks), "threading": [*hooks]}
    found["signal.signal"] = list(map(_handler, _SIGNALS))
    return found | {kind.__name__: list(vars(kind).values()) for kind in kinds}


def watch(root: str, report: signed.Report, kinds: Sequence[type]) -> Callable[[], None]:
    """Report at once what code of the tree reaches; code cannot take a hook away.

    Args:
        kinds: classes that nothing changes as tests run.

    Returns:
        A function that reports what was replaced since now, each thing once.
    """
    told, frame, before = set[str](), sys._getframe, standing(kinds)

    def tell(what: str) -> None:
        told.add(what)
        report.record(event="answers", test=REACHES, variant="0", answers=[f"{what} {digest('')}"])

    def look() -> None:
        for what, now in standing(kinds).items():
            old = before[what]
            if what not in told and (len(now) != len(old) or any(map(operator.is_not, now, old))):
                tell(what)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        what, path = given[1] if event == "object.__getattr__" and given[1:] else event, ""
        if event in _OPENS and given and isinstance(given[0], (str, bytes)):
            with suppress(Exception):  # tests may replace what this asks, or have removed the folder
                path = _abspath(_fsdecode(given[0]))
        if found := _OF_SYSTEM.match(path):
            what = found[0].rstrip("/")
        reached = bool(found) or what in _REACHED
        code = given[0] if event == "exec" and given else None
        if (
            isinstance(code, types.CodeType)
            and code.co_filename[:1] != "/"
            and not _NOT_MADE.isdisjoint(names_of(code))
        ):
            reached, what = True, "a_text_that_a_library_runs"
        if reached and told.isdisjoint((what, _BUSY)):
            told.add(_BUSY)  # to look is such an event, too
            if what in _FOR_THREADS or is_of(root, frame(1), what):
                tell(what)
            told.discard(_BUSY)

    sys.addaudithook(hook)
    return look


def names_of(code: types.CodeType) -> set[str]:
    """Return the names that code uses, and that code in it does."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*map(names_of, inner))


def is_of(root: str, frame: Any, what: str) -> bool:
    """Whether code of the tree reaches something: itself, or by a function of Python that does not name it."""
    names = _RUNS if what in _RUNS else {what.rpartition(".")[2]}
    while frame and not frame.f_code.co_filename.startswith(root):
        file = frame.f_code.co_filename
        gives = what == "sys._getframe" and file.endswith(("/inspect.py", "/traceback.py"))  # frames, to who calls
        if file.startswith("<frozen importlib") or (
            file.startswith(_PYTHON) and not gives and not names.isdisjoint(frame.f_code.co_names)
        ):
            return False
        frame = frame.f_back
    return frame is not None


@contextmanager
def in_time(spent: float, passed: float) -> Iterator[None]:
    """Raise `Late` after so many CPU seconds, or so many seconds; not where tests have alarms of their own."""

    def late(*_: object) -> None:
        raise Late

    both = ((signal.SIGPROF, signal.ITIMER_PROF, spent), (signal.SIGALRM, signal.ITIMER_REAL, passed))
    free = [one for one in both if signal.getsignal(one[0]) is signal.SIG_DFL]
    try:
        for which, timer, seconds in free:
            signal.signal(which, late)
            signal.setitimer(timer, seconds, 0.2)  # again, as code may catch it
        yield
    finally:
        for which, timer, _ in free:
            signal.setitimer(timer, 0)
            signal.signal(which, signal.SIG_DFL)


def fail() -> None:
    """Fail as an assertion does."""
    raise AssertionError


def is_pure(function: Any) -> bool:
    """Whether a function is one of Python's own that answers from what it is given. Nothing of its class is asked."""
    kind = type(function)
    if kind in (types.FunctionType, types.BuiltinMethodType) and function.__module__:
        return function.__module__.partition(".")[0] in _PURE
    if kind is types.BuiltinMethodType:
        kind = type(function.__self__)
        function = function.__self__
    of = function if kind is type else kind
    return kind is not types.MethodType and str(type.__getattribute__(of, "__module__")) in _PURE


def several_of(kind: type) -> str:
    """Return which of Python's own errors one is at the same time, where none of them is above another; "" for one."""
    own = [one for one in kind.__mro__ if not _flags(one) & _MADE_BY_CODE and one is not object]
    lowest = [one.__name__ for one in own if not any(one is not below and issubclass(below, one) for below in own)]
    return ",".join(sorted(lowest)) if len(lowest) > 1 else ""


def equals_others(value: Any) -> bool:
    """Whether a value equals one that is another: only what a class says can make that so."""
    try:
        for plain, more in _OTHERS:
            if isinstance(value, plain):
                return bool(value == plain.__add__(value, more))
        return not isinstance(value, (type, types.ModuleType)) and bool(value == object())
    except Exception:  # noqa: BLE001  # a comparison of tested code may raise anything
        return False


def digest(text: str) -> str:
    """Return a short name of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def number(*parts: object) -> int:
    """Return a number that is made from some values, the same in each process."""
    return int(digest(repr(parts)), 16)


def other(value: Any, chance: int) -> Any:
    """Return another value of the same kind; the same where there is none."""
    kind = type(value)
    if kind is bool:
        return value != (chance & 8 == 0)
    if kind is int:
        return (value + 1, value - 1, value * 2 + 1, value + 10, -value - 1)[chance // 8 % 5]
    if kind is float:
        return (value + 0.5, value * 2 + 1, -value - 1, value + 10)[chance // 8 % 4]
    if kind is str or kind is bytes:
        if not value:
            return kind(b"a") if kind is bytes else "a"
        at = chance // 64 % len(value)
        before, here, after = value[:at], value[at : at + 1], value[at + 1 :]
        another = (b"3" if kind is bytes else "3") if here.isdigit() and here not in (b"3", "3") else value[:1]
        return (
            *(value + value[-1:], value[:-1], value * 2, value[::-1], value.swapcase()),
            *(before + here + here + after, before + another + after, before + after),
        )[chance // 8 % 8]
    if kind in (list, tuple):
        return kind(other(one, number(chance, n)) if number(n, chance) % 2 else one for n, one in enumerate(value))
    if kind is dict:
        changed = ((key, number(chance, n), one) for n, (key, one) in enumerate(value.items()))
        return {
            key if more % 4 else other(key, more // 4): other(one, more) if more % 2 else one
            for key, more, one in changed
        }
    return value


def others(value: Any, run: int) -> Any:
    """Return another value in which all are other ones; what is equal stays equal, also within others."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(others(one, run) for one in value)
    if kind is dict:
        return {others(key, run): others(one, run) for key, one in value.items()}
    return other(value, number(text_of(value), run))


def text_of(value: Any) -> str:
    """Return a text of what a value holds: the same for values that tests take for equal, whatever their classes.

    Code of the value may run for it. It cannot forge, as it does not know the text that is right.
    """
    return text_and_kind(value)[0]


def text_and_kind(value: Any) -> tuple[str, bool]:
    """Return (text of a value, whether it is made of Python's own classes, whose comparisons are what they seem)."""
    left = [_NODES, True]
    try:
        return _text(value, (), left), bool(left[1])
    except Exception as e:  # noqa: BLE001  # it may raise anything
        return f"no text: {type(e).__qualname__}", False


def inputs_of(given: Any) -> str:
    """Return a short name of what a call is given; "" where objects of classes are in it, which repairs may make."""

    def plain(value: Any, depth: int = 0) -> str:
        text = _of_builtin(value, lambda values: (plain(one, depth + 1) for one in values)) if depth < _DEPTH else ""
        if not text:
            raise TypeError
        return text

    try:
        return f"({digest(plain([one for one in given if not isinstance(one, types.ModuleType)]))})"
    except Exception:  # noqa: BLE001  # a subclass may raise anything
        return ""


def _text(value: Any, above: tuple[int, ...], left: list[int]) -> str:
    left[0] -= 1
    if left[0] < 0 or len(above) > _DEPTH or id(value) in above:
        return "..."
    above = (*above, id(value))
    if _flags(type(value)) & (_MADE_BY_CODE | _FIXED) == _MADE_BY_CODE:
        left[1] = False

    def each(values: Any) -> Iterator[str]:
        return (_text(one, above, left) for one in itertools.islice(values, max(0, left[0])))

    if text := _of_builtin(value, each) or _of_kind(value, each):
        return text
    held = parts_of(value)
    return ",".join(map(":".join, zip(held, each(held.values())))) if held else _ADDRESS.sub("", repr(value))  # noqa: B905


def _of_builtin(value: Any, each: Callable[[Any], Iterator[str]]) -> str:
    if isinstance(value, complex) and not value.imag:
        value = value.real
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if isinstance(value, float) or type(value).__name__ in ("Decimal", "Fraction"):
        value = float(value)
        return repr(int(value)) if value.is_integer() else f"{value:.3g}"
    for plain in _PLAIN:
        if isinstance(value, plain):
            text: str = plain.__repr__(value)
            return text
    if isinstance(value, list):
        return f"[{','.join(each(list.__iter__(value)))}]"
    if isinstance(value, tuple):
        return f"[{','.join(each(tuple.__iter__(value)))}]"
    if isinstance(value, _SETS):
        return f"{{{','.join(sorted(each(value)))}}}"
    return _of_pairs(dict.items(value), each) if isinstance(value, dict) else ""


def _of_pairs(pairs: Any, each: Callable[[Any], Iterator[str]]) -> str:
    return f"{{{','.join(sorted(':'.join(each(pair)) for pair in pairs))}}}"


def _of_kind(value: Any, each: Callable[[Any], Iterator[str]]) -> str:
    kind = type(value)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return str(getattr(value, "__qualname__", ""))
    if isinstance(value, BaseException):
        return kind.__qualname__  # each repair may word it its own way
    if any(one.__name__ == "NonCallableMock" for one in kind.__mro__):
        return "".join(each([list(value.mock_calls)]))
    if hasattr(kind, "__getitem__") and hasattr(kind, "keys"):
        return _of_pairs([(key, value[key]) for key in value], each)
    if hasattr(kind, "__len__") and hasattr(kind, "__iter__"):
        return f"[{','.join(each(value))}]"
    return ""


def says_what_its_parts_say(value: Any) -> bool:
    """Whether all that others may see of an object of a class are its parts, which may be none."""
    same: Any = object.__repr__
    with suppress(Exception):  # code of the value runs
        if not _of_builtin(value, _as_one) and not _of_kind(value, _as_one):
            return bool(parts_of(value)) or type(value).__repr__ is same
    return False


def _as_one(_: Any) -> Iterator[str]:
    return iter("-")


def held_by(value: Any) -> Iterator[Any]:
    """Yield a value, and what is in it where it is a container of Python's own."""
    yield value
    if type(value) is dict:
        value = [*value, *value.values()]
    for one in value if type(value) in (list, tuple) else ():
        yield from held_by(one)


def parts_of(value: Any) -> dict[str, Any]:
    """Return what an object of a class holds for others, by name: attributes, properties and other descriptors."""
    held = ((name, what) for one in type(value).__mro__ for name, what in vars(one).items())
    names = {name for name, what in held if hasattr(type(what), "__get__") and not isinstance(what, _CALLED)}
    found: dict[str, Any] = {}
    for name in sorted(names.union(getattr(value, "__dict__", ()))):
        if not str(name).startswith("_"):
            with suppress(Exception):  # a property may raise anything
                found[str(name)] = getattr(value, name)
    return found
