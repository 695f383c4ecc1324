"""The ids in examples of the API: the same ones everywhere, so that they tell one story."""

from __future__ import annotations

from app.core.model.ids import Prefix

_DIGITS = "01M7XQPVE2A96009XYYX"


def example_id(prefix: Prefix) -> str:
    """The id that examples use for a thing of this kind."""
    return f"{prefix}_{_DIGITS}"
