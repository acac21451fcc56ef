"""What a Python file uses, name by name, and which of these names any repair may use. Pure.

What is imported is judged where it is imported, so what it is called later does not matter. Modules are not handed
around, and what is harmless only in one way of calling it is only called, with arguments that are there to read.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from valve_plugin.tasks.syntax import parse


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAFE = _words("""
    __future__ abc array base64 binascii bisect bz2 calendar cmath collections collections.abc colorsys copy csv
    dataclasses datetime decimal difflib enum errno fnmatch fractions functools graphlib gzip hashlib heapq hmac html
    html.entities itertools json json.decoder json.encoder keyword lzma math numbers operator os.path pprint random re
    reprlib stat statistics string struct textwrap time token typing typing_extensions unicodedata urllib.parse uuid
    zipfile zlib""")
"""Modules that cannot look around. Any repair may use their public names, but for `_NOT`."""
_NOT = _words("""
    Formatter ForwardRef get_type_hints evaluate_forward_ref make_dataclass update_wrapper expandvars expanduser
    global_enum global_enum_repr global_flag_repr global_str PrettyPrinter get_cache_token sameopenfile""")
"""These run text, change modules by name, look at attributes by computed names, or at the environment."""
_PARTS = {
    "ast": "literal_eval",
    "codecs": "decode encode lookup",
    "contextlib": "AbstractContextManager AsyncExitStack ContextDecorator ExitStack asynccontextmanager closing "
    "contextmanager nullcontext suppress",
    "importlib": "import_module",
    "importlib.metadata": "PackageNotFoundError",
    "inspect": "Parameter Signature cleandoc isabstract isasyncgenfunction isawaitable isbuiltin isclass iscoroutine "
    "iscoroutinefunction isfunction isgenerator isgeneratorfunction ismethod isroutine",
    "io": "BytesIO IOBase StringIO TextIOBase TextIOWrapper UnsupportedOperation",
    "logging": "getLogger NullHandler",
    "os": "PathLike altsep curdir devnull fsdecode fsencode fspath linesep name path pathsep sep strerror",
    "pathlib": "PurePath PurePosixPath PureWindowsPath",
    "sys": "byteorder float_info getsizeof hexversion implementation maxsize maxunicode platform version version_info",
    "sysconfig": "get_config_var get_path get_paths get_platform",
    "threading": "Lock RLock local",
    "types": "BuiltinFunctionType EllipsisType FunctionType GeneratorType GenericAlias LambdaType MappingProxyType "
    "MethodType ModuleType NoneType NotImplementedType SimpleNamespace UnionType",
    "warnings": "warn",
    "weakref": "WeakKeyDictionary WeakSet WeakValueDictionary ref",
}
"""Modules of which any repair may use these names, and constants in capitals."""
_AROUND = {
    "bz2": "BZ2File open",
    "calendar": "setfirstweekday",
    "csv": "register_dialect",
    "decimal": "getcontext setcontext",
    "gzip": "GzipFile open",
    "importlib.metadata": "distribution metadata packages_distributions requires version",
    "lzma": "LZMAFile open",
    "os": "access chdir chmod fdopen get_terminal_size getcwd lstat makedirs mkdir remove rename replace rmdir stat "
    "unlink urandom utime",
    "os.path": "abspath exists getatime getctime getmtime getsize isdir isfile islink ismount lexists realpath relpath "
    "samefile",
    "pathlib": "Path",
    "random": "seed setstate",
    "sys": "intern",
    "time": "ctime localtime monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns "
    "thread_time thread_time_ns time time_ns",
    "zipfile": "Path PyZipFile ZipFile is_zipfile",
}
"""By these code looks around, or changes what it shares with tests. A package that uses one may use each; shown."""
_BUILTINS_AROUND = frozenset({"open", "RecursionError"})
_PLAIN = {
    "importlib.import_module": (1, ()),
    "functools.wraps": (1, ("assigned", "updated")),
    "warnings.warn": (3, ("source", "skip_file_prefixes")),
    "warnings.catch_warnings": (0, ("record", "module")),
    "warnings.filterwarnings": (3, ("module", "lineno")),
    "warnings.simplefilter": (2, ("lineno",)),
}
"""What is only called, with at most so many arguments and not these: they ask who calls, or look by computed names."""
_DATACLASS = "dataclasses.dataclass"
_DISPATCH = frozenset({"functools.singledispatch", "functools.singledispatchmethod"})
_DECORATORS = _DISPATCH | {_DATACLASS}
"""Only decorators: they run the names of fields, and annotations, as code."""
OBJECTS = frozenset({".__set_name__", ".__get__", "._create_", "._convert_", ".from_callable"})
"""Attributes that reach others by a name, or who calls: they are ordinary where the repository uses them."""
_TITLES = frozenset({"__module__", "__text_signature__"})
"""What a class says of itself, and others look up or run."""
_INSIDE = (
    *(types.FrameType, types.TracebackType, types.CodeType, types.GeneratorType, types.CoroutineType),
    *(types.AsyncGeneratorType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CellType),
)
_ORDINARY = {name for kind in (object, type(iter([])), BaseException) for name in dir(kind)} | _words("""
    __name__ __qualname__ __module__ __call__ __func__ __get__ __type_params__ send throw close asend athrow aclose
    replace clear __await__ __aiter__ __anext__ __del__
    __class_getitem__""")
DANGEROUS = {name for kind in _INSIDE for name in dir(kind)} - _ORDINARY | _words("""
    _getframe _getframemodulename _current_frames currentframe walk_stack walk_tb extract_stack f_trace cr_origin
    settrace setprofile addaudithook get_objects get_referrers get_referents __subclasses__ __builtins__ __import__
    _caller makeRecord findCaller funcName stack_info showwarning current_task all_tasks meta_path path_hooks
    exec_module load_module __loader__ __spec__ EntryPoint entry_points eval_str _eval_type _evaluate __forward_code__
    CodeType unsafe_load UnsafeLoader as_strided ctypes setitimer runtest TestReport CallInfo TestCase pytest_plugins
    pytestmark pytest_generate_tests pytest_runtest_call pytest_runtest_makereport pytest_pyfunc_call setup_module
    teardown_module setup_function teardown_function setUpModule tearDownModule __match_args__ __prepare__
    __annotate__""")
"""Names that reach the inside of the interpreter, or that it or a test framework looks for."""
_TOOLS = _words("""
    gc ctypes _ctypes cffi mmap marshal builtins signal _thread bdb pdb trace profile cProfile dis hypothesis
    importlib.machinery importlib.abc sys.monitoring sys.modules inspect.stack pickle.loads pickle.load twisted.trial py
    nose _distutils_hack pip setuptools pkg_resources dirty_equals hamcrest callee dill cloudpickle psutil greenlet
    gevent eventlet""")
"""Modules, and things in modules, that are as dangerous: other libraries are not listed, these are."""
_FOR_TESTS = re.compile(r"(?:^|\.)(?:_?(?:py|unit|doc|async)?test|\w*mock\b)")
"""Names of test frameworks, and of what libraries have for tests, as in `numpy.testing`."""
_OF_PYTEST = _words("pluggy iniconfig packaging pygments exceptiongroup tomli colorama coverage")
"""Libraries that are there because tests need them: ordinary only where the package uses them."""
_RUN_TEXT = _words("exec eval compile __import__ globals locals breakpoint")
_PLACES = frozenset({"__file__", "__path__", "__cached__", "input"})
_BY_NAME = _words("getattr setattr delattr hasattr vars __getattribute__ attrgetter methodcaller getattr_static")
_REACHES = _words("""
    sys os gc builtins inspect importlib threading types traceback ctypes marshal unittest warnings contextlib
    logging""")
"""Modules that are not to be reached through another, or under another name."""
_ROOTS = _words("sys gc builtins importlib ctypes unittest")
"""Nor through anything that may be a module."""
STRICT = _words("asyncio logging pickle traceback")
"""Modules that are not listed and of which a package's use of one name makes no other ordinary."""
_OTHERWISE = _words(".handlers .hasHandlers .isEnabledFor .getEffectiveLevel .manager .__module__ .__qualname__")
"""Attributes that look otherwise under a test: of loggers, and of the functions that a test hands over."""
STREAMS = frozenset({"sys.exit", "sys.stderr", "sys.stdin", "sys.stdout"})
"""Of these, a program that uses one may use each."""
_IN_TEXT = re.compile(r"pytest|PYTEST|unittest|conftest|/proc/|(?:^|[/\\])tests?[/\\]|^tests?$|test_\w*\.py|_test\.py$")
"""Text that names tests, their framework or the process's own files."""
_FIELD = re.compile(r"\{[^{}]*\}")
_WORD = re.compile(r"[A-Za-z_]\w*")
_TEST_MODULE = re.compile(r"tests?|conftest|test_\w+|\w+_test")
_LOOKS = "looks for attributes by computed names"
_FORMATS = "looks for attributes by a computed format"
_CATCHES = "catches a warning"  # an error only where tests say so
_COMMON = ("names ", "hands ", "changes an imported", "looks ")
"""How those findings begin that are ordinary in a package that has them in any file."""


class Use(NamedTuple):
    """One use in a file."""

    line: int
    what: str
    """A name from outside the repository with dots, an attribute of any object with a dot before it, or a sentence."""
    function: str
    """The innermost function around it; empty at the top of a file."""


class Uses(NamedTuple):
    """What a file uses and defines."""

    uses: tuple[Use, ...] = ()
    names: frozenset[str] = frozenset()
    """What it uses, with the names that these begin with, and the attributes in them."""
    defined: frozenset[str] = frozenset()
    """What it gives a name to."""
    calls: tuple[Use, ...] = ()
    """Names that it reads and that are not from outside: functions of the repository among them."""
    libraries: frozenset[str] = frozenset()
    """Modules from outside that are not listed here, so that nobody lists the attributes of their objects."""


@cache
def is_dangerous(what: str) -> bool:
    """Whether a use is ordinary only in the very file, or function, that has it."""
    if " " in what:
        return not what.startswith(_COMMON)
    if not DANGEROUS.isdisjoint(what.split(".")) or what in _RUN_TEXT:
        return True
    return not what.startswith(".") and bool(not _TOOLS.isdisjoint(heads(what)) or _FOR_TESTS.search(what))


def heads(what: str) -> set[str]:
    """Return a name with dots and all that it begins with."""
    parts = what.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


@cache
def is_harmless(what: str) -> bool:
    """Whether any repair may use it."""
    if " " in what or what in _PLACES or is_dangerous(what) or (what != "open" and is_around(what)):
        return False
    module = max((head for head in heads(what) if head in _SAFE or head in _PARTS or not head), key=len, default=None)
    if module is None:
        top, *inside = what.split(".")
        known = top in sys.stdlib_module_names | _OF_PYTEST
        return not known and not any(part.lstrip("_") in _REACHES for part in inside)
    if module == what:
        return True
    first, *more = what[len(module) + 1 if module else 1 :].split(".")
    return first in (_public(module) if module else _attributes()) and _attributes().issuperset(more)


@cache
def is_telling(what: str) -> bool:
    """Whether code may learn by it that a test runs, or change what both share: a person should look at it."""
    if what.startswith("."):
        return what in _OTHERWISE
    shared = what in _BUILTINS_AROUND or what.rpartition(".")[2] in {"register", "now", "today", "utcnow"}
    return not is_harmless(what) or " " in what or shared


@cache
def is_around(what: str) -> bool:
    """Whether it looks at the disk, the clock, or what else is around."""
    parts = (head.rpartition(".") for head in heads(what))
    return what == "open" or any(name in _AROUND.get(module, "").split() for module, _, name in parts)


def is_own(name: str) -> bool:
    """Whether a function of this name is likely the one that a package defines, and no method that Python calls."""
    return not name.startswith("__") and not hasattr(builtins, name)


@cache
def _public(module: str) -> frozenset[str]:
    try:
        held: Any = import_module(module)
    except ImportError:
        return frozenset()
    names = getattr(held, "__all__", [name for name in dir(held) if not name.startswith("_")])
    if module in _PARTS:
        also = [name for name in dir(held) if name.isupper()]
        names = [*_PARTS[module].split(), *also]
    modules = {name for name in names if isinstance(getattr(held, name, None), types.ModuleType)} - {"path"}
    return frozenset(names) - modules - _NOT


@cache
def _attributes() -> frozenset[str]:
    """Return the attributes of builtin types and of the classes of safe modules."""
    things = [*vars(builtins).values(), type(iter([])), types.GeneratorType, types.GenericAlias]
    safe = {*_SAFE, "contextlib", "inspect", "io", "pathlib"} - {"typing_extensions"}
    things += [getattr(import_module(module), name, None) for module in safe for name in _public(module)]
    found = {name for thing in things if isinstance(thing, type) for name in dir(thing)}
    found |= _words("debug info warning error exception critical log addHandler")
    return frozenset(found - {name[1:] for name in OBJECTS}) - DANGEROUS


@lru_cache(maxsize=2048)
def find_uses(source: bytes, own: frozenset[str]) -> Uses | None:
    """Return what a file uses; None if it cannot be parsed.

    Args:
        own: names of the repository's own modules that are imported without a package.
    """
    tree = parse(source)
    if tree is None:
        return None
    finder = _Finder(tree, own)
    finder.visit(tree)
    uses = [use.what for use in finder.found]
    names = {name for what in uses for name in ((what,) if " " in what else (*heads(what), f".{what.split('.')[-1]}"))}
    tops = {name for name in names - _SAFE - _PLACES - _PARTS.keys() if name.isidentifier() and not is_dangerous(name)}
    calls = tuple(dict.fromkeys(finder.calls))
    return Uses(tuple(dict.fromkeys(finder.found)), frozenset(names), frozenset(finder.defined), calls, frozenset(tops))


class _Finder(ast.NodeVisitor):
    """Collects the uses of one file."""

    def __init__(self, tree: ast.Module, own: frozenset[str]) -> None:
        self.found: list[Use] = []
        self.calls: list[Use] = []
        self.defined = set[str]()
        self._own, self._function = own, ""
        self._bound: dict[str, str] = {}  # what each name of an import from outside stands for
        self._modules = set[str]()
        self._ours = set[str]()  # names of imports from the repository
        self._plain = set[str]()  # those of them that are surely modules
        self._stored = set[str]()
        self._free = set[ast.AST]()  # objects that an attribute is taken of, what is called
        self._values: dict[str, list[ast.expr | None]] = {}  # what each name is given; None: something else
        self._shaped = set[str]()  # classes whose class the file makes
        nodes = list(ast.walk(tree))
        self._made = {n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in nodes:
            self._prepare(node)
        self._dispatches = any(self._full(n) in _DISPATCH for n in nodes if isinstance(n, ast.Name | ast.Attribute))
        self._ours |= self._plain
        for node in nodes:
            self._allow(node)
        again = [n for n in nodes if isinstance(n, ast.Assign) and getattr(n.value, "id", "") in self._bound]
        self._foreign = {*self._bound, *(name.id for n in again for name in n.targets if isinstance(name, ast.Name))}

    def _prepare(self, node: ast.AST) -> None:
        """Note what names stand for, before any is judged."""
        match node:
            case ast.Import(names=names):
                for name, bound in ((alias.name, alias.asname) for alias in names):
                    if not self._outside(name):
                        self._plain.add(bound or name.split(".")[0])
                    else:
                        self._bound[bound or name.split(".")[0]] = name if bound else name.split(".")[0]
                        self._modules.add(bound or name.split(".")[0])
            case ast.ImportFrom():
                self._bind(node)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                self._stored.add(name)
                self._values.setdefault(name, []).append(None)
        value = getattr(node, "iter", getattr(node, "value", None))
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name) and not isinstance(node, ast.AugAssign):
                self._values.setdefault(target.id, []).append(value)

    def _allow(self, node: ast.AST) -> None:
        """Note where names of modules, of errors, and of what is only called are used as they may be."""
        match node:
            case ast.Call(func=value) if self._full(value) in _DECORATORS:
                pass
            case ast.Attribute(value=value) | ast.Call(func=value) | ast.UnaryOp(operand=value, op=ast.Not()):
                self._free.add(value)
            case ast.Compare(left=value, ops=[ast.Is() | ast.IsNot()]):
                self._free.add(value)
            case ast.If(test=value) | ast.IfExp(test=value):
                self._free |= {value, *getattr(value, "values", ())}
            case (
                ast.FunctionDef(decorator_list=made)
                | ast.AsyncFunctionDef(decorator_list=made)
                | ast.ClassDef(decorator_list=made)
            ):
                self._free |= {getattr(one, "func", one) for one in made}

    def _bind(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for name, bound in ((alias.name, alias.asname or alias.name) for alias in node.names):
            if not node.level and self._outside(module):
                self._bound[bound] = f"{module}.{name}"
            else:
                self._ours.add(bound)
            if bound in self._ours and name.lstrip("_") in _REACHES:
                self._bound[bound] = name.lstrip("_")
            known = name.lstrip("_") in {*sys.stdlib_module_names, "path"} - {module.split(".")[-1]}
            self._modules |= {bound} if known and bound in self._bound else set()

    def _outside(self, module: str) -> bool:
        top = module.split(".")[0]
        return top not in self._own or top in sys.stdlib_module_names

    def _add(self, node: ast.AST, what: str, function: str = "") -> None:
        if what.startswith(".") and what[1:] in _ROOTS:
            what = f"reaches a module through another: {what[1:]}"
        self.found.append(Use(getattr(node, "lineno", 0), what, function or self._function))

    def _full(self, node: ast.AST) -> str:
        """Return the whole name of something from outside, or of a builtin that looks by names; else ""."""
        if isinstance(node, ast.Name):
            return self._bound.get(node.id, node.id if node.id in _BY_NAME else "")
        base = self._full(node.value) if isinstance(node, ast.Attribute) else ""
        return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""

    # Names

    def visit(self, node: ast.AST) -> None:
        """Look at the names that a node binds, which code can read as text; then at the node."""
        for name in _bound_names(node):
            self.defined.add(name)
            if name in DANGEROUS or isinstance(node, ast.MatchClass):
                self._add(node, f".{name}")
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                self.generic_visit(parse(annotation.value) or ast.Pass())  # as code: some tools run it
            elif annotation is not None and any(map(_makes_text, ast.walk(annotation))):
                self._add(annotation, "runs text as code: a computed annotation")
        super().visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)
            if alias.name in _REACHES and alias.asname not in {None, alias.name}:
                self._add(node, f"hands {alias.name} around")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}" if node.module else alias.name
            if node.level:
                self._tests(node, whole.split(".")[0])
            else:
                self._module(node, whole if self._outside(whole) else node.module or "")
            if alias.name.lstrip("_") in _REACHES and (node.level or node.module):
                self._add(node, f"reaches a module through another: {alias.name}")

    def _module(self, node: ast.AST, name: str) -> None:
        if self._outside(name):
            self._add(node, name)
        else:
            self._tests(node, name)

    def _tests(self, node: ast.AST, name: str) -> None:
        if any(map(_TEST_MODULE.fullmatch, name.split("."))):
            self._add(node, f"imports tests: {name}")

    def visit_Name(self, node: ast.Name) -> None:
        full, loaded = self._full(node), isinstance(node.ctx, ast.Load)
        if not loaded:
            self.defined.add(node.id)
            if node.id in _TITLES:
                self._add(node, f"names a class otherwise: {node.id}")
        elif node not in self._free and (
            node.id in self._modules or full in _PLAIN or full in _DECORATORS or full.split(".")[-1] in _BY_NAME
        ):
            self._add(node, f"hands {full} around")
        if loaded and not full:
            self.calls.append(Use(node.lineno, node.id, self._function))
        if node.id in DANGEROUS | _RUN_TEXT | _PLACES | _BUILTINS_AROUND:
            self._add(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full, last = self._full(node), node.attr
        self._add(node, full or f".{last}")
        called = full in _PLAIN or full in _DECORATORS or (full and last in _BY_NAME)
        if (called and node not in self._free) or self._full(node.value) in _PLAIN:
            self._add(node, f"hands {full} around")
        plain = isinstance(node.value, ast.Constant) or getattr(node.value, "id", "") in self._plain
        if last == "__dict__" or (last in {"format", "format_map"} and not plain):
            self._add(node, _LOOKS if last == "__dict__" else _FORMATS)
        if last.lstrip("_") in _REACHES and not full and self._root(node) in self._ours:
            self._add(node, f"reaches a module through another: {last}")
        of = node.value.func if isinstance(node.value, ast.Call) else node.value
        if last in {"__setattr__", "__delattr__"} and getattr(of, "id", "") not in {"object", "super"}:
            self._add(node, f"changes objects past their class: {last}")
        if not isinstance(node.ctx, ast.Load):
            self._change(node, node)
            self.defined.add(last)
            if last in _TITLES:
                self._add(node, f"names a class otherwise: {last}")
        if not full:
            self.calls.append(Use(node.lineno, last, self._function))
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load) and getattr(node.value, "id", "") not in self._stored:
            self._change(node, node.value)
        self.generic_visit(node)

    def _root(self, node: ast.AST) -> str:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        return node.id if isinstance(node, ast.Name) else ""

    def _change(self, node: ast.AST, changed: ast.expr) -> None:
        if self._root(changed) in self._foreign and self._full(changed) != "os.environ":
            self._add(node, f"changes an imported object: {ast.unparse(changed)}")

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # else a docstring
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str | bytes):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if found := _IN_TEXT.search(text[:10_000]):
                self._add(node, f"names tests or their process: {found[0]!r}")
            short = text if len(text) <= 200 else " ".join(_FIELD.findall(text))  # prose, but for fields of a format
            for word in dict.fromkeys(_WORD.findall(short)):
                if word in DANGEROUS:
                    self._add(node, f"names in a text: {word}")

    # Calls

    def visit_Call(self, node: ast.Call) -> None:
        full = self._full(node.func)
        name = full.split(".")[-1] or str(getattr(node.func, "attr", getattr(node.func, "id", "")))
        given = {word.arg for word in node.keywords}
        most, without = _PLAIN.get(full, (99, ()))
        if full in _PLAIN:
            unseen = None in given or any(isinstance(part, ast.Starred) for part in node.args)
            if len(node.args) > most or unseen or given.intersection(without):
                self._add(node, f"asks who calls it: {full}")
        elif "stacklevel" in given:
            self._add(node, f"asks who calls it: {name}")
        if name == "import_module":
            text = str(getattr(node.args[0], "value", "a computed name") if node.args else "a computed name")
            self._module(node, text)
            if self._outside(text) and text not in _SAFE:
                self._add(node, f"hands {text} around")
        if name == "register" and self._dispatches and not self._is_class(node):
            self._add(node, "registers what is no class")
        if name == "dir":
            self._add(node, _LOOKS)
        harmless = name in _BY_NAME and self._by_name(node, name)
        for part in [node.func, *node.args[harmless:], *node.keywords]:
            self.visit(part)

    def _by_name(self, node: ast.Call, name: str) -> bool:
        """Look at the names that a call looks for; return whether its first argument is handed nowhere."""
        wanted = node.args if name == "attrgetter" else node.args[:1] if name == "methodcaller" else node.args[1:2]
        named = [self._texts(part) for part in wanted]
        texts = [text for found in named for text in found]
        base = self._full(node.args[0]) if name not in {"attrgetter", "methodcaller"} and node.args else ""
        if name in {"setattr", "delattr", "vars"} and base:
            self._add(node, f"changes an imported object: {base}")
        if not (named and all(named)) and name != "hasattr":
            self._add(node, _LOOKS)
        for text in texts:
            self._add(node, f"{base}.{text}")
        return bool(base and texts and name in {"getattr", "hasattr"})

    def _texts(self, node: ast.expr | None, most: int = 4) -> list[str]:
        """Return the constant texts that an expression may be, or be made of; none if others are possible."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.IfExp(body=one, orelse=other):
                parts = [one, other]
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                pass
            case ast.Name(id=name) if most and len(self._values.get(name, ())) == 2:  # itself, and its value
                parts = [value for value in self._values[name] if value is not None]
            case _:
                return []
        found = [self._texts(part, most - 1) for part in parts]
        return [text for texts in found for text in texts] if all(found) else []

    def _is_class(self, node: ast.Call) -> bool:
        """Whether what is registered is a class or function that the file names; or a text."""
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Name):
            return first.id in self._made or first.id in {*self._bound, *self._ours, *dir(builtins)} - self._stored
        return isinstance(first, ast.Constant) or (isinstance(first, ast.Attribute) and self._root(first) != "")

    # Functions and classes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Look at classes whose class a decorator would run: it may name fields as it likes."""
        own = any(word.arg == "metaclass" and not self._full(word.value) for word in node.keywords)
        if own or any(getattr(base, "id", "") in self._shaped for base in node.bases):
            self._shaped.add(node.name)
            if any(self._full(getattr(one, "func", one)) == _DATACLASS for one in node.decorator_list):
                self._add(node, "runs text as code: a dataclass with a metaclass")
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        names = {name.id for name in ast.walk(node.type or node) if isinstance(name, ast.Name)}
        if node.type and any(name.endswith("Warning") for name in names) and not _has(node.body, ast.Raise):
            self._add(node, _CATCHES)
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        """Look at what catches any error of a warning, or of how deep the function is."""
        wide = [one for one in node.handlers if getattr(one.type, "id", "Exception") in {"Exception", "BaseException"}]
        if wide and not _has(wide, ast.Raise):
            called = [one.func for part in node.body for one in ast.walk(part) if isinstance(one, ast.Call)]
            if any(self._full(one) == "warnings.warn" for one in called):
                self._add(node, _CATCHES)
            if self._function and any(getattr(one, "id", "") == self._function for one in called):
                self._add(node, "catches any error of its own calls")
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        held, self._function = self._function, node.name
        self.generic_visit(node)
        self._function = held

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815


def _makes_text(node: ast.AST) -> bool:
    """Whether an expression may be a text that no reader sees."""
    added = isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr)
    called = isinstance(node, ast.Call) and hasattr(str, getattr(node.func, "attr", "-"))
    return isinstance(node, ast.JoinedStr) or added or called


def _has(parts: Iterable[ast.AST], *kinds: type[ast.AST]) -> bool:
    return any(isinstance(one, kinds) for part in parts for one in ast.walk(part))


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names in a node that are no expression: of functions, arguments, patterns and so on."""
    if isinstance(node, ast.Import):
        yield from (alias.asname for alias in node.names if alias.asname)
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif not isinstance(node, ast.Name | ast.Attribute | ast.Constant):
        for _, value in ast.iter_fields(node):
            yield from (name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str))
