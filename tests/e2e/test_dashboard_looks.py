"""Pages look as they did: on a phone, a tablet and a laptop, held against looks that are kept in `looks/`.

`SCREENS=write` makes them anew, to be looked at before they are committed. What may differ says `looks.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

import allpass
from tests.e2e import browser as browsing
from tests.e2e.browser import Visitor
from tests.e2e.looks import BLOCK, Look, decoded, differences, different, encoded, look_at, styled
from tests.e2e.service import EXAMPLES, Service

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(300),
    pytest.mark.skipif(browsing.CHROMIUM is None, reason="there is no Chromium on this machine"),
]
PICTURES = Path(__file__).parents[2] / "docs/dashboard"
ROWS = (
    ("llama3-8b", "support-tone", "support", 900, 100, 1),
    ("qwen-sft", "contracts-de", "legal", 700, 100, 2),
    ("bert-imdb", "sentiment-3", "search", 400, 150, 3),
    ("llama3-8b", "faq-answers", "support", 1200, 100, 4),
    ("phi-4", "sql-helper", "data", 800, 100, 5),
    ("bert-imdb", "sentiment-4", "search", 120, 20, 6),
    ("qwen-sft", "summaries", "legal", 1500, 60, 7),
)
KEPT = Path(__file__).parent / "looks"
WIDTHS = (390, 768, 1280)
PAGES = {
    "jobs": "#/jobs",
    "plan": "#/plan",
    "simulate": "#/simulate",
    "costs": "#/costs",
    "settings": "#/settings",
}
OTHER_FONTS = ("* { font-family: serif !important }", "* { font-family: monospace !important; font-size-adjust: 0.45 }")
BROKEN = (
    "main { padding-left: 160px !important }",
    "nav { flex-direction: column !important }",
    ".frame > header { background: #333 !important; padding: 2rem !important }",
    "form { display: none !important }",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    """Of a project in which nothing has happened."""
    return service.client.create_project("looks").key.key


def seen(visit: Visitor, address: str) -> Page:
    page = visit.see(address)
    browsing.expect(page.get_by_role("heading", level=1)).to_be_visible()
    browsing.expect(page.locator(".loading")).to_have_count(0)
    page.wait_for_load_state("networkidle") if address != "#/jobs" else page.wait_for_timeout(300)
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_look_as_they_did(browser: Browser, service: Service, key: str, width: int) -> None:
    found: dict[str, list[str]] = {}
    with browsing.visitor(browser, service, width=width) as visit:
        browsing.expect(visit.see().get_by_label("API key")).to_be_visible()
        looks = {"sign-in": look_at(visit.page)}
        visit.sign_in(key)
        looks |= {name: look_at(seen(visit, address)) for name, address in PAGES.items()}
    for name, look in looks.items():
        path = KEPT / f"{name}-{width}"
        if os.environ.get("SCREENS") == "write":
            KEPT.mkdir(exist_ok=True)
            look.write(path)
        found[name] = differences(Look.read(path), look)
    assert {name: told for name, told in found.items() if told} == {}


def test_another_font_looks_the_same_and_a_broken_layout_does_not(browser: Browser, service: Service, key: str) -> None:
    """The tolerance is wide enough for machines with other fonts, and no wider."""
    with browsing.visitor(browser, service) as visit:
        visit.sign_in(key)
        page = seen(visit, "#/simulate")
        known = look_at(page)
        for css in OTHER_FONTS:
            with styled(page, css):
                assert differences(known, look_at(page)) == [], css
        for css in BROKEN:
            with styled(page, css):
                assert differences(known, look_at(page)), css


@pytest.mark.skipif(os.environ.get("SCREENS") != "write", reason="nobody has asked for pictures")
def test_the_guide_s_picture_of_the_list(browser: Browser, service: Service) -> None:
    """Of a project in which something happens: jobs that run, that moved, that are over, and a sweep."""
    made = service.client.create_project("nlp").key.key
    with allpass.Client(url_of(service), made) as client, browsing.visitor(browser, service) as visit:
        jobs = [start(client, *row) for row in ROWS]
        visit.sign_in(made)
        browsing.expect(visit.page.get_by_text("marketplace").nth(3)).to_be_visible()
        jobs[1].pause()
        jobs[2].cancel()
        jobs[5].wait(timeout=60)
        browsing.expect(visit.page.get_by_text("paused by its owner").first).to_be_visible()
        visit.page.set_viewport_size({"width": 1280, "height": 640})
        visit.page.screenshot(path=PICTURES / "jobs.png")
        for job in jobs:
            with suppress(allpass.errors.Conflict):  # it is over
                job.cancel()


def start(client: allpass.Client, app: str, name: str, team: str, steps: int, step_ms: int, seed: int) -> allpass.Job:
    built = allpass.build(app, "ada", code=EXAMPLES / "plain_loop.py", client=client)
    template = {"training": {"steps": steps}, "labels": {"team": team}}
    parameters = {"steps": steps, "step_ms": step_ms, "seed": seed}
    return built.run(name, template=template, parameters=parameters, soft_deadline=f"{2 + seed}hr")


def url_of(service: Service) -> str:
    return str(json.loads(service.stack.layout.client_file.read_text())["url"])


def test_pictures_are_read_as_they_were_written() -> None:
    chance = np.random.default_rng(1)
    pixels = chance.integers(0, 256, (7, 5, 3), dtype=np.uint8)
    assert (decoded(encoded(pixels)) == pixels).all()
    assert different(pixels, pixels) == 0.0
    flat = np.full((20, 20, 3), 200, dtype=np.uint8)
    spot = flat.copy()
    spot[5:7, 5:7] = 0
    assert different(flat, spot) < 0.02 < different(spot, np.roll(spot, 6, axis=0)) + 0.02
    assert different(flat, flat[:, :10]) == 1.0
    assert BLOCK > 8


def test_a_browser_s_own_picture_is_read(browser: Browser) -> None:
    """All filters that it uses: what it drew is what is found."""
    page = browser.new_page(viewport={"width": 200, "height": 120})
    try:
        page.set_content(
            "<body style='margin:0;background:linear-gradient(to right,#000,#fff)'><p style='color:#f00'>Words"
        )
        pixels = decoded(page.screenshot())
    finally:
        page.close()
    assert pixels.shape == (120, 200, 3)
    assert pixels[100, 5].max() < 20
    assert pixels[100, 195].min() > 235
    assert np.abs(np.diff(pixels[100, :, 0].astype(int))).max() <= 3
