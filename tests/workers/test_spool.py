"""A log on its way: bounded on disk and in time, numbered without gaps, honest about what is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.agent.logs import Log
from workers.agent.spool import LAST_BYTES, Chunk, Spool

LEFT_OUT = re.compile(r"^allpass: ([\d,]+) lines \(([\d,]+) bytes\) of this log are left out here", re.MULTILINE)


def put(spool: Spool, text: str) -> None:
    spool.put(text.encode(), line_count=text.count("\n"), first_ms=1, last_ms=2)


def text_of(chunks: list[Chunk]) -> str:
    return b"".join(chunk.file.read_bytes() for chunk in chunks).decode()


def left_out(text: str) -> tuple[int, int]:
    """Lines and bytes, as the log tells it."""
    told = [[int(number.replace(",", "")) for number in match.groups()] for match in LEFT_OUT.finditer(text)]
    return sum(lines for lines, _ in told), sum(size for _, size in told)


def on_disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.log"))


def test_what_comes_too_fast_is_left_out_in_the_middle(tmp_path: Path) -> None:
    """What is under way and the newest stay; between them a line says how much is missing. Nobody waits."""
    spool = Spool(tmp_path, limit_bytes=1000)
    for number in range(10):
        put(spool, f"early {number}\n")
    begun = spool.head(4)
    for number in range(1000):
        put(spool, f"line {number}\n")
        assert on_disk(tmp_path) <= 1000 + 4 * len("early 0\n")
    spool.drop(begun)
    text = text_of(spool.head(1_000_000))
    assert text.startswith("allpass: ")
    assert text.endswith("line 998\nline 999\n")
    kept = text.splitlines()[1:]
    assert left_out(text)[0] + len(kept) == 6 + 1000
    assert left_out(text)[1] + sum(len(line) + 1 for line in kept) == 6 * 8 + sum(
        len(f"line {number}\n") for number in range(1000)
    )


@given(st.lists(st.one_of(st.integers(1, 400), st.sampled_from(["ship", "restart"])), max_size=60))
def test_every_byte_is_there_or_told_as_missing(
    tmp_path_factory: pytest.TempPathFactory, acts: list[int | str]
) -> None:
    """However writing, sending and new agents alternate: numbers without gaps, in order, and the sums are right."""
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, limit_bytes=1500)
    written, shipped, numbers = "", "", []
    for act in acts:
        if isinstance(act, int):
            line = f"{len(written)}".ljust(act, ".") + "\n"
            written += line
            put(spool, line)
        elif act == "restart":
            spool = Spool(folder, limit_bytes=1500)
        else:
            chunks = spool.head(2)
            shipped, numbers = shipped + text_of(chunks), numbers + [chunk.sequence for chunk in chunks]
            spool.drop(chunks)
    chunks = spool.head(1000)
    shipped, numbers = shipped + text_of(chunks), numbers + [chunk.sequence for chunk in chunks]
    assert numbers == list(range(len(numbers)))
    kept = [line for line in shipped.splitlines(keepends=True) if not line.startswith("allpass: ")]
    missing_lines, missing_bytes = left_out(shipped)
    assert len(kept) + missing_lines == written.count("\n")
    assert sum(map(len, kept)) + missing_bytes == len(written)
    assert all(line in written for line in kept)
    if written:
        assert shipped.endswith(written.splitlines(keepends=True)[-1])


def test_a_log_that_is_too_long_has_its_beginning_and_its_end(tmp_path: Path) -> None:
    """Once so much of it is stored, nothing more is sent until the end; both is told in it, the disk stays bounded."""
    spool = Spool(tmp_path, limit_bytes=2 * LAST_BYTES, log_bytes=10_000)
    block = "x" * 1999 + "\n"
    shipped = ""
    for _ in range(1500):
        put(spool, block)
        if not spool.is_full:
            chunks = spool.head(1)
            shipped += text_of(chunks)
            spool.drop(chunks)
    chunks = spool.head(100)
    assert [text_of([chunk]) for chunk in chunks] == [
        "allpass: this log has 10,000 bytes: of what follows, only the end is kept\n"
    ]
    spool.drop(chunks)
    assert not spool.wait_for_chunk(0.01)
    assert Spool(tmp_path, log_bytes=10_000).head(1) == [], "not even another agent begins anew"
    put(spool, "the end\n")
    spool.keep_last()
    last = text_of(spool.head(1_000_000))
    assert last.endswith(block + "the end\n")
    assert len(last) <= LAST_BYTES + 200
    assert left_out(last)[0] + last.count(block) == 1500 - 5


def test_a_gap_is_told_in_a_line_of_its_own(tmp_path: Path) -> None:
    """Also after output that does not end with a line: a progress bar, say."""
    spool = Spool(tmp_path, limit_bytes=100)
    put(spool, "50 %\r")
    spool.drop(spool.head(1))
    for number in range(50, 90):
        put(spool, f"{number} %\r")
    assert re.fullmatch(r"\nallpass: 0 lines \(\d+ bytes\).*\n(\d\d %\r)+", text_of(spool.head(100)))


def test_a_spool_begins_with_what_an_earlier_agent_left(tmp_path: Path) -> None:
    """Chunks on disk keep their number, times and order, also when all before them are gone; only the oldest may be
    dropped."""
    first = Spool(tmp_path)
    first.put(b"a\n", line_count=1, first_ms=10, last_ms=20)
    first.put(b"b", line_count=0, first_ms=30, last_ms=40)
    first.drop(first.head(1))
    left = first.head(5)
    second = Spool(tmp_path)
    assert second.head(5) == left
    second.put(b"c", line_count=0, first_ms=50, last_ms=60)
    assert [chunk.sequence for chunk in second.head(5)] == [1, 2]
    with pytest.raises(ValueError, match="not the oldest"):
        second.drop(second.head(5)[1:])
    second.drop(second.head(5))
    third = Spool(tmp_path)
    put(third, "d")
    assert [chunk.sequence for chunk in third.head(5)] == [3]


def test_an_abandoned_spool_takes_nothing(tmp_path: Path) -> None:
    """Whoever still writes into it is not disturbed."""
    spool = Spool(tmp_path)
    spool.abandon()
    put(spool, "late\n")
    assert spool.head(1) == []


def test_a_full_disk_leaves_a_note_where_lines_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that cannot be kept are counted in the log itself as soon as anything can be kept again."""
    spool = Spool(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", _no_space)
        spool.put(b"a\nb\n", line_count=2, first_ms=1, last_ms=2)
    spool.put(b"c\n", line_count=1, first_ms=3, last_ms=4)
    spool.put(b"d\n", line_count=1, first_ms=3, last_ms=4)
    assert text_of(spool.head(5)) == "allpass: 2 lines could not be kept on this machine\nc\nd\n"
    assert [(chunk.sequence, chunk.line_count) for chunk in spool.head(5)] == [(0, 2), (1, 1)]
    assert "No space left" in capsys.readouterr().err


def _no_space(_path: Path, _data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_given_back_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what waits for being sent makes room: the training may need the disk for its checkpoint."""
    spool = Spool(tmp_path)
    for _ in range(100):
        put(spool, "y" * 99 + "\n")
    monkeypatch.setattr(Path, "write_bytes", _no_space)
    put(spool, "z\n")
    assert on_disk(tmp_path) == 5000


@pytest.mark.parametrize(
    "block",
    [b"x" * 65536, b"12 %\r" * 10_000, bytes(range(256)) * 256, b"\0" * 65536, b"\n" * 65536, "ä€😀".encode() * 7000],
    ids=["no line end", "progress bar", "garbage", "nothing but NUL", "empty lines", "wide characters"],
)
def test_a_flood_of_anything_is_bounded(tmp_path: Path, block: bytes) -> None:
    """On disk, and in its last lines; its end is there, as text."""
    spool = Spool(tmp_path, limit_bytes=1024 * 1024)
    log = Log(spool)
    for _ in range(300):
        log.feed(block)
        assert on_disk(tmp_path) <= 1024 * 1024 + 512 * 1024
    log.feed(b"\nthe end\n")
    log.finish()
    spool.keep_last(100_000)
    chunks = spool.head(1000)
    assert sum(chunk.size_bytes for chunk in chunks) <= 2 * 1024 * 1024
    assert text_of(chunks).endswith("the end\n")
    assert log.last_lines().endswith("the end")
    assert len(log.last_lines()) <= 8000
