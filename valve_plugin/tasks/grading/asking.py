"""What code asks for that it is not given: its words that are not known to be plain, and ways round these. Pure.

A line that a patch adds with such a word is marked for a person to look at.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from valve_plugin.tasks.grading.plain_words import (
    ASKS,
    ATTRIBUTES,
    BUILTINS,
    DUNDER,
    NOT_BUILTINS,
    OF,
    PACKAGES,
    asked,
    in_text,
    of_other,
    word_of,
    words,
    zone,
)
from valve_plugin.tasks.syntax import full_name

_LOOKS_UP = words("""
    getattr hasattr setattr super type collections.namedtuple enum.Enum enum.IntEnum enum.Flag enum.IntFlag enum.StrEnum
    functools.wraps re.compile re.findall re.finditer re.fullmatch re.match re.search re.split re.sub re.subn
    typing.NamedTuple typing.NewType typing.ParamSpec typing.TypedDict typing.TypeVar""")
"""What looks up names, in what it is given or in its caller: plain only where it is called by its own name."""
_ARE_KINDS = words("type enum.Enum enum.IntEnum enum.Flag enum.IntFlag enum.StrEnum")
_SHADOWED = _LOOKS_UP | NOT_BUILTINS
_MAKES_CLASSES = words("namedtuple NamedTuple TypedDict Enum IntEnum Flag IntFlag StrEnum")
_NAMES = words("__module__ __name__ __qualname__ __author__ __license__")
_CHANGES = words("next append add update pop popleft setdefault insert extend remove discard clear write put send set")
_FLAGS = {
    **{"compile": 1, "split": 3, "sub": 4, "subn": 4},
    **dict.fromkeys(("search", "match", "fullmatch", "findall", "finditer"), 2),
}
"""Which argument of a function of `re` is the flags."""
_MADE_KINDS = {f"typing.{name}" for name in OF["typing"] if name[0].isupper()} - {
    f"typing.{name}" for name in ("NamedTuple", "NewType", "ParamSpec", "TypeVar", "TypedDict", "Generic", "Protocol")
}
"""What keeps what it was asked for, for all who ask."""
_BY_NAME = words("getattr hasattr setattr delattr")
_CHANGERS = words("""
    __init__ __new__ __call__ __post_init__ __setitem__ __delitem__ __setattr__ __enter__ __exit__ __aenter__ __aexit__
    __next__ __anext__ __iadd__ __isub__ __imul__ __iand__ __ior__ __ixor__ __missing__""")
"""Special methods that change something; other code calls all others to look at an object."""
_IDENTITY = words("__eq__ __ne__ __hash__ __repr__")
_OF_TEXTS = {name for kind in (str, bytes, int, float) for name in dir(kind)} - {
    *(name for kind in (list, dict, set, datetime.datetime) for name in dir(kind) if name[0] != "_"),
    *words("real imag numerator denominator __class__ __doc__"),
}
"""Methods of texts and numbers: without a call they show which object they are of, so who made that object."""
_NONE = ast.Constant(None)
_COMPREHENSIONS = ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp
_ANNOTATES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.arg, ast.AnnAssign)
_DEFINED = words("__class_getitem__ __post_init__")
"""Special names that classes may define, besides those that are plain as attributes."""


def unusual(tree: ast.Module, bound: Mapping[str, str], own: Set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of what a file asks for.

    Args:
        bound: what each imported name stands for.
        own: names of the repository's own modules, with dots.
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
        self._modules = {name.rpartition(".")[2] for name in own}
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
        self._imports = {
            name.asname or name.name
            for one in nodes
            if isinstance(one, ast.Import | ast.ImportFrom)
            for name in one.names
        }
        self._stars = "*" in self._imports  # a name may come from anywhere
        self._names = {one.id for one in nodes if isinstance(one, ast.Name)}
        self._plain_here = set[ast.AST]()  # by its own name: called, a base, a decorator
        self._kinds = set[ast.AST]()  # in an annotation, or a base
        self._compared = set[ast.AST]()  # as a kind, or to take a part of it
        self._stored = self._functions.union(
            one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        )
        self._times = Counter(map(_bound_name, nodes))
        self._objects = {one.name for one in nodes if isinstance(one, ast.ClassDef)}
        own = {"object", *self._objects}
        self._objects |= {
            _name(to)
            for one in nodes
            if isinstance(one, ast.Assign) and _name(getattr(one.value, "func", one)) in own
            for to in one.targets
        }
        self._targets = {to for one in nodes if isinstance(one, ast.Assign) for to in one.targets}
        self._selves = {name for one in nodes if isinstance(one, ast.ClassDef) for name in _selves(one)}
        self._variables = {name for one in nodes for name in _local_names(one, None)}
        self._said = set[ast.AST]()  # in a text for people, or copied to a wrapper
        self._local = {name for one in nodes for name in (*_local_names(one, _SHADOWED), *_hashes(one))}
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
            case ast.Assign(targets=[ast.Name(id=to)], value=ast.Attribute(attr=its)):
                self._said.update([node.value] if DUNDER.fullmatch(to) and DUNDER.fullmatch(its) else ())
            case ast.Assign(targets=[ast.Attribute(attr="__name__" | "__doc__" | "__qualname__" | "__module__" as to)]):
                self._said.update([node.value] if getattr(node.value, "attr", "") == to else ())
        decorators = getattr(node, "decorator_list", ())
        self._plain_here.update(one for one in here if one and not (one in decorators and _name(one) in _LOOKS_UP))
        self._kinds.update(
            part for one in filter(None, kinds + here) for part in ast.walk(one) if isinstance(node, _ANNOTATES)
        )
        for one in filter(None, kinds):
            self._compared.update(ast.walk(one) if isinstance(one, ast.Tuple | ast.BinOp | ast.Subscript) else [one])

    def at(self, node: ast.AST) -> Iterator[str]:
        """Yield what one node asks for."""
        match node:
            case ast.Import(names=names):
                for one in names:
                    yield from self._import(one.name, one.asname or one.name.split(".")[0])
            case ast.ImportFrom(module=module, names=[ast.alias(name="*")], level=level):
                yield f"all of {'.' * level}{module or ''}"
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from self._import_from("" if level else str(module), [one.name for one in names])
            case (
                ast.alias(asname=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
            ) if DUNDER.fullmatch(name or "") and node not in self._targets:
                yield f"`{name}` of what is made"
            case ast.Name(id=name, ctx=ast.Load()) if name not in self._bound and node not in self._local:
                if name in NOT_BUILTINS or (DUNDER.fullmatch(name) and name not in BUILTINS | self._stored):
                    yield f"`{name}`"
                yield from word_of(name) if self._stars and not self._times[name] and name not in BUILTINS else ()
                yield from self._handed_on(node, name)
            case ast.Attribute() | ast.Name():
                yield from self._attribute(node)
            case ast.Call():
                yield from self._call(node)
            case ast.Assign(targets=targets, value=value):
                yield from (what for one in targets for what in self._made(one, value))
            case ast.Constant(value=str() as text):
                yield from in_text(text)
            case _:
                yield from self._asserts(node)

    def _asserts(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.MatchClass(cls=kind, patterns=placed, kwd_attrs=names):
                yield from (what for name in names for what in word_of(name))
                if placed and not hasattr(builtins, getattr(kind, "id", "")):
                    yield "parts by their places"
            case ast.Assert(test=test) if any(isinstance(one, ast.NamedExpr) for one in ast.walk(test)):
                yield "whether asserts run"
            case ast.Compare(left=left, comparators=others, ops=ops):
                yield from self._functions_in([left, *others])
                for one, how, other in zip([left, *others], ops, others, strict=False):
                    if isinstance(how, ast.Is | ast.IsNot) and not (self._is_one(one) or self._is_one(other)):
                        yield "whether two values are one object"
            case ast.BinOp(op=ast.Mod(), right=ast.Tuple(elts=values)):
                yield from self._functions_in(values)
            case ast.BinOp(op=ast.Mod(), right=value):
                yield from self._functions_in([value])
            case ast.FormattedValue(value=value, format_spec=how):
                yield from self._functions_in([value])
                yield from zone(
                    "".join(str(one.value) for one in ast.walk(how or _NONE) if isinstance(one, ast.Constant))
                )
            case _:
                yield from self._defines(node)

    def _defines(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._function(node)
            case ast.ClassDef(name=name) if DUNDER.fullmatch(name):
                yield f"`{name}` of what is made"
            case ast.ClassDef(bases=[ast.Name(id="str" | "bytes" | "int" | "float" | "complex")]):
                yield "a text or number of its own kind"
            case ast.alias(name=name, asname=given) if hasattr(builtins, given or name):
                yield f"what `{given or name}` is"  # an import in a function gives no name elsewhere
            case ast.ExceptHandler(type=None, body=[*_, last]) if not isinstance(last, ast.Raise):
                yield "any error"
            case ast.Try(body=body, handlers=[_, *_]):
                inside = [one for part in body for one in ast.walk(part)]
                names = [name.name for one in inside if isinstance(one, ast.Import) for name in one.names]
                names += [f"{one.module or ''}." for one in inside if isinstance(one, ast.ImportFrom)]
                others = (one for one in names if one.split(".")[0] not in sys.stdlib_module_names)
                yield from (f"whether `{one}` can be imported" for one in others)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
        """Yield what a function tells by the moment when it is called, or by what it hands to others."""
        name, parts = node.name, [*ast.walk(node)]
        shown = any(_name(one) in ("property", "cached_property") for one in node.decorator_list)
        if shown or (DUNDER.fullmatch(name) and name in ATTRIBUTES and name not in _CHANGERS):
            called = {getattr(one.func, "id", "") for one in parts if isinstance(one, ast.Call)}
            parts += [one for other in called for function in self._by.get(other, ()) for one in ast.walk(function)]
            yield from [f"when `{name}` is called"] if any(map(_keeps, parts)) else ()
        elif DUNDER.fullmatch(name) and name not in ATTRIBUTES | _DEFINED:
            yield f"when `{name}` is called"
        elif any(isinstance(one, ast.Yield) for one in parts) and not _manages(node):
            ends = [
                part
                for one in parts
                if isinstance(one, ast.Try)
                for end in (*one.finalbody, *(h for h in one.handlers if h.type is None))
                for part in ast.walk(end)
            ]
            inside = [
                one
                for one in parts
                if isinstance(one, ast.With) and _name(getattr(one.items[0].context_expr, "func", one)) != "open"
            ]
            if any(map(_keeps, ends)) or any(isinstance(one, ast.Yield) for part in inside for one in ast.walk(part)):
                yield "when a generator is dropped"

    def _is_one(self, node: ast.AST) -> bool:
        """Whether `is` with this tells nothing of other code: None and the like, a class, an object of this file."""
        if isinstance(node, ast.Constant):
            return node.value is None or isinstance(node.value, bool | type(...))
        if isinstance(node, ast.Call) or getattr(node, "attr", "") == "__class__":
            return not isinstance(node, ast.Call) or (_name(node.func) == "type" and len(node.args) == 1)
        name = _name(node)
        python = self._bound.get(name, "").split(".")[0] in sys.stdlib_module_names or name in self._objects
        return self._times[name] == 1 if python else name in BUILTINS and not self._times[name]

    def _functions_in(self, values: Sequence[ast.AST]) -> Iterator[str]:
        """Yield functions of this file of which code asks whether something else is in their place."""
        names = {getattr(one, "id", "") for one in values if one not in self._variables} & self._defs
        yield from (f"whether `{name}` is another" for name in sorted(names))

    def _import(self, module: str, name: str) -> Iterator[str]:
        first = module.split(".")[0]
        if first not in sys.stdlib_module_names:
            yield from () if first in self._own else [f"`{first}`"]
        elif name not in self._names and module not in OF:  # for other code
            yield f"`{module}`"

    def _import_from(self, module: str, names: Sequence[str]) -> Iterator[str]:
        first = module.split(".")[0]
        other = module and first not in sys.stdlib_module_names | self._own
        yield from [f"`{first}`"] if other else ()
        for name in names:
            if first in sys.stdlib_module_names:
                yield from asked(f"{module}.{name}")
            else:
                through = [f"`{name}` through another module"] if name in sys.stdlib_module_names else ()
                own = name in self._modules
                yield from through or (of_other(f"{module}.{name}") if other else () if own else word_of(name))

    def _attribute(self, node: ast.Attribute | ast.Name) -> Iterator[str]:
        full = full_name(node, self._bound)
        first = full.split(".")[0]
        if first in sys.stdlib_module_names:
            yield from self._of_python(full, node)
            yield from self._handed_on(node, full)
            if full in _MADE_KINDS and node not in self._kinds:
                yield "a kind that is made"
        if first not in sys.stdlib_module_names and isinstance(node, ast.Attribute):
            name = node.attr
            own = isinstance(node.ctx, ast.Store) and node.value in self._selves
            if not own and not (name == "__name__" and node in self._said):
                if name in sys.stdlib_module_names and _name(_root(node)) in self._imports:
                    yield f"`{name}` through another module"
                else:
                    yield from word_of(name) if not full or first in self._own else of_other(full)
            yield from self._own_module(node.value, name, node.lineno) if isinstance(node.ctx, ast.Load) else ()
            yield from self._uncalled(node, name) if isinstance(node.ctx, ast.Load) and node not in self._said else ()
            written = isinstance(node.value, ast.Constant)
            if name in ("format", "format_map", "vformat") and node not in self._plain_here and not written:
                yield f"`{name}` under another name"

    def _uncalled(self, node: ast.Attribute, name: str) -> Iterator[str]:
        """Yield a method that shows which object it is of, or that compares objects as `is` does."""
        called, of = node in self._plain_here, node.value
        if name in _IDENTITY and called:
            if not (isinstance(of, ast.Call) and _name(of.func) == "super" and not of.args):
                yield f"`{name}` of another"
        elif name in _OF_TEXTS and not called and not isinstance(vars(builtins).get(_name(of)), type):
            yield f"`{name}` that is not called"

    def _of_python(self, full: str, node: ast.AST) -> Iterator[str]:
        """Yield what a name of the standard library asks for; a module that nobody here imports tells who did."""
        parts, line = full.split("."), getattr(node, "lineno", 0)
        given = self._bound.get(_name(_root(node)), "").count(".") + 1
        heads = {".".join(parts[:n]) for n in range(given + 1, len(parts) + 1)} & (PACKAGES | OF.keys())
        heads -= {name for name, first, last in self._loaded if first <= line <= last} | {"os.path"}
        yield from (f"whether `{one}` is loaded" for one in sorted(heads))
        yield from asked(full)

    def _own_module(self, of: ast.AST, name: str, line: int) -> Iterator[str]:
        """Yield a module of the project that nobody here imports, which tells who did."""
        full = full_name(of, self._bound)
        known = full and f"{full}.{name}" in self._own
        relative = not full and _name(of) in self._imports and name in self._modules
        loaded = (one for one, first, last in self._loaded if first <= line <= last)
        if (known or relative) and not any(f".{one}".endswith(f".{full}.{name}".replace("..", ".")) for one in loaded):
            yield f"whether `{name}` is loaded"

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
        if full.startswith("re."):
            yield from self._flags(node, _FLAGS.get(name, 9))
        yield from self._by_name(name, node)
        yield from _arguments(name, node.args, {one.arg: one.value for one in node.keywords})
        if name in _BY_NAME and (len(node.args) < 2 or any(isinstance(one, ast.Starred) for one in node.args)):
            yield f"more arguments of `{name}`"
        if name == "super" and node.args and [*node.args, _NONE][1] not in self._selves:
            yield "`super` of another"
        if name == "__setattr__" and not all(isinstance(one, ast.Constant) for one in node.args[-2:-1]):
            yield "`__setattr__` of a name that is made"
        if name in _MAKES_CLASSES and not all(
            _is_written(one) or getattr(one, "id", "") in self._known for one in node.args[1:2]
        ):
            yield f"`{name}` of names that are made"
        if name in ("repr", "str", "format", "hash", "ascii"):
            yield from self._functions_in(node.args)
        if _name(func) == "format" and node.args[1:]:
            yield from zone(str(getattr(node.args[1], "value", "%s")))
        if (name == "replace" and len(node.args) == 1 and not node.keywords) or (
            name == "group" and not node.args and self._has("pathlib", "Path")
        ):
            yield f"`{name}` of a path"  # of texts and matches they have other arguments, or no path is near
        if name in ("property", "cached_property") and not all(
            isinstance(one, ast.Lambda) or self._is_def(one) for one in node.args
        ):
            yield f"`{name}` of what is no function here"

    def _flags(self, node: ast.Call, nth: int) -> Iterator[str]:
        """Yield flags that are made: a call with 0.0, say, only succeeds where the expression was compiled before."""
        given = [*node.args[nth:], *(one.value for one in node.keywords if one.arg in ("flags", None))]
        starred = any(isinstance(one, ast.Starred) for one in node.args)
        parts = [part for one in given for part in ast.walk(one) if isinstance(part, ast.expr)]
        named = (
            full_name(one, self._bound).startswith("re.") or one.id == "re"
            for one in parts
            if isinstance(one, ast.Name)
        )
        kinds = ast.Attribute | ast.BinOp | ast.Name
        fixed = all(isinstance(one, kinds) or type(getattr(one, "value", "")) is int for one in parts)
        if starred or not fixed or not all(named):
            yield "flags that are made"

    def _by_name(self, name: str, node: ast.Call) -> Iterator[str]:
        """Yield the names that a call looks up, or that they are made."""
        match name, node.args:
            case _, [of, ast.Constant(value=str() as word), *_] if name in _BY_NAME:
                full = full_name(of, self._bound)
                python = full.split(".")[0] in sys.stdlib_module_names
                yield from self._of_python(f"{full}.{word}", of) if python else word_of(word)
                yield from self._own_module(of, word, node.lineno)
                if name == "setattr" and DUNDER.fullmatch(word):
                    yield f"`{word}` of another"
            case _, [of, made, *_] if name in _BY_NAME:
                known = self._known.get(getattr(made, "id", ""))
                yield from (what for word in sorted(known or ()) for what in word_of(word))
                if known is None:
                    yield f"`{name}` of {full_name(of, self._bound) or 'a name that is made'}"
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
        names = name == "__all__" and _are_names(value)
        if names or name in ("__slots__", "__version__") or not DUNDER.fullmatch(name):
            return
        if name not in ATTRIBUTES | _NAMES or (name == "__class__" and isinstance(target, ast.Attribute)):
            yield f"`{name}` of another"
            return
        same = getattr(value, "attr", getattr(value, "id", ""))
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        if not (same == name or DUNDER.fullmatch(same) or all(self._is_def(one) for one in parts)):
            yield f"`{name}` of what is made"


def _arguments(name: str, given: Sequence[ast.expr], named: Mapping[str | None, ast.expr]) -> Iterator[str]:
    """Yield the arguments by which a call asks for its callers, or for more than its name says."""
    starred = name in ("wraps", "warn", "type") and (None in named or any(isinstance(o, ast.Starred) for o in given))
    if starred or (name == "wraps" and (given[1:] or named.keys() - {"wrapped"})):
        yield f"more arguments of `{name}`"
    elif name == "type" and given[1:]:
        yield "`type` of a new class"
    level = given[2] if name == "warn" and given[2:] else named.get("stacklevel")
    if level is not None and getattr(level, "value", 0) not in (1, 2):
        yield "`stacklevel=`"


def _manages(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a generator is a context manager, which nothing drops."""
    above = {getattr(one, "attr", _name(one)) for one in node.decorator_list}
    return bool(above & {"contextmanager", "asynccontextmanager"})


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", ""))


def _root(node: ast.AST) -> ast.AST:
    """Return what the attributes of a name with dots are of."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


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


def _is_written(node: ast.AST) -> bool:
    """Whether the names of a new class's parts are written down, alone or with their kinds."""
    if isinstance(node, ast.Tuple | ast.List) and node.elts:
        pair = isinstance(node, ast.Tuple) and len(node.elts) == 2
        return all(map(_is_written, node.elts[: 1 if pair else None]))
    if isinstance(node, ast.Dict):
        return all(map(_is_written, filter(None, node.keys)))
    return isinstance(node, ast.Constant)


def _are_names(node: ast.AST) -> bool:
    """Whether names that a module exports are written down, or those of other modules."""
    if isinstance(node, ast.BinOp):
        return _are_names(node.left) and _are_names(node.right)
    if isinstance(node, ast.List | ast.Tuple):
        return all(isinstance(one, ast.Constant) for one in node.elts)
    return isinstance(node, ast.Attribute) and node.attr == "__all__"


def _local_names(node: ast.AST, among: Set[str] | None) -> Iterator[ast.AST]:
    """Yield where a function uses its own parameters and variables; with `among`, only parameters with these names.

    It yields none where the function holds a class, and none of a name that is deleted: they may stand for another.
    """
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | _COMPREHENSIONS):
        return
    held = getattr(node, "body", None) or [*ast.iter_child_nodes(node)]  # defaults and decorators are not inside
    inside = [one for part in (held if isinstance(held, list) else [held]) for one in ast.walk(part)]
    arguments = getattr(node, "args", _NONE)
    given = {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)}
    stored = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    given = given | stored if among is None else given & among
    given -= {name for one in inside if isinstance(one, ast.Global) for name in one.names}
    given -= {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Del)}
    if given and not any(isinstance(one, ast.ClassDef) for one in inside):
        yield from (one for one in inside if isinstance(one, ast.Name) and one.id in given)


def _selves(kind: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield where methods name their own object."""
    for method in kind.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            first = [one.arg for one in (*method.args.posonlyargs, *method.args.args)][:1]
            yield from (one for one in ast.walk(method) if isinstance(one, ast.Name) and one.id in first)


def _hashes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield where the hash of an object is that of its parts."""
    if isinstance(node, ast.FunctionDef) and node.name == "__hash__":
        returned = (one.value for one in node.body if isinstance(one, ast.Return))
        yield from (one.func for one in returned if isinstance(one, ast.Call))


def _bound_name(node: ast.AST) -> str:
    """Return the name that a node gives to something; that of an attribute, too, as another module may give it."""
    match node:
        case ast.arg(arg=name) | ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
            return name
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
            return name
        case ast.alias(asname=str() as name) | ast.alias(name=name):
            return name
        case ast.ExceptHandler(name=str() as name) | ast.ClassDef(name=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
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
