"""Puts fresh figures into docs/reproduction.md; the words around them stay, and want to be read again.

    .venv/bin/python scripts/reproduction.py PHILLY.csv SEREN_ALL.csv SEREN_SFT.csv

The tables by number of nodes are of the first trace.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from app.simulator.options import Options
from app.simulator.reproduction.experiments import reproduce
from app.simulator.reproduction.telling import markdown
from app.simulator.running import SimulationRequest, Variant, play_all, summary
from app.simulator.traces.job import Trace
from app.simulator.traces.reading import read_trace

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reproduction.md"
SEEDS = range(5)
NODES = ("5", "10", "20", "30")
POLICIES = ("allpass", "allpass-drain", "sjf-np", "sjf", "tiresias-l", "tiresias-l-np", "cheapest-first")


def by_nodes(trace: Trace) -> str:
    """The share of jobs done within 10 minutes, where nodes are short."""
    variants = [Variant.plain(one) for one in POLICIES]
    cases = [Options().having("serverful-limit", limit) for limit in NODES]
    played = play_all(
        [SimulationRequest(trace, one, case, seed) for case in cases for one in variants for seed in SEEDS]
    )
    each = len(variants) * len(SEEDS)
    lines = [["nodes", *(f"`{name}`" for name in POLICIES)], ["---", *["---:"] * len(POLICIES)]]
    for place, limit in enumerate(NODES):
        found = summary(trace, played[place * each : (place + 1) * each])["policies"]
        lines.append([limit, *(f"{found[name]['share_within_10_min']:.1%}" for name in POLICIES)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def replaced(text: str, part: str, content: str) -> str:
    """With this content between the part's two marks."""
    marked = re.compile(rf"(<!-- {part} -->\n).*?(\n<!-- end of {part} -->)", re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise SystemExit(f"{DOCUMENT} has no part {part}")
    return marked.sub(lambda found: f"{found[1]}\n{content}{found[2]}", text)


if __name__ == "__main__":
    traces = [read_trace(Path(name)) for name in sys.argv[1:]]
    if not traces:
        raise SystemExit(__doc__)
    figures = "\n".join(markdown(reproduce(trace, SEEDS)) for trace in traces)
    written = replaced(DOCUMENT.read_text(encoding="utf-8"), "figures", figures)
    DOCUMENT.write_text(replaced(written, "nodes", by_nodes(traces[0])), encoding="utf-8")
