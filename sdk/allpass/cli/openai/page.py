"""The comparison as one HTML file: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from allpass.cli.openai.compare import TRAINING, VALIDATION, Comparison, Point

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 46
_TICKS = 5
_STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#5a6067;--paper:#fff;--card:#f6f7f8;--grid:#dfe2e5;
--old:#d35313;--new:#1257ff}
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ec;--soft:#a8afb7;--paper:#14171a;--card:#1d2125;--grid:#343a40;
--old:#f4ab20;--new:#7f8cff}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:900px;background:var(--paper);color:var(--ink);
font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.2em 0 .3em}
section{background:var(--card);border-radius:8px;padding:14px}section h2{margin-top:0}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font:12.5px system-ui,sans-serif}
.grid{stroke:var(--grid);stroke-width:1}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.old{stroke:var(--old)}.new{stroke:var(--new)}.valid{stroke-dasharray:7 4}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px}.keys span{display:inline-flex;align-items:center;gap:6px}
.keys svg{width:34px;height:10px;flex:none}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{padding:4px 0 4px 10px;text-align:right;border-bottom:1px solid var(--grid);font-variant-numeric:tabular-nums}
th:first-child{width:30%;padding-left:0;text-align:left;font-weight:400}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(found: Comparison) -> str:
    """The HTML text. All that others have told is escaped."""
    title = "A fine-tuning at OpenAI and on Allpass"
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(old)}</td><td>{escape(new)}</td></tr>"
        for name, old, new in found.rows()
    )
    head = f"<th>{escape(found.old.name)}</th><th>{escape(found.new.name)}</th>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        + "".join(f"<p>{escape(one)}</p>" for one in found.remarks)
        + f"<section><h2>Losses</h2>{_keys(found)}{_chart(found)}</section>"
        f"<h2>Figures</h2><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></body></html>\n"
    )


def _lines(found: Comparison) -> list[tuple[str, str, Sequence[Point]]]:
    """Class, words and points of each curve that there is."""
    return [
        (f"{side}{' valid' if kind == VALIDATION else ''}", f"{run.name}, {kind}", run.curves[kind])
        for side, run in (("old", found.old), ("new", found.new))
        for kind in (TRAINING, VALIDATION)
        if run.curves.get(kind)
    ]


def _keys(found: Comparison) -> str:
    parts = [
        f'<span><svg viewBox="0 0 34 10"><path class="line {look}" d="M0 5H34"/></svg>{escape(words)}</span>'
        for look, words, _ in _lines(found)
    ]
    return f'<p class="keys">{"".join(parts)}</p>'


def _chart(found: Comparison) -> str:
    lines = _lines(found)
    points = [one for _, _, curve in lines for one in curve]
    if not points:
        return "<p>Neither run has losses to show.</p>"
    right = max(x for x, _ in points) or 1.0
    low, high = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    high = high if high > low else low + 1.0

    def at(point: Point) -> Point:
        across = _LEFT + point[0] / right * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - (point[1] - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in range(_TICKS + 1):
        x, y = right * tick / _TICKS, low + (high - low) * tick / _TICKS
        across, up = at((x, y))
        parts.append(f'<path class="grid" d="M{across:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<path class="grid" d="M{_LEFT} {up:.1f}H{_WIDTH - _RIGHT}"/>')
        anchor = "end" if tick == _TICKS else "middle"
        parts.append(f'<text x="{across:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="{anchor}">{x:.3g}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{up + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(found.unit)}</text>')
    parts += [f'<path class="line {look}" d="{_path(map(at, curve))}"><title>{escape(words)}</title></path>'
              for look, words, curve in lines]  # fmt: skip
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Losses of both runs">{"".join(parts)}</svg>'


def _path(places: map[Point]) -> str:
    """A line; a dot, where there is one place alone."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) + "h0"
