"""What a rehearsal leaves behind: one file for people and one for programs, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.core.model.finding import Finding, as_object, blotted
from app.smoke.doubts import Settled


@dataclass
class Report:
    """Filled as the rehearsal goes on, so that one that breaks off has all that was found until then."""

    provider: str
    begun_at: str
    version: str
    most_micros: int
    outcome: str = "not finished"
    findings: list[Finding] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    machines: list[dict[str, Any]] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)
    doubts: list[Settled] = field(default_factory=list)
    spent_micros: int = 0
    left: list[str] = field(default_factory=list)
    proof: list[str] = field(default_factory=list)

    def note(self, at_s: float, what: str, outcome: str = "") -> None:
        self.steps.append({"at_s": round(at_s, 1), "what": what, "outcome": outcome})

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["findings"] = [as_object(one) for one in self.findings]
        return told

    def write(self, folder: Path, secrets: Iterable[str]) -> Path:
        """Both files, beside each other; the one for people is returned."""
        hidden = list(secrets)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"allpass-smoke-{self.provider}-{self.begun_at.replace(':', '').replace('-', '')}"
        told = json.dumps(_clean(self.as_json(), hidden), indent=2)
        (folder / f"{name}.json").write_text(told + "\n")
        lines = [blotted(line, hidden) for line in self._lines()]
        path = folder / f"{name}.md"
        path.write_text("\n".join(lines) + "\n")
        return path

    def _lines(self) -> Iterable[str]:
        yield f"# A rehearsal at {self.provider}: {self.outcome}"
        yield ""
        yield f"Begun {self.begun_at} with Allpass {self.version}; ceiling ${self.most_micros / 1e6:.2f}, "
        yield f"spent ${self.spent_micros / 1e6:.4f} by the ledger. Compare that with the company's own bill."
        yield from _table("Steps", ("at", "what", "outcome"), [tuple(map(str, one.values())) for one in self.steps])
        yield from _table(
            "The set-up",
            ("check", "found", "message"),
            [(one.name, one.verdict.value, one.message) for one in self.findings],
        )
        yield from _table("Machines", ("node", "GPU", "ready after", "cost"), [_machine(one) for one in self.machines])
        yield from _table(
            "What the machines said", ("what", "found"), [pair for one in self.looks for pair in _pairs(one)]
        )
        yield from _table(
            "What only a real account settles",
            ("question", "answer", "if not"),
            [(one.question, one.answer, one.fallback) for one in self.doubts],
        )
        yield from ("", "## The end", "", *(f"- {line}" for line in self.proof))
        yield from (f"- **END BY HAND: {one}**" for one in self.left)


def _machine(one: dict[str, Any]) -> tuple[str, ...]:
    ready = "never" if one["ready_after_s"] is None else f"{one['ready_after_s']:.0f} s"
    return one["node"], one["gpu"], ready, f"${one['cost_micros'] / 1e6:.4f}"


def _pairs(look: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in look.items()]


def _table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterable[str]:
    if not rows:
        return
    yield from ("", f"## {title}", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads))
    yield from (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _clean(told: Any, secrets: list[str]) -> Any:
    if isinstance(told, str):
        return blotted(told, secrets)
    if isinstance(told, list):
        return [_clean(one, secrets) for one in told]
    if isinstance(told, dict):
        return {name: _clean(value, secrets) for name, value in told.items()}
    return told
