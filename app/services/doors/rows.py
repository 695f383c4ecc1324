"""Rows of a file of a door: checked when they come, packed when they are trained on. Read by a process of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpass.recipe.shapes import find_config
from app.errors import InvalidInput
from app.services.doors.row_work import BUNDLE, answer_rows
from app.services.kit.apart import WorkBounds, work_apart

LEAST_ROWS = 10  # as OpenAI has it
_AT_ONCE = 2
_BOUNDS = WorkBounds("a file of rows", 300.0, 4 * 2**30, "send fewer rows")
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")


class BadRows(InvalidInput):
    """`problems`: the first of them, each with its `line` (where it has one) and `message`; `count`: of all."""

    def __init__(self, message: str, problems: list[dict[str, Any]], count: int) -> None:
        super().__init__(message)
        self.problems = problems
        self.count = count


@dataclass(frozen=True, slots=True)
class PackedTuning:
    """A fine-tuning that is ready to become a job."""

    bundle: bytes
    sha256: str
    entrypoint: str
    parameters: dict[str, Any]
    template: dict[str, Any]
    pip: list[str]
    rows: int
    steps: int


class RowReader:
    """One per process of the service; few files at a time."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def check(self, filename: str, content: bytes) -> dict[str, Any]:
        """How many `rows` a file has, of which `shape`, and about how many `tokens`. Raises BadRows; TooLarge where
        that takes too much."""
        with tempfile.TemporaryDirectory(prefix="allpass-rows-") as name:
            folder = Path(name)
            file = _written(folder, "rows", filename, content)
            answer = await self._ask(folder, {"do": "check", "file": file, "name": filename})
        if "rows" in answer and answer["rows"] < LEAST_ROWS:
            what = f"has {answer['rows']} example(s), but must have at least {LEAST_ROWS} examples"
            raise _bad(filename, [{"where": "", "message": what, "hint": None}], 1)
        _refuse(filename, answer)
        return answer

    async def pack(
        self,
        settings: Mapping[str, Any],
        template: Mapping[str, Any],
        train: tuple[str, bytes],
        held_out: tuple[str, bytes] | None,
        adapter: Mapping[str, bytes] | None,
    ) -> PackedTuning:
        """`train`, `held_out`: names and contents of files. Raises BadRows, InvalidInput for a setting, TooLarge."""
        with tempfile.TemporaryDirectory(prefix="allpass-rows-") as name:
            folder = Path(name)
            question = {
                "do": "pack",
                "settings": dict(settings),
                "template": dict(template),
                "config": await asyncio.to_thread(_config_of, str(settings["model"])),
                "train": _written(folder, "train", *train),
                "held_out": None if held_out is None else _written(folder, "held-out", *held_out),
                "adapter": None if adapter is None else _folder_of(folder, adapter),
            }
            answer = await self._ask(folder, question)
            _refuse(train[0], answer)
            bundle = await asyncio.to_thread((folder / BUNDLE).read_bytes)
        del answer["size_bytes"]
        return PackedTuning(bundle=bundle, **answer)

    async def _ask(self, folder: Path, question: Mapping[str, Any]) -> dict[str, Any]:
        async with self._turns:
            return await work_apart(answer_rows, (folder, question), _BOUNDS)


def _config_of(model: str) -> dict[str, Any] | None:
    """What the hub says of a model's size. A path is one on machines: here it names nothing that may be read."""
    return None if model.startswith("/") else find_config(model)


def _written(folder: Path, stem: str, filename: str, content: bytes) -> str:
    """Under a name of ours, with the suffix that says how to read it. Raises BadRows for one that nothing reads."""
    suffix = Path(filename).suffix.lower()
    if suffix not in _SUFFIXES:
        what = f"is in the {suffix or 'no-suffix'} format, and a .jsonl file is expected"
        raise _bad(filename, [{"where": "", "message": what, "hint": "train.jsonl"}], 1)
    (folder / (stem + suffix)).write_bytes(content)
    return stem + suffix


def _folder_of(folder: Path, adapter: Mapping[str, bytes]) -> str:
    (folder / "adapter").mkdir()
    for name, content in adapter.items():
        (folder / "adapter" / name).write_bytes(content)
    return "adapter"


def _refuse(filename: str, answer: Mapping[str, Any]) -> None:
    if "refused" in answer:
        raise InvalidInput(answer["refused"])
    if "problems" in answer:
        raise _bad(filename, answer["problems"], answer["count"])


def _bad(filename: str, problems: list[dict[str, Any]], count: int) -> BadRows:
    lines = [f"{filename}{', ' if one['where'] else ''}{one['where']}: {one['message']}" for one in problems]
    if count > len(problems):
        lines.append(f"and {count - len(problems)} more")
    return BadRows("\n".join(lines), problems, count)
