"""Forms with a file, read as they come: bounded, and only when a key was let in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app.errors import InvalidInput, TooLarge

MOST_PART_BYTES = 64 * 1024 * 1024  # as OpenAI has it
_FORM_BYTES = 64 * 1024  # of all that is no file
_MOST_FIELDS = 16
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class Form:
    """`fields` by name; the one file lies on disk, where it is large."""

    fields: dict[str, str]
    filename: str
    file: UploadFile

    async def content(self) -> bytes:
        """All of it, in memory."""
        return await self.file.read()


@asynccontextmanager
async def sent_form(request: Request, file_field: str, *, most_bytes: int) -> AsyncIterator[Form]:
    """As it has arrived, which takes as long as its sender likes: nobody else is to wait for that. Raises InvalidInput
    for what is no such form, TooLarge."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidInput("body: expected multipart/form-data with a file", param=file_field)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes + _FORM_BYTES:
        raise _too_large(file_field, most_bytes)
    parser = MultiPartParser(
        request.headers,
        _bounded(request, file_field, most_bytes),
        max_files=1,
        max_fields=_MOST_FIELDS,
        max_part_size=_FORM_BYTES,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidInput(f"body: not a form that can be read: {error}", param=file_field) from None
    try:
        file = form.get(file_field)
        if not isinstance(file, UploadFile):
            raise InvalidInput(f"{file_field}: a file is required", param=file_field, code="missing_required_parameter")
        fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        yield Form(fields, _name_of(file), file)
    finally:
        await form.close()


async def _bounded(request: Request, file_field: str, most_bytes: int) -> AsyncGenerator[bytes, None]:
    seen = 0
    async for block in request.stream():
        seen += len(block)
        if seen > most_bytes + _FORM_BYTES:
            raise _too_large(file_field, most_bytes)
        yield block


def _name_of(file: UploadFile) -> str:
    """Without folders, and without what cannot be stored or shown."""
    name = (file.filename or "file").replace("\\", "/").rpartition("/")[2]
    kept = "".join(one for one in name if one.isprintable())[-_LONGEST_NAME:]
    return kept or "file"


def _too_large(file_field: str, most_bytes: int) -> TooLarge:
    return TooLarge(f"{file_field}: larger than {most_bytes} bytes, the most that this server takes", param=file_field)
