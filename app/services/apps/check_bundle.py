"""Whether machines can unpack a code bundle, and run what it is to begin with: found before it is registered, so that
no machine is rented, and none is blamed, for what no machine can do."""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator

from allpass.members import BadMember, Members, shown
from app.errors import InvalidInput, TooLarge
from app.ports.objects import ObjectInfo, ObjectStore
from app.services.apps.tar_members import TarMembers

READ_BYTES = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS
_MOST_KNOWN = 4096
_SCRIPTS_TOLD = 5
_PARAM = "bundle_sha256"


class BundleChecks:
    """One per process. Each bundle is read once for each entrypoint, as long as it is remembered; few at a time."""

    def __init__(self, *, max_bytes: int, at_once: int = 2) -> None:
        self._max_bytes = max_bytes
        self._turns = asyncio.Semaphore(at_once)
        self._good: OrderedDict[tuple[str, str], None] = OrderedDict()  # by content, whosever it is, and entrypoint

    async def check(self, objects: ObjectStore, bundle: ObjectInfo, entrypoint: str) -> None:
        """Raises InvalidInput naming the member that cannot be unpacked, or the entrypoint (if there is to be one) that
        is not among them; TooLarge; and what the store raises."""
        known = bundle.sha256, entrypoint
        if known in self._good:
            self._good.move_to_end(known)
            return
        if bundle.size_bytes > self._max_bytes:
            raise TooLarge(
                f"{_PARAM}: the bundle has {bundle.size_bytes} bytes, and {self._max_bytes} is the most; leave data "
                "and models out of it and fetch them from the script",
                param=_PARAM,
            )
        async with self._turns:
            try:
                members = await members_of(_blocks(objects, bundle))
            except BadMember as error:
                what = "the bundle" if error.path is None else "the bundle's member"
                raise InvalidInput(f"{_PARAM}: {what} {error}; {error.fix}", param=_PARAM) from None
        if entrypoint and entrypoint not in members.files:
            raise InvalidInput(
                f"entrypoint: {shown(entrypoint)} is not in the bundle; {_there(members)}", param="entrypoint"
            )
        self._good[known] = None
        if len(self._good) > _MOST_KNOWN:
            self._good.popitem(last=False)


async def members_of(blocks: AsyncIterator[bytes]) -> Members:
    """What a tar or tar.gz unpacks to. Raises BadMember."""
    members, tar, unpack = Members(), TarMembers(), _Unpack()
    async for block in blocks:
        await asyncio.to_thread(_take, block, members, tar, unpack)
        if tar.done:
            return members
    unpack.finish()
    tar.finish()
    return members


def _take(block: bytes, members: Members, tar: TarMembers, unpack: _Unpack) -> None:
    for data in unpack.feed(block):
        for member in tar.feed(data):
            if member.is_folder:
                members.add_folder(member.path)
            else:
                members.add_file(member.path, member.size_bytes)
        if tar.done:
            return


class _Unpack:
    """gzip undone piece by piece, no piece larger than `READ_BYTES`; what is not gzip stays as it is."""

    def __init__(self) -> None:
        self._stream: zlib._Decompress | None = None
        self._begun = self._plain = False

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Raises BadMember."""
        if not self._begun:
            self._begun, self._plain = True, not block.startswith(_GZIP_MAGIC)
        if self._plain:
            yield block
            return
        while block:
            if self._stream is None or self._stream.eof:  # several streams in a row are one file
                block = block.lstrip(b"\0") if self._stream is not None else block
                if not block:
                    return
                self._stream = zlib.decompressobj(_WITH_GZIP_HEADER)
            try:
                yield self._stream.decompress(block, READ_BYTES)
            except zlib.error:
                raise BadMember(None, "is damaged: it cannot be decompressed as gzip", "pack it again") from None
            block = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def finish(self) -> None:
        """No more bytes will come. Raises BadMember."""
        if self._stream is not None and not self._stream.eof:
            raise BadMember(None, "is not whole: its gzip stream has no end", "pack it again, and send all of it")


async def _blocks(objects: ObjectStore, bundle: ObjectInfo) -> AsyncIterator[bytes]:
    for start in range(0, bundle.size_bytes, READ_BYTES):
        yield await objects.get(bundle.key, start=start, end=min(start + READ_BYTES, bundle.size_bytes))


def _there(members: Members) -> str:
    scripts = sorted(path for path in members.files if path.endswith((".py", ".sh")))
    if not scripts:
        return "it has no script" if members.files else "it is empty, or no tar"
    more = f" and {len(scripts) - _SCRIPTS_TOLD} more" if len(scripts) > _SCRIPTS_TOLD else ""
    return f"it has {', '.join(map(shown, scripts[:_SCRIPTS_TOLD]))}{more}"
