"""Cursors: where the next page of a list begins. Clients pass them back as they are; what they hold may change."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from app.core.model.ids import Prefix, is_id
from app.errors import InvalidInput

_TEXT = "t."
_SHOWN_CHARS = 80


def id_cursor(cursor: str | None, prefix: Prefix) -> str | None:
    """A cursor that is the last id of the page before. Raises InvalidInput."""
    if cursor is not None and not is_id(cursor, prefix):
        raise wrong_cursor(cursor)
    return cursor


def text_cursor(text: str) -> str:
    """The cursor of a list that is sorted by a text, e.g. a path."""
    return _TEXT + urlsafe_b64encode(text.encode()).decode().rstrip("=")


def cursor_text(cursor: str | None) -> str | None:
    """What `text_cursor` was made of. Raises InvalidInput."""
    if cursor is None:
        return None
    body = cursor.removeprefix(_TEXT)
    try:
        text = urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    except ValueError:
        raise wrong_cursor(cursor) from None
    if "\x00" in text or text_cursor(text) != cursor:  # base 64 skips what it does not know
        raise wrong_cursor(cursor)
    return text


def number_cursor(cursor: str | None, biggest: int = 2**53) -> int | None:
    """A cursor that is the last number of the page before. Raises InvalidInput."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20) or int(cursor) > biggest:
        raise wrong_cursor(cursor)
    return int(cursor)


def wrong_cursor(cursor: str) -> InvalidInput:
    """What a cursor is answered that no list of ours gave."""
    shown = cursor if len(cursor) <= _SHOWN_CHARS else cursor[:_SHOWN_CHARS] + "…"
    return InvalidInput(
        f"cursor: {shown!r} is not a next_cursor of this list; leave it out to begin with the first page",
        param="cursor",
    )
