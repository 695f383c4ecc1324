"""A tar.gz whose bytes depend on nothing but names and contents.

The standard library's `tarfile` and `zlib` change their output between versions and builds (header fields, zlib-ng),
which would give the same code different hashes on two machines. So the few bytes of framing are written here: POSIX
headers with no owner, time or mode of their own, and gzip with stored blocks. Code is small: the hash being stable
is worth more than the compression. Anything that reads tar.gz reads this.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

_BLOCK = 512
_LARGEST_STORED = 0xFFFF
_LARGEST_OCTAL_SIZE = 8**11 - 1


def tar_gz(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Pack (path, content) pairs, in the order given. Paths are relative, `/` separated and unique."""
    parts = []
    for path, content in files:
        parts.append(_entry(path, content))
    parts.append(b"\0" * (2 * _BLOCK))
    return _gzip(b"".join(parts))


def packed_size(files: Iterable[tuple[str, int]]) -> int:
    """How many bytes `tar_gz` gives for these (path, content length) pairs."""
    tar_bytes = 2 * _BLOCK
    for path, length in files:
        extended = _extended(path)
        tar_bytes += _BLOCK + _padded(length) + (_BLOCK + _padded(len(extended)) if extended else 0)
    blocks = -(-tar_bytes // _LARGEST_STORED)
    return 10 + 5 * blocks + tar_bytes + 8


def _entry(path: str, content: bytes) -> bytes:
    extended = _extended(path)
    name = path.encode("utf-8")
    if not extended:
        return _header(name, len(content), b"0") + _fill(content)
    short = path.encode("ascii", "replace")[:100]
    return (
        _header(b"././@PaxHeader", len(extended), b"x")
        + _fill(extended)
        + _header(short, len(content), b"0")
        + _fill(content)
    )


def _extended(path: str) -> bytes:
    """The pax record for a path that a plain header cannot hold, else nothing."""
    if path.isascii() and len(path) <= 100:
        return b""
    body = b" path=" + path.encode("utf-8") + b"\n"
    length = len(body) + 1
    while len(str(length)) + len(body) != length:  # the record's length counts its own digits
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    if size > _LARGEST_OCTAL_SIZE:
        raise ValueError(f"a member of {size} bytes does not fit a POSIX header")
    fields = (
        name.ljust(100, b"\0")
        + b"0000644\0"  # mode: who may execute is not content, and Windows does not know it
        + b"0000000\0" * 2  # uid, gid
        + b"%011o\0" % size
        + b"00000000000\0"  # mtime
        + b" " * 8  # checksum, as it is counted
        + kind
        + b"\0" * 100  # link name
        + b"ustar\x0000"
        + b"\0" * 64  # owner and group names
        + b"0000000\0" * 2  # device numbers
        + b"\0" * 167  # name prefix and padding
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _fill(content: bytes) -> bytes:
    return content + b"\0" * (_padded(len(content)) - len(content))


def _padded(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


def _gzip(data: bytes) -> bytes:
    parts = [b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"]  # no name, no time, no operating system
    view = memoryview(data)
    for start in range(0, len(data), _LARGEST_STORED):
        piece = view[start : start + _LARGEST_STORED]
        last = start + _LARGEST_STORED >= len(data)
        parts.append(struct.pack("<BHH", int(last), len(piece), len(piece) ^ 0xFFFF))
        parts.append(bytes(piece))
    parts.append(struct.pack("<LL", zlib.crc32(data), len(data) & 0xFFFFFFFF))
    return b"".join(parts)
