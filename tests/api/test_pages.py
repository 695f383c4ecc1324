"""What a browser is shown: it comes whole from the service, and a browser may load nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI

from allpass import __version__
from app.api.app import create_app
from app.api.context import ApiContext

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


async def test_the_first_page_says_what_to_do(browser: httpx.AsyncClient, context: ApiContext) -> None:
    """The version, whether it is well, and the line that points the command line here."""
    page = (await browser.get("/")).text
    assert f"Version {__version__}" in page
    assert f"allpass login {context.settings.public_url}" in page
    assert "no leader: jobs wait" in page  # of the tests: no control loop runs here
    assert 'class="bad"' in page


async def test_an_address_of_the_operators_cannot_break_the_page(context: ApiContext) -> None:
    """It is text, whatever it holds."""
    hostile = context.settings.model_copy(update={"public_url": "https://x/</pre><script>alert(1)</script>"})
    from dataclasses import replace

    app = create_app(replace(context, settings=hostile))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as http:
        page = (await http.get("/")).text
    assert "<script" not in page and "&lt;script&gt;" in page


async def test_only_the_files_of_the_pages_are_served(browser: httpx.AsyncClient) -> None:
    """A name is no path."""
    for name in ("..%2fpages.py", "pages.py", "%2fetc%2fpasswd", "favicon.png", ""):
        assert (await browser.get(f"/page-files/{name}")).status_code == 404


async def test_what_is_drawn_is_not_sent_to_a_validator(browser: httpx.AsyncClient) -> None:
    """Swagger UI would send the address of a document to a public service that checks it."""
    assert "validatorUrl: null" in (await browser.get("/page-files/docs.js")).text
