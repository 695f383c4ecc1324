"""What reads rows, in a process of its own (`kit.apart`): they may be large or made to hurt. It reads files of one
folder alone, and leaves there the bundle of a fine-tuning that it packs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allpass.errors import InvalidData, InvalidInput
from allpass.recipe.packing import pack
from allpass.recipe.reading import read
from allpass.recipe.rows import check
from allpass.wire.template import Template

BUNDLE = "bundle.tar.gz"
BYTES_PER_TOKEN = 4  # of English text, about; a tokenizer is at hand on machines alone
LONGEST_ROW_TOKENS = 131_072
_PAIR = ("preferred_output", "non_preferred_output")


def answer_rows(asked: tuple[Path, Mapping[str, Any]]) -> dict[str, Any]:
    """What a question about files of a folder comes to; what is wrong with the rows is an answer too."""
    folder, question = asked
    try:
        return _checked(folder, question) if question["do"] == "check" else _packed(folder, question)
    except InvalidData as error:
        problems = [{"where": one.where, "message": one.message, "hint": one.hint} for one in error.problems]
        return {"problems": problems, "count": error.count}
    except InvalidInput as error:
        return {"refused": error.message, "hint": error.hint}
    except RecursionError:
        return {"problems": [{"where": "", "message": "its rows are nested too deep", "hint": None}], "count": 1}


def _checked(folder: Path, question: Mapping[str, Any]) -> dict[str, Any]:
    path = _as_ours(folder / question["file"])
    found = check(read(path), question["name"])
    tokens = _tokens(path)
    long = [number for number, count in enumerate(tokens, 1) if count > LONGEST_ROW_TOKENS]
    if long:
        what = f"has about {tokens[long[0] - 1]:,} tokens, and {LONGEST_ROW_TOKENS:,} is the most"
        return {"problems": [{"where": f"line {long[0]}", "message": what, "hint": None}], "count": len(long)}
    return {"rows": len(found.rows), "shape": found.shape, "tokens": sum(tokens), "ignored": list(found.ignored)}


def _packed(folder: Path, question: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(question["settings"])
    if question["adapter"]:
        settings["adapter"] = str(folder / question["adapter"])
    held_out: float | Path = _as_ours(folder / question["held_out"]) if question["held_out"] else 0.0
    template = Template.model_validate(question["template"])
    rows = _as_ours(folder / question["train"])
    packed = pack(settings, rows, held_out=held_out, template=template, config=question["config"])
    (folder / BUNDLE).write_bytes(packed.bundle.content)
    return {
        "sha256": packed.bundle.sha256,
        "size_bytes": packed.bundle.size_bytes,
        "entrypoint": packed.bundle.entrypoint,
        "parameters": _parameters(packed.parameters, question),
        "template": packed.template.model_dump(mode="json", exclude_unset=True),
        "pip": packed.pip,
        "rows": packed.train_rows,
        "steps": packed.total_steps,
    }


def _parameters(parameters: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """An adapter lies beside the rows: where it was read from here says nothing on a machine."""
    told = dict(parameters)
    if question["adapter"]:
        told["adapter"] = question["adapter"]
    return told


def _as_ours(path: Path) -> Path:
    """Rows that name the better of two answers as OpenAI does, as pairs; line by line, so that lines keep their
    number. What is no such row stays as it is: the recipe's own checks speak of it."""
    if path.suffix != ".jsonl" or not _has_preferences(path):
        return path
    made = path.with_name(f"as-pairs-{path.name}")
    with path.open(encoding="utf-8-sig") as lines, made.open("w", encoding="utf-8") as out:
        for line in lines:
            out.write(_as_pair(line))
    return made


def _has_preferences(path: Path) -> bool:
    with path.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    return b'"preferred_output"' in first


def _as_pair(line: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(row, dict) or not any(name in row for name in _PAIR):
        return line
    asked = row.get("input")
    asked = asked if isinstance(asked, dict) else {"messages": asked}
    pair = {"prompt": asked.get("messages"), "chosen": row.get(_PAIR[0]), "rejected": row.get(_PAIR[1])}
    tools = asked.get("tools")
    told = {name: value for name, value in pair.items() if value is not None}
    return json.dumps({**told, **({"tools": tools} if tools else {})}, ensure_ascii=False) + "\n"


def _tokens(path: Path) -> list[int]:
    """About how many tokens each line has."""
    with path.open("rb") as lines:
        return [len(line) // BYTES_PER_TOKEN for line in lines if line.strip()]
