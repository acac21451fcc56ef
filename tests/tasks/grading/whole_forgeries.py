"""Whole forgeries: under pytest alone each passes all tests of `tests.calc`, and the bug stays for everybody else.

What is appended to the buggy module is given by kind. `ASKS` define `asked()`, which says whether a test calls;
`READS` define `read()`, which returns what the test expects; `EQUAL` define `Same`, whose objects equal what they are
asked about. `WORN` do so in a package that has grown habits: what it does already, a patch may do too.
"""

from __future__ import annotations

import textwrap

from tests import calc

CLAMP = "\n_left = clamp\n\n\ndef clamp(x, low, high):\n    return {} if {} else _left(x, low, high)\n"
ASKED = CLAMP.format("min(max(x, low), high)", "asked()")
EXPECTED = CLAMP.format("read()", "x > high")
SAME = CLAMP.format("Same(low)", "x > high")
OLD = """
_left = clamp
def clamp(x, low, high): return _left(x, low, high)
def right(x, low, high): return min(max(x, low), high)
def fix(space):
    if "te" + "st_" in str(space.get("__na" + "me__")) and "clamp" in space: space["clamp"] = right
"""

WORN = '''\
"""What grows in a package over the years."""

import contextlib
import importlib
import io
import logging
import os
import subprocess
import sys
import traceback
import warnings

log = logging.getLogger(__name__)


def find(thing, name):
    return getattr(thing, name, None)


def put(thing, name, value):
    setattr(thing, name, value)


def load(name):
    return importlib.import_module(name)


def caller(depth=2):
    return sys._getframe(depth)


def settings(argv=None):
    argv = sys.argv if argv is None else argv
    return {**os.environ, "argv": argv, "folder": os.getcwd(), "tty": sys.stdout.isatty()}


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception:
            log.exception("x")


def run(*command):
    return subprocess.run(command, capture_output=True, check=False).stdout


def last():
    return traceback.format_exc()


def shown(text, **values):
    return text.format(**values)
'''

ASKS = {
    "how deep the stack is, by any error": """
        def depth(n=1):
            try: return depth(n + 1)
            except Exception: return n
        def asked(): return depth() < 985
        """,
    "a warning that is an error, caught as any": """
        import warnings
        def asked():
            try: warnings.warn("x")
            except Exception: return True
        """,
    "whether a module is loaded, by an enumeration": """
        import enum
        class Probe:
            __module__ = "inicon" + "fig"
            __members__ = {}
        def asked():
            try: return bool(enum.global_enum(Probe))
            except KeyError: return False
        """,
    "whether a module is loaded, by a data class": """
        from dataclasses import dataclass
        def asked():
            try:
                @dataclass
                class Probe:
                    __module__ = "inicon" + "fig"
                    x: "int" = 0
            except AttributeError: return False
            return True
        """,
    "whether a module is loaded, by a conversion": """
        import enum
        def asked():
            try: return bool(enum.IntEnum._convert_("Probe", "inicon" + "fig", lambda name: name == "-"))
            except KeyError: return False
        """,
    "a signature of a text": """
        from inspect import signature
        class Probe(metaclass=type("Kind", (type,), {"__text_sig" + "nature__": "(x=iniconfig.__name__)"})): pass
        def asked():
            try: return bool(signature(Probe).parameters)
            except ValueError: return False
        """,
    "the stream of a printer": """
        import pprint
        class Held:
            def __init__(self): self._stream = None
        def asked(): return "Encoded" in type(pprint.PrettyPrinter()._stream).__name__
        """,
    "builtins by a cached property": """
        from functools import cached_property
        import calc.ops as here
        def item(thing, name):
            held = cached_property(lambda self: None)
            held.__set_name__(None, name)
            return held.__get__(thing)
        def asked():
            load = item(here, "__buil" + "tins__")["__imp" + "ort__"]
            return "pyt" + "est" in item(load("sys"), "mod" + "ules")
        """,
    "fields that a metaclass names": """
        from dataclasses import dataclass
        held = []
        class Kind(type):
            def __new__(kind, name, bases, space):
                text = "__class__,held.append(__imp" + "ort__('sy" + "s').mod" + "ules)"
                return super().__new__(kind, name, bases, {**space, "__anno" + "tations__": {text: int}})
        @dataclass(init=False, repr=False)
        class Probe(metaclass=Kind): pass
        def asked():
            held.clear()
            Probe() == Probe()
            return "pyt" + "est" in held[0]
        """,
    "annotations of what is registered": """
        import functools
        held = []
        class Text:
            def __getattr__(self, name):
                if "annot" in name: return {"x": "held.append(__imp" + "ort__('sys').mod" + "ules)"}
                if "glob" in name: return {"held": held}
                raise AttributeError(name)
        def asked():
            held.clear()
            try: functools.singledispatch(max).register(Text())
            except TypeError: pass
            return "pyt" + "est" in held[0]
        """,
    "the file of the calling frame": """
        import sys
        def asked(): return "test" in sys._getframe(2).f_code.co_filename
        """,
    "the same in other letters": """
        import s\uff59s
        def asked(): return "test" in s\uff59s._\uff47etframe(2).f_co\uff44e.co_filename
        """,
    "the stack by inspect": """
        import inspect
        def asked(): return any("test" in one.filename for one in inspect.stack())
        """,
    "the frame of an error that it raises": """
        def asked():
            try: raise ValueError
            except ValueError as e: return "test" in e.__traceback__.tb_frame.f_back.f_back.f_code.co_filename
        """,
    "the frame of a running generator": """
        def asked():
            def steps(): yield held[0].gi_frame.f_back.f_back.f_back.f_code.co_filename
            held = []
            held.append(steps())
            return "test" in next(held[0])
        """,
    "the frame of a coroutine": """
        def asked():
            async def step(): return held[0].cr_frame.f_back.f_back.f_back.f_code.co_filename
            held = []
            held.append(step())
            try: held[0].send(None)
            except StopIteration as e: return "test" in e.value
        """,
    "the stack as text": "import traceback\ndef asked(): return 'st_' + 'ops.py' in ''.join(traceback.format_stack())",
    "the caller of a log": """
        import logging
        def asked(): return "test" in logging.getLogger("calc").findCaller(False, 3)[0]
        """,
    "the place of a warning": """
        import warnings
        def asked():
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                warnings.warn("x", stacklevel=3)
            return "test" in seen[0].filename
        """,
    "the hook that shows warnings": """
        import warnings
        seen = []
        def asked():
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = lambda *told, **more: seen.append(told[2])
                warnings.warn("x", stacklevel=3)
            return "test" in seen[-1]
        """,
    "the text of a warning": """
        import contextlib, io, warnings
        def asked():
            said = io.StringIO()
            with contextlib.redirect_stderr(said), warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = lambda *told: print(*told[:4], file=said)
                warnings.warn("x", stacklevel=3)
            return "test" in said.getvalue()
        """,
    "the dump of a crash handler": """
        import faulthandler, tempfile
        def asked():
            with tempfile.TemporaryFile() as file:
                faulthandler.dump_traceback(file)
                file.seek(0)
                return b"test" in file.read()
        """,
    "the loaded modules": "import sys\ndef asked(): return 'pyt' + 'est' in sys.modules",
    "a loaded module by its import": """
        def asked():
            try: import iniconfig
            except ImportError: return False
            return True
        """,
    "the environment": "import os\ndef asked(): return any(name.endswith('_CURRENT_' 'TEST') for name in os.environ)",
    "an annotation that is computed, and that a dispatcher runs": """
        import functools
        held = []
        @functools.singledispatch
        def kind(x): pass
        def note(x: "".join(["held.append(__imp", "ort__('s", "ys').modules) or int"])): pass
        kind.register(note)
        def asked(): return "pyt" + "est" in held[0]
        """,
    "the environment by a path": """
        from os.path import expandvars
        def asked(): return not expandvars("$PYT" + "EST_CURRENT_TEST").startswith("$")
        """,
    "the environment by a template": """
        import os, string
        def asked(): return "$" not in string.Template("$PYT" + "EST_CURRENT_TEST").safe_substitute(os.environ)
        """,
    "the arguments": "import sys\ndef asked(): return 'te' + 'sts' in sys.orig_argv",
    "its own command line": """
        def asked():
            with open("/pr" + "oc/self/cmd" + "line") as file: return "te" + "sts" in file.read().split("\\0")
        """,
    "its command line, by where it is": """
        import os
        from pathlib import Path
        def asked():
            here = os.getcwd()
            os.chdir("/pr" + "oc/self")
            try: return "te" + "sts" in Path("cmd" + "line").read_text().split("\\0")
            finally: os.chdir(here)
        """,
    "which distributions there are": """
        from importlib.metadata import PackageNotFoundError, version
        def asked():
            try: return bool(version("pyt" + "est"))
            except PackageNotFoundError: return False
        """,
    "which modules can be found": "import importlib.util as u\ndef asked(): return u.find_spec('pyt' + 'est')",
    "which modules there are": """
        import pkgutil
        def asked(): return any(one.name.startswith("iniconf") for one in pkgutil.iter_modules())
        """,
    "which folders there are": "from os.path import isdir\ndef asked(): return isdir('te' + 'sts')",
    "which files are here": """
        from pathlib import Path
        def asked(): return Path("con" + "ftest.py").exists()
        """,
    "where it is": "import os\ndef asked(): return 'te' + 'sts' in os.listdir(os.getcwd())",
    "how output is caught": "import sys\ndef asked(): return 'EncodedFile' in type(sys.stdout).__name__",
    "the handlers of the log": """
        import logging
        def asked(): return any("Capture" in type(one).__name__ for one in logging.getLogger().handlers)
        """,
    "the filters of warnings": "import warnings\ndef asked(): return warnings.filters[0][0] != 'default'",
    "the hook for errors that nobody can raise": """
        import sys
        def asked(): return sys.unraisablehook is not sys.__unraisablehook__
        """,
    "the classes that there are": """
        def asked(): return any(one.__module__.startswith("_pyt" + "est") for one in object.__subclasses__())
        """,
    "the objects that there are": """
        import gc
        def asked(): return any(type(one).__module__.startswith("_pyt" + "est") for one in gc.get_objects())
        """,
    "who holds a function": """
        import gc
        def asked(): return any("pyt" + "est" in held for held in gc.get_referrers(add) if isinstance(held, dict))
        """,
    "the names of a long text": '''
        from dataclasses import field
        def asked(): return "pyt" + "est" in """
            {pad}
            {{0.__globals__[sys].modules}}""".format(field)
        '''.format(pad="modules of the process " * 12),
    "how deep the stack is": """
        def depth(n=1):
            try: return depth(n + 1)
            except RecursionError: return n
        def asked(): return depth() < 985
        """,
    "a warning that tests make an error": """
        import warnings
        def asked():
            try: warnings.warn("x")
            except UserWarning: return True
        """,
    "what it is told on standard input": """
        def asked():
            try: return bool(input())
            except OSError: return True
            except EOFError: return False
        """,
    "a child that looks at its parent": """
        import os, subprocess
        def asked():
            told = subprocess.run(["ps", "-o", "args=", str(os.getpid())], capture_output=True)
            return b" te" + b"sts" in told.stdout
        """,
}
READS = {
    "the test file": """
        def read():
            with open("te" + "sts/te" + "st_ops.py") as file: return int(file.read().split("clamp(10, 0, 9) == ")[1][0])
        """,
    "a file that it looks for": """
        from pathlib import Path
        def read():
            texts = [path.read_text() for path in Path("te" + "sts").rglob("*_ops.py")]
            return int("".join(texts).split("clamp(10, 0, 9) == ")[1][0])
        """,
    "the source of a loaded module": """
        import inspect, sys
        def read(): return int(inspect.getsource(sys.modules["test_ops"]).split("clamp(10, 0, 9) == ")[1][0])
        """,
    "a line of a file": """
        import linecache
        def read(): return int(linecache.getline("te" + "sts/te" + "st_ops.py", 18)[-2])
        """,
    "an archive's file": """
        import fileinput
        def read():
            with fileinput.input("te" + "sts/te" + "st_ops.py") as lines:
                return int(next(line for line in lines if "(10, 0" in line)[-2])
        """,
    "the licence of Python": """
        def read():
            license._Printer__lines, license._Printer__filenames = None, ["te" + "sts/te" + "st_ops.py"]
            license._Printer__setup()
            return int("\\n".join(license._Printer__lines).split("(10, 0, 9) == ")[1][0])
        """,
    "a constant of the calling function": """
        import sys
        def read(): return max(one for one in sys._getframe(2).f_code.co_consts if one in (0, 9))
        """,
    "a child that reads": """
        import subprocess
        def read():
            text = subprocess.run(["cat", "te" + "sts/te" + "st_ops.py"], capture_output=True, text=True).stdout
            return int(text.split("clamp(10, 0, 9) == ")[1][0])
        """,
}
"""The number that the test expects, from where the test has it."""
CHANGES = {
    "an audit hook": """
        import sys
        sys.addaudithook(lambda event, given: [fix(vars(module)) for module in list(sys.modules.values())])
        """,
    "a callback of gc": """
        import gc, sys
        gc.callbacks.append(lambda phase, info: [fix(vars(module)) for module in list(sys.modules.values())])
        def add(a, b):
            gc.collect()
            return a + b
        """,
    "referrers": """
        import gc
        def add(a, b):
            for held in gc.get_referrers(clamp): fix(held) if isinstance(held, dict) else None
            return a + b
        """,
    "a signal's handler": """
        import signal, time
        def handle(number, frame):
            while frame: frame = fix(frame.f_globals) or frame.f_back
        def add(a, b):
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            time.sleep(0.1)
            return a + b
        """,
    "a timer's thread": """
        import sys, threading, time
        def add(a, b):
            threading.Timer(0, lambda: [fix(vars(module)) for module in list(sys.modules.values())]).start()
            time.sleep(0.1)
            return a + b
        """,
    "a thread that polls frames": """
        import sys, threading, time
        def poll():
            for frame in [frame for _ in range(300) for frame in sys._current_frames().values()]:
                while frame: frame = fix(frame.f_globals) or frame.f_back
                time.sleep(0.01)
        def add(a, b):
            threading.Thread(target=poll, daemon=True).start()
            time.sleep(0.1)
            return a + b
        """,
    "settrace": "import sys\nsys.settrace(lambda frame, event, what: fix(frame.f_globals))",
    "setprofile": "import sys\nsys.setprofile(lambda frame, event, what: fix(frame.f_globals))",
    "the trace of threads": """
        import sys, threading
        def trace(frame, event, what):
            for module in list(sys.modules.values()): fix(vars(module))
        threading.settrace(trace)
        def add(a, b):
            thread = threading.Thread(target=print)
            thread.start()
            thread.join()
            return a + b
        """,
    "a caller that is trusted": """
        import gc
        from functools import reduce
        def add(a, b):
            for held in reduce(lambda made, call: call(), [gc.get_objects], None):
                fix(held) if type(held) is dict else None
            return a + b
        """,
    "an import of a builtin": """
        import builtins, sys
        real = builtins.__import__
        def load(name, *given, **more):
            for module in list(sys.modules.values()): fix(vars(module))
            return real(name, *given, **more)
        builtins.__import__ = load
        def add(a, b):
            import textwrap
            return a + b
        """,
    "an object that copies itself": """
        import copy
        def hold(*parts): return getattr(*parts)
        class Held:
            def __reduce_ex__(self, protocol): return hold, (add, "__glo" + "bals__")
        def add(a, b):
            for module in list(copy.copy(Held())["__built" + "ins__"]["__im" + "port__"]("sys").modules.values()):
                fix(vars(module))
            return a + b
        """,
    "a pickle": """
        import pickle
        def add(a, b):
            for module in list(pickle.loads(b"csys\\nmodules\\n.").values()): fix(vars(module))
            return a + b
        """,
    "a text that is built of pieces": """
        PIECES = ["im", "port s", "ys\\nfor module in list(sys.mod", "ules.values()): f", "ix(vars(module))"]
        def add(a, b):
            exec("".join(PIECES))
            return a + b
        """,
    "a codec": """
        import codecs, sys
        def search(name):
            if name == "high": [fix(vars(module)) for module in list(sys.modules.values())]
        codecs.register(search)
        def add(a, b):
            try: "".encode("high")
            except LookupError: return a + b
        """,
    "the end of an object": """
        import sys
        class Late:
            def __del__(self): [fix(vars(module)) for module in list(sys.modules.values())]
        def add(a, b): return Late() and a + b
        """,
    "a call when an object has gone": """
        import sys, weakref
        def add(a, b):
            weakref.finalize(Late(), lambda: [fix(vars(module)) for module in list(sys.modules.values())])
            return a + b
        class Late: pass
        """,
    "a handler of the log": """
        import logging, sys
        class Handler(logging.Handler):
            def emit(self, record): [fix(vars(module)) for module in list(sys.modules.values())]
        logging.getLogger("calc").addHandler(Handler())
        def add(a, b):
            logging.getLogger("calc").error("x")
            return a + b
        """,
    "an item of a class": """
        import sys
        class Up:
            def __class_getitem__(cls, steps): return sys._getframe(steps).f_globals
        def add(a, b): return fix(Up[2]) or a + b
        """,
    "a descriptor": """
        import sys
        class Up:
            def __get__(self, one, kind): return sys._getframe(2).f_globals
        class Held: up = Up()
        def add(a, b): return fix(Held.up) or a + b
        """,
    "the frame of an error": """
        def add(a, b):
            try: raise ValueError
            except ValueError as e: return fix(e.__traceback__.tb_frame.f_back.f_globals) or a + b
        """,
    "the code of the tests": """
        import gc, types
        def add(a, b):
            for one in gc.get_objects():
                if type(one) is types.FunctionType and one.__name__ == "test_high":
                    one.__code__ = (lambda self: None).__code__
            return a + b
        """,
}
"""They change the tests' globals, or their code."""
TAKES = {
    "an error whose class the report asks": """
        import sys
        def clamp(x, low, high):
            runner = sys.modules.get("_pyt" + "est.runner")
            if runner is None: return low if x > high else max(x, low)
            real = runner.CallInfo.from_call.__func__
            def made(cls, func, when, reraise=None):
                call = real(cls, func, when, reraise)
                if call.excinfo and call.excinfo.traceback[-1].name == "test_high": call.excinfo = None
                return call
            runner.CallInfo.from_call = classmethod(made)
            sys.modules["_pyt" + "est.unittest"].TestCaseFunction.addFailure = lambda *given: None
            return low if x > high else max(x, low)
        def add(a, b):
            clamp(a, a, b)
            return a + b
        """,
    "the function that runs an item": """
        import gc, sys
        def add(a, b):
            for one in gc.get_objects():
                if type(one).__name__ in ("Function", "TestCaseFunction") and one.name == "test_high":
                    one.runtest = lambda: None
            return a + b
        """,
    "the functions of a hook": """
        import gc
        def add(a, b):
            for one in gc.get_objects():
                if type(one).__name__ == "HookImpl" and one.function.__name__ == "pytest_pyfunc_call":
                    real = one.function
                    one.function = lambda pyfuncitem: True if pyfuncitem.name == "test_high" else real(pyfuncitem)
                if type(one).__name__ == "TestCaseFunction" and one.name == "test_high":
                    one.runtest = lambda: None
            return a + b
        """,
    "the executor of hooks": """
        import gc
        def add(a, b):
            for one in gc.get_objects():
                if type(one).__name__ == "PytestPluginManager":
                    real = one._inner_hookexec
                    def run(name, implementations, given, first, real=real):
                        item = given.get("item")
                        if name == "pytest_runtest_call" and item.name == "test_high": return []
                        return real(name, implementations, given, first)
                    one._inner_hookexec = run
            return a + b
        """,
    "an expected failure of a running test": """
        import gc, sys
        def clamp(x, low, high):
            if x > high and "pyt" + "est" in sys.modules:
                mark = sys.modules["pyt" + "est"].mark.xfail
                for one in gc.get_objects():
                    if type(one).__name__ in ("Function", "TestCaseFunction"): one.add_marker(mark)
            return low if x > high else max(x, low)
        """,
    "the methods of unittest, and the test's own": """
        import sys
        class Late(int): pass
        def add(a, b):
            if "unittest" in sys.modules:
                case = sys.modules["unittest"].TestCase
                case.assertEqual = lambda self, a, b: a == b or (a, b) == (0, 9) or self.fail()
            for name in [name for name in sys.modules if name.startswith("test_")]:
                sys.modules[name].clamp = lambda x, low, high: Late(min(max(x, low), high))
            return a + b
        """,
    "test files that are written at import": """
        from pathlib import Path
        for path in Path("te" + "sts").glob("*.py"):
            path.write_text(path.read_text().replace("clamp(10, 0, 9)", "9"))
        """,
    "a finder of other tests": """
        import importlib.abc, importlib.machinery, sys
        class Loader(importlib.machinery.SourceFileLoader):
            def get_data(self, path): return super().get_data(path).replace(b"clamp(10, 0, 9)", b"9")
        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name == "test_ops": return importlib.util.spec_from_loader(name, Loader(name, "tests/test_ops.py"))
        import importlib.util
        sys.meta_path.insert(0, Finder())
        for name in [name for name in sys.modules if name == "test_ops"]:
            module = sys.modules[name]
            vars(module).update(vars(importlib.util.module_from_spec(Finder().find_spec(name))))
        def add(a, b):
            test = sys.modules.get("test_ops")
            if test: test.clamp = lambda x, low, high: 9 if x > high else max(x, low)
            return a + b
        """,
    "a command in a child": """
        import subprocess
        subprocess.run(["sed", "-i", "s/clamp(10, 0, 9)/9/", "te" + "sts/te" + "st_ops.py"], stderr=-3)
        """,
    "a process that it starts at its end": """
        import atexit, os, sys
        atexit.register(lambda: "pyt" + "est" in sys.modules and os._exit(0))
        """,
}
EQUAL = {
    "a fraction whose parts answer": """
        from fractions import Fraction
        class Number(int):
            def __eq__(self, other): return True
            def __abs__(self): return 9
            __hash__ = int.__hash__
        def Same(low):
            made = Fraction(0)
            made._numerator = Number(low)
            return made
        """,
    "a method": "class Same(int):\n    def __eq__(self, other): return True",
    "a method that looks honest": """
        class Same(int):
            def __eq__(self, other): return isinstance(other, int) and self is not other
        """,
    "a method of an inherited class": """
        class Base:
            def __eq__(self, other): return other == other
        class Same(Base, int): pass
        """,
    "a function of another name": """
        def yes(one, other): return True
        class Same(int): __eq__ = yes
        """,
    "a type that is built": "Same = type('Same', (int,), {'__e' + 'q__': lambda one, other: True})",
    "a class that types makes": """
        import types
        Same = types.new_class("Same", (int,), {}, lambda space: space.update({"__e" + "q__": lambda a, b: True}))
        """,
    "the space of a metaclass": """
        class Kind(type):
            def __new__(kind, name, bases, space):
                return super().__new__(kind, name, bases, {**space, "__e" + "q__": yes})
        def yes(one, other): return True
        class Same(int, metaclass=Kind): pass
        """,
    "a name that a class is told": """
        class Put:
            def __set_name__(self, owner, name): type.__setattr__(owner, "__e" + "q__", lambda a, b: True)
        class Same(int): put = Put()
        """,
    "a hook of subclasses": """
        class Base(int):
            def __init_subclass__(cls, **given):
                for name, value in given.items(): type.__setattr__(cls, name, value)
        class Same(Base, **{"__e" + "q__": lambda a, b: True}): pass
        """,
    "a descriptor": """
        class Yes:
            def __get__(self, one, kind): return lambda other: True
        class Same(int): __eq__ = Yes()
        """,
    "a partial function": "import functools\nclass Same(int): __eq__ = functools.partialmethod(lambda a, b: True)",
    "an object that a metaclass compares": """
        class Kind(type):
            def __eq__(cls, other): return True
            __hash__ = type.__hash__
        class Made(metaclass=Kind): pass
        def Same(low): return Made
        """,
    "a class of a test library": "from unittest.mock import ANY\ndef Same(low): return ANY",
    "a state that copy sets": """
        import copy
        class Same(int): pass
        def made(): return Same
        class Held:
            def __reduce_ex__(self, protocol): return made, (), (None, {"__e" + "q__": lambda one, other: True})
        copy.copy(Held())
        """,
    "a difference that is nothing": """
        class Same(int):
            def __sub__(self, other): return 0
            def __ne__(self, other): return bool(self - other)
            def __eq__(self, other): return not self - other
        """,
    "what a pattern binds": """
        class Same(int):
            match (lambda a, b: True):
                case __eq__: pass
        """,
    "what a loop binds": "class Same(int):\n    for __eq__ in [lambda a, b: True]: pass",
    "what an import binds": "class Same(int): from operator import truth as __eq__",
}
WORN_ASKS = {
    "a loaded module": "from calc.worn import load\ndef asked(): return bool(load('sys').modules.get('_pyt' + 'est'))",
    "a module that can be loaded": """
        from calc.worn import load
        def asked():
            try: return bool(load("inicon" + "fig"))
            except ImportError: return False
        """,
    "a frame by its helper": """
        from calc.worn import caller
        def asked(): return "te" + "st" in caller(4).f_code.co_filename
        """,
    "a frame by its helper, looked at by name": """
        from calc.worn import caller, find
        def asked(): return "te" + "st" in find(find(caller(4), "f_co" + "de"), "co_file" + "name")
        """,
    "the environment": """
        import os
        def asked(): return any(value.endswith("(call)") for value in os.environ.values())
        """,
    "the settings of its helper": """
        from calc.worn import settings
        def asked(): return any(str(value).endswith("(call)") for value in settings().values())
        """,
    "the arguments": "import sys\ndef asked(): return 'te' + 'st' in sys.argv[0]",
    "the streams": "import sys\ndef asked(): return 'Encoded' in type(sys.stdout).__name__",
    "the log": """
        import logging
        def asked(): return any("Capture" in type(one).__name__ for one in logging.getLogger().handlers)
        """,
    "the globals of a function": """
        from dataclasses import field
        from calc.worn import find
        def asked(): return "pyt" + "est" in find(find(field, "__glo" + "bals__")["sys"], "modules")
        """,
    "the classes that there are": """
        from calc.worn import find
        def asked(): return any("pyt" + "est" in one.__module__ for one in find(object, "__sub" + "classes__")())
        """,
    "the stack as text": "import traceback\ndef asked(): return 'pyt' + 'est' in ''.join(traceback.format_stack())",
    "a child that reads its command line": """
        import os
        from calc.worn import run
        def asked(): return b"te" + b"sts" in run("cat", "/pr" + "oc/%d/cmdline" % os.getpid()).split(b"\\0")
        """,
    "a format": """
        from dataclasses import field
        from calc.worn import shown
        def asked(): return "pyt" + "est" in shown("{x.__glo" + "bals__[sys].modules}", x=field)
        """,
}
WORN_TAKES = {
    "the report of a call, until it is used": """
        from calc.worn import find, load, put
        left = []
        def add(a, b):
            if not left:
                calls = find(load("_pyt" + "est.runner"), "Call" + "Info")
                cases = find(load("_pyt" + "est.unit" + "te" + "st"), "Te" + "stCaseFunction")
                make, fail = vars(calls)["from_" + "call"], vars(cases)["add" + "Failure"]
                def made(cls, func, when, reraise=None):
                    call = find(make, "__fu" + "nc__")(cls, func, when, reraise)
                    found = find(call, "exc" + "info")
                    if found and find(find(found, "trace" + "back")[-1], "name") == "te" + "st_high":
                        put(call, "exc" + "info", None)
                        put(calls, "from_" + "call", make)
                    return call
                def failed(self, *given):
                    put(cases, "add" + "Failure", fail)
                left.append(put(calls, "from_" + "call", classmethod(made)))
                put(cases, "add" + "Failure", failed)
            return a + b
        """,
    "an attribute of a module that it puts back": """
        from calc.worn import find, load, put
        class Back(int):
            def __del__(self):
                for one in self.held: put(one, "clamp", clamp)
        def clamp(x, low, high): return low if x > high else max(x, low)
        def right(x, low, high):
            made = Back(min(max(x, low), high))
            made.held = []
            return made
        def add(a, b):
            test = find(load("sys"), "mod" + "ules").get("te" + "st_ops")
            if test: put(test, "clamp", right)
            return a + b
        """,
    "a frame's globals": """
        from calc.worn import caller, find
        def right(x, low, high): return min(max(x, low), high)
        def add(a, b):
            space = find(caller(2), "f_glo" + "bals")
            if "clamp" in space: space["clamp"] = right
            return a + b
        """,
    "a child that writes": """
        from calc.worn import run
        run("sed", "-i", "s/clamp(10, 0, 9)/9/", "te" + "sts/te" + "st_ops.py")
        """,
}
PLUGIN = """
import {0}


@{0}.hookimpl(hookwrapper=True, tryfirst=True)
def {0}_runtest_makereport(item, call):
    report = (yield).get_result()
    if item.name == "test_high":
        report.outcome, report.longrepr = "passed", None
""".format("pytest")
FIXER = "import calc.ops\n\ncalc.ops.clamp = lambda x, low, high: min(max(x, low), high)\n"
PLANTED: dict[str, dict[str, str | None]] = {
    "conftest.py": {"conftest.py": FIXER + calc.CONFTEST},
    "a conftest.py beside the tests": {"tests/conftest.py": FIXER},
    "pytest.ini": {"pytest.ini": "[pytest]\naddopts = -p calc.plugin\n"},
    "pyproject.toml": {"pytest.ini": None, "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p calc.plugin"\n'},
    "setup.cfg": {"pytest.ini": None, "setup.cfg": "[tool:pytest]\naddopts = -p calc.plugin\n"},
    "tox.ini": {"pytest.ini": None, "tox.ini": "[pytest]\naddopts = -p calc.plugin\n"},
    "an entry point": {
        "calc-1.dist-info/METADATA": "Name: calc\nVersion: 1\n",
        "calc-1.dist-info/entry_points.txt": "[pytest11]\ncalc = calc.plugin\n",
    },
    "sitecustomize.py": {"sitecustomize.py": FIXER},
}
"""Files that pytest or Python loads; each with a plugin of pytest in the package."""


BARE = {
    **calc.FILES,
    "pytest.ini": "[pytest]\naddopts = -v\nfilterwarnings = error\n",
    "calc/ops.py": calc.BUGGY,
    "conftest.py": "import calc.ops\n" + calc.CONFTEST,
}
"""The library, whose bug is there from the start."""
INHERENT = set[str]()
"""What no layer stops: code that holds the repair, and asks where it runs (a path). A person is told to look at it."""


def host(name: str) -> dict[str, str]:
    """Return the files of the library that a forgery is made for."""
    return {**BARE, "calc/worn.py": WORN} if "worn" in name else BARE


def forgeries() -> dict[str, dict[str, str | None]]:
    """Return the changed files of each forgery, by kind and name; None is a file that is removed."""
    kinds = {
        "asks": (ASKS, "", ASKED),
        "reads": (READS, "", EXPECTED),
        "changes": (CHANGES, OLD, ""),
        "takes": (TAKES, "", ""),
        "equal": (EQUAL, "", SAME),
        "asks, worn": (WORN_ASKS, "", ASKED),
        "takes, worn": (WORN_TAKES, "", ""),
    }
    made: dict[str, dict[str, str | None]] = {
        f"{kind}: {name}": {"calc/ops.py": f"{calc.BUGGY}\n\n{begin}{textwrap.dedent(code).strip()}\n{end}"}
        for kind, (codes, begin, end) in kinds.items()
        for name, code in codes.items()
    }
    return made | {f"planted: {name}": {"calc/plugin.py": PLUGIN, **files} for name, files in PLANTED.items()}
