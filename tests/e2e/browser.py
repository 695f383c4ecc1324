"""The dashboard in a real browser, and what it does there without being asked: errors, and what its policy refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.service import PATIENCE_S, Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
_EXPECTED = re.compile(
    r"status of (401|403|404|413|422)|ERR_CONNECTION|ERR_NETWORK|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE"
)  # of keys that are wrong, what is not there or too large, and a server that dies
expect.set_options(timeout=PATIENCE_S * 1000 / 3)


@contextmanager
def chromium() -> Iterator[Browser]:
    assert CHROMIUM is not None
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=root)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visitor:
    """Somebody in front of a page of the dashboard."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)

    def see(self, address: str = "") -> Page:
        """Go to a view by its address."""
        self.page.goto(f"{self.url}/{address}")
        return self.page

    def sign_in(self, key: str) -> Page:
        self.see()
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", name="Jobs")).to_be_visible()
        return self.page

    def accessible(self) -> list[str]:
        """What axe-core finds on the page as it is now: rule, and where."""
        self.page.evaluate(AXE)  # as the browser's own console would, past the page's policy
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['target']} {node['html'][:200]}"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def overflow(self) -> list[str]:
        """What sticks out of the page to the right."""
        return list(self.page.evaluate(_OVERFLOW))


_OVERFLOW = """() => {
  const wide = document.documentElement.clientWidth
  if (document.documentElement.scrollWidth <= wide) return []
  return [...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > wide + 1)
    .map(one => one.outerHTML.slice(0, 120)).slice(0, 5)
}"""


@contextmanager
def visitor(browser: Browser, service: Service, *, width: int = 1280, dark: bool = False) -> Iterator[Visitor]:
    """A browser that has never been here. Whatever goes wrong in it unseen fails the test at the end."""
    known = json.loads(service.stack.layout.client_file.read_text())
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)
    found = Visitor(context.new_page(), known["url"].rstrip("/"))
    found.page.on("pageerror", lambda error: found.errors.append(str(error)))
    found.page.on("console", lambda said: found.errors.append(said.text) if said.type == "error" else None)
    try:
        yield found
    finally:
        context.close()
    unexpected = [error for error in found.errors if not _EXPECTED.search(error)]
    assert unexpected == [], unexpected


def key_of(service: Service) -> str:
    return str(json.loads(service.stack.layout.client_file.read_text())["api_key"])
