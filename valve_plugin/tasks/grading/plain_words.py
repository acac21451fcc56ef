"""Words that answer from what they are given alone, as a repair's words mostly do. Pure.

Code that is right only where a test runs has to ask for something: who calls it, a file, a clock, what stands around
it. No list names all that can be asked for. So this lists what asks for nothing: words of Python's own classes and of
a part of its library, and what the project defines. `asking.py` finds all other words in a patch.
"""

from __future__ import annotations

import ast
import builtins
import collections
import datetime
import decimal
import fractions
import gc
import io
import os
import re
import signal
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePath

from valve_plugin.tasks.syntax import parse

ASKS = "asks for "
"""Begins what a person should look at."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_KINDS: tuple[type, ...] = (
    *(str, bytes, bytearray, list, dict, set, frozenset, tuple, int, float, complex, range, slice),
    *(re.Pattern, re.Match, collections.deque, collections.OrderedDict, collections.Counter, collections.ChainMap),
    *(decimal.Decimal, fractions.Fraction, datetime.datetime, datetime.timedelta, datetime.timezone, PurePath),
)
_NOT_OF_KINDS = words("""
    now today utcnow fromtimestamp utcfromtimestamp timestamp astimezone strftime strptime time string scanner""")
ATTRIBUTES = {name for kind in _KINDS for name in dir(kind) if name[0] != "_"} - _NOT_OF_KINDS | words("""
    __abs__ __add__ __aenter__ __aexit__ __aiter__ __all__ __and__ __anext__ __await__ __bool__ __bytes__ __call__
    __class__ __complex__ __contains__ __delitem__ __divmod__ __doc__ __enter__ __eq__ __exit__ __float__
    __floordiv__ __format__ __fspath__ __ge__ __getitem__ __gt__ __hash__ __iadd__ __iand__ __imul__ __index__ __init__
    __int__ __invert__ __ior__ __isub__ __iter__ __ixor__ __le__ __len__ __lshift__ __lt__ __missing__ __mod__ __mul__
    __ne__ __neg__ __new__ __next__ __or__ __pos__ __pow__ __radd__ __rand__ __repr__ __reversed__ __rmul__ __ror__
    __round__ __rshift__ __rsub__ __rtruediv__ __setattr__ __setitem__ __slots__ __str__ __sub__ __truediv__ __trunc__
    __version__ __xor__ args errno strerror filename setter getter deleter default_factory read write getvalue
    fragment hostname netloc password port query scheme username name value
    enter_context""")
"""Names of what values of Python's own classes, and of its plain modules, have."""
OF = {
    module: words(names)
    for module, names in {
        "__future__": "annotations",
        "abc": "ABC ABCMeta abstractmethod",
        "ast": "literal_eval",
        "base64": "b64encode b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode b16decode",
        "binascii": "hexlify unhexlify crc32 Error",
        "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
        "cmath": "sqrt exp log phase polar rect isnan isinf isclose",
        "collections": "abc OrderedDict defaultdict deque Counter ChainMap namedtuple UserDict UserList UserString",
        "collections.abc": """Awaitable AsyncGenerator AsyncIterable AsyncIterator ByteString Callable Collection
            Container Coroutine Generator Hashable ItemsView Iterable Iterator KeysView Mapping MutableMapping
            MutableSequence MutableSet Reversible Sequence Set Sized ValuesView""",
        "contextlib": "contextmanager asynccontextmanager suppress closing nullcontext ExitStack",
        "copy": "copy deepcopy replace",
        "csv": "reader writer DictReader DictWriter Error",
        "dataclasses": "dataclass field asdict astuple replace is_dataclass",
        "datetime": "datetime date time timedelta timezone tzinfo",
        "decimal": "Decimal DecimalException DivisionByZero Inexact InvalidOperation Overflow Rounded Underflow",
        "difflib": "SequenceMatcher get_close_matches ndiff unified_diff",
        "enum": "Enum IntEnum Flag IntFlag StrEnum auto unique",
        "errno": "",
        "fnmatch": "fnmatchcase translate",
        "fractions": "Fraction",
        "functools": "partial reduce wraps lru_cache cache cached_property total_ordering cmp_to_key",
        "hashlib": "md5 sha1 sha224 sha256 sha384 sha512 blake2b blake2s",
        "heapq": "heappush heappop heapify heappushpop heapreplace merge nlargest nsmallest",
        "html": "escape unescape",
        "http": "HTTPStatus",
        "inspect": """isclass isfunction ismethod isroutine isbuiltin iscoroutinefunction isgeneratorfunction
            isgenerator cleandoc""",
        "io": "StringIO BytesIO UnsupportedOperation",
        "ipaddress": """ip_address ip_network ip_interface IPv4Address IPv6Address IPv4Network IPv6Network
            AddressValueError NetmaskValueError""",
        "itertools": """accumulate batched chain combinations combinations_with_replacement compress count cycle
            dropwhile filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee
            zip_longest""",
        "json": "dumps loads JSONEncoder JSONDecoder JSONDecodeError",
        "keyword": "iskeyword issoftkeyword",
        "math": """acos asin atan atan2 ceil comb copysign cos cosh degrees dist e erf exp exp2 expm1 fabs factorial
            floor fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm ldexp log log10 log1p log2
            modf nan nextafter perm pi pow prod radians remainder sin sinh sqrt tan tanh tau trunc ulp""",
        "numbers": "Number Complex Real Rational Integral",
        "operator": """abs add and_ concat contains countOf eq floordiv ge getitem gt indexOf index inv
            invert itemgetter le lshift lt matmul mod mul ne neg not_ or_ pos pow rshift setitem
            sub truediv truth xor""",
        "os": "path sep altsep extsep pathsep linesep curdir pardir devnull fspath PathLike name",
        "os.path": """join basename dirname split splitext splitdrive normpath normcase commonpath commonprefix isabs
            sep altsep extsep pathsep curdir pardir""",
        "pathlib": "PurePath PurePosixPath PureWindowsPath",
        "re": """compile match search fullmatch findall finditer split sub subn escape error Pattern Match""",
        "shlex": "join quote",
        "statistics": "mean fmean median median_low median_high mode multimode pstdev pvariance stdev variance",
        "string": """ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits printable
            punctuation whitespace""",
        "struct": "pack unpack unpack_from pack_into calcsize iter_unpack Struct error",
        "sys": "maxsize maxunicode byteorder float_info",
        "textwrap": "dedent fill indent shorten wrap",
        "types": "MappingProxyType SimpleNamespace FunctionType LambdaType GeneratorType NoneType",
        "typing": """Annotated Any AnyStr AsyncGenerator AsyncIterable AsyncIterator Awaitable BinaryIO Callable
            ClassVar Collection Concatenate Container Coroutine Counter DefaultDict Deque Dict Final FrozenSet Generator
            Generic Hashable IO ItemsView Iterable Iterator KeysView List Literal Mapping Match MutableMapping
            MutableSequence MutableSet NamedTuple Never NewType NoReturn NotRequired Optional OrderedDict ParamSpec
            Pattern Protocol Required Reversible Self Sequence Set Sized SupportsFloat SupportsIndex SupportsInt Text
            TextIO Tuple Type TypeAlias TypeGuard TypeVar TypedDict Union Unpack ValuesView cast final get_args
            get_origin overload override""",
        "unicodedata": """bidirectional category combining decimal decomposition digit east_asian_width is_normalized
            lookup mirrored name normalize numeric""",
        "urllib.parse": """parse_qs parse_qsl quote quote_plus quote_from_bytes unquote unquote_plus unquote_to_bytes
            urldefrag urlencode urljoin urlparse urlsplit urlunparse urlunsplit ParseResult SplitResult""",
        "uuid": "UUID uuid3 uuid5",
        "xml.sax.saxutils": "escape unescape quoteattr",
        "zlib": "adler32 compress crc32 decompress",
    }.items()
}
"""Modules of which these names do, and their constants."""
BUILTINS = words("""
    abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate filter
    float format frozenset getattr hasattr hex int isinstance issubclass iter len list map max min next object oct
    ord pow property range repr reversed round set setattr slice sorted staticmethod str sum super tuple type zip
    Ellipsis NotImplemented __name__ __doc__ __class__""") | {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, RecursionError | MemoryError)
}
NOT_BUILTINS = {*dir(builtins), *words("__file__ __path__ __cached__ __builtins__ __annotations__")} - BUILTINS
"""Of the names that each module has, those that ask for more than they are given."""
PLAIN = ATTRIBUTES | BUILTINS
_FIELD = re.compile(r"\{([^{}]*)\}|%\((pathname|funcName|threadName|processName|module)\)")
"""Where a text that is formatted asks an object, or a record of a log, for something."""
_TELLING = words("""
    asyncio builtins codecs contextlib doctest functools getpass importlib inspect io linecache locale logging os
    pathlib platform random socket subprocess sys tempfile threading timeit traceback types unittest warnings
    weakref""")
_DEFINES = re.compile(r"(?:\bdef\s+|\bclass\s+|\bself\.)(\w+)")
DUNDER = re.compile(r"__\w+__")


def in_text(text: str) -> Iterator[str]:
    """Yield what a text asks for that is formatted, or that is the name of something special."""
    for found in _FIELD.finditer(text):
        yield from (what for name in re.findall(r"\.([^\W\d]\w*)", found[1] or "") for what in word_of(name))
        yield from [f"`{found[2]}`"] if found[2] else zone(found[1].partition(":")[2])
    if DUNDER.fullmatch(text) and text != "__main__":
        yield from word_of(text)
    if "<locals>" in text:
        yield "`<locals>`"


def zone(form: str) -> Iterator[str]:
    """Yield the local time that a form of a date asks for."""
    if re.search("%[sZ]", form):
        yield "the local time"


def of_other(full: str) -> Iterator[str]:
    """Yield a name of another library: the project may use it elsewhere, but not define it."""
    if full.rpartition(".")[2] not in ATTRIBUTES:
        yield f"`{full}`"


def word_of(name: str) -> Iterator[str]:
    """Yield an attribute's name if it is not plain."""
    if name not in ATTRIBUTES:
        yield f"`.{name}`"


def asked(full: str) -> Iterator[str]:
    """Yield what of the standard library answers from more than it is given: clocks, paths, the environment."""
    parts = full.split(".")
    known = [n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in OF]
    if known:
        end, module = known[0], ".".join(parts[: known[0]])
        asks = [n for n in range(end, len(parts)) if not _is_plain(module, parts[end : n + 1])]
    else:
        asks = [1] if len(parts) > 1 and full not in PACKAGES else []
    if asks:
        yield f"`{'.'.join(parts[: asks[0] + 1])}`"
        yield from [f"`{full}`"] if not ATTRIBUTES.issuperset(parts[asks[0] + 1 :]) else ()


def _is_plain(module: str, names: Sequence[str]) -> bool:
    """Whether the last of some names, of a module or of what the names before it stand for, is plain."""
    name = names[-1]
    return name.isupper() or name in (OF[module] if len(names) == 1 else ATTRIBUTES)


MODULES = frozenset(name.split(".")[0] for name in OF)
"""Modules of which at least some names are plain, or those that hold such modules."""
PACKAGES = {".".join(name.split(".")[:n]) for name in OF for n in range(1, name.count(".") + 1)}
"""Packages that hold plain modules."""


def is_own(what: str, sources: Callable[[], tuple[Sequence[bytes], Sequence[bytes]]]) -> bool:
    """Whether what a patch asks for is a word of the project.

    It is if the project defines it. Where it tells nothing of a process, the project may use it elsewhere, or the patch
    define it. A word of another library is the project's only where the project uses it elsewhere.

    Args:
        sources: gives the files of the project without the patch, and those that the patch changes or adds.
    """
    full = what.removeprefix(f"{ASKS}`").removesuffix("`")
    word, first = full.rpartition(".")[2], full.split(".")[0]
    named = what.startswith(f"{ASKS}`") and "." in full and " " not in full and word.isidentifier()
    if not named or first in sys.stdlib_module_names:
        return False
    name, (held, new) = word.encode(), sources()
    if first:
        return any(re.search(rb"(?:[.,(]|\bimport\b)\s*" + re.escape(name) + rb"\b", source) for source in held)
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
    found = {name for kind in kinds for name in dir(kind)}.union(sys.stdlib_module_names)
    found.update(*map(dir, (sys, os, time, gc, signal)))
    for module in _TELLING:
        for path in (folder / f"{module}.py", *(folder / module).glob("*.py")):
            if path.exists():
                found.update(_DEFINES.findall(path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(found)
