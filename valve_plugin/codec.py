"""Convert records to bytes and back: canonical JSON, content hashes, strict decoding."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from threading import Lock
from typing import Any, TypeVar

import msgspec

from valve_plugin.errors import RecordError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder(order="sorted")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_LOCK = Lock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a record or plain value: sorted keys, no spaces, UTF-8, no NaN.

    Equal values give equal bytes on every machine, which is what hashes and ledgers rest on.

    Raises:
        RecordError: a string holds a lone surrogate, or a value has no JSON form.
    """
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError) as e:
        raise RecordError(f"cannot be written as JSON: {e}") from e


def pretty(value: Any) -> bytes:
    """Return sorted, two-space indented JSON ending in a newline: the form made for `git diff`."""
    return msgspec.json.format(canonical(value), indent=2) + b"\n"


def digest(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of a value's canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 (64 hex digits) of bytes."""
    return hashlib.sha256(data).hexdigest()


def decode(data: bytes | str, type_: type[T], *, where: str) -> T:
    """Decode JSON into `type_`, refusing unknown keys, wrong types, bad UTF-8 and absurd nesting.

    Args:
        type_: a record class, or any type msgspec knows.
        where: what is being read, for the message: a file name, with a line where there is one.

    Raises:
        RecordError: with `where` and the path inside the document.
    """
    try:
        return _decoder(type_).decode(data)  # type: ignore[no-any-return]
    except UnicodeDecodeError as e:
        raise RecordError(f"{where}: not UTF-8 text; is it the right file?") from e
    except (msgspec.MsgspecError, RecursionError) as e:
        raise RecordError(f"{where}: {e or type(e).__name__}") from e


def decode_once(data: bytes | str, type_: type[T], *, where: str) -> T:
    """`decode` JSON from a model or a person and refuse repeated keys, of which one value would be lost.

    Raises:
        RecordError: as `decode`; or an object has a key twice.
    """
    value = decode(data, type_, where=where)
    try:
        key = repeated_key(data)
    except RecursionError as e:
        raise RecordError(f"{where}: nested too deeply") from e
    if key is not None:
        raise RecordError(f"{where}: the key {key[:80]!r} is given twice in one object; keep one of the two")
    return value


def repeated_key(data: bytes | str) -> str | None:
    """Return the first key that an object in the JSON text has twice, or None."""
    found: list[str] = []

    def find_repeats(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            found.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)

    json.loads(data, object_pairs_hook=find_repeats, parse_int=len, parse_float=len)  # numbers are not converted
    return found[0] if found else None


def convert(value: Any, type_: type[T], *, where: str) -> T:
    """Turn plain Python data (from TOML, YAML, a data set) into `type_`, as strictly as `decode`."""
    _decoder(type_)
    try:
        return msgspec.convert(value, type_, strict=True)
    except (msgspec.MsgspecError, RecursionError) as e:
        raise RecordError(f"{where}: {e}") from e


def text_of(data: bytes) -> str:
    """Return the text of a file that a person wrote.

    Raises:
        RecordError: it is not UTF-8; the message says where.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        binary = "a binary file: " if b"\0" in data else ""
        raise RecordError(f"{binary}not UTF-8 text at byte {e.start + 1}; save it as UTF-8") from e


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        RecordError: it is not UTF-8, or not TOML.
    """
    text = text if isinstance(text, str) else text_of(text)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as e:  # also a number of thousands of digits
        raise RecordError(f"not valid TOML: {e}; correct it there") from e


def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    """Return the type's decoder, created under a lock.

    msgspec reads a record's fields on first use. If two threads do this at the same time, the process crashes (seen
    with 0.22).
    """
    found = _decoders.get(type_)
    if found is None:
        with _LOCK:
            found = _decoders.setdefault(type_, msgspec.json.Decoder(type_, strict=True))
    return found


def plain(value: Any) -> Any:
    """Turn a record into dicts, lists, strings and numbers."""
    return msgspec.to_builtins(value)
