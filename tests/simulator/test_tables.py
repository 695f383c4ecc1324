"""Tables of text: cells by name, and faults with their place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.tables import TableRow, header_of, read_bytes, read_text, rows_of

FILE = Path("t.csv")
PACKED = gzip.compress(b"x" * 99)


def row_of(cell: str) -> TableRow:
    return TableRow("t.csv", 7, {"n": 0}, [cell])


def test_cells_by_name() -> None:
    """Blanks around a cell are no part of it; a column that is not there is empty; blank lines are none."""
    first, second = rows_of(FILE, "a, b\n1, two words \n\n   \n3,\n", ["b"])
    assert (first.text("a"), first.text("b"), first.text("c")) == ("1", "two words", "")
    assert (second.line, second.text("b")) == (5, "")


def test_a_cell_may_go_over_lines() -> None:
    """A quoted cell may hold commas, quotes and line ends; the line told is the one where the row ends."""
    rows = list(rows_of(FILE, 'a,b\n"x,\n""y""",1\n2,z\n', ["a"]))
    assert [(row.text("a"), row.line) for row in rows] == [('x,\n"y"', 3), ("2", 4)]


@given(value=st.floats(0, 1e12))
def test_numbers_are_read_to_the_last_digit(value: float) -> None:
    """In any of the forms that Python writes."""
    assert row_of(repr(value)).number("n") == value


@given(value=st.integers(1, 10**9))
def test_whole_numbers(value: int) -> None:
    """Also with a point and a zero, as other programs write them."""
    assert row_of(str(value)).whole("n", least=1) == row_of(f" {value}.0 ").whole("n", least=1) == value


@pytest.mark.parametrize("cell", ["", "x", "nan", "-inf", "1e999", "1_0", "0x10", "1,5", "12:30"])
def test_what_is_no_number(cell: str) -> None:
    """The cell is told as it is."""
    with pytest.raises(InvalidInput) as caught:
        row_of(cell).number("n")
    assert caught.value.message.startswith(f"t.csv line 7, column n: {cell!r} is not a number; give a number")
    assert caught.value.param == "n"


def test_bounds() -> None:
    """The least value itself is accepted."""
    assert row_of("-5").number("n", least=-5) == -5
    with pytest.raises(InvalidInput, match=r"'-5.1' is below -5; give a number of at least -5"):
        row_of("-5.1").number("n", least=-5)
    with pytest.raises(InvalidInput, match=r"'0' is below 1"):
        row_of("0").whole("n", least=1)


def test_a_table_needs_its_columns() -> None:
    """All that are missing are named, with those that there are."""
    with pytest.raises(InvalidInput, match=r"t.csv line 1: there is no column x, y; it has a, b"):
        list(rows_of(FILE, "a,b\n", ["x", "a", "y"]))
    assert header_of(FILE, " a ,b\n1,2\n") == ["a", "b"]


def test_unnamed_columns_do_no_harm() -> None:
    """Tables saved with an index have a first column without a name; there may be more of them."""
    (row,) = rows_of(FILE, ",a,\n0,5,x\n", ["a"])
    assert row.whole("a") == 5


@pytest.mark.parametrize("content", [b"", b"plain", "na\u00efve".encode()])
def test_files_are_read_packed_or_not(tmp_path: Path, content: bytes) -> None:
    """The same bytes; what is not gzip is left as it is."""
    plain, packed = tmp_path / "a", tmp_path / "b.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert read_bytes(plain) == read_bytes(packed) == content
    assert read_text(plain) == content.decode()


@pytest.mark.parametrize(
    "broken",
    [PACKED[:20], PACKED[:-4] + b"oops", b"\x1f\x8bnonsense"],
    ids=["cut short", "wrong length", "nothing of the kind"],
)
def test_broken_gzip_is_told(tmp_path: Path, broken: bytes) -> None:
    """Cut short, with a wrong length, or nothing of the kind."""
    path = tmp_path / "a.gz"
    path.write_bytes(broken)
    with pytest.raises(InvalidInput, match="broken gzip data"):
        read_bytes(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a,b\n1,\x00\n", "line 2: holds a zero byte; give a text file"),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1: holds a zero byte"),
        (b"a,b\n1,2\n\xfe,3\n", "line 3: the byte 0xfe is not UTF-8; save the file as UTF-8 text"),
    ],
)
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    """A binary file, or text in another encoding, with the line."""
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=told):
        read_text(path)


def test_a_quote_that_is_never_closed_is_told() -> None:
    """With the line on which the file ended."""
    with pytest.raises(InvalidInput, match=r"t.csv line 3: is not csv"):
        list(rows_of(FILE, 'a,b\n1,2\n"3,4\n', ["a"]))
