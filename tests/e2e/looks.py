"""How a page looks, so coarsely that fonts do not matter and a broken layout does.

A look is where the landmarks of a page are, and its picture in blocks of `BLOCK` pixels, each the mean of its colours.
Fonts differ between machines: words are wider here and wrap there. So a landmark may be some pixels elsewhere, and some
of the blocks may differ; a column that fell below another one moves far more than that.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Page

Pixels = NDArray[np.uint8]
BLOCK = 16
DIFFERS = 40  # of 255: a block differs by more than that in any colour, also from the blocks around it
MOST_DIFFERENT = 0.06  # share of blocks
NEAR_PX = 24
NEAR_SHARE = 0.12  # of a landmark's own size
AS_WIDE_AS_WORDS = {"h1"}  # of these only place and height count
LANDMARKS = ("header", "nav[aria-label=Pages]", "main", "h1", "main form", "main table")
# What is another one each time, or drawn by a clock: its place counts, and not what stands in it.
MASK = """
time, canvas, svg, .number, .mono, code, .command, .who, td, .status, .tier, input, select, .faint, small, .headline
{ color: transparent !important; text-shadow: none !important; }
canvas, svg, .bar-cell, .meter, .memory { opacity: 0 !important; }
footer { display: none !important }
* { caret-color: transparent !important; transition: none !important; animation: none !important; }
"""
_BOXES = """names => {
  const boxOf = name => document.querySelector(name)?.getBoundingClientRect()
  const found = names.map(name => [name, boxOf(name)]).filter(([, box]) => box)
  return Object.fromEntries(found.map(([name, box]) => [name, [box.x, box.y, box.width, box.height].map(Math.round)]))
}"""
_ADOPT = """css => {
  const sheet = new CSSStyleSheet()
  sheet.replaceSync(css)
  document.adoptedStyleSheets.push(sheet)
}"""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Look:
    boxes: dict[str, list[int]]  # x, y, width, height
    blocks: Pixels

    def write(self, path: Path) -> None:
        path.with_suffix(".json").write_text(json.dumps(self.boxes, indent=1) + "\n")
        path.with_suffix(".png").write_bytes(encoded(self.blocks))

    @classmethod
    def read(cls, path: Path) -> Look:
        boxes = json.loads(path.with_suffix(".json").read_text())
        return cls(boxes, decoded(path.with_suffix(".png").read_bytes()))


def look_at(page: Page) -> Look:
    """The visible part of the page, as it is now."""
    with styled(page, MASK):
        return Look(page.evaluate(_BOXES, list(LANDMARKS)), blocks_of(decoded(page.screenshot())))


@contextmanager
def styled(page: Page, css: str) -> Iterator[None]:
    """Past the page's policy, which takes style sheets of its own alone."""
    page.evaluate(_ADOPT, css)
    try:
        yield
    finally:
        page.evaluate("document.adoptedStyleSheets.pop()")


def differences(known: Look, found: Look) -> list[str]:
    """What is not as it was, in words; empty where it looks the same."""
    others = sorted(set(known.boxes) ^ set(found.boxes))
    told = [f"{name} is {'gone' if name in known.boxes else 'new'}" for name in others]
    for name in sorted(set(known.boxes) & set(found.boxes)):
        was, now = known.boxes[name], found.boxes[name]
        slack = [max(NEAR_PX, NEAR_SHARE * size) for size in (was[2], was[3], was[2], was[3])]
        if name in AS_WIDE_AS_WORDS:
            slack[2] = float("inf")
        if any(abs(a - b) > most for a, b, most in zip(was, now, slack, strict=True)):
            told.append(f"{name} was at {was} and is at {now} (x, y, width, height)")
    share = different(known.blocks, found.blocks)
    if share > MOST_DIFFERENT:
        told.append(f"{share:.1%} of the picture differs, and {MOST_DIFFERENT:.0%} may")
    return told


def different(one: Pixels, other: Pixels) -> float:
    """The share of blocks that are unlike any of the nine around the same place in the other picture."""
    if one.shape != other.shape:
        return 1.0
    padded = np.pad(other.astype(int), ((1, 1), (1, 1), (0, 0)), mode="edge")
    height, width, _ = one.shape
    least = np.full((height, width), 255)
    for down in range(3):
        for right in range(3):
            moved = padded[down : down + height, right : right + width]
            least = np.minimum(least, np.abs(one.astype(int) - moved).max(axis=2))
    return float((least > DIFFERS).mean())


def blocks_of(pixels: Pixels) -> Pixels:
    """Means of blocks; what is left at the right and at the bottom is left out."""
    height, width = (size // BLOCK for size in pixels.shape[:2])
    cut = pixels[: height * BLOCK, : width * BLOCK].astype(float)
    return cut.reshape(height, BLOCK, width, BLOCK, 3).mean(axis=(1, 3)).round().astype(np.uint8)


def encoded(pixels: Pixels) -> bytes:
    """As a PNG."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def decoded(png: bytes) -> Pixels:
    """A PNG as browsers write it: eight bits, red, green, blue and perhaps alpha, which is left out."""
    assert png.startswith(_SIGNATURE)
    at, data, head = len(_SIGNATURE), b"", b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        content = png[at + 8 : at + 8 + length]
        head = content if kind == b"IHDR" else head
        data += content if kind == b"IDAT" else b""
        at += length + 12
    width, height, bits, colours, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    assert (bits, interlaced) == (8, 0)
    assert colours in (2, 6)
    channels = 3 if colours == 2 else 4
    return _unfiltered(zlib.decompress(data), width, height, channels)[:, :, :3]


def _unfiltered(raw: bytes, width: int, height: int, channels: int) -> Pixels:
    stride = width * channels
    before = np.zeros(stride, dtype=np.uint8)
    rows = []
    for row in range(height):
        start = row * (stride + 1)
        line = np.frombuffer(raw, np.uint8, stride, start + 1).copy()
        before = _row(raw[start], line, before, channels)
        rows.append(before)
    return np.stack(rows).reshape(height, width, channels)


def _row(filter_: int, line: Pixels, above: Pixels, channels: int) -> Pixels:
    if filter_ == 0:
        return line
    if filter_ == 2:
        return line + above
    if filter_ == 1:
        pixels = line.reshape(-1, channels)
        return pixels.cumsum(axis=0, dtype=np.uint8).reshape(-1)
    left = [0] * channels
    corner = [0] * channels
    told, up = line.tolist(), above.tolist()
    for at, value in enumerate(told):
        side = at % channels
        guess = (left[side] + up[at]) // 2 if filter_ == 3 else _paeth(left[side], up[at], corner[side])
        corner[side], left[side] = up[at], (value + guess) & 255
        told[at] = left[side]
    return np.array(told, dtype=np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    far = [abs(guess - one) for one in (left, up, corner)]
    return (left, up, corner)[far.index(min(far))]
