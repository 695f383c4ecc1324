"""The one database type that services may name: they pass it on, they never query with it themselves."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection as Connection

__all__ = ["Connection"]
