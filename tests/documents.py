"""Code blocks of Markdown files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n(?P<gap>\n?)```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """`before` is the last line before the block."""

    language: str
    text: str
    before: str

    @property
    def is_run(self) -> bool:
        return not self.before.startswith("<!-- not run: ")


def blocks_of(path: Path, language: str) -> list[Block]:
    found = [Block(one["language"], one["text"], one["before"]) for one in _BLOCK.finditer(path.read_text())]
    return [one for one in found if one.language == language]
