"""A bundle that no machine can unpack is found where it is registered, and named in its owner's words."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.members import BadMember
from app.errors import InvalidInput, TooLarge
from app.ports.objects import ObjectInfo, ObjectStore, content_key
from app.services.apps import check_bundle
from app.services.apps.check_bundle import BundleChecks, members_of
from app.storage.directory import DirectoryStore
from app.system import SystemClock
from tests.bundles import BAD, GOOD, code, file, tar

_PROJECT = "proj_a"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return DirectoryStore(tmp_path, "http://objects", "k" * 32, max_object_bytes=2**30, clock=SystemClock())


async def stored(store: ObjectStore, data: bytes) -> ObjectInfo:
    sha256 = hashlib.sha256(data).hexdigest()
    return await store.put(content_key(_PROJECT, sha256), data, sha256=sha256)


async def _in_parts(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("name", BAD)
async def test_what_no_machine_can_unpack_is_refused_in_words(store: ObjectStore, name: str) -> None:
    """422 with the member, what is wrong with it, and what to do; never an error of another kind."""
    data, says, _ = BAD[name]
    bundle = await stored(store, data)
    with pytest.raises(InvalidInput) as refused:
        await BundleChecks(max_bytes=2**27).check(store, bundle, "train.py")
    assert says in refused.value.message
    assert refused.value.param == "bundle_sha256"
    assert len(refused.value.message) < 400
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("name", GOOD)
async def test_what_can_be_unpacked_is_taken(store: ObjectStore, name: str) -> None:
    """Of every kind of tar, compressed as gzip or not."""
    await BundleChecks(max_bytes=2**27).check(store, await stored(store, GOOD[name]), "train.py")


@pytest.mark.parametrize(
    ("bundle", "entrypoint", "says"),
    [
        (code(), "main.py", "it has train.py"),
        (code(name="a/run.sh"), "run.sh", "it has a/run.sh"),
        (code(name="data.csv"), "train.py", "it has no script"),
        (b"", "train.py", "it is empty, or no tar"),
        (tar([]), "train.py", "it is empty, or no tar"),
        (tar([file(f"{n}.py") for n in range(9)]), "train.py", "0.py, 1.py, 2.py, 3.py, 4.py and 4 more"),
    ],
)
async def test_the_entrypoint_is_in_the_bundle(store: ObjectStore, bundle: bytes, entrypoint: str, says: str) -> None:
    """Else no machine could begin."""
    with pytest.raises(InvalidInput, match=r"entrypoint: ") as refused:
        await BundleChecks(max_bytes=2**20).check(store, await stored(store, bundle), entrypoint)
    assert says in refused.value.message
    assert refused.value.param == "entrypoint"


async def test_content_that_is_no_bundle_is_not_read(store: ObjectStore) -> None:
    """What was stored as a checkpoint may be as large as a disk."""
    bundle = await stored(store, code())
    with pytest.raises(TooLarge, match="100 is the most"):
        await BundleChecks(max_bytes=100).check(store, bundle, "train.py")


async def test_a_bundle_is_read_once(store: ObjectStore) -> None:
    """Its content never changes: the same one, with the same entrypoint, is known to be good."""
    bundle, checks = await stored(store, code()), BundleChecks(max_bytes=2**20)
    await checks.check(store, bundle, "train.py")
    await store.delete(bundle.key)
    await checks.check(store, bundle, "train.py")
    with pytest.raises(InvalidInput):
        await checks.check(store, await stored(store, code()), "main.py")


async def test_what_is_known_is_bounded(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used is read again."""
    monkeypatch.setattr(check_bundle, "_MOST_KNOWN", 2)
    checks = BundleChecks(max_bytes=2**20)
    for number in range(5):
        await checks.check(store, await stored(store, code(str(number))), "train.py")
    assert len(checks._good) == 2


async def test_members_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them take some megabytes as gzip."""
    monkeypatch.setattr("allpass.members.MOST_MEMBERS", 1_000)
    header = bytearray(tar([file("a", b"")])[:512])

    async def endless() -> AsyncIterator[bytes]:
        for number in range(1_001):
            header[:10] = b"f%09d" % number
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            yield bytes(header)

    with pytest.raises(BadMember, match="more than 1000"):
        await members_of(endless())


async def test_headers_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In front of one member there may be many; all of them count."""
    monkeypatch.setattr("app.services.apps.tar_members.MOST_UNPACKED_BYTES", 10_000)
    header = bytearray(tar([file("a", b"")])[:512])
    header[124:136], header[156:157], header[148:156] = b"%011o\0" % 0, b"g", b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(BadMember, match="mostly headers"):
        await members_of(_in_parts(gzip.compress(bytes(header) * 1_000), 100))


@given(st.sampled_from(sorted(GOOD)), st.integers(2, 700))  # its first two bytes tell whether it is gzip
@settings(max_examples=15)
async def test_pieces_of_any_size_give_the_same_members(name: str, size: int) -> None:
    """However the bytes are cut."""
    whole = await members_of(_in_parts(GOOD[name], 2**20))
    cut = await members_of(_in_parts(GOOD[name], size))
    assert (cut.files, cut.folders) == (whole.files, whole.folders)
    assert "train.py" in cut.files


@given(st.sampled_from(sorted(GOOD)), st.data())
@settings(max_examples=80)
async def test_damage_is_a_refusal_or_nothing(name: str, data: st.DataObject) -> None:
    """A byte that was changed anywhere, or bytes that are missing: members or BadMember, and nothing else."""
    good = bytearray(GOOD[name])
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(good)))
    try:
        await members_of(_in_parts(bytes(good[:kept]), 4096))
    except BadMember as error:
        assert str(error)
