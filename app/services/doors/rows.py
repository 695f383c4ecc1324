"""Rows of a file of a door: checked when they come, packed when they are trained on. Read by a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import InvalidInput, Unavailable
from app.services.doors.row_process import ANSWER, BUNDLE, QUESTION

LEAST_ROWS = 10  # as OpenAI has it
_AT_ONCE = 2
_LONGEST_S = 300.0
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")


class BadRows(InvalidInput):
    """`problems`: the first of them, each with its `line` (where it has one) and `message`; `count`: of all."""

    def __init__(self, message: str, problems: list[dict[str, Any]], count: int) -> None:
        super().__init__(message)
        self.problems = problems
        self.count = count


@dataclass(frozen=True, slots=True)
class PackedRows:
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
        """How many `rows` a file has, of which `shape`, and about how many `tokens`. Raises BadRows; Unavailable where
        that takes too long."""
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
    ) -> PackedRows:
        """`train`, `held_out`: names and contents of files. Raises BadRows, InvalidInput for a setting, Unavailable."""
        with tempfile.TemporaryDirectory(prefix="allpass-rows-") as name:
            folder = Path(name)
            question = {
                "do": "pack",
                "settings": dict(settings),
                "template": dict(template),
                "train": _written(folder, "train", *train),
                "held_out": None if held_out is None else _written(folder, "held-out", *held_out),
                "adapter": None if adapter is None else _folder_of(folder, adapter),
            }
            answer = await self._ask(folder, question)
            _refuse(train[0], answer)
            bundle = await asyncio.to_thread((folder / BUNDLE).read_bytes)
        del answer["size_bytes"]
        return PackedRows(bundle=bundle, **answer)

    async def _ask(self, folder: Path, question: Mapping[str, Any]) -> dict[str, Any]:
        (folder / QUESTION).write_text(json.dumps(question), encoding="utf-8")
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "app.services.doors.row_process", str(folder)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(_LONGEST_S):
                    _, said = await process.communicate()
            except TimeoutError:
                raise Unavailable(f"the rows could not be read within {_LONGEST_S:g} s; send fewer of them") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            last = said.decode(errors="replace").strip().splitlines()[-1:] or ["killed"]
            raise Unavailable(f"the rows could not be read: their reader ended with {process.returncode} ({last[0]})")
        answer: dict[str, Any] = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        return answer


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
