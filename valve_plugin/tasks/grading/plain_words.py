"""Words that answer from what they are given alone, as a repair's words mostly do. Pure.

Code that is right only where a test runs has to ask for something: who calls it, a file, a clock, what stands around
it. No list names all that can be asked for. So this lists what asks for nothing: words of Python's own classes and of
a part of its library, and what the project defines. A line that a patch adds with any other word is marked for a
person to look at.
"""

from __future__ import annotations

import ast
import builtins
import collections
import datetime
import decimal
import fractions
import io
import math
import os
import re
import sys
import sysconfig
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path, PurePath

from valve_plugin.tasks.syntax import full_name, parse

ASKS = "asks for "
"""Begins what a person should look at."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KINDS: tuple[type, ...] = (
    *(str, bytes, bytearray, list, dict, set, frozenset, tuple, int, float, complex, range, slice, property),
    *(OSError, UnicodeDecodeError, StopIteration, SyntaxError, ImportError, re.Pattern, re.Match, type(iter([]))),
    *(collections.deque, collections.OrderedDict, collections.Counter, collections.ChainMap, decimal.Decimal),
    *(datetime.datetime, datetime.timedelta, datetime.timezone, fractions.Fraction, PurePath),
)
_NOT_OF_KINDS = _words("""
    now today utcnow fromtimestamp utcfromtimestamp with_traceback add_note __module__ __qualname__ __sizeof__
    __reduce__ __reduce_ex__ __getstate__ __setstate__ __subclasshook__ __getattribute__ __dir__ __traceback__
    __suppress_context__ __context__ __text_signature__ __annotations__ __weakref__ __length_hint__ __objclass__
    __name__ time readline string""")
_ATTRIBUTES = {name for kind in _KINDS for name in dir(kind)} - _NOT_OF_KINDS | _words("""
    __dict__ __slots__ __wrapped__ __next__ __enter__ __exit__ __aenter__ __aexit__ __aiter__ __anext__ __await__
    __call__ __get__ __set__ __delete__ __set_name__ __missing__ __bases__ __mro__ __args__ __origin__ __cause__
    __all__ __version__ __members__ __fspath__ __index__ __copy__ __deepcopy__ __array__ __html__
    __func__ default_factory move_to_end maxlen setter getter deleter cache_clear send throw
    acquire release locked notify notify_all submit shutdown result set_result set_exception map task_done put get
    get_nowait put_nowait parameters annotation default kind empty return_annotation bind bind_partial arguments
    VAR_KEYWORD VAR_POSITIONAL KEYWORD_ONLY POSITIONAL_ONLY POSITIONAL_OR_KEYWORD debug info warning error exception
    critical log getLogger register dispatch fields seek tell read write readline readlines writelines
    flush close closed truncate getbuffer text tag attrib tail hexdigest digest netloc scheme query fragment hostname
    port username password name value field enter_context push callback pop_all quantize groupby zfill""")
"""Names of what values of Python's own classes, and of its plain modules, have."""
_WHOLE = _words("""
    __future__ array ast base64 binascii bisect calendar cmath collections.abc colorsys csv decimal difflib errno
    fractions graphlib hashlib heapq hmac html html.entities html.parser ipaddress itertools json json.decoder keyword
    math numbers operator queue random re reprlib secrets stat statistics string stringprep struct textwrap token typing
    unicodedata urllib.parse zlib""")
"""Modules of the standard library of which each name answers from what it is given, but for these."""
_BUT = _words("""
    ast.iter_fields ast.copy_location ast.dump ast.NodeTransformer ast.PyCF_ONLY_AST csv.list_dialects
    json.decoder.BACKSLASH json.decoder.FLAGS json.decoder.STRINGCHUNK json.decoder.WHITESPACE json.decoder.scanner
    re.purge re.template string.Formatter typing.get_type_hints typing.get_overloads typing.ForwardRef
    typing.runtime_checkable typing.runtime""")
_OF = {
    module: _words(names)
    for module, names in {
        "abc": "ABC ABCMeta abstractmethod abstractproperty",
        "argparse": """ArgumentTypeError ArgumentError Namespace Action HelpFormatter RawDescriptionHelpFormatter
            RawTextHelpFormatter ArgumentDefaultsHelpFormatter BooleanOptionalAction""",
        "asyncio": """run gather sleep wait wait_for shield timeout to_thread create_task ensure_future iscoroutine
            iscoroutinefunction isfuture Queue Lock Event Semaphore Condition Future TimeoutError CancelledError
            QueueEmpty QueueFull InvalidStateError""",
        "codecs": """encode decode lookup getencoder getdecoder getreader getwriter getincrementalencoder
            getincrementaldecoder iterencode iterdecode""",
        "collections": "abc OrderedDict defaultdict deque Counter ChainMap namedtuple UserDict UserList UserString",
        "concurrent.futures": """ThreadPoolExecutor Executor Future as_completed wait TimeoutError CancelledError
            thread""",
        "contextlib": """contextmanager asynccontextmanager suppress closing aclosing nullcontext ExitStack
            AsyncExitStack ContextDecorator AbstractContextManager AbstractAsyncContextManager""",
        "contextvars": "ContextVar Token",
        "copy": "copy deepcopy replace Error error",
        "dataclasses": """dataclass field fields asdict astuple replace is_dataclass InitVar KW_ONLY MISSING Field
            FrozenInstanceError""",
        "datetime": "datetime date time timedelta timezone tzinfo",
        "email.utils": """parseaddr formataddr getaddresses parsedate parsedate_tz parsedate_to_datetime
            format_datetime quote unquote""",
        "enum": """Enum IntEnum Flag IntFlag StrEnum auto unique EnumMeta EnumType verify member nonmember property
            ReprEnum EnumCheck FlagBoundary""",
        "fnmatch": "fnmatch fnmatchcase filter translate",
        "functools": """partial partialmethod reduce wraps update_wrapper lru_cache cache cached_property
            total_ordering cmp_to_key""",
        "http": "HTTPStatus HTTPMethod cookies",
        "http.cookies": "SimpleCookie Morsel CookieError",
        "inspect": """signature Signature Parameter BoundArguments isclass isfunction ismethod isroutine isbuiltin
            ismodule iscoroutinefunction iscoroutine isawaitable isgeneratorfunction isgenerator isasyncgenfunction
            isasyncgen isabstract isdatadescriptor ismethoddescriptor getdoc cleandoc getmro getfullargspec
            getattr_static get_annotations""",
        "io": """StringIO BytesIO IOBase RawIOBase BufferedIOBase TextIOBase UnsupportedOperation BufferedReader
            BufferedWriter IncrementalNewlineDecoder TextIOWrapper SEEK_SET""",
        "logging": "getLogger getLevelName NullHandler debug info warning error exception critical log Logger",
        "os": """path sep altsep extsep pathsep linesep curdir pardir devnull fspath fsencode fsdecode PathLike
            name""",
        "os.path": """join basename dirname split splitext splitdrive normpath normcase commonpath commonprefix isabs
            sep altsep extsep pathsep curdir pardir""",
        "pathlib": "Path PurePath PurePosixPath PureWindowsPath PosixPath WindowsPath",
        "pprint": "pformat pprint saferepr",
        "shlex": "split join quote",
        "sys": "maxsize maxunicode byteorder float_info int_info",
        "threading": "Lock RLock Condition Event Semaphore BoundedSemaphore Barrier Thread",
        "time": "sleep struct_time strptime",
        "tokenize": "generate_tokens tokenize untokenize detect_encoding TokenInfo TokenError tok_name",
        "types": """MappingProxyType SimpleNamespace MethodType FunctionType LambdaType BuiltinFunctionType
            GeneratorType CoroutineType AsyncGeneratorType ModuleType NoneType EllipsisType NotImplementedType
            GenericAlias UnionType DynamicClassAttribute coroutine""",
        "uuid": "UUID uuid3 uuid4 uuid5",
        "warnings": "warn simplefilter filterwarnings catch_warnings",
        "xml.etree.ElementTree": "Element SubElement fromstring tostring XML ParseError QName Comment iselement",
        "xml.sax.saxutils": "escape unescape quoteattr",
        "zoneinfo": "ZoneInfo ZoneInfoNotFoundError",
    }.items()
}
"""Modules of which these names do, and their constants."""
_NOT_BUILTINS = _words("""
    open input id breakpoint help exit quit copyright credits license RecursionError MemoryError GeneratorExit __debug__
    __file__ __path__ __cached__ __spec__ __loader__ __package__ __builtins__ __annotations__""")
"""Of the names that each module has, those that ask for more than they are given."""
_LOOKS_UP = _words("""
    getattr setattr delattr vars dir super operator.attrgetter operator.methodcaller inspect.getattr_static
    collections.namedtuple typing.NamedTuple typing.TypedDict typing.NewType typing.TypeVar typing.ParamSpec
    typing.TypeVarTuple dataclasses.make_dataclass warnings.warn warnings.catch_warnings warnings.filterwarnings
    warnings.simplefilter functools.update_wrapper functools.wraps inspect.signature enum.Enum enum.IntEnum enum.Flag
    enum.IntFlag enum.StrEnum type""")
"""What looks up names, in what it is given or in its caller: plain only where it is called by its own name."""
_ARE_KINDS = _words("type enum.Enum enum.IntEnum enum.Flag enum.IntFlag enum.StrEnum")
_SHADOWED = _LOOKS_UP | _NOT_BUILTINS
_MAKES_CLASSES = _words("namedtuple NamedTuple TypedDict make_dataclass Enum IntEnum Flag IntFlag StrEnum")
_OWN = _words("self cls")
_CHANGES = _words("next append add update pop popleft setdefault insert extend remove discard clear write put send set")
_OF_LOGS = _words("debug info warning error exception critical log")
_BY_NAME = _words("getattr hasattr setattr delattr")
_FIELD = re.compile(r"\{[^{}]*?\.(\w+)[^{}]*\}|%\((pathname|funcName|threadName|processName|module)\)")
"""What a text that is formatted asks an object, or a record of a log, for."""
_TELLING = _words("""
    asyncio builtins codecs contextlib doctest functools importlib inspect io logging os pathlib subprocess sys tempfile
    threading traceback types unittest warnings""")
_DEFINES = re.compile(r"(?:\bdef\s+|\bclass\s+|\bself\.)(\w+)")
_DUNDER = re.compile(r"__\w+__")
_SPECIAL_OF = (*_KINDS, type, types.FunctionType, types.ModuleType)
_SPECIAL = {name for kind in _SPECIAL_OF for name in dir(kind) if _DUNDER.fullmatch(name)} | _words("""
    __all__ __getattr__ __set_name__ __class_getitem__ __missing__ __path__ __file__ __builtins__ __signature__ __test__
    __fspath__ __enter__ __exit__ __get__ __set__ __del__ __instancecheck__ __mro_entries__ __prepare__ __await__
    __wrapped__ __bool__ __bytes__ __copy__ __deepcopy__ __index__ __aiter__ __anext__ __next__ __post_init__""")
"""Names that mean something to Python."""
_NONE = ast.Constant(None)


def unusual(tree: ast.Module, bound: Mapping[str, str], own: Set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of what a file asks for.

    Args:
        bound: what each imported name stands for.
        own: names of the repository's own modules that are imported without a package.
    """
    look = _Look(tree, bound, own)
    for node in ast.walk(tree):
        # `inspect.signature` runs what stands before two dashes.
        if node in look.texts and "\n--\n" in str(getattr(node, "value", "")):
            yield getattr(node, "lineno", 0), f"{ASKS}a text that is run"
        if node not in look.texts:
            for what in look.at(node):
                yield getattr(node, "lineno", 0), ASKS + what


class _Look:
    """Looks at the nodes of one file, knowing where each stands."""

    def __init__(self, tree: ast.Module, bound: Mapping[str, str], own: Set[str]) -> None:
        nodes = [*ast.walk(tree)]
        self._bound, self._own, self._known = bound, own, _of_constants(nodes)
        self._defs = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        named = [one for one in nodes if isinstance(one, ast.Assign) and getattr(one.value, "id", "") in self._defs]
        self._defs |= {getattr(to, "id", "") for one in named for to in one.targets} - {""}
        self._by = dict[str, list[ast.AST]]()
        for one in nodes:
            if isinstance(one, ast.FunctionDef):
                self._by.setdefault(one.name, []).append(one)
        self._functions = {one.name for one in nodes if isinstance(one, ast.FunctionDef | ast.ClassDef)}
        self.texts = {one.value for one in nodes if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)}
        self._loaded = [one for node in nodes for one in _loaded(node)]
        self._names = {one.id for one in nodes if isinstance(one, ast.Name)}
        self._plain_here = set[ast.AST]()  # by its own name: called, a base, a decorator
        self._compared = set[ast.AST]()  # as a kind, or to take a part of it
        self._targets = {to for one in nodes if isinstance(one, ast.Assign) for to in one.targets}
        self._said = set[ast.AST]()  # in a text for people, or copied to a wrapper
        self._local = {name for one in nodes for name in _local_names(one)}
        for node in nodes:
            self._place(node)

    def _place(self, node: ast.AST) -> None:
        here: list[ast.AST | None] = []
        kinds: list[ast.AST | None] = []
        match node:
            case ast.Call(func=func, args=given):
                here = [func]
                kinds += given[1:] if getattr(func, "id", "") in ("isinstance", "issubclass") else []
            case ast.ClassDef(bases=bases, keywords=words, decorator_list=above):
                here, kinds = [*bases, *above], [one.value for one in words if one.arg == "metaclass"]
            case (
                ast.FunctionDef(decorator_list=above, returns=returns)
                | ast.AsyncFunctionDef(decorator_list=above, returns=returns)
            ):
                here, kinds = [*above], [returns]
            case ast.arg(annotation=kind) | ast.AnnAssign(annotation=kind):
                kinds = [kind]
            case ast.Compare(left=left, comparators=others):
                kinds = [left, *others]
            case ast.Attribute(value=of):
                kinds = [of]
            case ast.JoinedStr() | ast.Raise():
                self._said.update(ast.walk(node))
            case ast.Assign(targets=[ast.Attribute(attr="__name__" | "__doc__" | "__qualname__" | "__module__" as to)]):
                self._said.update([node.value] if getattr(node.value, "attr", "") == to else ())
        decorators = getattr(node, "decorator_list", ())
        self._plain_here.update(one for one in here if one and not (one in decorators and _name(one) in _LOOKS_UP))
        for one in filter(None, kinds):
            self._compared.update(ast.walk(one) if isinstance(one, ast.Tuple | ast.BinOp | ast.Subscript) else [one])

    def at(self, node: ast.AST) -> Iterator[str]:
        """Yield what one node asks for."""
        match node:
            case ast.Import(names=names):
                for one in names:
                    yield from self._import(one.name, one.asname or one.name.split(".")[0])
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from self._import_from("" if level else str(module), [one.name for one in names])
            case (
                ast.alias(asname=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
            ) if name in _SPECIAL and node not in self._targets:
                yield f"`{name}` of what is made"
            case ast.Name(id=name, ctx=ast.Load()) if name not in self._bound and node not in self._local:
                if name in _NOT_BUILTINS:
                    yield f"`{name}`"
                yield from self._handed_on(node, name)
            case ast.Attribute() | ast.Name():
                yield from self._attribute(node)
            case ast.Call():
                yield from self._call(node)
            case ast.Assign(targets=targets, value=value):
                yield from (what for one in targets for what in self._made(one, value))
            case ast.Constant(value=str() as text):
                yield from _in_text(text)
            case _:
                yield from self._asserts(node)

    def _asserts(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.MatchClass(cls=kind, patterns=placed, kwd_attrs=names):
                yield from (what for name in names for what in _word(name))
                if placed and not hasattr(builtins, getattr(kind, "id", "")):
                    yield "parts by their places"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._function(node)
                yield from _runs(node.returns)
            case ast.ClassDef(bases=bases):
                named = [full_name(one, self._bound) for one in bases]
                yield from (f"`{one}`" for one in named if one.startswith("logging."))  # it is handed records
            case ast.arg(annotation=kind) | ast.AnnAssign(annotation=kind):
                yield from _runs(kind)
            case ast.Assert(test=test) if any(isinstance(one, ast.NamedExpr) for one in ast.walk(test)):
                yield "whether asserts run"
            case ast.Compare(left=left, comparators=others):
                yield from self._functions_in([left, *others])
            case ast.FormattedValue(value=value):
                yield from self._functions_in([value])

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        """Yield what a function tells by the moment when it is called, or by what it hands to others."""
        name, parts = node.name, [*ast.walk(node)]
        if name in ("__str__", "__repr__", "__format__", "__eq__"):
            called = {getattr(one.func, "id", "") for one in parts if isinstance(one, ast.Call)}
            parts += [one for other in called for function in self._by.get(other, ()) for one in ast.walk(function)]
            yield from [f"when `{name}` is called"] if any(map(_keeps, parts)) else ()
        elif name == "__del__":
            yield "when `__del__` is called"
        elif name in ("__reduce__", "__reduce_ex__"):
            given = [one.value for one in parts if isinstance(one, ast.Return)]
            if not all(isinstance(one, ast.Tuple) and not one.elts[2:] for one in given):
                yield f"`{name}` of what is made"  # copies set what stands third on what stands first
        elif not node.decorator_list and any(isinstance(one, ast.Yield) for one in parts):
            ends = [
                part for one in parts if isinstance(one, ast.Try) for end in one.finalbody for part in ast.walk(end)
            ]
            if any(map(_keeps, ends)):
                yield "when a generator is dropped"

    def _functions_in(self, values: Sequence[ast.AST]) -> Iterator[str]:
        """Yield functions of this file of which code asks whether something else is in their place."""
        names = {getattr(one, "id", "") for one in values} & self._defs
        yield from (f"whether `{name}` is another" for name in sorted(names))

    def _import(self, module: str, name: str) -> Iterator[str]:
        first = module.split(".")[0]
        if first not in sys.stdlib_module_names:
            yield from () if first in self._own else [f"`{first}`"]
        elif name not in self._names and module not in _WHOLE:  # for other code
            yield f"`{module}`"

    def _import_from(self, module: str, names: Sequence[str]) -> Iterator[str]:
        first = module.split(".")[0]
        if module and first not in sys.stdlib_module_names | self._own:
            yield f"`{first}`"
        for name in names:
            if first in sys.stdlib_module_names:
                yield from [f"all of {module}"] if name == "*" else _asked(f"{module}.{name}")
            elif not module or first in self._own:
                yield from _word(name) if name != "*" else ()

    def _attribute(self, node: ast.Attribute | ast.Name) -> Iterator[str]:
        full = full_name(node, self._bound)
        first = full.split(".")[0]
        if first in sys.stdlib_module_names:
            yield from self._of_python(full, node)
            yield from self._handed_on(node, full)
        if isinstance(node, ast.Attribute) and node.attr in _OF_LOGS and node not in self._plain_here | self._compared:
            yield f"`.{node.attr}` of another"
        if first not in sys.stdlib_module_names and isinstance(node, ast.Attribute):
            name = node.attr
            own = isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") in _OWN
            if not own and (not full or first in self._own) and not (name == "__name__" and node in self._said):
                yield from _word(name)
            if name == "name" and isinstance(node.ctx, ast.Store) and not own and self._has("dataclasses", "fields"):
                yield "`.name` of a field"
            if name == "__class__" and _name(node.value) not in _OWN:
                yield from self._types()
            if name == "parent" and self._has("logging", "getLogger"):
                yield "`.parent`"
            if name == "__dict__" and getattr(node.value, "id", "") not in _OWN:
                yield "`__dict__` of another"
            written = isinstance(node.value, ast.Constant)
            if name in ("format", "format_map", "vformat") and node not in self._plain_here and not written:
                yield f"`{name}` under another name"

    def _of_python(self, full: str, node: ast.AST) -> Iterator[str]:
        """Yield what a name of the standard library asks for; a module that nobody here imports tells who did."""
        parts, root, line = full.split("."), node, getattr(node, "lineno", 0)
        while isinstance(root, ast.Attribute):
            root = root.value
        given = self._bound.get(_name(root), "").count(".") + 1
        heads = {".".join(parts[:n]) for n in range(given + 1, len(parts) + 1)} & (_PACKAGES | _OF.keys() | _WHOLE)
        heads -= {name for name, first, last in self._loaded if first <= line <= last} | {"os.path"}
        yield from (f"whether `{one}` is loaded" for one in sorted(heads))
        yield from _asked(full)

    def _types(self) -> Iterator[str]:
        """Yield what a file could make anew by the class of an object, with arguments that nobody looks at."""
        kinds = ("operator", "attrgetter"), ("operator", "methodcaller"), ("warnings", "catch_warnings")
        yield from (f"`type` where there is `{kind}`" for of, kind in kinds if self._has(of, kind))

    def _has(self, module: str, name: str) -> bool:
        return not {module, f"{module}.{name}"}.isdisjoint(self._bound.values())

    def _handed_on(self, node: ast.AST, name: str) -> Iterator[str]:
        kind = name in _ARE_KINDS and node in self._compared
        if name in _LOOKS_UP and node not in self._plain_here and not kind:
            yield f"`{name}` under another name"

    def _call(self, node: ast.Call) -> Iterator[str]:
        func = node.func
        while isinstance(func, ast.Attribute) and func.attr == "__call__":
            func = func.value
        full = full_name(func, self._bound) or getattr(func, "id", "")
        name = full.rpartition(".")[2] or getattr(func, "attr", "")
        yield from self._by_name(name, node)
        yield from _arguments(name, node.args, {one.arg: one.value for one in node.keywords})
        if name in _MAKES_CLASSES and not all(
            _is_written(one) or getattr(one, "id", "") in self._known for one in node.args[1:2]
        ):
            yield f"`{name}` of names that are made"
        if name == "type":
            yield from self._types()
        if name in ("repr", "str", "format", "hash", "ascii"):
            yield from self._functions_in(node.args)
        if (name == "replace" and len(node.args) == 1 and not node.keywords) or (
            name == "group" and not node.args and self._has("pathlib", "Path")
        ):
            yield f"`{name}` of a path"  # of texts and matches they have other arguments, or no path is near
        if name in ("property", "cached_property", "partialmethod") and not all(
            isinstance(one, ast.Lambda) or self._is_def(one) for one in node.args
        ):
            yield f"`{name}` of what is no function here"

    def _by_name(self, name: str, node: ast.Call) -> Iterator[str]:
        """Yield the names that a call looks up, or that they are made."""
        match name, node.args:
            case _, [of, ast.Constant(value=str() as word), *_] if name in _BY_NAME:
                full = full_name(of, self._bound)
                python = full.split(".")[0] in sys.stdlib_module_names
                yield from self._of_python(f"{full}.{word}", of) if python else _word(word)
                if name == "setattr" and word in _SPECIAL:
                    yield f"`{word}` of another"
            case _, [of, made, *_] if name in _BY_NAME:
                known = self._known.get(getattr(made, "id", ""))
                yield from (what for word in sorted(known or ()) for what in _word(word))
                if known is None:
                    yield f"`{name}` of {full_name(of, self._bound) or 'a name that is made'}"
            case "attrgetter" | "methodcaller" | "getattr_static", given:
                names = {"attrgetter": given, "methodcaller": given[:1]}.get(name, given[1:2])
                for one in names:
                    if isinstance(one, ast.Constant):
                        yield from (what for part in str(one.value).split(".") for what in _word(part))
                    else:
                        yield f"`{name}` of a name that is made"
            case "vars", [of] if getattr(of, "id", "") not in _OWN:
                yield "`vars` of another"
            case "format" | "format_map" | "vformat", _ if isinstance(node.func, ast.Attribute):
                text = node.func.value
                if not isinstance(text, ast.Constant) and getattr(text, "id", "") not in self._known:
                    yield f"`{name}` of a text that is made"

    def _is_def(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) or getattr(node, "id", "") in self._functions

    def _made(self, target: ast.AST, value: ast.AST) -> Iterator[str]:
        """Yield a special name that something else than constants, or a function of this file, is given to."""
        name = getattr(target, "attr", getattr(target, "id", ""))
        if name == "__module__" and getattr(value, "attr", getattr(value, "id", "")) not in ("__module__", "__name__"):
            yield "`__module__` of another"
            return
        names = name == "__all__" and not isinstance(value, ast.Call | ast.Name)
        if name == "__match_args__" or (name == "__class__" and isinstance(target, ast.Attribute)):
            yield f"`{name}` of another"
            return
        if names or name in ("__slots__", "__version__") or name not in _SPECIAL:
            return
        same = getattr(value, "attr", getattr(value, "id", ""))
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        if not (same == name or _DUNDER.fullmatch(same) or all(self._is_def(one) for one in parts)):
            yield f"`{name}` of what is made"


def _arguments(name: str, given: Sequence[ast.expr], words: Mapping[str | None, ast.expr]) -> Iterator[str]:
    """Yield the arguments by which a call asks for its callers, or for more than its name says."""
    plain = {"filterwarnings": 3, "simplefilter": 2, "wraps": 1, "update_wrapper": 2, "catch_warnings": 0}
    named = _words("category message action append wrapped")
    starred = name in (*plain, "warn", "type", "signature", "get_annotations") and (
        None in words or any(isinstance(o, ast.Starred) for o in given)
    )
    if starred or (name in plain and (given[plain[name] :] or words.keys() - named)):
        yield f"more arguments of `{name}`"
    elif name == "dir":
        yield "`dir`"
    elif name == "split" and getattr([*given, ast.Constant("")][0], "value", "") is None and not words:
        yield "`split` of standard input"
    elif name == "type" and given[1:]:
        yield "`type` of a new class"
    elif name in ("astimezone", "timestamp") and not words and getattr([*given, _NONE][0], "value", "") is None:
        yield f"`{name}()`"
    elif name in _OF_LOGS and words.keys() & {None, "stacklevel"}:
        yield "`stacklevel=`"
    level = given[2] if name == "warn" and given[2:] else words.get("stacklevel")
    if name not in _OF_LOGS and level is not None and getattr(level, "value", 0) not in (1, 2):
        yield "`stacklevel=`"
    yield from (f"`{one}=`" for one in ("eval_str", "assigned") if one in words)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", ""))


def _runs(annotation: ast.AST | None) -> Iterator[str]:
    texts = [one.value for one in ast.walk(annotation or _NONE) if isinstance(one, ast.Constant)]
    yield from ("a text that is run" for one in texts if "(" in str(one))


def _loaded(holder: ast.AST) -> Iterator[tuple[str, int, float]]:
    """Yield (module, first line, last line) of where a module is loaded for sure, by a file or a function."""
    if isinstance(holder, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        for one in holder.body:
            of = f"{one.module}." if isinstance(one, ast.ImportFrom) else ""
            for name in one.names if isinstance(one, ast.Import | ast.ImportFrom) else ():
                parts = (of + name.name).split(".")
                for n in range(1, len(parts) + 1):
                    yield ".".join(parts[:n]), one.lineno, getattr(holder, "end_lineno", math.inf)


def _keeps(node: ast.AST) -> bool:
    """Whether a part of a function changes something else than its own variables."""
    calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stores = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
    goes_on = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _CHANGES
    return calls or stores or goes_on or isinstance(node, ast.Global | ast.Nonlocal)


def _in_text(text: str) -> Iterator[str]:
    """Yield what a text asks for that is formatted, or that is the name of something special."""
    for found in _FIELD.finditer(text):
        yield from _word(found[1]) if found[1] else [f"`{found[2]}`"]
    if _DUNDER.fullmatch(text) and text != "__main__":
        yield from _word(text)
    if "<locals>" in text:
        yield "`<locals>`"


def _word(name: str) -> Iterator[str]:
    if name not in _ATTRIBUTES:
        yield f"`.{name}`"


def _asked(full: str) -> Iterator[str]:
    """Yield what of the standard library answers from more than it is given: clocks, paths, the environment."""
    parts = full.split(".")
    known = [n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in _OF.keys() | _WHOLE]
    if known:
        end, module = known[0], ".".join(parts[: known[0]])
        asks = [n for n in range(end, len(parts)) if not _is_plain(module, parts[end : n + 1])]
    else:
        asks = [1] if len(parts) > 1 and full not in _PACKAGES else []
    if asks:
        yield f"`{'.'.join(parts[: asks[0] + 1])}`"
        yield from [f"`{full}`"] if not _ATTRIBUTES.issuperset(parts[asks[0] + 1 :]) else ()


def _is_plain(module: str, names: Sequence[str]) -> bool:
    """Whether the last of some names, of a module or of what the names before it stand for, is plain."""
    name = names[-1]
    if f"{module}.{'.'.join(names)}" in _BUT:
        return False
    if len(names) > 1:
        return name in _ATTRIBUTES or name.isupper()
    return name.isupper() or (name in _OF[module] if module in _OF else not name.startswith("_"))


MODULES = frozenset(name.split(".")[0] for name in (*_OF, *_WHOLE))
"""Modules of which at least some names are plain, or those that hold such modules."""
_PACKAGES = {".".join(name.split(".")[:n]) for name in (*_OF, *_WHOLE) for n in range(1, name.count(".") + 1)}
"""Packages that hold plain modules."""


def _is_written(node: ast.AST) -> bool:
    """Whether the names of a new class's parts are written down, alone or with their kinds."""
    if isinstance(node, ast.Tuple | ast.List) and node.elts:
        pair = isinstance(node, ast.Tuple) and len(node.elts) == 2
        return all(map(_is_written, node.elts[: 1 if pair else None]))
    if isinstance(node, ast.Dict):
        return all(map(_is_written, filter(None, node.keys)))
    return isinstance(node, ast.Constant)


def _local_names(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the names in a function that are those of its parameters."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        given = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        body = node.body if isinstance(node.body, list) else [node.body]
        inside = [one for part in body for one in ast.walk(part)] if given & _SHADOWED else []
        given -= {name for one in inside if isinstance(one, ast.Global) for name in one.names}
        yield from (one for one in inside if isinstance(one, ast.Name) and one.id in given)


def _bound_name(node: ast.AST) -> str:
    """Return the name that a node gives to something; that of an attribute, too, as another module may give it."""
    match node:
        case ast.arg(arg=name) | ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
            return name
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
            return name
        case ast.alias(asname=str() as name) | ast.alias(name=name):
            return name
        case ast.ExceptHandler(name=str() as name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
    return ""


def _of_constants(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """Return the texts that variables stand for which stand for constants only, as in a loop over written names."""
    given = list[tuple[ast.AST, ast.AST]]()
    written = set[int]()  # lists that nothing can change, as they have no name
    bound = Counter[str]()
    for node in nodes:
        if isinstance(node, ast.For | ast.comprehension):
            given.append((node.target, node.iter))
            written.add(id(node.iter))
        elif isinstance(node, ast.Assign):
            given += [(one, node.value) for one in node.targets]
        bound[_bound_name(node)] += 1
    found = dict[str, set[str]]()
    for _ in range(2):  # then those that stand for one of these
        times, texts = Counter[str](), dict[str, set[str]]()
        for target, value in given:
            fixed = ast.Tuple | ast.List | ast.Set if id(value) in written else ast.Tuple
            parts = value.elts if isinstance(value, fixed) else [value]
            if all(isinstance(one, ast.Constant) or getattr(one, "id", "") in found for one in parts):
                name = getattr(target, "id", "")
                times[name] += 1
                for one in parts:
                    its = {str(getattr(one, "value", ""))}
                    texts.setdefault(name, set()).update(found.get(getattr(one, "id", ""), its))
        found = {name: texts.get(name, set()) for name, count in times.items() if count == bound[name]}
    return found


def is_own(what: str, sources: Callable[[], tuple[Sequence[bytes], Sequence[bytes]]]) -> bool:
    """Whether what a patch asks for is a word of the project.

    It is if the project defines it. Where it tells nothing of a process, the project may use it elsewhere, or the patch
    define it.

    Args:
        sources: gives the files of the project without the patch, and those that the patch changes or adds.
    """
    word = what.removeprefix(f"{ASKS}`.").removesuffix("`")
    if not what.startswith(f"{ASKS}`.") or not word.isidentifier():
        return False
    name, (held, new) = word.encode(), sources()
    if any(name in source and word in defined(source) for source in held):
        return True
    if word in _of_library():
        return False
    used = re.compile(rb"\.\s*" + re.escape(name) + rb"\b")
    return any(used.search(source) for source in held) or any(word in defined(source) for source in new)


@lru_cache(maxsize=2048)
def defined(source: bytes) -> frozenset[str]:
    """Return the names that a file defines for others: functions, classes, and what modules and objects hold."""
    tree = parse(source)
    left: list[tuple[ast.AST, bool]] = [(tree, False)] if tree else []
    found = set[str]()
    while left:
        node, inside = left.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
                inside = True
            case ast.ClassDef(name=name):
                found.add(name)
                inside = False
            case ast.Name(id=name, ctx=ast.Store()) if not inside:
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Call(func=ast.Name(id="namedtuple"), args=[_, fields, *_]):
                texts = [getattr(one, "value", "") for one in getattr(fields, "elts", [fields])]
                found.update(word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text))
        left += [(one, inside) for one in ast.iter_child_nodes(node)]
    return frozenset(found)


@lru_cache(maxsize=1)
def _of_library() -> frozenset[str]:
    """Return the names of what tells about a process: of streams, logs, threads, modules, test doubles and the like."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    kinds = (kind for module in (builtins, io, types) for kind in vars(module).values() if isinstance(kind, type))
    found = {name for kind in kinds for name in dir(kind)}.union(dir(sys), dir(os), sys.stdlib_module_names)
    for module in _TELLING:
        for path in (folder / f"{module}.py", *(folder / module).glob("*.py")):
            if path.exists():
                found.update(_DEFINES.findall(path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(found)
