"""Which members a tar has, read from its bytes as they come: no file is written, and little is held in memory.

The standard library reads whole extended headers into memory and follows what they say of sparse files; this reads what
strangers send. Everything but files and folders is refused with words for its owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allpass.members import MOST_UNPACKED_BYTES, BadMember

BLOCK_BYTES = 512
LARGEST_HEADER_BYTES = 64 * 1024  # of names, in front of the header that they belong to
_FILES, _FOLDER = frozenset({b"0", b"\0", b"7"}), b"5"
_EXTENDED, _GLOBAL, _LONG_NAME = b"x", b"g", b"L"
_KINDS = {b"1": "a hard link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a named pipe", b"K": "a link"}
_NOT_A_TAR = "pack it again, as a tar.gz"


@dataclass(frozen=True, slots=True)
class TarMember:
    path: str
    size_bytes: int
    is_folder: bool


class TarMembers:
    """Fed with the bytes of a tar, in order. `done` once its end was seen: what follows that is nobody's."""

    def __init__(self) -> None:
        self.done = False
        self._buffer = bytearray()
        self._skip_bytes = 0  # of a file's content
        self._left_bytes = 2 * MOST_UNPACKED_BYTES  # headers count, too: there may be many in front of one member
        self._path: str | None = None  # told by a header in front, of the member that comes
        self._size: int | None = None

    def feed(self, data: bytes) -> Iterator[TarMember]:
        """Members whose header is complete by now. Raises BadMember."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise BadMember(None, "is mostly headers, of more bytes than files may have", _NOT_A_TAR)
        self._buffer += data
        while not self.done:
            skipped = min(self._skip_bytes, len(self._buffer))
            del self._buffer[:skipped]
            self._skip_bytes -= skipped
            if self._skip_bytes or len(self._buffer) < BLOCK_BYTES:
                return
            block = bytes(self._buffer[:BLOCK_BYTES])
            if not block.strip(b"\0"):
                self.done = True
                return
            size = _size_of(block)
            kind = block[156:157]
            if kind in (_EXTENDED, _GLOBAL, _LONG_NAME):
                whole = BLOCK_BYTES + _padded(_bounded(size))
                if len(self._buffer) < whole:
                    return
                self._take_header(kind, bytes(self._buffer[BLOCK_BYTES : BLOCK_BYTES + size]))
                del self._buffer[:whole]
            else:
                del self._buffer[:BLOCK_BYTES]
                yield self._member(block, kind, size)

    def finish(self) -> None:
        """No more bytes will come. Raises BadMember where a member is not whole."""
        if not self.done and (self._skip_bytes or self._buffer or self._path is not None):
            raise BadMember(None, "is not a whole tar: it ends in the middle of a member", _NOT_A_TAR)

    def _take_header(self, kind: bytes, content: bytes) -> None:
        if kind == _LONG_NAME:
            self._path = _text(content.rstrip(b"\0"))
        elif kind == _EXTENDED:
            for name, value in _records(content):
                if name.startswith(b"GNU.sparse"):
                    raise BadMember(self._path, "a sparse file cannot be sent", "pack it as an ordinary one")
                if name == b"path":
                    self._path = _text(value)
                if name == b"size":
                    self._size = _number(value, 10)

    def _member(self, block: bytes, kind: bytes, size: int) -> TarMember:
        path = _name_in(block) if self._path is None else self._path
        size = size if self._size is None else self._size
        self._path = self._size = None
        is_folder = kind == _FOLDER or (kind == b"\0" and path.endswith("/"))
        if not is_folder and kind not in _FILES:
            what = _KINDS.get(kind, f"an entry of type {kind!r}")
            raise BadMember(
                path, f"{what} cannot be sent, only files and folders", "pack what it points to, or leave it out"
            )
        self._skip_bytes = 0 if is_folder else _padded(size)
        return TarMember(path, 0 if is_folder else size, is_folder)


def _size_of(block: bytes) -> int:
    """The size field, of a header whose checksum is right."""
    told = _number(block[148:156].replace(b"\0", b" "), 8)
    plain = block[:148] + b" " * 8 + block[156:]
    if told not in (sum(plain), sum(byte - 256 if byte > 127 else byte for byte in plain)):  # old ones count signed
        raise BadMember(None, "is not a whole tar: a header in it is damaged", _NOT_A_TAR)
    size = block[124:136]
    if size[0] == 0x80:  # a large one, in binary
        return int.from_bytes(size[1:], "big")
    return _number(size.replace(b"\0", b" "), 8)


def _number(text: bytes, base: int) -> int:
    digits = text.strip()
    if not digits:
        return 0
    if len(digits) > 20 or not digits.isdigit():
        raise BadMember(None, "is not a whole tar: a header in it is damaged", _NOT_A_TAR)
    try:
        return int(digits, base)
    except ValueError:
        raise BadMember(None, "is not a whole tar: a header in it is damaged", _NOT_A_TAR) from None


def _bounded(size: int) -> int:
    if size > LARGEST_HEADER_BYTES:
        raise BadMember(None, f"has a header of {size} bytes for one name", "shorten the name")
    return size


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each `LENGTH NAME=VALUE` with a line break at its end, the length counting all of it."""
    while content.strip(b"\0"):
        length, space, _ = content.partition(b" ")
        size = _number(length, 10)
        record, content = content[:size], content[size:]
        name, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not space or not equals or not record.endswith(b"\n"):
            raise BadMember(None, "is not a whole tar: a header in it is damaged", _NOT_A_TAR)
        yield name, value


def _name_in(block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
