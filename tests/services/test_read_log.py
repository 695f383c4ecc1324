"""Log positions: whatever arrives in whatever order, following them reads everything once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.db.reading.job_records import ChunkRow, LoggedRun, RunHead
from app.services.reading.read_log import (
    MAX_PAGE_CHUNKS,
    choose,
    divided,
    format_position,
    parse_position,
    with_rank,
)

EPOCHS = st.dictionaries(st.integers(1, 6), st.integers(1, 8), max_size=4)


def test_the_log_says_where_another_run_begins_and_from_which_step() -> None:
    """Before its first piece, once; the first run of a job needs no line."""
    first, again, on = RunHead(1, "A100", 1, 0), RunHead(2, "RTX4090", 1, 0), RunHead(3, "H100", 2, 412)
    assert divided(first, chunk(1, 0), "text") == divided(None, chunk(1, 0), "text") == "text"
    assert divided(again, chunk(2, 0), "text") == "---- run 2 on RTX4090, begins at step 0 ----\ntext"
    assert divided(again, chunk(2, 1), "more") == "more"
    assert divided(on, chunk(4, 0), "text") == "---- run 3 on 2 x H100, goes on at step 412 ----\ntext"


def test_of_several_machines_each_line_says_of_which_it_is() -> None:
    assert with_rank(None, "a\nb\n") == "a\nb\n"
    assert with_rank(1, "a\n\nb\n") == "[1] a\n[1] \n[1] b\n"
    assert with_rank(0, "half a line") == "[0] half a line"
    assert with_rank(2, "") == ""


def chunk(epoch: int, sequence: int, size_bytes: int = 10) -> ChunkRow:
    return ChunkRow(epoch, sequence, "a" * 64, size_bytes)


@given(positions=st.dictionaries(st.integers(0, 10**9 - 1), st.integers(1, 10**9 - 1), max_size=20))
def test_positions_survive_the_wire(positions: dict[int, int]) -> None:
    """What is formatted parses to the same."""
    assert parse_position(format_position(positions)) == positions


def test_the_start_has_two_spellings() -> None:
    """No position, and the one that an empty page gives."""
    assert parse_position(None) == parse_position("") == parse_position(format_position({})) == {}


@given(lengths=EPOCHS, data=st.data())
def test_following_reads_every_piece_once_and_each_run_in_order(lengths: dict[int, int], data: st.DataObject) -> None:
    """Pieces arrive in any order, runs end at any time after their last piece; nothing is skipped or repeated."""
    to_come = data.draw(st.permutations([(epoch, n) for epoch, length in lengths.items() for n in range(length)]))
    arrived: set[tuple[int, int]] = set()
    position: dict[int, int] = {}
    read: list[tuple[int, int]] = []
    for number in range(len(to_come) + 1):
        ended = {
            epoch: LoggedRun(all((epoch, n) in arrived for n in range(length))) for epoch, length in lengths.items()
        }
        known = [chunk(*one) for one in sorted(arrived) if one[1] >= position.get(one[0], 0)]
        chosen = choose(known, position, ended)
        read += [(one.epoch, one.sequence) for one in chosen]
        position |= {one.epoch: one.sequence + 1 for one in chosen}
        position = parse_position(format_position(position))
        if number < len(to_come):
            arrived.add(to_come[number])
    assert sorted(read) == sorted(to_come)
    for epoch, length in lengths.items():
        assert [n for e, n in read if e == epoch] == list(range(length))


@given(sizes=st.lists(st.integers(1, 700_000), min_size=1, max_size=2 * MAX_PAGE_CHUNKS))
def test_a_page_is_bounded_and_never_empty(sizes: list[int]) -> None:
    """About a megabyte, at most so many pieces, and at least one: reading always goes on."""
    chosen = choose([chunk(1, number, size) for number, size in enumerate(sizes)], {}, {1: LoggedRun(has_ended=True)})
    assert 1 <= len(chosen) <= MAX_PAGE_CHUNKS
    assert len(chosen) == 1 or sum(one.size_bytes for one in chosen) <= 1024 * 1024
