"""Runs inside the sandbox: reports what tests compare, as raw values, however the tested code would have it seen.

Test files are changed as they are compiled, line for line: what an operator, a condition, an assertion or a call of
what is not of the tree gets passes through functions which no name leads to. They look at the real class of an object
and at what the object holds, and call nothing that the tested code defines. `differences.py` compares this, outside,
with what the fix's run showed.

A script of the standard library only, for the Python of the test environment.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import copy
import datetime
import decimal
import fractions
import gc
import hashlib
import math
import os
import pathlib
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOST_NODES, MOST_DEPTH = 5_000, 40
"""How much of one value is looked at."""
MOST_FLAT = 200_000
"""Items of a list that holds plain values only; a hundred count as one node."""
MOST_OF_TEST, MOST_BESIDE = 60_000, 500
"""Nodes of the values of one test: what comes later is only looked at from outside. And of one value outside
assertions, where more are not missed."""
MOST_BYTES = 10_000_000
MOST_SITES = 2_000
"""Places of one test that are reported."""
MOST_TEXT = 20_000
"""Longer texts are known by their digest."""
UNDECIDED = "undecided"
"""Stands among the classes of a side of which not all was looked at."""
MOST_KINDS = 8
MOST_FOLDS, MOST_FOLDS_BESIDE = 10_000, 100
"""How often the plain values of one place in one test are part of its digest; and outside assertions."""
SEE, TRUE, ASK, SPREAD, DONE, FAILED, CAUGHT, CATCHING = (
    f"valve: {name}" for name in ("see", "true", "ask", "spread", "done", "failed", "caught", "catching")
)
LOOKING = (SEE, TRUE, ASK, SPREAD, DONE, FAILED, CAUGHT, CATCHING)
"""Constants in compiled tests that are replaced by functions."""
EQUAL, ASKED, INSIDE, BESIDE, CALLED, TEXT, TOLD = "=", "?", ",", "~", "^", "'", ">"
"""What a site is: an assertion that two values are equal, another assertion or a comparison in one, what else decides
in an assertion, what decides outside, a test, a text of an object, a call of the tested code for no answer but that it
ends or that it is true."""
QUIET = INSIDE + BESIDE + TEXT + TOLD
"""Sites that need not be reached."""
CALL = "()"
"""How the name of an assertion that is a call ends: it came to its end, or it failed."""
EQUALITIES = frozenset({"assertEqual", "assertEquals", "assertMultiLineEqual", "eq_"})
ASKING = frozenset({"assertTrue", "assertFalse", "assert_", "failUnless"})
RAISES = _words("raises assertraises assertraisesregex")
TEXTS, KINDS = _words("repr str format ascii"), _words("isinstance issubclass")
CLASS = KINDS | _words("type callable id hasattr")
"""Builtins to which of their first argument only the class or the name matters."""
STEPPING = _words("any all sum max min assertIn assertNotIn assertCountEqual")
"""What only steps through the iterator that it is given."""
HARMLESS = _words("""
    __init__ __new__ __init_subclass__ __class_getitem__ __set_name__ __module__ __qualname__ __doc__ __slots__ __dict__
    __weakref__ __annotations__ __match_args__ __firstlineno__ __static_attributes__ __annotate__ __annotate_func__
    __annotations_cache__ __classdictcell__ __type_params__ __orig_bases__ __parameters__ __conditional_annotations__
    __setattr__ __delattr__ __dir__ __sizeof__ __reduce__ __reduce_ex__ __getnewargs__ __getstate__ __setstate__
    __getnewargs_ex__ __copy__ __deepcopy__ __str__ __repr__ __format__""")
"""What a class below a builtin one may define, and its objects still answer as their raw values do."""
SHOWS = _words("__str__ __repr__ __format__")
"""Of these, methods that matter where a text of an object is asked for."""

mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
name_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
space_of: Callable[[Any], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__
arguments_of: Callable[[BaseException], tuple[Any, ...]] = BaseException.__dict__["args"].__get__
flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
HEAP = 1 << 9
"""The flag of classes that are made in Python, or as if."""
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{8,}")
UNCLEAR = re.compile(r"[^\w.<>\[\]-]")
REAL: Callable[[complex], float] = complex.__dict__["real"].__get__
IMAGINARY: Callable[[complex], float] = complex.__dict__["imag"].__get__
PLAIN = frozenset(map(id, (int, bool, float, str, bytes, type(None))))
held_by, blake, modules, get_error = gc.get_referents, hashlib.blake2b, sys.modules, sys.exc_info


class Kind:
    """What is known of a class: how its objects are read, and whether it is of the tested code."""

    __slots__ = ("cls", "foreign", "moody", "name", "read", "spaces", "steps", "valued")

    def __init__(self, cls: type, around: Callable[[type], bool]) -> None:
        mro = mro_of(cls)
        self.cls, self.name = cls, label(cls)
        self.foreign = not is_known(cls) and not around(cls)
        readers = READERS if self.foreign else {**READERS, **EXACT}
        self.read = next((readers[id(base)] for base in mro if id(base) in readers), None)
        self.valued = any(id(base) in VALUED for base in mro)
        """Whether what it equals is decided by a raw value."""
        has = {
            name
            for base in mro
            for name in ("__bool__", "__len__", "__next__", "__contains__")
            if name in dict_of(base)
        }
        self.moody, self.steps = bool(has & {"__bool__", "__len__"}), has & {"__next__", "__contains__"} == {"__next__"}
        """Whether it can be untrue; whether `in` steps through it as an iterator."""
        spaces: dict[str, Any] = {}
        for base in mro:
            slots = flags_of(base) & HEAP
            for one in list(dict_of(base).values()) if base is not object else ():
                member = type(one) is types.MemberDescriptorType
                if (member or type(one) is types.GetSetDescriptorType) and one.__name__ == "__dict__":
                    spaces.setdefault("", one)
                elif member and slots:
                    name = one.__name__
                    spaces[f"{label(base)}.{name}" if name in spaces else name] = one
        self.spaces = sorted(spaces.items())

    def shown(self) -> str:
        """Return its name; with `=` if its objects answer as their raw values do, with `:` if only texts of them may be
        others, with `!` if perhaps not."""
        if not self.valued:
            return self.name
        own, ours = dict[str, Any](), dict[str, Any]()
        for base in reversed(mro_of(self.cls)):
            space = {str.__str__(name): one for name, one in dict_of(base).items() if is_below(type(name), str)}
            (ours if is_known(base) else own).update(space if base is not object else {})
        own = {name: one for name, one in own.items() if ours.get(name) is not one}
        answers = [
            name for name in own if name not in HARMLESS and (name[:2] == "__" or (name[0] != "_" and name in ours))
        ]
        if answers or not is_known(type(self.cls)):
            return f"{self.name}!"
        return f"{self.name}{':' if own.keys() & SHOWS else '='}"


class Unclear(Kind):
    """What could not be read counts as of the tested code, and as equal to nothing."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.name, self.foreign, self.valued = name, True, False


class Site:
    """What one place of one test has seen."""

    def __init__(self, name: str) -> None:
        self.beside, self.equal, self.asserts = name[-1] in (BESIDE, TEXT), EQUAL in name[-3:], name.endswith(CALL)
        self.asked = self.done = self.failed = self.unequal = 0
        self.called, self.decides, self.told = False, True, False
        """Whether something is called here, whether that is not of the tree, and whether it is of the tested code."""
        self.most = MOST_FOLDS_BESIDE if self.beside else MOST_FOLDS
        self.kinds: list[dict[int, Kind]] = [{}, {}]
        self.hashes: list[Any] = [None, None]
        self.left: tuple[str, dict[int, Kind], Any] = "", {}, None
        self.wanted: dict[str, None] = {}
        self.errors: dict[str, None] = {}

    def note(self, side: int, found: dict[int, Kind], text: str) -> None:
        """Note what a value is."""
        if found:
            self.kinds[side].update(found)
        if found or self.asked <= self.most:
            if self.hashes[side] is None:
                self.hashes[side] = blake(digest_size=7)
            self.hashes[side].update(text.encode("utf-8", "surrogatepass") + b"\0")


class Values:
    """Looks at what tests compare.

    Args:
        root: the tree; classes of modules in it are of the tested code.
        packages: what the tree provides: a module may say that it is from elsewhere.
    """

    def __init__(self, root: str, packages: Iterable[str]) -> None:
        self._root, self._packages = root + os.sep, frozenset(packages)
        self._kinds: dict[int, Kind] = {}
        self._sites: dict[str, Site] = {}
        self._left = [MOST_OF_TEST, MOST_OF_TEST]
        self.paths = set[str]()
        """Of the files that were changed."""

    # What changed tests call

    def see(self, site: str, side: int, value: Any, again: bool = False, steps: bool = False) -> Any:
        """Look at an operand or an argument; return it.

        Args:
            again: look at the left side again: what came to be the right side may have changed it.
            steps: of an iterator, look at what it gives.
        """
        held = self._sites.get(site) or self._site(site)
        held.asked += side == 0 and not held.called
        if steps and held.decides and id(type(value)) not in SIMPLE and self._kind(type(value)).steps:
            return (self._see(held, side, one) for one in value)
        return self._see(held, side, value, again)

    def _see(self, held: Site, side: int, value: Any, again: bool = False) -> Any:
        plain = id(type(value)) in PLAIN
        if not (held.decides or held.told) or (plain and held.beside and held.asked > held.most):
            return value
        found, text = self.look(value, beside=held.beside)
        if not held.decides and found:  # what the tested code is told of its own objects
            return value
        if side == 0:
            held.left = text, found, value if again and not plain else None
        else:
            before, ours, kept = held.left
            if held.equal and (found or ours):  # equality that only classes of Python decide is what it says
                held.unequal += text != before and all(kind.valued for kind in (*found.values(), *ours.values()))
            if kept is not None:
                held.unequal += self.look(kept)[1] != before
                held.left = before, ours, None
        held.note(side, found, text)
        return value

    def true(self, site: str, value: Any) -> Any:
        """Look at what is asked to be true; return it."""
        held = self._sites.get(site) or self._site(site)
        held.asked += 1
        if id(type(value)) in SIMPLE:
            held.note(0, {}, "true" if value else "false")
        elif self._kind(type(value)).moody:
            held.note(0, *self.look(value, beside=held.beside))
        else:
            held.note(0, {}, "true")
        return value

    def ask(self, site: str, function: Any, told: bool = False) -> Any:
        """Look at what is called, and whose method it is; return it.

        Args:
            told: nothing but that it ends, or is true, is asked of it.
        """
        held = self._sites.get(site) or self._site(site)
        held.asked += 1
        held.called, own = True, not self._decides(function)
        held.decides = held.asserts or not own
        if id(type(function)) in BOUND:
            owner = function.__self__
            kind = self._kind(type(owner))
            if kind.read and id(type(owner)) not in SPACES and (kind.foreign or not held.beside):
                held.note(0, *self.look(owner, beside=held.beside))
            elif held.asserts and any(label(base) == "NonCallableMock" for base in mro_of(type(owner))):
                held.note(0, *self.look(dict.get(Reader(self._kind, 1).parts(owner)[""], "_mock_mock_calls")))
            elif kind.foreign and own:
                held.kinds[0][id(type(owner))] = kind
        if own and (told or held.asserts) and type(function) is types.FunctionType:
            held.told = function.__code__.co_filename not in self.paths
        return function

    def _decides(self, function: Any) -> bool:
        """Whether what is called is not of the tree: it finds its answer by asking what it is given."""
        if type(function) is types.MethodType:
            function = function.__func__
        if type(function) is types.FunctionType:
            return not function.__code__.co_filename.startswith(self._root)
        cls = type(function)
        return id(cls) in BOUND or not self._kind(function if is_below(cls, type) else cls).foreign

    def spread(self, site: str, side: int, values: Any) -> Any:
        """Look at arguments; return them."""
        return [self.see(site, min(1, side + n), one) for n, one in enumerate([*values])]

    def done(self, site: str, result: Any) -> Any:
        """Note that an assertion which is a call came to its end; return its result."""
        self._site(site).done += 1
        return result

    def failed(self, site: str) -> bool:
        """Note that an assertion failed; return False."""
        self._site(site).failed += 1
        return False

    def catching(self, site: str, wanted: Any, function: Any) -> Any:
        """Return a function that notes the errors of one."""

        def called(*given: Any, **named: Any) -> Any:
            try:
                return function(*given, **named)
            except BaseException:
                self.caught(site, wanted)
                raise

        return called

    def caught(self, site: str, wanted: Any) -> None:
        """Note the real classes of an error that was caught, and of what was to be caught."""
        held = self._site(site)
        raised = type(get_error()[1])
        held.asked += 1
        if len(held.errors) < MOST_KINDS:
            held.errors[",".join(map(label, mro_of(raised)))] = None
            for one in wanted if type(wanted) is tuple else (wanted,):
                held.wanted[label(one) if any(base is type for base in mro_of(type(one))) else "?"] = None

    def _site(self, name: str) -> Site:
        return self._sites.setdefault(name, Site(name))

    # What the reporter asks

    def clear(self) -> None:
        """Begin with a test."""
        self._sites, self._left = {}, [MOST_OF_TEST, MOST_OF_TEST]

    def taken(self, path: str) -> list[str]:
        """Return what a test of this file has seen, one text a place (see `differences.Seen`), and begin anew."""
        sites = [one for one in self._sites.items() if one[0][-1] not in QUIET or any(one[1].hashes + one[1].kinds)]
        self._sites = {}
        return [
            entry(name[len(path) :] if name.startswith(f"{path}:") else name, held) for name, held in sites[:MOST_SITES]
        ]

    def look(self, value: Any, *, beside: bool = False) -> tuple[dict[int, Kind], str]:
        """Return (kinds of the tested code's objects in a value, by id; the raw value as a text)."""
        cls = type(value)
        if cls is str or cls is int:
            return {}, text_of(value) if cls is str else whole(value)
        most = min(MOST_BESIDE if beside else MOST_NODES, max(1, self._left[beside]))
        reader = Reader(self._kind, most)
        try:
            text = reader.text(value, 0)
        except Exception:  # noqa: BLE001 (a class of C that is not as others are, a dictionary that changes)
            text = f"? {label(type(value))}"
            reader.found[-1] = Unclear(label(type(value)))
        self._left[beside] -= most - reader.nodes
        if beside:
            reader.found.pop(0, None)
        return reader.found, text if len(text) < MOST_NODES else fold(text)

    def _kind(self, cls: type) -> Kind:
        if id(cls) not in self._kinds:
            self._kinds[id(cls)] = Kind(cls, self._around)
        return self._kinds[id(cls)]

    def _around(self, cls: type) -> bool:
        """Whether a class is of a module that the tested code does not have, by what that module holds."""
        name = dict_of(cls).get("__module__")
        module: Any = modules.get(name) if type(name) is str else None
        if not any(base is types.ModuleType for base in mro_of(type(module))):
            return False
        space = space_of(module)
        if space.get(name_of(cls)) is not cls or name.partition(".")[0] in self._packages:
            return False
        path = space.get("__file__")
        if type(path) is not str:
            return name in sys.builtin_module_names
        return not path.startswith(self._root)


class Reader:
    """Reads one value."""

    __slots__ = ("_kind", "_path", "found", "nodes")

    def __init__(self, kind: Callable[[type], Kind], nodes: int) -> None:
        self._kind, self.nodes = kind, nodes
        self.found: dict[int, Kind] = {}
        self._path: dict[int, int] = {}

    def text(self, value: Any, depth: int) -> str:
        """Return a value as a text: the same for values that are equal."""
        cls = type(value)
        if cls is str:
            return text_of(value)
        if cls is int or cls is bool:
            return whole(int.__add__(value, 0))
        if value is None:
            return "None"
        kind = self._kind(cls)
        if kind.foreign:
            self.found[id(cls)] = kind
        self.nodes -= 1
        if self.nodes < 0 or depth > MOST_DEPTH:
            return self._cut()
        if id(value) in self._path:
            return f"same {self._path[id(value)]}"
        self._path[id(value)] = len(self._path)
        try:
            text = str(kind.read(self, value, depth + 1)) if kind.read else self._state(kind, value, depth + 1)
        except Exception:  # noqa: BLE001 (it is not what others of its class are, or it changes)
            text = f"? {kind.name}"
            self.found[id(cls)] = Unclear(kind.name)
        del self._path[id(value)]
        return text

    def _cut(self) -> str:
        self.found[0] = Unclear(UNDECIDED)
        return "..."

    def parts(self, value: Any) -> dict[str, Any]:
        """Return what the slots of an object hold, by name."""
        found = {}
        for name, space in self._kind(type(value)).spaces:
            with contextlib.suppress(AttributeError):  # an empty slot
                found[name] = space.__get__(value)
        return found

    def _state(self, kind: Kind, value: Any, depth: int) -> str:
        """Return an object's class and what it holds."""
        held: list[str] = []
        if not kind.foreign:
            with contextlib.suppress(TypeError, ValueError, BufferError), memoryview(value) as view:  # an array
                if "O" not in view.format and view.nbytes < MOST_BYTES:
                    held.append(f"{view.format} {view.shape} {blake(view.tobytes()).hexdigest()}")
        for name, inside in self.parts(value).items():
            held += [f"{text_of(name)}:{self.text(inside, depth)}"] if name else self.pairs(inside, depth)
        return f"{kind.name}<{' '.join(sorted(held))}>"

    def pairs(self, value: dict[Any, Any], depth: int) -> list[str]:
        """Return the items of a dictionary as texts."""
        return [f"{self.text(name, depth)}:{self.text(one, depth)}" for name, one in self._first(dict.items(value))]

    def all(self, values: Iterable[Any], depth: int) -> list[str]:
        """Return values as texts."""
        return [self.text(one, depth) for one in self._first(values)]

    def flat(self, values: Iterator[Any]) -> list[str]:
        """Return plain values as texts, however many; none if there are others."""
        most = min(MOST_FLAT, 40 * self.nodes)
        every = [one for _, one in zip(range(most), values)]  # noqa: B905 (newer than the oldest Python)
        if self.nodes < 0 or len(every) == most or any(id(type(one)) not in PLAIN for one in every):
            return []
        left, self.nodes = self.nodes, MOST_FLAT
        texts = [self.text(one, 0) for one in every]
        self.nodes = left - len(every) // 100
        return texts

    def _first(self, values: Iterable[Any]) -> Iterator[Any]:
        for one in values:
            if self.nodes < 0:
                self._cut()
                return
            self.nodes -= 1
            yield one


def entry(name: str, held: Site) -> str:
    """Return what a place has seen as a text."""
    failed = held.failed + (held.asked - held.done if name.endswith(CALL) else 0)
    kinds = (";".join(sorted({kind.shown() for kind in side.values()})[:MOST_KINDS]) for side in held.kinds)
    numbers = f"{held.asked} {failed} {held.unequal}"
    name = name.replace(CALL, "")[:-1] + TOLD if held.told else name
    digests = (one.hexdigest() if one else "" for one in held.hashes)
    return "\t".join([name, numbers, *digests, *kinds, ",".join(held.wanted), ";".join(held.errors)])


def label(cls: type) -> str:
    """Return the name of a class, without what has a meaning in reports."""
    return UNCLEAR.sub("_", str.__str__(name_of(cls)))[:80]


def fold(text: str) -> str:
    """Return a digest of a text."""
    return blake(text.encode("utf-8", "surrogatepass"), digest_size=7).hexdigest()


def text_of(value: Any) -> str:
    """Return a text, without addresses; a long one as its digest."""
    text = str.__str__(value)
    shown = ADDRESS.sub("", text) if "0x" in text else text
    return f"'{shown if len(shown) <= MOST_TEXT else fold(shown)}'{len(text)}"


def whole(number: int) -> str:
    """Return a whole number."""
    return f"#{number}" if -(1 << 64) < number < 1 << 64 else f"#~{fold(hex(number))}"


def ratio(top: int, bottom: int) -> str:
    """Return a number that is reduced to lowest terms: the same for equal ones of each kind."""
    return whole(top) if bottom == 1 else f"{whole(top)}/{whole(bottom)}"


def float_of(value: float) -> str:
    """Return a number of floating point."""
    if not math.isfinite(value := float.__add__(value, 0.0)):
        return f"#{value!r}"
    return ratio(*value.as_integer_ratio())


def complex_of(value: complex) -> str:
    """Return a complex number."""
    real, imaginary = REAL(value), IMAGINARY(value)
    return float_of(real) if imaginary == 0 else f"{float_of(real)}+j{float_of(imaginary)}"


def decimal_of(value: decimal.Decimal) -> str:
    """Return a decimal number."""
    base = decimal.Decimal
    if not base.is_finite(value):
        return "#nan" if base.is_nan(value) else "#-inf" if base.is_signed(value) else "#inf"
    if abs(base.adjusted(value)) > MOST_NODES:  # too many digits to write them all
        return f"#~~{base.__hash__(value)}"
    return ratio(*base.as_integer_ratio(value))


def fraction_of(reader: Reader, value: fractions.Fraction, _: int) -> str:
    """Return a fraction, by what its slots hold."""
    held = reader.parts(value)
    top, bottom = held["_numerator"], held["_denominator"]
    if type(top) is not int or type(bottom) is not int or bottom < 1 or math.gcd(top, bottom) != 1:
        raise ValueError("its parts are not as a fraction has them")
    return ratio(top, bottom)


def path_of(reader: Reader, value: pathlib.PurePath, _: int) -> str:
    """Return a path, if what it keeps is what one that is made anew keeps."""
    held = reader.parts(value)
    flat = [part for one in held.values() for part in (one if type(one) in (list, tuple) else [one])]
    if any(id(type(one)) not in PLAIN for one in flat):
        raise ValueError("its parts are not as a path has them")
    text = str(value)
    again = type(value)(text)
    if not (again == again and hash(again) and str(again) == text):  # it keeps what it compares
        raise ValueError("it is not what it says")
    kept = reader.parts(again)
    if any(kept[name] != one for name, one in held.items() if name in kept and name != "_raw_paths"):
        raise ValueError("its parts differ from what it says")
    return f"path {text}"


def inside(*names: str) -> Any:
    """Return what reads a value of C by its members."""
    return lambda cls: (
        lambda reader, value, depth: (
            f"{cls.__name__}<{' '.join(reader.text(cls.__dict__[name].__get__(value), depth) for name in names)}>"
        )
    )


def alone(read: Callable[[Any], str]) -> Any:
    """Return what reads values that hold no others."""
    return lambda reader, value, depth: read(value)


def sequence(begin: str, iterate: Callable[[Any], Iterator[Any]], end: str) -> Any:
    """Return what reads sequences of a kind."""
    return lambda reader, value, depth: (
        f"{begin}{' '.join(reader.flat(iterate(value)) or reader.all(iterate(value), depth))}{end}"
    )


def unordered(iterate: Callable[[Any], Iterator[Any]]) -> Any:
    """Return what reads sets of a kind."""
    return lambda reader, value, depth: f"<{' '.join(sorted(reader.all(iterate(value), depth)))}>"


def table_of(reader: Reader, value: dict[Any, Any], depth: int) -> str:
    """Return a dictionary: what it holds, in no order; a counter without what it counted 0 times."""
    pairs = reader.pairs(value, depth)
    if type(value) is collections.Counter:
        pairs = [pair for pair in pairs if not pair.endswith(":#0")]
    return f"{{{' '.join(sorted(pairs))}}}"


def reduced(base: Any) -> Any:
    """Return what reads values by how the standard library, which is no Python here, copies them."""
    return lambda reader, value, depth: f"{base.__name__}{reader.text(base.__reduce__(value)[1:2], depth)}"


def bytes_of(base: Any) -> Any:
    """Return what reads bytes of a kind."""
    return alone(lambda value: f"b{bytes(base.__getitem__(value, slice(MOST_TEXT)))!r}{base.__len__(value)}")


READERS: dict[int, Any] = {
    id(int): alone(lambda value: whole(int.__add__(value, 0))),
    id(float): alone(float_of),
    id(complex): alone(complex_of),
    id(decimal.Decimal): alone(decimal_of),
    id(str): alone(text_of),
    id(bytes): bytes_of(bytes),
    id(bytearray): bytes_of(bytearray),
    id(dict): table_of,
    id(list): sequence("[", list.__iter__, "]"),
    id(tuple): sequence("(", tuple.__iter__, ")"),
    id(collections.deque): sequence("deque[", collections.deque.__iter__, "]"),
    id(set): unordered(set.__iter__),
    id(frozenset): unordered(frozenset.__iter__),
}
SIMPLE = PLAIN | {id(cls) for cls in (list, tuple, dict, set, frozenset)}
"""Classes of which nothing but the raw value says whether an object is true; by id, as a class may say how it is looked
up."""
SPACES = frozenset(map(id, (types.ModuleType, type)))
BOUND = frozenset(map(id, (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)))
VALUED = frozenset(READERS)
"""Classes whose equality is that of their raw values."""
VIEWS: list[Any] = [type({}.keys()), type({}.items()), type({}.values())]
READERS.update({id(view): unordered(view.__iter__) for view in VIEWS})
READERS.update(
    {id(base): reduced(base) for base in (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)}
)
READERS[id(type)] = alone(lambda value: f"{label(type(value))} {label(value)}")
READERS[id(types.ModuleType)] = READERS[id(types.MethodType)] = READERS[id(types.BuiltinFunctionType)] = alone(
    lambda value: label(type(value))
)
READERS[id(slice)] = inside("start", "stop", "step")(slice)
READERS[id(types.GenericAlias)] = inside("__origin__", "__args__")(types.GenericAlias)
READERS[id(types.MappingProxyType)] = lambda reader, value, depth: reader.text(held_by(value)[0], depth)
READERS[id(types.FunctionType)] = alone(lambda value: f"function {value.__qualname__}")
READERS[id(BaseException)] = lambda reader, value, depth: (
    f"{label(type(value))}({' '.join(reader.all(arguments_of(value), depth))})"
)
EXACT: dict[int, Any] = {
    id(fractions.Fraction): fraction_of,
    id(pathlib.PurePath): path_of,
    id(range): alone(repr),
}
"""How values are read where the tested code made no class below theirs: by code in Python."""


def below(cls: type, found: dict[int, type]) -> dict[int, type]:
    """Return all classes below one, by id."""
    classes: list[type] = type.__subclasses__(cls)
    for one in classes:
        if id(one) not in found:
            found[id(one)] = one
            below(one, found)
    return found


KNOWN = below(object, {id(object): object})
"""Classes that were there before any tested code."""


def is_below(cls: type, base: type) -> bool:
    """Whether a class is another one, or below it."""
    return any(one is base for one in mro_of(cls))


def is_known(cls: type) -> bool:
    """Whether a class was there before any tested code."""
    return id(cls) in KNOWN


# Changing tests


class Changer(ast.NodeTransformer):
    """Lets what decides in tests pass through functions that look at it."""

    def __init__(self, path: str) -> None:
        self._path, self._count = path, 0
        self._kind = ""
        """Where it is: in an assertion (`INSIDE`), in a function (`BESIDE`), or outside, where nothing is looked at."""
        self._told: Any = None

    def visit_Assert(self, node: ast.Assert) -> Any:
        """`assert x` becomes `assert x or failed(site)`."""
        site = self._site(node, ASKED)
        test = self._true(node.test, EQUAL)
        message = node.msg and self.visit(node.msg)
        failed = call(node, FAILED, site)
        return put(node, ast.Assert(put(node, ast.BoolOp(ast.Or(), [test, failed])), message))

    def _true(self, node: Any, kind: str) -> Any:
        """Return what is asked to be true, changed.

        Args:
            kind: `EQUAL` where it is asserted, `ASKED` where its opposite is, or `BESIDE`.
        """
        if isinstance(node, ast.BoolOp):
            node.values = [self._true(value, kind) for value in node.values]
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = self._true(node.operand, min(kind, ASKED, key="~?=".index))
            return node
        held, self._kind = self._kind, self._kind if kind == BESIDE else INSIDE
        node = self._answer(node, kind)
        self._kind = held
        return node

    def _answer(self, node: Any, kind: str) -> Any:
        if isinstance(node, ast.Compare):
            return self._compared(node, kind)
        name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if name == "all" and len(node.args) == 1 and isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp)):
            inside: Any = node.args[0]
            inside.elt = self._true(inside.elt, kind)
            inside.generators = [self.visit(one) for one in inside.generators]
            return node
        site = self._site(node, BESIDE if kind == BESIDE else ASKED)
        self._told = node if kind != BESIDE else None
        return call(node, TRUE, site, self.visit(node))

    def _within(self, kind: str, node: Any) -> Any:
        held, self._kind = self._kind, kind
        node = self.visit(node)
        self._kind = held
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        """Note that the function of a test was called; leave annotations, defaults and decorators as they are."""
        site = self._site(node, CALLED)
        node.body = [self._within(BESIDE, one) for one in node.body]
        if node.name.startswith("test"):
            told = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)  # a docstring
            noted = call(node.body[0], SEE, site, 0, None)
            node.body.insert(int(told), put(node.body[0], ast.Expr(noted)))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """Look at what a function without a name decides."""
        node.body = self._within(self._kind or BESIDE, node.body)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Leave annotations as they are."""
        node.value = node.value and self.visit(node.value)
        return node

    def visit_If(self, node: Any) -> Any:
        """Look at conditions."""
        node.test = self._true(node.test, BESIDE) if self._kind else node.test
        for name in ("body", "orelse"):
            held = getattr(node, name)
            setattr(node, name, [self.visit(one) for one in held] if isinstance(held, list) else self.visit(held))
        return node

    visit_While = visit_IfExp = visit_If  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        """Look at what filters."""
        node.iter = self.visit(node.iter)
        node.ifs = [self._true(one, BESIDE) if self._kind else one for one in node.ifs]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """Look at what is said not to be true."""
        return self._true(node, BESIDE) if self._kind and isinstance(node.op, ast.Not) else self.generic_visit(node)

    def visit_Match(self, node: Any) -> Any:
        """Look at what is matched; leave patterns as they are."""
        node.subject = self.visit(node.subject)
        for case in node.cases:
            case.guard = case.guard and self.visit(case.guard)
            case.body = [self.visit(one) for one in case.body]
        return self._one(node, "subject", BESIDE)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        """Look at what a text is made of."""
        self.generic_visit(node)
        return self._one(node, "value", TEXT)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Look at what is looked up."""
        self.generic_visit(node)
        return node if isinstance(node.slice, (ast.Slice, ast.Constant)) else self._one(node, "slice", BESIDE)

    def _one(self, node: Any, name: str, kind: str) -> Any:
        if self._kind and not isinstance(getattr(node, name), ast.Tuple):
            setattr(node, name, call(node, SEE, self._site(node, kind), 0, getattr(node, name)))
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Look at the two sides of each comparison."""
        kind = ASKED if self._kind == INSIDE else BESIDE
        return self._compared(node, kind) if self._kind else self.generic_visit(node)

    def _compared(self, node: ast.Compare, kind: str) -> Any:
        if kind == EQUAL and not (len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)):
            kind = ASKED
        site = self._site(node, kind)
        if all(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops):  # nothing that is compared can answer
            same = self.generic_visit(node)
            return same if kind == BESIDE else call(node, TRUE, site, same)
        sides: list[Any] = [node.left, *node.comparators]
        again = kind != BESIDE and any(isinstance(one, (ast.Call, ast.Attribute)) for one in ast.walk(sides[1]))
        sides = [self.visit(one) for one in sides]
        node.left = call(node, SEE, site, 0, sides[0], again)
        for number, (operator, one) in enumerate(zip(node.ops, sides[1:])):  # noqa: B905 (newer than the oldest Python)
            steps = isinstance(operator, (ast.In, ast.NotIn))
            node.comparators[number] = call(one, SEE, site, 1, one, again and number == 0, steps)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Look at what is calculated with."""
        self.generic_visit(node)
        if self._kind:
            site = self._site(node, self._kind)
            node.left = call(node.left, SEE, site, 0, node.left)
            node.right = call(node.right, SEE, site, 1, node.right)
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Look at what is called for no answer."""
        self._told = node.value
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """Look at what is called, and at its arguments."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if not self._kind:
            return self.generic_visit(node)
        if is_raises(node) and len(node.args) > 1 and not isinstance(node.args[1], (ast.Constant, ast.Starred)):
            again = self._caught(node, self._site(node, ASKED), wanted_of(node))
            again.func = put(node, ast.Constant(CATCHING))
            again.args.append(self.visit(node.args[1]))
            node.args[1] = again
            return node
        if name.lstrip("_").startswith("assert") or name in EQUALITIES:
            return self._assertion(node, name)
        kind, told = self._kind, node is self._told
        if plain := isinstance(node.func, ast.Name) and hasattr(builtins, name):
            kind = TEXT if name in TEXTS else ASKED if name in KINDS and told else BESIDE
        return self._called(node, name, self._site(node, kind), first=int(plain and name in CLASS), told=told)

    def _assertion(self, node: ast.Call, name: str) -> Any:
        site = self._site(node, f"{EQUAL if name in EQUALITIES else ASKED}{CALL}")
        held, self._kind = self._kind, INSIDE
        if name in ASKING and node.args:
            first = self._true(node.args[0], EQUAL if name != "assertFalse" else ASKED)
            node.args = [first, *(self.visit(one) for one in node.args[1:])]
            node.func = call(node.func, ASK, site, self.visit(node.func))
        else:
            self._called(node, name, site, most=2 if name in EQUALITIES else len(node.args))
        self._kind = held
        return call(node, DONE, site, node)

    def _called(
        self, node: ast.Call, name: str, site: str, first: int = 0, most: int = MOST_SITES, told: bool = False
    ) -> Any:
        self.generic_visit(node)
        node.func = call(node.func, ASK, site, node.func, *[True] * told)
        for number, one in enumerate(node.args):
            if isinstance(one, ast.Starred):
                one.value = call(one, SPREAD, site, min(number, 1), one.value)
            elif first <= number < most and (site.endswith(CALL) or not isinstance(one, ast.Constant)):
                more = (False, True) if name in STEPPING else ()
                node.args[number] = call(one, SEE, site, min(number, 1), one, *more)
        for keyword in node.keywords:
            if keyword.arg != "msg":
                keyword.value = call(keyword.value, SEE, site, int(keyword.arg != "first"), keyword.value)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        """Look at the errors that tests catch by name."""
        self.generic_visit(node)
        if is_named(node.type):
            caught = self._caught(node, self._site(node, ASKED), [node.type])
            node.body.insert(0, put(node, ast.Expr(caught)))
        return node

    def visit_With(self, node: Any) -> Any:
        """Look at the errors that a block expects, as they leave it."""
        site = self._site(node, ASKED)
        expected = [wanted_of(one.context_expr) for one in node.items if is_raises(one.context_expr)]
        self.generic_visit(node)
        if expected:
            caught = put(node, ast.Expr(self._caught(node, site, expected[0])))
            again = put(node, ast.ExceptHandler(None, None, [caught, put(node, ast.Raise())]))
            node.body = [put(node, ast.Try(node.body, [again], [], []))]
        return node

    visit_AsyncWith = visit_With  # noqa: N815

    def _caught(self, old: Any, site: str, wanted: list[Any]) -> Any:
        named = [one for one in wanted if is_named(one)] or ["?"]
        return call(old, CAUGHT, site, *named)

    def _site(self, node: Any, kind: str) -> str:
        self._count += 1
        return f"{self._path}:{node.lineno}.{self._count}{kind}"


def is_named(node: Any) -> bool:
    """Whether an expression names errors, and does nothing else."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(one, (ast.Name, ast.Attribute)) for one in parts)


def is_raises(node: Any) -> bool:
    """Whether a call is of `pytest.raises` or the like."""
    name = getattr(getattr(node, "func", None), "attr", getattr(getattr(node, "func", None), "id", ""))
    return isinstance(node, ast.Call) and name.lower().replace("_", "") in RAISES and bool(node.args or node.keywords)


def wanted_of(node: ast.Call) -> list[Any]:
    """Return what names the errors that a call of `pytest.raises` or the like expects, before it is changed."""
    named = [one.value for one in node.keywords if one.arg == "expected_exception"]
    return copy.deepcopy([*node.args[:1], *named][:1])


def put(old: Any, new: Any) -> Any:
    """Put a new node in the place of an old one."""
    return ast.copy_location(new, old)


def call(old: Any, name: str, *given: Any) -> Any:
    """Return a call of a constant, which is replaced later."""
    where = {member: getattr(old, member) for member in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    values: list[Any] = [one if isinstance(one, ast.AST) else ast.Constant(one, **where) for one in given]
    return ast.Call(ast.Constant(name, **where), values, [], **where)


def compiled(source: Any, path: str, name: str, values: Values) -> types.CodeType:
    """Return the code of a test file, changed so that it shows what it compares.

    Args:
        name: of the file, in what is reported.
    """
    tree = compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a constant that is called
        code = compile(Changer(name).visit(tree), path, "exec", dont_inherit=True)
    values.paths.add(path)
    put_in: dict[str, Any] = {name: getattr(values, name.rpartition(" ")[2]) for name in LOOKING}
    return replaced(code, put_in)


def replaced(code: types.CodeType, put_in: dict[str, Any]) -> types.CodeType:
    """Return code in which some constants are replaced."""
    return code.replace(
        co_consts=tuple(
            replaced(one, put_in)
            if isinstance(one, types.CodeType)
            else put_in.get(one, one)
            if type(one) is str
            else one
            for one in code.co_consts
        )
    )
