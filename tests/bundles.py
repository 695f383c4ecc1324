"""Bundles that no machine can unpack, made byte by byte: each with what its owner has to be told."""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
from collections.abc import Iterable

from allpass.archive import tar_gz


def code(script: str = "print('hello')", name: str = "train.py") -> bytes:
    """A bundle of one script."""
    return tar_gz([(name, script.encode())])


def tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as made:
        for info, content in entries:
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def file(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info, b""


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def pax(name: str, **records: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.pax_headers = records
    return info, b"x"


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    return gzip.compress(tar([file("train.py"), *entries]), mtime=0)


def _damaged_header() -> bytes:
    whole = bytearray(tar([file("train.py"), file("b.py")]))
    whole[1024 + 5] ^= 0xFF
    return bytes(whole)


def _header(size: bytes, kind: bytes = b"0", name: bytes = b"b.py") -> bytes:
    header = bytearray(tar([file("b.py", b"")])[:512])
    header[: len(name)], header[124:136], header[156:157], header[148:156] = name, size, kind, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _with_size_field(size: bytes, kind: bytes = b"0") -> bytes:
    return tar([file("train.py")])[:1024] + _header(size, kind)


def _bomb() -> bytes:
    """Sixteen files of 100 MB of nothing: as gzip some 7 MB."""
    size = 10**8
    nothing = gzip.compress(bytes(-(-size // 512) * 512), compresslevel=1, mtime=0)
    headers = [gzip.compress(_header(b"%011o\0" % size, name=b"b%02d.py" % number), mtime=0) for number in range(16)]
    return gzip.compress(tar([file("train.py")])[:1024], mtime=0) + b"".join(header + nothing for header in headers)


# By name: the bytes, what the service says, and whether a machine cannot unpack it either.
BAD: dict[str, tuple[bytes, str, bool]] = {
    "a file and a folder": (packed(file("a"), folder("a")), "a file and a folder at once", True),
    "a folder and a file": (packed(folder("a"), file("a")), "a file and a folder at once", True),
    "beneath a file": (packed(file("a"), file("a/b/c.py")), "a is a file", True),
    "a folder beneath a file": (packed(file("a"), folder("a/b")), "a is a file", True),
    "above a file": (packed(file("a/b/c.py"), file("a/b")), "a file and a folder at once", True),
    "a long name": (packed(file("n" * 300)), "longer than 255 bytes", True),
    "a long path": (packed(file("/".join(["ab"] * 1700))), "longer than 1024 bytes", True),
    "no name": (packed(file("")), "a file needs a name", True),
    "a dot": (packed(file(".")), "a file needs a name", True),
    "dots": (packed(file("./.")), "a file needs a name", True),
    "two dots": (packed(file("../train.py")), "would leave the job's folder", True),
    "two dots within": (packed(folder("a/../../b")), "would leave the job's folder", True),
    "an absolute path": (packed(file("/etc/cron.d/x")), "would leave the job's folder", True),
    "a link": (packed(special("a", tarfile.SYMTYPE, "/etc")), "a link cannot be sent", True),
    "a long link": (packed(special("a", tarfile.SYMTYPE, "b" * 300)), "a link cannot be sent", True),
    "a hard link": (packed(special("a", tarfile.LNKTYPE, "train.py")), "a hard link cannot be sent", True),
    "a device": (packed(special("a", tarfile.CHRTYPE)), "a device cannot be sent", True),
    "a pipe": (packed(special("a", tarfile.FIFOTYPE)), "a named pipe cannot be sent", True),
    "an unknown type": (packed(special("a", b"Z")), "of type b'Z' cannot be sent", False),
    "a sparse file": (packed(special("a", tarfile.GNUTYPE_SPARSE)), "of type b'S' cannot be sent", True),
    "told as sparse": (packed(pax("a", **{"GNU.sparse.major": "1"})), "a sparse file", False),
    "twice": (packed(file("a.py"), file("a.py")), "in the bundle twice", False),
    "twice in other words": (packed(file("a.py"), file("./a.py")), "in the bundle twice", False),
    "not UTF-8": (packed(file("\udcff.py")), "not valid UTF-8", False),
    "a line break": (packed(file("a\nb.py")), "a line break", False),
    "a backslash": (packed(file("a\\b.py")), "a backslash", True),
    "a NUL": (packed(pax("a", path="a\0b.py")), "a line break", True),
    "a cut gzip": (code("x" * 9_000)[:-3_000], "no end", True),
    "a damaged gzip": (gzip.compress(b"", mtime=0)[:10] + b"\xff" * 40, "cannot be decompressed", True),
    "a cut tar": (tar([file("train.py"), file("b.py", b"x" * 2000)])[:2600], "in the middle of a member", True),
    "a damaged header": (_damaged_header(), "a header in it is damaged", False),
    "a negative size": (_with_size_field(b"\xff" * 12), "a header in it is damaged", True),
    "a size that is none": (_with_size_field(b"12x45678901\0"), "a header in it is damaged", False),
    "a huge size": (_with_size_field(b"\x80" + b"\xff" * 11), "unpacks to more than", True),
    "a huge header": (_with_size_field(b"%011o\0" % 2**30, b"x"), "a header of 1073741824 bytes", True),
    "a bomb": (_bomb(), "unpacks to more than", False),
    "text": (b"print('hello')", "in the middle of a member", True),
    "nothing but text": (b"print('hello')\n" * 100, "a header in it is damaged", True),
    "bzip2": (bz2.compress(tar([file("train.py")])), "in the middle of a member", False),
}
# What looks odd and can be unpacked everywhere.
GOOD: dict[str, bytes] = {
    "as the SDK packs": code(),
    "not compressed": tar([file("train.py")]),
    "without an end": tar([file("train.py")])[:1024],
    "of two gzip streams": gzip.compress(tar([file("train.py")])[:1024]) + gzip.compress(bytes(1024)),
    "with what follows its end": tar([file("train.py")]) + b"whatever",
    "from the current folder": packed(folder("."), folder("./"), file("./a.py")),
    "names by case": packed(file("A.py"), file("a.py")),
    "folders twice": packed(folder("a"), folder("a/"), file("a/b.py")),
    "names of all alphabets": packed(file("模型/ünï.py"), file("a b.py"), file("🙂.py")),
    "long names": packed(file("n" * 255), file("/".join(["d" * 100] * 9) + "/x.py")),
    "of GNU": tar([file("train.py"), file("n" * 200)], form=tarfile.GNU_FORMAT),
    "of ustar": tar([file("train.py"), file("d" * 90 + "/" + "n" * 90)], form=tarfile.USTAR_FORMAT),
    "with a global header": tar([(pax("train.py", comment="x"))]),
}
