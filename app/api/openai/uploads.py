"""`/openai/v1/uploads`: a file in parts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from app.api.auth import Submitter
from app.api.context import ApiContext, context_of
from app.api.openai.bodies import MOST_PART_BYTES, sent_form
from app.api.openai.doors import Doors, doors_of
from app.api.openai.files import file_view
from app.api.openai.wire import UploadComplete, UploadCreate, UploadObject, UploadPart
from app.db.doors.files import DoorFile
from app.db.doors.uploads import DoorUpload
from app.errors import InvalidInput, TooLarge

router = APIRouter(prefix="/openai/v1/uploads", include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]
DoorsOf = Annotated[Doors, Depends(doors_of)]


@router.post("")
async def create_upload(body: UploadCreate, caller: Submitter, context: ContextOf, doors: DoorsOf) -> UploadObject:
    most = context.settings.openai_max_file_bytes
    if body.bytes > most:
        raise TooLarge(f"bytes: {body.bytes} is more than {most}, the most that this server takes", param="bytes")
    upload = await doors.uploads.begin(
        caller.project_id,
        filename=body.filename.replace("\\", "/").rpartition("/")[2] or "file",
        purpose=body.purpose,
        mime_type=body.mime_type,
        size_bytes=body.bytes,
        file_life_s=None if body.expires_after is None else body.expires_after.seconds,
    )
    return _view(upload)


@router.post("/{upload_id}/parts")
async def add_part(upload_id: str, request: Request, caller: Submitter, doors: DoorsOf) -> UploadPart:
    async with sent_form(request, "data", most_bytes=MOST_PART_BYTES) as form, doors.turns:
        content = await form.content()
        if not content:
            raise InvalidInput("data: the part is empty", param="data")
        part = await doors.uploads.add_part(caller.project_id, upload_id, content)
    return UploadPart(id=part.id, created_at=part.created_ms // 1000, upload_id=part.upload_id)


@router.post("/{upload_id}/complete")
async def complete_upload(upload_id: str, body: UploadComplete, caller: Submitter, doors: DoorsOf) -> UploadObject:
    async with doors.turns:
        upload, file = await doors.uploads.complete(caller.project_id, upload_id, body.part_ids, body.md5)
    return _view(upload, file)


@router.post("/{upload_id}/cancel")
async def cancel_upload(upload_id: str, caller: Submitter, doors: DoorsOf) -> UploadObject:
    return _view(await doors.uploads.cancel(caller.project_id, upload_id))


def _view(upload: DoorUpload, file: DoorFile | None = None) -> UploadObject:
    return UploadObject(
        id=upload.id,
        bytes=upload.size_bytes,
        created_at=upload.created_ms // 1000,
        expires_at=upload.expires_ms // 1000,
        filename=upload.filename,
        purpose=upload.purpose,
        status=upload.state,
        file=None if file is None else file_view(file),
    )
