"""What a JSON body must be before anything reads it: UTF-8, real numbers, and no NUL (PostgreSQL cannot store it)."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from app.errors import InvalidInput

_SUSPICIOUS = (b"\\u", b"NaN", b"Infinity")


def check_text(body: bytes) -> None:
    """Raises InvalidInput for what is not UTF-8."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"body: byte {error.start} is not UTF-8; send the text as UTF-8", param="body") from None


def check_body(body: bytes) -> None:
    """Raises InvalidInput, with the path of the offending string when there is one.

    Text that is no JSON at all is left to the model that parses it.
    """
    if any(mark in body for mark in _SUSPICIOUS):
        _check_values(body)


def _check_values(body: bytes) -> None:
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(f"body: not valid JSON: {error}", param="body") from None
    path = _find_nul(value, "")
    if path is not None:
        where = path or "body"
        raise InvalidInput(f"{where}: text cannot hold a NUL character; remove it", param=where)


def _find_nul(value: Any, path: str) -> str | None:
    if isinstance(value, str):
        return path if "\x00" in value else None
    if isinstance(value, dict):
        for name, one in value.items():
            if "\x00" in name:
                return path
            found = _find_nul(one, f"{path}.{name}" if path else name)
            if found is not None:
                return found
    if isinstance(value, list):
        for index, one in enumerate(value):
            found = _find_nul(one, f"{path}[{index}]")
            if found is not None:
                return found
    return None
