"""What a browser is shown: the dashboard at `/`, and the two readings of the OpenAPI document, `/docs` and `/redoc`.

Nothing comes from anywhere else: the dashboard is built from `dashboard/`, scripts and styles of Swagger UI and ReDoc
are those of the package `fastapi-offline`, and the policy of each page lets a browser load nothing but them. Every
address on a page is relative, so that a proxy may serve them below a path.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from app.api.kept_files import KeptFile, keep_file, keep_folder
from app.errors import NotFound

log = logging.getLogger(__name__)
router = APIRouter(include_in_schema=False)

_OURS = Path(__file__).parent / "front"
_THEIRS = Path(fastapi_offline.__file__).parent / "static"
_FILES = {
    "docs.js": _OURS / "docs.js",
    "swagger-ui.css": _THEIRS / "swagger-ui.css",
    "swagger-ui-bundle.js": _THEIRS / "swagger-ui-bundle.js",
    "redoc.standalone.js": _THEIRS / "redoc.standalone.js",
}
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_DASHBOARD_POLICY = f"{_CLOSED}; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'"
# Both write styles into the page, draw by data: URLs, and ReDoc searches in a worker that it makes itself.
_READER_POLICY = (
    f"{_CLOSED}; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; worker-src blob:"
)
_SWAGGER = (_OURS / "docs.html").read_text(encoding="utf-8")
_REDOC = (_OURS / "redoc.html").read_text(encoding="utf-8")
_MISSING = (_OURS / "missing.html").read_text(encoding="utf-8")
_NAMED = re.compile(rb"page-files/dashboard/([\w.-]+)")
_PAGE = {
    "Content-Security-Policy": _DASHBOARD_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The built dashboard: a page and what it is made of, by name. `page` None: it is not whole."""

    page: KeptFile | None
    files: dict[str, KeptFile]

    @classmethod
    def of(cls, folder: Path) -> Dashboard:
        """That of a folder. One that is not whole is told, and harms nothing else of the service."""
        try:
            files = keep_folder(folder / "page-files" / "dashboard")
            page = keep_file(folder / "index.html")
        except OSError as error:
            log.warning("the dashboard cannot be served: %s", error)
            return cls(None, {})
        missing = sorted({name.decode() for name in _NAMED.findall(page.content)} - set(files))
        if missing:
            log.warning("the dashboard cannot be served: %s of %s are not there", ", ".join(missing), folder)
        return cls(None if missing else page, files)


_DASHBOARD = Dashboard.of(_OURS / "dashboard")


@router.api_route("/", methods=["GET", "HEAD"])
async def dashboard(request: Request) -> Response:
    """The page that shows and steers everything, by the public API alone."""
    if _DASHBOARD.page is None:
        return _page(_MISSING, f"{_CLOSED}; img-src data:", 503)
    return _DASHBOARD.page.answer(request, _PAGE)


@router.api_route("/page-files/dashboard/{name}", methods=["GET", "HEAD"])
async def dashboard_file(name: str, request: Request) -> Response:
    """What the dashboard is made of: a name of a list, never a path."""
    file = _DASHBOARD.files.get(name)
    if file is None:
        raise NotFound(f"there is no file {name!r} of the dashboard")
    return file.answer(request, {})


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


def _page(text: str, policy: str, status: int = 200) -> HTMLResponse:
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return HTMLResponse(text, status, headers=headers)
