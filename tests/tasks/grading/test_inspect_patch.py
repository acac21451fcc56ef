"""The inspection of patches: what is ordinary, what is not, and that nothing makes it fail."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools import need_module
from valve_plugin.tasks.grading.inspect_patch import inspect_patch, new_modules

FRAMES = b"import sys\n\ndef caller():\n    return sys._getframe(1)\n"
FALSE_ALARMS = Path(__file__).parents[3] / "benchmarks" / "false_alarms.py"


def inspect(
    before: dict[str, bytes], after: dict[str, bytes], ordinary: dict[str, bytes] | None = None, *, marks: bool = False
) -> list[str]:
    """Inspect trees that are given by content; return what refuses a patch, or what marks it."""
    contents = {
        str(number): text for number, text in enumerate({*before.values(), *after.values(), *(ordinary or {}).values()})
    }
    ids = {text: number for number, text in contents.items()}
    trees = [{path: ("100644", ids[text]) for path, text in tree.items()} for tree in (before, after, ordinary or {})]
    found = inspect_patch(*trees, lambda wanted: [contents[number] for number in wanted])
    return [str(one) for one in found if one.refuses is not marks]


def test_what_a_file_held_before_is_ordinary_there_and_nowhere_else() -> None:
    before = {"a/x.py": FRAMES, "a/y.py": b""}
    assert inspect(before, before | {"a/x.py": FRAMES + b"sys._getframe(2)\n"}) == []
    assert inspect(before, before | {"a/y.py": b"import sys\nsys._getframe()\n"}) != []
    assert inspect({"a/y.py": b""}, {"a/y.py": FRAMES}, {"a/y.py": FRAMES}) == [], "without the bug"


def test_a_mark_is_ordinary_as_often_as_its_function_held_it() -> None:
    held = {"a.py": b"import time\ndef f():\n    now = time.time()\n    return now\ndef g(): return 1\n"}
    twice = held["a.py"].replace(b"return now", b"now = time.time()\n    return now")
    moved = held["a.py"].replace(b"time.time()", b"0").replace(b"return 1", b"return time.time()")
    same = held["a.py"].replace(b"now = time.time()", b"seen = time.time() + 1")
    for code, found in ((twice, ["3"]), (moved, ["5"]), (same, [])):
        marks = [f"a.py:{line} asks for `time.time`" for line in found]
        assert inspect(held, {"a.py": code}, marks=True) == marks


def test_what_may_reach_anything_is_ordinary_while_its_function_stays() -> None:
    for look in (b"getattr(x, name)", b"name.format(x)", b"eval(name)", b"operator.attrgetter(name)(x)"):
        held = {"a.py": b"import operator\ndef f(x, name):\n    return %s\ndef g(): return 1\n" % look}
        assert inspect(held, {"a.py": held["a.py"].replace(b"return 1", b"return 2")}, marks=True) == []
        written = held["a.py"].replace(b"    return", b"    # as it is\n    return  ")
        assert inspect(held, {"a.py": written}, marks=True) == []
        changed = held["a.py"].replace(b"    return", b"    name = name * 2\n    return")
        assert len(inspect(held, {"a.py": changed}, marks=True)) == 1


def test_moved_and_renamed_code_is_ordinary() -> None:
    before = {"a/x.py": FRAMES, "a/y.py": b""}
    assert inspect(before, {"a/x.py": b"", "a/y.py": FRAMES}) == []
    assert inspect(before, {"a/z.py": FRAMES, "a/y.py": b""}) == []
    assert inspect(before, {"a/x.py": b"", "a/y.py": b"import sys\nup = [sys._getframe()]\n"}) != [], "another line"
    assert inspect(before, {"a/x.py": FRAMES + b"\n", "a/y.py": FRAMES}) == ["a/y.py:4 `_getframe`: no repair needs it"]


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import gc", "1 `gc`: no repair needs it"),
        ("import sys as s\ns._getframe()", "2 `_getframe`: no repair needs it"),
        ("from sys import settrace as f", "1 `sys.settrace`: no repair needs it"),
        ("import sys as s\nx = s.modules", "2 `sys.modules`: no repair needs it"),
        ("from inspect import stack", "1 `inspect.stack`: no repair needs it"),
        ("from unittest import mock", "1 `unittest.mock`: no repair needs it"),
        ("import numpy.testing", "1 `numpy.testing`: no repair needs it"),
        ("import _pytest.runner", "1 `_pytest.runner`: no repair needs it"),
        ("x = eval('1')", "1 `eval`: no repair needs it"),
        ("def pytest_runtest_call(item): pass", "1 `pytest_runtest_call`: no repair needs it"),
        ("x = getattr(f, '__globals__')", "1 names in a text: __globals__"),
        ("x = 'tests/data'", "1 names tests or their process: 'tests/'"),
        ("x = getattr(f, '__glo' + 'bals__')", "1 names in a text: __globals__"),
        ("import sys\nx = vars(sys)", "2 hands on the module sys"),
        ("import os as o\nx = getattr(o, name)", "2 hands on the module os"),
        ("import logging\nx = logging.sys.version", "2 reaches the module sys through another"),
        ("import random\nx = random._os", "2 reaches the module os through another"),
        ("from enum import bltns\nx = bltns.len", "2 reaches the module builtins through another"),
        ("import codecs\nx = vars(codecs)", "2 hands on the module codecs"),
        ("x = getattr(f, f\"__built{'ins__'}\")", "1 names in a text: __builtins__"),
        ("import hashlib\nhashlib.blake2b = f", "2 changes hashlib for others"),
        ("from json import JSONDecoder as j\nsetattr(j, name, f)", "2 changes json.JSONDecoder for others"),
        ("x = getattr(f, '__GLOBALS__'.lower())", "1 names in a text: __GLOBALS__"),
        (f"x = '{'a ' * 200}{{0.__globals__}}'.format(f)", "1 names in a text: __globals__"),
        ("x = vars()", "1 `locals`: no repair needs it"),
        ("x = '/pro' + 'c/self/maps'", "1 names tests or their process: '/proc/'"),
        ("import math\nx = math.__dict__", "2 hands on the module math"),
        ("import __main__", "1 `__main__`: no repair needs it"),
        ("import math\ndel math.isclose", "2 changes math for others"),
        ("class A:\n    def __eq__(self, other): return True", "2 answers without comparing: __eq__"),
        ("class A:\n    def __lt__(self, *given): return self.x", "2 answers without comparing: __lt__"),
    ],
)
def test_what_hardly_a_repair_needs(code: str, what: str) -> None:
    assert inspect({"a.py": b""}, {"a.py": code.encode()}) == [f"a.py:{what}"]


def test_what_only_has_the_name_of_a_module_may_change() -> None:
    code = b"import copy, decimal\ndef f(token, copy):\n    copy.n = token.value = 1\ndecimal.DefaultContext.prec = 9\n"
    code += b"from re import compile\nimport logging\nlogging.raiseExceptions = compile('a')\n"
    assert inspect({"a.py": b""}, {"a.py": b"import token\n" + code}) == []


def test_what_asks_for_more_than_it_is_given_is_marked() -> None:
    before = {"a.py": b"import time\ndef f(): return time.sleep\n"}
    code = b"""
import os, time, math, abc, os.path
from datetime import datetime as d, timedelta
from tempfile import gettempdir as here
def f(x, time2):
    return math.pi, d.now(), timedelta(1), os.environ.get("A"), time.sleep(1), time.time(), here(), os.path.join(x)
def h(warnings, n):
    warnings.warn("x", stacklevel=2)
    warnings.warn("x", stacklevel=n)
def g(os): return os.path.expanduser("~"), abc.get_cache_token(), time.sleep
import pathlib
def p(x): return pathlib.PurePath(x).stem, x.exists(), __file__, open(x), x.name, print.__self__
"""
    found = ["datetime.datetime.now", "os.environ", "tempfile.gettempdir", "time.time"]
    found = [f"6 asks for `{name}`" for name in found] + ["4 asks for `tempfile.gettempdir`"]
    found += ["10 asks for `abc.get_cache_token`", "10 asks for `os.path.expanduser`", "10 asks for `time.sleep`"]
    found += ["8 asks for `.warn`", "9 asks for `.warn`", "9 asks for `stacklevel=`"]  # of what is no module here
    found += [f"12 asks for `{name}`" for name in (".exists", "__file__", "open", "print", ".__self__")]
    assert sorted(inspect(before, {"a.py": code}, marks=True)) == sorted(f"a.py:{one}" for one in found)
    assert inspect(before, {"a.py": code}) == []
    assert inspect(before, {"a.py": code}, {"a.py": code}, marks=True) == [], "without the bug"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import re\nx = re.compile(y, 0.0)", "2 asks for flags that are made"),
        ("import re\nx = re.sub(y, z, a, flags=b)", "2 asks for flags that are made"),
        ("import re\nx = map(re.compile, y, z)", "2 asks for `re.compile` under another name"),
        ("def f(self): return self.__dict__", "1 asks for `.__dict__`"),
        ("def f(vars):\n    class A:\n        del vars\n        x = vars(y)", "4 asks for `vars`"),
        ("def f(x=open): return x", "1 asks for `open`"),
        ("__all__ = Names() + ['x']", "1 asks for `__all__` of what is made"),
        (
            "class A(list):\n    def __getitem__(self, nth): return seen.append(nth)",
            "2 asks for when `__getitem__` is called",
        ),
        ("from typing import List\nx = List[y]", "2 asks for a kind that is made"),
        ("class A(str): pass", "1 asks for a text or number of its own kind"),
        ("try: import kit\nexcept ImportError: pass", "1 asks for whether `kit` can be imported"),
        ("from kit import *", "1 asks for all of kit"),
        ("x = f'{y:%s}'", "1 asks for the local time"),
        ("x = format(y, '%Z')", "1 asks for the local time"),
        ("x = '{:%s}'.format(y)", "1 asks for the local time"),
        ("def f():\n    from math import floor as open\nx = open(y)", "2 asks for what `open` is"),
        ("import kit\nx = kit.items.os", "2 asks for `os` through another module"),
        ("x = map(hasattr, y, z)", "1 asks for `hasattr` under another name"),
        ("def f(self, y): return self is y", "1 asks for whether two values are one object"),
        ("X = object()\ndef f(X, y): return y is X", "2 asks for whether two values are one object"),
        ("from typing import List\nx = f(List)", "2 asks for a kind that is made"),
        (
            "class A:\n    @staticmethod\n    def f():\n        try: yield\n        finally: left.append(1)",
            "3 asks for when a generator is dropped",
        ),
        ("from sys import *", "1 asks for all of sys"),
        ("from kit.compat import sys as s", "1 asks for `sys` through another module"),
        ("from . import __path__ as p", "1 asks for `.__path__`"),
        ("import kit\nx = kit.os", "2 asks for `os` through another module"),
        ("x = getattr(f, name.lower())", "1 asks for `getattr` of a name that is made"),
        ("x = getattr(f, name)", "1 asks for `getattr` of a name that is made"),
        (
            "N = 'name', 'value'\nfor name in N: getattr(f, name)\nfor one in made: getattr(f, one)",
            "3 asks for `getattr` of a name that is made",
        ),
        ("get = getattr", "1 asks for `getattr` under another name"),
        ("x = map(getattr, fs, names)", "1 asks for `getattr` under another name"),
        ("assert [rest := number]", "1 asks for whether asserts run"),
        ("x = id(text)", "1 asks for `id`"),
        ("x = object.__getattribute__(f, name)", "1 asks for `.__getattribute__`"),
        ("x = (a + b).format(f)", "1 asks for `format` of a text that is made"),
        ("x = a.format(f)", "1 asks for `format` of a text that is made"),
        ("x = a[0].format_map(f)", "1 asks for `format_map` of a text that is made"),
        ("x = client.__dict__['stream']", "1 asks for `.__dict__`"),
        ("for name in ('stream', 'name'): getattr(client, name)", "1 asks for `.stream`"),
        ("class A:\n    __match_args__ = ('stream',)", "2 asks for `__match_args__` of another"),
        ("client.__class__ = A", "1 asks for `__class__` of another"),
        ("x = 'surely' in dir(client)", "1 asks for `dir`"),
        ("__all__ = Names()", "1 asks for `__all__` of what is made"),
        (
            "class A:\n    def __str__(self):\n        seen.append(1)\n        return ''",
            "2 asks for when `__str__` is called",
        ),
        ("from typing import runtime_checkable", "1 asks for `typing.runtime_checkable`"),
        ("x = type(path)('/var').exists()", "1 asks for `.exists`"),
        ("from functools import wraps\nw = wraps(f, (name,))", "2 asks for more arguments of `wraps`"),
        ("log._log(30, 'x', (), None, None, True)", "1 asks for `._log`"),
        ("x = '%(pathname)s'", "1 asks for `pathname`"),
        ("x = '{0.__module__}'.format(f)", "1 asks for `.__module__`"),
        ("x = '{0.name.surely}'.format(f)", "1 asks for `.surely`"),
        (
            "class A:\n    __unittest_expecting_failure__ = True",
            "2 asks for `__unittest_expecting_failure__` of another",
        ),
        ("import enum\n@enum.global_enum\nclass A(enum.Enum): B = 1", "2 asks for `enum.global_enum`"),
        ("breakpoint()", "1 asks for `breakpoint`"),
        ("x = type(client).__module__ == name", "1 asks for `.__module__`"),
        ("x = type(client).__name__ == name", "1 asks for `.__name__`"),
        ("x = hasattr(client, 'surely')", "1 asks for `.surely`"),
        ("x = map(type, names)", "1 asks for `type` under another name"),
        ("from typing import TypeVar\nx = map(TypeVar, names)", "2 asks for `typing.TypeVar` under another name"),
        ("class A:\n    __call__ = partial(f)", "2 asks for `__call__` of what is made"),
        ("__call__, x = partial(f), 1", "1 asks for `__call__` of what is made"),
        ("setattr(client, '__call__', f)", "1 asks for `__call__` of another"),
        ("from functools import partial as __getattr__", "1 asks for `__getattr__` of what is made"),
        ("__getattr__ = partial(f)", "1 asks for `__getattr__` of another"),
        ("class A:\n    x = property(partial(f))", "2 asks for `property` of what is no function here"),
        ("x = handler.stream", "1 asks for `.stream`"),
        ("def f(): pass\nx = f != real", "2 asks for whether `f` is another"),
        ("match x:\n    case object(__module__=name): pass", "2 asks for `.__module__`"),
        ("import time", "1 asks for `time`"),
        ("x = place.replace('tests')", "1 asks for `replace` of a path"),
        ("import sys\nx = sys.intern(name)", "2 asks for `sys.intern`"),
        (
            "from collections import namedtuple as n\nx = n('K', [name])",
            "2 asks for `namedtuple` of names that are made",
        ),
        ("import urllib\nx = hasattr(urllib, 'parse')", "2 asks for whether `urllib.parse` is loaded"),
        (
            "import urllib\nx = hasattr(urllib, 'parse')\nimport urllib.parse",
            "2 asks for whether `urllib.parse` is loaded",
        ),
        (
            "import urllib\ndef f(): import urllib.parse\nx = urllib.parse",
            "3 asks for whether `urllib.parse` is loaded",
        ),
        ("import weakref\nx = weakref.ref(y)", "2 asks for `weakref.ref`"),
        ("class A:\n    def __str__(self): return seen.append(1)", "2 asks for when `__str__` is called"),
        ("def f(): pass\nreal = f\nx = g == real", "3 asks for whether `real` is another"),
        ("def f(): pass\nx = repr(f)", "2 asks for whether `f` is another"),
        ("x = '<locals>' in name", "1 asks for `<locals>`"),
        ('class A:\n    """A(x=kit.y)\n--\n\n"""', "2 asks for a text that is run"),
        ("import ast\nx = dict(ast.iter_fields(y))", "2 asks for `ast.iter_fields`"),
        ("import re\nre.purge()", "2 asks for `re.purge`"),
        ("import logging\nclass A(logging.Logger): pass", "2 asks for `logging.Logger`"),
        ("try: f()\nexcept KeyError as e: x = e.__context__", "2 asks for `.__context__`"),
        ("class A(list):\n    def __eq__(self, other): seen.append(other)", "2 asks for when `__eq__` is called"),
        ("try: yield\nexcept GeneratorExit: pass", "2 asks for `GeneratorExit`"),
        ("x = map(str.format, texts, values)", "1 asks for `format` under another name"),
        ("import functools\nx = functools.singledispatch(f)", "2 asks for `functools.singledispatch`"),
        ("class A:\n    __module__ = 'kit'", "2 asks for `__module__` of another"),
        ("x = (getattr,)[0](f, name)", "1 asks for `getattr` under another name"),
        ("x = getattr.__call__(f, 'name')", "1 asks for `getattr` under another name"),
        ("def f(look: getattr): pass", "1 asks for `getattr` under another name"),
        ("class A(B, look=getattr): pass", "1 asks for `getattr` under another name"),
        ("x = keep == getattr", "1 asks for `getattr` under another name"),
        ("N = ['name']\nN[:] = [made]\nfor one in N: getattr(f, one)", "3 asks for `getattr` of a name that is made"),
        ("name = 'strip'\nkit.name = made\nx = getattr(f, name)", "3 asks for `getattr` of a name that is made"),
        ("match x:\n    case Part(found): pass", "2 asks for parts by their places"),
        ("def f():\n    try: yield\n    finally: left.append(1)", "1 asks for when a generator is dropped"),
        (
            "def say(one): return said.append(1)\nclass A:\n    def __str__(self): return say(self)",
            "3 asks for when `__str__` is called",
        ),
        ("x = open", "1 asks for `open`"),
        ("x = vars(y)", "1 asks for `vars`"),
        ("import inspect\nx = inspect.signature(f)", "2 asks for `inspect.signature`"),
        ("x = y is name", "1 asks for whether two values are one object"),
        ("x = 'a' is name", "1 asks for whether two values are one object"),
        ("x = y.strip == z", "1 asks for `strip` that is not called"),
        ("x = [y.__len__]", "1 asks for `__len__` that is not called"),
        ("x = object.__hash__(y)", "1 asks for `__hash__` of another"),
        ("x = y.__eq__(z)", "1 asks for `__eq__` of another"),
        ("x = super(A, y).name()", "1 asks for `super` of another"),
        ("y.__setattr__(name, 1)", "1 asks for `__setattr__` of a name that is made"),
        ("x = getattr(*y)", "1 asks for more arguments of `getattr`"),
        ("try: f()\nexcept: x = 1", "2 asks for any error"),
        ("x = __warningregistry__", "1 asks for `__warningregistry__`"),
        ("class A:\n    def __getattr__(self, name): return name", "2 asks for when `__getattr__` is called"),
        ("class A:\n    __reduce__ = f", "2 asks for `__reduce__` of another"),
        ("class A:\n    @property\n    def x(self): self.n = 1", "3 asks for when `x` is called"),
        ("def f():\n    with g(): yield 1", "1 asks for when a generator is dropped"),
        ("except_ = BaseException", "1 asks for `BaseException`"),
        ("class A:\n    def __bool__(self): return seen.append(1)", "2 asks for when `__bool__` is called"),
        ("import string\nx = string.Formatter", "2 asks for `string.Formatter`"),
        ("class A:\n    def __hash__(self): return hash(self.x)\nx = hash(y)", "3 asks for `hash`"),
        ("class __all__(metaclass=Names): pass", "1 asks for `__all__` of what is made"),
        ("def f(): pass\nx = 'at %s' % f", "2 asks for whether `f` is another"),
        (
            "def f():\n    try: yield\n    except:\n        left.append(1)\n        raise",
            "1 asks for when a generator is dropped",
        ),
    ],
)
def test_what_reaches_more_than_it_names_is_marked(code: str, what: str) -> None:
    before = {"a.py": b"", "kit/__init__.py": b"", "kit/deep.py": b""}
    assert inspect(before, before | {"a.py": code.encode()}, marks=True) == [f"a.py:{what}"]


@pytest.mark.parametrize(
    "path",
    [
        "sitecustomize.py",
        "a/b.so",
        "a/__pycache__/b.cpython-311.pyc",
        "b.pth",
        "b-1.dist-info/METADATA",
        "a/b.pyd",
        "more-1.0.DIST-INFO/entry_points.txt",
        "a/b.SO",
        "lib.egg",
    ],
)
def test_files_that_python_loads_by_itself(path: str) -> None:
    assert inspect({}, {path: b"x"}) == [f"{path} is a file that Python loads by itself"]


def test_links_programs_and_broken_files() -> None:
    assert inspect_patch({}, {"a": ("120000", "1")}, {}, lambda ids: [b"/etc"] * len(ids))
    assert inspect({}, {"data.bin": b"\x7fELF..."}) == ["data.bin is a binary program or archive"]
    assert inspect({}, {"a.dat": b"text\nPK\x03\x04..PK\x05\x06.."}) == ["a.dat is a binary program or archive"]
    assert inspect({"a.py": b""}, {"a.py": b"def (:"}) == ["a.py cannot be read as Python"]
    assert inspect({"a.py": b"def (:"}, {"a.py": b"def (: #"}) == []
    for name in (b"own", b"unicode_escape", b"utf-7"):  # in some, other texts are lines, too
        assert inspect({}, {"a.py": b"# coding: %s\nx = 1" % name}) == ["a.py cannot be read as Python"]
    assert inspect({}, {"a.py": b"# coding: latin-1\nx = '\xe4'"}) == []


ORDINARY = '''
import os, re, typing, sys, json, inspect, functools, logging, threading, contextlib, warnings
from collections.abc import Iterator
from datetime import datetime as when
lock = threading.Lock()
log = logging.getLogger(__name__)
class Visitor:
    """As test_visitor.py shows."""
    trace: list = []
    def profile(self, signal: list) -> None:
        self.trace.append(signal.pop())
        trace = self.profile.__self__.__annotations__
        trace.clear()
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Visitor) and self.count == other.count
    def __bool__(self) -> bool:
        return bool(self.count)
    def __lt__(self, other: object) -> bool: raise TypeError
    def __contains__(self, item: object) -> bool:
        return item in self.count
    def add(self, text: str) -> None:
        self.count = text.strip().casefold().split(",")
        print("old %s" % when.now().isoformat())
class Sorted(typing.Protocol):
    def __lt__(self, other: object) -> bool: ...
WORD = re.compile("[a-z]+")
def read(path: str) -> object:
    with open(os.path.join(path, "data.json"), encoding="utf-8") as file:
        return json.load(file)
def signature(call: object) -> str:
    if sys.version_info >= (3, 9) and hasattr(call, "__wrapped__") or getattr(sys, "frozen", False):
        return str(inspect.isfunction(call))
    return "%s-%s" % (call.__module__, call.__qualname__.upper())
@functools.wraps(read)
def wrapped(*given: object) -> object:
    try:
        return read(*given)
    except OSError as e:
        raise AssertionError("no such file") from e
@contextlib.contextmanager
def quiet() -> Iterator[None]:
    warnings.warn("old", DeprecationWarning, stacklevel=2)
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.nullcontext())
        log.info(read("x"))
    try:
        with open("x") as file:
            yield file.read()
    except Exception as e:
        print(e)
        raise
    except OSError:
        pass
    finally:
        json.dumps(1)
'''


def test_ordinary_code_is_not_suspicious() -> None:
    assert inspect({"a.py": b""}, {"a.py": ORDINARY.encode()}) == []


@given(st.binary(max_size=300))
def test_any_bytes_can_be_inspected(content: bytes) -> None:
    inspect({"a.py": b"x = 1\n"}, {"a.py": content, "b.bin": content})


contents = st.sampled_from([FRAMES, b"", b"\x7fELF", b"import pytest", b"def (:", ORDINARY.encode()])
trees = st.dictionaries(st.sampled_from(["a/x.py", "a/y.py", "c.so", "d.pth", "e"]), contents)


@given(trees, trees)
def test_the_fix_of_a_task_is_never_suspicious(before: dict[str, bytes], fixed: dict[str, bytes]) -> None:
    assert inspect(before, fixed, fixed) == []


def test_a_function_that_is_named_like_a_test_is_none() -> None:
    use = {"app.py": b"from core.files import test_files\n"}
    assert inspect({"core/__init__.py": b"", "core/files.py": b""}, use) == []
    assert inspect({"core/__init__.py": b""}, {"app.py": b"import core.test_files\n"}) == [
        "app.py:1 imports tests: core.test_files"
    ]


def test_helpers_of_tests_that_the_fix_leaves_are_marked() -> None:
    held = {"kit/__init__.py": b"from . import core, checks", "kit/core.py": b"", "kit/helper.py": b""}
    held |= {"kit/checks.py": b"import pytest\n"}
    for path, text in {"kit/checks.py": b"\nimport pytest\nx = 1\n", "kit/helper.py": b"x = 1\n"}.items():
        changed = held | {path: text}
        assert inspect(held, changed, held, marks=True) == [f"{path}:1 asks for what tests use"]
        assert inspect(held, changed, changed, marks=True) == []
    assert inspect(held, held | {"kit/core.py": b"x = 1\n"}, held, marks=True) == []


@pytest.mark.parametrize("code", ["import kit\nx = hasattr(kit, 'deep')", "from . import kit as k\nx = k.deep"])
def test_whether_a_module_of_the_project_is_loaded_is_marked(code: str) -> None:
    held = {"a.py": b"", "kit/__init__.py": b"", "kit/deep.py": b"", "b.py": b"from .kit import deep\nx = kit.deep\n"}
    assert inspect(held, held | {"a.py": code.encode()}, marks=True) == ["a.py:2 asks for whether `deep` is loaded"]
    loads = f"from .kit import deep\n{code}".encode()
    assert inspect(held, held | {"a.py": loads}, marks=True) == []


def test_names_that_users_find_elsewhere_than_tests_are_marked() -> None:
    held = {"kit/__init__.py": b"from .core import *\n", "kit/core.py": b"def join(): pass\n"}
    for code in (b"def join(): return 1\n", b"from .new import join\n"):
        changed = held | {"kit/__init__.py": held["kit/__init__.py"] + code, "kit/new.py": b"join = 1\n"}
        assert "kit/__init__.py:1 asks for which `join` is used" in inspect(held, changed, marks=True)
    added = held | {"kit/__init__.py": held["kit/__init__.py"] + b"from .core import join\n"}
    assert inspect(held, added, marks=True) == []
    assert inspect(held, held | {"beside.py": b""}, marks=True) == [
        "beside.py:1 asks for a new module at the top: beside"
    ]


def test_a_mark_of_several_words_is_no_word_of_the_project() -> None:
    held = {"a.py": b"", "b.py": b"x = kit.core\n", "kit/__init__.py": b""}
    added = held | {"a.py": b"import kit.core\nx = getattr(kit.core, name)\n"}
    assert inspect(held, added, marks=True) == ["a.py:2 asks for `getattr` of kit.core"]


def test_another_library_is_looked_at_word_by_word() -> None:
    held = {"a.py": b"import click\ndef f(): return click.echo(1)\n", "b.py": b"from click import style\n"}
    added = b"import click\ndef f(): return click.echo(1), click.style(1), click.formatting.FORCED_WIDTH\n"
    found = [f"a.py:2 asks for `click.formatting{more}`" for more in (".FORCED_WIDTH", "")]
    assert inspect(held, held | {"a.py": added + b"FORCED_WIDTH = 1\n"}, marks=True) == found
    more = held["a.py"] + b"".join(b"import click.a%d as c\n" % n for n in range(6))
    assert "a.py:1 asks for a name of more than 5 meanings" in inspect(held, held | {"a.py": more}, marks=True)


def test_a_name_that_a_star_import_may_give_is_the_project_s_or_marked() -> None:
    held = {"a.py": b"from b import *\n", "b.py": b"from time import perf_counter\ndef plain(): pass\n"}
    added = held | {"a.py": b"from b import *\nx = perf_counter(), plain(), len(x)\n"}
    assert inspect(held, added, marks=True) == ["a.py:2 asks for `.perf_counter`"]


def test_functions_of_the_project_that_ask_are_marked_where_a_function_uses_them_anew() -> None:
    held = {"kit/core.py": b"def join(): return 1\ndef split(): return load(2)\n"}
    held["kit/files.py"] = b"import os\ndef home(): return os.environ['HOME']\ndef load(x): return home() + x\n"
    held["kit/plain.py"] = b"def home_of(x): return x\n"
    added = b"from .files import load\nfrom .plain import home_of\ndef join(): return load(home_of(1))\n"
    added += b"def split(): return load(2)\n"
    assert inspect(held, held | {"kit/core.py": added}, marks=True) == ["kit/core.py:3 asks for what `load` asks for"]
    assert inspect(held, held | {"kit/core.py": added}, {"kit/core.py": added}, marks=True) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from .clock import Pace\ndef f(): return Pace()[0]", "Pace"),
        ("from .clock import Slow\ndef f(): return Slow()", "Slow"),
        ("from .clock import now as plain\ndef f(): return plain()", "now"),
        ("from . import clock\ndef f(): return getattr(clock, 'now')()", "now"),
        ("from .clock import look\ndef f(x): return look(x, 'a')", "look"),
    ],
)
def test_helpers_that_ask_are_found_by_any_name(code: str, name: str) -> None:
    clock = b"import time\ndef now(): return time.time()\ndef look(x, name): return getattr(x, name)\n"
    clock += b"class Pace:\n    def __getitem__(self, n): return time.time()\nclass Slow(Pace): pass\n"
    held = {"kit/__init__.py": b"", "kit/clock.py": clock, "kit/core.py": b""}
    found = inspect(held, held | {"kit/core.py": code.encode()}, marks=True)
    assert f"kit/core.py:2 asks for what `{name}` asks for" in found


def test_many_files_are_read_together_and_once() -> None:
    calls: list[int] = []

    def read(wanted: Sequence[str]) -> list[bytes]:
        calls.append(len(wanted))
        return [FRAMES if one == "frames" else b"" for one in wanted]

    before = {f"a{n}.py": ("100644", f"old {n}") for n in range(100)}
    after = before | {f"a{n}.py": ("100644", f"new {n}") for n in range(0, 100, 2)} | {"b.py": ("100644", "frames")}
    found = inspect_patch(before, after, before, read)
    assert {one.path for one in found if one.refuses} == {"b.py"}
    assert calls == [50 * 2, 1, 50], "what changed, what is new, and the others"


def test_new_modules() -> None:
    before = ["a/__init__.py", "a/x.py", "src/b/__init__.py", "tool.py"]
    after = [*before, "a/json.py", "json.py", "src/re/__init__.py", "docs/conf.py", "sitecustomize.py"]
    assert new_modules(before, after) == {"json": "json.py", "re": "src/re/__init__.py", "conf": "docs/conf.py"}
    assert not new_modules(before, [".x/__init__.py", "a.b.py", "os.x/__init__.py", "x/.py", "__main__.py"])


@pytest.mark.heavy
def test_no_honest_repair_is_suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bugs of three libraries, and commits of this project taken back; `benchmarks/false_alarms.py` looks at more."""
    need_module("swesmith")
    from swesmith.bug_gen.procedural.base import ProceduralModifier

    able = ProceduralModifier.can_change

    def drawn(modifier: Any, entity: Any) -> bool:
        """All bugs of a library take a minute to make, and 20 are looked at: only a part of them is made."""
        draw = random.Random(f"{entity.name} {entity.line_start} {modifier.name}").random()
        return draw < 0.15 and able(modifier, entity)

    monkeypatch.setattr(ProceduralModifier, "can_change", drawn)
    spec = importlib.util.spec_from_file_location("false_alarms", FALSE_ALARMS)
    assert spec
    assert spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found = [repair for library in benchmark.LIBRARIES[:3] for repair in benchmark.repairs(library, 20)]
    found += benchmark.reversed_commits(10, "88e9c54")
    assert len(found) > 60
    assert {one.name: one.alarms for one in found if one.alarms} == {}
