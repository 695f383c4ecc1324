"""A file of rows that somebody sent: checked, and packed by the recipe. Runs in a process of its own (`kit.apart`),
for a file may be anything."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allpass.errors import InvalidData, InvalidTemplate, Problem
from allpass.errors import InvalidInput as Refusal
from allpass.recipe.mixtures import refuse_mixture
from allpass.recipe.packing import pack
from allpass.recipe.reading import read
from allpass.recipe.rows import check
from allpass.wire.template import Template
from app.errors import InvalidInput

_LONGEST_NAME_BYTES = 200
_OWN_FIELDS = ("model", "method", "held_out")
_FIELD = re.compile(r"([a-z_]{1,40})(\.[\w.]{1,60})?: ")


@dataclass(frozen=True, slots=True)
class RowsFile:
    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class RowsFound:
    """What a file holds; with problems nothing but them is known."""

    rows: int = 0
    shape: str | None = None
    labels: int = 0
    characters: int = 0
    ignored: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    problem_count: int = 0


@dataclass(frozen=True, slots=True)
class ToPack:
    file: RowsFile
    settings: Mapping[str, Any]
    held_out: float
    template: Template
    config: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PackedRows:
    """What a job is made of."""

    bundle: bytes
    sha256: str
    entrypoint: str
    template: Template
    parameters: Mapping[str, Any]
    pip: tuple[str, ...]


def plain_name(name: str, param: str) -> str:
    """The name of a file without its folders. Raises InvalidInput for what no file can be called."""
    found = re.split(r"[/\\]", name)[-1].strip()
    if found in ("", ".", "..") or len(found.encode(errors="replace")) > _LONGEST_NAME_BYTES:
        raise InvalidInput(f"{param}: {name[:80]!r} is no name of a file; give for instance train.jsonl", param=param)
    return found


def check_rows(file: RowsFile) -> RowsFound:
    """Every row, as before a submission."""
    try:
        with _on_disk(file) as path:
            found = check(read(path), file.name)
    except InvalidData as error:
        return RowsFound(problems=tuple(error.problems), problem_count=error.count)
    characters = sum(_characters(row) for row in found.rows)
    return RowsFound(len(found.rows), found.shape, len(found.labels), characters, found.ignored[:20])


def pack_rows(asked: ToPack) -> PackedRows:
    """Raises InvalidInput that names a field of the request."""
    try:
        refuse_mixture(str(asked.settings["model"]), asked.config)
        with _on_disk(asked.file) as path:
            packed = pack(asked.settings, path, held_out=asked.held_out, template=asked.template, config=asked.config)
    except InvalidData as error:
        raise InvalidInput(_told(error), param="data") from None
    except InvalidTemplate as error:
        raise InvalidInput(_told(error), param=f"template.{error.problems[0].where}") from None
    except Refusal as error:
        raise InvalidInput(_told(error), param=_param(error.message)) from None
    bundle = packed.bundle
    return PackedRows(
        bundle.content, bundle.sha256, bundle.entrypoint, packed.template, packed.parameters, tuple(packed.pip)
    )


@contextmanager
def _on_disk(file: RowsFile) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="allpass-rows-") as folder:
        path = Path(folder) / file.name
        path.write_bytes(file.content)
        yield path


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(one) for one in value.values())
    return sum(_characters(one) for one in value) if isinstance(value, list) else 0


def _told(error: Refusal) -> str:
    """The last word is what would be accepted; a line for each problem would be many for one message."""
    first = error.message.splitlines()[0]
    return f"{first}; for instance {error.hint}" if error.hint else first


def _param(message: str) -> str:
    """The field of the request that the recipe's message begins with."""
    found = _FIELD.match(message)
    if found is None:
        return "settings"
    return found[1] if found[1] in _OWN_FIELDS else f"settings.{found[1]}"
