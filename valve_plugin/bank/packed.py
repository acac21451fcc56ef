"""Compressed files that are equal when their contents are: gzip without a time stamp, read with a limit."""

from __future__ import annotations

import zlib
from pathlib import Path

from valve_plugin.bank.files import read_limited
from valve_plugin.errors import BankError

_GZIP = 31  # zlib window bits for a gzip file; unlike the gzip module, without a time stamp
_MAX_PACKED, _MAX_UNPACKED = 1 << 28, 1 << 30


def pack(data: bytes) -> bytes:
    """Return gzip bytes that depend on nothing but `data`."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    return packer.compress(data) + packer.flush()


def unpack(path: Path, what: str) -> bytes:
    """Read a file that `pack` made.

    Raises:
        BankNotFoundError: there is no such file.
        BankError: it is damaged, truncated, or unpacks to more than a gigabyte.
    """
    unpacker = zlib.decompressobj(_GZIP)
    try:
        data = unpacker.decompress(read_limited(path, _MAX_PACKED, what), _MAX_UNPACKED)
    except zlib.error as e:
        raise BankError(f"{path}: damaged {what}: {e}; delete it") from e
    if not unpacker.eof:
        raise BankError(f"{path}: truncated, or unpacks to more than {_MAX_UNPACKED} bytes; delete it")
    return data
