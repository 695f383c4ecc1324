"""What a browser is shown: the page at `/`, and the two readings of the OpenAPI document, `/docs` and `/redoc`.

Nothing comes from anywhere else: scripts and styles of Swagger UI and ReDoc are those of the package `fastapi-offline`,
and the policy of each page lets a browser load nothing but them. Every address on a page is relative, so that a proxy
may serve them below a path.
"""

from __future__ import annotations

import html
from pathlib import Path
from string import Template
from typing import Annotated

import fastapi_offline
from fastapi import APIRouter, Depends, Response
from fastapi.responses import FileResponse, HTMLResponse

from app.api.context import ApiContext, context_of
from app.api.nodes import readyz
from app.errors import NotFound

router = APIRouter(include_in_schema=False)
ContextOf = Annotated[ApiContext, Depends(context_of)]

_OURS = Path(__file__).parent / "front"
_THEIRS = Path(fastapi_offline.__file__).parent / "static"
_FILES = {
    "front.css": _OURS / "front.css",
    "docs.js": _OURS / "docs.js",
    "swagger-ui.css": _THEIRS / "swagger-ui.css",
    "swagger-ui-bundle.js": _THEIRS / "swagger-ui-bundle.js",
    "redoc.standalone.js": _THEIRS / "redoc.standalone.js",
}
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_FRONT_POLICY = f"{_CLOSED}; style-src 'self'; img-src data:"
# Both write styles into the page, draw by data: URLs, and ReDoc searches in a worker that it makes itself.
_READER_POLICY = (
    f"{_CLOSED}; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; worker-src blob:"
)
_FRONT = Template((_OURS / "front.html").read_text(encoding="utf-8"))
_SWAGGER = (_OURS / "docs.html").read_text(encoding="utf-8")
_REDOC = (_OURS / "redoc.html").read_text(encoding="utf-8")


@router.get("/")
async def front(context: ContextOf) -> HTMLResponse:
    """What this is, whether it is well, and what to type. 200 also while it is not well: it says so."""
    health = await readyz(Response(), context)
    amiss = [f"{name}: {state}" for name, state in health.parts.items() if state != "ok"]
    amiss += [f"{one.part}: {one.what}" for one in health.degraded]
    page = _FRONT.substitute(
        version=html.escape(health.version),
        state="bad" if amiss else "good",
        health="Something is amiss" if amiss else "All is well",
        amiss="".join(f"<li>{html.escape(one)}</li>" for one in amiss),
        url=html.escape(context.settings.public_url.rstrip("/")),
    )
    return _page(page, _FRONT_POLICY)


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """The API to try out."""
    return _page(_SWAGGER, _READER_POLICY)


@router.get("/redoc")
async def redoc() -> HTMLResponse:
    """The API to read."""
    return _page(_REDOC, _READER_POLICY)


@router.get("/page-files/{name}")
async def page_file(name: str) -> FileResponse:
    """What the pages are made of."""
    file = _FILES.get(name)
    if file is None:
        raise NotFound(f"there is no file {name!r} of a page")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "public, max-age=3600"}
    return FileResponse(file, headers=headers)


def _page(text: str, policy: str) -> HTMLResponse:
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return HTMLResponse(text, headers=headers)
