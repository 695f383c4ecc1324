"""Scanning a log piece by piece finds what a search of the whole text finds, wherever the pieces are cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.services.reading import search_log as module
from app.services.reading.search_log import LinePosition, Scan, check_query, format_cursor, parse_cursor

PIECES = st.lists(st.text(alphabet="aAbß\n", max_size=25), max_size=8)


def cut(pieces: list[str]) -> list[tuple[int, int, str]]:
    """The pieces as those of two runs."""
    half = len(pieces) // 2
    return [(1, n, text) for n, text in enumerate(pieces[:half])] + [(2, n, t) for n, t in enumerate(pieces[half:])]


def search_all(pieces: list[tuple[int, int, str]], pattern: re.Pattern[str], limit: int) -> list[tuple[int, str]]:
    """All matches by following cursors, as the endpoint does."""
    found: list[tuple[int, str]] = []
    place = LinePosition()
    for _ in range(1000):
        scan = Scan(pattern, limit, parse_cursor(format_cursor(place)))
        rest = [one for one in pieces if one[:2] >= (place.epoch, place.sequence)]
        full = False
        for epoch, sequence, text in rest:
            full = scan.feed(epoch, sequence, text)
            if full:
                break
        if not full:
            scan.finish()
        found += [(match.line, match.text) for match in scan.matches]
        if not full:
            return found
        place = scan.place
    raise AssertionError("the search does not end")


@given(
    pieces=PIECES, query=st.text(alphabet="aAbß", min_size=1, max_size=3), ignore=st.booleans(), limit=st.integers(1, 4)
)
def test_the_scan_finds_what_a_search_of_the_whole_text_finds(
    pieces: list[str], query: str, ignore: bool, limit: int
) -> None:
    """Every line that holds the text, once, with its number, for any cutting and any page size."""
    pattern = re.compile(re.escape(query), re.IGNORECASE if ignore else 0)
    lines = "".join(pieces).split("\n")
    expected = [(number, line) for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert search_all(cut(pieces), pattern, limit) == expected


@given(
    before=st.integers(0, 300),
    after=st.integers(0, 300),
    size=st.integers(1, 60),
    limit=st.integers(1, 2),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_line_without_an_end_is_searched_in_bounded_memory(
    before: int, after: int, size: int, limit: int, data: st.DataObject
) -> None:
    """A match anywhere in a line longer than what is kept is found exactly once; what is kept stays small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST_LINE", 40)
        patch.setattr(module, "SHOWN_BEFORE", 5)
        patch.setattr(module, "LONGEST_QUERY", 6)
        text = "x" * before + "needle" + "y" * after + "\nnext needle\n"
        pieces = [(1, n, text[at : at + size]) for n, at in enumerate(range(0, len(text), size))]
        pattern = re.compile("needle")
        found = search_all(pieces, pattern, limit)
        assert [line for line, _ in found] == [1, 2]
        assert all("needle" in shown for _, shown in found)
        scan = Scan(pattern, 100, LinePosition())
        for piece in pieces:
            scan.feed(*piece)
            assert sum(len(part) for *_, part in scan._open) <= 40 + size


def test_a_long_line_is_shown_around_its_match() -> None:
    """The text of a match is bounded and holds the match."""
    scan = Scan(re.compile("needle"), 10, LinePosition())
    scan.feed(1, 0, "x" * 5000 + "needle" + "y" * 5000 + "\n")
    (match,) = scan.matches
    assert len(match.text) == module.SHOWN_CHARS
    assert match.text.index("needle") == module.SHOWN_BEFORE


@pytest.mark.parametrize("cursor", ["", "1", "1.2.3.4", "1.2.3.4.2", "-1.0.0.1.0", "1.0.0.1.0\n", "²1.0.0.1.0"])
def test_cursors_that_are_none_are_refused(cursor: str) -> None:
    """A cursor is one that was given out."""
    with pytest.raises(InvalidInput, match="cursor"):
        parse_cursor(cursor)


@pytest.mark.parametrize("query", ["", "a\nb", "x" * 201])
def test_queries_that_no_line_can_hold_are_refused(query: str) -> None:
    """Empty, over several lines, or too long."""
    with pytest.raises(InvalidInput, match="q: "):
        check_query(query)
