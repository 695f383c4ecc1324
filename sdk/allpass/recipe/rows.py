"""Every row checked against the one shape that all of them have, before anything is sent."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allpass.errors import InvalidData, Problem
from allpass.recipe.reading import Row

FIELDS = {
    "messages": ("messages",),
    "prompt": ("prompt", "completion"),
    "labelled": ("text", "label"),
    "text": ("text",),
}
ACCEPTED = "prompt and completion; messages; text; or text and label"
ROLES = ("system", "user", "assistant", "tool")
MOST_TOLD = 10
MOST_LABELS = 10_000


@dataclass(frozen=True)
class Checked:
    """Rows of one shape with the fields of that shape alone. `labels`: all that occur, in order."""

    source: str
    shape: str
    rows: tuple[dict[str, Any], ...]
    labels: tuple[str, ...]
    ignored: tuple[str, ...]
    places: tuple[str, ...]


def check(rows: Sequence[Row], source: str, *, task: str | None = None, shape: str | None = None) -> Checked:
    """`task`: what is to be learned, if it was said; `shape`: what these rows must have since those that they go with
    have it.

    Raises InvalidData with the first ten problems, each with its row and field.
    """
    if not rows:
        raise InvalidData(source, [Problem("", "there are no rows", f"rows with {ACCEPTED}")])
    are_all = shape is None
    shape = shape or _shape(rows[0], source, task)
    problems: list[Problem] = []
    kept = []
    for row in rows:
        found, values = _check_row(row, shape)
        problems += found
        kept.append(values)
    if problems:
        raise InvalidData(source, problems[:MOST_TOLD], len(problems))
    labels = _labels(kept, source) if are_all and shape == "labelled" else ()
    ignored = sorted({str(name) for row in rows for name in row.values} - set(FIELDS[shape]))
    return Checked(source, shape, tuple(kept), labels, tuple(ignored), tuple(row.place for row in rows))


def _shape(first: Row, source: str, task: str | None) -> str:
    names = [str(name) for name in first.values]
    shapes = [shape for shape, fields in FIELDS.items() if set(fields) <= set(names)]
    if task == "sft":
        shapes = [shape for shape in shapes if shape != "labelled"]
    if task == "classification":
        shapes = [shape for shape in shapes if shape == "labelled"]
    if len(shapes) > 1 and shapes[-1] == "text":
        shapes.pop()  # text and label, not text alone
    if len(shapes) == 1:
        return shapes[0]
    there = ", ".join(names) or "no fields"
    if shapes:
        raise InvalidData(
            source, [Problem(first.place, f"has {there}: more than one of {ACCEPTED}", "leave the others out")]
        )
    wanted = "text and label" if task == "classification" else ACCEPTED
    raise InvalidData(source, [Problem(first.place, f"has {there}; {wanted} are needed", _renaming(names))])


def _renaming(names: Sequence[str]) -> str:
    known = sorted({field for fields in FIELDS.values() for field in fields})
    for name in names:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
        if near:
            return f"call {name!r} {near[0]!r}"
    return '{"prompt": "...", "completion": "..."}'


def _check_row(row: Row, shape: str) -> tuple[list[Problem], dict[str, Any]]:
    problems: list[Problem] = []
    kept: dict[str, Any] = {}
    for field in FIELDS[shape]:
        where = f'{row.place}, field "{field}"'
        if field not in row.values:
            near = difflib.get_close_matches(field, [str(name) for name in row.values], n=1, cutoff=0.7)
            problems.append(Problem(where, "is missing", f"call {near[0]!r} {field!r}" if near else None))
            continue
        value = row.values[field]
        if field == "messages":
            found, kept[field] = _check_messages(value, where)
        elif field == "label":
            found, kept[field] = _check_label(value, where)
        else:
            found, kept[field] = _check_text(value, where)
        problems += found
    return problems, kept


def _check_text(value: Any, where: str) -> tuple[list[Problem], str]:
    if not isinstance(value, str):
        return [Problem(where, f"{_short(value)} is not text")], ""
    if not value.strip():
        return [Problem(where, "is empty")], ""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return [Problem(where, "has half of a character (a lone surrogate)")], ""
    return [], value


def _check_label(value: Any, where: str) -> tuple[list[Problem], str]:
    """Numbers and truth values are labels too, by the text they have in JSON."""
    if isinstance(value, bool):
        return [], "true" if value else "false"
    if isinstance(value, int):
        return [], str(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return [], str(int(value))
    if isinstance(value, float):
        return [Problem(where, f"{value!r} is a measurement, not a label", 'name the classes: "low", "high"')], ""
    found, text = _check_text(value, where)
    return found, text.strip()


def _check_messages(value: Any, where: str) -> tuple[list[Problem], list[dict[str, str]]]:
    if not isinstance(value, list) or not value:
        return [
            Problem(where, f"{_short(value)} is not a list of messages", '[{"role": "user", "content": "..."}]')
        ], []
    problems: list[Problem] = []
    kept: list[dict[str, str]] = []
    for number, message in enumerate(value):
        place = f"{where}, message {number + 1}"
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            problems.append(Problem(place, "has no role and content", '{"role": "user", "content": "..."}'))
            continue
        if message["role"] not in ROLES:
            problems.append(Problem(f"{place}, role", f"{_short(message['role'])} is not one of {', '.join(ROLES)}"))
        found, text = _check_text(message["content"], f"{place}, content")
        problems += found
        kept.append({"role": str(message["role"]), "content": text})
    if not problems and kept[-1]["role"] != "assistant":
        problems.append(Problem(where, "does not end with a message of the assistant, which is what is learned"))
    return problems, kept


def _labels(rows: Sequence[Mapping[str, Any]], source: str) -> tuple[str, ...]:
    labels = {row["label"] for row in rows}
    if len(labels) < 2:
        raise InvalidData(source, [Problem('field "label"', f"every row has {next(iter(labels))!r}: two are needed")])
    if len(labels) > MOST_LABELS:
        raise InvalidData(source, [Problem('field "label"', f"{len(labels)} different ones are no classes")])
    numeric = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=int if numeric else str))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
