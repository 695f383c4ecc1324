"""The page of `--report` in a real browser: nothing is cut, on a laptop, on a tablet and on a phone.

Needs Chromium (`apt-get install chromium`); without it these tests are skipped.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.simulator.options import Options
from app.simulator.report.page import page
from app.simulator.running import Variant, play, summary
from app.simulator.traces.generating import generate

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
FEW = ("allpass", "allpass-drain", "modal-only", "clairvoyant")
MANY = (*FEW, "fixed-threshold", "hpa", "hpa-conventional", "sjf", "sjf-np", "tiresias-l", "tiresias-l-np")
# The page is shown in a frame, since a browser's window has a least width that phones are below.
FRAME = """<!doctype html><body style="margin:0"><iframe id="shown" style="border:0;width:{width}px;height:3000px"
srcdoc="{page}"></iframe><pre id="found"></pre><script>
document.getElementById("shown").onload = event => {{
  const doc = event.target.contentDocument, wide = doc.documentElement.clientWidth, found = []
  if (doc.documentElement.scrollWidth > wide) found.push("the page scrolls sideways")
  for (const one of doc.querySelectorAll("body *")) {{
    if (one.closest("svg") && one.tagName !== "svg") continue
    const box = one.getBoundingClientRect(), inline = getComputedStyle(one).display === "inline"
    if (box.width && (box.right > wide + .5 || box.left < -.5)) found.push("out of the page: " + one.textContent)
    if (one.tagName !== "svg" && !inline && one.scrollWidth > one.clientWidth + 1) found.push("cut: " + one.textContent)
  }}
  for (const picture of doc.querySelectorAll("svg[role=img]")) {{
    const name = picture.getAttribute("aria-label"), frame = picture.getBoundingClientRect()
    const texts = [...picture.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()])
    for (const [told, box] of texts)
      if (box.left < frame.left - .5 || box.right > frame.right + .5) found.push(name + " cuts " + told)
    texts.forEach(([told, one], place) => texts.slice(place + 1).forEach(([other, two]) => {{
      if (one.left < two.right - 1 && two.left < one.right - 1 && one.top < two.bottom - 3 && two.top < one.bottom - 3)
        found.push(name + ": " + told + " lies over " + other)
    }}))
  }}
  document.getElementById("found").textContent = JSON.stringify(found)
}}</script>"""


def report(policies: tuple[str, ...]) -> str:
    """Of jobs that wait, move and are late, so that every picture has something to show."""
    trace, options = generate("seren", 60, 1), Options(move_s=5.0, knowledge="after:60:0.2")
    played = play(trace, [Variant.plain(one) for one in policies], options, (0,), keeps_jobs=True, keeps_course=True)
    return page(summary(trace, played), played, {**options.told(), "seeds": "0"})


@pytest.fixture(scope="module", params=[FEW, MANY], ids=["few", "many"])
def text(request: pytest.FixtureRequest) -> str:
    return report(request.param)


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_is_cut(text: str, width: int, tmp_path: Path) -> None:
    """No cell, no legend and no label: all lie within the page, and no label lies over another one."""
    file = tmp_path / "frame.html"
    file.write_text(FRAME.format(width=width, page=html.escape(text)), encoding="utf-8")
    assert BROWSER is not None
    words = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom")
    shown = subprocess.run(
        [BROWSER, *words, "--virtual-time-budget=10000", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    measured = re.search('<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    assert measured is not None
    assert measured[1], "the browser has measured nothing"
    assert json.loads(html.unescape(measured[1])) == []
