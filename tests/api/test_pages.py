"""What a browser is shown: it comes whole from the service, and a browser may load nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI

from allpass import __version__
from app.api import pages

_CSP = "content-security-policy"
PAGES = ("/", "/docs", "/redoc")


class Names(HTMLParser):
    """Every address that a page names, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.scripts_inside = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value for name in ("href", "src", "spec-url") if (value := given.get(name))]
        self.scripts_inside += tag == "script" and "src" not in given
        assert not any(name.startswith("on") or name == "style" for name in given), given


@pytest.fixture
def browser(api: FastAPI) -> httpx.AsyncClient:
    """Somebody without a key."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://here")


@pytest.mark.parametrize("path", PAGES)
async def test_all_that_a_page_names_is_served_here(browser: httpx.AsyncClient, path: str) -> None:
    """Each address is relative, so a proxy may serve all of it below a path, and there is something at it."""
    answer = await browser.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    named = Names(answer.text)
    assert named.scripts_inside == 0
    for address in (one for one in named.addresses if one != "data:,"):
        assert not urlsplit(address).scheme and not address.startswith("/"), address
        found = await browser.get(urljoin(f"http://here{path}", address))
        assert (found.status_code, bool(found.content)) == (200, True), address


@pytest.mark.parametrize("path", PAGES)
async def test_a_browser_may_load_nothing_from_elsewhere(browser: httpx.AsyncClient, path: str) -> None:
    """No host stands in the policy, no script may stand in the page, and no other page may show it in a frame."""
    headers = (await browser.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert not re.search(r"https?:|\*|unsafe-eval", policy)
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert headers["x-content-type-options"] == "nosniff"


async def test_the_dashboard_loads_nothing_but_its_own_files(browser: httpx.AsyncClient) -> None:
    """No style and no script inside the page either, no form that leads away, and no address that is told others."""
    headers = (await browser.get("/")).headers
    policy = {name: rest for name, _, rest in (part.strip().partition(" ") for part in headers[_CSP].split(";"))}
    assert policy == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
    }
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"


async def test_without_scripts_the_page_says_where_else_to_look(browser: httpx.AsyncClient) -> None:
    """The command line and the REST API; and a probe finds the health where it was."""
    page = (await browser.get("/")).text
    assert "<noscript>" in page and "allpass ps" in page
    assert 'href="docs"' in page
    assert (await browser.get("/readyz")).json()["version"] == __version__


def _files() -> list[str]:
    return ["/", *(f"/page-files/dashboard/{name}" for name in pages._DASHBOARD.files)]


async def test_files_are_asked_for_again_and_sent_once(browser: httpx.AsyncClient) -> None:
    """Each carries a tag; who shows it gets 304 and no content, whatever a proxy made of the tag."""
    assert len(_files()) > 2
    for path in _files():
        first = await browser.get(path)
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["x-content-type-options"] == "nosniff"
        tag = first.headers["etag"]
        for condition in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await browser.get(path, headers={"If-None-Match": condition})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), path
        for condition in ('"other"', tag.strip('"'), "", f'"{tag}"'):
            assert (await browser.get(path, headers={"If-None-Match": condition})).status_code == 200


async def test_files_are_compressed_for_who_takes_that(browser: httpx.AsyncClient) -> None:
    """The same content under another tag, and shared caches know what it depends on."""
    plain = await browser.get("/page-files/dashboard/index.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip", "br, gzip;q=0.5", "*", "GZIP"):
        zipped = await browser.get("/page-files/dashboard/index.js", headers={"Accept-Encoding": accepted})
        assert zipped.headers["content-encoding"] == "gzip"
        assert int(zipped.headers["content-length"]) < len(plain.content) / 2
        assert zipped.content == plain.content
        assert zipped.headers["etag"] != plain.headers["etag"]
        assert zipped.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    for refused in ("gzip;q=0", "br", ""):
        answer = await browser.get("/page-files/dashboard/index.js", headers={"Accept-Encoding": refused})
        assert "content-encoding" not in answer.headers, refused


async def test_files_have_the_types_that_browsers_insist_on(browser: httpx.AsyncClient) -> None:
    """With nosniff, a script of another type would not run."""
    for name, expected in (("index.js", "text/javascript"), ("index.css", "text/css")):
        answer = await browser.get(f"/page-files/dashboard/{name}")
        assert answer.headers["content-type"] == f"{expected}; charset=utf-8"


async def test_the_page_can_be_asked_for_by_its_head(browser: httpx.AsyncClient) -> None:
    """As some load balancers do."""
    assert (await browser.head("/")).status_code == 200
    assert (await browser.post("/")).status_code == 405


def _install(folder: Path, *, page: bytes | None, files: dict[str, bytes]) -> pages.Dashboard:
    inner = folder / "page-files" / "dashboard"
    inner.mkdir(parents=True)
    if page is not None:
        (folder / "index.html").write_bytes(page)
    for name, content in files.items():
        (inner / name).write_bytes(content)
    return pages.Dashboard.of(folder)


_INDEX = b'<script type="module" src="./page-files/dashboard/index.js"></script>'


@pytest.mark.parametrize(("page", "files"), [(None, {}), (_INDEX, {}), (None, {"index.js": b"1"})])
async def test_a_broken_installation_says_what_is_missing(
    browser: httpx.AsyncClient,
    page: bytes | None,
    files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In words, on the page and in the log: no error of ours, no path of the server, and all else works."""
    monkeypatch.setattr(pages, "_DASHBOARD", _install(tmp_path / "front", page=page, files=files))
    answer = await browser.get("/")
    assert answer.status_code == 503
    assert "files are missing" in answer.text and str(tmp_path) not in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers[_CSP]
    for address in (one for one in Names(answer.text).addresses if one not in ("data:,", "readyz")):
        assert (await browser.get(f"/{address}")).status_code == 200
    assert "the dashboard cannot be served" in caplog.text
    assert (await browser.get("/healthz")).status_code == 200


async def test_only_what_pages_are_made_of_is_kept(tmp_path: Path) -> None:
    """No folder, no link to a folder, no source map, nothing with a dot before it."""
    (tmp_path / "secret").mkdir()
    made = _install(tmp_path / "front", page=_INDEX, files={"index.js": b"1", "index.js.map": b"2", ".env": b"3"})
    assert set(made.files) == {"index.js"}
    assert made.page is not None


async def test_only_the_files_of_the_pages_are_served(browser: httpx.AsyncClient) -> None:
    """A name is no path."""
    names = ("..%2fpages.py", "pages.py", "%2fetc%2fpasswd", "favicon.png", "", "%2e%2e%2findex.html", "a%00")
    for name in names:
        for folder in ("/page-files", "/page-files/dashboard"):
            assert (await browser.get(f"{folder}/{name}")).status_code in (404, 422), (folder, name)


async def test_what_is_drawn_is_not_sent_to_a_validator(browser: httpx.AsyncClient) -> None:
    """Swagger UI would send the address of a document to a public service that checks it."""
    assert "validatorUrl: null" in (await browser.get("/page-files/docs.js")).text
